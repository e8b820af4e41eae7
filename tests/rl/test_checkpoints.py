import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polymath.rl.checkpoints import CheckpointError, Checkpoints, complete, step_of


@dataclass
class Saver:
    """A stand-in learner that saves a number, or fails half-way."""

    number: int = 1
    fails: bool = False

    async def save(self, folder: str) -> None:
        Path(folder).mkdir()
        (Path(folder) / "number").write_text(str(self.number))
        if self.fails:
            raise OSError(28, "No space left on device")

    async def load(self, folder: str) -> int:
        return int((Path(folder) / "number").read_text())


def checkpoints(folder: Path, learner: Any) -> Checkpoints:
    return Checkpoints(folder, learner, every=1, keep=2)


def save(folder: Path, step: int, learner: Any) -> None:
    asyncio.run(checkpoints(folder, learner).save(step, {"note": learner.number}))


def test_a_checkpoint_that_cannot_be_written_is_one_line_and_costs_none_that_is_there(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3, Saver(3))
    with pytest.raises(CheckpointError, match="step-000003 cannot be written: No space left"):
        save(tmp_path, 3, Saver(4, fails=True))
    kept = checkpoints(tmp_path, Saver())
    newest = kept.newest()
    assert newest is not None
    assert asyncio.run(kept.load(newest))["note"] == 3


def test_a_step_saved_again_replaces_the_first_and_leftovers_of_a_killed_run_go(
    tmp_path: Path,
) -> None:
    for left in (".partial-000002", ".replaced-step-000002"):
        (tmp_path / left / "learner").mkdir(parents=True)
    save(tmp_path, 3, Saver(3))
    save(tmp_path, 3, Saver(7))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]
    assert (tmp_path / "step-000003" / "learner" / "number").read_text() == "7"


def test_parts_of_different_steps_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 3, Saver(2))
    kept = checkpoints(tmp_path, Saver())
    newest = kept.newest()
    assert newest is not None
    with pytest.raises(CheckpointError, match="is of step 3, the learner's part of step 2"):
        asyncio.run(kept.load(newest))


def test_the_newest_is_the_highest_step_however_many_digits_it_has(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        save(tmp_path, step, Saver(step))
    assert [step_of(path) for path in complete(tmp_path)] == [999_999, 1_000_000]
