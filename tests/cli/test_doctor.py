"""`polymath doctor` says what is there and what is not, and how to mend it."""

import json
from collections.abc import Iterator
from importlib import metadata

import pytest

from polymath import machine
from polymath.cli.main import main
from polymath.machine import Finding, Level


def test_this_machine_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = {finding["name"]: finding for finding in found["findings"]}
    assert {"python", "cores", "memory", "GPU", "vllm", "bubblewrap", "control groups"} <= set(
        names
    )
    assert code == (0 if found["ready"] else 1)
    assert names["torch"]["found"] == metadata.version("torch")
    failing = [name for name, finding in names.items() if finding["level"] == "fails"]
    assert found["ready"] is (not failing)
    # The suite runs where training runs; whatever fails here has a way out.
    assert all(names[name]["fix"] for name in failing)


def test_what_is_needed_and_missing_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> Iterator[Finding]:
        yield Finding("memory", "1 GiB", Level.FAILS, "use a larger machine")
        yield Finding("extra [cad]", "absent", Level.LACKS, "pip install it")

    monkeypatch.setattr(machine, "_CHECKS", (check,))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "use a larger machine" in out
    assert "extra [cad]" in out
    assert "training cannot work here yet: memory" in out
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False


def test_what_is_optional_and_missing_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        machine, "_CHECKS", (lambda: iter([Finding("x", "absent", Level.LACKS, "y")]),)
    )
    assert main(["doctor"]) == 0
    assert "ready" in capsys.readouterr().out


def test_missing_extras_are_told_from_the_distribution_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "openpyxl":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "ray" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    missing = machine.missing_by_extra()
    assert missing["office"] == ["openpyxl"]
    assert "ray" in missing["cpu"]
    findings = {finding.name: finding for finding in machine.examine()}
    assert findings["extra office"].level is Level.FAILS
    assert findings["extra office"].fix == "pip install 'polymath-rl[office]'"


def test_an_absent_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    findings = {finding.name: finding for finding in machine.examine()}
    assert findings["libnuma"].level is Level.FAILS
    assert "libnuma1" in findings["libnuma"].fix
