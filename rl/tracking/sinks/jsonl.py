"""The run's own files: append-only, one write a record, so that a crash cuts at most the last
line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from polymath.rl.tracking import records
from polymath.rl.tracking.metrics import TrackingError
from polymath.rl.tracking.sinks.base import TableRow


class JsonlSink:
    """Writes ``metrics.jsonl``, ``evaluations.jsonl``, ``tables/`` and ``summary.json``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Append one line to ``metrics.jsonl``."""
        self._append(
            self._folder / records.METRICS, [{"step": step, "time": round(time, 3), **values}]
        )

    def table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Append rows to a table; the evaluations have a file of their own."""
        path = self._folder / records.TABLES / f"{name}.jsonl"
        if name == Path(records.EVALUATIONS).stem:
            path = self._folder / records.EVALUATIONS
        self._append(path, [{"step": step, **row} for row in rows])

    def summary(self, values: Mapping[str, float]) -> None:
        """Replace ``summary.json``."""
        text = json.dumps(dict(values), indent=1, allow_nan=False) + "\n"
        replace(self._folder / records.SUMMARY, text.encode())

    def close(self) -> None:
        """Nothing is held back."""

    def rewind(self, step: int) -> None:
        """Forget everything after ``step``: it will be done again from a checkpoint."""
        paths = [self._folder / records.METRICS, self._folder / records.EVALUATIONS]
        for path in [*paths, *(self._folder / records.TABLES).glob("*.jsonl")]:
            lines = records.read_lines(path)
            if lines:
                replace(path, records.as_lines(line for line in lines if line["step"] <= step))
        (self._folder / records.SUMMARY).unlink(missing_ok=True)

    def _append(self, path: Path, rows: Sequence[TableRow]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                data = records.as_lines(rows)
                if file.write(data) != len(data):
                    raise OSError(None, "the disk took only a part")
        except OSError as error:
            raise TrackingError(f"cannot write {path}: {error.strerror}") from error


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises ``TrackingError``."""
    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise TrackingError(f"cannot write {path}: {error.strerror}") from error
