"""Scripted policies, and the function that plays one.

A script is a generator: it receives the prompt, yields decisions and gets the observation of each
back. Oracles, adversaries and demonstrations are all written so:

    def plan(prompt):
        output = yield call("bash", "Count the lines.", command="wc -l < a.txt")
        yield answer(output.strip(), "The count is the output.")
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from polymath.envs.contract import ActResult, Decision, Domain, Policy
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.types import (
    Artifact,
    Deadline,
    FinalAnswer,
    Json,
    Observation,
    Task,
    ToolCall,
    as_text,
)

Plan = Generator[Decision, str, None]


def call(tool: str, thought: str = "", /, **arguments: Json) -> Decision:
    """A tool call, with the thought that leads to it."""
    return Decision(ToolCall("0", tool, arguments), thought)


def answer(value: object, thought: str = "") -> Decision:
    """A final answer, with the thought that leads to it."""
    return Decision(FinalAnswer(str(value)), thought)


class Script:
    """A ``Policy`` from a plan. When the plan ends without an answer, it answers with nothing."""

    def __init__(self, plan: Callable[[str], Plan]) -> None:
        self._plan = plan
        self._running: Plan | None = None

    def decide(self, observation: Observation) -> Decision:
        """The plan's next decision."""
        try:
            if self._running is None:
                self._running = self._plan(as_text(observation))
                return next(self._running)
            return self._running.send(as_text(observation))
        except StopIteration:
            return answer("")


def script(*decisions: Decision) -> Script:
    """A policy that makes these decisions whatever it sees."""

    def plan(prompt: str) -> Plan:
        for decision in decisions:  # noqa: UP028 (a tuple cannot be sent observations)
            yield decision

    return Script(plan)


@dataclass(frozen=True, slots=True)
class Step:
    """One decision and what it led to."""

    decision: Decision
    result: ActResult


@dataclass(frozen=True, slots=True)
class Transcript:
    """A played episode: the prompt as the session gave it, the steps, and what it left."""

    prompt: Observation
    steps: tuple[Step, ...]
    artifact: Artifact


async def run_policy(domain: Domain, task: Task, policy: Policy, sandbox: Sandbox) -> Transcript:
    """Play one episode in a lent sandbox, within the domain's limits of turns and time.

    A policy that is still acting at a limit is cut there, as a model would be.
    """
    limits = domain.spec.limits
    deadline = Deadline.after(limits.episode_seconds)
    session = await domain.open(task, sandbox)
    observation = prompt = await session.reset()
    steps: list[Step] = []
    while len(steps) < limits.turns and not deadline.passed:
        decision = policy.decide(observation)
        result = await session.act(decision.action, deadline)
        steps.append(Step(decision, result))
        if result.terminated or result.truncated:
            break
        observation = result.observation
    return Transcript(prompt, tuple(steps), await session.artifact())
