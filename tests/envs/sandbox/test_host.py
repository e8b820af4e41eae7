"""The sandbox host: leases that end, pools that are warm, and room that is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polymath.envs.sandbox.base import SandboxError, SandboxSpec
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Limits
from polymath.rollout.sandbox_host import Owner, SandboxHost, start_sandbox_host

OWNER = Owner("run", "episode")
SPEC = SandboxSpec()


def with_host(
    backend: BubblewrapBackend, work: Callable[[SandboxHost], Awaitable[Any]], **settings: Any
) -> Any:
    async def run() -> Any:
        config = SandboxConfig(**{"warm": 0, **settings})
        host = SandboxHost(config, BubblewrapBackend(config))
        try:
            return await asyncio.wait_for(work(host), 60)
        finally:
            await host.close()
            await host.close()
            stats = await host.stats()
            assert (stats.live, stats.leased, stats.waiting) == (0, 0, 0)

    return asyncio.run(run())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_lease_is_a_sandbox_for_a_while(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async with host.lease(SPEC, owner=OWNER, ttl=60) as sandbox:
            await sandbox.put({"a/b": b"x"})
            assert (await sandbox.exec("cat a/b; exit 3")).exit_code == 3
            assert await sandbox.get(["a/b"]) == ({"a/b": b"x"}, {})
            assert sandbox.capabilities()
            assert (await host.stats()).leased == 1
        with pytest.raises(SandboxError, match="is over"):
            await sandbox.exec("true")
        await sandbox.close()
        stats = await host.stats()
        assert (stats.created, stats.executions, stats.leased) == (1, 1, 0)
        assert stats.execution_seconds > 0 and stats.create_seconds > 0

    with_host(backend, work)


def test_leases_expire_even_during_a_call(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async with host.lease(SPEC, owner=OWNER, ttl=0.5) as sandbox:
            with pytest.raises(SandboxError, match="run/episode ended during a call"):
                await sandbox.exec("sleep 60", timeout=50)
            with pytest.raises(SandboxError, match="is over"):
                await sandbox.put({"a": b""})
            with pytest.raises(SandboxError, match="is over"):
                await sandbox.renew(60)
        stats = await host.stats()
        assert (stats.expired, stats.leased) == (1, 0)

    with_host(backend, work)


def test_an_expired_lease_frees_its_place_and_reaches_no_new_tenant(
    backend: BubblewrapBackend,
) -> None:
    async def work(host: SandboxHost) -> None:
        next_owner = Owner("run", "next")
        async with (
            host.lease(SPEC, owner=OWNER, ttl=0.1) as late,
            host.lease(SPEC, owner=next_owner, ttl=60) as tenant,
        ):
            with pytest.raises(SandboxError, match="is over"):
                await late.put({"planted": b"x"})
            assert (await tenant.exec("ls")).output == ""

    with_host(backend, work, concurrent=1, acquire_seconds=30)


def test_renewing_keeps_a_lease(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async with host.lease(SPEC, owner=OWNER, ttl=1.5) as sandbox:
            await sandbox.renew(60)
            await sandbox.exec("sleep 3", timeout=10)
            assert (await sandbox.exec("echo on")).output == "on\n"

    with_host(backend, work)


def test_those_without_room_wait_and_then_are_told(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async with host.lease(SPEC, owner=OWNER):
            with pytest.raises(SandboxError, match="no sandbox became free for run/b in 0 s"):
                async with host.lease(SPEC, owner=Owner("run", "b")):
                    pass
        async with host.lease(SPEC, owner=OWNER):
            pass

    with_host(backend, work, concurrent=1, acquire_seconds=0.2)


def test_never_more_live_leases_than_room(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        three = asyncio.Barrier(3)

        async def borrow(index: int) -> None:
            async with host.lease(SPEC, owner=Owner("run", str(index))):
                await three.wait()
                assert (await host.stats()).leased <= 3

        await asyncio.gather(*(borrow(index) for index in range(9)))
        assert (await host.stats()).created == 9

    with_host(backend, work, concurrent=3)


def test_a_borrower_who_gives_up_waiting_leaves_no_lease(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async def borrow() -> None:
            async with host.lease(SPEC, owner=OWNER):
                pass

        for delay in (0.0, 0.01, 0.05):
            borrowing = asyncio.create_task(borrow())
            await asyncio.sleep(delay)
            borrowing.cancel()
            await asyncio.gather(borrowing, return_exceptions=True)

        async def idle() -> bool:
            stats = await host.stats()
            return stats.leased == 0 and stats.waiting == 0 and len(host._backend._live) == 0  # type: ignore[attr-defined]

        await until(idle)

    with_host(backend, work)


def test_warm_sandboxes_are_taken_first_and_made_anew(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async def warm(count: int) -> None:
            async def enough() -> bool:
                stats = await host.stats()
                return stats.live - stats.leased == count

            await until(enough)

        async with host.lease(SPEC, owner=OWNER):
            await warm(2)
        # Other time limits are no other kind of sandbox, another size is.
        hurried = SandboxSpec(limits=Limits(command_seconds=0.2, turns=3))
        async with host.lease(hurried, owner=OWNER) as sandbox:
            assert (await sandbox.exec("sleep 60")).status == "timeout"
            assert (await host.stats()).warm_hits == 1
            await warm(2)
        larger = SandboxSpec(limits=Limits(workspace_bytes=256 << 20))
        async with host.lease(larger, owner=OWNER) as sandbox:
            assert (await sandbox.exec("df -m --output=size . | tail -1")).output.strip() == "256"
            assert (await host.stats()).warm_hits == 1
        await warm(4)
        for size in range(1, 6):  # many kinds: the oldest are let go
            kind = SandboxSpec(limits=Limits(workspace_bytes=size << 20))
            async with host.lease(kind, owner=OWNER):
                await until_filled(host)
        await warm(8)

    async def until_filled(host: SandboxHost) -> None:
        async def filled() -> bool:
            return not host._filling

        await until(filled)

    with_host(backend, work, warm=2)


def test_a_closed_host_lends_nothing(backend: BubblewrapBackend) -> None:
    async def work() -> None:
        host = SandboxHost(SandboxConfig(), backend)
        await host.close()
        with pytest.raises(SandboxError, match="closed"):
            await host.acquire(SPEC, OWNER)

    asyncio.run(work())


def test_closing_ends_all_leases(backend: BubblewrapBackend) -> None:
    async def work(host: SandboxHost) -> None:
        async with host.lease(SPEC, owner=OWNER) as sandbox:
            call = asyncio.create_task(sandbox.exec("sleep 60"))
            await asyncio.sleep(0.05)
            await host.close()
            with pytest.raises(SandboxError):
                await call

    with_host(backend, work)


@pytest.mark.slow
def test_the_same_through_a_ray_actor(backend: BubblewrapBackend) -> None:
    import ray

    async def work() -> None:
        host = start_sandbox_host(SandboxConfig(warm=1, concurrent=8), name="test-sandboxes")
        again = start_sandbox_host(SandboxConfig(warm=1, concurrent=8), name="test-sandboxes")

        async def borrow(index: int) -> str:
            async with again.lease(SPEC, owner=Owner("run", str(index)), ttl=60) as sandbox:
                await sandbox.put({"name": str(index).encode()})
                found, failed = await sandbox.get(["name", "none"])
                assert found == {"name": str(index).encode()} and failed.keys() == {"none"}
                return (await sandbox.exec("cat name")).output

        outputs = await asyncio.gather(*(borrow(index) for index in range(6)))
        assert outputs == [str(index) for index in range(6)]
        async with host.lease(SPEC, owner=OWNER, ttl=60) as sandbox:
            pass
        with pytest.raises(SandboxError, match=r"^lease \w+ is over"):
            await sandbox.exec("true")
        assert (await host.stats()).executions == 6
        await host.close()
        with pytest.raises(SandboxError, match="died"):
            await again.stats()

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        asyncio.run(work())
    finally:
        ray.shutdown()
