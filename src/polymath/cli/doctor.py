"""`polymath doctor`: what this machine has and lacks for training."""

from __future__ import annotations

import argparse
from typing import Any

from polymath.cli.output import add_json, print_json, print_table


def register(commands: Any) -> None:
    """Add ``doctor``."""
    text = "say what this machine has and lacks; exit 1 if training cannot work"
    parser = commands.add_parser("doctor", help=text, description=text)
    add_json(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rich.text import Text

    from polymath.machine import Level, examine

    findings = examine()
    failing = [finding for finding in findings if finding.level is Level.FAILS]
    if arguments.json:
        print_json({"ready": not failing, "findings": [asdict(finding) for finding in findings]})
        return 1 if failing else 0
    colours = {Level.OK: "green", Level.LACKS: "yellow", Level.FAILS: "red"}
    rows = [
        (
            f.name,
            Text(f.level.value, colours[f.level]),
            f.found if not f.fix else f"{f.found}: {f.fix}",
        )
        for f in findings
    ]
    print_table(("what", "", "found"), rows)
    if failing:
        print(f"training cannot work here yet: {', '.join(finding.name for finding in failing)}")
        return 1
    print("ready: `make train`")
    return 0
