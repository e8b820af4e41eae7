import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from polymath.envs.sandbox.base import SandboxError, SandboxSpec
from polymath.envs.types import Effort
from polymath.rl.curriculum import Kind
from polymath.rl.demonstrations import copying, demonstrations, demonstrators
from polymath.rollout.renderer.polymath import ASSISTANT, END, USER, PolymathRenderer
from polymath.rollout.renderer.tokenizer import SMALLEST, train_tokenizer


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


def test_a_copying_row_trains_on_saying_the_prompt_again(tmp_path: Path) -> None:
    train_tokenizer((), SMALLEST).save(str(tmp_path / "tokenizer.json"))
    renderer = PolymathRenderer(tmp_path)
    for seed in range(20):
        row = copying(renderer, random.Random(seed), "copy")
        tokens = row.tokens.tolist()
        asked = tokens[tokens.index(USER) + 1 : tokens.index(ASSISTANT) - 1]
        said = [token for token, mine in zip(tokens, row.loss_mask, strict=True) if mine]
        assert said == [*asked, END]
        assert len(asked) > 3
