"""The processes below this one: their memory, and their end."""

from __future__ import annotations

import contextlib


def end_children(seconds: float) -> None:
    """Kill all processes that descend from this one, and wait for them."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=seconds)


def resident_bytes() -> int:
    """Memory of this process and all that descend from it."""
    import psutil

    total = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
