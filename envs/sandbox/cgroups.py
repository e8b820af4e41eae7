"""Control groups: memory, processes and CPU of a whole sandbox, version 2 or the older version 1.

Only root may make them. Each sandbox has one group (version 1: one per controller) below
``polymath``, named after the process that made it, so that what a dead process left can be found.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_PARENT = "polymath"
_CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD = 100_000  # microseconds
_REMOVE_SECONDS = 5.0
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-\d+")  # process-id namespace, process, its start, serial


class CgroupError(OSError):
    """Groups cannot be made here; the message says why and what to do."""


class Cgroup:
    """One sandbox's group. ``paths`` maps controllers to folders; version 2 has one for all."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths
        self._folders = tuple(dict.fromkeys(paths.values()))

    def limit(self, memory_bytes: int, processes: int, cpus: float) -> None:
        """Set the limits. Memory includes tmpfs and the kernel's own; swap is not given."""
        quota = max(1000, int(cpus * _CPU_PERIOD))
        memory, pids, cpu = (self._paths[name] for name in _CONTROLLERS)
        (pids / "pids.max").write_text(str(processes))
        if _is_version_2():
            (memory / "memory.max").write_text(str(memory_bytes))
            with suppress(OSError):  # absent in kernels without swap
                (memory / "memory.swap.max").write_text("0")
            (cpu / "cpu.max").write_text(f"{quota} {_CPU_PERIOD}")
        else:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            with suppress(OSError):
                (memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
            (cpu / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD))
            (cpu / "cpu.cfs_quota_us").write_text(str(quota))

    def add(self, pid: int) -> None:
        """Move a process in; its later children are born in."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Kill what is inside and remove the group, or ``CgroupError`` after five seconds."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self._folders:
            while not _try_remove(folder):
                if time.monotonic() > deadline:
                    raise CgroupError(f"{folder} still has processes after {_REMOVE_SECONDS} s")
                time.sleep(0.002)


def problem() -> str | None:
    """Why groups cannot be made here, with the fix; None when they can."""
    if os.geteuid() != 0:
        return "control groups need root; memory is watched from inside instead"
    try:
        for folder in set(_parents().values()):
            probe = folder / f"probe-{os.getpid()}"
            probe.mkdir(exist_ok=True)
            probe.rmdir()
    except OSError as error:
        return (
            f"control groups cannot be made below {_MOUNT} ({error.strerror}); mount it read-write "
            "(containers: --privileged, or --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw). "
            "Memory is watched from inside instead"
        )
    return None


def create(serial: int) -> Cgroup:
    """A new group for this process's sandbox of this number; raises ``OSError``."""
    name = f"{_owner_prefix()}-{serial}"
    paths = {controller: parent / name for controller, parent in _parents().items()}
    for folder in dict.fromkeys(paths.values()):
        folder.mkdir()
    return Cgroup(paths)


def collect_stale() -> int:
    """Remove the groups of processes that are gone, with all that still runs in them.

    Returns how many sandboxes' groups were removed. Groups that were made in other process-id
    namespaces are left alone: their owners cannot be seen from here.
    """
    collected = set()
    namespace = _pid_namespace()
    for parent in _existing_parents():
        for folder in parent.iterdir():
            match = _NAME.fullmatch(folder.name)
            if not match or match[1] != namespace or _start_time(int(match[2])) == match[3]:
                continue
            with suppress(OSError):
                Cgroup({"all": folder}).remove()
                collected.add(folder.name)
    return len(collected)


def _is_version_2() -> bool:
    return (_MOUNT / "cgroup.controllers").exists()


def _parents() -> dict[str, Path]:
    """The folder of each controller that holds our groups; made, with controllers enabled."""
    if not _is_version_2():
        parents = {name: _MOUNT / name / _PARENT for name in _CONTROLLERS}
        for folder in parents.values():
            folder.mkdir(exist_ok=True)
        return parents
    folder = _MOUNT / _PARENT
    folder.mkdir(exist_ok=True)
    for parent in (_MOUNT, folder):
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        missing = [f"+{name}" for name in _CONTROLLERS if name not in enabled]
        if missing:
            (parent / "cgroup.subtree_control").write_text(" ".join(missing))
    return dict.fromkeys(_CONTROLLERS, folder)


def _existing_parents() -> list[Path]:
    names = [_MOUNT / _PARENT] + [_MOUNT / name / _PARENT for name in _CONTROLLERS]
    return [folder for folder in names if folder.is_dir()]


def _try_remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        with suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        return False
    return True


def _owner_prefix() -> str:
    return f"{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}"


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
