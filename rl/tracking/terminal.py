"""Keeps the terminal for the panel: what libraries print goes to a file.

Native code and child processes write to the file descriptors themselves, so it is these that are
redirected, not only Python's ``sys.stdout``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def captured(log: Path) -> Iterator[TextIO]:
    """Send everything that is printed meanwhile to ``log`` (appended); yields the real stdout.

    Processes started meanwhile inherit the file, so they too stay quiet.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    _flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with os.fdopen(os.dup(1), "w", encoding=_encoding(), errors="replace") as screen:
            os.dup2(file, 1)
            os.dup2(file, 2)
            yield screen
    finally:
        _flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(file)


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
