"""The attack suite again as a normal user, without control groups, when these tests run as root."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
_PATHS = (str(ROOT / "src"), sysconfig.get_path("purelib"))


def as_nobody(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "PYTHONPATH": ":".join(_PATHS),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [*_AS_NOBODY, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@functools.cache
def interpreter() -> str:
    """A Python of our version that a normal user can start and that finds Polymath, or a skip."""
    if os.geteuid() != 0:
        pytest.skip("these tests run as a normal user already")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing, so no other user can be taken on")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}"):
        if (
            as_nobody(
                candidate, "-c", "import pytest, polymath.envs.sandbox", seconds=60
            ).returncode
            == 0
        ):
            return candidate
    pytest.skip("no interpreter of this version, or not this checkout, is open to normal users")


def suite(*selection: str, seconds: float) -> None:
    tests = str(Path(__file__).with_name("test_attacks.py"))
    done = as_nobody(
        interpreter(),
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"),
        *(tests, *selection),
        seconds=seconds,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_limits_hold_for_a_normal_user() -> None:
    suite("-k", "memory_hog_of_many or processes_are_counted or inode_fill", seconds=120)


@pytest.mark.slow
def test_the_attack_suite_holds_for_a_normal_user() -> None:
    suite(seconds=280)
