"""What a sink does.

The tracker is the only caller and has checked everything: names are declared, values finite,
steps in order. What only mirrors may fail; the run then goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

TableRow = Mapping[str, Any]


class Sink(Protocol):
    """A place that metrics are sent to."""

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Metrics of one step; a step may come in several parts."""

    def table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Rows of a table at one step, all with the same columns."""

    def summary(self, values: Mapping[str, float]) -> None:
        """The figures that the run is remembered by."""

    def close(self) -> None:
        """Write out what is left."""
