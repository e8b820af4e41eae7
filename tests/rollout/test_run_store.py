"""The run store keeps every whole record, whatever moment its writer dies at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymath.envs.types import Artifact, Effort
from polymath.rewards.verdict import ok
from polymath.rollout.records import (
    Kind,
    Record,
    artifact_from,
    episode_data,
    episodes,
    pack,
    turn_data,
    unpack,
)
from polymath.rollout.run_store import MAGIC, RunStore, RunStoreError, read, segment_files
from polymath.rollout.schema import RunStoreConfig
from polymath.rollout.types import Episode, Outcome, OutcomeKind, Segment, Turn

SMALL = RunStoreConfig(segment_mb=0.01)


def notes(folder: Path) -> list[int]:
    return [record.data["n"] for record in read(folder)]


def test_records_come_back_in_order_over_several_files(tmp_path: Path) -> None:
    with RunStore(tmp_path, SMALL) as store:
        for n in range(300):
            store.append(Kind.NOTE, {"n": n, "pad": b"x" * 100})
    assert len(segment_files(tmp_path)) > 2
    with RunStore(tmp_path, SMALL) as store:
        store.append(Kind.NOTE, {"n": 300})
        assert notes(tmp_path) == list(range(301))  # readable while a writer is there


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with RunStore(tmp_path, SMALL), pytest.raises(RunStoreError, match="has a writer already"):
        RunStore(tmp_path, SMALL)
    RunStore(tmp_path, SMALL).close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=12))
def test_a_torn_tail_is_ignored_and_cut_off(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    """Cut the file anywhere: exactly the records that are still whole are read, then and after the
    next writer went on behind them."""
    folder = tmp_path_factory.mktemp("store")
    ends = []
    with RunStore(folder, RunStoreConfig()) as store:
        for n in range(8):
            store.append(Kind.NOTE, {"n": n, "pad": "y" * n * 5})
            ends.append(segment_files(folder)[0].stat().st_size)
    (file,) = segment_files(folder)
    size = max(0, file.stat().st_size - cut)
    os.truncate(file, size)
    whole = [n for n, end in enumerate(ends) if end <= size]
    if whole != list(range(8)) or size == ends[-1]:
        assert notes(folder) == whole
    with RunStore(folder, RunStoreConfig()) as store:
        store.append(Kind.NOTE, {"n": 99})
    assert notes(folder) == [*whole, 99]
    os.truncate(file, file.stat().st_size)
    with file.open("ab") as tail:
        tail.write(b"\0" * len(junk))  # what a power cut may leave
    assert notes(folder) == [*whole, 99]


def test_damage_in_the_middle_is_an_error_that_says_where(tmp_path: Path) -> None:
    with RunStore(tmp_path, RunStoreConfig()) as store:
        for n in range(5):
            store.append(Kind.NOTE, {"n": n})
    (file,) = segment_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(MAGIC) + 12] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(RunStoreError, match=f"damaged at byte {len(MAGIC)}"):
        notes(tmp_path)
    with pytest.raises(RunStoreError, match="damaged"):
        RunStore(tmp_path, RunStoreConfig())
    file.write_bytes(b"something else entirely, not a log")
    with pytest.raises(RunStoreError, match="not a run store"):
        notes(tmp_path)
    with pytest.raises(RunStoreError, match="no run store in"):
        notes(tmp_path / "empty")


def test_a_full_disk_is_a_clear_error_and_leaves_whole_records(tmp_path: Path) -> None:
    """A file size limit stands for the full disk: the kernel refuses in the same place."""
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from polymath.rollout.run_store import RunStore, RunStoreError
        from polymath.rollout.records import Kind
        from polymath.rollout.schema import RunStoreConfig
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        store = RunStore(sys.argv[1], RunStoreConfig())
        n = 0
        try:
            while n < 1000:
                store.append(Kind.NOTE, {"n": n, "pad": b"x" * 90})
                n += 1
        except RunStoreError as error:
            print(n, error)
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    count, message = run.stdout.split(" ", 1)
    assert "cannot write to the run store" in message and "free space" in message, run.stderr
    assert notes(tmp_path) == list(range(int(count))) and int(count) > 20


def test_killed_while_writing_all_acknowledged_records_are_there(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from polymath.rollout.run_store import RunStore
        from polymath.rollout.records import Kind
        from polymath.rollout.schema import RunStoreConfig
        with RunStore(sys.argv[1], RunStoreConfig(segment_mb=0.05)) as store:
            n = 0
            while True:
                store.append(Kind.NOTE, {"n": n, "pad": b"z" * (n % 977)})
                print(n, flush=True)
                n += 1
        """
    )
    for seen_at_least in (3, 40, 200):
        folder = tmp_path / str(seen_at_least)
        writer = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        try:
            for line in writer.stdout:
                if int(line) >= seen_at_least:
                    break
        finally:
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split("\n")
            writer.wait(timeout=30)
        acknowledged = max([seen_at_least, *(int(n) for n in rest[:-1] if n)])
        found = notes(folder)
        assert found == list(range(len(found))) and len(found) >= acknowledged + 1
        with RunStore(folder, SMALL) as store:
            store.append(Kind.NOTE, {"n": len(found)})
        assert notes(folder) == list(range(len(found) + 1))


def sample_episode() -> Episode:
    def turn(start: int, n: int) -> Turn:
        return Turn(
            prompt=np.arange(start, start + 3, dtype=np.int32),
            sampled=np.arange(n, dtype=np.int32),
            logprobs=-np.arange(n, dtype=np.float32) / 7,
            versions=np.full(n, 4, np.int32),
            finish="stop",
            state_key="k",
            cached_tokens=2,
            events={"0": {"exit": 1}},
        )

    segments = (Segment((turn(0, 2), turn(9, 5))), Segment((turn(20, 1),)))
    return Episode(
        "g0-1.0", "g0", "a/b", 2, 77, Effort.MAX, "d" * 64, segments,
        Outcome(OutcomeKind.SCORED, 0.5), ok(0.5, {"why": "half"}, part=0.5), {"total": 1.5},
    )  # fmt: skip


def test_an_episode_comes_back_from_its_turns(tmp_path: Path) -> None:
    episode = sample_episode()
    artifact = Artifact("42", {"a.txt": b"\x00\xff"}, {"b": "absent"})
    turns = [turn for segment in episode.segments for turn in segment.turns]
    with RunStore(tmp_path, SMALL) as store:
        for index, turn in enumerate(turns):
            store.append(Kind.TURN, turn_data(episode.id, index, turn))
            store.append(Kind.TURN, turn_data("another", index, turn))  # never ends
        store.append(Kind.EPISODE, episode_data(episode, artifact))
    (found,) = episodes(read(tmp_path))
    for mine, theirs in zip(found.segments, episode.segments, strict=True):
        for name in ("tokens", "loss_mask", "turn_index", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(mine, name)(), getattr(theirs, name)())
        assert [turn.events for turn in mine.turns] == [turn.events for turn in theirs.turns]
    assert (found.outcome, found.verdict, found.effort) == (
        episode.outcome,
        episode.verdict,
        episode.effort,
    )
    last = [record.data for record in read(tmp_path)][-1]
    assert artifact_from(last["artifact"]) == artifact


@given(st.sampled_from(["int32", "float32", "bool", "uint8", "int64"]), st.lists(st.integers(0, 1)))
def test_vectors_keep_their_type(dtype: str, values: list[int]) -> None:
    vector = np.array(values, dtype)
    found = unpack(pack(Record(Kind.NOTE, 0.0, {"v": vector}))).data["v"]
    assert found.dtype == vector.dtype
    np.testing.assert_array_equal(found, vector)
