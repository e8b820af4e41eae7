"""The table before/after says what the evaluations say, and no more."""

from __future__ import annotations

import io
import math
import random
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from polymath.rl.tracking.before_after import compare, estimates, final_table, gain_metrics
from polymath.rl.tracking.metrics import checked
from polymath.rl.tracking.records import Evaluation

BASE = Evaluation(0, "before", "sampled", "office/sum", 0, 30, 0.2, 0.05)
AFTER = replace(BASE, step=9, split="after", mean=0.6)


def test_levels_are_pooled_like_their_episodes() -> None:
    draw = random.Random(1)
    levels = [[draw.random() < p for _ in range(n)] for p, n in ((0.3, 40), (0.8, 10))]
    records = []
    for level, scores in enumerate(levels):
        mean, n = statistics.fmean(scores), len(scores)
        stderr = math.sqrt(mean * (1 - mean) / n)
        records.append(replace(BASE, level=level, n=n, mean=mean, stderr=stderr))
    pooled = estimates(records, "sampled")[0]
    everything = levels[0] + levels[1]
    assert pooled.n == 50
    assert pooled.mean == pytest.approx(statistics.fmean(everything))
    variances = (len(s) / 50 * math.sqrt(statistics.pvariance(s) / len(s)) for s in levels)
    assert pooled.stderr == pytest.approx(math.sqrt(sum(v * v for v in variances)))


def test_domains_weigh_alike_however_many_episodes_they_have() -> None:
    other = replace(BASE, domain="terminal/logs", n=300, mean=0.8, stderr=0.0)
    total = estimates([BASE, other], "sampled")[0]
    assert (total.mean, total.stderr, total.n) == (pytest.approx(0.5), pytest.approx(0.025), 330)


@pytest.mark.parametrize(
    ("after", "verdict"), [(0.6, "up"), (0.25, "flat"), (0.2, "flat"), (0.0, "down")]
)
def test_a_gain_counts_only_beyond_the_noise(after: float, verdict: str) -> None:
    (comparison,) = compare([BASE, replace(AFTER, mean=after)])
    (change,) = comparison.domains
    assert change.gain == pytest.approx(after - 0.2)
    assert change.stderr == pytest.approx(0.05 * math.sqrt(2))
    assert change.verdict == verdict
    assert comparison.bystanders == (() if verdict == "up" else ("office/sum",))


def test_only_domains_on_both_sides_are_compared() -> None:
    lonely = replace(BASE, domain="web/find")
    (comparison,) = compare([BASE, lonely, AFTER])
    assert [change.name for change in comparison.domains] == ["office/sum"]
    assert compare([BASE, lonely]) == []


def test_a_prolonged_run_is_judged_by_its_newest_evaluation() -> None:
    (comparison,) = compare([BASE, AFTER, replace(AFTER, step=20, mean=0.7)])
    assert comparison.total.after.mean == pytest.approx(0.7)


def test_the_table_in_the_terminal_names_those_who_gained_nothing() -> None:
    still = replace(BASE, domain="terminal/logs")
    console = Console(file=io.StringIO(), width=100)
    final_table([BASE, still, AFTER, replace(still, step=9, split="after")], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "0.200 ± 0.050" in text and "+0.400 ± 0.071" in text
    assert "No gain beyond the noise (sampled): terminal/logs" in text
    final_table([BASE], silent := Console(file=io.StringIO()))
    assert isinstance(silent.file, io.StringIO)
    assert silent.file.getvalue() == ""


def test_gains_can_be_logged_as_they_are() -> None:
    gains = checked(gain_metrics([BASE, AFTER]), "summary")
    assert gains == pytest.approx(
        {"heldout/gain/sampled": 0.4, "heldout/gain_stderr/sampled": 0.05 * math.sqrt(2)}
    )
    assert gain_metrics([BASE]) == {}
