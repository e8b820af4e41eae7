"""The sandbox host: one per node, it makes sandboxes, keeps some warm and lends them.

    async with host.lease(spec, owner=Owner(run, episode)) as sandbox:
        result = await sandbox.exec("ls")

A lease has an owner and a time to live. Once it is over, whoever still holds it gets errors and never
another tenant's sandbox: a sandbox is lent once and then destroyed. ``SandboxHost`` runs in any
process; ``start_sandbox_host`` puts it into a Ray actor whose handle lends in the same way.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from polymath.configs import ReportsReads
from polymath.envs.sandbox import select
from polymath.envs.sandbox.base import (
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.rollout.sandbox_lease import Grant, LeasedSandbox, Owner, borrow

__all__ = ["Owner", "RemoteSandboxHost", "SandboxHost", "SandboxStats", "start_sandbox_host"]

_JANITOR_SECONDS = 1.0
_WARM_KINDS = 4
"""Kinds of sandboxes of which some are kept warm; the least recently used gives way."""

_CALLS = 4096
"""Calls that a host actor serves at a time; most of them wait for a command."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """Counts since the host began, and what there is now (``live``, ``leased``, ``waiting``)."""

    created: int
    create_seconds: float
    warm_hits: int
    executions: int
    execution_seconds: float
    expired: int
    live: int
    leased: int
    waiting: int


@dataclass(slots=True)
class _Lease:
    owner: Owner
    sandbox: Sandbox
    expires: float  # time.monotonic()


class SandboxHost(ReportsReads):
    """Lends sandboxes of one backend, which is chosen from the configuration unless given.

    Raises ``SandboxUnavailable`` when no backend can run here. ``acquire`` and the calls that take a
    lease are what a borrower on another process uses; see ``lease`` for all others.
    """

    def __init__(self, config: SandboxConfig, backend: SandboxBackend | None = None) -> None:
        self._backend = backend or select(config)
        self._warm_size = config.warm
        self._concurrent = config.concurrent
        self._acquire_seconds = config.acquire_seconds
        self._lease_seconds = config.lease_seconds
        self._places = asyncio.Semaphore(config.concurrent)
        self._leases: dict[str, _Lease] = {}
        self._warm: OrderedDict[object, deque[Sandbox]] = OrderedDict()
        self._filling: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._janitor: asyncio.Task[None] | None = None
        self._closed = False
        self._created = self._warm_hits = self._executions = self._expired = self._waiting = 0
        self._create_seconds = self._execution_seconds = 0.0

    def lease(
        self, spec: SandboxSpec, *, owner: Owner, ttl: float | None = None
    ) -> AbstractAsyncContextManager[LeasedSandbox]:
        """Borrow a sandbox for as long as the context is open, at most ``ttl`` seconds."""
        return borrow(self._call, spec, owner, ttl)

    async def acquire(self, spec: SandboxSpec, owner: Owner, ttl: float | None = None) -> Grant:
        """Lend a sandbox, warm if there is one; waits for a free place. Raises ``SandboxError``."""
        if self._closed:
            raise SandboxError("the sandbox host is closed")
        await self._begin()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._acquire_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise SandboxError(
                f"no sandbox became free for {owner} in {self._acquire_seconds:.0f} s; "
                f"all {self._concurrent} are lent (sandbox.concurrent)"
            ) from None
        finally:
            self._waiting -= 1
        try:
            sandbox = await self._take(spec)
        except BaseException:
            self._places.release()
            raise
        key = secrets.token_hex(8)
        seconds = self._lease_seconds if ttl is None else ttl
        self._leases[key] = _Lease(owner, sandbox, time.monotonic() + seconds)
        return Grant(key, sandbox.capabilities())

    async def renew(self, lease: str, ttl: float | None = None) -> None:
        """Let a lease live ``ttl`` seconds from now."""
        seconds = self._lease_seconds if ttl is None else ttl
        self._find(lease).expires = time.monotonic() + seconds

    async def release(self, lease: str) -> None:
        """End a lease and destroy its sandbox. A lease that is over already is no error."""
        held = self._leases.pop(lease, None)
        if held is None:
            return
        try:
            await held.sandbox.close()
        finally:
            self._places.release()

    async def exec(self, lease: str, command: str | Sequence[str], **options: Any) -> ExecResult:
        """``Sandbox.exec`` in a leased sandbox."""
        self._find(lease)
        started = time.perf_counter()
        try:
            return await self._in(lease, lambda sandbox: sandbox.exec(command, **options))
        finally:
            self._executions += 1
            self._execution_seconds += time.perf_counter() - started

    async def put(self, lease: str, files: Mapping[str, bytes]) -> None:
        """``Sandbox.put`` in a leased sandbox."""
        await self._in(lease, lambda sandbox: sandbox.put(files))

    async def get(
        self, lease: str, paths: Sequence[str], max_bytes: int
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """``Sandbox.get`` in a leased sandbox."""
        return await self._in(lease, lambda sandbox: sandbox.get(paths, max_bytes=max_bytes))

    async def stats(self) -> SandboxStats:
        """What this host has done and holds."""
        return SandboxStats(
            created=self._created,
            create_seconds=self._create_seconds,
            warm_hits=self._warm_hits,
            executions=self._executions,
            execution_seconds=self._execution_seconds,
            expired=self._expired,
            live=len(self._leases) + sum(map(len, self._warm.values())),
            leased=len(self._leases),
            waiting=self._waiting,
        )

    async def close(self) -> None:
        """End all leases and destroy all sandboxes. Safe to call twice."""
        self._closed = True
        tasks = [*self._tasks, *([self._janitor] if self._janitor else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self.release(lease) for lease in tuple(self._leases)))
        self._warm.clear()
        await self._backend.close()

    async def _begin(self) -> None:
        """On first use: sweep up after hosts that died, then keep watch over the leases."""
        if self._janitor is None:
            self._janitor = asyncio.create_task(self._keep_house())
            await self._backend.collect()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_JANITOR_SECONDS)
            now = time.monotonic()
            for key, held in tuple(self._leases.items()):
                if held.expires <= now:
                    self._expired += 1
                    self._spawn(self.release(key))

    async def _take(self, spec: SandboxSpec) -> Sandbox:
        kind = _kind(spec)
        warm = self._warm.setdefault(kind, deque())
        self._warm.move_to_end(kind)
        sandbox = warm.popleft() if warm else None
        if sandbox is None:
            sandbox = await self._create(spec)
        else:
            self._warm_hits += 1
        if self._warm_size and kind not in self._filling:
            self._filling.add(kind)
            self._spawn(self._fill(kind, spec))
        return sandbox

    async def _fill(self, kind: object, spec: SandboxSpec) -> None:
        """Bring one kind's warm sandboxes up to their number, and let the oldest kind go."""
        try:
            while (warm := self._warm.get(kind)) is not None and len(warm) < self._warm_size:
                sandbox = await self._create(spec)
                if self._warm.get(kind) is warm and not self._closed:
                    warm.append(sandbox)
                else:
                    await sandbox.close()
        except SandboxError:
            pass  # whoever needs one makes it, and is told what went wrong
        finally:
            self._filling.discard(kind)
        while len(self._warm) > _WARM_KINDS:
            _, given_up = self._warm.popitem(last=False)
            await asyncio.gather(*(sandbox.close() for sandbox in given_up))

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        started = time.perf_counter()
        sandbox = await self._backend.create(spec)
        self._created += 1
        self._create_seconds += time.perf_counter() - started
        return sandbox

    def _find(self, lease: str) -> _Lease:
        held = self._leases.get(lease)
        if held is None or held.expires <= time.monotonic():
            raise SandboxError(f"lease {lease} is over: it was closed or has expired")
        return held

    async def _in(self, lease: str, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        held = self._find(lease)
        try:
            return await work(held.sandbox)
        except SandboxError as error:
            if lease in self._leases:
                raise
            raise SandboxError(f"lease {lease} of {held.owner} ended during a call") from error

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await getattr(self, method)(*arguments, **options)


class RemoteSandboxHost:
    """A ``SandboxHost`` in a Ray actor. Can be pickled and passed to other actors."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def lease(
        self, spec: SandboxSpec, *, owner: Owner, ttl: float | None = None
    ) -> AbstractAsyncContextManager[LeasedSandbox]:
        """See ``SandboxHost.lease``."""
        return borrow(self._call, spec, owner, ttl)

    async def stats(self) -> SandboxStats:
        """See ``SandboxHost.stats``."""
        stats: SandboxStats = await self._call("stats")
        return stats

    async def config_reads(self) -> set[str]:
        """See ``ReportsReads``."""
        reads: set[str] = await self._call("config_reads")
        return reads

    async def close(self) -> None:
        """Destroy all sandboxes and end the actor."""
        import ray

        try:
            with suppress(SandboxError):
                await self._call("close")
        finally:  # also when the caller waits no longer
            ray.kill(self._actor)

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return await getattr(self._actor, method).remote(*arguments, **options)
        except RayTaskError as error:
            raise error.cause from None  # as if the host were here
        except RayActorError as error:
            raise SandboxError("the sandbox host has died") from error


def start_sandbox_host(
    config: SandboxConfig, *, name: str = "sandbox-host", node: str | None = None
) -> RemoteSandboxHost:
    """The host actor of this name, started unless it runs already, on a node (by id) or on this one.

    Ask ``select(config)`` for problems first: an actor that cannot start shows them only at use.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = node or ray.get_runtime_context().get_node_id()
    actor = (
        ray.remote(SandboxHost)
        .options(
            name=name,
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(config)
    )
    return RemoteSandboxHost(actor)


def _kind(spec: SandboxSpec) -> object:
    """What makes two sandboxes exchangeable; a borrower brings its own time and output limits."""
    limits = spec.limits
    resources = (limits.memory_bytes, limits.processes, limits.cpus, limits.workspace_bytes)
    return spec.image, resources, tuple(sorted(spec.environment.items()))
