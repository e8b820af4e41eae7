"""Small charts as inline SVG: no script, no library, colours from the page's CSS (light and
dark).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from polymath.rl.tracking.records import Point

Band = tuple[int, float, float]
"""Step, lower and upper edge."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 24
"""Margins around the plot, in units of the view box."""
_MOST_BARS = 80
"""Steps are joined into at most so many bars."""

_MOST_TOUCHES = 200
"""A curve answers to the pointer at about so many of its points, so that long runs stay small."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve. ``colour`` is 1 to 6; ``look`` is ``line``, ``faint`` or ``points`` (joined,
    with marks and, from ``band``, error bars).
    """

    name: str
    points: Sequence[Point]
    colour: int = 1
    look: str = "line"
    band: Sequence[Band] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lands on the drawing."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def left(self, step: float) -> float:
        """Horizontal place of a step."""
        low, high = self.x
        return _LEFT + (step - low) / (high - low) * (self.width - _LEFT - _RIGHT)

    def top(self, value: float) -> float:
        """Vertical place of a value."""
        low, high = self.y
        return _TOP + (high - value) / (high - low) * (self.height - _TOP - _BOTTOM)


def line_chart(
    lines: Sequence[Line],
    *,
    width: int = 460,
    height: int = 190,
    y_range: tuple[float, float] | None = None,
    label: str = "",
) -> str:
    """Curves over steps. The vertical axis starts at 0 unless values lie below; ``label`` is
    for readers of the page who cannot see it.
    """
    steps = [step for line in lines for step, _ in line.points]
    low, high = y_range or _span(lines)
    ticks = nice_ticks(low, high)
    frame = Frame(
        width, height, _wide(min(steps), max(steps)), (min(low, ticks[0]), max(high, ticks[-1]))
    )
    bands = [_band(frame, line) for line in lines if line.look != "points"]
    body = [_grid(frame, ticks), *bands]
    body += [_line(frame, line) for line in lines]
    return _svg(frame, body, label)


def stacked_bars(
    parts: Sequence[tuple[str, Sequence[Point]]],
    *,
    width: int = 960,
    height: int = 220,
    label: str = "",
) -> str:
    """One bar a step (or a few steps, as their mean), made of parts in the order given,
    colours 1, 2, ...
    """
    values = [(name, dict(points)) for name, points in parts]
    steps = sorted({step for _, points in values for step in points})
    size = math.ceil(len(steps) / _MOST_BARS)
    bins = [steps[start : start + size] for start in range(0, len(steps), size)]
    heights = [[sum(points.get(s, 0.0) for s in b) / len(b) for _, points in values] for b in bins]
    ticks = nice_ticks(0.0, max(sum(bar) for bar in heights))
    edge = max(steps[-1] - steps[0], 1) / len(bins) / 2
    frame = Frame(width, height, (steps[0] - edge, steps[-1] + edge), (0.0, ticks[-1]))
    pitch = (width - _LEFT - _RIGHT) / len(bins)
    body = [_grid(frame, ticks)]
    for index, (bin_steps, bar) in enumerate(zip(bins, heights, strict=True)):
        base = 0.0
        for colour, ((name, _), value) in enumerate(zip(values, bar, strict=True), 1):
            if value > 0:
                title = f"{_steps(bin_steps)}: {name.replace('_', ' ')} {number(value)}"
                x, top = _LEFT + pitch * index + 0.1 * pitch, frame.top(base + value)
                body.append(
                    f'<rect class="f{colour}" x="{x:.1f}" y="{top:.1f}" width="{pitch * 0.8:.1f}" '
                    f'height="{frame.top(base) - top:.2f}"><title>{escape(title)}</title></rect>'
                )
                base += value
    return _svg(frame, body, label)


def dumbbell(before: tuple[float, float], after: tuple[float, float], top: float) -> str:
    """Before (hollow) and after (full) with their standard errors, on a scale from 0 to ``top``."""
    width, middle = 180, 9

    def at(value: float) -> float:
        return 8 + min(max(value / top, 0.0), 1.0) * (width - 16)

    def bar(kind: str, low: float, high: float) -> str:
        return _rule(kind, at(low), at(high), middle, middle)

    parts = [
        bar("grid", 0.0, top),
        bar("whisker old", before[0] - before[1], before[0] + before[1]),
        bar("whisker new", after[0] - after[1], after[0] + after[1]),
        bar("reach", before[0], after[0]),
        f'<circle class="old" cx="{at(before[0]):.1f}" cy="{middle}" r="4"/>',
        f'<circle class="new" cx="{at(after[0]):.1f}" cy="{middle}" r="4.5"/>',
    ]
    label = f"before {before[0]:.2f}, after {after[0]:.2f}"
    return (
        f'<svg class="dumbbell" viewBox="0 0 {width} 18" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers that span ``low`` to ``high``."""
    size = max(abs(low), abs(high))
    span = high - low if high - low > 1e-6 * size else size or 1.0  # rounding noise is no spread
    raw = max(span / count, 1e-300)  # smaller numbers lose their digits
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """A figure as people write it: 12,300; 41.2; 0.031; 4.1e-05."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size == 0 or size >= 0.001:
        return f"{value:.3g}"
    return f"{value:.1e}"


def smoothed(points: Sequence[Point], width: int = 5) -> list[Point]:
    """Centred running mean over ``width`` steps, narrower at the ends."""
    half = width // 2
    result = []
    for index, (step, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)
        window = [value for _, value in points[index - reach : index + reach + 1]]
        result.append((step, sum(window) / len(window)))
    return result


def _span(lines: Sequence[Line]) -> tuple[float, float]:
    values = [value for line in lines for _, value in line.points]
    values += [edge for line in lines for _, *edges in line.band for edge in edges]
    return min(0.0, *values), max(0.0, *values)


def _wide(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _grid(frame: Frame, ticks: Sequence[float]) -> str:
    parts = []
    for tick in ticks:
        y = frame.top(tick)
        parts.append(_rule("grid", _LEFT, frame.width - _RIGHT, y, y))
        parts.append(_tick(_LEFT - 6, y + 3.5, "end", number(tick)))
    low, high = frame.x
    steps = nice_ticks(low, high, max(4, frame.width // 110))
    parts += [
        _tick(frame.left(step), frame.height - 7, "middle", str(int(step)))
        for step in steps
        if low <= step <= high and step == int(step)
    ]
    return "".join(parts)


def _rule(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _band(frame: Frame, line: Line) -> str:
    if not line.band:
        return ""
    upper = [f"{frame.left(step):.1f},{frame.top(high):.1f}" for step, _, high in line.band]
    lower = [f"{frame.left(step):.1f},{frame.top(low):.1f}" for step, low, _ in reversed(line.band)]
    return f'<polygon class="band f{line.colour}" points="{" ".join(upper + lower)}"/>'


def _line(frame: Frame, line: Line) -> str:
    places = [(frame.left(step), frame.top(value)) for step, value in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    drawn = f'<polyline class="{line.look} s{line.colour}" points="{path}"/>'
    if line.look == "points":
        for step, low, high in line.band:
            x = frame.left(step)
            drawn += _rule(f"error s{line.colour}", x, x, frame.top(low), frame.top(high))
    mark = (
        f'class="mark f{line.colour}" r="4.5"' if line.look == "points" else 'class="touch" r="5"'
    )
    every = math.ceil(len(places) / _MOST_TOUCHES)
    if line.look != "faint":
        drawn += "".join(
            f'<circle {mark} cx="{x:.1f}" cy="{y:.1f}"><title>{escape(line.name)}, step {step}: '
            f"{number(value)}</title></circle>"
            for (x, y), (step, value) in list(zip(places, line.points, strict=True))[::every]
        )
    return drawn


def _steps(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _svg(frame: Frame, body: Sequence[str], label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{"".join(body)}</svg>'
    )
