"""The controller: the story of one training step, told once.

It owns the curriculum, the ledger, the step clock and the tracker. It handles ids, lengths, counts and
rewards; rows travel by reference, from the workers that played the episodes to the learner.

Components, none of which knows the controller:
    collector    batches of complete, scored groups within the staleness bound
    credit       advantages, and a typed reason for each episode that does not train
    learner      one optimizer step, or a typed error before anything moved
    ledger       every sampled token: consumed by a step, dropped for a reason, or pending
    sync         weights to every engine, and every engine's proof
    curriculum   what comes next
    evaluator    held-out reward before and after
    checkpoints  what a later run goes on from
    tracker      the only writer of metrics, on the only clock
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from polymath.errors import PolymathError
from polymath.rl.checkpoints import Checkpoints
from polymath.rl.collector import Batch, Collector
from polymath.rl.credit import Credit, Credited, rows_of_batch
from polymath.rl.curriculum import Curriculum
from polymath.rl.evaluation import Evaluator
from polymath.rl.learner.base import Learner, StepResult
from polymath.rl.ledger import Ledger
from polymath.rl.observer import Observer
from polymath.rl.phases import PhaseClock
from polymath.rl.weight_sync import WeightSync
from polymath.rollout.types import OutcomeKind

T = TypeVar("T")

_BATCHES_WITHOUT_SIGNAL = 20
"""After this many batches in a row in which every group scored alike, nothing can be learnt."""


_FAILED = (OutcomeKind.INVALID, OutcomeKind.INFRASTRUCTURE_FAILED)


class NoSignalError(PolymathError):
    """Batch after batch has no spread of rewards in any group."""


class NoVerdictError(PolymathError):
    """Not one episode of a batch came to a sound end: something that the run needs is broken."""


@dataclass(frozen=True, slots=True)
class Components:
    """All that the controller conducts."""

    collector: Collector
    credit: Credit
    learner: Learner
    ledger: Ledger
    sync: WeightSync
    curriculum: Curriculum
    evaluator: Evaluator
    checkpoints: Checkpoints
    observer: Observer
    workers: Sequence[Any]


class Controller:
    """Runs steps until ``steps`` are done or ``interrupt`` was called."""

    def __init__(self, parts: Components, *, steps: int, evaluate_every: int) -> None:
        self._parts = parts
        self._steps = steps
        self._evaluate_every = evaluate_every
        self._interrupted = asyncio.Event()
        self._clock = PhaseClock(parts.observer.phase)
        self.step = 0

    def interrupt(self) -> None:
        """Finish the optimizer step that is under way, save, and return from ``run``."""
        self._interrupted.set()

    async def run(self) -> bool:
        """Train; True when all steps and the evaluation after them are done, False when interrupted."""
        try:
            await self._begin()
            await self._loop()
            return await self._finish()
        finally:
            await self._parts.collector.close()  # whatever happened, nothing plays on

    async def _loop(self) -> None:
        without_signal = 0
        while self.step < self._steps and not self._interrupted.is_set():
            batch = await self._next_batch()
            if batch is None:
                break
            with self._clock.phase("credit"):
                credited = self._credit(batch)
            if credited.trains:
                await self._train(batch, credited)
                without_signal = 0
                continue
            without_signal += 1
            self._parts.observer.warn(
                f"a batch after step {self.step} had no spread and trained nothing"
            )
            if without_signal >= _BATCHES_WITHOUT_SIGNAL:
                raise NoSignalError(
                    f"{without_signal} batches in a row had no group with different rewards; the tasks are "
                    "too easy or too hard for this policy: change mixture.domains or its levels"
                )

    async def _train(self, batch: Batch, credited: Credited) -> None:
        parts, clock = self._parts, self._clock
        with clock.phase("learner"):
            result = await self._update(credited)
        with clock.phase("sync"):
            report = await parts.sync.publish(self.step)
        last = self.step >= self._steps  # which is evaluated after the run
        if self._evaluate_every and self.step % self._evaluate_every == 0 and not last:
            await self._evaluate("during")
        await parts.observer.step(self.step, batch, credited, result, report, clock)
        if parts.checkpoints.due(self.step):  # last, so that a saved step is a logged one
            await self._save()

    async def _update(self, credited: Credited) -> StepResult:
        """One optimizer step on all rows. What the learner says it trained must use up, to the token,
        what the workers say was sampled."""
        parts = self._parts
        result: StepResult = await parts.learner.step(rows_of_batch(parts.workers, credited))
        self.step = result.step
        parts.ledger.consume(result.trained, self.step)
        parts.ledger.balance(held={})
        return result

    def _credit(self, batch: Batch) -> Credited:
        outcomes = [episode.outcome for group in batch.groups for episode in group.episodes]
        if all(outcome.kind in _FAILED for outcome in outcomes):
            why, _ = Counter(outcome.why for outcome in outcomes).most_common(1)[0]
            raise NoVerdictError(
                f"all {len(outcomes)} episodes of a batch failed, most with: {why}"
            )
        credited = self._parts.credit(batch, self.step)
        self._enter(credited)
        self._parts.curriculum.observe(
            (episode.domain, episode.level, reward) for episode, reward in credited.rewards
        )
        return credited

    def _enter(self, credited: Credited) -> None:
        """Every token of the batch enters the ledger; what does not train leaves with its reason."""
        ledger = self._parts.ledger
        for item in credited.trains:
            ledger.sample(item.episode.id, item.episode.sampled_tokens)
        for dropped in credited.dropped:
            ledger.sample(dropped.episode.id, dropped.episode.sampled_tokens)
            ledger.drop(dropped.episode.id, dropped.reason)
        ledger.balance({item.episode.id: item.episode.sampled_tokens for item in credited.trains})

    async def _next_batch(self) -> Batch | None:
        """The next batch, or None when interrupted first."""
        with self._clock.phase("rollout_wait"):
            return await self._unless_interrupted(anext(self._batches))

    async def _unless_interrupted(self, work: Awaitable[T]) -> T | None:
        """The result of something that may be given up, or None when it was."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            # What is done already is not thrown away.
            return task.result() if task.done() else None
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.wait({task})  # it gives back what it holds before anything else goes on

    async def _begin(self) -> None:
        parts = self._parts
        self._batches = parts.collector.batches()
        newest = parts.checkpoints.newest()
        if newest is not None:
            state = await parts.checkpoints.load(newest)
            self.step = state["step"]
            parts.curriculum.restore(state["curriculum"])
            parts.ledger.restore(state["ledger"])
            parts.collector.restore(state["collector"])
        await parts.sync.publish(self.step)
        if self.step == 0:
            await self._evaluate("before")

    async def _finish(self) -> bool:
        await self._parts.collector.close()
        if self.step:  # before the first step there is nothing to go on from
            await self._save()
        return self.step >= self._steps and await self._evaluate("after")

    async def _evaluate(self, split: str) -> bool:
        """Evaluate and log it; False when interrupted first."""
        if self._interrupted.is_set():
            return False
        with self._clock.phase("evaluation"):
            result = await self._unless_interrupted(self._parts.evaluator.run(self.step, split))
        if result is None:
            return False
        self._parts.observer.evaluated(self.step, split, result)
        return True

    async def _save(self) -> None:
        parts = self._parts
        state = {
            "curriculum": parts.curriculum.state,
            "ledger": parts.ledger.to_json(),
            "collector": parts.collector.state,
        }
        with self._clock.phase("checkpoint"):
            await parts.checkpoints.save(self.step, state)
