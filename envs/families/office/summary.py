"""Summary: look a number up by name and header, and answer it or write it into a cell."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.families.generated import LIMITS, Draft, GeneratedDomain
from polymath.envs.families.office import workbook as books
from polymath.envs.families.office.sheet import FILE, SHEET_TOOL, SheetSession, find, get, put
from polymath.envs.families.office.tables import edited, gives, table
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import Plan, Script, answer, script
from polymath.envs.types import Artifact, DomainSpec, Level, Task
from polymath.rewards.compare import same_number
from polymath.rewards.verifier import PlainVerifier

PROMPTS = {
    "answer": (
        "What is the {header} of {name}?",
        "Look up the {header} of {name}.",
        "Tell me the {header} of {name}.",
    ),
    "write": (
        "Write the {header} of {name} into {target}.",
        "Put the {header} of {name} into {target}.",
    ),
}


class Summary(GeneratedDomain):
    """``office/summary``; names are in column A, headers in row 1."""

    spec = DomainSpec(
        id="office/summary",
        version="1",
        levels=(
            Level(0, "one column", {"ask": "answer", "columns": 1, "rows": 6}),
            Level(1, "several columns", {"ask": "answer", "columns": 3, "rows": 8}),
            Level(2, "write it down", {"ask": "write", "columns": 4, "rows": 10}),
        ),
        tools=(SHEET_TOOL,),
        instructions="Names are in column A, headers in row 1. Answer with the number or done.",
        limits=LIMITS,
        guess_rate=0.05,
    )

    def draft(self, random: Random, level: Level) -> Draft:
        """A table and one of its cells."""
        ask, columns = level.knobs["ask"], level.knobs["columns"]
        rows = level.knobs["rows"] + random.randint(0, 4)
        cells = table(random, columns, rows)
        source = books.join(random.randint(2, columns + 1), random.randint(2, rows + 1))
        target = books.join(random.randint(columns + 3, columns + 7), random.randint(1, 12))
        header, name = cells[f"{source[0]}1"], cells[f"A{source[1:]}"]
        prompt = random.choice(PROMPTS[ask]).format(header=header, name=name, target=target)
        private = {
            "cells": cells,
            "columns": columns,
            "source": source,
            "header": header,
            "name": name,
            "target": target if ask == "write" else None,
        }
        return Draft(prompt, {FILE: books.write(cells)}, private)

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """The sheet tool; the workbook leaves, and counts where something is to be written."""
        return SheetSession(task, sandbox)

    def verifier(self, task: Task) -> Verifier:
        """The number, as the answer or in the one cell that may change."""
        cells, target = task.private["cells"], task.private["target"]
        gold = float(cells[task.private["source"]])

        def judge(artifact: Artifact) -> float:
            found = edited(artifact, cells, {target} if target else set())
            if found is None:
                return 0.0
            if target:
                return float(gives(found, target, gold))
            return float(same_number(artifact.answer, gold))

        return PlainVerifier(judge)

    def oracle(self, task: Task) -> Policy:
        """Find the column and the row, read the cell where they meet."""
        gold = task.private

        def plan(prompt: str) -> Plan:
            column = "B"
            if gold["columns"] > 1:
                at = yield find(gold["header"], f"Find the column {gold['header']}.")
                column = at[0]
            at = yield find(gold["name"], f"Find the row of {gold['name']}.")
            value = yield get(f"{column}{at[1:]}", f"Column {column}, row {at[1:]}.")
            if gold["target"]:
                yield put(gold["target"], value, f"Write {value}.")
                yield answer("done", "It is written.")
            else:
                yield answer(value, f"It is {value}.")

        return Script(plan)

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """The table changed to fit, everything written or answered, the value beside the target."""
        gold = task.private
        right = gold["cells"][gold["source"]]
        numbers = [value for value in gold["cells"].values() if not isinstance(value, str)]
        place = gold["target"] or "Z9"
        done = answer("done" if gold["target"] else right)
        return [
            *common(task),
            Adversary("answers all numbers", script(answer(" ".join(map(str, numbers))))),
            Adversary("hedges", script(answer(f"{right} or {right + 1}"))),
            Adversary("changes the table", script(put(gold["source"], 5), done)),
            Adversary("writes beside", script(put("Z8", right), done)),
            Adversary("writes text", script(put(place, f"{right} units"), done)),
            Adversary("clears the table", script(put(gold["source"], ""), done)),
        ]
