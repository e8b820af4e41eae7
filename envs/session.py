"""A session made of tools: what most domains need, so that a domain writes only its tools.

    class MySession(ToolSession):
        async def call(self, name, arguments, deadline): ...   # -> ActResult

The model's mistakes (an unknown tool, missing or wrong arguments) are observations, made here.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from polymath.envs.contract import ActResult
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.types import (
    Action,
    Artifact,
    Deadline,
    FinalAnswer,
    Json,
    Observation,
    Task,
    ToolCall,
    ToolSpec,
    text,
)

ANSWER_CHARS = 10_000
"""A final answer is kept up to here; no gold is near it."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class ToolSession:
    """Lays out the task's files, dispatches tool calls, and hands out the ``outputs`` files.

    ``outputs`` are the only paths that leave the sandbox. Without another ``state_key`` from
    ``call``, a state is named by all actions so far: equal histories are equal states.
    """

    def __init__(
        self,
        task: Task,
        sandbox: Sandbox,
        tools: Sequence[ToolSpec] = (),
        outputs: Sequence[str] = (),
    ) -> None:
        self.task = task
        self.sandbox = sandbox
        self._tools = {tool.name: tool for tool in tools}
        self._outputs = tuple(outputs)
        self._answer: str | None = None
        self._history = hashlib.sha256(task.digest.encode())

    async def reset(self) -> Observation:
        """Lay the files out and return the prompt."""
        if self.task.files:
            await self.sandbox.put(self.task.files)
        return self.task.prompt

    async def act(self, action: Action, deadline: Deadline) -> ActResult:
        """Answer a tool call, or end with the final answer."""
        if isinstance(action, FinalAnswer):
            self._answer = action.text[:ANSWER_CHARS]
            return ActResult((), terminated=True, state_key=self._state("answer", action.text))
        state = self._state(action.name, json.dumps(action.arguments, sort_keys=True, default=str))
        mistake = self._mistake(action)
        if mistake is not None:
            return ActResult(
                text(f"error: {mistake}"), state_key=state, events={"mistake": mistake}
            )
        result = await self.call(action.name, action.arguments, deadline)
        return result if result.state_key else replace(result, state_key=state)

    async def artifact(self) -> Artifact:
        """The final answer and the output files."""
        files, missing = await self.sandbox.get(self._outputs) if self._outputs else ({}, {})
        return Artifact(self._answer, files, missing)

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Json], deadline: Deadline) -> ActResult:
        """Carry out one call whose name and argument types are known to be right."""
        raise NotImplementedError

    def _state(self, *parts: str) -> str:
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            self._history.update(len(encoded).to_bytes(8, "big") + encoded)
        return self._history.hexdigest()[:16]

    def _mistake(self, call: ToolCall) -> str | None:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"no tool {call.name[:20]}, use {', '.join(self._tools) or 'a final answer'}"
        properties = tool.parameters.get("properties", {})
        for name in tool.parameters.get("required", ()):
            if name not in call.arguments:
                return f"{call.name} needs {name}"
        for name, value in call.arguments.items():
            if name not in properties:
                return f"{call.name} takes no {name[:20]}"
            expected = properties[name].get("type", "string")
            if not isinstance(value, _TYPES[expected]):
                return f"{name} must be a {expected}"
        return None


class AnswerSession(ToolSession):
    """A session without tools: the final answer is all."""

    async def call(self, name: str, arguments: Mapping[str, Json], deadline: Deadline) -> ActResult:
        """Never reached, as there is no tool."""
        raise NotImplementedError(f"{self.task.domain} has no tool {name}")
