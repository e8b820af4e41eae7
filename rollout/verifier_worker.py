"""The process that runs verifiers: one artifact at a time, killed when it takes too long.

It speaks with ``verifier_service`` over two pipes in frames (length, msgpack). It has no Ray, no
torch and no sandbox host; sandbox calls of a verifier travel to the service, which owns the lease.

    service -> {"job", "task", "artifact", "seconds"}
    worker  -> {"job", "started"}                       the domain is loaded, the clock starts
    worker  -> {"job", "method", "arguments"}           a sandbox call; the service answers
    service -> {"value"} or {"error"}
    worker  -> {"job", "verdict"} or {"job", "fault", "why"}
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polymath.envs.contract import Domain
from polymath.envs.sandbox.base import (
    WORKSPACE,
    ExecResult,
    ExecStatus,
    Sandbox,
    SandboxError,
    Unsupported,
)
from polymath.envs.types import Deadline, Task
from polymath.rollout.records import artifact_from, pack_value, unpack_value, verdict_data

LARGEST_FRAME = 256 << 20
"""No message is larger; a longer one is a broken peer."""

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1

Resolve = Callable[[str], Domain]


class Pipe:
    """Frames over a pair of asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises ``TypeError`` or ``ValueError`` for what cannot be packed,
        ``OSError`` when the peer is gone.
        """
        body = pack_value(message)
        if len(body) > LARGEST_FRAME:
            raise ValueError(f"a message of {len(body)} bytes is too large")
        self._writer.write(_LENGTH.pack(len(body)) + body)
        await self._writer.drain()

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises ``EOFError`` when the peer is gone, ``ValueError`` for junk."""
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > LARGEST_FRAME:
            raise ValueError(f"a message of {length} bytes is too large")
        message = unpack_value(await self._reader.readexactly(length))
        if not isinstance(message, dict):
            raise ValueError(f"a message is a map, not {type(message).__name__}")
        return message


def resolver(path: str) -> Resolve:
    """The function ``module:name`` that finds a domain by its id."""
    module, _, name = path.partition(":")
    found: Resolve = getattr(importlib.import_module(module), name)
    return found


class RemoteSandbox:
    """The sandbox that a verifier gets: calls go to the service, which borrows one at the first."""

    def __init__(self, pipe: Pipe, job: str) -> None:
        self._pipe, self._job = pipe, job
        self._lock = asyncio.Lock()

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
        """See ``Sandbox.exec``."""
        status, exit_code, output, total, seconds = await self._call(
            "exec",
            command=command if isinstance(command, str) else list(command),
            timeout=timeout,
            cwd=cwd,
            environment=dict(environment) if environment else None,
            output_bytes=output_bytes,
            stdin=stdin,
        )
        return ExecResult(ExecStatus(status), exit_code, output, total, seconds)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """See ``Sandbox.put``."""
        await self._call("put", files=dict(files))

    async def get(
        self, paths: Sequence[str], *, max_bytes: int = 8 << 20
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """See ``Sandbox.get``."""
        files, missing = await self._call("get", paths=list(paths), max_bytes=max_bytes)
        return files, missing

    async def checkpoint(self) -> str:
        """Not offered to verifiers."""
        raise Unsupported("a verifier's sandbox has no checkpoints")

    async def fork(self, checkpoint: str) -> Sandbox:
        """Not offered to verifiers."""
        raise Unsupported("a verifier's sandbox cannot fork")

    async def close(self) -> None:
        """Nothing to do: the service gives the sandbox back when the check ends."""

    def capabilities(self) -> frozenset[str]:
        """None that are optional."""
        return frozenset()

    async def _call(self, method: str, **arguments: Any) -> Any:
        async with self._lock:
            await self._pipe.send({"job": self._job, "method": method, "arguments": arguments})
            reply = await self._pipe.receive()
        if "error" in reply:
            raise SandboxError(reply["error"])
        return reply["value"]


async def serve_call(sandbox: Sandbox, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The service's side of a sandbox call: the answer to send."""
    try:
        match method:
            case "exec":
                done = await sandbox.exec(**arguments)
                value: Any = [
                    str(done.status), done.exit_code, done.output, done.total_bytes, done.seconds
                ]  # fmt: skip
            case "put":
                await sandbox.put(arguments["files"])
                value = None
            case "get":
                value = await sandbox.get(arguments["paths"], max_bytes=arguments["max_bytes"])
            case _:
                return {"error": f"no sandbox call {method!r}"}
    except Exception as error:  # whatever it is, the verifier hears of it as a sandbox error
        return {"error": _describe(error)}
    return {"value": value}


async def _check(pipe: Pipe, resolve: Resolve, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one job; the last message about it, without its id."""
    try:
        task = Task.from_json(job["task"])
        verifier = resolve(task.domain).verifier(task)
        artifact = artifact_from(job["artifact"])
        assert artifact is not None
    except Exception as error:
        return {"fault": "load", "why": _describe(error)}
    await pipe.send({"job": job["job"], "started": True})
    try:
        sandbox = RemoteSandbox(pipe, job["job"])
        verdict = await verifier.verify(artifact, sandbox, Deadline.after(job["seconds"]))
        data = verdict_data(verdict)
        pack_value(data)
        return {"verdict": data}
    except SandboxError as error:
        return {"fault": "sandbox", "why": _describe(error)}
    except (Exception, SystemExit, RecursionError, MemoryError) as error:
        return {"fault": "crash", "why": _describe(error)}


async def _serve(resolve_path: str, reading: int, writing: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb")
    )
    pipe = Pipe(reader, asyncio.StreamWriter(transport, protocol, None, loop))
    resolve = resolver(resolve_path)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = await pipe.receive()
            await pipe.send({"job": job["job"], **await _check(pipe, resolve, job)})


def _claim_pipes() -> tuple[int, int]:
    """Keep the two pipes for ourselves: what a verifier prints goes to the log, not to the peer."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return reading, writing


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the service dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def main() -> None:
    """Entry point: ``verifier_worker RESOLVER MEMORY_BYTES PARENT_PID``."""
    resolve_path, memory, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _die_with(parent)
    faulthandler.enable()
    reading, writing = _claim_pipes()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asyncio.run(_serve(resolve_path, reading, writing))


if __name__ == "__main__":
    main()
