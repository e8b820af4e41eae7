"""An engine that cannot start says why in one line, in time, and leaves nothing behind."""

import asyncio
import time
from dataclasses import replace

import psutil
import pytest
from tests.rollout.engine.conftest import ENGINE, prompt

from polymath.rollout.engine.base import EngineError, SamplingSpec

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


def test_an_engine_core_that_dies_fails_its_requests(cluster, policy_folder, tmp_path):
    from polymath.rollout.engine.actor import start_engine

    async def run():
        engine = start_engine(ENGINE, str(policy_folder / "v0"), "frail", log_folder=str(tmp_path))
        await engine.start()
        running = asyncio.ensure_future(engine.generate("x", prompt(0, 40), SamplingSpec(900)))
        while not (stats := await engine.stats()).running:
            assert not running.done()
        actor = psutil.Process(int(stats.labels["pid"]))
        for child in actor.children(recursive=True):
            child.kill()
        with pytest.raises(EngineError, match="frail died"):
            await running
        with pytest.raises(EngineError, match="frail died"):
            await engine.generate("y", prompt(0, 40), SamplingSpec(4))
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), 150))


def test_a_start_that_takes_too_long(cluster, policy_folder, tmp_path):
    began = time.monotonic()
    message = fail(replace(ENGINE, start_seconds=1.0), policy_folder / "v0", tmp_path)
    assert "not ready after 1 s" in message
    assert time.monotonic() - began < 60
