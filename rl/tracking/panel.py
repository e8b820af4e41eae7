"""The run at a glance, in the terminal: one live panel, or one plain line a step where nobody
looks.

    with open_panel(config, screen) as panel:
        panel.update(PanelState.of(tracker.history, run="quickstart", steps=120, phase="learner"))

The panel only shows; it knows nothing of what it watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean, median
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live

from polymath.rl.tracking import panel_view
from polymath.rl.tracking.metrics import MODES
from polymath.rl.tracking.records import History
from polymath.rl.tracking.schema import TrackingConfig

_REFRESH = 2.0
"""Redraws a second: enough for a running clock, and below a percent of one core."""
_RECENT = 10
"""Steps that the estimate of the time left looks back on."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A curve of rewards: its name, all its values, and smoothed where it began and where it is."""

    name: str
    values: tuple[float, ...]
    start: float
    now: float

    @staticmethod
    def of(name: str, values: Sequence[float]) -> Reward:
        """Start and now are means over up to five steps, since single steps are noisy."""
        window = max(1, min(5, len(values) // 2))
        return Reward(name, tuple(values), fmean(values[:window]), fmean(values[-window:]))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The newest held-out evaluation of one mode, and its change since the first one."""

    mode: str
    step: int
    reward: float
    change: float | None


@dataclass(frozen=True, slots=True)
class PanelState:
    """All that the panel shows. Numbers that are not known yet are None."""

    run: str
    step: int
    steps: int
    phase: str
    rewards: tuple[Reward, ...] = ()
    held_out: tuple[HeldOut, ...] = ()
    step_seconds: float | None = None
    seconds_left: float | None = None
    completion: float | None = None
    trained: float | None = None
    staleness: float | None = None
    staleness_max: float | None = None
    memory_mib: float | None = None
    memory_available_mib: float | None = None
    engine_idle: float | None = None
    learner_idle: float | None = None
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(
        history: History, *, run: str, steps: int, phase: str, warnings: Sequence[str] = ()
    ) -> PanelState:
        """The state after the newest logged step of ``history``; ``steps`` is where the run
        ends.
        """
        step = history.steps[-1] if history.steps else 0
        curves = {
            "all": history.series("reward/mean"),
            **history.labelled("reward/family/<family>"),
        }
        recent = [value for _, value in history.series("seconds/step")[-_RECENT:]]
        return PanelState(
            run=run,
            step=step,
            steps=steps,
            phase=phase,
            rewards=tuple(
                Reward.of(name, [value for _, value in series])
                for name, series in curves.items()
                if series
            ),
            held_out=tuple(_held_out(history, mode) for mode in MODES if _points(history, mode)),
            step_seconds=recent[-1] if recent else None,
            seconds_left=median(recent) * max(0, steps - step) if recent else None,
            completion=history.last("throughput/completion"),
            trained=history.last("throughput/trained"),
            staleness=history.last("staleness/mean"),
            staleness_max=history.last("staleness/max"),
            memory_mib=history.last("memory/total"),
            memory_available_mib=history.last("memory/available"),
            engine_idle=history.last("idle/engine"),
            learner_idle=history.last("idle/learner"),
            warnings=tuple(warnings),
        )


class Panel(Protocol):
    """Shows a run. Used as a context manager."""

    def update(self, state: PanelState) -> None:
        """Show a new state; cheap enough to call at each change of phase."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_panel(config: TrackingConfig, stream: TextIO) -> Panel:
    """The panel that the configuration asks for, on ``stream``."""
    choice = config.panel
    if choice == "on" or (choice == "auto" and stream.isatty()):
        return LivePanel(Console(file=stream, force_terminal=True))
    return LinePanel(stream)


class LivePanel(AbstractContextManager["LivePanel"]):
    """Redraws one panel in place; the time spent in the phase runs by itself."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state: PanelState | None = None
        self._began = self._since = clock()
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def update(self, state: PanelState) -> None:
        """Show a new state."""
        old, self._state = self._state, state
        if old is None or (old.phase, old.step) != (state.phase, state.step):
            self._since = self._clock()

    def render(self) -> panel_view.View:
        """What is drawn now."""
        now = self._clock()
        return panel_view.panel(self._state, now - self._since, now - self._began)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


class LinePanel(AbstractContextManager["LinePanel"]):
    """One line a step, without any terminal control; before the first step one line a phase."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: PanelState | None = None

    def update(self, state: PanelState) -> None:
        """Print what is new since the state before."""
        old = self._shown
        self._shown = state
        for warning in state.warnings:
            if old is None or warning not in old.warnings:
                self._print(f"warning: {warning}")
        if not state.rewards and (old is None or old.phase != state.phase):
            self._print(f"{state.run}: {state.phase.replace('_', ' ')}")
        if state.held_out and (old is None or old.held_out[:1] != state.held_out[:1]):
            self._print(panel_view.held_out_line(state.held_out))
        if state.rewards and (old is None or not old.rewards or old.step != state.step):
            self._print(panel_view.line(state))

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.flush()


def _points(history: History, mode: str) -> list[tuple[int, float]]:
    return history.series(f"heldout/mean/{mode}")


def _held_out(history: History, mode: str) -> HeldOut:
    points = _points(history, mode)
    step, reward = points[-1]
    return HeldOut(mode, step, reward, reward - points[0][1] if len(points) > 1 else None)
