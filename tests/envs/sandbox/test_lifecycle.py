"""Sandboxes come and go: nothing stays behind, whatever ends first."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polymath.envs.sandbox.base import ExecStatus, SandboxError, SandboxSpec, Unsupported
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Limits


def processes_with(word: str) -> list[int]:
    """Processes on this machine whose command line holds a word, sandboxes' own included."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if word.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                pass
    return found


def children() -> list[int]:
    """The bubblewraps of this process."""
    found = []
    for pid in processes_with("bwrap\0--unshare-user"):
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(pid)
    return found


def groups(pid: int) -> list[Path]:
    return [
        folder
        for parent in Path("/sys/fs/cgroup").glob("**/polymath")
        for folder in parent.glob(f"*-{pid}-*-*")
    ]


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_close_twice_and_use_after_close(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        sandbox = await backend.create(SandboxSpec())
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.exec("true")

    asyncio.run(work())


def test_close_ends_a_running_call(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        sandbox = await backend.create(SandboxSpec())
        call = asyncio.create_task(sandbox.exec("echo began > /tmp/began; sleep 60"))
        await asyncio.sleep(0)
        await sandbox.close()
        with pytest.raises(SandboxError):
            await call

    asyncio.run(work())


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_no_descriptors_processes_or_groups_leak(backend: BubblewrapBackend, count: int) -> None:
    async def one(index: int) -> None:
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec(f"sleep 60 & echo {index}")).output == f"{index}\n"
        await sandbox.close()

    async def work() -> None:
        await one(-1)
        before = len(os.listdir("/proc/self/fd"))
        kept = await backend.create(SandboxSpec())
        assert len(children()) == 1  # the check below sees them
        await kept.close()
        for index in range(count):
            await one(index)
        assert len(os.listdir("/proc/self/fd")) == before
        assert children() == []
        assert groups(os.getpid()) == []

    asyncio.run(work())


def test_many_at_once(backend: BubblewrapBackend) -> None:
    async def one(index: int) -> str:
        sandbox = await backend.create(SandboxSpec())
        try:
            await sandbox.put({"name": str(index).encode()})
            return (await sandbox.exec("cat name; ls | wc -l")).output
        finally:
            await sandbox.close()

    async def work() -> None:
        outputs = await asyncio.gather(*(one(index) for index in range(12)))
        assert outputs == [f"{index}1\n" for index in range(12)]

    asyncio.run(work())
    assert children() == []


def test_a_creation_that_nobody_waits_for_is_undone(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        for delay in (0.0, 0.005, 0.02, 0.05):
            making = asyncio.create_task(backend.create(SandboxSpec()))
            await asyncio.sleep(delay)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            if not making.cancelled():
                await making.result().close()
        deadline = time.monotonic() + 20
        while children() or groups(os.getpid()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    asyncio.run(work())


def test_the_backend_closes_what_it_made(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        own = BubblewrapBackend(SandboxConfig())
        sandboxes = [await own.create(SandboxSpec()) for _ in range(3)]
        await own.close()
        await own.close()
        for sandbox in sandboxes:
            with pytest.raises(SandboxError):
                await sandbox.exec("true")

    asyncio.run(work())
    assert children() == []


@pytest.mark.parametrize(
    "junk", [b"\xff\xff\xff\xff", b"\0\0\0\4junk", b"\0\0\0\5m\0\0\0\0", b"\0\0\0\1n", b"\0\0"]
)
def test_a_malformed_request_ends_the_sandbox_cleanly(
    backend: BubblewrapBackend, junk: bytes
) -> None:
    async def work() -> None:
        sandbox = await backend.create(SandboxSpec())
        sandbox._socket.send(junk)
        sandbox._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(SandboxError, match="died"):
            await sandbox.exec("true")
        await sandbox.close()

    asyncio.run(work())
    assert children() == []


def test_a_host_that_gets_no_answer_gives_the_sandbox_up(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        own = BubblewrapBackend(SandboxConfig(grace_seconds=0.2))
        sandbox = await own.create(SandboxSpec())
        inside = sandbox._started._inside
        assert inside is not None
        signal.pidfd_send_signal(inside, signal.SIGSTOP)  # a shim that hangs
        with pytest.raises(SandboxError, match="gave no answer"):
            await sandbox.exec("true", timeout=0.1)
        await sandbox.close()

    asyncio.run(work())
    assert children() == []


def test_capabilities_say_what_is_not_there(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        assert not sandbox.capabilities() & {"checkpoint", "fork"}
        assert len(sandbox.capabilities() & {"memory_limit", "memory_watch"}) == 1
        with pytest.raises(Unsupported):
            await sandbox.checkpoint()
        with pytest.raises(Unsupported):
            await sandbox.fork("x")

    inside(work)


def test_an_unknown_image_is_refused(backend: BubblewrapBackend) -> None:
    with pytest.raises(Unsupported, match="no image 'mars'"):
        asyncio.run(backend.create(SandboxSpec(image="mars")))


def test_sandboxes_are_strangers_to_each_other(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        one, two = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        await one.exec("echo mine > /workspace/a; echo mine > /tmp/a; echo mine > /dev/shm/a")
        seen = await two.exec("ls /workspace /tmp /dev/shm | grep a$; pgrep -c .; ipcs -m | wc -l")
        assert seen.output.splitlines()[0] in ("1", "2")
        if os.geteuid() == 0:
            users = {os.stat(f"/proc/{pid}").st_uid for pid in children()}
            assert len(users) == 2 and 0 not in users
        await asyncio.gather(one.close(), two.close())

    asyncio.run(work())


def test_a_memory_limit_that_the_disks_fill_is_refused(backend: BubblewrapBackend) -> None:
    """Full disks alone must not exhaust memory, for there would be nothing left to kill."""
    tight = SandboxSpec(limits=Limits(memory_bytes=128 << 20, workspace_bytes=128 << 20))
    with pytest.raises(SandboxError, match="memory"):
        asyncio.run(backend.create(tight))


_WORKER = """
import asyncio, sys
from polymath.envs.sandbox.base import SandboxSpec
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig

async def work():
    backend = BubblewrapBackend(SandboxConfig())
    sandboxes = [await backend.create(SandboxSpec()) for _ in range(3)]
    running = [asyncio.ensure_future(s.exec(f"echo on; sleep 60 & sleep {sys.argv[1]}", timeout=60))
               for s in sandboxes]
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    done = await asyncio.gather(*running)
    print(*[result.status for result in done], flush=True)

asyncio.run(work())
"""


def start_worker(
    word: str, program: str = _WORKER, mark: str = "POLYMATH_TEST=1"
) -> subprocess.Popen[str]:
    name, _, value = mark.partition("=")
    worker = subprocess.Popen(
        [sys.executable, "-c", program, word],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), name: value},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def test_a_killed_worker_leaves_nothing(backend: BubblewrapBackend) -> None:
    word = f"987654.{os.getpid()}"
    worker = start_worker(word)
    try:
        until(lambda: len(processes_with(word)) >= 4, "the sandboxes' commands run")
        worker.kill()
        worker.wait()
        until(lambda: processes_with(word) == [], "all processes are dead")
        asyncio.run(backend.collect())
        assert groups(worker.pid) == []
    finally:
        worker.kill()


_BUSY_WORKER = """
import asyncio, sys
from polymath.envs.sandbox.base import SandboxSpec
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig

async def churn(backend):
    while True:
        sandbox = await backend.create(SandboxSpec())
        await sandbox.exec(f"setsid sleep {sys.argv[1]} & echo on")
        await sandbox.put({"file": b"x" * 1_000_000})
        await sandbox.close()

async def work():
    backend = BubblewrapBackend(SandboxConfig())
    await (await backend.create(SandboxSpec())).close()
    print("ready", flush=True)
    await asyncio.gather(*(churn(backend) for _ in range(3)))

asyncio.run(work())
"""


def bubblewraps_of(mark: str) -> list[int]:
    """Bubblewraps that were started with a mark in their environment."""
    found = []
    for pid in processes_with("bwrap\0--unshare-user"):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the environment of other processes")
def test_a_worker_killed_at_any_moment_leaves_nothing(backend: BubblewrapBackend) -> None:
    """Bubblewrap's own tie to its parent is not enough: it loses processes that it just forked."""
    mark = f"POLYMATH_TEST={os.getpid()}"
    word = f"876543.{os.getpid()}"
    seen = 0
    for moment in range(24):
        worker = start_worker(word, _BUSY_WORKER, mark)
        time.sleep(0.007 * moment)
        seen += len(bubblewraps_of(mark))
        worker.kill()
        worker.wait()
        until(lambda: not bubblewraps_of(mark) and not processes_with(word), "all are dead")
    assert seen > 0
    asyncio.run(backend.collect())
    assert groups(worker.pid) == []


def test_collecting_spares_the_living(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        sandbox = await backend.create(SandboxSpec())
        await backend.collect()
        assert (await sandbox.exec("echo on")).output == "on\n"
        await sandbox.close()

    asyncio.run(work())


def test_an_interrupt_at_the_terminal_does_not_reach_sandboxes(backend: BubblewrapBackend) -> None:
    """Ctrl-C goes to the whole process group; the host wants to finish what runs."""

    async def work() -> None:
        sandbox = await backend.create(SandboxSpec())
        assert len(children()) == 1
        for pid in children():
            assert os.getpgid(pid) != os.getpgid(0)
            assert os.getsid(pid) != os.getsid(0)
        assert (await sandbox.exec("true")).status is ExecStatus.EXITED
        await sandbox.close()

    asyncio.run(work())
