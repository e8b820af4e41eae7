"""What a step adds up: plain sums, counts and maxima that merge over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polymath.rl.losses.base import Mean


@dataclass(slots=True)
class StepSums:
    """``terms`` are over their global denominators already; ``load`` is [layers, E]."""

    terms: dict[str, float] = field(default_factory=dict)
    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    load: NDArray[np.float64] | None = None

    def add_term(self, name: str, value: float) -> None:
        """Add to a term of the loss."""
        self.terms[name] = self.terms.get(name, 0.0) + value

    def add_mean(self, name: str, mean: Mean) -> None:
        """Add to a metric's sum and count."""
        total, count = self.means.get(name, (0.0, 0.0))
        self.means[name] = (total + float(mean.sum), count + float(mean.count))

    def add_maximum(self, name: str, value: float) -> None:
        """Take a metric's larger value."""
        self.maxima[name] = max(value, self.maxima.get(name, value))

    def add_load(self, load: NDArray[np.float64]) -> None:
        """Add tokens per expert."""
        self.load = load if self.load is None else self.load + load

    def metrics(self) -> dict[str, float]:
        """Terms, means and maxima by the names under which they are tracked."""
        found = {f"loss/term/{name}": value for name, value in self.terms.items()}
        found["loss/total"] = sum(self.terms.values())
        found |= {name: total / count for name, (total, count) in self.means.items() if count}
        found |= self.maxima
        if self.load is not None and self.load.sum() > 0:
            found["model/expert_load"] = float((self.load.max(1) / self.load.mean(1)).max())
        return found


def merge(parts: Iterable[StepSums]) -> StepSums:
    """The sums of all ranks, added in the order given."""
    merged = StepSums()
    for part in parts:
        for name, value in part.terms.items():
            merged.add_term(name, value)
        for name, (total, count) in part.means.items():
            merged.add_mean(name, Mean(total, count))
        for name, value in part.maxima.items():
            merged.add_maximum(name, value)
        if part.load is not None:
            merged.add_load(part.load)
    return merged


def first_of(mapping: Mapping[str, float]) -> str:
    """The first name whose value is not finite, or an empty string."""
    return next((name for name, value in mapping.items() if not np.isfinite(value)), "")
