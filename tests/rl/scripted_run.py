"""Stand-ins for the actors around the controller, for tests of its own bookkeeping and of failure.

They hold no model and play no task: rewards are scripted, so that what the controller does with them
can be told exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polymath.envs.types import Effort
from polymath.rl.collector import Batch
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.groups import EpisodeSummary, GroupRequest, GroupResult
from polymath.rollout.types import Outcome, OutcomeKind

SAMPLING = SamplingSpec(max_tokens=16)


def scored(reward: float) -> Outcome:
    return Outcome(OutcomeKind.SCORED, reward)


def summary(
    id: str,
    group: str,
    outcome: Outcome,
    *,
    tokens: int = 10,
    version: int = 0,
    domain: str = "a/one",
) -> EpisodeSummary:
    return EpisodeSummary(
        id=id,
        group=group,
        domain=domain,
        level=0,
        seed=0,
        effort=Effort.LOW,
        outcome=outcome,
        components={},
        turns=1,
        sampled_tokens=tokens,
        prompt_tokens=5,
        cached_tokens=0,
        refused=0,
        min_version=version,
        mean_version=float(version),
        max_version=version,
        seconds=1.0,
        phases={},
        ref=f"ref-{id}",
    )


def request(id: str, size: int) -> GroupRequest:
    return GroupRequest(id, "a/one", 0, 0, Effort.LOW, size, SAMPLING)


def group(id: str, *outcomes: Outcome, version: int = 0, tokens: int = 10) -> GroupResult:
    episodes = tuple(
        summary(f"{id}-{i}", id, outcome, version=version, tokens=tokens)
        for i, outcome in enumerate(outcomes)
    )
    return GroupResult(request(id, len(outcomes)), episodes)


def batch(*groups: GroupResult) -> Batch:
    return Batch(groups, seconds=1.0, waited=0.5)


class _Remote:
    """``actor.method.remote(...)`` on an ordinary coroutine function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


@dataclass
class ScriptedWorker:
    """Plays every group with ``rewards``, or ``outcome`` alone, and remembers what it was asked for."""

    rewards: tuple[float, ...] = (1.0, 0.0)
    version: Callable[[], int] = lambda: 0
    asked: list[GroupRequest] = field(default_factory=list)
    hold: asyncio.Event | None = None
    dies: int = 0
    raises: Exception | None = None
    outcome: Outcome | None = None
    given_up: int = 0
    holds_from: int | None = None

    @property
    def run_group(self) -> _Remote:
        return _Remote(self._run_group)

    @property
    def rows(self) -> _Remote:
        return _Remote(lambda refs, advantages: list(zip(refs, advantages, strict=True)))

    async def _run_group(self, asked: GroupRequest) -> GroupResult:
        from ray.exceptions import RayActorError

        self.asked.append(asked)
        version = self.version()
        if self.raises is not None:
            raise self.raises
        if self.holds_from is not None and len(self.asked) > self.holds_from:
            self.hold = asyncio.Event()
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
        if self.dies:
            self.dies -= 1
            raise RayActorError()
        outcomes = (
            map(scored, self.rewards) if self.outcome is None else [self.outcome] * asked.size
        )
        return group(asked.id, *outcomes, version=version)
