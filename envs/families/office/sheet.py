"""The family's one tool: ``sheet(op, cell, value)`` on the workbook that lies in the sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polymath.envs.contract import ActResult, Decision
from polymath.envs.families.office import workbook as books
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import call
from polymath.envs.session import ToolSession
from polymath.envs.types import Deadline, Json, Task, ToolSpec, text
from polymath.rewards.compare import number

if TYPE_CHECKING:
    from openpyxl import Workbook

FILE = "book.xlsx"

SHEET_TOOL = ToolSpec(
    name="sheet",
    description="op get reads a cell or range, set writes a cell, find locates a value.",
    parameters={
        "type": "object",
        "properties": {
            "op": {"type": "string"},
            "cell": {"type": "string"},
            "value": {"type": "string"},
        },
        "required": ["op"],
    },
)

LAST_COLUMN, LAST_ROW = 26, 200
MAX_CELLS = 60
MAX_VALUE_CHARS = 200

_RANGE = re.compile(r"([A-Z]+[0-9]+)(?::([A-Z]+[0-9]+))?", re.ASCII)


def get(cell: str, thought: str = "") -> Decision:
    """A scripted policy's look at a cell or range."""
    return call("sheet", thought, op="get", cell=cell)


def put(cell: str, value: object, thought: str = "") -> Decision:
    """A scripted policy's write."""
    return call("sheet", thought, op="set", cell=cell, value=str(value))


def find(value: str, thought: str = "") -> Decision:
    """A scripted policy's search."""
    return call("sheet", thought, op="find", value=value)


class SheetSession(ToolSession):
    """A session over one workbook, parsed once and written back at every change.

    Only this tool can change the file, so the parsed workbook stays true.
    """

    def __init__(self, task: Task, sandbox: Sandbox) -> None:
        super().__init__(task, sandbox, (SHEET_TOOL,), outputs=(FILE,))
        self._book: Workbook | None = None

    async def call(self, name: str, arguments: Mapping[str, Json], deadline: Deadline) -> ActResult:
        """Carry out one operation; what cannot be done is said."""
        book = await self._workbook()
        op, cell, value = (arguments.get(key, "") for key in ("op", "cell", "value"))
        try:
            if op == "get":
                return ActResult(text(_get(book, cell)))
            if op == "find":
                return ActResult(text(_find(book, value)))
            if op == "set":
                _set(book, cell, value)
                await self.sandbox.put({FILE: await asyncio.to_thread(books.dump, book)})
                return ActResult(text("ok"))
        except ValueError as mistake:
            return ActResult(text(f"error: {mistake}"), events={"mistake": str(mistake)})
        return ActResult(text("error: op must be get, set or find"))

    async def _workbook(self) -> Workbook:
        if self._book is None:
            files, missing = await self.sandbox.get((FILE,), max_bytes=books.MAX_BYTES)
            if FILE not in files:
                raise RuntimeError(f"{FILE} is gone from the workspace: {missing.get(FILE)}")
            self._book = await asyncio.to_thread(books.load, files[FILE])
        return self._book


def _get(book: Workbook, cell: str) -> str:
    match = _RANGE.fullmatch(cell)
    if match is None:
        raise ValueError(f"no cell {cell[:20]}")
    first, last = match[1], match[2] or match[1]
    _check(first)
    _check(last)
    rows = books.span(first, last)
    if not rows or not rows[0] or len(rows) * len(rows[0]) > MAX_CELLS:
        raise ValueError(f"get takes 1 to {MAX_CELLS} cells")
    sheet = book[books.SHEET]
    return "\n".join(", ".join(_show(sheet[at].value) for at in row) for row in rows)


def _find(book: Workbook, value: str) -> str:
    for coordinate, found in books.cells(book).items():
        if str(found) == value:
            return coordinate
    return "not found"


def _set(book: Workbook, cell: str, value: str) -> None:
    _check(cell)
    if len(value) > MAX_VALUE_CHARS or not value.isprintable():
        raise ValueError(f"a value is up to {MAX_VALUE_CHARS} printable characters")
    plain = number(value)
    if plain is None:
        book[books.SHEET][cell] = value or None
    else:
        book[books.SHEET][cell] = int(plain) if plain.is_integer() else plain


def _check(cell: str) -> None:
    column, row = books.split(cell)
    if column > LAST_COLUMN or row > LAST_ROW:
        raise ValueError(f"no cell {cell}, the last is Z{LAST_ROW}")


def _show(value: object) -> str:
    return "(empty)" if value is None else str(value)
