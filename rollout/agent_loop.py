"""Plays one episode: sample a turn, carry out its calls, append their results, until it ends.

Tokens in, tokens out: what the engine sampled is kept as it came and never tokenised again, and the
context only grows. The model's mistakes (a malformed call, an unknown tool, wrong arguments) are
answered as observations that it can correct. Faults of ours end the episode with a typed outcome
that keeps every turn played so far. Scoring happens elsewhere, on the artifact.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from polymath.envs.contract import ActResult, Domain, Session
from polymath.envs.sandbox.base import Sandbox, SandboxError
from polymath.envs.types import (
    Action,
    Artifact,
    Deadline,
    Effort,
    FinalAnswer,
    Json,
    Task,
    ToolCall,
    text,
)
from polymath.rollout.engine.base import Generation, SamplingSpec
from polymath.rollout.renderer.base import (
    AssistantMessage,
    MalformedCall,
    Opening,
    Renderer,
    ToolResult,
)
from polymath.rollout.types import Outcome, OutcomeKind, Segment, Tokens, Turn

T = TypeVar("T")

Journal = Callable[[int, Turn], None]
"""Told of each turn as it ends: (index, turn). Must not block."""


class Sampler(Protocol):
    """The part of ``Engine`` that playing needs."""

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        """See ``Engine.generate``."""
        ...

    async def abort(self, request_id: str) -> None:
        """See ``Engine.abort``."""
        ...


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """What one episode may use. ``grace_seconds`` is how long an engine or a session may still
    answer after the episode's deadline before it counts as failed.
    """

    turns: int
    episode_tokens: int
    seconds: float
    grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Played:
    """What playing left. ``outcome`` is None when the episode ended by itself: then the verifier
    decides, and ``artifact`` is set. ``seconds`` holds ``engine``, ``sandbox`` and ``total``.
    """

    segments: tuple[Segment, ...]
    artifact: Artifact | None
    outcome: Outcome | None
    seconds: Mapping[str, float]


async def play(
    episode: str,
    task: Task,
    domain: Domain,
    effort: Effort,
    engine: Sampler,
    renderer: Renderer,
    sandbox: Sandbox,
    sampling: SamplingSpec,
    limits: PlayLimits,
    journal: Journal,
) -> Played:
    """Play one episode in a lent sandbox. Raises only when cancelled.

    Outcomes: truncated(turns | turn_tokens | episode_tokens | deadline | environment),
    infrastructure_failed(engine: ... | sandbox: ...), invalid(domain: ...), or None.
    """
    player = _Player(episode, domain, engine, renderer, sampling, limits, journal)
    artifact, outcome = None, None
    try:
        artifact = await player.run(task, effort, sandbox)
    except _Ended as ended:
        outcome = ended.outcome
    total = time.perf_counter() - player.started
    seconds = {**player.seconds, "total": total}
    return Played((Segment(tuple(player.turns)),), artifact, outcome, seconds)


class _Ended(Exception):
    """The episode ended with this outcome, before or instead of a verdict."""

    def __init__(self, kind: OutcomeKind, why: str) -> None:
        super().__init__(why)
        self.outcome = Outcome(kind, why=why)


def _truncated(why: str) -> _Ended:
    return _Ended(OutcomeKind.TRUNCATED, why)


def _failed(why: str) -> _Ended:
    return _Ended(OutcomeKind.INFRASTRUCTURE_FAILED, why)


@dataclass
class _Player:
    """One episode's state while it is played."""

    episode: str
    domain: Domain
    engine: Sampler
    renderer: Renderer
    sampling: SamplingSpec
    limits: PlayLimits
    journal: Journal
    turns: list[Turn] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"engine": 0.0, "sandbox": 0.0})
    context: list[int] = field(default_factory=list)
    state_key: str | None = None

    def __post_init__(self) -> None:
        # An episode may be played again while an engine still works on its first attempt.
        self.nonce = secrets.token_hex(4)
        self.started = time.perf_counter()
        self.deadline = Deadline.after(self.limits.seconds)
        self.tools = {tool.name: tool for tool in self.domain.spec.tools}

    async def run(self, task: Task, effort: Effort, sandbox: Sandbox) -> Artifact:
        """The whole episode; what it leaves behind when it ended by itself."""
        spec = self.domain.spec
        session = await self._bounded("open", self.domain.open(task, sandbox))
        prompt = await self._bounded("reset", session.reset())
        pending = self.renderer.opening(Opening(spec.instructions, spec.tools, effort, prompt))
        for _ in range(self.limits.turns):
            generation, late = await self._sample(pending)
            results, over = await self._take(session, pending, generation, late)
            if over:
                return await self._bounded("artifact", session.artifact())
            if self.deadline.passed:
                raise _truncated("deadline")
            pending = self.renderer.results(results)
        raise _truncated("turns")

    async def _sample(self, pending: Sequence[int]) -> tuple[Generation, bool]:
        """One model call on the context and what was appended to it, and whether the episode's
        time ran out meanwhile.
        """
        self.context += pending
        room = self.limits.episode_tokens - len(self.context)
        if room < 1:
            raise _truncated("episode_tokens")
        spec = SamplingSpec(
            min(self.sampling.max_tokens, room), self.sampling.temperature, self.sampling.top_p
        )
        request = f"{self.episode}/{len(self.turns)}/{self.nonce}"
        started = time.perf_counter()
        call = asyncio.ensure_future(
            self.engine.generate(request, np.array(self.context, np.int32), spec)
        )
        try:
            late = await self._until_deadline(call, request)
            generation = call.result()
        except (_Ended, asyncio.CancelledError):
            call.cancel()
            raise
        except Exception as error:  # whatever an engine raises is the engine's fault
            raise _failed(f"engine: {one_line(error)}") from error
        finally:
            self.seconds["engine"] += time.perf_counter() - started
        self.context += generation.tokens.tolist()
        return generation, late

    async def _until_deadline(self, call: asyncio.Future[Generation], request: str) -> bool:
        """Wait for a model call. Past the deadline it is aborted and gives what it has: True."""
        try:
            done, _ = await asyncio.wait({call}, timeout=self.deadline.remaining)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.engine.abort(request), self.limits.grace_seconds)
            raise
        if done:
            return False
        grace = self.limits.grace_seconds
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.engine.abort(request), grace)
            await asyncio.wait({call}, timeout=grace)
        if not call.done():
            raise _failed(f"engine: no answer {grace:g} s after the deadline and an abort")
        return True

    async def _take(
        self, session: Session, pending: Sequence[int], generation: Generation, late: bool
    ) -> tuple[list[ToolResult], bool]:
        """Carry a turn out and record it, however it ends: its results, and whether it was last."""
        self._check(generation)
        events: dict[str, Json] = {}
        state_key = self.state_key
        try:
            if late:
                raise _truncated("deadline")
            if generation.finish == "abort":
                raise _failed("engine: the request was aborted")
            message = self.renderer.parse(generation.tokens.tolist())
            self._check_complete(message, generation)
            return await self._act(session, message, events)
        finally:
            if len(generation.tokens):
                turn = Turn(
                    np.array(pending, np.int32),
                    generation.tokens,
                    generation.logprobs,
                    generation.versions,
                    generation.finish,
                    state_key,
                    generation.cached_tokens,
                    events,
                )
                self.turns.append(turn)
                self.journal(len(self.turns) - 1, turn)

    def _check(self, generation: Generation) -> None:
        lengths = {len(generation.tokens), len(generation.logprobs), len(generation.versions)}
        if len(lengths) != 1:
            raise _failed(f"engine: tokens, log-probabilities and versions differ: {lengths}")
        if generation.finish != "abort" and not len(generation.tokens):
            raise _failed(f"engine: no tokens, finish {generation.finish!r}")
        if not np.isfinite(generation.logprobs).all():
            raise _failed("engine: a log-probability is not finite")

    def _check_complete(self, message: AssistantMessage, generation: Generation) -> None:
        if message.complete:
            return
        if generation.finish == "stop":
            raise _failed("engine: it stopped a turn that has no end-of-turn token")
        full = len(self.context) >= self.limits.episode_tokens
        raise _truncated("episode_tokens" if full else "turn_tokens")

    async def _act(
        self, session: Session, message: AssistantMessage, events: dict[str, Json]
    ) -> tuple[list[ToolResult], bool]:
        """Carry out the answer, or the calls in their order until one ends the episode."""
        if not message.calls:
            result = await self._do(session, FinalAnswer(message.text))
            events["answer"] = dict(result.events)
            return [], True
        results: list[ToolResult] = []
        for call in message.calls:
            refusal = self._refusal(call)
            if refusal or isinstance(call, MalformedCall):
                events[call.id] = {"refused": refusal}
                results.append(ToolResult(call.id, text(f"error: {refusal}")))
                continue
            result = await self._do(session, call)
            events[call.id] = dict(result.events)
            results.append(ToolResult(call.id, result.observation))
            if result.terminated:
                return results, True
        return results, False

    async def _do(self, session: Session, action: Action) -> ActResult:
        result = await self._bounded("act", session.act(action, self.deadline))
        self.state_key = result.state_key
        if result.truncated and not result.terminated:
            raise _truncated("environment")
        return result

    def _refusal(self, call: ToolCall | MalformedCall) -> str:
        """Why a call cannot be carried out, in one line for the model; empty if it can."""
        if isinstance(call, MalformedCall):
            return call.error
        tool = self.tools.get(call.name)
        if tool is None:
            return f"no tool {call.name[:40]!r}; the tools are: {', '.join(self.tools) or 'none'}"
        validator = Draft202012Validator(dict(tool.parameters))
        error = best_match(validator.iter_errors(dict(call.arguments)))
        if error is None:
            return ""
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        return f"arguments{where}: {error.message}"[:300]

    async def _bounded(self, what: str, call: Awaitable[T]) -> T:
        """Await the session with a deadline; sort what it raises into faults of sandbox and domain.

        A session gets the deadline and must keep it, so silence beyond the grace is our fault.
        """
        grace = self.deadline.remaining + self.limits.grace_seconds
        started = time.perf_counter()
        try:
            return await asyncio.wait_for(call, grace)
        except TimeoutError:
            raise _failed(f"sandbox: {what} gave no answer in {grace:.0f} s") from None
        except SandboxError as error:
            raise _failed(f"sandbox: {one_line(error)}") from error
        except _Ended:
            raise
        except Exception as error:
            raise _Ended(OutcomeKind.INVALID, f"domain: {what} raised {one_line(error)}") from error
        finally:
            self.seconds["sandbox"] += time.perf_counter() - started


def one_line(error: BaseException) -> str:
    """An error as one line of at most 300 letters, its type first."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"[:300]
