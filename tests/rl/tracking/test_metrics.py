"""The table of metrics is complete, unambiguous, and the only way in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.rl.tracking import metrics
from polymath.rl.tracking.metrics import (
    LABELS,
    TABLE,
    NonFiniteMetric,
    UndeclaredMetric,
    checked,
    find,
    labels,
)

ROOT = Path(__file__).parents[3]


def test_the_page_in_docs_is_the_table() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics.markdown()


@pytest.mark.parametrize(
    "name",
    [
        "reward/mean",
        "reward/family/office",
        "reward/domain/terminal/log_triage",
        "reward/level/terminal/log_triage/2",
        "outcome/scored",
        "outcome/infrastructure_failed",
        "outcome_reason/truncated/turns",
        "throughput/completion",
        "throughput/trained",
        "staleness/max",
        "seconds/phase/rollout_wait",
        "seconds/phase/evaluation",
        "idle/engine",
        "loss/term/policy",
        "policy/mismatch_kl",
        "model/expert_load",
        "group/zero_spread",
        "ledger/dropped/zero_spread",
        "memory/rss/engine",
        "heldout/domain/greedy/office/sum",
    ],
)
def test_what_a_run_must_show_is_declared(name: str) -> None:
    assert find(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "reward",
        "reward/means",
        "reward/mean/x",
        "reward/domain/office",
        "reward/level/office/sum/high",
        "outcome/lost",
        "seconds/phase/lunch",
        "heldout/domain/beam/office/sum",
        "",
    ],
)
def test_an_undeclared_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        UndeclaredMetric, match=r"step 3: metric .* TABLE in .*metrics\.py"
    ) as error:
        checked({name: 1.0}, "step 3")
    assert repr(name) in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), True, "1", None])
def test_a_value_that_is_no_finite_number_is_refused(value: float) -> None:
    with pytest.raises(NonFiniteMetric, match="reward/mean"):
        checked({"reward/mean": value}, "step 1")


def test_numpy_scalars_become_floats() -> None:
    plain = checked({"reward/mean": np.float32(0.5), "reward/stderr": np.int64(2)}, "step 1")
    assert plain == {"reward/mean": 0.5, "reward/stderr": 2.0}
    assert all(type(value) is float for value in plain.values())


def test_every_row_says_what_it_is() -> None:
    for metric in TABLE:
        assert metric.unit and metric.meaning.endswith("."), metric.name
    assert len({metric.name for metric in TABLE}) == len(TABLE)


@given(st.data())
def test_no_name_fits_two_rows(data: st.DataObject) -> None:
    metric = data.draw(st.sampled_from(TABLE))
    name = metric.name
    for label, (pattern, _) in LABELS.items():
        if f"<{label}>" in name:
            value = data.draw(st.from_regex(pattern, fullmatch=True))
            name = name.replace(f"<{label}>", value)
    assert [row for row in TABLE if labels(row.name, name) is not None] == [metric]
    assert find(name) == metric


def test_labels_are_read_back() -> None:
    pattern = "reward/level/<domain>/<level>"
    assert labels(pattern, "reward/level/office/sum/3") == ("office/sum", "3")
    assert labels(pattern, "reward/mean") is None


def test_tracking_imports_neither_torch_nor_wandb() -> None:
    code = (
        "import sys, polymath.rl.tracking.tracker, polymath.rl.tracking.panel, "
        "polymath.rl.tracking.report\n"
        "print(sorted({'torch', 'ray', 'vllm', 'wandb', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
