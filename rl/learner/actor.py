"""A rank as a Ray actor: it fetches its own rows from the object store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from polymath.rl.learner.base import LearnerError
from polymath.rl.learner.fsdp import FsdpRank, StepWork
from polymath.rl.packing import RankPlan, RowSize
from polymath.rollout.types import Floats, Row


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row lies: in which of the lists that came by reference, and where in it."""

    source: int
    index: int


class FsdpActor(FsdpRank):
    """``sources`` are references to lists of rows; ``places`` say where each planned row lies."""

    def node(self) -> tuple[str, str, int]:
        """The id and address of the node that this rank lives on, and the rank's process id."""
        context = ray.get_runtime_context()
        return context.get_node_id(), ray.util.get_node_ip_address(), os.getpid()

    def sizes(self, sources: Sequence[Any]) -> list[list[RowSize]]:
        """The sizes of all rows, list by list."""
        return [[RowSize.of(row) for row in rows] for rows in self._fetch(sources)]

    def step_by_reference(
        self, work: StepWork, sources: Sequence[Any], places: Mapping[int, RowPlace]
    ) -> tuple[int, dict[str, float]]:
        """``step`` on rows that are fetched first."""
        return self.step(work, self._rows(work.plan, sources, places))

    def logprobs_by_reference(
        self,
        plan: RankPlan,
        sources: Sequence[Any],
        places: Mapping[int, RowPlace],
        temperature: float,
    ) -> dict[int, Floats]:
        """``logprobs`` of rows that are fetched first."""
        return self.logprobs(plan, self._rows(plan, sources, places), temperature)

    def _rows(
        self, plan: RankPlan, sources: Sequence[Any], places: Mapping[int, RowPlace]
    ) -> dict[int, Row]:
        wanted = [row for batch in plan for row in batch.rows]
        needed = sorted({places[row].source for row in wanted})
        lists = dict(zip(needed, self._fetch([sources[i] for i in needed]), strict=True))
        return {row: lists[places[row].source][places[row].index] for row in wanted}

    def _fetch(self, sources: Sequence[Any]) -> list[list[Row]]:
        try:
            found: list[list[Row]] = ray.get(list(sources), timeout=self._spec.step_seconds)
        except ray.exceptions.GetTimeoutError:
            raise LearnerError(
                f"learner rank {self._rank} could not fetch its rows within "
                f"learner.step_seconds={self._spec.step_seconds:.0f} s"
            ) from None
        return found
