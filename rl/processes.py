"""Memory of a run's processes on this machine, by what they are for."""

from __future__ import annotations

import os

import psutil

_MIB = 1 << 20

_GROUPS = {
    "VLLM::": "engine",
    "ray::_VllmActor": "engine",
    "ray::FsdpActor": "learner",
    "ray::_WorkerActor": "rollout",
    "ray::_VerifierActor": "verifier",
    "polymath.rollout.verifier_worker": "verifier",
    "ray::SandboxHost": "sandbox",
    "bwrap": "sandbox",
    "ray::RunStore": "run_store",
}
"""What a process's title holds, and what the process is for; all others are Ray's own."""


def memory_metrics() -> dict[str, float]:
    """Resident MiB by group of processes, this one and all that it started, and what is left."""
    groups: dict[str, float] = {}
    driver = psutil.Process()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            title = " ".join(process.cmdline()) or process.name()
            resident = process.memory_info().rss / _MIB
        except psutil.Error:
            continue
        group = "driver" if process.pid == os.getpid() else _group(title)
        groups[group] = groups.get(group, 0.0) + resident
    metrics = {f"memory/rss/{name}": value for name, value in groups.items()}
    metrics["memory/total"] = sum(groups.values())
    metrics["memory/available"] = psutil.virtual_memory().available / _MIB
    return metrics


def _group(title: str) -> str:
    return next((group for mark, group in _GROUPS.items() if mark in title), "ray")
