"""The verifier service: verdicts on artifacts, from processes that can be killed.

The rule that it enforces: a fault that the artifact causes (a hang, a crash, garbage) scores the
domain's floor; only when a control, the empty artifact, fails as well is the fault ours, and the
verdict INVALID or TIMEOUT. The floor is given for a fault that happened twice, the second time in a
process that the first did not touch. The clock starts when a check starts, not when it queues, and
a verdict is bound to the job that asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import signal
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from polymath.envs.sandbox.base import Sandbox, SandboxSpec
from polymath.envs.types import Artifact, DomainSpec, Task
from polymath.rewards.verdict import Status, Verdict, invalid, ok, timed_out
from polymath.rollout.agent_loop import one_line
from polymath.rollout.lazy_sandbox import LazySandbox
from polymath.rollout.records import artifact_data, verdict_from
from polymath.rollout.schema import VerifierConfig
from polymath.rollout.verifier_worker import Pipe, resolver, serve_call

REGISTRY = "polymath.envs.registry:get"
"""Where domains come from unless somebody says otherwise."""

LendSandbox = Callable[[SandboxSpec, str, float], AbstractAsyncContextManager[Sandbox]]
"""Borrows a sandbox: (spec, owner, seconds to live)."""

_MARGIN = 1.0
"""Seconds that a verifier gets beyond its deadline to answer by itself before it is killed."""

_CONTROLS = 4096
"""How many tasks' control results are remembered."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A check without a usable verdict. ``kind``: hang, crash, garbage, refused, sandbox, load."""

    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


class VerifierService:
    """``resolve`` is the ``module:function`` that finds domains by id, here and in the workers.

    ``lend`` borrows the fresh sandbox of a verifier that asks for one.
    """

    def __init__(self, config: VerifierConfig, lend: LendSandbox, resolve: str = REGISTRY) -> None:
        self._seconds = config.seconds
        self._load_seconds = config.load_seconds
        self._queue_seconds = config.queue_seconds
        self._memory = int(config.memory_gb * 2**30)
        self._lease_seconds = config.lease_seconds
        self._lend = lend
        self._resolve_path = resolve
        self._resolve = resolver(resolve)
        self._idle: list[_Process | None] = [None] * config.workers
        self._free = asyncio.Semaphore(config.workers)
        self._running: set[_Process] = set()
        self._controls: OrderedDict[str, Verdict | _Fault] = OrderedDict()
        self._closed = False

    async def verify(self, episode: str, task: Task, artifact: Artifact) -> Verdict:
        """The verdict on an episode's artifact. Never raises for what the artifact or the verifier
        does.
        """
        try:
            spec = self._resolve(task.domain).spec
        except Exception as error:
            return invalid(f"domain {task.domain} cannot be loaded: {one_line(error)}")
        found = await self._check(episode, task, artifact, spec)
        if isinstance(found, Verdict):
            return found
        if found.kind == "load":
            return invalid(str(found))
        control = await self._control(task, spec)
        if isinstance(control, _Fault):
            why = f"{found}; the control failed as well: {control}"
            return timed_out(why) if found.kind == "hang" else invalid(why)
        again = await self._check(episode, task, artifact, spec)
        if isinstance(again, Verdict):  # a passing fault, or one left over from another artifact
            return again
        if again.kind == "load":
            return invalid(str(again))
        return ok(spec.reward_range[0], {"fault": found.kind, "why": found.why})

    async def close(self) -> None:
        """Kill all workers. Safe to call twice."""
        self._closed = True
        idle = [process for process in self._idle if process is not None]
        self._idle = [None] * len(self._idle)
        for process in [*idle, *self._running]:
            await process.kill()

    async def _control(self, task: Task, spec: DomainSpec) -> Verdict | _Fault:
        """What the verifier makes of the empty artifact; remembered per task."""
        key = task.digest
        if key not in self._controls:
            found = await self._check(f"control/{key[:12]}", task, Artifact(), spec)
            self._controls[key] = found
            if len(self._controls) > _CONTROLS:
                self._controls.popitem(last=False)
        return self._controls[key]

    async def _check(
        self, episode: str, task: Task, artifact: Artifact, spec: DomainSpec
    ) -> Verdict | _Fault:
        """One run of the verifier, in a process that is replaced when it misbehaves."""
        try:
            async with self._process() as process:
                sandbox_spec = SandboxSpec(image=spec.image, limits=spec.limits)
                owner = f"verifier/{episode}"
                async with LazySandbox(
                    lambda: self._lend(sandbox_spec, owner, self._lease_seconds)
                ) as sandbox:
                    found = await self._run(process, task, artifact, sandbox)
        except _Broken as broken:
            return broken.fault
        except Exception as error:  # the process is killed by now; what it said made no sense
            return _Fault("garbage", one_line(error))
        if isinstance(found, _Fault):
            return found
        return _sound(found, spec)

    async def _run(
        self, process: _Process, task: Task, artifact: Artifact, sandbox: Sandbox
    ) -> Verdict | _Fault:
        """Talk a job through with a worker. Raises ``_Broken`` when it must be replaced."""
        job = secrets.token_hex(8)
        request = {
            "job": job,
            "task": task.to_json(),
            "artifact": artifact_data(artifact),
            "seconds": self._seconds,
        }
        async with _deadline(self._load_seconds, "load", "the domain was not loaded"):
            await process.ask(request)
            message = await process.answer(job)
        if "started" not in message:
            return _result(message)
        async with _deadline(self._seconds + _MARGIN, "hang", "the verifier did not end"):
            while True:
                message = await process.answer(job)
                if "method" not in message:
                    return _result(message)
                reply = await serve_call(sandbox, message["method"], message["arguments"])
                await process.ask(reply)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[_Process]:
        """A worker to oneself; a broken one is killed and its place refilled at the next use."""
        async with _deadline(self._queue_seconds, "load", "no verifier process became free"):
            await self._free.acquire()
        process = self._idle.pop()
        sound = False
        try:
            if self._closed:
                raise _Broken(_Fault("load", "the verifier service is closed"))
            if process is None or not process.alive:
                async with _deadline(self._load_seconds, "load", "no verifier process started"):
                    process = await _Process.start(self._resolve_path, self._memory)
            self._running.add(process)
            yield process
            sound = True
        finally:
            if process is not None:
                self._running.discard(process)
                if not sound:
                    await process.kill()
            self._idle.append(process if sound else None)
            self._free.release()


class _Broken(Exception):
    """The worker must be replaced; ``fault`` says what it did."""

    def __init__(self, fault: _Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Process:
    """One worker process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stdin is not None
        self._process = process
        self._pipe = Pipe(process.stdout, process.stdin)

    @classmethod
    async def start(cls, resolve: str, memory: int) -> _Process:
        """Start a worker in its own process group, so that all it starts can be killed with it."""
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "polymath.rollout.verifier_worker",
            resolve,
            str(memory),
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def ask(self, message: dict[str, Any]) -> None:
        """Send a message, or ``_Broken``."""
        try:
            await self._pipe.send(message)
        except OSError:
            raise _Broken(_Fault("crash", await self._end())) from None

    async def answer(self, job: str) -> dict[str, Any]:
        """The next message about this job, or ``_Broken``: ended, junk, or about another job."""
        try:
            message = await self._pipe.receive()
        except (EOFError, OSError):
            raise _Broken(_Fault("crash", await self._end())) from None
        except ValueError as error:
            raise _Broken(_Fault("garbage", str(error))) from None
        if message.get("job") != job:
            raise _Broken(_Fault("garbage", "the answer is about another job"))
        return message

    async def kill(self) -> None:
        """Kill the process and all it started. Safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _end(self) -> str:
        code = await self._process.wait()
        return f"the verifier process ended with {signal.Signals(-code).name if code < 0 else code}"


@asynccontextmanager
async def _deadline(seconds: float, kind: str, what: str) -> AsyncIterator[None]:
    """Turn a timeout of the body into ``_Broken``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise _Broken(_Fault(kind, f"{what} within {seconds:g} s")) from None


def _result(message: dict[str, Any]) -> Verdict | _Fault:
    """The last message about a job as a verdict or a fault."""
    if "fault" in message:
        return _Fault(message["fault"], message["why"])
    try:
        verdict = verdict_from(message["verdict"])
        assert verdict is not None
        return verdict
    except Exception as error:
        return _Fault("garbage", f"no verdict: {error}")


def _sound(verdict: Verdict, spec: DomainSpec) -> Verdict | _Fault:
    """The verdict if it trains and its reward is one that the domain may give; TAMPERED at the
    floor. Anything else is a fault that the control decides on.
    """
    floor, maximum = spec.reward_range
    if not verdict.trains:
        return _Fault("refused", f"{verdict.status}: {verdict.evidence.get('why', '')}")
    if verdict.status is Status.TAMPERED:
        return Verdict(Status.TAMPERED, floor, verdict.components, verdict.evidence)
    reward = verdict.reward
    if reward is None or not math.isfinite(reward) or not floor <= reward <= maximum:
        return _Fault("garbage", f"reward {reward} outside [{floor:g}, {maximum:g}]")
    return verdict
