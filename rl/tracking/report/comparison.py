"""The report on several runs, such as the seeds of one experiment: mean curve, spread, gains."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from polymath.rl.tracking.before_after import Comparison, compare
from polymath.rl.tracking.metrics import MODES
from polymath.rl.tracking.records import Point, RunDataError
from polymath.rl.tracking.report import page
from polymath.rl.tracking.report.charts import Line, line_chart, smoothed
from polymath.rl.tracking.report.run import MODE_NAMES, Run, gain_cell, read_run, started


def write_comparison(run_folders: Sequence[Path], output: Path) -> Path:
    """Write one page on several runs to ``output`` and return its path.

    Raises ``RunDataError`` for fewer than two runs and for a run without metrics.
    """
    if len(run_folders) < 2:
        raise RunDataError(f"a comparison needs at least two runs, not {len(run_folders)}")
    runs = [read_run(folder) for folder in run_folders]
    compared = {mode: [_mode(run, mode) for run in runs] for mode in MODES}
    body = [
        f"<h1>{len(runs)} runs</h1>",
        f'<div class="quiet">{escape(", ".join(run.name for run in runs))}</div>',
        page.tiles(_figures(compared)),
        *(_gains(runs, mode, comparisons) for mode, comparisons in compared.items()),
        _curves(runs),
        *(_domains(mode, comparisons) for mode, comparisons in compared.items()),
    ]
    page.write_page(output, f"{len(runs)} runs · Polymath", body)
    return output


def mean_and_range(
    curves: Sequence[Sequence[Point]],
) -> tuple[list[Point], list[tuple[int, float, float]]]:
    """Mean over runs, and lowest and highest run, at the steps that all runs have."""
    tables = [dict(curve) for curve in curves]
    common = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    values = {step: [table[step] for table in tables] for step in common}
    return (
        [(step, fmean(values[step])) for step in common],
        [(step, min(values[step]), max(values[step])) for step in common],
    )


def _mode(run: Run, mode: str) -> Comparison | None:
    return next((found for found in compare(run.evaluations) if found.mode == mode), None)


def _figures(compared: dict[str, list[Comparison | None]]) -> list[tuple[str, str]]:
    figures = []
    for mode, comparisons in compared.items():
        gains = [comparison.total.gain for comparison in comparisons if comparison]
        if gains:
            figures.append((f"gain, {mode}, mean over runs", f"{fmean(gains):+.3f}"))
            figures.append((f"gain, {mode}, lowest run", f"{min(gains):+.3f}"))
    return figures


def _gains(runs: Sequence[Run], mode: str, comparisons: Sequence[Comparison | None]) -> str:
    rows, totals = [], []
    for run, comparison in zip(runs, comparisons, strict=True):
        name = f"{escape(run.name)} <small>{escape(started(run))}</small>"
        if comparison is None:
            rows.append([name, *['<span class="quiet">not evaluated</span>'] * 4])
            continue
        total = comparison.total
        totals.append(total)
        rows.append(
            [
                name,
                f"{total.after.n:,}",
                f"{total.before.mean:.3f} <small>± {total.before.stderr:.3f}</small>",
                f"{total.after.mean:.3f} <small>± {total.after.stderr:.3f}</small>",
                gain_cell(total),
            ]
        )
    if not totals:
        return ""
    rows.append(
        [
            "mean over runs <small>± spread (standard deviation)</small>",
            "",
            _mean_cell([total.before.mean for total in totals]),
            _mean_cell([total.after.mean for total in totals]),
            _mean_cell([total.gain for total in totals], "+.3f"),
        ]
    )
    note = f"Held-out reward, {MODE_NAMES[mode]}, mean over domains; ± is one standard error within a run."
    table = page.table(["run", "episodes", "before", "after", "gain"], rows, total=True)
    return page.section(f"Before and after, {mode}", note, page.card(table))


def _curves(runs: Sequence[Run]) -> str:
    curves = {"all": [run.history.series("reward/mean") for run in runs]}
    labels = [run.history.labelled("reward/family/<family>") for run in runs]
    for family in sorted(set().union(*labels)):
        curves[family] = [found.get(family, []) for found in labels]
    cards: list[str] = []
    values = [v for name, found in curves.items() if name != "all" for c in found for _, v in c]
    scale = (min(0.0, *values), max(0.0, *values)) if values else None
    for index, (name, series) in enumerate(curves.items()):
        mean, spread = mean_and_range(series)
        if not mean:
            continue
        lines = [
            *(
                Line(run.name, smoothed(points), 5, "faint")
                for run, points in zip(runs, series, strict=True)
            ),
            Line("mean over runs", smoothed(mean), 1, "line", spread),
        ]
        width, height = (960, 300) if index == 0 else (300, 170)
        y_range = None if index == 0 else scale
        chart = line_chart(
            lines, width=width, height=height, y_range=y_range, label=f"reward, {name}"
        )
        cards.append(page.card(chart, name))
    if not cards:
        return ""
    note = (
        "Blue: mean over the runs; band: lowest to highest run at that step; thin: each run. Curves are "
        "running means over five steps, the band is not smoothed."
    )
    return page.section("Training reward", note, cards[0], page.grid(3, cards[1:]))


def _domains(mode: str, comparisons: Sequence[Comparison | None]) -> str:
    changes: dict[str, list[tuple[float, str]]] = {}
    for comparison in comparisons:
        for change in comparison.domains if comparison else ():
            changes.setdefault(change.name, []).append((change.gain, change.verdict))
    rows = [
        [
            escape(name),
            _mean_cell([gain for gain, _ in found], "+.3f"),
            f"{min(gain for gain, _ in found):+.3f}",
            f"{sum(verdict == 'up' for _, verdict in found)} of {len(found)}",
        ]
        for name, found in sorted(changes.items())
    ]
    if not rows:
        return ""
    note = "A run counts as gaining in a domain where the gain exceeds 1.96 standard errors."
    table = page.table(["domain", "gain", "lowest run", "runs that gain"], rows)
    return page.section(f"By domain, {mode}", note, page.card(table))


def _mean_cell(values: Sequence[float], form: str = ".3f") -> str:
    spread = f" <small>± {stdev(values):.3f}</small>" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"
