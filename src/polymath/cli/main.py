"""Entry point: parses the command line, runs the command, turns errors into one line each."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from polymath import __version__, environment
from polymath.cli import bench, doctor, domains, report, runs
from polymath.errors import PolymathError, UserError

COMMANDS = (runs, domains, bench, report, doctor)

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing the whole usage."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation that works today is ambiguous after the next option.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and never raises for a failure of the command."""
    environment.apply()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    parsed = argparse.Namespace(log_file=None)
    try:
        _parse(given, parsed)
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, parsed, debug)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        return _fail(_one_line(error), 2, parsed, debug)
    except PolymathError as error:
        return _fail(_one_line(error), 1, parsed, debug)
    except Exception as error:
        if type(error).__module__.startswith("polymath."):
            return _fail(_one_line(error), 1, parsed, debug)
        return _fail(
            f"{type(error).__name__}: {_one_line(error)}", 1, parsed, debug, unexpected=True
        )


def _parse(given: list[str], parsed: argparse.Namespace) -> None:
    parser = _Parser(prog="polymath", description="Agentic reinforcement-learning post-training.")
    parser.add_argument("--version", action="version", version=f"polymath {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")

    def help_only(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=help_only)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for module in COMMANDS:
        module.register(commands)
    # Options may stand between overrides, which argparse alone does not allow.
    options = [word for word in given if word != "--debug"]
    _, rest = parser.parse_known_args(options, parsed)
    takes_more = getattr(parsed, "overrides", None) is not None
    for word in rest:
        if word.startswith("-") or not takes_more:
            raise UserError(f"unknown argument {word}; see `polymath --help`")
        parsed.overrides.append(word)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(
    message: str, code: int, parsed: argparse.Namespace, debug: bool, *, unexpected: bool = False
) -> int:
    """Print the one line; the traceback goes to the run's log, or to the screen if asked for."""
    if debug:
        traceback.print_exc()
    elif code == 1:
        log: Path | None = parsed.log_file
        if log is not None and log.parent.is_dir():
            with log.open("a") as file:
                traceback.print_exc(file=file)
            message += f" (traceback in {log})"
        elif unexpected:
            message += " (--debug shows the traceback)"
    print(f"polymath: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
