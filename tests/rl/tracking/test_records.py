"""Damaged and short files give one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polymath.rl.tracking.records import RunDataError, read_evaluations, read_history
from polymath.rl.tracking.report import write_comparison, write_report

GOOD = '{"step": 1, "time": 1.0, "reward/mean": 0.5}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: no step"),
        ('{"step": 1, "rew', "is empty: no step"),
        (GOOD + "oops\n" + GOOD, r"metrics\.jsonl:2: not a line of JSON"),
        (GOOD + "[1]\n", r"metrics\.jsonl:2: expected an object"),
        (GOOD + '{"reward/mean": 1}\n', r"metrics\.jsonl:2: step None is missing"),
        (GOOD + '{"step": 0}\n', r"metrics\.jsonl:2: step 0 is missing or out of order"),
        (
            GOOD + '{"step": 2, "loss/total": "x"}\n',
            r"metrics\.jsonl:2: 'loss/total' is not a number",
        ),
        (GOOD + '{"step": 2, "loss/total": NaN}\n', r"metrics\.jsonl:2: not a line of JSON"),
        (GOOD + "\x00\x00\n", r"metrics\.jsonl:2: not a line of JSON"),
    ],
)
def test_damaged_metrics_are_one_line_that_says_where(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(RunDataError, match=message) as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(GOOD + '{"step": 2, "reward/mean": 0.')
    assert read_history(tmp_path).series("reward/mean") == [(1, 0.5)]


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunDataError, match="nowhere is not a run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(RunDataError, match=r"metrics\.jsonl does not exist"):
        write_report(tmp_path)
    with pytest.raises(RunDataError, match="at least two runs, not 1"):
        write_comparison([tmp_path], tmp_path / "comparison.html")


def test_a_damaged_evaluation_says_where(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 9}\n')
    with pytest.raises(RunDataError, match=r"evaluations\.jsonl:9: not an evaluation"):
        read_evaluations(folder)


def test_a_damaged_configuration_says_where(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    (folder / "config.yaml").write_text("a: [1,\nb")
    with pytest.raises(RunDataError, match=r"config\.yaml: cannot be read") as error:
        write_report(folder)
    assert "\n" not in str(error.value)


def test_a_repeated_evaluation_replaces_the_first(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    before = read_evaluations(folder)
    path = folder / "evaluations.jsonl"
    path.write_text(path.read_text() * 2)
    assert read_evaluations(folder) == before
