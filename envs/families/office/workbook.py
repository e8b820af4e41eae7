"""Workbooks as bytes: a small writer whose output depends on the cells alone, and a careful reader.

openpyxl writes the time of day into a file, so that a task drawn twice would differ; tasks are
therefore written here. Reading and editing are openpyxl's, imported at first use (it takes a
second), and only after the archive has been checked: an artifact may be anything.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from openpyxl import Workbook

Value = int | float | str | bool
Cells = dict[str, Value]
"""Values by coordinate (``B2``); a formula is its text, led by ``=``; empty cells are absent."""

SHEET = "Sheet1"
MAX_BYTES = 256 << 10
MAX_UNPACKED_BYTES = 4 << 20
MAX_MEMBERS = 64

_COORDINATE = re.compile(r"([A-Z]{1,3})([1-9]\d{0,6})", re.ASCII)
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_SPREADSHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'

_PARTS = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels"'
        ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_SPREADSHEET}.sheet.main+xml"/>'
        '<Override PartName="/xl/worksheets/sheet1.xml"'
        f' ContentType="{_SPREADSHEET}.worksheet+xml"/></Types>'
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1"'
        f' Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
    ),
    "xl/workbook.xml": (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>'
        f'<sheet name="{SHEET}" sheetId="1" r:id="rId1"/></sheets></workbook>'
    ),
    "xl/_rels/workbook.xml.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1"'
        f' Type="{_RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
    ),
}


class UnreadableWorkbook(ValueError):
    """The bytes are no workbook that we read; the message says why."""


def write(cells: Mapping[str, Value]) -> bytes:
    """An .xlsx file with one sheet; equal cells give equal bytes."""
    rows: dict[int, list[tuple[int, str]]] = {}
    for coordinate, value in cells.items():
        column, row = split(coordinate)
        rows.setdefault(row, []).append((column, _cell(coordinate, value)))
    body = "".join(
        f'<row r="{row}">{"".join(cell for _, cell in sorted(rows[row]))}</row>'
        for row in sorted(rows)
    )
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{body}</sheetData></worksheet>'
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in {**_PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, _HEAD + part)
    return target.getvalue()


def load(data: bytes) -> Workbook:
    """The workbook, or ``UnreadableWorkbook``; bounded in size before anything is parsed."""
    if len(data) > MAX_BYTES:
        raise UnreadableWorkbook(f"{len(data)} bytes, at most {MAX_BYTES}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as fault:
        raise UnreadableWorkbook(f"no zip archive: {fault}") from fault
    unpacked = sum(member.file_size for member in members)
    if len(members) > MAX_MEMBERS or unpacked > MAX_UNPACKED_BYTES:
        raise UnreadableWorkbook(f"{len(members)} members, {unpacked} bytes unpacked")
    from openpyxl import load_workbook

    try:
        workbook = load_workbook(io.BytesIO(data), keep_links=False)
    except Exception as fault:  # whatever a broken file sets off in a large parser
        raise UnreadableWorkbook(f"{type(fault).__name__}: {str(fault)[:200]}") from fault
    if workbook.sheetnames != [SHEET]:
        raise UnreadableWorkbook(f"sheets {workbook.sheetnames[:5]}, expected only {SHEET}")
    return workbook


def dump(workbook: Workbook) -> bytes:
    """The workbook as an .xlsx file."""
    target = io.BytesIO()
    workbook.save(target)
    return target.getvalue()


def cells(workbook: Workbook) -> Cells:
    """The values of the sheet's cells that are not empty; what is no plain value is its text."""
    found = workbook[SHEET]._cells.values()  # iter_rows would walk every cell up to the last one
    return {
        cell.coordinate: cell.value if isinstance(cell.value, Value) else repr(cell.value)
        for cell in found
        if cell.value is not None
    }


def read(data: bytes) -> Cells:
    """The cells of an .xlsx file, or ``UnreadableWorkbook``."""
    return dict(_read(data))


@lru_cache(maxsize=8)  # the verdict and the milestones of one artifact are asked for in turn
def _read(data: bytes) -> Cells:
    return cells(load(data))


def split(coordinate: str) -> tuple[int, int]:
    """(column, row), both from 1, of ``B2``; ``ValueError`` for anything else."""
    match = _COORDINATE.fullmatch(coordinate)
    if match is None:
        raise ValueError(f"{coordinate[:20]!r} is no cell")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return column, int(match[2])


def join(column: int, row: int) -> str:
    """The coordinate of a column and a row, both from 1."""
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return f"{letters}{row}"


def span(first: str, last: str) -> list[list[str]]:
    """The coordinates of a range, row by row."""
    (left, top), (right, bottom) = split(first), split(last)
    return [
        [join(column, row) for column in range(left, right + 1)] for row in range(top, bottom + 1)
    ]


def _cell(coordinate: str, value: Value) -> str:
    if isinstance(value, str):
        if value.startswith("="):
            return f'<c r="{coordinate}"><f>{escape(value[1:])}</f></c>'
        return f'<c r="{coordinate}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f'<c r="{coordinate}"><v>{value}</v></c>'
