"""The first process inside a sandbox: it runs commands for the host and reads and writes files.

The host compiles this file, ``protocol`` and ``workspace`` and starts them with the sandbox's own
Python, so they import little (start-up is most of a sandbox's cost) and nothing else of Polymath.
The shim is process 1 of its namespace: when it dies, so does everything inside; when the socket
closes or bubblewrap dies, it dies.

Agent processes share its user id, and cannot reach it: it is not dumpable (no ptrace, no /proc/1/mem
or fd), the kernel shields process 1 from signals from within, the system-call filter forbids
changing other processes' limits and priorities, and /proc is read-only for them, so that none can
make the kernel prefer this process when memory runs out.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` would load ``enum``
import ctypes
import errno
import os
import resource
import select
import time

from polymath.envs.sandbox.protocol import ProtocolError, frame, frame_length, parse
from polymath.envs.sandbox.workspace import PLACES, put, read, why

USER = 1000

TYPE_CHECKING = False  # type checkers know the name; ``typing`` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

_CHUNK = 1 << 16
_WATCH_SECONDS = 0.02
_SIGINT, _SIGKILL, _SIGPIPE, _SIGCHLD, _SIGXFSZ = 2, 9, 13, 17, 25

# prctl(2), mount(2), clone(2): names of the kernel's headers.
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWUSER = 0x10000000
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


def main(control: int) -> None:
    """Serve the host over the socket ``control`` until it closes."""
    try:
        _keep_to_ourselves(control)
        shim = Shim(control, *_set_up(_receive(control)))
        _send(control, {b"ready": 1})
        while True:
            _send(control, shim.answer(_receive(control)))
    except EOFError:
        os._exit(0)
    except (ProtocolError, BrokenPipeError, ConnectionResetError) as error:
        os.write(2, f"shim: {error}\n".encode())
        os._exit(2)


def _keep_to_ourselves(control: int) -> None:
    """No command may inherit the socket, or what else was open when bubblewrap started us."""
    os.set_inheritable(control, False)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass


def _set_up(boot: dict[bytes, Any]) -> tuple[int, int]:
    """From the namespace's all-powerful first process to an ordinary user.

    Returns a writable /proc that commands cannot see, and the bytes of memory that are to be watched
    here, 0 when a control group does it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount", b"/proc")
    for path, options in boot[b"mounts"].items():
        # bubblewrap sizes a tmpfs but cannot bound its inodes.
        flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
        _check(libc.mount(b"tmpfs", path, None, flags, options), "mount", path)
    _check(libc.unshare(_CLONE_NEWUSER), "unshare")
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{USER} 0 1"),
        ("gid_map", f"{USER} 0 1"),
    ):
        _write_once(proc, f"self/{name}", content)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    for limit, value in boot[b"limits"].items():
        resource.setrlimit(getattr(resource, limit.decode()), (value, value))
    _check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
    _check(libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _install_filter(libc, boot[b"filter"])
    os.umask(0o022)
    return proc, int(boot[b"memory_bytes"])


def _install_filter(libc: ctypes.CDLL, code: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    program = Program(len(code) // 8, code)
    result = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    _check(result, "seccomp")


def _write_once(folder: int, path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, content.encode())
    os.close(descriptor)


def _check(result: int, call: str, what: bytes = b"") -> None:
    if result:
        error = os.strerror(ctypes.get_errno())
        os.write(2, f"shim: {call} {what.decode()}: {error}\n".encode())
        os._exit(2)


class Shim:
    """Carries out one request at a time. ``memory_bytes`` > 0: watch memory here."""

    def __init__(self, control: int, proc: int, memory_bytes: int) -> None:
        self._control = control
        self._proc = proc
        self._memory_bytes = memory_bytes
        # Any child's end writes to this pipe, so that one poll waits for everything.
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(_SIGCHLD, lambda *_: None)
        # Python's own handler would lift the shield against this signal.
        _signal.signal(_SIGINT, _signal.SIG_DFL)

    def answer(self, request: dict[bytes, Any]) -> dict[bytes, Any]:
        """The reply to one request; ``ProtocolError`` if it is none that we know."""
        kind = request.get(b"op")
        try:
            if kind == b"exec":
                return self._exec(request)
            if kind == b"put":
                return put(request[b"files"])
            if kind == b"get":
                return read(request[b"paths"], request[b"max_bytes"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"a malformed request: {error!r}") from error
        raise ProtocolError(f"an unknown request {kind!r}")

    def _exec(self, request: dict[bytes, Any]) -> dict[bytes, Any]:
        started = time.monotonic()
        output, writer = os.pipe()
        failure, fail = os.pipe()
        try:
            try:
                command = _start(request, self._proc, writer, fail)
            finally:
                os.close(writer)
                os.close(fail)
            reason = os.read(failure, 4096)  # empty once the command's program has begun
            if not reason:
                return self._watch(command, output, request, started)
        except OSError as error:
            reason = why(error)
        finally:
            os.close(failure)
            self._sweep(0)
            os.close(output)
        return _ended(b"not_started", None, reason, len(reason), started)

    def _watch(
        self, command: int, output: int, request: dict[bytes, Any], started: float
    ) -> dict[bytes, Any]:
        """Collect output until the command ends, its time is up or it has written too much."""
        cap, ceiling = request[b"cap"], request[b"ceiling"]
        deadline = started + request[b"timeout"]
        collected = _Collected(cap)
        poll = select.poll()
        poll.register(self._control, select.POLLIN | select.POLLHUP)
        poll.register(output, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        status, code = b"exited", None
        while code is None:
            left = deadline - time.monotonic()
            if left <= 0:
                status = b"timeout"
                break
            wait = min(left, _WATCH_SECONDS) if self._memory_bytes else left
            for descriptor, _ in poll.poll(wait * 1000 + 1):
                if descriptor == self._control:
                    os._exit(0)  # the host is gone, or no longer keeps to the protocol
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                    code = _reap(command)
                elif not collected.read(output):
                    poll.unregister(output)  # the command closed its output and goes on
            if collected.total > ceiling:
                status = b"output_limit"
                break
            if self._memory_bytes and code is None and _memory_used() > self._memory_bytes:
                code = 128 + _SIGKILL
        swept = self._sweep(command)
        while collected.read(output):  # all writers are dead: this ends
            pass
        if status != b"exited":
            code = None
        elif code is None:
            code = swept
        return _ended(status, code, bytes(collected.head), collected.total, started)

    def _sweep(self, command: int) -> int | None:
        """Kill and reap all processes but this one; the command's exit code if it was among them."""
        code = None
        while True:
            try:
                os.kill(-1, _SIGKILL)
            except ProcessLookupError:
                pass
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if pid == command:
                code = _exit_code(status)
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        return code


class _Collected:
    """The head of a command's output, and the count of all of it."""

    def __init__(self, cap: int) -> None:
        self.head = bytearray()
        self.total = 0
        self._cap = cap

    def read(self, descriptor: int) -> bool:
        """Take what is there; False at the end, or when there is nothing now."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.total += len(data)
        self.head += data[: max(0, self._cap - len(self.head))]
        return bool(data)


def _start(request: dict[bytes, Any], proc: int, output: int, fail: int) -> int:
    """Fork the command and return its process id."""
    stdin = _stdin(request[b"stdin"])
    try:
        command = os.fork()
        if command == 0:
            _become(request, proc, stdin, output, fail)
        return command
    finally:
        os.close(stdin)


def _become(request: dict[bytes, Any], proc: int, stdin: int, output: int, fail: int) -> None:
    """In the child: turn into the command, or tell the parent why not. Never returns."""
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (_SIGPIPE, _SIGXFSZ):  # Python ignores them, and that would be inherited
            _signal.signal(number, _signal.SIG_DFL)
        _write_once(
            proc, "self/oom_score_adj", "1000"
        )  # the kernel takes the command, not the shim
        os.chdir(request[b"cwd"])
        _execute(request[b"argv"], request[b"env"])
    except OSError as error:
        what = error.filename if isinstance(error.filename, bytes) else request[b"argv"][0]
        os.write(fail, what[:1024] + b": " + why(error))
    except BaseException as error:
        os.write(fail, repr(error).encode()[:1024])
    os._exit(127)


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Like execvpe(3), with the search path of ``env``."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    denied: OSError | None = None
    for folder in env.get(b"PATH", b"").split(b":"):
        try:
            os.execve(folder + b"/" + argv[0], argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            denied = error
    raise denied or FileNotFoundError(errno.ENOENT, "no such command", argv[0])


def _stdin(data: bytes) -> int:
    if not data:
        return os.open("/dev/null", os.O_RDONLY)
    # A file with no name: unlike a pipe it can be filled before anybody reads.
    descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    for at in range(0, len(data), _CHUNK):
        os.write(descriptor, data[at : at + _CHUNK])
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _reap(command: int) -> int | None:
    """Reap whatever has ended, orphans included; the command's exit code if it was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == command:
            code = _exit_code(status)


def _exit_code(status: int) -> int:
    """As shells say it: 128 + the signal for a process that was killed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _ended(
    status: bytes, code: int | None, output: bytes, total: int, started: float
) -> dict[bytes, Any]:
    seconds = time.monotonic() - started
    return {
        b"status": status,
        b"code": code,
        b"output": output,
        b"total": total,
        b"seconds": seconds,
    }


def _memory_used() -> int:
    """Bytes in private memory of all processes and in the writable file systems."""
    page = resource.getpagesize()
    used = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        if len(fields) > 2:
            used += (int(fields[1]) - int(fields[2])) * page
    for path in PLACES:
        system = os.statvfs(path)
        used += (system.f_blocks - system.f_bfree) * system.f_frsize
    return used


def _receive(control: int) -> dict[bytes, Any]:
    return parse(_exactly(control, frame_length(_exactly(control, 4))))


def _exactly(control: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(control, min(1 << 20, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _send(control: int, value: dict[bytes, Any]) -> None:
    view = memoryview(frame(value))
    while view:
        view = view[os.write(control, view) :]
