"""Held-out evaluation: the same real verifiers, on seeds that training never draws.

Records go to ``evaluations.jsonl`` in the run's folder: one line per domain and level with
{step, split, mode, domain, level, n, mean, stderr, failed}.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polymath.errors import PolymathError
from polymath.rl.collector import run_group
from polymath.rl.curriculum import HELD_OUT_SEEDS, Kind
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.types import OutcomeKind
from polymath.rollout.worker import EpisodeSummary, GroupRequest

EVALUATIONS_FILE = "evaluations.jsonl"


class EvaluationError(PolymathError):
    """An evaluation did not come to an end, or scored nothing."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Mean reward of ``n`` scored held-out episodes of one domain and level.

    ``failed`` counts episodes without a sound verdict; they are left out of the mean.
    """

    step: int
    split: str
    mode: str
    domain: str
    level: int
    n: int
    mean: float
    stderr: float
    failed: int


class Evaluator:
    """Plays one episode on each held-out seed of each (domain, level)."""

    def __init__(
        self,
        workers: Sequence[Any],
        kinds: Sequence[Kind],
        folder: Path,
        *,
        seeds_per_level: int,
        sampling: SamplingSpec,
        greedy: bool,
        truncated_reward: float | None,
        deadline: float,
    ) -> None:
        self._workers = list(workers)
        self._kinds = list(kinds)
        self._file = folder / EVALUATIONS_FILE
        self._seeds_per_level = seeds_per_level
        self._modes = {"sampled": sampling}
        if greedy:
            self._modes["greedy"] = SamplingSpec(sampling.max_tokens, temperature=0.0)
        self._truncated_reward = truncated_reward
        self._deadline = deadline

    async def run(self, step: int, split: str) -> list[EvaluationRecord]:
        """Evaluate in every mode, append the records to the file and return them."""
        records = []
        for mode, sampling in self._modes.items():
            requests = self._requests(mode, sampling)
            tasks = [
                asyncio.ensure_future(run_group(self._workers, index, request))
                for index, request in enumerate(requests)
            ]
            done, late = await asyncio.wait(tasks, timeout=self._deadline)
            if late:
                for task in late:
                    task.cancel()
                raise EvaluationError(
                    f"{len(late)} of {len(tasks)} held-out episodes did not end within "
                    f"deadline.batch={self._deadline:.0f} s"
                )
            episodes = [episode for task in tasks for episode in task.result().episodes]
            records += self._records(step, split, mode, episodes)
        with self._file.open("a") as file:
            file.writelines(json.dumps(asdict(record)) + "\n" for record in records)
        return records

    def _requests(self, mode: str, sampling: SamplingSpec) -> list[GroupRequest]:
        by_level: dict[tuple[str, int], list[Kind]] = {}
        for kind in self._kinds:
            by_level.setdefault((kind.domain, kind.level), []).append(kind)
        return [
            GroupRequest(
                id=f"eval-{mode}-{domain}-{level}-{seed}",
                domain=domain,
                level=level,
                seed=_held_out_seed(seed),
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
    ) -> list[EvaluationRecord]:
        rewards: dict[tuple[str, int], list[float | None]] = {}
        for episode in episodes:
            rewards.setdefault((episode.domain, episode.level), []).append(self._reward(episode))
        return [
            _record(step, split, mode, domain, level, values)
            for (domain, level), values in sorted(rewards.items())
        ]

    def _reward(self, episode: EpisodeSummary) -> float | None:
        match episode.outcome.kind:
            case OutcomeKind.SCORED:
                return episode.outcome.reward
            case OutcomeKind.TRUNCATED:
                return self._truncated_reward
            case OutcomeKind.INVALID | OutcomeKind.INFRASTRUCTURE_FAILED:
                return None


def mean_reward(records: Sequence[EvaluationRecord], mode: str) -> float:
    """Mean over domains of the mean over their episodes, so that every domain counts alike."""
    by_domain: dict[str, list[tuple[float, int]]] = {}
    for record in records:
        if record.mode == mode and record.n:
            by_domain.setdefault(record.domain, []).append((record.mean, record.n))
    if not by_domain:
        raise EvaluationError(f"no held-out episode was scored in mode {mode}; see the run's logs")
    means = [sum(m * n for m, n in parts) / sum(n for _, n in parts) for parts in by_domain.values()]
    return sum(means) / len(means)


def _record(
    step: int, split: str, mode: str, domain: str, level: int, values: list[float | None]
) -> EvaluationRecord:
    scored = [value for value in values if value is not None]
    n = len(scored)
    mean = sum(scored) / n if n else 0.0
    variance = sum((value - mean) ** 2 for value in scored) / (n - 1) if n > 1 else 0.0
    stderr = math.sqrt(variance / n) if n else 0.0
    return EvaluationRecord(step, split, mode, domain, level, n, mean, stderr, len(values) - n)


def _held_out_seed(index: int) -> int:
    seed = index * 7919
    if seed >= HELD_OUT_SEEDS:
        raise EvaluationError(
            f"evaluation.seeds_per_level is too large: at most {HELD_OUT_SEEDS // 7919} held-out seeds"
        )
    return seed
