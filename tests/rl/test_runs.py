import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polymath.errors import UserError
from polymath.rl.runs import RunFolder
from polymath.rl.schema import RunConfig


def config(folder: Path, name: str = "one") -> RunConfig:
    return RunConfig(name=name, folder=str(folder))


def test_a_run_is_not_started_over_another(tmp_path: Path) -> None:
    with RunFolder.open(config(tmp_path)) as run:
        (run.path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="holds a run already.*resume=auto"):
        RunFolder.open(config(tmp_path))
    with RunFolder.open(config(tmp_path), resume="auto") as run:
        assert run.checkpoints.is_dir()


def test_a_run_that_came_to_nothing_may_be_started_anew(tmp_path: Path) -> None:
    with RunFolder.open(config(tmp_path)) as run:
        run.write_config("steps: 1\n")
    with RunFolder.open(config(tmp_path)):
        pass


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    with (
        RunFolder.open(config(tmp_path)),
        pytest.raises(UserError, match="in use by another process"),
    ):
        RunFolder.open(config(tmp_path), resume="auto")


@pytest.mark.parametrize("name", ["", "../escape", "a/b", ".hidden", "white space"])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="run.name"):
        RunFolder.open(config(tmp_path, name=name))


def test_an_unknown_way_to_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="resume='sometimes'"):
        RunFolder.open(config(tmp_path), resume="sometimes")


def test_a_full_disk_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        values = list(statvfs(path))
        values[4] = 0  # f_bavail: blocks that are free to us
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(UserError, match="only 0 MiB are free"):
        RunFolder.open(config(tmp_path))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write into"):
        RunFolder.open(config(tmp_path / "file"))


def test_a_run_in_use_is_named_as_such_whatever_was_asked_for(tmp_path: Path) -> None:
    with RunFolder.open(config(tmp_path)) as run:
        (run.path / "metrics.jsonl").write_text("{}\n")
        with pytest.raises(UserError, match="in use by another process"):
            RunFolder.open(config(tmp_path))


def test_saved_steps_are_a_run_even_without_metrics(tmp_path: Path) -> None:
    with RunFolder.open(config(tmp_path)) as run:
        (run.checkpoints / "step-000002").mkdir()
    with pytest.raises(UserError, match="holds a run already"):
        RunFolder.open(config(tmp_path))


def test_actors_elsewhere_are_told_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RunFolder.open(config(Path("runs"))) as run:
        assert run.path == tmp_path / "runs" / "one"
