"""`polymath report`: one HTML page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def register(commands: Any) -> None:
    """Add ``report``."""
    parser = commands.add_parser("report", help="write one HTML page with a run's curves")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--output", type=Path, help="where to write (default: in the first run)")
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    from polymath.errors import UserError
    from polymath.rl.tracking import report

    for run in arguments.runs:
        if not (run / "metrics.jsonl").is_file():
            raise UserError(f"{run} is not the folder of a run: it has no metrics.jsonl")
    output = arguments.output or arguments.runs[0] / "report.html"
    print(report.write(arguments.runs, output))
    return 0
