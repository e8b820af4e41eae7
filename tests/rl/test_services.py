"""Shutdown, with scripted actors."""

import asyncio
from typing import Any

import pytest
import ray

from polymath.rl import services
from polymath.rl.services import Services
from polymath.rollout.engine.actor import RemoteEngine
from polymath.rollout.sandbox_host import RemoteSandboxHost


class Hanging:
    """An actor whose ``close`` never returns."""

    @property
    def close(self) -> Any:
        return self

    def remote(self) -> Any:
        return asyncio.Event().wait()


def test_what_does_not_close_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    monkeypatch.setattr(services, "_CLOSE_SECONDS", 0.05)
    engine, host, worker = Hanging(), Hanging(), object()
    running = Services(
        sandbox_host=RemoteSandboxHost(host),
        engines=[RemoteEngine(engine, "engine-0")],
        workers=[worker],
    )

    async def close_twice() -> None:
        await running.close()
        await running.close()

    asyncio.run(close_twice())
    assert killed == [worker, engine, host]
