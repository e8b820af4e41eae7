"""Groups: oracles of the shipped domains, replayed token by token in real sandboxes, score the
maximum; failures stay with their episode; every token that was sampled is accounted for.

The engine is a stand-in (a replayed policy); sandboxes, verifiers and run store are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from counter_domain import CounterDomain
from scripted_engine import ScriptedEngine

from polymath.envs import registry
from polymath.envs.contract import Domain, Policy
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Artifact, Effort, Limits, Task
from polymath.rewards.verdict import Verdict, invalid, ok, timed_out
from polymath.rollout.actors import lender
from polymath.rollout.engine.base import EngineError, Generation, SamplingSpec
from polymath.rollout.groups import GroupRequest, GroupResult
from polymath.rollout.journal import Journal
from polymath.rollout.records import Kind, episodes
from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.run_store import RunStore, RunStoreError, read
from polymath.rollout.sandbox_host import SandboxHost
from polymath.rollout.schema import RolloutConfig, RunStoreConfig, VerifierConfig
from polymath.rollout.types import Episode, OutcomeKind, Tokens
from polymath.rollout.verifier_service import VerifierService
from polymath.rollout.worker import RolloutWorker

SAMPLING = SamplingSpec(max_tokens=4096)
CONFIG = RolloutConfig(max_episode_tokens=16384, concurrency=8, retries=1)


def request(domain: str, level: int = 0, seed: int = 5, size: int = 2, id: str = "g0") -> Any:
    return GroupRequest(id, domain, level, seed, Effort.HIGH, size, SAMPLING)


@asynccontextmanager
async def real_services() -> AsyncIterator[tuple[SandboxHost, VerifierService]]:
    host = SandboxHost(SandboxConfig())
    service = VerifierService(VerifierConfig(workers=2), lender(host, "test"))
    try:
        async with asyncio.timeout(250):
            yield host, service
    finally:
        await service.close()
        await host.close()


def policies(domain: Domain, task: Task, make: str = "oracle") -> Callable[[str], Policy]:
    return lambda episode: getattr(domain, make)(task)


@pytest.mark.slow
@pytest.mark.parametrize("id", registry.ids())
def test_an_oracle_scores_the_maximum_at_every_level(
    id: str, renderer: PolymathRenderer, tmp_path: Path
) -> None:
    domain = registry.get(id)

    async def main() -> list[GroupResult]:
        results = []
        async with real_services() as (host, service):
            with RunStore(tmp_path, RunStoreConfig()) as store:
                for level in domain.spec.levels:
                    task = domain.sample(5, level)
                    engine = ScriptedEngine(renderer, policies(domain, task))
                    worker = RolloutWorker(
                        CONFIG, renderer, [engine], lender(host, "test"), service.verify,
                        journal_of(store), registry.get, lambda episode: episode,
                    )  # fmt: skip
                    asked = request(id, level.index, id=f"g{level.index}")
                    results.append(await worker.run_group(asked))
                assert (await host.stats()).leased == 0
        return results

    results = asyncio.run(main())
    stored = {episode.id: episode for episode in episodes(read(tmp_path))}
    for result in results:
        assert not result.abandoned
        for summary in result.episodes:
            assert summary.outcome.kind is OutcomeKind.SCORED, summary.outcome
            assert summary.outcome.reward == domain.spec.reward_range[1]
            assert summary.refused == 0 and summary.turns >= 1
            assert stored[summary.id].sampled_tokens == summary.sampled_tokens
            assert stored[summary.id].outcome == summary.outcome
    assert len(stored) == sum(len(result.episodes) for result in results)


def journal_of(store: RunStore) -> Journal:
    async def append(records: Any) -> None:
        store.append_packed(records)

    return Journal(append, seconds=30.0)


class Flaky(ScriptedEngine):
    """Fails the second turn of the episodes that ``fails`` names."""

    def __init__(self, *arguments: Any, fails: Callable[[str], bool]) -> None:
        super().__init__(*arguments)
        self.fails = fails

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        episode, turn, _ = request_id.rsplit("/", 2)
        if turn == "1" and self.fails(episode):
            raise EngineError("it died")
        return await super().generate(request_id, prompt, sampling)


def counter_group(
    renderer: PolymathRenderer,
    folder: Path,
    *,
    fails: Callable[[str], bool] = lambda episode: False,
    verify: Callable[[str], Verdict] = lambda episode: ok(1.0),
    domain: CounterDomain | None = None,
    size: int = 4,
    config: RolloutConfig = CONFIG,
) -> GroupResult:
    domain = domain or CounterDomain()
    task = domain.sample(5, domain.spec.level(0))

    async def checked(episode: str, task: Task, artifact: Artifact) -> Verdict:
        return verify(episode)

    async def main() -> GroupResult:
        with RunStore(folder, RunStoreConfig()) as store:
            worker = RolloutWorker(
                config, renderer, [Flaky(renderer, policies(domain, task), fails=fails)],
                None, checked, journal_of(store), lambda id: domain, lambda episode: episode,
            )  # type: ignore[arg-type]  # fmt: skip
            return await worker.run_group(request("test/counter", size=size))

    return asyncio.run(main())


def test_a_failed_attempt_is_played_again_and_its_tokens_are_named(
    renderer: PolymathRenderer, tmp_path: Path
) -> None:
    result = counter_group(renderer, tmp_path, fails=lambda episode: episode == "g0-2")
    assert [episode.id for episode in result.episodes] == ["g0-0", "g0-1", "g0-2.1", "g0-3"]
    assert {episode.outcome.reward for episode in result.episodes} == {1.0}
    (lost,) = result.abandoned
    assert lost.id == "g0-2" and lost.outcome.kind is OutcomeKind.INFRASTRUCTURE_FAILED
    assert lost.turns == 1 and lost.sampled_tokens > 0
    logged = sum(
        len(record.data["sampled"]) for record in read(tmp_path) if record.kind is Kind.TURN
    )
    everyone = [*result.episodes, *result.abandoned]
    assert logged == sum(episode.sampled_tokens for episode in everyone)


def test_what_keeps_failing_is_an_outcome_of_its_episode_alone(
    renderer: PolymathRenderer, tmp_path: Path
) -> None:
    result = counter_group(renderer, tmp_path, fails=lambda episode: episode.startswith("g0-2"))
    kinds = [episode.outcome.kind for episode in result.episodes]
    assert kinds.count(OutcomeKind.SCORED) == 3
    assert result.episodes[2].outcome.kind is OutcomeKind.INFRASTRUCTURE_FAILED
    assert result.episodes[2].outcome.reward is None
    assert len(result.episodes) == 4 and len(result.abandoned) == CONFIG.retries


@pytest.mark.parametrize(
    "verdict,why",
    [
        (invalid("the checker broke"), "verdict_invalid: the checker broke"),
        (timed_out("too slow"), "verdict_timeout: too slow"),
    ],
)
def test_an_unsound_verdict_is_invalid_and_not_played_again(
    renderer: PolymathRenderer, tmp_path: Path, verdict: Verdict, why: str
) -> None:
    result = counter_group(
        renderer, tmp_path, verify=lambda episode: verdict if episode == "g0-1" else ok(0.0)
    )
    outcome = result.episodes[1].outcome
    assert (outcome.kind, outcome.reward, outcome.why) == (OutcomeKind.INVALID, None, why)
    assert not result.abandoned


def test_a_verifier_service_that_dies_is_infrastructure(
    renderer: PolymathRenderer, tmp_path: Path
) -> None:
    def dies(episode: str) -> Verdict:
        raise ConnectionError("gone")

    result = counter_group(renderer, tmp_path, verify=dies, size=1)
    assert result.episodes[0].outcome.kind is OutcomeKind.INFRASTRUCTURE_FAILED
    assert result.episodes[0].outcome.why == "verifier: ConnectionError: gone"


def test_limits_are_the_smaller_of_domain_and_configuration(
    renderer: PolymathRenderer, tmp_path: Path
) -> None:
    domain = CounterDomain(limits=Limits(turns=2))
    result = counter_group(renderer, tmp_path / "a", domain=domain, size=1)
    assert (result.episodes[0].outcome.why, result.episodes[0].turns) == ("turns", 2)
    result = counter_group(renderer, tmp_path / "b", config=CONFIG.replace(turns=3), size=1)
    assert (result.episodes[0].outcome.why, result.episodes[0].turns) == ("turns", 3)


def test_a_run_store_that_fails_ends_the_group(renderer: PolymathRenderer) -> None:
    domain = CounterDomain()
    task = domain.sample(5, domain.spec.level(0))

    async def append(records: Any) -> None:
        raise RunStoreError("no space left")

    async def checked(episode: str, task: Task, artifact: Artifact) -> Verdict:
        return ok(1.0)

    async def main() -> None:
        worker = RolloutWorker(
            CONFIG, renderer, [ScriptedEngine(renderer, policies(domain, task))],
            None, checked, Journal(append, 5.0), lambda id: domain, lambda episode: episode,
        )  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(RunStoreError, match="no space left"):
            await worker.run_group(request("test/counter"))

    asyncio.run(main())


def test_rows_carry_loss_exactly_where_tokens_were_sampled(
    renderer: PolymathRenderer, tmp_path: Path
) -> None:
    result = counter_group(renderer, tmp_path)
    found = asyncio.run(_rows(result, [0.5, -1.0, 2.0, 0.0]))
    assert [row.episode for row in found] == [episode.id for episode in result.episodes]
    for row, summary, advantage in zip(found, result.episodes, [0.5, -1.0, 2.0, 0.0], strict=True):
        assert row.group == "g0" and row.loss_tokens == summary.sampled_tokens
        assert set(row.advantages[row.loss_mask]) == {advantage}
        assert not row.advantages[~row.loss_mask].any()


async def _rows(result: GroupResult, advantages: list[float]) -> Any:
    async def fetch(episode: Episode) -> Episode:
        return episode

    refs = [fetch(summary.ref) for summary in result.episodes]
    worker = RolloutWorker(CONFIG, None, [], *[None] * 5)  # type: ignore[arg-type]
    return await worker.rows(refs, advantages)
