"""The learner as the controller sees it: rows in, one optimizer step, weights out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polymath.errors import PolymathError
from polymath.rollout.engine.base import WeightUpdate
from polymath.rollout.types import Floats, Row, Tokens


class LearnerError(PolymathError):
    """The learner failed; the message names the rank and what it was doing."""


class NonFiniteError(LearnerError):
    """A loss, a gradient or an input is not finite; nothing has moved. The message names it."""


class StateError(LearnerError):
    """Saved state cannot be written, read or trusted; the message names the file."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """``step`` counts optimizer steps since the first weights. ``trained`` is how many tokens of
    each episode carried loss; ``metrics`` bear the names of the table in ``polymath.rl.tracking``.
    """

    step: int
    trained: Mapping[str, int]
    metrics: Mapping[str, float]


class Learner(Protocol):
    """A learner. Every method raises ``LearnerError`` and waits no longer than its deadline."""

    async def start(self) -> None:
        """Hold the model on all ranks."""
        ...

    async def step(self, rows: Sequence[Row] | Sequence[Any]) -> StepResult:
        """One optimizer step over all rows: given as they are, or as Ray references to lists of
        them.

        Raises ``NonFiniteError`` before anything moves.
        """
        ...

    async def logprobs(self, documents: Sequence[Tokens], temperature: float = 1.0) -> list[Floats]:
        """For each document [T] the log-probability of every token given those before it, [T]; that
        of the first is 0.
        """
        ...

    async def publish(self, version: int, folder: str) -> WeightUpdate:
        """Write the current weights as one safetensors file into ``folder``."""
        ...

    async def export(self, folder: str) -> None:
        """Write a checkpoint folder that ``model.path`` can name."""
        ...

    async def save(self, folder: str) -> None:
        """Write weights, optimizer, random state and step; complete or not at all."""
        ...

    async def load(self, folder: str) -> int:
        """Go on from saved state, also of another number of ranks; returns its step."""
        ...

    async def close(self) -> None:
        """Leave no process behind. Safe to call twice."""
        ...
