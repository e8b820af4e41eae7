"""The files of a run and how they are read back.

- ``metrics.jsonl``: one object a line, ``{"step": 3, "time": 1.7e9, "reward/mean": 0.4, ...}``. A
  step may take several lines; of a repeated metric the last one counts.
- ``evaluations.jsonl``: one `Evaluation` a line.
- ``tables/<name>.jsonl``: one row a line, with its ``step``; ``tables/episodes.jsonl`` holds
  examples.
- ``summary.json``: the figures that the run is remembered by. ``about.json``: when, where, with
  what.

A line that a crash has cut short at the very end of a file is left out; any other damage is an
error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from polymath.errors import UserError
from polymath.rl.tracking import metrics
from polymath.rl.tracking.metrics import TrackingError

METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
TABLES = "tables"
SUMMARY = "summary.json"
ABOUT = "about.json"
CONFIG = "config.yaml"

EPISODES = "episodes"
"""The table of example episodes."""

TABLE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    EPISODES: (
        "episode",
        "domain",
        "level",
        "effort",
        "outcome",
        "why",
        "reward",
        "turns",
        "tokens",
        "transcript",
        "verdict",
    ),
}
"""Columns of each table. ``transcript`` is the text with its special tokens, ``verdict`` is
JSON.
"""

SPLITS = ("before", "during", "after")

Point = tuple[int, float]
"""A step and a value."""


class RunDataError(TrackingError, UserError):
    """A run's files are missing, empty or damaged."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out reward of one domain at one level: ``n`` episodes, their mean and its standard
    error.
    """

    step: int
    split: str
    mode: str
    domain: str
    level: int
    n: int
    mean: float
    stderr: float

    def __post_init__(self) -> None:
        known = self.split in SPLITS and self.mode in metrics.MODES
        if not (known and self.n >= 1 and math.isfinite(self.mean) and self.stderr >= 0):
            raise TrackingError(
                f"evaluation of {self.domain} at step {self.step}: split {self.split!r}, mode "
                f"{self.mode!r}, n {self.n}, mean {self.mean}, stderr {self.stderr}; expected a split "
                f"of {SPLITS}, a mode of {metrics.MODES}, n >= 1 and finite figures"
            )

    @property
    def family(self) -> str:
        """The domain's family."""
        return self.domain.split("/", 1)[0]

    def as_row(self) -> dict[str, Any]:
        """The record as written to ``evaluations.jsonl``."""
        return asdict(self)


class History:
    """Every metric of a run so far, by name, in the order of the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.started: float | None = None
        self.ended: float | None = None
        self._series: dict[str, list[Point]] = {}

    def add(self, step: int, values: Mapping[str, float], time: float | None = None) -> None:
        """Take in what was logged at ``step``. Steps come in order; a repeated value replaces
        the first.
        """
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
        for name, value in values.items():
            series = self._series.setdefault(name, [])
            if series and series[-1][0] == step:
                series.pop()
            series.append((step, value))
        if time is not None:
            self.started = time if self.started is None else self.started
            self.ended = time

    def series(self, name: str) -> list[Point]:
        """What was logged under ``name``; empty if nothing was."""
        return self._series.get(name, [])

    def last(self, name: str) -> float | None:
        """The newest value of ``name``."""
        series = self._series.get(name)
        return series[-1][1] if series else None

    def labelled(self, pattern: str) -> dict[str, list[Point]]:
        """Series whose names fit ``pattern``, keyed by the values of its labels, in
        alphabetical order.
        """
        found = {}
        for name in sorted(self._series):
            values = metrics.labels(pattern, name)
            if values is not None:
                found["/".join(values)] = self._series[name]
        return found

    def names_at(self, step: int) -> set[str]:
        """Names already logged at ``step``."""
        return {name for name, series in self._series.items() if series[-1][0] == step}


def read_history(folder: Path) -> History:
    """The metrics of the run in ``folder``.

    Raises ``RunDataError`` if there are none, or the file is damaged.
    """
    path = folder / METRICS
    lines = read_lines(path)
    if not lines:
        state = "is empty" if path.exists() else "does not exist"
        raise RunDataError(
            f"{path} {state}: no step of this run was logged, so there is nothing to show"
        )
    history = History()
    for number, line in enumerate(lines, 1):
        step, time = line.pop("step", None), line.pop("time", None)
        if not isinstance(step, int) or (history.steps and step < history.steps[-1]):
            raise RunDataError(f"{path}:{number}: step {step!r} is missing or out of order")
        broken = [name for name, value in line.items() if not isinstance(value, int | float)]
        if broken:
            raise RunDataError(f"{path}:{number}: {broken[0]!r} is not a number")
        history.add(step, line, time)
    return history


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Held-out evaluations of the run in ``folder``, by step; a repeated one replaces the first.

    Raises ``RunDataError`` if the file is damaged. A run without evaluations gives an empty list.
    """
    path = folder / EVALUATIONS
    newest = {}
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = Evaluation(**{field.name: line[field.name] for field in fields(Evaluation)})
        except (KeyError, TypeError, TrackingError) as error:
            raise RunDataError(f"{path}:{number}: not an evaluation ({error})") from None
        newest[record.step, record.split, record.mode, record.domain, record.level] = record
    return sorted(newest.values(), key=lambda record: record.step)


def read_table(folder: Path, name: str) -> list[dict[str, Any]]:
    """Rows of a table of the run in ``folder``; empty if it has none."""
    return read_lines(folder / TABLES / f"{name}.jsonl")


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty if there is no file. Raises ``RunDataError`` if it is
    damaged.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunDataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise RunDataError(f"{path}: expected an object")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a ``.jsonl`` file; empty if there is no file."""
    try:
        raw = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDataError(f"{path}: cannot be read ({error.strerror})") from None
    whole = raw[:-1]  # what follows the last newline was cut short
    return [
        _parse(line, f"{path}:{number}") for number, line in enumerate(whole, 1) if line.strip()
    ]


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_refuse)
    except ValueError:
        raise RunDataError(f"{where}: not a line of JSON; the file is damaged there") from None
    if not isinstance(value, dict):
        raise RunDataError(f"{where}: expected an object")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows in the form of a ``.jsonl`` file.

    Raises ``ValueError`` for numbers that JSON does not have, and ``TypeError`` for other objects.
    """
    text = (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    return "".join(text).encode("utf-8", "surrogatepass")
