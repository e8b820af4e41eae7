"""How the panel looks: a state in, something drawable or a plain line out. Nothing here has a
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from polymath.rl.tracking.panel import HeldOut, PanelState, Reward

View: TypeAlias = RenderableType

_BARS = "▁▂▃▄▅▆▇"
"""No full block, which would run into the row above."""
_LABEL = 9
"""Width of the labels on the left."""
_SPARK = 28
"""Width of a sparkline, in characters."""
_SPAN = 0.2
"""A sparkline's scale spans at least this much reward, so that noise does not look like a trend."""
_WARNINGS = 2
"""How many of the newest warnings are shown."""
_NAME = "bold"
_QUIET = "dim"
_GOOD = "green"
_BAD = "red"


def panel(state: PanelState | None, phase_seconds: float, run_seconds: float) -> View:
    """The whole panel. ``phase_seconds``: since the phase began; ``run_seconds``: since the
    start.
    """
    if state is None:
        return Frame(Text("starting", style=_QUIET), title="polymath", box=box.ROUNDED)
    parts: list[RenderableType] = [_progress(state, run_seconds), Text()]
    if state.rewards:
        parts += [_rewards(state.rewards), Text()]
    parts.append(_facts(state, phase_seconds))
    return Frame(
        Group(*parts),
        title=Text.assemble(("polymath", _NAME), (" · ", _QUIET), state.run),
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
        padding=(1, 2),
    )


def line(state: PanelState) -> str:
    """A step as one plain line."""
    total, *families = state.rewards
    inner = ", ".join(f"{reward.name} {_last(reward)}" for reward in families)
    parts = [
        f"step {state.step}/{state.steps}",
        f"reward {_last(total)}" + (f" ({inner})" if inner else ""),
        *_optional("{:.0f} tok/s sampled", state.completion),
        *_optional("{:.0f} trained", state.trained),
        *_optional("staleness {:.1f}", state.staleness),
        *_optional("{:.1f} GiB", _gib(state.memory_mib)),
        *_optional("{:.1f} s", state.step_seconds),
        *([f"{duration(state.seconds_left)} left"] if state.seconds_left is not None else []),
    ]
    return " · ".join(parts)


def held_out_line(held_out: Sequence[HeldOut]) -> str:
    """A held-out evaluation as one plain line."""
    return f"held-out at step {held_out[0].step} · " + " · ".join(
        _held_out(item) for item in held_out
    )


def sparkline(values: Sequence[float], low: float, high: float, width: int = _SPARK) -> str:
    """Values between ``low`` and ``high`` as blocks, at most ``width`` of them (means of
    neighbours).
    """
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)] if count else [0]
    means = [fmean(values[start:stop]) for start, stop in pairwise(edges)]
    top = len(_BARS) - 1
    return "".join(
        _BARS[min(top, max(0, round((mean - low) / (high - low) * top)))] for mean in means
    )


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _progress(state: PanelState, run_seconds: float) -> View:
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    left = (
        f"{duration(state.seconds_left)} left"
        if state.seconds_left is not None
        else "time left unknown"
    )
    grid.add_row(
        Text.assemble("step ", (f"{state.step}", _NAME), (f" / {state.steps}", _QUIET)),
        ProgressBar(
            total=max(1, state.steps),
            completed=state.step,
            complete_style="cyan",
            finished_style="green",
        ),
        Text.assemble(left, (f" · {duration(run_seconds)} gone", _QUIET)),
    )
    return grid


def _rewards(rewards: Sequence[Reward]) -> View:
    everything = [value for reward in rewards for value in reward.values]
    low, high = min(everything), max(everything)
    high = max(high, low + _SPAN)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=_LABEL, style=_QUIET)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right")
    for index, reward in enumerate(rewards):
        grid.add_row(
            "reward" if index == 0 else "",
            Text(reward.name, style=_NAME if index == 0 else ""),
            sparkline(reward.values, low, high).ljust(_SPARK),
            Text.assemble((f"{reward.start:.2f} → ", _QUIET), (f"{reward.now:.2f}", _NAME)),
            _change(reward.now - reward.start),
        )
    return grid


def _facts(state: PanelState, phase_seconds: float) -> View:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=_QUIET, no_wrap=True, min_width=_LABEL)
    grid.add_column()
    phase = state.phase.replace("_", " ")
    rows: list[tuple[str, list[str | Text]]] = [
        ("phase", [Text(phase, style=_NAME), duration(phase_seconds), *_step_time(state)]),
        (
            "tokens/s",
            [
                *_optional("{:.0f} sampled", state.completion),
                *_optional("{:.0f} trained", state.trained),
            ],
        ),
        (
            "staleness",
            [
                *_optional("{:.1f} steps", state.staleness),
                *_optional("{:.0f} at most", state.staleness_max),
            ],
        ),
        (
            "idle",
            [
                *_optional("engine {:.0%}", state.engine_idle),
                *_optional("learner {:.0%}", state.learner_idle),
            ],
        ),
        (
            "memory",
            [
                *_optional("{:.1f} GiB used", _gib(state.memory_mib)),
                *_optional("{:.1f} GiB free", _gib(state.memory_available_mib)),
            ],
        ),
        ("held-out", [*map(_held_out_text, state.held_out), *_held_out_step(state)]),
    ]
    rows += [("warning", [Text(text, style="yellow")]) for text in state.warnings[-_WARNINGS:]]
    for name, values in rows:
        if values:
            grid.add_row(name, Text("   ").join(_as_text(value) for value in values))
    return grid


def _as_text(value: str | Text) -> Text:
    return Text(value) if isinstance(value, str) else value


def _step_time(state: PanelState) -> list[str | Text]:
    if state.step_seconds is None:
        return []
    return [Text(f"last step {state.step_seconds:.1f} s", style=_QUIET)]


def _held_out(item: HeldOut) -> str:
    change = "" if item.change is None else f" ({item.change:+.2f})"
    return f"{item.mode} {item.reward:.2f}{change}"


def _held_out_text(item: HeldOut) -> Text:
    parts: list[str | Text | tuple[str, str]] = [f"{item.mode} ", (f"{item.reward:.2f}", _NAME)]
    if item.change is not None:
        parts += [" ", _change(item.change)]
    return Text.assemble(*parts)


def _held_out_step(state: PanelState) -> list[str | Text]:
    return [Text(f"at step {state.held_out[0].step}", style=_QUIET)] if state.held_out else []


def _change(value: float) -> Text:
    style = _GOOD if value > 0.005 else _BAD if value < -0.005 else _QUIET
    return Text(f"{value:+.2f}", style=style)


def _last(reward: Reward) -> str:
    return f"{reward.values[-1]:.2f}"


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _optional(form: str, value: float | None) -> list[str]:
    return [] if value is None else [form.format(value)]
