"""A run's checkpoints: the learner's state and the controller's, made whole or not at all.

``checkpoints/step-000010/`` holds ``learner/`` and ``controller.json``; the latter is written last, by
rename, so a folder without it never counts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polymath.errors import PolymathError
from polymath.rl.learner.base import Learner

_FORMAT = 1
_CONTROLLER = "controller.json"


class CheckpointError(PolymathError):
    """A checkpoint cannot be read or written."""


class Checkpoints:
    """The checkpoints of one run; ``learner`` saves and loads its own part."""

    def __init__(self, folder: Path, learner: Learner, *, every: int, keep: int) -> None:
        self._folder = folder
        self._learner = learner
        self._every = every
        self._keep = keep

    def due(self, step: int) -> bool:
        """Whether this step is one of those that are saved."""
        return self._every > 0 and step % self._every == 0

    async def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Save under ``step``; an existing checkpoint of that step is replaced.

        Raises ``CheckpointError`` when it cannot be written; those that there were stay.
        """
        target = self._folder / f"step-{step:06d}"
        partial = self._folder / f".partial-{step:06d}"
        try:
            for left in self._folder.glob(".*-*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir(parents=True)
            await self._learner.save(str(partial / "learner"))
            content = json.dumps({"format": _FORMAT, "step": step, **state})
            with (partial / _CONTROLLER).open("w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._put(partial, target)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {target} cannot be written: {error.strerror or error}"
            ) from error
        for old in complete(self._folder)[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def newest(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        return next(reversed(complete(self._folder)), None)

    async def load(self, checkpoint: Path) -> dict[str, Any]:
        """Restore the learner and return the controller's state.

        Raises ``CheckpointError`` when the state cannot be read.
        """
        try:
            state: dict[str, Any] = json.loads((checkpoint / _CONTROLLER).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {checkpoint}: {_CONTROLLER} cannot be read: {error}"
            ) from None
        if state.get("format") != _FORMAT:
            raise CheckpointError(
                f"checkpoint {checkpoint} has format {state.get('format')}, this version reads {_FORMAT}"
            )
        step = await self._learner.load(str(checkpoint / "learner"))
        if step != state["step"]:
            raise CheckpointError(
                f"checkpoint {checkpoint} is of step {state['step']}, the learner's part of step {step}"
            )
        return state

    def _put(self, partial: Path, target: Path) -> None:
        """Give it its name. One of that name moves aside at once, as removing it takes a while."""
        aside = self._folder / f".replaced-{target.name}"
        if target.exists():
            target.rename(aside)
        partial.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    return sorted((path.parent for path in folder.glob(f"step-*/{_CONTROLLER}")), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made."""
    return int(checkpoint.name.removeprefix("step-"))
