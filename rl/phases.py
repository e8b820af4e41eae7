"""Where a step's time goes: named phases on one monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up seconds by phase until ``take`` hands them over. Phases do not nest."""

    def __init__(self, entered: Callable[[str], None] = lambda name: None) -> None:
        self._seconds: dict[str, float] = {}
        self._entered = entered
        self._since = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside under this name."""
        self._entered(name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> tuple[dict[str, float], float]:
        """(seconds by phase, seconds in all) since the last call; starts anew."""
        now = time.monotonic()
        seconds, self._seconds = self._seconds, {}
        elapsed, self._since = now - self._since, now
        return seconds, elapsed
