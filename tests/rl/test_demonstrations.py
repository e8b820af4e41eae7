import asyncio
from typing import Any

import pytest

from polymath.envs.sandbox.base import SandboxError, SandboxSpec
from polymath.envs.types import Effort
from polymath.rl.curriculum import Kind
from polymath.rl.demonstrations import demonstrations, demonstrators


class NoSandboxes:
    """A backend whose every sandbox fails, at its creation or at its first use."""

    def __init__(self, creates: bool) -> None:
        self.creates = creates
        self.closed = 0

    async def create(self, spec: SandboxSpec) -> Any:
        if not self.creates:
            raise SandboxError("no sandboxes here")
        return self

    def __getattr__(self, name: str) -> Any:
        raise SandboxError("no sandboxes here")

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("creates", [False, True])
def test_a_sandbox_that_fails_ends_the_demonstrations_with_its_error(creates: bool) -> None:
    backend: Any = NoSandboxes(creates)
    renderer: Any = None

    async def play() -> None:
        kinds = [Kind("terminal/csv-join", 0, Effort.LOW)]
        async with asyncio.timeout(20):
            async for _ in demonstrations(
                kinds, renderer, backend, demonstrators(0.0), first=0, count=10, parallel=3
            ):
                pass

    with pytest.raises(SandboxError, match="no sandboxes here"):
        asyncio.run(play())
    assert backend.closed == (3 if creates else 0)
