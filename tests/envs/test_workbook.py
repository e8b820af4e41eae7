import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook

from polymath.envs.families.office import workbook as books
from polymath.envs.families.office.workbook import UnreadableWorkbook

CELLS = {"A1": "item", "B1": "a < b & c", "A2": "maple", "B2": 31, "C2": 2.5, "D4": "=SUM(B2:C2)"}


def test_a_written_workbook_reads_back_and_is_the_same_each_time() -> None:
    data = books.write(CELLS)
    assert books.read(data) == CELLS
    assert data == books.write(dict(reversed(CELLS.items())))


def test_an_edited_workbook_keeps_its_other_cells() -> None:
    book = books.load(books.write(CELLS))
    book[books.SHEET]["E5"] = "=B2*2"
    assert books.read(books.dump(book)) == {**CELLS, "E5": "=B2*2"}


@given(st.integers(1, 18278), st.integers(1, 9_999_999))
def test_coordinates_split_and_join(column: int, row: int) -> None:
    assert books.split(books.join(column, row)) == (column, row)


@pytest.mark.parametrize("junk", ["", "1A", "a1", "A0", "A1:B2", "AAAA1", "A1\n", "Ä1"])
def test_what_is_no_coordinate_is_refused(junk: str) -> None:
    with pytest.raises(ValueError, match="no cell"):
        books.split(junk)


def _archive(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def _with_sheet(xml: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(books.write({"A1": 1}))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return _archive(members | {"xl/worksheets/sheet1.xml": xml})


def _two_sheets() -> bytes:
    book = Workbook()
    book.active.title = books.SHEET
    book.create_sheet("Other")
    return books.dump(book)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        b"PK\x03\x04" + bytes(40),
        books.write(CELLS)[:300],
        bytes(books.MAX_BYTES + 1),
        _archive({"a": b"x"}),
        _archive({"bomb": bytes(books.MAX_UNPACKED_BYTES + 1)}),
        _archive({f"member{n}": b"" for n in range(books.MAX_MEMBERS + 1)}),
        _with_sheet(b"<not xml"),
        _with_sheet(b"\xff\xfe\x00"),
        _with_sheet(
            b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
            + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 12))
            + b"]><worksheet>&a11;</worksheet>"
        ),
        _two_sheets(),
    ],
)
def test_hostile_files_are_unreadable_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(UnreadableWorkbook):
        books.read(data)


def test_a_cell_far_away_costs_nothing() -> None:
    sheet = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
        b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>'
    )
    assert books.read(_with_sheet(sheet)) == {"XFD1048576": 1}
