"""Sandboxes out of namespaces: bubblewrap sets them up, a small process inside serves the host.

As root each sandbox runs as a user id of its own under a control group; as a normal user in that
user's namespaces, with resource limits and a memory watch inside. Either way no process inside has
any right on the host, and a sandbox dies with the process that made it.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from subprocess import TimeoutExpired
from typing import Any

from polymath.envs.sandbox import cgroups, diagnosis, launch, root
from polymath.envs.sandbox.base import (
    WORKSPACE,
    ExecResult,
    ExecStatus,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Unsupported,
    WorkspaceError,
)
from polymath.envs.sandbox.protocol import (
    MAX_FILES,
    ProtocolError,
    frame,
    frame_length,
    parse,
)
from polymath.envs.sandbox.schema import SandboxConfig

_FILES_SECONDS = 60.0
_SPARE_MEMORY = 64 << 20
_MAX_COMMAND = 2 << 20
_SERIALS = itertools.count()  # of the process: user ids and control groups carry them
_OWN_PROCESSES = 2  # the shim, and its child before that has become the command


class BubblewrapBackend:
    """Makes bubblewrap sandboxes. One per process is enough; sandboxes are independent."""

    name = "bubblewrap"

    def __init__(self, config: SandboxConfig) -> None:
        self._start_seconds = config.start_seconds
        self._grace_seconds = config.grace_seconds
        self._sizes = {"/tmp": config.tmp_bytes, "/dev/shm": config.shm_bytes}
        self._inodes = config.inodes
        self._open_files = config.open_files
        self._ceiling = config.output_ceiling_bytes
        self._live: set[BubblewrapSandbox] = set()
        self._launch: launch.Launch | None = None

    def problem(self) -> str | None:
        """Why no sandbox can be made here, with the fix; None when they can. Takes some 30 ms."""
        return launch.problem()

    def limits_problem(self) -> str | None:
        """Why control groups are not used; None when they are. Sandboxes work all the same."""
        return launch.limits_problem()

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """A fresh sandbox, or ``SandboxError``; one that comes too late for its caller is closed."""
        making = asyncio.ensure_future(self._create(spec))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_discard)
            raise

    async def collect(self) -> int:
        """Remove the control groups of processes that are gone. Nothing else can be left: file
        systems are memory, and processes die with whoever started them."""
        return await asyncio.to_thread(cgroups.collect_stale)

    async def close(self) -> None:
        """Close every sandbox that is still open."""
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._live)))

    async def _create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        if spec.image != "base":
            raise Unsupported(f"bubblewrap has no image {spec.image!r}; there is 'base'")
        if self._launch is None:
            self._launch = await asyncio.to_thread(launch.Launch)
        shared = self._launch
        limits, serial = spec.limits, next(_SERIALS)
        sizes = {WORKSPACE: limits.workspace_bytes, **self._sizes}
        if sum(sizes.values()) > limits.memory_bytes - _SPARE_MEMORY:
            raise SandboxError(
                f"files may take {sum(sizes.values()) >> 20} MiB and count as memory, which is limited "
                f"to {limits.memory_bytes >> 20} MiB; leave {_SPARE_MEMORY >> 20} MiB for processes"
            )
        boot = {
            b"filter": shared.filter,
            b"memory_bytes": 0 if shared.cgroups else limits.memory_bytes,
            b"limits": self._resource_limits(spec, bounded=shared.cgroups),
            b"mounts": {
                path.encode(): root.mount_options(path, size, self._inodes).encode()
                for path, size in sizes.items()
            },
        }
        cgroup = None
        try:
            if shared.cgroups:
                cgroup = cgroups.create(serial)
                processes = limits.processes + _OWN_PROCESSES
                cgroup.limit(limits.memory_bytes, processes, limits.cpus)
            started = await asyncio.to_thread(shared.start, sizes, serial)
        except OSError as error:
            if cgroup:
                await asyncio.to_thread(cgroup.remove)
            raise SandboxError(f"bubblewrap cannot be started: {error}") from error
        environment = {**root.environment(shared.python), **spec.environment}
        sandbox = BubblewrapSandbox(
            spec, started, cgroup, environment, self._grace_seconds, self._ceiling
        )
        self._live.add(sandbox)
        sandbox.on_close = self._live.discard
        try:
            await sandbox.boot(boot, self._start_seconds)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _resource_limits(self, spec: SandboxSpec, *, bounded: bool) -> dict[bytes, int]:
        limits = {
            b"RLIMIT_NPROC": spec.limits.processes + _OWN_PROCESSES,
            b"RLIMIT_NOFILE": self._open_files,
            b"RLIMIT_CORE": 0,
            b"RLIMIT_MEMLOCK": 1 << 20,
        }
        # Without a control group a process could outrun the watch between two looks.
        return limits if bounded else {**limits, b"RLIMIT_DATA": spec.limits.memory_bytes}


class BubblewrapSandbox:
    """A live sandbox; see ``Sandbox``. Calls are served one after another."""

    def __init__(
        self,
        spec: SandboxSpec,
        started: launch.Started,
        cgroup: cgroups.Cgroup | None,
        environment: Mapping[str, str],
        grace_seconds: float,
        ceiling: int,
    ) -> None:
        self._limits = spec.limits
        self._socket = started.control
        self._started = started
        self._cgroup = cgroup
        self._environment = environment
        self._grace_seconds = grace_seconds
        self._ceiling = ceiling
        self._lock = asyncio.Lock()
        self._failure: str | None = None
        self._closing: asyncio.Future[None] | None = None
        self.on_close: Callable[[BubblewrapSandbox], None] | None = None

    async def boot(self, settings: Mapping[bytes, object], seconds: float) -> None:
        """Send the shim its settings and wait until it is ready, in its control group."""
        reply, admitted = await asyncio.gather(
            self._call(settings, seconds),
            asyncio.to_thread(self._started.admit, self._cgroup, seconds),
            return_exceptions=True,
        )
        if isinstance(reply, BaseException):
            said = await asyncio.to_thread(self._started.complaint)
            raise SandboxError(
                f"{reply}: {diagnosis.explain(said)}" if said else str(reply)
            ) from reply
        if isinstance(admitted, BaseException):
            raise SandboxError(
                f"the sandbox could not enter its control group: {admitted}"
            ) from admitted
        if b"ready" not in reply:
            raise self._broken("the sandbox's first word was not that it is ready")
        self._started.settle()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str = WORKSPACE,
        environment: Mapping[str, str] | None = None,
        output_bytes: int | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command; see ``Sandbox.exec``. A command that a signal ended has the exit code
        128 + signal, as in shells."""
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        variables = {**self._environment, **(environment or {})}
        refusal = _refusal(argv, cwd, variables, stdin)
        if refusal:
            return ExecResult(ExecStatus.NOT_STARTED, None, refusal, len(refusal), 0.0)
        timeout = self._limits.command_seconds if timeout is None else timeout
        request = {
            b"op": b"exec",
            b"argv": [_bytes(argument) for argument in argv],
            b"cwd": _bytes(cwd),
            b"env": {_bytes(name): _bytes(value) for name, value in variables.items()},
            b"timeout": float(timeout),
            b"cap": self._limits.output_bytes if output_bytes is None else output_bytes,
            b"ceiling": self._ceiling,
            b"stdin": stdin,
        }
        reply = await self._call(request, timeout + self._grace_seconds)
        try:
            return ExecResult(
                ExecStatus(reply[b"status"].decode()),
                reply[b"code"],
                reply[b"output"].decode(errors="replace"),
                reply[b"total"],
                reply[b"seconds"],
            )
        except (KeyError, ValueError, AttributeError) as error:
            raise self._broken(f"the sandbox's answer is malformed ({error!r})") from error

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files below the workspace. Raises ``ValueError`` for paths that do not lie there,
        ``WorkspaceError`` where the workspace refuses."""
        plain = {_below_workspace(path): bytes(content) for path, content in files.items()}
        for batch in _batches(plain):
            reply = await self._call({b"op": b"put", b"files": batch}, _FILES_SECONDS)
            for path, reason in reply.get(b"failed", {}).items():
                name, why = path.decode(errors="replace"), reason.decode(errors="replace")
                raise WorkspaceError(f"{name} cannot be written: {why}")

    async def get(
        self, paths: Sequence[str], *, max_bytes: int = 8 << 20
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Read regular files below the workspace; see ``Sandbox.get``. ``max_bytes`` bounds each
        file, and all of one call share 64 MiB."""
        wanted: dict[bytes, str] = {}
        refused: dict[str, str] = {}
        for path in paths:
            try:
                wanted[_below_workspace(path)] = path
            except ValueError as error:
                refused[path] = str(error)
        request = {b"op": b"get", b"paths": list(wanted), b"max_bytes": max_bytes}
        reply = await self._call(request, _FILES_SECONDS)
        try:
            found = {wanted[path]: content for path, content in reply[b"files"].items()}
            failed = {wanted[path]: why.decode() for path, why in reply[b"failed"].items()}
        except (KeyError, ValueError, AttributeError) as error:
            raise self._broken(f"the sandbox's answer is malformed ({error!r})") from error
        return found, {**refused, **failed}

    async def checkpoint(self) -> str:
        """Not yet."""
        raise Unsupported("bubblewrap sandboxes cannot be checkpointed")

    async def fork(self, checkpoint: str) -> Sandbox:
        """Not yet."""
        raise Unsupported("bubblewrap sandboxes cannot be forked")

    def capabilities(self) -> frozenset[str]:
        """``memory_limit`` and ``cpu_limit`` where a control group enforces them, else
        ``memory_watch``."""
        kinds = {"memory_limit", "cpu_limit"} if self._cgroup else {"memory_watch"}
        return frozenset({"process_limit", "inode_limit", *kinds})

    async def close(self) -> None:
        """Kill everything inside and free what it held. Safe to call twice."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._failure = self._failure or "the sandbox is closed"
        self._started.kill()
        async with self._lock:
            self._socket.close()
        try:
            await asyncio.to_thread(self._started.finish, self._cgroup)
        except (OSError, TimeoutExpired) as error:
            raise SandboxError(f"the sandbox could not be freed: {error}") from error
        finally:
            if self.on_close:
                self.on_close(self)

    async def _call(self, request: Mapping[bytes, object], seconds: float) -> dict[bytes, Any]:
        """Send a request and wait for its reply. Whatever interrupts that ends the sandbox, since
        the next reply would belong to this request."""
        loop = asyncio.get_running_loop()
        message = frame(request)
        async with self._lock:
            if self._failure:
                raise SandboxError(self._failure)
            try:
                async with asyncio.timeout(seconds):
                    await loop.sock_sendall(self._socket, message)
                    length = frame_length(await _exactly(loop, self._socket, 4))
                    return parse(await _exactly(loop, self._socket, length))
            except TimeoutError:
                raise self._broken(f"the sandbox gave no answer in {seconds:.0f} s") from None
            except (EOFError, OSError) as error:
                raise self._broken("the sandbox died") from error
            except ProtocolError as error:
                raise self._broken(f"the sandbox's answer is malformed: {error}") from error
            except asyncio.CancelledError:
                self._broken("a call to the sandbox was cancelled")
                raise

    def _broken(self, reason: str) -> SandboxError:
        self._failure = self._failure or reason
        self._started.kill()
        return SandboxError(self._failure)


async def _exactly(loop: asyncio.AbstractEventLoop, control: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await loop.sock_recv(control, min(1 << 20, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _discard(making: asyncio.Future[BubblewrapSandbox]) -> None:
    """Close a sandbox that nobody waits for any more."""
    if not making.cancelled() and making.exception() is None:
        closing = asyncio.ensure_future(making.result().close())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)


_CLOSING: set[asyncio.Future[None]] = set()  # the loop itself keeps only weak references


def _refusal(argv: Sequence[str], cwd: str, variables: Mapping[str, str], stdin: bytes) -> str:
    """Why a command cannot even be sent, or the empty string."""
    if not argv or not argv[0]:
        return "no command was given"
    if any("\0" in text for text in (*argv, cwd, *variables, *variables.values())):
        return "commands and variables hold no NUL characters"
    if any("=" in name or not name for name in variables):
        return "names of variables are not empty and hold no ="
    if len(stdin) > MAX_FILES:
        return f"standard input is larger than {MAX_FILES} bytes"
    if sum(map(len, argv)) > _MAX_COMMAND:
        return f"the command is longer than {_MAX_COMMAND} characters"
    return ""


def _bytes(text: str) -> bytes:
    """As the operating system has it; what no encoding knows becomes a question mark."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _below_workspace(path: str) -> bytes:
    plain = PurePosixPath(path)
    if plain.is_absolute() or not plain.parts or ".." in plain.parts or "\0" in path:
        raise ValueError(f"{path!r} is not a relative path below the workspace")
    return _bytes(str(plain))


def _batches(files: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Files in parcels that fit a frame."""
    batch: dict[bytes, bytes] = {}
    size = 0
    for path, content in files.items():
        if len(content) > MAX_FILES:
            raise WorkspaceError(f"{path.decode()} is larger than {MAX_FILES} bytes")
        if batch and size + len(content) > MAX_FILES:
            yield batch
            batch, size = {}, 0
        batch[path] = content
        size += len(content)
    if batch:
        yield batch
