"""The rollout worker: plays groups of episodes, has them verified, and hands over summaries.

One episode's failure stays its own: infrastructure failures are tried again a few times, and what
still fails is an outcome, never a reward. Only a run store that cannot be written ends the group.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any

from polymath.envs.contract import Domain
from polymath.envs.sandbox.base import Sandbox, SandboxSpec
from polymath.envs.types import Artifact, Effort, Task
from polymath.rewards.verdict import Verdict
from polymath.rollout.agent_loop import Played, PlayLimits, Sampler, one_line, play
from polymath.rollout.groups import EpisodeSummary, GroupRequest, GroupResult, summarise
from polymath.rollout.journal import Journal
from polymath.rollout.lazy_sandbox import LazySandbox
from polymath.rollout.records import EpisodeKey, Kind, episode_data, turn_data
from polymath.rollout.renderer.base import Renderer
from polymath.rollout.rows import rows_of
from polymath.rollout.schema import RolloutConfig
from polymath.rollout.types import Episode, Outcome, OutcomeKind, Row

__all__ = ["EpisodeSummary", "GroupRequest", "GroupResult", "RolloutWorker"]

LendSandbox = Callable[[SandboxSpec, str, float], AbstractAsyncContextManager[Sandbox]]
"""Borrows a sandbox: (spec, owner, seconds to live)."""

Verify = Callable[[str, Task, Artifact], Awaitable[Verdict]]
"""Asks the verifier service: (episode, task, artifact)."""


class RolloutWorker:
    """Collaborators by constructor: engines, sandboxes, verifier, journal, domains.

    ``keep`` puts an episode where others can fetch it and returns the reference.
    """

    def __init__(
        self,
        config: RolloutConfig,
        renderer: Renderer,
        engines: Sequence[Sampler],
        lend: LendSandbox,
        verify: Verify,
        journal: Journal,
        domains: Callable[[str], Domain],
        keep: Callable[[Episode], Any],
    ) -> None:
        self._turns = config.turns
        self._episode_tokens = config.max_episode_tokens
        self._grace_seconds = config.grace_seconds
        self._lease_seconds = config.lease_seconds
        self._attempts = 1 + config.retries
        self._affinity = config.affinity
        self._room = asyncio.Semaphore(config.concurrency)
        self._renderer = renderer
        self._engines = list(engines)
        self._next_engine = itertools.count()
        self._lend = lend
        self._verify = verify
        self._journal = journal
        self._domains = domains
        self._keep = keep
        # Generators may be slow and may use global random state: one thread, off the event loop.
        self._generator = ThreadPoolExecutor(1, "generator")

    async def run_group(self, request: GroupRequest) -> GroupResult:
        """Play and verify a group. Raises ``RunStoreError``, ``UnknownDomain``, and what a domain's
        ``sample`` raises.
        """
        domain = self._domains(request.domain)
        level = domain.spec.level(request.level)
        loop = asyncio.get_running_loop()
        task = await loop.run_in_executor(self._generator, domain.sample, request.seed, level)
        played = await asyncio.gather(
            *(self._episode(request, task, domain, index) for index in range(request.size))
        )
        await self._journal.flush()
        return GroupResult(
            request,
            tuple(attempts[-1] for attempts in played),
            tuple(summary for attempts in played for summary in attempts[:-1]),
        )

    async def rows(self, refs: Sequence[Any], advantages: Sequence[float]) -> list[Row]:
        """The training rows of kept episodes, given one advantage for each."""
        episodes: list[Episode] = await asyncio.gather(*refs)
        return [
            row
            for episode, advantage in zip(episodes, advantages, strict=True)
            for row in rows_of(episode, advantage)
        ]

    async def _episode(
        self, request: GroupRequest, task: Task, domain: Domain, index: int
    ) -> list[EpisodeSummary]:
        """All attempts at one episode; the last one counts."""
        attempts: list[EpisodeSummary] = []
        digest = task.digest
        while len(attempts) < self._attempts:
            key = EpisodeKey(
                id=f"{request.id}-{index}" + (f".{len(attempts)}" if attempts else ""),
                group=request.id,
                domain=request.domain,
                level=request.level,
                seed=request.seed,
                effort=Effort(request.effort),
                task_digest=digest,
            )
            episode = await self._attempt(key, request, task, domain, len(attempts))
            attempts.append(summarise(episode, self._keep(episode)))
            if episode.outcome.kind is not OutcomeKind.INFRASTRUCTURE_FAILED:
                break
        return attempts

    async def _attempt(
        self, key: EpisodeKey, request: GroupRequest, task: Task, domain: Domain, attempt: int
    ) -> Episode:
        """One attempt: played, verified and journalled, whatever its outcome."""
        async with self._room:
            self._journal.add(Kind.OPENED, {**key.to_data(), "split": request.split})
            played = await self._isolated(self._play(key, request, task, domain, attempt))
        seconds = dict(played.seconds)
        outcome, verdict = played.outcome, None
        if outcome is None:
            outcome, verdict = await self._verified(key.id, task, played, seconds)
        episode = Episode(
            id=key.id,
            group=key.group,
            domain=key.domain,
            level=key.level,
            seed=key.seed,
            effort=key.effort,
            task_digest=key.task_digest,
            segments=played.segments,
            outcome=outcome,
            verdict=verdict,
            seconds=seconds,
        )
        self._journal.add(Kind.EPISODE, episode_data(episode, played.artifact))
        return episode

    async def _play(
        self, key: EpisodeKey, request: GroupRequest, task: Task, domain: Domain, attempt: int
    ) -> Played:
        spec = domain.spec
        limits = PlayLimits(
            turns=min(self._turns, spec.limits.turns),
            episode_tokens=self._episode_tokens,
            seconds=spec.limits.episode_seconds,
            grace_seconds=self._grace_seconds,
        )
        sandbox_spec = SandboxSpec(image=spec.image, limits=spec.limits)
        async with LazySandbox(
            lambda: self._lend(sandbox_spec, f"episode/{key.id}", self._lease_seconds)
        ) as sandbox:
            return await play(
                key.id,
                task,
                domain,
                key.effort,
                self._engine(key.group, attempt),
                self._renderer,
                sandbox,
                request.sampling,
                limits,
                lambda index, turn: self._journal.add(Kind.TURN, turn_data(key.id, index, turn)),
            )

    async def _isolated(self, playing: Awaitable[Played]) -> Played:
        """What was played; an error of this worker is an outcome of this one episode."""
        started = time.perf_counter()
        try:
            return await playing
        except Exception as error:
            outcome = Outcome(OutcomeKind.INFRASTRUCTURE_FAILED, why=f"worker: {one_line(error)}")
            return Played((), None, outcome, {"total": time.perf_counter() - started})

    async def _verified(
        self, episode: str, task: Task, played: Played, seconds: dict[str, float]
    ) -> tuple[Outcome, Verdict | None]:
        """The outcome by the verdict on what was left; a verifier service that fails is
        infrastructure.
        """
        assert played.artifact is not None
        started = time.perf_counter()
        try:
            verdict = await self._verify(episode, task, played.artifact)
        except Exception as error:
            failed = OutcomeKind.INFRASTRUCTURE_FAILED
            return Outcome(failed, why=f"verifier: {one_line(error)}"), None
        finally:
            seconds["verifier"] = time.perf_counter() - started
            seconds["total"] += seconds["verifier"]
        if verdict.trains:
            return Outcome(OutcomeKind.SCORED, verdict.reward), verdict
        why = f"verdict_{verdict.status}: {verdict.evidence.get('why', 'no reason given')}"
        return Outcome(OutcomeKind.INVALID, why=why), verdict

    def _engine(self, group: str, attempt: int) -> Sampler:
        """The engine of an attempt: a group's own, or the next in turn; a retry takes another."""
        if self._affinity:
            return self._engines[(zlib.crc32(group.encode()) + attempt) % len(self._engines)]
        return self._engines[next(self._next_engine) % len(self._engines)]
