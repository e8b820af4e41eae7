"""`polymath bench EXPERIMENT`: a few steps of it, without evaluation, and where their time went.

The first step is left out: it pays for warm-up. Figures hold for this machine and this load only.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import cast

from polymath.configs import Composed
from polymath.errors import PolymathError
from polymath.rl import launch
from polymath.rl.schema import TrainConfig
from polymath.rl.tracking.records import read_history
from polymath.rl.tracking.terminal import captured

_STEPS = 4
_FIGURES = (
    "throughput/completion",
    "throughput/trained",
    "seconds/step",
    "idle/engine",
    "idle/learner",
)


class BenchError(PolymathError):
    """The measured run did not come to its end."""


def run(composed: Composed) -> dict[str, float]:
    """Medians over the measured steps, by metric name: tokens/s, seconds by phase, idle shares."""
    config = cast(TrainConfig, composed.config)
    with tempfile.TemporaryDirectory(prefix="polymath-bench-") as folder:
        short = config.replace(
            run=config.run.replace(folder=folder),
            resume="never",
            steps=_STEPS,
            evaluation=config.evaluation.replace(seeds_per_level=0),
            tracking=config.tracking.replace(wandb="off"),
        )
        # The run's own lines, of its panel too, are not figures.
        with captured(Path(folder) / "screen.log"):
            if launch.train(replace(composed, config=short, chosen=frozenset())) != 0:
                raise BenchError("the measured run was interrupted")
        history = read_history(Path(folder) / config.run.name)
    phases = [f"seconds/phase/{name}" for name in history.labelled("seconds/phase/<phase>")]
    figures = {}
    for metric in (*_FIGURES, *phases):
        values = [value for step, value in history.series(metric) if step > 1]
        if values:
            figures[metric] = statistics.median(values)
    return figures
