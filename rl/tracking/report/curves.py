"""The sections of a report that show curves over the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polymath.rl.tracking.before_after import estimates
from polymath.rl.tracking.metrics import MODES, PHASES, find
from polymath.rl.tracking.records import Evaluation, History, Point
from polymath.rl.tracking.report import page
from polymath.rl.tracking.report.charts import Band, Line, line_chart, smoothed, stacked_bars
from polymath.rollout.types import OutcomeKind

Curve = tuple[str, str]
"""Name in the legend, and metric."""

_PLAIN = ("share", "ratio", "rate", "norm", "tokens/s", "tokens", "steps")
"""Units that a chart's title says already."""

_LEARNING: tuple[tuple[str, tuple[Curve, ...]], ...] = (
    ("Entropy", (("entropy", "policy/entropy"),)),
    ("Mismatch KL, engine to learner", (("mismatch KL", "policy/mismatch_kl"),)),
    ("Gradient norm", (("gradient norm", "optimizer/grad_norm"),)),
    ("Clipped tokens, share", (("clip fraction", "policy/clip_fraction"),)),
    ("Groups without spread, share", (("zero spread", "group/zero_spread"),)),
    ("Loss", (("loss", "loss/total"),)),
    ("Learning rate", (("learning rate", "optimizer/learning_rate"),)),
    ("Indexer KL", (("indexer KL", "model/indexer_kl"),)),
    ("Expert load, busiest over mean", (("load", "model/expert_load"),)),
)
_SPEED: tuple[tuple[str, tuple[Curve, ...]], ...] = (
    (
        "Tokens per second",
        (("sampled", "throughput/completion"), ("trained", "throughput/trained")),
    ),
    ("Idle share", (("engine", "idle/engine"), ("learner", "idle/learner"))),
    ("Staleness, steps", (("mean", "staleness/mean"), ("highest", "staleness/max"))),
    ("Tokens an episode", (("tokens", "episode/tokens"),)),
    (
        "Memory of the run",
        (("resident", "memory/total"), ("free on the machine", "memory/available")),
    ),
    ("Prompt tokens from the prefix cache, share", (("share", "cache/hit_share"),)),
)


def reward_section(history: History, evaluations: Sequence[Evaluation]) -> str:
    """Reward a step with its standard error, held-out points over it, and one small chart a
    family.
    """
    mean = history.series("reward/mean")
    lines = (
        _with_spread("training reward", mean, history.series("reward/stderr"), 1) if mean else []
    )
    legend = (
        [(1, "training reward, mean over 5 steps; thin: single steps; band: ± 1 standard error")]
        if mean
        else []
    )
    for colour, mode in enumerate(MODES, 2):
        points = estimates(evaluations, mode)
        if points:
            band = [(step, e.mean - e.stderr, e.mean + e.stderr) for step, e in points.items()]
            series = [(step, e.mean) for step, e in points.items()]
            lines.append(Line(f"held-out, {mode}", series, colour, "points", band))
            legend.append((colour, f"held-out, {mode}, ± 1 standard error"))
    families = history.labelled("reward/family/<family>")
    errors = history.labelled("reward/family_stderr/<family>")
    values = [value for points in families.values() for _, value in points]
    y_range = (min(0.0, *values), max(0.0, *values)) if values else None
    small = [
        page.card(
            line_chart(
                _with_spread(name, points, errors.get(name, []), 1),
                width=300,
                height=170,
                y_range=y_range,
                label=f"reward of {name} by step",
            ),
            f"{name}",
        )
        for name, points in families.items()
    ]
    large = (
        page.card(
            page.key(legend) + line_chart(lines, width=960, height=320, label="reward by step")
        )
        if lines
        else ""
    )
    note = (
        "Reward of the episodes that each step trained on. The standard error is over the step's groups, "
        "since episodes of one task are not independent."
    )
    return page.section("Reward", note, large, page.grid(3, small))


def learning_section(history: History) -> str:
    """Entropy, mismatch, gradient norm and the like."""
    return page.section("Learning", "One value a step.", page.grid(3, _cards(history, _LEARNING)))


def speed_section(history: History) -> str:
    """Where the time went."""
    phases = history.labelled("seconds/phase/<phase>")
    parts = [(name, phases[name]) for name in PHASES if name in phases]
    large = ""
    if parts:
        legend = [(colour, name.replace("_", " ")) for colour, (name, _) in enumerate(parts, 1)]
        bars = stacked_bars(parts, label="seconds of each phase by step")
        large = page.card(page.key(legend) + bars, "Seconds a step, by phase")
    note = (
        "Phases follow one another within a step; where staleness allows, rollout goes on beside the "
        "learner."
    )
    return page.section("Time", note, large, page.grid(3, _cards(history, _SPEED)))


def outcome_section(history: History) -> str:
    """How episodes ended."""
    found = history.labelled("outcome/<outcome>")
    parts = [(kind.value, found[kind.value]) for kind in OutcomeKind if kind.value in found]
    if not parts:
        return ""
    total = sum(value for _, points in parts for _, value in points)
    legend = []
    for colour, (name, points) in enumerate(parts, 1):
        count = sum(value for _, value in points)
        legend.append(
            (colour, f"{name.replace('_', ' ')} {count:,.0f} ({count / max(total, 1):.1%})")
        )
    bars = stacked_bars(parts, height=180, label="episodes by outcome and step")
    reasons = history.labelled("outcome_reason/<outcome>/<reason>")
    rows = [
        [name.replace("_", " ").replace("/", ": ", 1), f"{sum(v for _, v in points):,.0f}"]
        for name, points in reasons.items()
    ]
    table = page.card(page.table(["reason", "episodes"], rows)) if rows else ""
    note = (
        "Episodes a step by how they ended. Invalid and infrastructure-failed ones are masked: they are "
        "never turned into a reward."
    )
    return page.section("Outcomes", note, page.card(page.key(legend) + bars), table)


def _cards(history: History, charts: Iterable[tuple[str, tuple[Curve, ...]]]) -> list[str]:
    cards = []
    for title, curves in charts:
        known = [(name, metric) for name, metric in curves if history.series(metric)]
        lines = [
            Line(name, history.series(metric), colour)
            for colour, (name, metric) in enumerate(known, 1)
        ]
        if lines:
            row = find(known[0][1])
            unit = f", {row.unit}" if row and row.unit not in _PLAIN else ""
            legend = page.key((line.colour, line.name) for line in lines) if len(curves) > 1 else ""
            chart = line_chart(lines, width=300, height=160, label=f"{title} by step")
            cards.append(page.card(legend + chart, title + unit))
    return cards


def _with_spread(
    name: str, points: Sequence[Point], errors: Sequence[Point], colour: int
) -> list[Line]:
    spread = dict(errors)
    smooth = smoothed(points)
    band: list[Band] = [
        (step, v - spread.get(step, 0.0), v + spread.get(step, 0.0)) for step, v in points
    ]
    return [
        Line(name, points, colour, "faint", band if spread else ()),
        Line(name, smooth, colour, "line"),
    ]
