"""What is logged is on the disk, once, and a resumed run goes on where its checkpoint was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymath.rl.tracking import records
from polymath.rl.tracking.metrics import NonFiniteMetric, TrackingError, UndeclaredMetric
from polymath.rl.tracking.records import Evaluation, read_evaluations, read_history, read_table
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rl.tracking.tracker import Tracker

QUIET = TrackingConfig(wandb="off")


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_logged_step_is_on_the_disk_at_once(tmp_path: Path) -> None:
    tracker = Tracker(QUIET, tmp_path)
    tracker.log(3, {"reward/mean": 0.25, "reward/family/office": 1})
    (line,) = lines(tmp_path)
    assert line.pop("time") > 1e9
    assert line == {"step": 3, "reward/mean": 0.25, "reward/family/office": 1.0}


def test_a_step_may_come_in_parts_but_no_metric_twice(tmp_path: Path) -> None:
    tracker = Tracker(QUIET, tmp_path)
    tracker.log(1, {"reward/mean": 0.1})
    tracker.log(1, {"heldout/mean/sampled": 0.2})
    with pytest.raises(TrackingError, match="step 1: metric 'reward/mean' was already logged"):
        tracker.log(1, {"reward/mean": 0.3})
    assert read_history(tmp_path).series("reward/mean") == [(1, 0.1)]
    assert read_history(tmp_path).series("heldout/mean/sampled") == [(1, 0.2)]


def test_the_clock_never_goes_back(tmp_path: Path) -> None:
    tracker = Tracker(QUIET, tmp_path)
    tracker.log(5, {"reward/mean": 0.1})
    with pytest.raises(TrackingError, match="step 4 logged after step 5"):
        tracker.log(4, {"reward/mean": 0.1})


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"reward/mean": 0.1, "reward/typo": 0.1}, UndeclaredMetric),
        ({"reward/mean": 0.1, "loss/total": float("nan")}, NonFiniteMetric),
    ],
)
def test_a_refused_step_leaves_nothing_behind(
    tmp_path: Path, values: dict[str, float], error: type[Exception]
) -> None:
    tracker = Tracker(QUIET, tmp_path)
    with pytest.raises(error):
        tracker.log(1, values)
    assert not (tmp_path / "metrics.jsonl").exists()
    assert tracker.history.steps == []


def test_a_new_run_refuses_a_folder_that_holds_one(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    with pytest.raises(TrackingError, match="already holds a run"):
        Tracker(QUIET, folder)


@given(logged=st.integers(1, 8), kept=st.integers(-1, 9), torn=st.booleans())
@settings(max_examples=30, deadline=None)
def test_after_a_resume_each_step_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, logged: int, kept: int, torn: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    first = Tracker(QUIET, folder)
    for step in range(1, logged + 1):
        first.log(step, {"reward/mean": float(step)})
    if torn:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9, "reward/me')
    second = Tracker(QUIET, folder, resume_step=kept)
    survivors = [step for step in range(1, logged + 1) if step <= kept]
    assert second.history.steps == survivors
    for step in range(max(survivors, default=0) + 1, 11):
        second.log(step, {"reward/mean": 100.0 + step})
    again = [(step, float(step) if step in survivors else 100.0 + step) for step in range(1, 11)]
    assert read_history(folder).series("reward/mean") == again
    assert [line["step"] for line in lines(folder)] == list(range(1, 11))


def test_a_resume_also_forgets_later_tables_and_evaluations(
    make_run: Callable[..., Path],
) -> None:
    folder = make_run()
    Tracker(QUIET, folder, resume_step=3).summary({"heldout/gain/sampled": 0.1})
    assert read_table(folder, "episodes") == []
    assert {item.split for item in read_evaluations(folder)} == {"before"}
    Tracker(QUIET, folder, resume_step=2)
    assert not (folder / "summary.json").exists()


def test_the_step_of_the_checkpoint_may_be_logged_again(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    tracker = Tracker(QUIET, folder, resume_step=4)
    tracker.log(4, {"reward/mean": 0.9})
    assert read_history(folder).series("reward/mean")[-1] == (4, 0.9)


def test_tables_have_their_declared_columns(
    tmp_path: Path, make_row: Callable[..., dict[str, object]]
) -> None:
    tracker = Tracker(QUIET, tmp_path)
    tracker.table(2, "episodes", [make_row(reward=None, outcome="truncated")])
    assert read_table(tmp_path, "episodes") == [
        {"step": 2, **make_row(reward=None, outcome="truncated")}
    ]
    with pytest.raises(TrackingError, match="column 'colour'"):
        tracker.table(3, "episodes", [make_row(colour="red")])
    with pytest.raises(TrackingError, match="table 'cats' is not declared"):
        tracker.table(3, "cats", [make_row()])
    with pytest.raises(TrackingError, match="not writable as JSON"):
        tracker.table(3, "episodes", [make_row(verdict=object())])


def test_examples_are_due_as_configured(tmp_path: Path) -> None:
    tracker = Tracker(TrackingConfig(wandb="off", episodes=3, episodes_every=4), tmp_path)
    assert [tracker.episodes_due(step) for step in (1, 4, 6, 8)] == [0, 3, 0, 3]
    never = Tracker(TrackingConfig(wandb="off", episodes_every=0), tmp_path)
    assert never.episodes_due(8) == 0


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    tracker = Tracker(QUIET, tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(
        TrackingError, match=r"cannot write .*metrics\.jsonl: Is a directory"
    ) as error:
        tracker.log(1, {"reward/mean": 0.1})
    assert "\n" not in str(error.value)


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    tracker = Tracker(QUIET, tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(TrackingError, match="No space left on device"):
        tracker.log(1, {"reward/mean": 0.1})


def test_the_machine_is_recorded_once(tmp_path: Path) -> None:
    Tracker(QUIET, tmp_path)
    first = records.read_json(tmp_path / records.ABOUT)
    Tracker(QUIET, tmp_path, resume_step=0)
    assert records.read_json(tmp_path / records.ABOUT) == first
    assert "cores" in first["machine"]


@pytest.mark.parametrize(
    "changes",
    [{"split": "later"}, {"mode": "beam"}, {"n": 0}, {"mean": float("nan")}, {"stderr": -0.1}],
)
def test_an_evaluation_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    sound = {
        "step": 0,
        "split": "before",
        "mode": "sampled",
        "domain": "office/sum",
        "level": 0,
        "n": 4,
        "mean": 0.5,
        "stderr": 0.1,
    }
    Evaluation(**sound)  # type: ignore[arg-type]
    with pytest.raises(TrackingError, match="evaluation of office/sum at step 0"):
        Evaluation(**{**sound, **changes})  # type: ignore[arg-type]


def test_a_configuration_names_its_choices() -> None:
    with pytest.raises(ValueError, match=r"tracking\.panel must be one of auto, on, off"):
        TrackingConfig(panel="maybe")
    with pytest.raises(ValueError, match='quote "on" and "off"'):
        TrackingConfig(wandb="False")
