"""The only writer of metrics, on the only clock.

    tracker = Tracker(config, run_folder, resume_step=None, run_config=resolved)
    tracker.log(step, {"reward/mean": 0.4, ...})
    tracker.table(step, "episodes", rows)
    tracker.evaluations([Evaluation(...), ...])
    tracker.summary({"heldout/gain/sampled": 0.3})
    tracker.close()

What is logged goes to the run's files first; a mirror such as Weights & Biases that fails costs one
warning, never the run. ``tracker.history`` holds everything logged so far, for panel and table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polymath.rl.tracking import records
from polymath.rl.tracking.about import about
from polymath.rl.tracking.metrics import TrackingError, checked
from polymath.rl.tracking.records import Evaluation, History
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rl.tracking.sinks.base import Sink, TableRow
from polymath.rl.tracking.sinks.jsonl import JsonlSink, replace
from polymath.rl.tracking.sinks.wandb import WandbSink, WandbTarget


class Tracker:
    """Checks what is logged against the table of metrics, writes it and passes it on."""

    def __init__(
        self,
        config: TrackingConfig,
        run_folder: Path,
        *,
        resume_step: int | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        """``resume_step`` is the step of the checkpoint that the run goes on from: what was
        logged later is dropped (-1 drops all). None starts a new run. ``run_config`` is shown by
        mirrors.

        Raises ``TrackingError`` if a new run's folder already holds metrics.
        """
        self.warnings: list[str] = []
        self.history = History()
        self._examples, self._every = config.episodes, config.episodes_every
        self._folder = run_folder
        self._files = JsonlSink(run_folder)
        run_folder.mkdir(parents=True, exist_ok=True)
        self._resumed_at = resume_step
        self._open(resume_step)
        mode = config.wandb
        target = WandbTarget(
            mode, config.project, config.entity, config.group, config.online_seconds
        )
        self._mirrors: list[Sink] = []
        if mode != "off":
            self._attempt("cannot start", lambda: self._mirror_to(target, run_config or {}))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of ``step``. A step may be logged in parts, with different metrics; only the step
        that a run was resumed at may be repeated.

        Raises ``UndeclaredMetric``, ``NonFiniteMetric``, or ``TrackingError`` for an earlier
        step, for a metric already logged at this step, and for a file that cannot be written.
        """
        plain = checked(values, f"step {step}")
        newest = self.history.steps[-1] if self.history.steps else -1
        if step < newest:
            raise TrackingError(
                f"step {step} logged after step {newest}: the step clock never goes back"
            )
        twice = self.history.names_at(step) & plain.keys()
        if twice and step == newest and step != self._resumed_at:
            raise TrackingError(
                f"step {step}: metric {min(twice)!r} was already logged at this step"
            )
        now = time.time()
        self._files.log(step, now, plain)
        self.history.add(step, plain, now)
        self._forward(lambda sink: sink.log(step, now, plain))

    def table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Rows of a table, with the columns of ``records.TABLE_COLUMNS``; none writes nothing.

        Raises ``TrackingError`` for an unknown table or other columns.
        """
        columns = records.TABLE_COLUMNS.get(name)
        if columns is None:
            raise TrackingError(
                f"table {name!r} is not declared; add it to TABLE_COLUMNS in records.py"
            )
        for row in rows:
            if set(row) != set(columns):
                odd = min(set(row) ^ set(columns))
                raise TrackingError(
                    f"table {name!r} at step {step}: column {odd!r} is missing or unknown"
                )
        if rows:
            self._write_rows(
                step, name, [{column: row[column] for column in columns} for row in rows]
            )

    def episodes_due(self, step: int) -> int:
        """How many example episodes the table of this step should hold; 0 where none is due."""
        return self._examples if self._every and step % self._every == 0 else 0

    def evaluations(self, evaluations: Sequence[Evaluation]) -> None:
        """Write held-out evaluations, all of one step, to ``evaluations.jsonl``."""
        if evaluations:
            name = Path(records.EVALUATIONS).stem
            rows = [evaluation.as_row() for evaluation in evaluations]
            self._write_rows(evaluations[0].step, name, rows)

    def summary(self, values: Mapping[str, float]) -> None:
        """The figures that the run is remembered by; names are those of the table of metrics."""
        plain = checked(values, "summary")
        self._files.summary(plain)
        self._forward(lambda sink: sink.summary(plain))

    def close(self) -> None:
        """Write out what mirrors hold; may be called twice."""
        self._forward(lambda sink: sink.close())
        self._mirrors.clear()

    def _open(self, resume_step: int | None) -> None:
        path = self._folder / records.METRICS
        if resume_step is not None:
            self._files.rewind(resume_step)
        elif path.exists() and path.stat().st_size:
            raise TrackingError(
                f"{path} already holds a run; resume it, or choose another run.name"
            )
        if path.exists() and path.stat().st_size:
            self.history = records.read_history(self._folder)
        if not (self._folder / records.ABOUT).exists():
            text = json.dumps(about(), indent=1, ensure_ascii=False) + "\n"
            replace(self._folder / records.ABOUT, text.encode())

    def _write_rows(self, step: int, name: str, rows: list[dict[str, Any]]) -> None:
        try:
            self._files.table(step, name, rows)
        except (TypeError, ValueError) as error:
            raise TrackingError(
                f"table {name!r} at step {step}: not writable as JSON ({error})"
            ) from None
        self._forward(lambda sink: sink.table(step, name, rows))

    def _mirror_to(self, target: WandbTarget, run_config: Mapping[str, Any]) -> None:
        self._mirrors.append(WandbSink(target, self._folder, run_config, self.warnings.append))

    def _forward(self, send: Callable[[Sink], None]) -> None:
        for sink in list(self._mirrors):
            if not self._attempt("stopped working", lambda sink=sink: send(sink)):  # type: ignore[misc]
                self._mirrors.remove(sink)

    def _attempt(self, what: str, action: Callable[[], None]) -> bool:
        """Whatever a mirror raises is a warning: it must never cost the run."""
        try:
            action()
        except Exception as error:
            self.warnings.append(f"Weights & Biases {what} ({error}); metrics.jsonl has everything")
            return False
        return True
