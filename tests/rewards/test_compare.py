import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.rewards.compare import close, number, same_lines, same_number, same_text


@pytest.mark.parametrize(
    ("answer", "value"),
    [("7", 7.0), (" 7\n", 7.0), ("-3.5", -3.5), ("+2", 2.0), ("007", 7.0)],
)
def test_a_plain_number_is_read(answer: str, value: float) -> None:
    assert number(answer) == value


@pytest.mark.parametrize(
    "answer",
    [None, "", "nan", "inf", "1e5", "1,000", "3 or 4", "7.", ".5", "٣", "0x10", "1_0"],
)
def test_what_is_no_plain_number_is_none(answer: str | None) -> None:
    assert number(answer) is None
    assert not same_number(answer, 7)


@pytest.mark.parametrize("answer", ["9" * 30, "7" + " " * 5000])
def test_a_number_of_absurd_length_is_none(answer: str) -> None:
    assert number(answer) is None


def test_a_number_must_be_the_gold() -> None:
    assert same_number("12", 12)
    assert same_number("12.04", 12, tolerance=0.05)
    assert not same_number("12.04", 12)
    assert not same_number("12", math.nan)
    assert not close(math.inf, math.inf, 1.0)


def test_text_is_exact_but_for_white_space_around_it() -> None:
    assert same_text(" maple\n", "maple")
    assert not same_text("the maple", "maple")
    assert not same_text("Maple", "maple")
    assert not same_text(None, "")


@given(st.lists(st.from_regex(r"[a-z0-9,]{1,8}", fullmatch=True), min_size=1, max_size=8))
def test_lines_are_compared_as_a_multiset_where_order_is_free(gold: list[str]) -> None:
    data = "\n".join(reversed(gold)).encode()
    assert same_lines(data, gold, ordered=False)
    assert same_lines(data, gold) == (gold == gold[::-1])
    assert not same_lines(data + b"\n" + gold[0].encode(), gold, ordered=False)
    assert not same_lines("\n".join(gold[1:]).encode(), gold, ordered=False)


@pytest.mark.parametrize("data", [None, b"", b"\xff\xfe", bytes(10_000_000), b"a\n\n", b"a\r\n"])
def test_hostile_files_are_not_the_gold(data: bytes | None) -> None:
    assert not same_lines(data, ["a"])
