"""A domain without a sandbox, for tests of the loop's limits and failures: count up to a number."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from polymath.envs.contract import ActResult
from polymath.envs.sandbox.base import Sandbox, SandboxError
from polymath.envs.scripted import Plan, Script, answer, call
from polymath.envs.types import (
    Action,
    Artifact,
    Deadline,
    DomainSpec,
    FinalAnswer,
    Level,
    Limits,
    Observation,
    Task,
    ToolSpec,
    text,
)
from polymath.rewards.verdict import Verdict, ok

ADD = ToolSpec(
    "add",
    "Add to the count",
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    },
)
STOP = ToolSpec("stop", "End here", {"type": "object", "properties": {}})


class CounterSession:
    """``fault`` names what goes wrong at the second ``add``."""

    def __init__(self, task: Task, fault: str) -> None:
        self.task, self.fault = task, fault
        self.count, self.calls = 0, 0
        self.answer: str | None = None

    async def reset(self) -> Observation:
        return self.task.prompt

    async def act(self, action: Action, deadline: Deadline) -> ActResult:
        if isinstance(action, FinalAnswer):
            self.answer = action.text
            return ActResult((), terminated=True)
        if action.name == "stop":
            self.answer = str(self.count)
            return ActResult(text("stopped"), terminated=True)
        self.calls += 1
        if self.calls == 2:
            match self.fault:
                case "sandbox":
                    raise SandboxError("it died")
                case "bug":
                    raise ZeroDivisionError("division by zero")
                case "silence":
                    await asyncio.sleep(3600)
                case "cut":
                    return ActResult(text("enough"), truncated=True)
        self.count += action.arguments["n"]
        return ActResult(text(f"count {self.count}"), state_key=f"at {self.count}", events={"c": 1})

    async def artifact(self) -> Artifact:
        return Artifact(self.answer)


class CounterVerifier:
    async def progress(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Any:
        return {}

    async def verify(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Verdict:
        return ok(float(artifact.answer == "6"))


class CounterDomain:
    def __init__(self, fault: str = "", limits: Limits | None = None) -> None:
        self.fault = fault
        self.spec = DomainSpec(
            "test/counter",
            "1",
            (Level(0, "only"),),
            (ADD, STOP),
            "Count.",
            limits=limits or Limits(),
        )

    def sample(self, seed: int, level: Level) -> Task:
        return Task("test/counter", level.index, seed, text("Count to 6."))

    async def open(self, task: Task, sandbox: Sandbox) -> CounterSession:
        return CounterSession(task, self.fault)

    def verifier(self, task: Task) -> CounterVerifier:
        return CounterVerifier()

    def oracle(self, task: Task) -> Script:
        def plan(prompt: str) -> Plan:
            total = ""
            for n in (1, 2, 3):
                total = yield call("add", "Some more.", n=n)
            yield answer(total.removeprefix("count "))

        return Script(plan)

    def adversaries(self, task: Task) -> Any:
        return ()


def get(id: str) -> CounterDomain:
    """The resolver of these tests."""
    domains: Mapping[str, CounterDomain] = {"test/counter": CounterDomain()}
    return domains[id]
