"""Held-out reward before and after a run, domain by domain, and whether the difference is more
than noise.

Levels of a domain are strata: their means are pooled by number of episodes. The mean over domains
gives each domain the same weight. Standard errors of before and after are taken as independent;
with the same seeds on both sides this errs on the careful side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polymath.rl.tracking.metrics import MODES
from polymath.rl.tracking.records import Evaluation

_SIGNIFICANT = 1.96
"""Standard errors that a gain must exceed to count as one (95 %, two-sided)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean reward with its standard error, from ``n`` episodes."""

    mean: float
    stderr: float
    n: int


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the table. ``name`` is a domain, or ``all``."""

    name: str
    before: Estimate
    after: Estimate

    @property
    def gain(self) -> float:
        """After minus before."""
        return self.after.mean - self.before.mean

    @property
    def stderr(self) -> float:
        """Standard error of the gain."""
        return math.hypot(self.before.stderr, self.after.stderr)

    @property
    def verdict(self) -> str:
        """``up``, ``down``, or ``flat`` where the change is within the noise."""
        if abs(self.gain) <= _SIGNIFICANT * self.stderr or self.gain == 0:
            return "flat"
        return "up" if self.gain > 0 else "down"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Held-out reward before and after in one mode: all domains together, and each."""

    mode: str
    total: Change
    domains: tuple[Change, ...]

    @property
    def bystanders(self) -> tuple[str, ...]:
        """Domains that do not take part in the gain."""
        return tuple(change.name for change in self.domains if change.verdict != "up")


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """One comparison for each mode that was evaluated before and after; domains present in both.

    A run that was prolonged has several evaluations ``after``; the newest counts.
    """
    found = []
    for mode in MODES:
        before = _by_domain(_at_one_step(evaluations, mode, "before", min))
        after = _by_domain(_at_one_step(evaluations, mode, "after", max))
        both = sorted(before.keys() & after.keys())
        if both:
            total = Change(
                "all", _mean([before[name] for name in both]), _mean([after[name] for name in both])
            )
            changes = tuple(Change(name, before[name], after[name]) for name in both)
            found.append(Comparison(mode, total, changes))
    return found


def estimates(evaluations: Sequence[Evaluation], mode: str) -> dict[int, Estimate]:
    """The mean over domains at each step that was evaluated in ``mode``."""
    steps = sorted({item.step for item in evaluations if item.mode == mode})
    return {
        step: _mean(
            list(_by_domain(i for i in evaluations if (i.mode, i.step) == (mode, step)).values())
        )
        for step in steps
    }


def gain_metrics(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Gains over all domains, under the names of the table of metrics, for the run's summary."""
    metrics = {}
    for comparison in compare(evaluations):
        metrics[f"heldout/gain/{comparison.mode}"] = comparison.total.gain
        metrics[f"heldout/gain_stderr/{comparison.mode}"] = comparison.total.stderr
    return metrics


def final_table(evaluations: Sequence[Evaluation], console: Console) -> None:
    """Print the table before/after at the end of a run; nothing where there is nothing to
    compare.
    """
    comparisons = compare(evaluations)
    for comparison in comparisons:
        console.print(_table(comparison))
    for comparison in comparisons[:1]:
        if comparison.bystanders:
            names = ", ".join(comparison.bystanders)
            console.print(
                Text(f"No gain beyond the noise ({comparison.mode}): {names}", style="yellow")
            )


def _table(comparison: Comparison) -> Table:
    table = Table(
        title=f"Held-out reward, {comparison.mode}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("domain")
    for header in ("before", "after", "gain", "n"):
        table.add_column(header, justify="right")
    for change in (*comparison.domains, comparison.total):
        style = {"up": "green", "down": "red", "flat": "dim"}[change.verdict]
        table.add_row(
            change.name,
            _plus_minus(change.before),
            _plus_minus(change.after),
            Text(f"{change.gain:+.3f} ± {change.stderr:.3f}", style=style),
            f"{change.before.n} / {change.after.n}",
            style="bold" if change is comparison.total else "",
        )
    return table


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} ± {estimate.stderr:.3f}"


def _at_one_step(
    evaluations: Sequence[Evaluation],
    mode: str,
    split: str,
    choose: Callable[[Iterable[int]], int],
) -> list[Evaluation]:
    found = [item for item in evaluations if (item.mode, item.split) == (mode, split)]
    step = choose(item.step for item in found) if found else None
    return [item for item in found if item.step == step]


def _by_domain(evaluations: Iterable[Evaluation]) -> dict[str, Estimate]:
    levels: dict[str, list[Evaluation]] = {}
    for item in evaluations:
        levels.setdefault(item.domain, []).append(item)
    return {name: _pooled(items) for name, items in levels.items()}


def _pooled(levels: Sequence[Evaluation]) -> Estimate:
    n = sum(level.n for level in levels)
    mean = sum(level.n * level.mean for level in levels) / n
    return Estimate(mean, math.hypot(*(level.n * level.stderr for level in levels)) / n, n)


def _mean(domains: Sequence[Estimate]) -> Estimate:
    count = len(domains)
    mean = math.fsum(domain.mean for domain in domains) / count
    stderr = math.hypot(*(domain.stderr for domain in domains)) / count
    return Estimate(mean, stderr, sum(domain.n for domain in domains))
