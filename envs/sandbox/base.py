"""The sandbox interface. One file per backend beside this one.

A sandbox is a place where commands that a model wrote may run: no network, bounded memory,
processes, disk, time and output, and nothing left when it closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from polymath.envs.types import Limits
from polymath.errors import PolymathError

WORKSPACE = "/workspace"
"""Where a task's files lie, and where commands start."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to create. ``image`` names a root filesystem; ``base`` is the host's read-only /usr."""

    image: str = "base"
    limits: Limits = Limits()
    environment: Mapping[str, str] = field(default_factory=dict)


class ExecStatus(StrEnum):
    """How a command ended. The agent's command may fail in any of these ways; none is our fault."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A command's end. ``output`` is stdout and stderr in order, cut at the cap; ``total_bytes``
    counts all that was written."""

    status: ExecStatus
    exit_code: int | None
    output: str
    total_bytes: int
    seconds: float


class SandboxError(PolymathError):
    """The sandbox itself failed (could not start, died, lost its lease). Never a reward of 0."""


class SandboxUnavailable(SandboxError):
    """No backend can run here; the message names the fix."""


class WorkspaceError(SandboxError):
    """The workspace took a file not (it is full, or something stands in the way); it works on."""


class Unsupported(SandboxError):
    """This backend lacks the capability; see ``Sandbox.capabilities``."""


class Sandbox(Protocol):
    """A live sandbox. All calls are asynchronous and bounded in time on the host's side."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str = WORKSPACE,
        environment: Mapping[str, str] | None = None,
        output_bytes: int | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command (a string through ``bash -c``) and kill what it left behind.

        ``timeout`` and ``output_bytes`` default to the spec's limits. Raises ``SandboxError`` only
        when the sandbox itself fails.
        """
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files below the workspace (relative paths, directories are made)."""
        ...

    async def get(
        self, paths: Sequence[str], *, max_bytes: int = 8 << 20
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Read regular files below the workspace; never follows links, never blocks on a FIFO.

        Returns (contents by path, reason by path for those that could not be read).
        """
        ...

    async def checkpoint(self) -> str:
        """Freeze the workspace's state and return its id, or raise ``Unsupported``."""
        ...

    async def fork(self, checkpoint: str) -> Sandbox:
        """A new sandbox that starts from a checkpoint, or raise ``Unsupported``."""
        ...

    async def close(self) -> None:
        """Kill everything inside and free what it held. Safe to call twice."""
        ...

    def capabilities(self) -> frozenset[str]:
        """Which optional parts work: ``checkpoint``, ``fork``, ``memory_limit``, ..."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind."""

    name: str

    def problem(self) -> str | None:
        """Why this backend cannot run here, with the fix; None when it can."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox, or ``SandboxError``."""
        ...

    async def collect(self) -> int:
        """Remove what processes that died left of their sandboxes; how many there were."""
        ...

    async def close(self) -> None:
        """Close every sandbox that this backend made and is still open."""
        ...
