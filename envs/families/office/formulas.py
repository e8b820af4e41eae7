"""A small, safe evaluator of spreadsheet formulas.

Numbers, cell references, ranges, ``+ - * /``, unary signs, parentheses, and SUM, AVERAGE, MIN, MAX,
COUNT. As in spreadsheets, an empty cell is 0 in arithmetic, and aggregates skip empty cells and
text. Everything else is a ``FormulaError``: an unknown function, a circle, text in arithmetic,
division by zero, too large a formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from polymath.envs.families.office.workbook import Value, span, split

MAX_CHARS = 300
MAX_RANGE = 2_000
MAX_STEPS = 10_000
MAX_DEPTH = 50

T = TypeVar("T")

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<cell>\$?[A-Z]{1,3}\$?[1-9]\d{0,6})(?![A-Z0-9(])"
    r"|(?P<name>[A-Z]+)(?=\()|(?P<mark>[-+*/():,]))",
    re.ASCII | re.IGNORECASE,
)


class FormulaError(ValueError):
    """The formula has no value; the message says why."""


def _average(values: Sequence[float]) -> float:
    if not values:
        raise FormulaError("average of nothing")
    return sum(values) / len(values)


FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "SUM": sum,
    "AVERAGE": _average,
    "MIN": lambda values: min(values, default=0.0),
    "MAX": lambda values: max(values, default=0.0),
    "COUNT": lambda values: float(len(values)),
}


def evaluate(cells: Mapping[str, Value], coordinate: str) -> float:
    """The number in a cell, computed if it is a formula; ``FormulaError`` if there is none."""
    return _Sheet(cells).number(coordinate)


class _Sheet:
    """The cells of one evaluation, with what is under way (circles) and how much was done."""

    def __init__(self, cells: Mapping[str, Value]) -> None:
        self._cells = cells
        self._open: list[str] = []
        self._steps = 0

    def number(self, coordinate: str) -> float:
        """The number in a cell; 0 where it is empty."""
        value = self.value(coordinate)
        if value is None:
            return 0.0
        if isinstance(value, str):
            raise FormulaError(f"{coordinate} holds text")
        return value

    def value(self, coordinate: str) -> float | str | None:
        """A cell's value: a number, text, or None where it is empty."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise FormulaError("too much to compute")
        raw = self._cells.get(coordinate)
        if isinstance(raw, str) and raw.startswith("="):
            return self._formula(coordinate, raw[1:])
        if raw is None or isinstance(raw, str):
            return raw
        return float(raw)

    def _formula(self, coordinate: str, formula: str) -> float:
        if coordinate in self._open:
            raise FormulaError(f"{coordinate} depends on itself")
        if len(self._open) >= MAX_DEPTH:
            raise FormulaError("formulas too deep")
        self._open.append(coordinate)
        result = _Parser(formula, self).result()
        self._open.pop()
        return result


class _Parser:
    """Recursive descent over one formula, evaluating as it reads."""

    def __init__(self, formula: str, sheet: _Sheet) -> None:
        if len(formula) > MAX_CHARS:
            raise FormulaError(f"a formula of {len(formula)} characters, at most {MAX_CHARS}")
        self._sheet = sheet
        self._tokens = _tokens(formula)
        self._at = 0
        self._depth = 0

    def result(self) -> float:
        value = self._sum()
        if self._at < len(self._tokens):
            raise FormulaError(f"unexpected {self._tokens[self._at][1]!r}")
        if not math.isfinite(value):
            raise FormulaError("not finite")
        return value

    def _sum(self) -> float:
        value = self._product()
        while mark := self._take("+", "-"):
            right = self._product()
            value = value + right if mark == "+" else value - right
        return value

    def _product(self) -> float:
        value = self._signed()
        while mark := self._take("*", "/"):
            right = self._signed()
            if mark == "/" and right == 0:
                raise FormulaError("division by zero")
            value = value * right if mark == "*" else value / right
        return value

    def _signed(self) -> float:
        sign = 1.0
        while mark := self._take("+", "-"):
            sign = -sign if mark == "-" else sign
        return sign * self._atom()

    def _atom(self) -> float:
        kind, token = self._next()
        if kind == "number":
            return float(token)
        if kind == "cell":
            return self._sheet.number(token)
        if kind == "name":
            return self._function(token)
        if token == "(":
            value = self._nested(self._sum)
            self._expect(")")
            return value
        raise FormulaError(f"unexpected {token!r}")

    def _function(self, name: str) -> float:
        if name not in FUNCTIONS:
            raise FormulaError(f"no function {name}")
        self._expect("(")
        values = self._nested(self._argument)
        while self._take(","):
            values += self._nested(self._argument)
        self._expect(")")
        return float(FUNCTIONS[name](values))

    def _argument(self) -> list[float]:
        """A range's or a cell's numbers (empty cells and text skipped), or one expression."""
        ahead = self._tokens[self._at + 1 : self._at + 2]
        if self._peek("cell") and ahead == [("mark", ":")]:
            _, first = self._next()
            self._expect(":")
            kind, last = self._next()
            if kind != "cell":
                raise FormulaError(f"unexpected {last!r} in a range")
            return self._numbers(_range(first, last))
        if self._peek("cell") and ahead in ([("mark", ",")], [("mark", ")")]):
            return self._numbers([self._next()[1]])
        return [self._sum()]

    def _numbers(self, coordinates: Sequence[str]) -> list[float]:
        values = (self._sheet.value(coordinate) for coordinate in coordinates)
        return [value for value in values if isinstance(value, float)]

    def _nested(self, read: Callable[[], T]) -> T:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormulaError("brackets too deep")
        value = read()
        self._depth -= 1
        return value

    def _peek(self, kind: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][0] == kind

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise FormulaError("the formula breaks off")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, *marks: str) -> str:
        if self._peek("mark") and self._tokens[self._at][1] in marks:
            return self._next()[1]
        return ""

    def _expect(self, mark: str) -> None:
        kind, token = self._next()
        if (kind, token) != ("mark", mark):
            raise FormulaError(f"expected {mark!r}, found {token!r}")


def _tokens(formula: str) -> list[tuple[str, str]]:
    found, at, end = [], 0, len(formula.rstrip())
    while at < end:
        match = _TOKEN.match(formula, at)
        if match is None:
            raise FormulaError(f"cannot read {formula[at : at + 10]!r}")
        kind = str(match.lastgroup)
        found.append((kind, match[kind].upper().replace("$", "")))
        at = match.end()
    return found


def _range(first: str, last: str) -> list[str]:
    (left, top), (right, bottom) = split(first), split(last)
    if right < left or bottom < top:
        raise FormulaError(f"{first}:{last} runs backwards")
    if (right - left + 1) * (bottom - top + 1) > MAX_RANGE:
        raise FormulaError(f"{first}:{last} is too large")
    return [coordinate for row in span(first, last) for coordinate in row]
