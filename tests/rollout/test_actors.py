"""The actors together: groups of real domains, 128 episodes at a time, and what is left of a run.

The engine is a stand-in (a replayed oracle); all other processes are the real ones.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from oracle_engine import OracleEngine, group_id

from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Effort
from polymath.rollout.actors import start_verifier_service, start_worker
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.groups import GroupRequest, GroupResult
from polymath.rollout.records import episodes
from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.run_store import read, start_run_store
from polymath.rollout.sandbox_host import start_sandbox_host
from polymath.rollout.schema import RolloutConfig, RunStoreConfig, VerifierConfig
from polymath.rollout.types import OutcomeKind

pytestmark = pytest.mark.slow

DOMAINS = ("terminal/log-triage", "office/summary", "reasoning/chain-sum")
SICK = 99


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=200 << 20,
    )  # fmt: skip
    yield
    ray.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def tokenizer(renderer: PolymathRenderer, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    renderer._tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def request(domain: str, seed: int, size: int = 8) -> GroupRequest:
    sampling = SamplingSpec(max_tokens=2048)
    return GroupRequest(group_id(domain, 0, seed), domain, 0, seed, Effort.LOW, size, sampling)


def test_groups_are_played_side_by_side_and_leave_rows_and_a_log(
    cluster: None, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> tuple[list[GroupResult], list[Any]]:
        host = start_sandbox_host(SandboxConfig(concurrent=16), name="host-of-actors-test")
        verifier = start_verifier_service(VerifierConfig(), host)
        store = start_run_store(tmp_path / "store", RunStoreConfig())
        config = RolloutConfig(max_episode_tokens=8192, concurrency=128, retries=1)
        engine = OracleEngine(tokenizer, SICK)
        worker = start_worker(config, tokenizer, [engine], host, verifier, store)
        try:
            async with asyncio.timeout(240):
                requests = [request(domain, seed) for domain in DOMAINS for seed in range(5)]
                requests.append(request(DOMAINS[0], SICK))
                results = await asyncio.gather(*(worker.run_group.remote(r) for r in requests))
                refs = [episode.ref for episode in results[0].episodes]
                rows = await worker.rows.remote(refs, [1.0] * len(refs))
                assert await worker.process_id.remote() != os.getpid()
                assert (await host.stats()).leased == 0
        finally:
            await verifier.close.remote()
            await store.close.remote()
            await host.close()
        return results, rows

    results, rows = asyncio.run(main())
    *healthy, sick = results
    for result in healthy:
        assert [episode.outcome.reward for episode in result.episodes] == [1.0] * 8
        assert not result.abandoned
    assert {episode.outcome.kind for episode in sick.episodes} == {
        OutcomeKind.INFRASTRUCTURE_FAILED
    }
    assert {episode.outcome.why for episode in sick.episodes} == {
        "engine: EngineError: engine 0 died"
    }
    assert [row.loss_tokens for row in rows] == [e.sampled_tokens for e in healthy[0].episodes]
    stored = {episode.id: episode for episode in episodes(read(tmp_path / "store"))}
    everyone = [e for result in results for e in (*result.episodes, *result.abandoned)]
    assert set(stored) == {episode.id for episode in everyone}
    assert all(stored[e.id].sampled_tokens == e.sampled_tokens for e in everyone)


def test_a_second_run_store_is_refused_with_one_clear_line(cluster: None, tmp_path: Path) -> None:
    first = start_run_store(tmp_path, RunStoreConfig())
    assert ray.get(first.process_id.remote(), timeout=60) > 0
    second = start_run_store(tmp_path, RunStoreConfig())
    with pytest.raises(ray.exceptions.RayActorError, match="has a writer already"):
        ray.get(second.process_id.remote(), timeout=60)
    ray.get(first.close.remote(), timeout=60)
