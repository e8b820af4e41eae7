"""What travels between the controller and the rollout workers: requests and small summaries.

An episode's tokens stay in the object store; the controller sees ids, counts and outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymath.envs.types import Effort
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.types import Episode, Outcome


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Play ``size`` episodes of one (task, effort). ``split`` says what for: ``train``, ..."""

    id: str
    domain: str
    level: int
    seed: int
    effort: Effort
    size: int
    sampling: SamplingSpec
    split: str = "train"


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode without its tokens; ``ref`` refers to the whole ``Episode``.

    Versions are those of the sampled tokens (-1 when there is none). ``refused`` counts the calls
    that were malformed or did not fit a tool. ``seconds`` is the whole time, ``phases`` its parts.
    """

    id: str
    group: str
    domain: str
    level: int
    seed: int
    effort: Effort
    outcome: Outcome
    components: Mapping[str, float]
    turns: int
    sampled_tokens: int
    prompt_tokens: int
    cached_tokens: int
    refused: int
    min_version: int
    mean_version: float
    max_version: int
    seconds: float
    phases: Mapping[str, float]
    ref: Any

    @property
    def family(self) -> str:
        """The domain's family."""
        return self.domain.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A played group: exactly ``request.size`` episodes.

    ``abandoned`` are attempts that an infrastructure failure ended and a retry replaced; their
    tokens were sampled too and must leave the ledger with a reason.
    """

    request: GroupRequest
    episodes: tuple[EpisodeSummary, ...]
    abandoned: tuple[EpisodeSummary, ...] = ()

    @property
    def id(self) -> str:
        """The group's id."""
        return self.request.id


def summarise(episode: Episode, ref: Any) -> EpisodeSummary:
    """The summary of an episode that ``ref`` refers to."""
    turns = [turn for segment in episode.segments for turn in segment.turns]
    versions = np.concatenate([turn.versions for turn in turns]) if turns else np.array([-1])
    refused = sum(
        1
        for turn in turns
        for event in turn.events.values()
        if isinstance(event, Mapping) and "refused" in event
    )
    return EpisodeSummary(
        id=episode.id,
        group=episode.group,
        domain=episode.domain,
        level=episode.level,
        seed=episode.seed,
        effort=episode.effort,
        outcome=episode.outcome,
        components=dict(episode.verdict.components) if episode.verdict else {},
        turns=len(turns),
        sampled_tokens=episode.sampled_tokens,
        prompt_tokens=sum(len(turn.prompt) for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        refused=refused,
        min_version=int(versions.min()),
        mean_version=float(versions.mean()),
        max_version=int(versions.max()),
        seconds=episode.seconds.get("total", 0.0),
        phases={name: value for name, value in episode.seconds.items() if name != "total"},
        ref=ref,
    )
