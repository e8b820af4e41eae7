"""`polymath report`: one HTML page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def register(commands: Any) -> None:
    """Add ``report``."""
    text = "write one HTML page: a run's curves, or several runs compared (seeds, variants)"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page that compares (default comparison.html)",
    )
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    from polymath.errors import UserError
    from polymath.rl.tracking.report import write_comparison, write_report

    for run in arguments.runs:
        if not (run / "metrics.jsonl").is_file():
            raise UserError(f"{run} is not the folder of a run: it has no metrics.jsonl")
    if len(arguments.runs) > 1:
        print(write_comparison(arguments.runs, arguments.output or Path("comparison.html")))
    elif arguments.output is not None:
        raise UserError("--output is for several runs; one run's page lies in its folder")
    else:
        print(write_report(arguments.runs[0]))
    return 0
