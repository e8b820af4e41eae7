"""Sandboxes for tests: ``inside`` runs a coroutine function with a fresh sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polymath.envs.sandbox.base import SandboxSpec
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend, BubblewrapSandbox
from polymath.envs.sandbox.schema import SandboxConfig

Work = Callable[[BubblewrapSandbox], Awaitable[Any]]


@pytest.fixture(scope="session")
def backend() -> BubblewrapBackend:
    backend = BubblewrapBackend(SandboxConfig(inodes=2000, output_ceiling_bytes=4 << 20))
    problem = backend.problem()
    if problem:
        pytest.skip(f"bubblewrap cannot run here: {problem}")
    return backend


@pytest.fixture
def inside(backend: BubblewrapBackend) -> Callable[..., Any]:
    """Call it with work, and a spec if need be; returns what the work returned."""

    def run(work: Work, spec: SandboxSpec | None = None) -> Any:
        async def with_sandbox() -> Any:
            sandbox = await backend.create(spec or SandboxSpec())
            try:
                return await asyncio.wait_for(work(sandbox), 60)
            finally:
                await sandbox.close()

        return asyncio.run(with_sandbox())

    return run


@pytest.fixture
def shell(inside: Callable[..., Any]) -> Callable[..., Any]:
    """Run one command in a sandbox of its own."""

    def run(command: str | list[str], **options: Any) -> Any:
        return inside(lambda sandbox: sandbox.exec(command, **options))

    return run
