import json
from pathlib import Path

import pytest

from polymath.errors import UserError
from polymath.rl.launch import _refuse_finished
from polymath.rl.runs import RunFolder
from polymath.rl.schema import EvaluationConfig, RunConfig, TrainConfig
from polymath.rl.tracking.records import Evaluation


def folder(tmp_path: Path, *, saved: int, after: int | None) -> RunFolder:
    run = RunFolder.open(RunConfig(name="one", folder=str(tmp_path)))
    (run.checkpoints / f"step-{saved:06d}").mkdir()
    (run.checkpoints / f"step-{saved:06d}" / "controller.json").write_text("{}")
    if after is not None:
        row = Evaluation(after, "after", "sampled", "a/one", 0, 1, 1.0, 0.0).as_row()
        (run.path / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    return run


def config(steps: int, seeds: int = 1) -> TrainConfig:
    return TrainConfig(steps=steps, evaluation=EvaluationConfig(seeds_per_level=seeds))


@pytest.mark.parametrize(("after", "seeds"), [(3, 1), (None, 0)])
def test_a_run_with_nothing_left_to_do_says_so(
    tmp_path: Path, after: int | None, seeds: int
) -> None:
    with pytest.raises(UserError, match="complete at step 3"):
        _refuse_finished(folder(tmp_path, saved=3, after=after), config(3, seeds))


@pytest.mark.parametrize(("saved", "after", "steps"), [(3, None, 3), (3, 2, 3), (3, 3, 5)])
def test_a_run_with_steps_or_its_evaluation_left_goes_on(
    tmp_path: Path, saved: int, after: int | None, steps: int
) -> None:
    _refuse_finished(folder(tmp_path, saved=saved, after=after), config(steps))
