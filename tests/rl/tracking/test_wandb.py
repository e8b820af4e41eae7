"""Weights & Biases is a mirror: really written offline, and never in the way."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polymath.rl.tracking.records import read_history
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rl.tracking.sinks.base import TableRow
from polymath.rl.tracking.tracker import Tracker

BLOCK, WHOLE, LAST = 32768, 1, 4

SCRIPT = """
import json, sys
from pathlib import Path
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rl.tracking.tracker import Tracker
mode, folder, resume = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
config = TrackingConfig(wandb=mode, project="polymath-tests", online_seconds=3)
tracker = Tracker(config, folder, resume_step=resume, run_config={"steps": 7})
for step in range((resume or 0) + 1, (resume or 0) + 4):
    tracker.log(step, {"reward/mean": step / 8, "reward/family/office": 0.5})
tracker.table(step, "episodes", [json.loads(sys.argv[4])])
tracker.summary({"heldout/gain/sampled": 0.25})
tracker.close()
tracker.close()
(folder / "warnings.json").write_text(json.dumps(tracker.warnings))
"""


def track(
    folder: Path, mode: str, row: dict[str, object], resume: int | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    arguments = [mode, str(folder), json.dumps(resume), json.dumps(row)]
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
    )


def offline_files(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def stored(path: Path) -> Iterator[Any]:
    """Records of a transaction log: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, message = 7, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < 7:  # the end of a block is too short for a chunk and is left empty
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            message = b""
            yield record


def logged(path: Path) -> list[dict[str, Any]]:
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in r.history.item
        }
        for r in stored(path)
        if r.WhichOneof("record_type") == "history"
    ]


@pytest.mark.slow
def test_an_offline_run_is_really_written_and_silent(
    tmp_path: Path, make_row: Callable[..., dict[str, object]]
) -> None:
    folder = tmp_path / "quickstart"
    done = track(folder, "offline", make_row())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((folder / "warnings.json").read_text()) == []
    (path,) = offline_files(folder)
    steps = {row["_step"]: row for row in logged(path)}
    assert sorted(steps) == [1, 2, 3]
    assert [steps[step]["reward/mean"] for step in (1, 2, 3)] == [0.125, 0.25, 0.375]
    assert steps[3]["tables/episodes/nrows"] == 1
    (table,) = path.parent.glob("files/media/table/tables/episodes_*.json")
    assert "Add <b> cells" in table.read_text()
    names = [r.run.display_name for r in stored(path) if r.WhichOneof("record_type") == "run"]
    assert names[0] == "quickstart"
    assert not (tmp_path / "home" / ".netrc").exists()


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id(
    tmp_path: Path, make_row: Callable[..., dict[str, object]]
) -> None:
    folder = tmp_path / "quickstart"
    assert track(folder, "offline", make_row()).returncode == 0
    assert track(folder, "offline", make_row(), resume=2).returncode == 0
    ids = {path.stem.removeprefix("run-") for path in offline_files(folder)}
    assert ids == {(folder / "wandb" / "run_id").read_text().strip()}
    assert read_history(folder).steps == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({}, "No API key configured"),
        ({"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}, "cannot be used"),
    ],
)
def test_online_mode_that_fails_is_one_warning_and_an_offline_run(
    tmp_path: Path,
    make_row: Callable[..., dict[str, object]],
    env: dict[str, str],
    reason: str,
) -> None:
    folder = tmp_path / "quickstart"
    done = track(folder, "online", make_row(), **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (warning,) = json.loads((folder / "warnings.json").read_text())
    assert reason in warning and "recorded offline" in warning and "\n" not in warning
    (path,) = offline_files(folder)
    assert [row["reward/mean"] for row in logged(path)] == [0.125, 0.25, 0.375]
    assert read_history(folder).steps == [1, 2, 3]


class BrokenMirror:
    """A mirror whose service has gone away."""

    def log(self, step: int, time: float, values: dict[str, float]) -> None:
        raise ConnectionError("gone")

    def table(self, step: int, name: str, rows: list[TableRow]) -> None:
        raise ConnectionError("gone")

    def summary(self, values: dict[str, float]) -> None:
        raise ConnectionError("gone")

    def close(self) -> None:
        raise ConnectionError("gone")


def test_a_mirror_that_breaks_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymath.rl.tracking.tracker.WandbSink", lambda *_: BrokenMirror())
    tracker = Tracker(TrackingConfig(), tmp_path)
    for step in (1, 2, 3):
        tracker.log(step, {"reward/mean": 0.5})
    tracker.close()
    assert tracker.warnings == [
        "Weights & Biases stopped working (gone); metrics.jsonl has everything"
    ]
    assert read_history(tmp_path).steps == [1, 2, 3]


def test_nothing_is_started_when_it_is_off(tmp_path: Path) -> None:
    Tracker(TrackingConfig(wandb="off"), tmp_path).log(1, {"reward/mean": 0.5})
    assert not (tmp_path / "wandb").exists()
