"""How a rollout worker writes to the run store: in order, without waiting, in batches.

While one append is on its way, records gather for the next; so a busy worker makes few calls. An
episode is handed over only after ``flush``, so nothing trains that the log does not hold.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from polymath.rollout.records import Kind, Record, pack
from polymath.rollout.run_store import RunStoreError

Append = Callable[[Sequence[bytes]], Awaitable[None]]
"""Appends packed records to the run store."""


class Journal:
    """``seconds`` is the deadline of one append. After a failure every ``flush`` raises it."""

    def __init__(self, append: Append, seconds: float) -> None:
        self._append = append
        self._seconds = seconds
        self._waiting: list[bytes] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: RunStoreError | None = None

    def add(self, kind: Kind, data: Mapping[str, Any]) -> None:
        """Take a record; it is on its way when this returns."""
        self._waiting.append(pack(Record(kind, time.time(), data)))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())

    async def flush(self) -> None:
        """Return when all that was added is in the log. Raises ``RunStoreError``."""
        while self._writer is not None and not self._writer.done():
            await asyncio.shield(self._writer)
        if self._failure is not None:
            raise self._failure

    async def _write(self) -> None:
        while self._waiting and self._failure is None:
            batch, self._waiting = self._waiting, []
            try:
                async with asyncio.timeout(self._seconds):
                    await self._append(batch)
            except TimeoutError:
                self._failure = RunStoreError(
                    f"the run store did not take {len(batch)} records within {self._seconds:g} s"
                )
            except RunStoreError as error:
                self._failure = error
            except Exception as error:
                self._failure = RunStoreError(f"the run store failed: {error}")
