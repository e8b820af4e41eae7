"""Control groups: what is written where in either version, and whose groups are collected."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from polymath.envs.sandbox import cgroups


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a mount of version 2."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    (tmp_path / "polymath").mkdir()
    (tmp_path / "polymath" / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    return tmp_path


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller).mkdir()
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_version_2(version_2: Path) -> None:
    group = cgroups.create(7)
    group.limit(1 << 30, 64, 1.5)
    group.add(4242)
    assert (version_2 / "cgroup.subtree_control").read_text() == "+pids +cpu"
    assert (version_2 / "polymath" / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    (folder,) = (version_2 / "polymath").glob(f"*-{os.getpid()}-*-7")
    assert contents(folder) == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "pids.max": "64",
        "cpu.max": "150000 100000",
        "cgroup.procs": "4242",
    }


def test_version_1(version_1: Path) -> None:
    group = cgroups.create(7)
    group.limit(1 << 30, 64, 0.5)
    group.add(4242)
    found = {
        controller: contents(folder)
        for controller in ("memory", "pids", "cpu")
        for folder in (version_1 / controller / "polymath").iterdir()
    }
    assert found == {
        "memory": {
            "memory.limit_in_bytes": "1073741824",
            "memory.memsw.limit_in_bytes": "1073741824",
            "cgroup.procs": "4242",
        },
        "pids": {"pids.max": "64", "cgroup.procs": "4242"},
        "cpu": {
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "50000",
            "cgroup.procs": "4242",
        },
    }


def test_only_groups_of_the_dead_of_this_namespace_are_collected(version_2: Path) -> None:
    parent = version_2 / "polymath"
    namespace = os.stat("/proc/self/ns/pid").st_ino
    dead = subprocess.Popen(["true"])
    dead.wait()
    mine = cgroups.create(1)._folders[0]
    own_start = mine.name.split("-")[2]
    spared = [
        mine,
        parent / f"{namespace + 1}-{dead.pid}-1-0",  # another namespace's
        parent / "something else",
    ]
    taken = [
        parent / f"{namespace}-{dead.pid}-1-0",
        parent / f"{namespace}-{dead.pid}-1-1",
        parent / f"{namespace}-{os.getpid()}-{int(own_start) + 1}-0",  # a number used again
    ]
    for folder in (*spared[1:], *taken):
        folder.mkdir()
    assert cgroups.collect_stale() == 3
    assert all(folder.exists() for folder in spared)
    assert not any(folder.exists() for folder in taken)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_read_only_mount_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_MOUNT", Path("/proc/self"))
    assert "--privileged" in str(cgroups.problem())


def test_a_normal_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in str(cgroups.problem())
