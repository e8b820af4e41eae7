"""Borrowing a sandbox from a host, in this process or another: the borrower's side of a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from polymath.envs.sandbox.base import (
    WORKSPACE,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Unsupported,
)

Call = Callable[..., Awaitable[Any]]
"""Calls a method of a host by name, wherever that host is."""


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom a sandbox is lent: the name of the run and of the episode (or other work) in it."""

    run: str
    episode: str

    def __str__(self) -> str:
        return f"{self.run}/{self.episode}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease, as the borrower holds it. Its id is the only key to the sandbox."""

    lease: str
    capabilities: frozenset[str]


class LeasedSandbox:
    """A borrowed sandbox; see ``Sandbox``. Closing it gives it back."""

    def __init__(self, call: Call, grant: Grant, spec: SandboxSpec) -> None:
        self._call = call
        self._grant = grant
        self._limits = spec.limits

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
        """See ``Sandbox.exec``."""
        result: ExecResult = await self._call(
            "exec",
            self._grant.lease,
            command,
            timeout=self._limits.command_seconds if timeout is None else timeout,
            cwd=cwd,
            environment=environment,
            output_bytes=self._limits.output_bytes if output_bytes is None else output_bytes,
            stdin=stdin,
        )
        return result

    async def put(self, files: Mapping[str, bytes]) -> None:
        """See ``Sandbox.put``."""
        await self._call("put", self._grant.lease, dict(files))

    async def get(
        self, paths: Sequence[str], *, max_bytes: int = 8 << 20
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """See ``Sandbox.get``."""
        found, failed = await self._call("get", self._grant.lease, list(paths), max_bytes)
        return found, failed

    async def checkpoint(self) -> str:
        """Not yet."""
        raise Unsupported("leased sandboxes cannot be checkpointed")

    async def fork(self, checkpoint: str) -> Sandbox:
        """Not yet."""
        raise Unsupported("leased sandboxes cannot be forked")

    async def renew(self, ttl: float | None = None) -> None:
        """Let the lease live ``ttl`` seconds from now."""
        await self._call("renew", self._grant.lease, ttl)

    async def close(self) -> None:
        """Give the sandbox back. Safe to call twice."""
        await self._call("release", self._grant.lease)

    def capabilities(self) -> frozenset[str]:
        """See ``Sandbox.capabilities``."""
        return self._grant.capabilities


@asynccontextmanager
async def borrow(
    call: Call, spec: SandboxSpec, owner: Owner, ttl: float | None
) -> AsyncIterator[LeasedSandbox]:
    """A leased sandbox for as long as the context is open; ``call`` reaches the host."""
    granting = asyncio.ensure_future(call("acquire", spec, owner, ttl))
    try:
        grant: Grant = await asyncio.shield(granting)
    except asyncio.CancelledError:
        granting.add_done_callback(lambda granted: _give_back(call, granted))
        raise
    sandbox = LeasedSandbox(call, grant, spec)
    try:
        yield sandbox
    finally:
        with suppress(SandboxError):  # the work is done; what cannot be freed is the host's affair
            await asyncio.shield(sandbox.close())


def _give_back(call: Call, granted: asyncio.Future[Grant]) -> None:
    """Release a lease whose borrower no longer waits for it."""
    if not granted.cancelled() and granted.exception() is None:
        releasing = asyncio.ensure_future(call("release", granted.result().lease))
        _RELEASING.add(releasing)
        releasing.add_done_callback(_RELEASING.discard)


_RELEASING: set[asyncio.Future[Any]] = set()  # the loop itself keeps only weak references
