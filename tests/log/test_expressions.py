"""Expressions of columns: Python's own arithmetic on what is allowed, and a refusal of everything else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offpolicy.errors import ParameterError
from offpolicy.log.expressions import expression

COLUMNS = {"click": np.array([0.0, 1.0, 1.0]), "purchase": np.array([2.0, 0.5, -3.0]), "add to-cart": np.ones(3)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1*click + purchase", 0.1 * COLUMNS["click"] + COLUMNS["purchase"]),
        ("-click", -COLUMNS["click"]),
        ("- -click - -2", COLUMNS["click"] + 2),
        ("2 - 3 - click", -1 - COLUMNS["click"]),
        ("2*(click+1)/4", 0.5 * (COLUMNS["click"] + 1)),
        ("min(purchase, 1) - max(0, abs(purchase))", [-1.0, 0.0, -6.0]),
        ("`add to-cart`*3", [3.0, 3.0, 3.0]),
        ("1e-1 * click", 0.1 * COLUMNS["click"]),
        ("min(max(purchase, 0), max(1, click))", [1.0, 0.5, 0.0]),
        ("-2*-click", 2 * COLUMNS["click"]),
    ],
)
def test_a_formula_is_its_arithmetic(text: str, value: list[float]) -> None:
    np.testing.assert_allclose(expression(text).values(COLUMNS), value)


def test_names() -> None:
    assert expression("value = 0.1*click").name == "value"
    assert expression("0.1*click").name == "0.1*click"
    whole = expression("add to-cart", known=["add to-cart"])
    assert whole.columns == ("add to-cart",)
    assert expression("click + click*purchase").columns == ("click", "purchase")
    assert all(expression(text).is_column for text in ("click", "click = click"))
    assert not any(expression(text).is_column for text in ("mine=click", "(click)", "+click", "-click"))


@pytest.mark.parametrize(
    "text",
    [
        "", "=click", " = click", "1 + 2", "click +", "+ * click", "(click", "click)", "click purchase",
        "2 click", "click ** 2",
        "click // 2", "__import__('os').system('true')", "click; purchase", "click[0]", "lambda: click", "min(click)",
        "min click",
        "abs(click, purchase)", "click, purchase", "(click, purchase)", "click == 1", "{click}", "click@purchase",
        "()", "min()", "click if click else 0", "`click", "f(click)", "x" * 1001,
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        expression(text)


def test_deep_nesting_is_no_trouble() -> None:
    np.testing.assert_allclose(expression("(" * 400 + "click" + ")" * 400).values(COLUMNS), COLUMNS["click"])


leaves = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["click", "purchase"]))
formulas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"{t[0]} {t[1]} {t[2]}"),
        inner.map(lambda t: f"-{t}"),
        st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
    ),
    max_leaves=12,
)


@given(formulas)
@settings(max_examples=200, deadline=None)
def test_python_computes_the_same(text: str) -> None:
    text = f"click + {text}"
    names = {"click": 3.0, "purchase": -2.0, "max": max}
    own = expression(text).values({"click": np.array([3.0]), "purchase": np.array([-2.0])})
    assert own[0] == pytest.approx(eval(text, {"__builtins__": {}}, names))


@given(st.text("click+-*/(),. 12`=min\"'_[]", max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        found = expression(text)
    except ParameterError:
        return
    columns = {name: np.ones(2) for name in found.columns}
    assert found.values(columns).shape == (2,)
