"""The agent loop: what the model sees only grows, its mistakes come back to it, ends are typed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counter_domain import CounterDomain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, generation

from polymath.envs.types import Artifact, Effort, ToolCall
from polymath.rollout.agent_loop import Played, PlayLimits, play
from polymath.rollout.engine.base import EngineError, Generation, SamplingSpec
from polymath.rollout.renderer.base import AssistantMessage
from polymath.rollout.renderer.polymath import ARGS, CALL, CALL_END, END, PolymathRenderer
from polymath.rollout.types import OutcomeKind, Tokens, Turn

LIMITS = PlayLimits(turns=8, episode_tokens=4096, seconds=60.0, grace_seconds=5.0)


def counter(
    engine: Any,
    renderer: PolymathRenderer,
    domain: CounterDomain | None = None,
    limits: PlayLimits = LIMITS,
    turn_tokens: int = 200,
    journal: Callable[[int, Turn], None] = lambda index, turn: None,
) -> Played:
    domain = domain or CounterDomain()
    task = domain.sample(0, domain.spec.level(0))
    return asyncio.run(
        play(
            "e", task, domain, Effort.LOW, engine, renderer, None, SamplingSpec(turn_tokens),
            limits, journal,
        )  # type: ignore[arg-type]
    )  # fmt: skip


def oracle_engine(renderer: PolymathRenderer) -> ScriptedEngine:
    domain = CounterDomain()
    return ScriptedEngine(
        renderer, lambda episode: domain.oracle(domain.sample(0, domain.spec.level(0)))
    )


class Sayings(ScriptedEngine):
    """Says these token lists, turn by turn; the last one again and again."""

    def __init__(self, renderer: PolymathRenderer, *turns: list[int]) -> None:
        super().__init__(renderer, lambda episode: None)  # type: ignore[arg-type,return-value]
        self.turns = turns

    def say(self, episode: str, turn: int, observation: str) -> list[int]:
        return self.turns[min(turn, len(self.turns) - 1)]


def calls(renderer: PolymathRenderer, *calls: ToolCall) -> list[int]:
    return renderer.assistant(AssistantMessage("", "", calls, complete=True))


def add(n: Any, id: str = "0") -> ToolCall:
    return ToolCall(id, "add", {"n": n})


def said(renderer: PolymathRenderer, text: str) -> list[int]:
    return renderer.assistant(AssistantMessage("", text, (), complete=True))


def heard(renderer: PolymathRenderer, played: Played, turn: int) -> str:
    return renderer.decode(played.segments[0].turns[turn].prompt.tolist())


def test_an_oracle_episode_is_exactly_what_was_sampled(renderer: PolymathRenderer) -> None:
    engine, journal = oracle_engine(renderer), []
    played = counter(engine, renderer, journal=lambda index, turn: journal.append((index, turn)))
    assert played.outcome is None and played.artifact == Artifact("6")
    (segment,) = played.segments
    assert journal == list(enumerate(segment.turns)) and len(journal) == 4
    tokens = segment.tokens().tolist()
    for index, context in enumerate(engine.contexts["e"]):
        turn = segment.turns[index]
        assert tokens[: len(context)] == context  # each context is a prefix of the whole
        following = tokens[len(context) :][: len(turn.sampled)]
        assert following == turn.sampled.tolist()
    sampled = segment.loss_mask()
    assert sampled.sum() == segment.sampled_tokens == sum(len(t.sampled) for _, t in journal)
    assert set(segment.versions()[sampled]) == {0, 1, 2, 3}
    assert (segment.logprobs()[sampled] < 0).all() and not segment.logprobs()[~sampled].any()
    assert [turn.state_key for turn in segment.turns] == [None, "at 1", "at 3", "at 6"]
    assert segment.turns[0].events == {"0": {"c": 1}}


def test_mistakes_come_back_and_can_be_corrected(renderer: PolymathRenderer) -> None:
    head, junk = renderer.encode_text("add:0"), renderer.encode_text('{"n":')
    engine = Sayings(
        renderer,
        [CALL, *head, ARGS, *junk, CALL_END, END],
        calls(renderer, ToolCall("0", "subtract", {})),
        calls(renderer, add("three")),
        calls(renderer, add(12)),
        calls(renderer, ToolCall("0", "add", {"n": 3, "m": 1})),
        calls(renderer, add(6)),
        said(renderer, "6"),
    )
    played = counter(engine, renderer)
    assert played.artifact == Artifact("6")
    for turn, error in {
        1: "error: the arguments are not JSON",
        2: "error: no tool 'subtract'; the tools are: add, stop",
        3: "error: arguments['n']: 'three' is not of type 'integer'",
        4: "error: arguments['n']: 12 is greater than the maximum of 9",
        5: "error: arguments: Additional properties are not allowed",
        6: "count 6",
    }.items():
        assert f"<|tool|>0<|sep|>{error}" in heard(renderer, played, turn)
    assert played.segments[0].turns[1].events["0"]["refused"].startswith("no tool")


def test_parallel_calls_are_answered_in_order(renderer: PolymathRenderer) -> None:
    engine = Sayings(
        renderer,
        calls(renderer, add(2, "0"), ToolCall("1", "nothing", {}), add(4, "2")),
        calls(renderer, add(1, "0"), ToolCall("1", "stop", {}), add(1, "2")),
    )
    played = counter(engine, renderer)
    results = heard(renderer, played, 1)
    assert results == (
        "<|tool|>0<|sep|>count 2<|end|><|tool|>1<|sep|>error: no tool 'nothing'; the tools are: "
        "add, stop<|end|><|tool|>2<|sep|>count 6<|end|><|assistant|>"
    )
    assert played.artifact == Artifact("7")  # the call that ended the episode was the last
    assert set(played.segments[0].turns[1].events) == {"0", "1"}


def test_truncations_are_typed_and_keep_what_was_sampled(renderer: PolymathRenderer) -> None:
    step, long = calls(renderer, add(1)), said(renderer, "and so on " * 40)

    def why(engine: Any, **options: Any) -> tuple[str, int]:
        played = counter(engine, renderer, **options)
        assert played.outcome is not None and played.artifact is None
        assert played.outcome.kind is OutcomeKind.TRUNCATED and played.outcome.reward is None
        return played.outcome.why, played.segments[0].sampled_tokens

    few = PlayLimits(3, 4096, 60.0)
    assert why(Sayings(renderer, step), limits=few) == ("turns", 3 * len(step))
    assert why(Sayings(renderer, step, long), turn_tokens=50) == ("turn_tokens", len(step) + 50)
    opening = len(counter(Sayings(renderer, step), renderer).segments[0].turns[0].prompt)
    room = PlayLimits(8, opening + len(step) + 40, 60.0)
    assert why(Sayings(renderer, step, long), limits=room)[0] == "episode_tokens"
    none = PlayLimits(8, opening, 60.0)
    assert why(Sayings(renderer, step), limits=none) == ("episode_tokens", 0)
    assert why(Sayings(renderer, step), domain=CounterDomain("cut"))[0] == "environment"


class Slow(Sayings):
    """Samples until it is aborted; then gives what it has, or nothing."""

    def __init__(self, renderer: PolymathRenderer, has: list[int], answers: bool = True) -> None:
        super().__init__(renderer, has)
        self.has, self.answers = has, answers
        self.started, self.stop = asyncio.Event(), asyncio.Event()

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        self.started.set()
        await self.stop.wait()
        return generation(self.has, finish="abort")

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if self.answers:
            self.stop.set()


def test_the_deadline_aborts_the_request_and_keeps_its_tokens(renderer: PolymathRenderer) -> None:
    short = PlayLimits(8, 4096, 0.05, grace_seconds=0.2)
    engine = Slow(renderer, [70, 71])
    played = counter(engine, renderer, limits=short)
    assert played.outcome is not None
    assert (played.outcome.kind, played.outcome.why) == (OutcomeKind.TRUNCATED, "deadline")
    assert len(engine.aborted) == 1 and played.segments[0].sampled_tokens == 2
    played = counter(Slow(renderer, []), renderer, limits=short)
    assert played.outcome is not None and played.outcome.why == "deadline"
    played = counter(Slow(renderer, [70], answers=False), renderer, limits=short)
    assert played.outcome is not None
    assert played.outcome.kind is OutcomeKind.INFRASTRUCTURE_FAILED
    assert played.outcome.why.startswith("engine: no answer")


class Broken(Sayings):
    """Answers the second turn with something that is not right."""

    def __init__(self, renderer: PolymathRenderer, answer: Generation | Exception) -> None:
        super().__init__(renderer, calls(renderer, add(1)))
        self.answer = answer

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        if request_id.split("/")[1] == "0":
            return await super().generate(request_id, prompt, sampling)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def bad_generations() -> dict[str, Generation | Exception]:
    good = generation([70, 71, END])
    return {
        "EngineError: it is gone": EngineError("it is gone"),
        "RuntimeError": RuntimeError("something\nelse"),
        "not finite": Generation(
            good.tokens, np.full(3, np.nan, np.float32), good.versions, "stop", 0
        ),
        "differ": Generation(good.tokens, good.logprobs[:2], good.versions, "stop", 0),
        "no tokens": generation([]),
        "aborted": generation([70], finish="abort"),
        "no end-of-turn": generation([70, 71]),
    }


@pytest.mark.parametrize("why", bad_generations())
def test_an_engine_that_fails_is_infrastructure_and_never_a_reward(
    renderer: PolymathRenderer, why: str
) -> None:
    played = counter(Broken(renderer, bad_generations()[why]), renderer)
    assert played.outcome is not None and played.artifact is None
    assert played.outcome.kind is OutcomeKind.INFRASTRUCTURE_FAILED
    assert played.outcome.reward is None
    assert played.outcome.why.startswith("engine: ") and why in played.outcome.why
    assert "\n" not in played.outcome.why
    assert len(played.segments[0].turns) >= 1  # the first turn is kept


@pytest.mark.parametrize(
    "fault,kind,why",
    [
        ("sandbox", OutcomeKind.INFRASTRUCTURE_FAILED, "sandbox: SandboxError: it died"),
        ("bug", OutcomeKind.INVALID, "domain: act raised ZeroDivisionError: division by zero"),
        ("silence", OutcomeKind.INFRASTRUCTURE_FAILED, "sandbox: act gave no answer"),
    ],
)
def test_a_session_that_fails_is_typed_and_keeps_the_turn(
    renderer: PolymathRenderer, fault: str, kind: OutcomeKind, why: str
) -> None:
    limits = PlayLimits(8, 4096, 2.0 if fault == "silence" else 60.0, grace_seconds=0.2)
    played = counter(oracle_engine(renderer), renderer, CounterDomain(fault), limits)
    assert played.outcome is not None
    assert played.outcome.kind is kind and played.outcome.why.startswith(why)
    assert len(played.segments[0].turns) == 2


def test_cancelling_aborts_the_request(renderer: PolymathRenderer) -> None:
    domain, engine = CounterDomain(), Slow(renderer, [70])
    task = domain.sample(0, domain.spec.level(0))

    async def main() -> None:
        playing = asyncio.ensure_future(
            play(
                "e", task, domain, Effort.LOW, engine, renderer, None, SamplingSpec(9),
                LIMITS, lambda index, turn: None,
            )  # type: ignore[arg-type]
        )  # fmt: skip
        await asyncio.wait_for(engine.started.wait(), 30)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(main())
    assert len(engine.aborted) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    turns=st.lists(st.lists(st.integers(0, 380), min_size=1, max_size=30), min_size=1, max_size=4)
)
def test_whatever_is_sampled_the_loop_ends_with_a_typed_outcome(
    renderer: PolymathRenderer, turns: list[list[int]]
) -> None:
    """Junk is a mistake of the model: never an exception, never a fault of ours."""
    ended = [[token for token in turn if token != END] + [END] for turn in turns]
    played = counter(Sayings(renderer, *ended), renderer)
    assert played.outcome is None or played.outcome.kind is OutcomeKind.TRUNCATED
    assert all((turn.versions >= 0).all() for turn in played.segments[0].turns)
