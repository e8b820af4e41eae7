"""`polymath bench`: how fast it runs here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from polymath.cli.output import add_json, print_json, print_table


def register(commands: Any) -> None:
    """Add ``bench``."""
    parser = commands.add_parser("bench", help="measure an experiment's speed on this machine")
    parser.add_argument("experiment", help="the experiment to measure, such as quickstart")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--config-dir", type=Path, metavar="DIR")
    add_json(parser)
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from polymath.configs import compose
    from polymath.rl import bench

    overrides = [f"experiment={arguments.experiment}", *arguments.overrides]
    figures = bench.run(compose("train", overrides, config_dir=arguments.config_dir))
    if arguments.json:
        print_json(figures)
    else:
        print_table(("figure", "value"), figures.items())
    return 0
