"""Memory of a run's processes, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psutil

_MIB = 1 << 20


def memory_metrics(process_ids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Resident MiB by group of processes, children included, and what the machine has left.

    A process that is gone counts as nothing.
    """
    groups = {name: sum(map(_resident, pids)) for name, pids in process_ids.items()}
    metrics = {f"memory/rss/{name}": value for name, value in groups.items()}
    metrics["memory/total"] = sum(groups.values())
    metrics["memory/available"] = psutil.virtual_memory().available / _MIB
    return metrics


def _resident(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0.0
    total = 0.0
    for member in family:
        try:
            total += member.memory_info().rss / _MIB
        except psutil.Error:
            continue
    return total
