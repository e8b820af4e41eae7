"""A run made of known numbers, written through the tracker itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polymath.rl.tracking.records import Evaluation
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rl.tracking.tracker import Tracker

STEPS = 6


def evaluations(step: int, split: str, rewards: dict[str, float], n: int = 40) -> list[Evaluation]:
    """One level a domain, standard error .05, greedy .1 above sampled."""
    return [
        Evaluation(step, split, mode, domain, 0, n, reward + shift, 0.05)
        for mode, shift in (("sampled", 0.0), ("greedy", 0.1))
        for domain, reward in rewards.items()
    ]


def episode_row(**changes: object) -> dict[str, object]:
    """A row of the table of example episodes."""
    row: dict[str, object] = {
        "episode": "e1",
        "domain": "office/sum",
        "level": 1,
        "effort": "low",
        "outcome": "scored",
        "why": "",
        "reward": 0.75,
        "turns": 2,
        "tokens": 31,
        "transcript": "<|user|>Add <b> cells<|end|><|assistant|><|call|>sheet:0<|args|>{}<|/call|><|end|>",
        "verdict": '{"status": "ok"}',
    }
    return row | changes


def write_run(folder: Path, gain: float = 0.3) -> Path:
    """Six steps; ``office/sum`` gains ``gain``, ``terminal/logs`` nothing."""
    tracker = Tracker(TrackingConfig(wandb="off"), folder)
    tracker.evaluations(evaluations(0, "before", {"office/sum": 0.2, "terminal/logs": 0.4}))
    tracker.log(0, {"heldout/mean/sampled": 0.3, "heldout/mean/greedy": 0.4})
    for step in range(1, STEPS + 1):
        tracker.log(
            step,
            {
                "reward/mean": 0.1 * step,
                "reward/stderr": 0.02,
                "reward/family/office": 0.12 * step,
                "reward/family/terminal": 0.08 * step,
                "seconds/step": 11.0,
                "seconds/phase/rollout_wait": 8.0,
                "seconds/phase/learner": 3.0,
                "throughput/completion": 800.0,
                "throughput/trained": 600.0,
                "staleness/mean": 0.5,
                "memory/total": 4096.0,
                "tokens/trained": 1000.0,
                "outcome/scored": 60.0,
                "outcome/truncated": 4.0,
                "outcome_reason/truncated/turns": 4.0,
                "ledger/sampled": 2000.0 * step,
                "ledger/consumed": 1000.0 * step,
                "ledger/dropped/zero_spread": 600.0 * step,
                "ledger/pending": 400.0 * step,
            },
        )
    tracker.table(STEPS, "episodes", [episode_row()])
    after = {"office/sum": 0.2 + gain, "terminal/logs": 0.4}
    tracker.evaluations(evaluations(STEPS, "after", after))
    tracker.log(STEPS, {"heldout/mean/sampled": 0.3 + gain / 2})
    tracker.close()
    (folder / "config.yaml").write_text("model:\n  path: starter\nsteps: 6\nrun:\n  seed: 7\n")
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "quickstart", gain: float = 0.3) -> Path:
        return write_run(tmp_path / name, gain)

    return make


@pytest.fixture
def make_row() -> Callable[..., dict[str, object]]:
    return episode_row
