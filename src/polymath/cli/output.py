"""How commands print: one JSON object alone on stdout with ``--json``, else a table."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from typing import Any


def add_json(parser: ArgumentParser) -> None:
    """Give a command the option ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings, as wide as the terminal allows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: square brackets in values must come out as they are.
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    Console().print(table)
