"""From a batch's outcomes to advantages: who earned what, and what does not train.

Works on summaries (rewards, counts) alone; tokens stay where they are. Every episode of the batch is
either credited or dropped with a typed reason, so that the ledger can balance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymath.envs.types import DomainSpec
from polymath.rl.advantages.base import Advantage
from polymath.rl.collector import Batch
from polymath.rollout.types import Outcome, OutcomeKind
from polymath.rollout.worker import EpisodeSummary


@dataclass(frozen=True, slots=True)
class CreditedEpisode:
    """An episode that trains, with its advantage (the same for each of its tokens)."""

    episode: EpisodeSummary
    reward: float
    advantage: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """An episode that does not train, and why."""

    episode: EpisodeSummary
    reason: str


@dataclass(frozen=True, slots=True)
class Credited:
    """A batch after credit. ``rewards`` holds every scored episode's reward, trained or not."""

    trains: tuple[CreditedEpisode, ...]
    dropped: tuple[Dropped, ...]
    rewards: tuple[tuple[EpisodeSummary, float], ...]
    groups: int
    zero_spread_groups: int


class Credit:
    """Applies one advantage estimator over whole groups, by group id."""

    def __init__(
        self,
        advantages: Advantage,
        specs: Mapping[str, DomainSpec],
        *,
        truncated: str,
        staleness: int,
    ) -> None:
        self._advantages = advantages
        self._specs = specs
        self._truncated = truncated
        self._staleness = staleness

    def __call__(self, batch: Batch, step: int) -> Credited:
        """Credit for a batch that will train as the step after ``step``."""
        rewards: list[tuple[EpisodeSummary, float]] = []
        dropped: list[Dropped] = []
        zero_spread = 0
        trains: list[CreditedEpisode] = []
        for group in batch.groups:
            dropped += [Dropped(episode, _drop_reason(episode)) for episode in group.abandoned]
            scored = []
            for episode in group.episodes:
                reward = self._reward(episode)
                if reward is None:
                    dropped.append(Dropped(episode, _drop_reason(episode)))
                    continue
                rewards.append((episode, reward))
                # What sampled nothing has no version, and cannot be stale.
                if episode.sampled_tokens and step - episode.min_version > self._staleness:
                    dropped.append(Dropped(episode, "stale"))
                else:
                    scored.append((episode, reward))
            if len(scored) < 2:
                dropped += [Dropped(episode, "lone") for episode, _ in scored]
                continue
            values = self._advantages(
                np.array([reward for _, reward in scored], np.float64), [group.id] * len(scored)
            )
            if not values.any():
                zero_spread += 1
                dropped += [Dropped(episode, "zero_spread") for episode, _ in scored]
                continue
            trains += [
                CreditedEpisode(episode, reward, float(value))
                for (episode, reward), value in zip(scored, values, strict=True)
            ]
        return Credited(
            tuple(trains), tuple(dropped), tuple(rewards), len(batch.groups), zero_spread
        )

    def _reward(self, episode: EpisodeSummary) -> float | None:
        floor = self._specs[episode.domain].reward_range[0]
        return reward_of(episode.outcome, floor if self._truncated == "floor" else None)


def reward_of(outcome: Outcome, truncated: float | None) -> float | None:
    """The reward that an outcome counts with, ``truncated`` for a truncated one; None if it has none."""
    match outcome.kind:
        case OutcomeKind.SCORED:
            return outcome.reward
        case OutcomeKind.TRUNCATED:
            return truncated
        case OutcomeKind.INVALID | OutcomeKind.INFRASTRUCTURE_FAILED:
            return None


def _drop_reason(episode: EpisodeSummary) -> str:
    return str(episode.outcome.kind)


def rows_of_batch(workers: Sequence[Any], credited: Credited) -> list[Any]:
    """References to the rows of each group, made by the workers that hold the episodes."""
    by_group: dict[str, list[CreditedEpisode]] = {}
    for item in credited.trains:
        by_group.setdefault(item.episode.group, []).append(item)
    return [
        workers[index % len(workers)].rows.remote(
            [item.episode.ref for item in items], [item.advantage for item in items]
        )
        for index, items in enumerate(by_group.values())
    ]
