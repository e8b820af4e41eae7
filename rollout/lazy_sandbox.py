"""A sandbox that is borrowed at its first use, so that work on plain data costs none.

Most reasoning tasks and many verifiers never touch their sandbox; they get this one all the same
and need no second interface.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

from polymath.envs.sandbox.base import WORKSPACE, ExecResult, Sandbox, SandboxError

Lend = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Borrows one sandbox for as long as the context is open."""


class LazySandbox:
    """A ``Sandbox`` and the context that gives it back. ``lend`` is called at most once.

    Raises ``SandboxError`` from any call after the context has ended.
    """

    def __init__(self, lend: Lend) -> None:
        self._lend = lend
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def used(self) -> bool:
        """Whether a sandbox was borrowed."""
        return self._sandbox is not None

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
        return await (await self._borrowed()).exec(
            command,
            timeout=timeout,
            cwd=cwd,
            environment=environment,
            output_bytes=output_bytes,
            stdin=stdin,
        )

    async def put(self, files: Mapping[str, bytes]) -> None:
        """See ``Sandbox.put``; nothing to write borrows nothing."""
        if files:
            await (await self._borrowed()).put(files)

    async def get(
        self, paths: Sequence[str], *, max_bytes: int = 8 << 20
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """See ``Sandbox.get``; nothing to read borrows nothing."""
        if not paths:
            return {}, {}
        return await (await self._borrowed()).get(paths, max_bytes=max_bytes)

    async def checkpoint(self) -> str:
        """See ``Sandbox.checkpoint``."""
        return await (await self._borrowed()).checkpoint()

    async def fork(self, checkpoint: str) -> Sandbox:
        """See ``Sandbox.fork``."""
        return await (await self._borrowed()).fork(checkpoint)

    async def close(self) -> None:
        """Give the sandbox back. Safe to call twice.

        A host that fails at this is not the borrower's concern: its janitor ends old leases.
        """
        async with self._lock:
            self._closed = True
            with contextlib.suppress(SandboxError):
                await self._stack.aclose()

    def capabilities(self) -> frozenset[str]:
        """Those of the borrowed sandbox; none before it is borrowed."""
        return self._sandbox.capabilities() if self._sandbox else frozenset()

    async def _borrowed(self) -> Sandbox:
        async with self._lock:
            if self._closed:
                raise SandboxError("this sandbox was given back; a session must not outlive it")
            if self._sandbox is None:
                self._sandbox = await self._stack.enter_async_context(self._lend())
            return self._sandbox
