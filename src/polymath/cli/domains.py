"""`polymath domains`: what one can train on, and whether it is fit to be trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polymath.cli.output import add_json, print_json, print_table

if TYPE_CHECKING:
    from polymath.envs.certify import Certificate
    from polymath.envs.contract import Domain


def register(commands: Any) -> None:
    """Add ``domains list``, ``show`` and ``certify``."""
    parser = commands.add_parser("domains", help="list, show and certify domains")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="all domains, shipped ones and plugins")
    listing.set_defaults(run=_list)
    show = verbs.add_parser("show", help="one domain: its levels, tools, limits and a sample task")
    show.add_argument("id", metavar="FAMILY/NAME")
    show.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    show.add_argument("--level", type=int, help="level of the sample (default the easiest)")
    show.set_defaults(run=_show)
    certify = verbs.add_parser("certify", help="run the admission gate on domains")
    certify.add_argument("ids", metavar="FAMILY/NAME", nargs="+")
    certify.set_defaults(run=_certify)
    for verb in (listing, show, certify):
        add_json(verb)


def _find(domain_id: str) -> Domain:
    from polymath.envs import registry
    from polymath.errors import UserError

    try:
        return registry.get(domain_id)
    except registry.UnknownDomain as error:
        raise UserError(str(error)) from error


def _list(arguments: argparse.Namespace) -> int:
    from polymath.envs.registry import registry

    specs = registry().specs()
    problems = registry().problems()
    if arguments.json:
        domains = [
            {
                "id": spec.id,
                "version": spec.version,
                "family": spec.family,
                "levels": [level.name for level in spec.levels],
                "tools": [tool.name for tool in spec.tools],
                "licence": spec.licence,
            }
            for spec in specs
        ]
        print_json({"domains": domains, "problems": problems})
        return 0
    rows = [
        (
            spec.id,
            spec.version,
            ", ".join(level.name for level in spec.levels),
            ", ".join(tool.name for tool in spec.tools) or "-",
        )
        for spec in specs
    ]
    print_table(("domain", "version", "levels", "tools"), rows)
    for name, problem in problems.items():
        print(f"left out: {name}: {problem}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from polymath.envs.types import as_text
    from polymath.errors import UserError

    domain = _find(arguments.id)
    spec = domain.spec
    try:
        level = spec.levels[0] if arguments.level is None else spec.level(arguments.level)
    except KeyError as error:
        raise UserError(str(error.args[0])) from error
    task = domain.sample(arguments.seed, level)
    if arguments.json:
        sample = {"seed": task.seed, "level": task.level, "prompt": as_text(task.prompt)}
        print_json({**asdict(spec), "sample": {**sample, "files": sorted(task.files)}})
        return 0
    print(f"{spec.id}, version {spec.version}, licence {spec.licence}")
    print(f"reward {spec.reward_range[0]} to {spec.reward_range[1]}, guess rate {spec.guess_rate}")
    print(f"limits {spec.limits}")
    print_table(
        ("level", "name", "knobs"),
        [(level.index, level.name, level.knobs) for level in spec.levels],
    )
    print_table(("tool", "what it does"), [(tool.name, tool.description) for tool in spec.tools])
    print(f"{spec.instructions}\n\nA task of level {level.name}, seed {task.seed}:\n")
    print(as_text(task.prompt))
    if task.files:
        print(f"\nfiles: {', '.join(sorted(task.files))}")
    return 0


def _certify(arguments: argparse.Namespace) -> int:
    import asyncio
    from dataclasses import asdict

    found = [_find(domain_id) for domain_id in arguments.ids]
    certificates = asyncio.run(_certificates(found))
    if arguments.json:
        shown = [{**asdict(c), "passed": c.passed} for c in certificates]
        print_json({"certificates": shown})
    else:
        for certificate in certificates:
            print(certificate)
    return 0 if all(certificate.passed for certificate in certificates) else 1


async def _certificates(domains: Sequence[Domain]) -> list[Certificate]:
    from polymath.envs.certify import certify
    from polymath.envs.sandbox import select
    from polymath.envs.sandbox.schema import SandboxConfig

    backend = select(SandboxConfig())
    try:
        return [await certify(domain, backend) for domain in domains]
    finally:
        await backend.close()
