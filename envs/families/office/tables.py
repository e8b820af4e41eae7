"""The tables that office tasks are about, and the checks that office verifiers share."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from polymath.envs.families.office import workbook as books
from polymath.envs.families.office.formulas import FormulaError, evaluate
from polymath.envs.families.office.sheet import FILE
from polymath.envs.families.office.workbook import Cells, UnreadableWorkbook, Value
from polymath.envs.families.words import NOUNS
from polymath.envs.types import Artifact
from polymath.rewards.compare import close

HEADERS = ("price", "stock", "weight", "size", "cost", "age", "score", "rate", "count", "length")
TOLERANCE = 1e-6


def table(random: Random, columns: int, rows: int) -> Cells:
    """A header row, names in column A, numbers in the ``columns`` columns after it."""
    cells: Cells = {"A1": "item"}
    for column, header in enumerate(random.sample(HEADERS, columns), start=2):
        cells[books.join(column, 1)] = header
    for row, name in enumerate(random.sample(NOUNS, rows), start=2):
        cells[f"A{row}"] = name
        for column in range(2, columns + 2):
            cells[books.join(column, row)] = random.randint(10, 999)
    return cells


def perturbed(random: Random, cells: Mapping[str, Value]) -> Cells:
    """The same table with every number redrawn, some of them negative or broken."""
    return {
        at: value if isinstance(value, str) else random.randint(-9999, 9999) / 4
        for at, value in cells.items()
    }


def edited(artifact: Artifact, original: Mapping[str, Value], targets: set[str]) -> Cells | None:
    """The artifact's cells if it is the original but for the targets, else None."""
    data = artifact.files.get(FILE)
    if data is None:
        return None
    try:
        found = books.read(data)
    except UnreadableWorkbook:
        return None
    kept = {at: value for at, value in found.items() if at not in targets}
    untouched = {at: value for at, value in original.items() if at not in targets}
    same = kept == untouched and all(type(kept[at]) is type(untouched[at]) for at in kept)
    return found if same else None


def gives(cells: Mapping[str, Value], at: str, gold: float) -> bool:
    """Whether a cell's value, computed if it is a formula, is this number."""
    if cells.get(at) is None:
        return False
    try:
        return close(evaluate(cells, at), gold, TOLERANCE)
    except FormulaError:
        return False
