"""The page holds the numbers of the run, needs nothing else, and is well-formed."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymath.rl.tracking.report import write, write_comparison, write_report
from polymath.rl.tracking.report.charts import Line, line_chart, nice_ticks, smoothed, stacked_bars
from polymath.rl.tracking.report.comparison import mean_and_range
from polymath.rl.tracking.report.episodes import messages


class Page(HTMLParser):
    """Tables as rows of text, all text, and a check that tags close in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        self.words: list[str] = []
        self._open: list[str] = []
        self._row: list[str] | None = None
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "tr":
            self._row = []
        if tag in ("td", "th") and self._row is not None:
            self._row.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "tr" and self._row:
            self.rows.setdefault(self._row[0], self._row)
            self._row = None

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._row:
            self._row[-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_the_report_says_what_the_run_did(make_run: Callable[..., Path]) -> None:
    path = write_report(make_run())
    page = Page(path.read_text())
    assert page.rows["office/sum"][1:5] == [
        "40 / 40",
        "0.200 ± 0.050",
        "0.500 ± 0.050",
        "+0.300 ± 0.071",
    ]
    assert page.rows["all domains"][1:5] == [
        "80 / 80",
        "0.300 ± 0.035",
        "0.450 ± 0.035",
        "+0.150 ± 0.050",
    ]
    assert "rose from 0.300 to 0.450" in page.text
    assert "No gain beyond the noise: terminal/logs" in page.text
    assert page.rows["trained"][1:3] == ["6,000", "50.0%"]
    assert page.rows["dropped: zero spread"][1:3] == ["3,600", "30.0%"]
    assert page.rows["sampled"][1:3] == ["12,000", "100%"]
    assert "unaccounted for" not in page.rows
    assert page.rows["truncated: turns"] == ["truncated: turns", "24"]
    assert "scored 360 (93.8%)" in page.text
    assert "starter" in page.text and "1:06" in page.text


def test_the_curves_bear_the_logged_numbers(make_run: Callable[..., Path]) -> None:
    html = write_report(make_run()).read_text()
    titles = {title.text or "" for svg in svgs(html) for title in svg.iter("title")}
    assert "held-out, sampled, step 6: 0.45" in titles
    assert "steps" not in "".join(titles)  # six steps need no joining
    assert {f"step {step}: rollout wait 8" for step in range(1, 7)} <= titles
    assert {f"step {step}: scored 60" for step in range(1, 7)} <= titles
    assert {f"sampled, step {step}: 800" for step in range(1, 7)} <= titles


def test_the_page_needs_nothing_else(make_run: Callable[..., Path]) -> None:
    html = write_report(make_run()).read_text()
    for outside in ("<script", "http://", "https://", "<link", "@import", "url(", "src="):
        assert outside not in html
    assert "prefers-color-scheme: dark" in html


def test_a_ledger_that_does_not_balance_says_so(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    path = folder / "metrics.jsonl"
    path.write_text(
        path.read_text().replace('"ledger/pending": 2400.0', '"ledger/pending": 2390.0')
    )
    assert Page(write_report(folder).read_text()).rows["unaccounted for"][1] == "10"


def test_episodes_are_shown_as_the_model_saw_them_and_escaped(
    make_run: Callable[..., Path], make_row: Callable[..., dict[str, object]]
) -> None:
    folder = make_run()
    html = write_report(folder).read_text()
    assert "Add &lt;b&gt; cells" in html
    assert '<span class="call">sheet:0 {}</span>' in html
    assert "reward 0.75" in html
    hostile = make_row(
        step=1,
        transcript="<script>alert(1)</script><|think|>never closed",
        outcome="truncated",
        why="turns",
        reward=None,
        verdict=None,
    )
    html = write_report(folder, episodes=[hostile]).read_text()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert '<span class="thought">never closed</span>' in html
    assert "truncated: turns" in Page(html).text


def test_messages_keep_their_order() -> None:
    text = (
        "<|system|>s<|tools|>t<|end|><|user|>u<|end|><|assistant|>a<|end|><|tool|>0<|sep|>r<|end|>"
    )
    assert [role for role, _ in messages(text)] == ["system", "user", "assistant", "tool"]
    assert list(messages("plain")) == [("text", "plain")]
    assert list(messages("")) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 0, "heldout/mean/sampled": 0.5}\n',
        '{"step": 1, "reward/mean": 0.0, "reward/family/office": 0.0}\n',
        '{"step": 1, "reward/mean": -1.0, "reward/family/office": -1.0, "loss/total": 0}\n',
        '{"step": 1, "seconds/phase/learner": 0.0, "outcome/scored": 0}\n',
        '{"step": 1, "unheard/of": 3.0}\n',
    ],
)
def test_a_run_that_has_hardly_begun_has_a_report_too(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(line)
    html = write_report(tmp_path).read_text()
    assert "nan" not in html.lower().replace("finance", "")
    assert svgs(html) is not None
    Page(html)


def test_several_runs_are_compared(make_run: Callable[..., Path], tmp_path: Path) -> None:
    runs = [make_run("a", 0.2), make_run("b", 0.3), make_run("c", 0.4)]
    path = write_comparison(runs, tmp_path / "comparison.html")
    page = Page(path.read_text())
    gains = {
        name.split()[0]: row[4] for name, row in page.rows.items() if name[:2] in ("a ", "b ", "c ")
    }
    assert gains == {"a": "+0.100 ± 0.050", "b": "+0.150 ± 0.050", "c": "+0.200 ± 0.050"}
    total = next(row for name, row in page.rows.items() if name.startswith("mean over runs"))
    assert total[2:] == ["0.300 ± 0.000", "0.450 ± 0.050", "+0.150 ± 0.050"]
    assert page.rows["office/sum"][1:] == ["+0.300 ± 0.100", "+0.200", "3 of 3"]
    assert page.rows["terminal/logs"][3] == "0 of 3"


def test_one_call_serves_one_run_and_several(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run, other = make_run("a"), make_run("b")
    assert "Before and after, on held-out tasks" in write([run], tmp_path / "one.html").read_text()
    assert "<h1>2 runs</h1>" in write([run, other], tmp_path / "two.html").read_text()


def test_the_mean_curve_has_the_steps_that_all_runs_have() -> None:
    mean, spread = mean_and_range([[(1, 0.0), (2, 0.2), (3, 9.0)], [(2, 0.4), (1, 1.0)]])
    assert mean == [(1, 0.5), (2, pytest.approx(0.3))]
    assert spread == [(1, 0.0, 1.0), (2, 0.2, 0.4)]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
@example(0.0, 5e-324)
def test_ticks_are_few_and_span_the_data(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    steps = [b - a for a, b in pairwise(ticks)]
    assert ticks[0] <= low + 1e-6 * max(1.0, abs(low), span)
    assert ticks[-1] >= low + span - 1e-6 * max(1.0, abs(low), span)
    assert 2 <= len(ticks) <= 8
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400))
def test_charts_stay_inside_their_frame(values: list[float]) -> None:
    points = list(enumerate(values))
    band = [(step, value - 1.0, value + 1.0) for step, value in points]
    svg = ElementTree.fromstring(line_chart([Line("x", points, band=band)]))
    (curve,) = svg.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in curve.attrib["points"].split()]
    assert len(places) == len(points)
    assert all(0 <= x <= 460 and -1 <= y <= 191 for x, y in places)


def test_long_runs_are_joined_into_few_bars() -> None:
    points = [(step, float(step)) for step in range(1, 1001)]
    svg = ElementTree.fromstring(stacked_bars([("wait", points)]))
    bars = list(svg.iter("rect"))
    assert len(bars) <= 80
    assert (bars[0].find("title")).text == "steps 1 to 13: wait 7"  # type: ignore[union-attr]


def test_smoothing_keeps_straight_lines_and_both_ends() -> None:
    line = [(step, 2.0 * step) for step in range(7)]
    assert [step for step, _ in smoothed(line)] == list(range(7))
    assert [value for _, value in smoothed(line)] == pytest.approx([value for _, value in line])
    assert smoothed([(1, 0.0), (2, 3.0), (3, 0.0)]) == [(1, 0.0), (2, 1.0), (3, 0.0)]
