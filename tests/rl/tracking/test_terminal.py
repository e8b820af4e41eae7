"""While the panel is up, whatever libraries print goes to the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polymath.rl.tracking.terminal import captured


def test_prints_of_all_kinds_go_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "console.log"
    print("before", flush=True)
    with captured(log) as screen:
        os.write(2, b"native noise\n")
        subprocess.run([sys.executable, "-c", "print('child noise')"], check=True, timeout=30)
        screen.write("panel\n")
        screen.flush()
    os.write(1, b"after\n")
    assert capfd.readouterr().out.splitlines() == ["before", "panel", "after"]
    assert log.read_text().splitlines() == ["native noise", "child noise"]


def test_the_terminal_comes_back_after_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), captured(tmp_path / "console.log"):
        raise KeyError
    os.write(2, b"back\n")
    assert capfd.readouterr().err == "back\n"
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_python_prints_are_captured_in_a_real_process(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from polymath.rl.tracking.terminal import captured\n"
        "print('early')\n"
        f"with captured(Path({str(tmp_path / 'console.log')!r})) as screen:\n"
        "    print('noise'); print('panel', file=screen)\n"
        "print('late')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["early", "panel", "late"]
    assert (tmp_path / "console.log").read_text() == "noise\n"
