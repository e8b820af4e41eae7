"""Values computed by hand, and laws of arithmetic; errors are errors and nothing worse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.envs.families.office.formulas import FormulaError, evaluate

CELLS = {
    "A1": "item",
    "B1": "price",
    "B2": 10,
    "B3": 4,
    "B4": 2.5,
    "C2": 3,
    "C3": "text",
    "D2": "=B2*C2",
    "D3": "=SUM(D2,B3)",
    "Z8": "=" + "9" * 200,
}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("=1+2*3", 7),
        ("=(1+2)*3", 9),
        ("=10-4-3", 3),
        ("=20/4/5", 1),
        ("=-2*-3", 6),
        ("=2--3", 5),
        ("=B2", 10),
        ("=$B$2+b3", 14),
        ("=B2*C2", 30),
        ("=SUM(B2:B4)", 16.5),
        ("=sum( B2 : B4 )", 16.5),
        ("=SUM(B1:B9)", 16.5),
        ("=AVERAGE(B2:B4)", 5.5),
        ("=MIN(B2:B4)", 2.5),
        ("=MAX(B2:B4,100)", 100),
        ("=COUNT(A1:C4)", 4),
        ("=SUM(B2:B4)/COUNT(B2:B4)", 5.5),
        ("=SUM(B2*2,MAX(C2,C3))", 23),
        ("=Z9+1", 1),
        ("=D3", 34),
        ("=AVERAGE(B2:B3,Z1:Z5)", 7),
    ],
)
def test_values_by_hand(formula: str, value: float) -> None:
    assert evaluate({**CELLS, "F1": formula}, "F1") == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    [
        "=",
        "=1+",
        "=SUM(B2:B4",
        "=SUM(",
        "=1 2",
        "=A1+1",
        "=1/0",
        "=1/Z9",
        "=F1",
        "=SUM(F1:F2)",
        "=AVERAGE(Z1:Z5)",
        "=NOPE(1)",
        "=INDIRECT(B2)",
        "=B4:B2",
        "=SUM(B4:B2)",
        "=SUM(A1:ZZZ9999999)",
        "=1e9",
        '="text"',
        "=B2^2",
        "=Sheet2!A1",
        "=__import__(1)",
        "=" + "(" * 120 + "1" + ")" * 120,
        "=" + "1+" * 500 + "1",
        "=BIG*BIG",
        "=Z8*Z8",
    ],
)
def test_what_has_no_value_is_an_error(formula: str) -> None:
    with pytest.raises(FormulaError):
        evaluate({**CELLS, "F1": formula}, "F1")


def test_formulas_that_blow_up_are_stopped() -> None:
    bomb = {"A1": 1, **{f"A{n}": f"=A{n - 1}+A{n - 1}+A{n - 1}" for n in range(2, 45)}}
    with pytest.raises(FormulaError, match="too much"):
        evaluate(bomb, "A44")
    chain = {"A1": 1, **{f"A{n}": f"=A{n - 1}" for n in range(2, 200)}}
    with pytest.raises(FormulaError, match="too deep"):
        evaluate(chain, "A199")
    with pytest.raises(FormulaError, match="itself"):
        evaluate({"A1": "=B1", "B1": "=A1"}, "A1")


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_aggregates_agree_with_python(values: list[int]) -> None:
    cells: dict[str, int | float | str | bool] = {
        f"A{row}": value for row, value in enumerate(values, start=1)
    }
    last = len(values)
    golds = {
        "SUM": sum(values),
        "AVERAGE": sum(values) / last,
        "MIN": min(values),
        "MAX": max(values),
        "COUNT": last,
    }
    for name, gold in golds.items():
        assert evaluate({**cells, "B1": f"={name}(A1:A{last})"}, "B1") == pytest.approx(gold)


_expressions = st.recursive(
    st.integers(1, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]}{parts[1]}{parts[2]})"
    ),
    max_leaves=8,
)


@given(_expressions)
def test_arithmetic_agrees_with_python(expression: str) -> None:
    try:
        gold = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(FormulaError):
            evaluate({"A1": f"={expression}"}, "A1")
    else:
        assert evaluate({"A1": f"={expression}"}, "A1") == pytest.approx(gold)


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_a_formula_error(junk: str) -> None:
    try:
        evaluate({"A1": "=" + junk, "B1": 2}, "A1")
    except FormulaError:
        pass
