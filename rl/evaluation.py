"""Held-out evaluation: the same real verifiers, on seeds that training never draws."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polymath.errors import PolymathError
from polymath.rl.collector import run_group
from polymath.rl.credit import reward_of
from polymath.rl.curriculum import HELD_OUT_STRIDE, Kind
from polymath.rl.tracking.records import Evaluation
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.worker import EpisodeSummary, GroupRequest


class EvaluationError(PolymathError):
    """An evaluation did not come to an end, or scored nothing."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Mean rewards by mode, domain and level; ``failed`` counts episodes without a sound verdict,
    which are left out of the means."""

    records: tuple[Evaluation, ...]
    failed: int


class Evaluator:
    """Plays one episode on each held-out seed of each (domain, level).

    ``truncated_rewards`` are what a truncated episode of each domain counts; None leaves it out.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        kinds: Sequence[Kind],
        *,
        seeds_per_level: int,
        sampling: SamplingSpec,
        greedy: bool,
        truncated_rewards: Mapping[str, float] | None,
        deadline: float,
    ) -> None:
        self._workers = list(workers)
        self._kinds = list(kinds)
        self._seeds_per_level = seeds_per_level
        self._modes = {"sampled": sampling}
        if greedy:
            self._modes["greedy"] = SamplingSpec(sampling.max_tokens, temperature=0.0)
        self._truncated_rewards = truncated_rewards
        self._deadline = deadline

    async def run(self, step: int, split: str) -> EvaluationResult:
        """Evaluate in every mode. ``split`` is ``before``, ``during`` or ``after``."""
        records: list[Evaluation] = []
        failed = 0
        if not self._seeds_per_level:
            return EvaluationResult((), 0)
        for mode, sampling in self._modes.items():
            episodes = await self._play(self._requests(mode, sampling))
            scored = self._records(step, split, mode, episodes)
            records += scored
            failed += len(episodes) - sum(record.n for record in scored)
        if not records:
            raise EvaluationError("no held-out episode got a sound verdict; see the run's logs")
        return EvaluationResult(tuple(records), failed)

    async def _play(self, requests: Sequence[GroupRequest]) -> list[EpisodeSummary]:
        """All episodes; the first failure ends the wait, and so does the deadline."""
        tasks = [
            asyncio.ensure_future(run_group(self._workers, index, request))
            for index, request in enumerate(requests)
        ]
        try:
            done, late = await asyncio.wait(
                tasks, timeout=self._deadline, return_when=asyncio.FIRST_EXCEPTION
            )
            results = {task: task.result() for task in done}
        finally:
            for task in tasks:
                task.cancel()
        if late:
            raise EvaluationError(
                f"{len(late)} of {len(tasks)} held-out episodes did not end within "
                f"deadline.batch={self._deadline:.0f} s"
            )
        return [episode for task in tasks for episode in results[task].episodes]

    def _requests(self, mode: str, sampling: SamplingSpec) -> list[GroupRequest]:
        by_level: dict[tuple[str, int], list[Kind]] = {}
        for kind in self._kinds:
            by_level.setdefault((kind.domain, kind.level), []).append(kind)
        return [
            GroupRequest(
                id=f"eval-{mode}-{domain}-{level}-{seed}",
                domain=domain,
                level=level,
                seed=seed * HELD_OUT_STRIDE,
                effort=variants[seed % len(variants)].effort,
                size=1,
                sampling=sampling,
                split="evaluation",
            )
            for seed in range(self._seeds_per_level)
            for (domain, level), variants in by_level.items()
        ]

    def _records(
        self, step: int, split: str, mode: str, episodes: Sequence[EpisodeSummary]
    ) -> list[Evaluation]:
        rewards: dict[tuple[str, int], list[float]] = {}
        for episode in episodes:
            if (reward := self._reward(episode)) is not None:
                rewards.setdefault((episode.domain, episode.level), []).append(reward)
        return [
            Evaluation(step, split, mode, domain, level, len(values), *_mean_and_stderr(values))
            for (domain, level), values in sorted(rewards.items())
        ]

    def _reward(self, episode: EpisodeSummary) -> float | None:
        floors = self._truncated_rewards
        return reward_of(episode.outcome, None if floors is None else floors[episode.domain])


def mean_over_domains(records: Sequence[Evaluation], mode: str) -> tuple[float, float]:
    """Mean reward and its standard error; every domain counts alike, whatever its number of levels."""
    by_domain: dict[str, list[Evaluation]] = {}
    for record in records:
        if record.mode == mode:
            by_domain.setdefault(record.domain, []).append(record)
    means, variances = [], []
    for own in by_domain.values():
        n = sum(record.n for record in own)
        means.append(sum(record.mean * record.n for record in own) / n)
        variances.append(sum((record.stderr * record.n / n) ** 2 for record in own))
    count = len(means)
    return sum(means) / count, math.sqrt(sum(variances)) / count


def _mean_and_stderr(values: list[float]) -> tuple[float, float]:
    n = len(values)
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    return mean, math.sqrt(variance / n)
