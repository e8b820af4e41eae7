"""Starting bubblewrap, and burying what it started."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from polymath.envs.sandbox import cgroups, diagnosis, root, seccomp
from polymath.envs.sandbox.base import SandboxUnavailable

_CLOSE_SECONDS = 10.0
_COMPILE_SECONDS = 30.0
# User ids above those that distributions, containers and systemd hand out.
_FIRST_USER, _USERS = 1_879_048_192, 1 << 28
_USERS_PER_PROCESS = 1 << 10


@cache
def problem() -> str | None:
    """Why bubblewrap cannot make sandboxes here, with the fix; None when it can."""
    found = diagnosis.machine_problem() or root.interpreter_problem(root.interpreter())
    if found:
        return found
    binary = os.open(_binary(), os.O_PATH)
    try:
        return diagnosis.trial_problem([f"/proc/self/fd/{binary}"], _user(0), [binary])
    finally:
        os.close(binary)


@cache
def limits_problem() -> str | None:
    """Why control groups are not used; None when they are."""
    return cgroups.problem()


class Launch:
    """What all sandboxes of this process share: binary, interpreter, shim, filter."""

    def __init__(self) -> None:
        found = problem()
        if found:
            raise SandboxUnavailable(found)
        self.cgroups = limits_problem() is None
        self.python = root.interpreter()
        self._files = root.files(_compiled_shim(self.python))
        self.filter = seccomp.build(memory_is_bounded=self.cgroups)

    def start(self, sizes: Mapping[str, int], serial: int) -> Started:
        """Start bubblewrap. Blocks for some milliseconds."""
        host, inside = socket.socketpair()
        info, inform = os.pipe()
        errors, complain = os.pipe()
        opened = [inside.detach(), inform, complain]
        try:
            control, binary = opened[0], os.open(_binary(), os.O_PATH)
            opened.append(binary)
            data = {path: _memory_file(content) for path, content in self._files.items()}
            opened += data.values()
            user = _user(serial)
            process = subprocess.Popen(
                [
                    "bwrap",
                    *root.isolation(),
                    *root.file_systems(self.python, data, sizes),
                    *("--info-fd", str(inform), "--"),
                    *root.first_process(self.python, control),
                ],
                executable=f"/proc/self/fd/{binary}",  # its folder may be closed to ``user``
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complain,
                # With ``info`` it holds both ends of that pipe: should this process die first, no
                # SIGPIPE kills bubblewrap between its fork and the child's release.
                pass_fds=[info, *(descriptor for descriptor in opened if descriptor != complain)],
                start_new_session=True,  # a terminal's Ctrl-C is for the host alone
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except BaseException:
            host.close()
            os.close(info)
            os.close(errors)
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)
        host.setblocking(False)
        return Started(process, host, info, errors)


class Started:
    """A bubblewrap process and the process inside, from start to burial."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, info: int, errors: int
    ) -> None:
        self.process = process
        self.control = control
        self._info: int | None = info
        self._errors: int | None = errors
        self._inside: int | None = None
        self._guard = threading.Lock()

    def admit(self, cgroup: cgroups.Cgroup | None, seconds: float) -> None:
        """Learn which process is the shim and put it into the control group. It has no children
        before it is ready, so nothing escapes the group."""
        deadline = time.monotonic() + seconds
        info, self._info = self._info, None
        assert info is not None, "admitted once"
        text = b""
        try:
            while piece := _read_before(info, deadline):
                text += piece
        finally:
            os.close(info)
        if not text:
            return  # bubblewrap failed, and its stderr says why
        pid = json.loads(text)["child-pid"]
        with suppress(ProcessLookupError):  # likewise
            inside = os.pidfd_open(pid)
            with self._guard:
                self._inside = inside
            if cgroup:
                cgroup.add(pid)

    def complaint(self) -> str:
        """What bubblewrap or the shim wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        if self._errors is None:
            return ""
        os.set_blocking(self._errors, False)
        with suppress(BlockingIOError):
            return os.read(self._errors, 4096).decode(errors="replace").strip()
        return ""

    def kill(self) -> None:
        """Kill the shim, and with it everything in its process-id namespace."""
        with suppress(OSError):  # wakes a call that waits, and ends a shim that is not yet known
            self.control.shutdown(socket.SHUT_RDWR)
        with self._guard:
            if self._inside is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._inside, signal.SIGKILL)

    def finish(self, cgroup: cgroups.Cgroup | None) -> None:
        """Wait until all is dead, then free descriptors and control group. Blocks."""
        try:
            self.process.wait(_CLOSE_SECONDS)  # it ends when the namespace is empty
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_CLOSE_SECONDS)
        finally:
            with self._guard:
                for descriptor in (self._inside, self._info, self._errors):
                    if descriptor is not None:
                        os.close(descriptor)
                self._inside = self._info = self._errors = None
            if cgroup:
                cgroup.remove()

    def settle(self) -> None:
        """The sandbox is ready: its stderr is of no more use."""
        if self._errors is not None:
            os.close(self._errors)
            self._errors = None


def _compiled_shim(python: root.Interpreter) -> bytes:
    try:
        return subprocess.run(
            root.compile_command(python),
            stdout=subprocess.PIPE,
            check=True,
            timeout=_COMPILE_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(
            f"{python.executable} cannot compile the sandbox's first process ({error}); it must be "
            "Python 3.9 or later"
        ) from error


def _read_before(descriptor: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError("bubblewrap did not say which process it started")
    return os.read(descriptor, 4096)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("polymath-sandbox")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _binary() -> str:
    binary = diagnosis.find_binary()
    if binary is None:
        raise SandboxUnavailable(diagnosis.machine_problem())
    return binary


def _user(serial: int) -> int | None:
    """As root, a user id that no other sandbox on this machine has; None for a normal user."""
    if os.geteuid() != 0:
        return None
    slot = os.getpid() * _USERS_PER_PROCESS + serial % _USERS_PER_PROCESS
    wanted = _FIRST_USER + slot % _USERS
    first, count = max(_mapped_users(), key=lambda mapped: mapped[1])
    if first <= wanted < first + count:
        return wanted
    # Inside a user namespace (a rootless container) there are fewer: take from the upper half.
    return first + count // 2 + slot % (count // 2)


@cache
def _mapped_users() -> tuple[tuple[int, int], ...]:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return tuple((int(inside), int(count)) for inside, _, count in map(str.split, lines))
