"""`polymath train`, `sft` and `eval`: what takes a configuration and makes or judges a policy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from polymath.cli.output import add_json, print_json, print_table

if TYPE_CHECKING:
    from polymath.configs import Composed
    from polymath.rl.schema import SupervisedConfig, TrainConfig


def register(commands: Any) -> None:
    """Add the three commands."""
    for name, text, run in (
        ("train", "train a policy on a mixture of domains", _train),
        ("sft", "supervised training on demonstrations of scripted policies", _sft),
        ("eval", "score a policy on held-out tasks", _evaluate),
    ):
        parser = commands.add_parser(name, help=text, description=text)
        parser.add_argument(
            "overrides", nargs="*", metavar="KEY=VALUE", help="e.g. experiment=quickstart steps=5"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print configuration and plan, then stop"
        )
        parser.add_argument(
            "--config-dir", type=Path, metavar="DIR", help="a folder with further YAML groups"
        )
        if name == "eval":
            add_json(parser)
        parser.set_defaults(run=_configured(name, run))


def _configured(
    command: str, run: Callable[[Composed, argparse.Namespace], int]
) -> Callable[[argparse.Namespace], int]:
    """Compose the configuration before the command runs."""

    def execute(arguments: argparse.Namespace) -> int:
        from polymath.configs import compose

        composed = compose(command, arguments.overrides, config_dir=arguments.config_dir)
        if arguments.dry_run:
            return _dry_run(composed)
        where = composed.config.to_dict()["run"]
        arguments.log_file = Path(where["folder"]) / where["name"] / "logs" / "command.log"
        return run(composed, arguments)

    return execute


def _dry_run(composed: Composed) -> int:
    from polymath.rl import plan

    text = plan.describe(cast("TrainConfig | SupervisedConfig", composed.config))
    print(f"{composed.yaml}\n{text}")
    return 0


def _train(composed: Composed, _: argparse.Namespace) -> int:
    from polymath.rl import launch

    return launch.train(composed)


def _sft(composed: Composed, _: argparse.Namespace) -> int:
    from polymath.rl.sft import sft

    print(f"policy written to {sft(cast('SupervisedConfig', composed.config))}")
    return 0


def _evaluate(composed: Composed, arguments: argparse.Namespace) -> int:
    from polymath.rl import launch

    result = launch.evaluate(composed)
    if arguments.json:
        records = [record.as_row() for record in result.records]
        print_json({"records": records, "failed": result.failed})
        return 0
    print_table(
        ("domain", "level", "mode", "reward", "n"),
        [
            (r.domain, r.level, r.mode, f"{r.mean:.3f} ± {r.stderr:.3f}", r.n)
            for r in result.records
        ],
    )
    return 0
