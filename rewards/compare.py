"""Exact comparisons that verifiers share. All are strict: no substrings, no tolerance by default.

Every function takes what an agent may have produced (None, junk, megabytes) and returns a plain
bool; none raises for bad input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

ANSWER_CHARS = 2_000
"""Longer answers are never right: no gold is near it, and it bounds the work of comparing."""

_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,12})?", re.ASCII)


def same_text(answer: str | None, gold: str) -> bool:
    """Whether the answer is the gold, but for white space around it."""
    return answer is not None and len(answer) <= ANSWER_CHARS and answer.strip() == gold


def number(answer: str | None) -> float | None:
    """The plain decimal number that the answer is; None for ``nan``, ``1e5`` or ``1,000``."""
    if answer is None or len(answer) > ANSWER_CHARS:
        return None
    stripped = answer.strip()
    return float(stripped) if _NUMBER.fullmatch(stripped) else None


def same_number(answer: str | None, gold: float, tolerance: float = 0.0) -> bool:
    """Whether the answer is a plain decimal number within ``tolerance`` (absolute) of the gold."""
    value = number(answer)
    return value is not None and close(value, gold, tolerance)


def close(value: float, gold: float, tolerance: float) -> bool:
    """Whether both are finite and at most ``tolerance`` (absolute) apart."""
    return math.isfinite(value) and math.isfinite(gold) and abs(value - gold) <= tolerance


def lines(data: bytes | None) -> list[str] | None:
    """The lines of a text file (a last line end is optional), or None when it is no UTF-8 text."""
    if data is None:
        return None
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return content.removesuffix("\n").split("\n") if content else []


def same_lines(data: bytes | None, gold: Sequence[str], *, ordered: bool = True) -> bool:
    """Whether a text file holds exactly the gold's lines, each as often, and in order if asked."""
    if data is None or len(data) > 2 * sum(len(line.encode()) + 1 for line in gold) + 1:
        return False
    found = lines(data)
    if found is None:
        return False
    return found == list(gold) if ordered else sorted(found) == sorted(gold)
