"""Ctrl-C: the first asks the run to end well, the second ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

EXIT_INTERRUPTED = 130


@contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM call ``ask`` once; a second one kills this process and all that it
    started."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            end_at_once()
        asked = True
        ask()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def end_at_once() -> None:
    """Kill every descendant, then exit without cleaning up."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.Error:
            continue
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        terminal.write("\x1b[?25h")  # the panel hid the cursor
    os._exit(EXIT_INTERRUPTED)
