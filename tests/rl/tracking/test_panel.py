"""The panel shows what was logged; where nobody looks it prints plain lines."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from polymath.rl.tracking import panel_view
from polymath.rl.tracking.panel import LinePanel, LivePanel, PanelState, open_panel
from polymath.rl.tracking.records import History, read_history
from polymath.rl.tracking.schema import TrackingConfig

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x1b]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def state(history: History, phase: str = "learner", **changes: object) -> PanelState:
    return PanelState.of(history, run="quickstart", steps=10, phase=phase, **changes)  # type: ignore[arg-type]


def drawn(shown: PanelState | None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(panel_view.panel(shown, 4.0, 130.0))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_state_is_read_from_what_was_logged(make_run: Callable[..., Path]) -> None:
    shown = state(read_history(make_run()))
    assert [reward.name for reward in shown.rewards] == ["all", "office", "terminal"]
    total = shown.rewards[0]
    assert total.values == pytest.approx((0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    assert (total.start, total.now) == (pytest.approx(0.2), pytest.approx(0.5))  # means of three
    assert shown.seconds_left == pytest.approx(4 * 11.0)
    assert (shown.completion, shown.trained, shown.staleness) == (800.0, 600.0, 0.5)
    sampled, greedy = shown.held_out
    assert (sampled.mode, sampled.step, sampled.reward) == ("sampled", 6, pytest.approx(0.45))
    assert sampled.change == pytest.approx(0.15)
    assert (greedy.step, greedy.change) == (0, None)


def test_the_panel_shows_everything_that_is_known(make_run: Callable[..., Path]) -> None:
    text = drawn(state(read_history(make_run()), warnings=["disk is nearly full"]))
    for part in (
        "quickstart",
        "step 6 / 10",
        "0:44 left",
        "2:10 gone",
        "0.20 → 0.50",
        "+0.30",
        "office",
        "terminal",
        "learner   0:04",
        "800 sampled   600 trained",
        "0.5 steps",
        "4.0 GiB used",
        "sampled 0.45 +0.15",
        "disk is nearly full",
    ):
        assert part in text, part
    assert not CONTROL.search(text)


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_the_panel_fits_any_width(make_run: Callable[..., Path], width: int) -> None:
    text = drawn(state(read_history(make_run())), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_the_panel_needs_no_history() -> None:
    assert "starting" in drawn(None)
    assert "time left unknown" in drawn(state(History()))


def test_a_piped_run_is_plain_lines(make_run: Callable[..., Path]) -> None:
    stream = io.StringIO()
    full, growing = read_history(make_run()), History()
    with open_panel(TrackingConfig(panel="auto"), stream) as panel:
        panel.update(state(growing, "start"))
        for step in range(1, 4):
            values = {"reward/mean": full.series("reward/mean")[step - 1][1], "seconds/step": 11.0}
            growing.add(step, values)
            panel.update(state(growing, "learner"))
            panel.update(state(growing, "sync", warnings=["slow"]))
    assert not CONTROL.search(stream.getvalue())
    assert stream.getvalue().splitlines() == [
        "quickstart: start",
        "step 1/10 · reward 0.10 · 11.0 s · 1:39 left",
        "warning: slow",
        "step 2/10 · reward 0.20 · 11.0 s · 1:28 left",
        "warning: slow",
        "step 3/10 · reward 0.30 · 11.0 s · 1:17 left",
        "warning: slow",
    ]


def test_a_held_out_evaluation_has_a_line_of_its_own() -> None:
    stream, history = io.StringIO(), History()
    panel = LinePanel(stream)
    history.add(0, {"heldout/mean/sampled": 0.3, "heldout/mean/greedy": 0.4})
    panel.update(state(history, "rollout_wait"))
    panel.update(state(history, "rollout_wait"))
    assert stream.getvalue().splitlines() == [
        "quickstart: rollout wait",
        "held-out at step 0 · sampled 0.30 · greedy 0.40",
    ]


@pytest.mark.parametrize(
    ("choice", "stream", "kind"),
    [
        ("auto", Terminal(), LivePanel),
        ("auto", io.StringIO(), LinePanel),
        ("on", io.StringIO(), LivePanel),
        ("off", Terminal(), LinePanel),
    ],
)
def test_the_configuration_chooses(choice: str, stream: io.StringIO, kind: type) -> None:
    assert isinstance(open_panel(TrackingConfig(panel=choice), stream), kind)


def test_the_time_in_a_phase_runs_by_itself(make_run: Callable[..., Path]) -> None:
    now = 100.0
    console = Console(file=Terminal(), width=100, force_terminal=True)
    panel = LivePanel(console, clock=lambda: now)
    history = read_history(make_run())

    def text() -> str:
        with console.capture() as captured:
            console.print(panel.render(), style=None)
        return re.sub(r"\x1b\[[0-9;]*m", "", captured.get())

    panel.update(state(history, "learner"))
    now = 163.0
    panel.update(state(history, "learner"))
    assert "learner   1:03" in text()
    panel.update(state(history, "sync"))
    now = 165.0
    assert "sync   0:02" in text()


def test_the_live_panel_cleans_up_after_an_error() -> None:
    stream = Terminal()
    with pytest.raises(KeyError), open_panel(TrackingConfig(panel="on"), stream) as panel:
        panel.update(state(History()))
        raise KeyError
    hidden, shown = stream.getvalue().count("\x1b[?25l"), stream.getvalue().count("\x1b[?25h")
    assert (hidden, shown) == (1, 1)  # the cursor
    for thread in threading.enumerate():
        if "Refresh" in type(thread).__name__:
            thread.join(10)
            assert not thread.is_alive()


@given(st.lists(st.floats(0, 1), max_size=200))
def test_a_sparkline_never_overflows(values: list[float]) -> None:
    line = panel_view.sparkline(values, 0.0, 1.0, 28)
    assert len(line) == min(28, len(values))


def test_a_sparkline_rises_with_its_values() -> None:
    assert panel_view.sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▄▇"
    assert panel_view.sparkline([0.0, 0.0, 1.0, 1.0], 0.0, 1.0, 2) == "▁▇"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")]
)
def test_durations_are_read_as_clocks(seconds: float, text: str) -> None:
    assert panel_view.duration(seconds) == text
