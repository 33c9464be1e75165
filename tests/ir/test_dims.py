"""Symbolic dimensions: canonical form, exact quotients, binding, and agreement with integers on random polynomials."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfuse.ir.dims import (
    Dim,
    SymbolicDim,
    bind,
    ceildiv,
    dims_text,
    floordiv,
    maximum,
    minimum,
    mod,
    non_negative,
    product,
    symbol,
    symbols,
)

S, T = symbol("S"), symbol("T")


def test_equal_polynomials_are_equal():
    assert (S + 2) * 4 - 8 == 4 * S
    assert (S + T) * (S - T) == S * S - T * T
    assert S - S == 0 and isinstance(S - S, int)
    assert hash(S * T) == hash(T * S)
    assert S + 0 == S and 1 * S == S and S * 0 == 0
    assert S != 4 and S != T
    assert 3 - S == -(S - 3)


def test_text():
    assert str(2 * S - T + 1) == "1+2*S-T" or str(2 * S - T + 1) == "2*S-T+1"
    assert str(floordiv(S - 1, 2)) == "((S-1)//2)"
    assert str(mod(S, 4)) == "(S%4)"
    assert str(-S) == "-S"
    assert str(floordiv(S, 2 * T)) == "(S//(2*T))"
    assert dims_text((1, S, 384)) == "1, S, 384"


def test_division():
    assert floordiv(S * 6, 3) == 2 * S
    assert floordiv(S * T * 4, S * 2) == 2 * T
    assert floordiv(S * 6 + 9, 3) == 2 * S + 3
    assert mod(S * 6 + 9, 3) == 0 and mod(S, S) == 0
    assert floordiv(-7, 2) == -4 and mod(-7, 2) == 1 and ceildiv(7, 2) == 4
    assert bind(ceildiv(S, 2), {"S": 7}) == 4
    with pytest.raises(ZeroDivisionError):
        floordiv(4, 0)
    with pytest.raises(ZeroDivisionError):
        bind(floordiv(S, T), {"S": 4, "T": 0})


def test_extremes_use_that_symbols_are_not_negative():
    assert maximum(S, 0) == S and minimum(S, S + 1) == S and minimum(0, S * T) == 0
    assert maximum(2 * S, S) == 2 * S
    assert isinstance(maximum(S - 1, 0), SymbolicDim)
    assert bind(maximum(S - 1, 0), {"S": 0}) == 0 and bind(minimum(S, T), {"S": 3, "T": 2}) == 2
    assert non_negative(S * 2 + 1) and not non_negative(S - 1) and not non_negative(-S)
    assert non_negative(mod(S, 3)) and non_negative(maximum(S - 4, 0)) and not non_negative(minimum(S - 4, 0))


def test_partial_binding_and_symbols():
    d = floordiv(S * T + 1, 2)
    assert symbols(d) == {"S", "T"}
    assert symbols(bind(d, {"S": 3})) == {"T"}
    assert bind(bind(d, {"S": 3}), {"T": 5}) == 8
    assert product([2, S, 3]) == 6 * S and product([]) == 1


@st.composite
def polynomials(draw, depth: int = 3) -> tuple[Dim, str]:
    """A dimension and the same formula as Python text over S and T."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(((S, "S"), (T, "T"), (2, "2"), (3, "3"), (-1, "-1"), (0, "0"))))
    (a, x), (b, y) = draw(polynomials(depth - 1)), draw(polynomials(depth - 1))
    kind = draw(st.sampled_from(("+", "-", "*", "//", "%", "min", "max")))
    if kind in ("//", "%"):
        n = draw(st.integers(1, 6))
        return (floordiv(a, n) if kind == "//" else mod(a, n)), f"(({x}) {kind} {n})"
    if kind in ("min", "max"):
        return (minimum if kind == "min" else maximum)(a, b), f"{kind}({x}, {y})"
    return {"+": a + b, "-": a - b, "*": a * b}[kind], f"(({x}) {kind} ({y}))"


@settings(max_examples=300, deadline=None)
@given(polynomials(), st.integers(0, 7), st.integers(0, 7))
def test_agrees_with_integers(formula: tuple[Dim, str], s: int, t: int):
    d, text = formula
    expected = eval(text, {"S": s, "T": t, "min": min, "max": max})
    assert bind(d, {"S": s, "T": t}) == expected
    assert bind(bind(d, {"S": s}), {"T": t}) == expected
    if non_negative(d):
        assert expected >= 0
    if isinstance(d, int):
        assert d == expected
