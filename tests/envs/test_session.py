"""The model's mistakes are observations; sessions tell states apart; scripts are played to the end."""

import asyncio
from collections.abc import Mapping
from random import Random

import pytest

from polymath.envs.contract import ActResult
from polymath.envs.families.demonstrations import Premature
from polymath.envs.families.terminal.bash import shorten
from polymath.envs.scripted import Plan, Script, answer, call, script
from polymath.envs.session import ANSWER_CHARS, AnswerSession, ToolSession
from polymath.envs.types import Deadline, FinalAnswer, Json, Task, ToolCall, ToolSpec, as_text, text

TASK = Task("test/echo", 0, 0, text("Say it."))
ECHO = ToolSpec(
    "echo",
    "Says it again.",
    {
        "type": "object",
        "properties": {"words": {"type": "string"}, "times": {"type": "integer"}},
        "required": ["words"],
    },
)


class Echo(ToolSession):
    async def call(self, name: str, arguments: Mapping[str, Json], deadline: Deadline) -> ActResult:
        return ActResult(text(arguments["words"] * arguments.get("times", 1)))


def act(*actions: ToolCall | FinalAnswer) -> list[ActResult]:
    async def play() -> list[ActResult]:
        session = Echo(TASK, None, (ECHO,))  # type: ignore[arg-type]
        assert await session.reset() == TASK.prompt
        return [await session.act(action, Deadline.after(5)) for action in actions]

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "arguments", "mistake"),
    [
        ("shout", {"words": "a"}, "no tool shout"),
        ("echo", {}, "needs words"),
        ("echo", {"words": 3}, "words must be a string"),
        ("echo", {"words": None}, "words must be a string"),
        ("echo", {"words": "a", "volume": "9"}, "takes no volume"),
        ("echo", {"words": "a", "times": "2"}, "times must be a integer"),
    ],
)
def test_a_mistaken_call_is_told_and_does_not_end_the_episode(
    name: str, arguments: Mapping[str, Json], mistake: str
) -> None:
    (result,) = act(ToolCall("0", name, arguments))
    assert mistake in as_text(result.observation)
    assert not result.terminated


def test_equal_histories_are_equal_states_and_different_ones_are_not() -> None:
    first, second = ToolCall("0", "echo", {"words": "a"}), ToolCall("1", "echo", {"words": "b"})
    again = ToolCall("7", "echo", {"words": "a"})
    keys = [[result.state_key for result in act(*calls)] for calls in ([first, second], [again])]
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[0][0]
    assert act(second, first)[1].state_key != keys[0][1]


def test_a_session_without_tools_names_the_way_out() -> None:
    session = AnswerSession(TASK, None)  # type: ignore[arg-type]
    result = asyncio.run(session.act(ToolCall("0", "bash", {}), Deadline.after(5)))
    assert "final answer" in as_text(result.observation)


def test_the_answer_ends_the_episode_and_is_bounded() -> None:
    async def play() -> tuple[ActResult, str | None]:
        session = AnswerSession(TASK, None)  # type: ignore[arg-type]
        result = await session.act(
            FinalAnswer("\ud800" + "9" * 10 * ANSWER_CHARS), Deadline.after(5)
        )
        return result, (await session.artifact()).answer

    result, kept = asyncio.run(play())
    assert result.terminated
    assert kept is not None
    assert len(kept) == ANSWER_CHARS


def test_a_script_sees_what_its_calls_led_to() -> None:
    def plan(prompt: str) -> Plan:
        seen = yield call("echo", words=prompt)
        yield answer(seen.upper(), "Louder.")

    policy = Script(plan)
    assert policy.decide(text("hello")).action == ToolCall("0", "echo", {"words": "hello"})
    last = policy.decide(text("hello again"))
    assert (last.action, last.thought) == (FinalAnswer("HELLO AGAIN"), "Louder.")
    assert policy.decide(text("?")).action == FinalAnswer("")


def test_a_premature_policy_follows_the_oracle_and_never_gives_its_answer() -> None:
    for seed in range(50):
        policy = Premature(
            script(call("echo", words="a"), call("echo", words="b"), answer("gold")), Random(seed)
        )
        actions = []
        while not actions or not isinstance(actions[-1], FinalAnswer):
            actions.append(policy.decide(text("")).action)
        assert len(actions) <= 3
        assert actions[-1] != FinalAnswer("gold")
        assert [a.arguments["words"] for a in actions[:-1]] == ["a", "b"][: len(actions) - 1]


def test_long_output_keeps_its_head_and_tail() -> None:
    output = "".join(f"line {n}\n" for n in range(1000))
    shown = shorten(output)
    assert len(shown) < 450
    assert shown.startswith("line 0\n")
    assert shown.endswith("line 999\n")
    assert f"[{len(output) - 400} more]" in shown
    assert shorten("short") == "short"
