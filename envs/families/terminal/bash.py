"""The family's one tool: ``bash(command)``, each call a fresh shell in the same workspace."""

from __future__ import annotations

from collections.abc import Mapping

from polymath.envs.contract import ActResult, Decision
from polymath.envs.sandbox.base import ExecResult, ExecStatus
from polymath.envs.scripted import call
from polymath.envs.session import ToolSession
from polymath.envs.types import Deadline, Json, ToolSpec, text

BASH = ToolSpec(
    name="bash",
    description="Run a shell command.",
    parameters={
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
)

HEAD_CHARS, TAIL_CHARS = 300, 100
"""What the agent sees of a longer output: small, so that contexts stay short."""


def bash(command: str, thought: str = "") -> Decision:
    """A scripted policy's call of the tool."""
    return call("bash", thought, command=command)


class BashSession(ToolSession):
    """A session whose only tool is bash."""

    async def call(self, name: str, arguments: Mapping[str, Json], deadline: Deadline) -> ActResult:
        """Run the command; its failure is something to see, not an error of ours."""
        command = arguments["command"]
        if "\x00" in command:
            return ActResult(text("error: the command holds a NUL character"))
        result = await self.sandbox.exec(command, timeout=deadline.remaining or 0.01)
        events = {"exit_code": result.exit_code, "seconds": result.seconds}
        return ActResult(text(render(result)), events=events)


def render(result: ExecResult) -> str:
    """The output as the agent sees it, shortened, with the exit code where it is not 0."""
    parts = [shorten(result.output.rstrip("\n"))] if result.output.strip("\n") else []
    if result.status is ExecStatus.TIMEOUT:
        parts.append(f"timed out after {result.seconds:.0f} s")
    elif result.status is ExecStatus.OUTPUT_LIMIT:
        parts.append("stopped: too much output")
    elif result.status is ExecStatus.NOT_STARTED:
        parts.append("the command could not start")
    elif result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    return "\n".join(parts) or "(no output)"


def shorten(output: str) -> str:
    """The head and the tail of a long output, with the number of characters left out between."""
    left_out = len(output) - HEAD_CHARS - TAIL_CHARS
    if left_out <= 0:
        return output
    return f"{output[:HEAD_CHARS]}\n[{left_out} more]\n{output[-TAIL_CHARS:]}"
