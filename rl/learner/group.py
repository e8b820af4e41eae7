"""The driver's side of the learner: plans from lengths, calls all ranks at once, waits with a
deadline.

Every wait names the rank it waits for. A rank that dies ends the wait within seconds; the group is
broken from then on, and a new one goes on from the last saved state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from polymath.errors import PolymathError
from polymath.model.config import ModelConfig
from polymath.rl.learner.actor import FsdpActor, RowPlace
from polymath.rl.learner.base import LearnerError, NonFiniteError, StateError, StepResult
from polymath.rl.learner.fsdp import LOOPBACK, StepWork
from polymath.rl.learner.schema import LearnerConfig
from polymath.rl.learner.shards import ShardFile, write_manifest
from polymath.rl.learner.spec import rank_spec
from polymath.rl.losses.base import Denominators
from polymath.rl.losses.schema import AlgorithmConfig
from polymath.rl.packing import RowSize, plan, sequence_tokens
from polymath.rollout.engine.base import WeightUpdate
from polymath.rollout.types import Floats, Row, Tokens

_BLAME_SECONDS = 2.0
"""When a rank dies the others fail on their connection to it, perhaps first; wait for the culprit.
"""
_GOODBYE_SECONDS = 5.0
_THREADING = {"GOMP_SPINCOUNT": "20000"}
"""Threads that wait for each other spin for some microseconds, then sleep. The learner shares its cores
with engines and sandboxes: spinning on as by default made a step ten times as long there, and never
spinning (OMP_WAIT_POLICY=PASSIVE) twice as long everywhere."""

PerRank = Callable[[int], tuple[Any, ...]]


class LearnerGroup:
    """A learner of one or more FSDP ranks in Ray actors. ``temperature`` is the sampling one: it is
    part of the behaviour distribution, so the learner's log-probabilities are taken at it too.
    """

    def __init__(
        self,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        model: ModelConfig,
        *,
        temperature: float = 1.0,
    ) -> None:
        self._spec = rank_spec(config, algorithm, model, temperature)
        self._ranks: list[Any] = []
        self._placement: Any = None
        self._broken = ""
        self._steps = 0
        self.process_ids: tuple[int, ...] = ()

    async def start(self) -> None:
        """Hold the model on all ranks. Raises ``LearnerError``."""
        deadline = self._spec.start_seconds
        await self._create(deadline)
        nodes = await self._all("node", lambda rank: (), deadline, "find their nodes")
        self.process_ids = tuple(process_id for _, _, process_id in nodes)
        one_node = len({node for node, _, _ in nodes}) == 1
        address = LOOPBACK if one_node else nodes[0][1]
        port = await self._one(0, "host", (address,), deadline, "open the meeting point")
        await self._all("start", lambda rank: (address, port), deadline, "hold the model")

    async def step(self, rows: Sequence[Row] | Sequence[Any]) -> StepResult:
        """One optimizer step over all rows: given as they are, or as Ray references to lists of
        them.

        Raises ``NonFiniteError`` before anything moves, ``PackingError`` for a row that is too
        long, and ``LearnerError`` when a rank fails or is late.
        """
        deadline = self._spec.step_seconds
        sources, sizes, places = await self._survey(rows)
        counts = sequence_tokens(sizes)
        if not counts:
            raise LearnerError("a step needs at least one token that carries loss")
        plans = plan(sizes, self._spec.ranks, self._spec.budget)
        trained = [size for size in sizes if size.loss_tokens]
        denominators = Denominators(sum(counts.values()), len(counts))
        context = sum(size.tokens for size in trained)
        work = [StepWork(own, counts, denominators, context) for own in plans]
        results = await self._all(
            "step_by_reference", lambda rank: (work[rank], sources, places), deadline, "make a step"
        )
        self._steps, metrics = results[0]
        return StepResult(self._steps, counts, metrics)

    async def logprobs(self, documents: Sequence[Tokens], temperature: float = 1.0) -> list[Floats]:
        """For each document [T] the log-probability of every token given those before it, [T]; that
        of the first is 0.
        """
        rows = [_document_row(i, document) for i, document in enumerate(documents)]
        sources, sizes, places = await self._survey(rows)
        plans = plan(sizes, self._spec.ranks, self._spec.budget)
        results = await self._all(
            "logprobs_by_reference",
            lambda rank: (plans[rank], sources, places, temperature),
            self._spec.step_seconds,
            "compute log-probabilities",
        )
        found = {row: values for part in results for row, values in part.items()}
        none = np.zeros(0, np.float32)
        return [
            np.concatenate([np.zeros(min(1, len(document)), np.float32), found.get(i, none)])
            for i, document in enumerate(documents)
        ]

    async def publish(self, version: int, folder: str) -> WeightUpdate:
        """Write the current weights as one safetensors file into ``folder``."""
        path = str(Path(folder) / f"weights-{version:06d}.safetensors")
        digests = await self._all(
            "publish", lambda rank: (path,), self._spec.storage_seconds, "publish weights"
        )
        return WeightUpdate(version, path, digests[0])

    async def export(self, folder: str) -> None:
        """Write a checkpoint folder that ``model.path`` can name."""
        await self._all(
            "export", lambda rank: (folder,), self._spec.storage_seconds, "export weights"
        )

    async def save(self, folder: str) -> None:
        """Write weights, optimizer, random state and step; complete or not at all.

        Raises ``StateError`` if the folder holds saved state already or cannot be written.
        """
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise StateError(f"learner state {folder}: the folder is not empty")
        files: list[ShardFile] = await self._all(
            "save", lambda rank: (folder,), self._spec.storage_seconds, "save their state"
        )
        write_manifest(target, self._steps, files)

    async def load(self, folder: str) -> int:
        """Go on from saved state, also of another number of ranks; returns its step.

        Raises ``StateError`` for state that is missing, damaged, or of another model or optimizer.
        """
        steps = await self._all(
            "load", lambda rank: (folder,), self._spec.storage_seconds, "load their state"
        )
        self._steps = int(steps[0])
        return self._steps

    async def close(self) -> None:
        """Leave no process behind. Safe to call twice."""
        ranks, self._ranks = self._ranks, []
        if ranks and not self._broken:
            goodbyes = [asyncio.wrap_future(rank.close.remote().future()) for rank in ranks]
            await asyncio.wait(goodbyes, timeout=_GOODBYE_SECONDS)
        for rank in ranks:
            ray.kill(rank)
        if self._placement is not None:
            ray.util.remove_placement_group(self._placement)
            self._placement = None

    async def _create(self, deadline: float) -> None:
        spec = self._spec
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "runtime_env": {"env_vars": {**_THREADING, "OMP_NUM_THREADS": str(spec.threads)}},
        }
        if spec.device == "cuda":
            await self._place(deadline)
            options["num_gpus"] = 1
        actor = ray.remote(FsdpActor)
        for rank in range(spec.ranks):
            if self._placement is not None:
                options["scheduling_strategy"] = (
                    ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                        self._placement, placement_group_bundle_index=rank
                    )
                )
            self._ranks.append(actor.options(**options).remote(spec, rank))

    async def _place(self, deadline: float) -> None:
        """Reserve one GPU per rank, as close together as the cluster allows."""
        self._placement = ray.util.placement_group([{"GPU": 1}] * self._spec.ranks, "PACK")
        ready = asyncio.wrap_future(self._placement.ready().future())
        done, _ = await asyncio.wait([ready], timeout=deadline)
        if not done:
            raise LearnerError(
                f"the cluster did not offer {self._spec.ranks} GPUs for the learner within "
                f"{deadline:.0f} s; lower learner.workers or free GPUs"
            )

    async def _survey(
        self, rows: Sequence[Any]
    ) -> tuple[list[Any], list[RowSize], dict[int, RowPlace]]:
        """References to the rows, their sizes, and where each lies."""
        if rows and isinstance(rows[0], Row):
            sources = [ray.put(list(rows))]
            lists = [[RowSize.of(row) for row in rows]]
        else:
            sources = list(rows)
            lists = await self._one(
                0, "sizes", (sources,), self._spec.step_seconds, "look at the rows"
            )
        places = [RowPlace(s, i) for s, sizes in enumerate(lists) for i in range(len(sizes))]
        return sources, [size for sizes in lists for size in sizes], dict(enumerate(places))

    async def _one(
        self, rank: int, method: str, arguments: tuple[Any, ...], deadline: float, what: str
    ) -> Any:
        return (await self._call([rank], method, lambda _: arguments, deadline, what))[0]

    async def _all(self, method: str, arguments: PerRank, deadline: float, what: str) -> list[Any]:
        return await self._call(range(len(self._ranks)), method, arguments, deadline, what)

    async def _call(
        self,
        ranks: Sequence[int],
        method: str,
        arguments: PerRank,
        deadline: float,
        what: str,
    ) -> list[Any]:
        """Call a method on ranks at once. The first failure, or the deadline, ends the wait."""
        if self._broken or not self._ranks:
            raise LearnerError(f"the learner cannot {what}: {self._broken or 'it is not running'}")
        calls = {
            asyncio.wrap_future(
                getattr(self._ranks[rank], method).remote(*arguments(rank)).future()
            ): rank
            for rank in ranks
        }
        done, late = await asyncio.wait(
            calls, timeout=deadline, return_when=asyncio.FIRST_EXCEPTION
        )
        failed = [call for call in done if call.exception() is not None]
        if failed and late:
            await asyncio.wait(late, timeout=_BLAME_SECONDS)
            failed = [call for call in calls if call.done() and call.exception() is not None]
        if failed:
            raise self._failure({calls[call]: call.exception() for call in failed}, what)
        if late:
            names = ", ".join(str(calls[call]) for call in late)
            self._broken = f"learner rank {names} did not {what} within {deadline:.0f} s"
            raise LearnerError(self._broken)
        return [call.result() for call in calls]

    def _failure(self, errors: dict[int, BaseException | None], what: str) -> PolymathError:
        """The error to raise: a rank's own typed one, else a death, else the first."""
        for error in errors.values():
            cause = getattr(error, "cause", error)
            if isinstance(cause, NonFiniteError | StateError):
                return cause
        dead = {r: e for r, e in errors.items() if isinstance(e, ray.exceptions.RayActorError)}
        rank, error = next(iter((dead or errors).items()))
        verb = "died" if dead else "failed"
        cause = getattr(error, "cause", None) or error
        first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        self._broken = f"learner rank {rank} {verb} and did not {what}: {first}"
        return LearnerError(self._broken)


def _document_row(index: int, tokens: Tokens) -> Row:
    """A row whose every token but the first is scored."""
    count = len(tokens)
    zeros = np.zeros(count, np.float32)
    return Row(
        episode=f"document-{index}",
        group="",
        tokens=np.asarray(tokens, np.int32),
        loss_mask=np.arange(count) > 0,
        logprobs=zeros,
        advantages=zeros,
        versions=np.zeros(count, np.int32),
    )
