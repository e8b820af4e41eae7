"""An engine that cannot start says why in one line, in time, and leaves nothing behind."""

import asyncio
import time
from dataclasses import replace

import psutil
import pytest
from tests.rollout.engine.conftest import ENGINE

from polymath.rollout.engine.base import EngineError

pytestmark = pytest.mark.slow


def fail(config, folder, logs):
    from polymath.rollout.engine.actor import start_engine

    async def run():
        engine = start_engine(config, str(folder), "bad", log_folder=str(logs))
        before = await engine.stats()
        actor = psutil.Process(int(before.labels["pid"]))
        with pytest.raises(EngineError) as caught:
            await engine.start()
        children = actor.children(recursive=True)
        await engine.close()
        return str(caught.value), children, actor

    message, children, actor = asyncio.run(run())
    assert not children, [child.name() for child in children]
    assert not psutil.wait_procs([actor], timeout=10)[1]
    assert "\n" not in message
    return message


def test_more_cache_than_memory(cluster, policy_folder, tmp_path):
    message = fail(replace(ENGINE, kv_cache_gb=4000.0), policy_folder / "v0", tmp_path)
    assert "memory" in message.lower()
    assert "bad.log" in message


def test_a_start_that_takes_too_long(cluster, policy_folder, tmp_path):
    began = time.monotonic()
    message = fail(replace(ENGINE, start_seconds=1.0), policy_folder / "v0", tmp_path)
    assert "not ready after 1 s" in message
    assert time.monotonic() - began < 60
