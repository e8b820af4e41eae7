"""Formula fill: a live formula over a range, over a column found by its header, or per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.families.generated import LIMITS, Draft, GeneratedDomain
from polymath.envs.families.office import workbook as books
from polymath.envs.families.office.formulas import FUNCTIONS
from polymath.envs.families.office.sheet import FILE, SHEET_TOOL, SheetSession, find, put
from polymath.envs.families.office.tables import edited, gives, perturbed, table
from polymath.envs.families.office.workbook import Cells, Value, join
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import Plan, Script, answer, script
from polymath.envs.types import Artifact, DomainSpec, Json, Level, Task
from polymath.rewards.verifier import PlainVerifier

WORDS = {
    "SUM": ("sum", "total"),
    "AVERAGE": ("average", "mean"),
    "MAX": ("maximum", "largest value"),
    "MIN": ("minimum", "smallest value"),
}

PROMPTS = {
    "range": (
        "Put the {word} of {range} into {target}.",
        "In {target} compute the {word} of {range}.",
        "Write a formula for the {word} of {range} into {target}.",
    ),
    "header": (
        "Put the {word} of {header}, rows {first} to {last}, into {target}.",
        "In {target} compute the {word} of {header}, rows {first} to {last}.",
    ),
    "rows": (
        "Put {left} times {right} into {column} for rows {first} to {last}.",
        "In column {column} compute {left} times {right}, rows {first} to {last}.",
    ),
}

PERTURBATIONS = 2
"""Besides the original, on how many other inputs a formula must be right."""


class FormulaFill(GeneratedDomain):
    """``office/formula-fill``; constants do not pass, formulas are computed on other inputs too."""

    spec = DomainSpec(
        id="office/formula-fill",
        version="1",
        levels=(
            Level(0, "a range", {"ask": "range", "columns": 2, "rows": 6}),
            Level(1, "a column by its header", {"ask": "header", "columns": 3, "rows": 7}),
            Level(2, "a product per row", {"ask": "rows", "columns": 4, "rows": 8}),
        ),
        tools=(SHEET_TOOL,),
        instructions="Use formulas in the sheet. Change nothing else. Answer done at the end.",
        limits=LIMITS,
    )

    def draft(self, random: Random, level: Level) -> Draft:
        """A table, and the cells that must get formulas with what they must compute."""
        ask, columns = level.knobs["ask"], level.knobs["columns"]
        rows = level.knobs["rows"] + random.randint(0, 4)
        cells = table(random, columns, rows)
        private: dict[str, Json] = {"ask": ask, "cells": cells}
        if ask == "rows":
            facts, targets = _products(random, columns, rows)
        else:
            facts, targets = _aggregate(random, columns, rows)
            facts["header"] = cells[f"{facts['column']}1"]
            private["header"] = facts["header"]
        prompt = random.choice(PROMPTS[ask]).format(**facts)
        return Draft(prompt, {FILE: books.write(cells)}, private | {"targets": targets})

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """The sheet tool; the workbook leaves."""
        return SheetSession(task, sandbox)

    def verifier(self, task: Task) -> Verifier:
        """Formulas in every target, right on all inputs, and nothing else changed."""
        targets = task.private["targets"]
        source = Random(f"perturb {task.digest}")
        inputs = [task.private["cells"]]
        inputs += [perturbed(source, task.private["cells"]) for _ in range(PERTURBATIONS)]

        def right(found: Cells, target: Mapping[str, Json]) -> bool:
            formula = found.get(target["cell"])
            if not isinstance(formula, str) or not formula.startswith("="):
                return False
            others = {other["cell"]: found.get(other["cell"], 0) for other in targets}
            return all(gives(case | others, target["cell"], _gold(case, target)) for case in inputs)

        def milestones(artifact: Artifact) -> dict[str, float]:
            names = {target["cell"] for target in targets}
            found = edited(artifact, task.private["cells"], names)
            return {
                target["cell"]: float(found is not None and right(found, target))
                for target in targets
            }

        return PlainVerifier(lambda artifact: min(milestones(artifact).values()), milestones)

    def oracle(self, task: Task) -> Policy:
        """Find the column where it is not given, then one formula per target."""
        targets, header = task.private["targets"], str(task.private.get("header"))

        def plan(prompt: str) -> Plan:
            if task.private["ask"] == "header":
                at = yield find(header, f"Find the column {header}.")
                column = at[0]
                yield put(
                    targets[0]["cell"],
                    targets[0]["formula"],
                    f"{header} is column {column}, use {targets[0]['function']}.",
                )
            else:
                for target in targets:
                    thought = f"Multiply in {target['cell']}."
                    if target["function"] in WORDS:
                        thought = f"The function is {target['function']}."
                    yield put(target["cell"], target["formula"], thought)
            yield answer("done", "All is set.")

        return Script(plan)

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Constants, constants dressed as formulas, wrong cells, changed inputs, circles."""
        targets, cells = task.private["targets"], task.private["cells"]
        last = targets[-1]["cell"]
        right = [put(target["cell"], target["formula"]) for target in targets]
        values = {target["cell"]: _gold(cells, target) for target in targets}
        done = answer("done")
        over = targets[-1]["over"][0]
        return [
            *common(task),
            Adversary("constants", script(*(put(*item) for item in values.items()), done)),
            Adversary(
                "constants as formulas",
                script(*(put(at, f"={value}") for at, value in values.items()), done),
            ),
            Adversary("one input alone", script(*right[:-1], put(last, f"={over}"), done)),
            Adversary("a circle", script(*right[:-1], put(last, f"={last}"), done)),
            Adversary("text", script(*right[:-1], put(last, targets[-1]["formula"][1:]), done)),
            Adversary("changes an input", script(put(over, 1), *right, done)),
            Adversary("leaves scratch", script(*right, put("Z1", 1), done)),
            Adversary("answers the formula", script(answer(targets[0]["formula"]))),
        ]


def _aggregate(random: Random, columns: int, rows: int) -> tuple[dict[str, Json], list[Json]]:
    function = random.choice(sorted(WORDS))
    column = join(random.randint(2, columns + 1), 1)[0]
    last = rows + 1
    target = join(random.randint(columns + 3, columns + 7), random.randint(1, 12))
    facts = {
        "word": random.choice(WORDS[function]),
        "range": f"{column}2:{column}{last}",
        "column": column,
        "first": 2,
        "last": last,
        "target": target,
    }
    over = [f"{column}{row}" for row in range(2, last + 1)]
    formula = f"={function}({facts['range']})"
    return facts, [{"cell": target, "function": function, "over": over, "formula": formula}]


def _products(random: Random, columns: int, rows: int) -> tuple[dict[str, Json], list[Json]]:
    left, right = (join(column, 1)[0] for column in random.sample(range(2, columns + 2), 2))
    column = join(random.randint(columns + 2, columns + 5), 1)[0]
    first = random.randint(2, rows - 1)
    targets: list[Json] = [
        {
            "cell": f"{column}{row}",
            "function": "PRODUCT",
            "over": [f"{left}{row}", f"{right}{row}"],
            "formula": f"={left}{row}*{right}{row}",
        }
        for row in range(first, first + 3)
    ]
    facts = {"left": left, "right": right, "column": column, "first": first, "last": first + 2}
    return facts, targets


def _gold(cells: Mapping[str, Value], target: Mapping[str, Json]) -> float:
    values = [float(cells[at]) for at in target["over"]]
    if target["function"] == "PRODUCT":
        return prod(values)
    return float(FUNCTIONS[target["function"]](values))
