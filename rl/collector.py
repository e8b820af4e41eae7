"""Collects batches of complete, scored groups from the rollout workers within the staleness bound.

One mechanism serves the on-policy and the overlapped modes: with bound 0 a batch is started only when
the weights that the last one led to are published; with bound k, k further batches are under way while
the learner works. The controller asks for the next batch only after it published, so a batch that was
started k batches ago is at most k steps old when it trains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from polymath.errors import PolymathError
from polymath.rl.curriculum import Curriculum, Draw
from polymath.rl.remote import typed
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.worker import GroupRequest, GroupResult

_GROUP_ATTEMPTS = 3
"""A group whose worker dies is played again by another; after this many deaths the run stops."""


class CollectorError(PolymathError):
    """A batch could not be collected."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete groups, in the order of their draws. ``seconds`` is how long the batch was under way,
    ``waited`` how long the controller waited for it."""

    groups: tuple[GroupResult, ...]
    seconds: float
    waited: float

    @property
    def sampled_tokens(self) -> int:
        """All tokens that the policy sampled for it."""
        return sum(episode.sampled_tokens for group in self.groups for episode in group.episodes)


@dataclass
class _UnderWay:
    draws: list[Draw]
    task: asyncio.Task[list[GroupResult]]
    started: float


class Collector:
    """Keeps at most ``staleness`` batches under way beside the one that trains."""

    def __init__(
        self,
        workers: Sequence[Any],
        curriculum: Curriculum,
        *,
        groups_per_step: int,
        group_size: int,
        staleness: int,
        sampling: SamplingSpec,
        deadline: float,
    ) -> None:
        self._workers = list(workers)
        self._curriculum = curriculum
        self._groups_per_step = groups_per_step
        self._group_size = group_size
        self._staleness = staleness
        self._sampling = sampling
        self._deadline = deadline
        self._under_way: list[_UnderWay] = []
        self._again: list[list[Draw]] = []

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches without end, oldest first."""
        while True:
            if not self._under_way:
                self._start()
            oldest = self._under_way[0]
            waiting_since = time.monotonic()
            groups = await self._finish(oldest)
            self._under_way.pop(0)
            while len(self._under_way) < self._staleness:
                self._start()
            now = time.monotonic()
            yield Batch(tuple(groups), now - oldest.started, now - waiting_since)

    @property
    def state(self) -> list[list[dict[str, Any]]]:
        """The draws whose batches have not been handed over; ``restore`` plays them again."""
        pending = [batch.draws for batch in self._under_way] + self._again
        return [[draw.to_json() for draw in draws] for draws in pending]

    def restore(self, state: list[list[dict[str, Any]]]) -> None:
        """Go on from a checkpoint's state. Draws that the mixture no longer has are left out."""
        known = set(self._curriculum.kinds)
        batches = [[Draw.from_json(draw) for draw in draws] for draws in state]
        kept = [[draw for draw in draws if draw.kind in known] for draws in batches]
        self._again = [draws for draws in kept if draws]

    async def close(self) -> None:
        """Give up what is under way; ``state`` keeps its draws."""
        given_up, self._under_way = self._under_way, []
        self._again = [batch.draws for batch in given_up] + self._again
        for batch in given_up:
            batch.task.cancel()
        await asyncio.gather(*(batch.task for batch in given_up), return_exceptions=True)

    def _start(self) -> None:
        draws = (
            self._again.pop(0)
            if self._again
            else [self._curriculum.draw() for _ in range(self._groups_per_step)]
        )
        task = asyncio.create_task(self._play(draws))
        self._under_way.append(_UnderWay(draws, task, time.monotonic()))

    async def _finish(self, batch: _UnderWay) -> list[GroupResult]:
        done, _ = await asyncio.wait({batch.task}, timeout=self._deadline)
        if not done:
            raise CollectorError(
                f"the rollout workers did not finish a batch of {len(batch.draws)} groups within "
                f"deadline.batch={self._deadline:.0f} s; see the run's logs, or raise it"
            )
        return batch.task.result()

    async def _play(self, draws: list[Draw]) -> list[GroupResult]:
        return list(await asyncio.gather(*(self._play_group(draw) for draw in draws)))

    async def _play_group(self, draw: Draw) -> GroupResult:
        request = GroupRequest(
            id=f"g{draw.index}",
            domain=draw.domain,
            level=draw.level,
            seed=draw.seed,
            effort=draw.effort,
            size=self._group_size,
            sampling=self._sampling,
            split="train",
        )
        return await run_group(self._workers, draw.index, request)


async def run_group(workers: Sequence[Any], index: int, request: GroupRequest) -> GroupResult:
    """Have one of the workers play a group; a worker that dies is replaced by the next in turn.

    Raises the worker's own typed error, or ``CollectorError``.
    """
    from ray.exceptions import RayActorError, RayTaskError

    for attempt in range(_GROUP_ATTEMPTS):
        worker = workers[(index + attempt) % len(workers)]
        try:
            result: GroupResult = await worker.run_group.remote(request)
            return result
        except RayTaskError as error:
            what = f"group {request.id} ({request.domain}) failed"
            raise typed(what, error, CollectorError) from error
        except RayActorError as error:
            died = error
    what = f"group {request.id} ({request.domain}) ended its rollout worker {_GROUP_ATTEMPTS} times"
    raise typed(what, died, CollectorError) from died
