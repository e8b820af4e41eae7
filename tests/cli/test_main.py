"""The command line answers with an exit code and, when something is wrong, with one line."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from polymath import __version__
from polymath.cli import doctor
from polymath.cli.main import main
from polymath.envs.sandbox.base import SandboxUnavailable
from polymath.errors import MissingExtra, PolymathError, UserError


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; nothing is on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.strip()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "train experiment=quickstart learner.lerning_rate=1",
            "unknown configuration key learner.lerning_rate; did you mean learner.learning_rate?",
        ),
        ("train learner=fsdpp", "unknown option learner=fsdpp; did you mean learner=fsdp?"),
        ("train steps=x --dry-run", "configuration key steps expects a whole number, not 'x'"),
        ("train --dry-run steps=3 nonsense", "'nonsense' is not an override; write key=value"),
        ("train --dryrun", "unknown argument --dryrun; see `polymath --help`"),
        ("doctor extra", "unknown argument extra; see `polymath --help`"),
        ("domains show", "see `polymath domains show --help`"),
        (
            "domains show terminal/csv-jon",
            "no domain terminal/csv-jon; did you mean terminal/csv-join?",
        ),
        ("domains show terminal/csv-join --level 9", "terminal/csv-join has no level 9"),
        ("report nowhere", "nowhere is not the folder of a run"),
        ("fly", "invalid choice: 'fly'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: str, expected: str
) -> None:
    assert main(arguments.split()) == 2
    line = error_line(capsys)
    assert line.startswith("polymath: ")
    assert expected in line


def test_the_installed_command_exits_with_2(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "polymath", "train", "learner.lerning_rate=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "polymath: unknown configuration key learner.lerning_rate; "
        "did you mean learner.learning_rate?\n"
    )
    assert list(tmp_path.iterdir()) == []


def raising(error: BaseException, log_file: Path | None = None) -> object:
    def run(arguments: Namespace) -> int:
        arguments.log_file = log_file
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (UserError("no such\nfile"), 2, "polymath: no such file"),
        (PolymathError("the engine died"), 1, "polymath: the engine died"),
        (
            MissingExtra("the office family", "office"),
            2,
            "polymath: the office family needs an optional part: pip install 'polymath-rl[office]'",
        ),
        (SandboxUnavailable("no sandbox can run here"), 1, "polymath: no sandbox can run here"),
        (KeyError("x"), 1, "polymath: KeyError: 'x' (--debug shows the traceback)"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, "polymath: interrupted"),
    ],
)
def test_an_error_of_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    expected: str,
) -> None:
    monkeypatch.setattr(doctor, "_doctor", raising(error))
    assert main(["doctor"]) == code
    assert expected in error_line(capsys)


def test_the_traceback_goes_to_the_log_of_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "command.log"
    monkeypatch.setattr(doctor, "_doctor", raising(PolymathError("the engine died"), log))
    assert main(["doctor"]) == 1
    assert error_line(capsys) == f"polymath: the engine died (traceback in {log})"
    assert "Traceback" in log.read_text()


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_doctor", raising(ValueError("odd")))
    assert main(["doctor", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"polymath {__version__}\n"
    assert main([]) == 0
    assert "train" in capsys.readouterr().out


def test_dry_run_prints_configuration_and_plan_and_leaves_nothing(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "polymath", "train", "--dry-run", "steps=3"]
    command += ["experiment=quickstart", "learner.learning_rate=3e-5"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True
    )
    assert "learning_rate: 3.0e-05" in done.stdout
    assert "steps: 3\n" in done.stdout
    assert "7 domains" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{Path(sys.executable).parent / 'polymath'} domains list --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"{")


def test_domains_list_and_show_print_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["domains", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["problems"] == {}
    ids = [domain["id"] for domain in listed["domains"]]
    assert "terminal/csv-join" in ids
    assert {domain["family"] for domain in listed["domains"]} >= {"terminal", "office", "reasoning"}
    assert (
        main(["domains", "show", "terminal/csv-join", "--seed", "3", "--level", "1", "--json"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["sample"]["seed"], shown["sample"]["level"]) == (
        "terminal/csv-join",
        3,
        1,
    )
    assert shown["sample"]["prompt"]


def test_domains_show_tells_people_of_levels_tools_and_a_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["domains", "list"]) == 0
    assert "terminal/csv-join" in capsys.readouterr().out
    assert main(["domains", "show", "terminal/csv-join"]) == 0
    out = capsys.readouterr().out
    assert "bash" in out
    assert "level" in out
