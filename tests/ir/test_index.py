"""Index expressions agree with numbers: composition, quotients, remainders, simplification, reshapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfuse.ir.dims import Dim, bind, product, symbol
from opfuse.ir.index import (
    AxisTerm,
    Gathered,
    Index,
    Quotient,
    Remainder,
    as_index,
    axis,
    bounds,
    flatten,
    quotient,
    remainder,
    simplify,
    split,
)

S, B = symbol("S"), symbol("B")


def number(i: Index, at: Mapping[str, int], values: Mapping[str, int] | None = None) -> int:
    """The value of an index at a point; asserts that nothing under a quotient or remainder is negative."""
    values = values or {}
    total = bind(i.const, values)
    for t, c in i.terms:
        match t:
            case AxisTerm(name):
                term = at[name]
            case Quotient(n, d):
                inner = number(n, at, values)
                assert inner >= 0, f"{n} = {inner} under //"
                term = inner // bind(d, values)
            case Remainder(n, d):
                inner = number(n, at, values)
                assert inner >= 0, f"{n} = {inner} under %"
                term = inner % bind(d, values)
            case _:
                raise AssertionError(t)
        total += term * bind(c, values)
    assert isinstance(total, int)
    return total


def points(extents: Mapping[str, int]):
    for at in itertools.product(*(range(e) for e in extents.values())):
        yield dict(zip(extents, at, strict=True))


def test_arithmetic_and_text():
    i = axis("y") * 2 + axis("ky") - 1
    assert str(i) == "2*y+ky-1"
    assert str(axis("y") * -1 + 3) == "-y+3"
    assert str(axis("y") * (S + 1)) == "(S+1)*y"
    assert i - i == Index() and i * 0 == Index() and axis("a") + axis("a") == axis("a") * 2
    assert i.coefficient("y") == 2 and i.coefficient("z") == 0
    assert i.affine and not (i + quotient(axis("q"), 3, {})).affine
    assert (quotient(axis("q") + axis("r"), 3, {}) + axis("s")).axes == {"q", "r", "s"}
    assert as_index(4) == Index((), 4)


def test_substitute_goes_into_quotients_and_gathers():
    i = Index(((Quotient(axis("a"), 4), 2), (Remainder(axis("a"), 4), 1), (Gathered(0), 5)))
    out = i.substitute({"a": axis("b") * 8 + axis("c")}, lambda g: Gathered(f"t{g.source}"))
    assert dict(out.terms)[Gathered("t0")] == 5
    plain = Index(tuple((t, c) for t, c in out.terms if not isinstance(t, Gathered)))
    for at in points({"b": 3, "c": 8}):
        a = at["b"] * 8 + at["c"]
        assert number(plain, at) == a // 4 * 2 + a % 4


def test_bind_reaches_everything():
    i = Index(((Quotient(axis("a") * S, S * 2), S),), S - 1)
    assert i.bind({"S": 3}) == Index(((Quotient(axis("a") * 3, 6), 3),), 2)


def test_known_simplifications():
    e = {"i": 6, "j": 4, "s": S, "b": B}
    assert quotient(axis("i") * 4 + axis("j"), 4, e) == axis("i")
    assert remainder(axis("i") * 4 + axis("j"), 4, e) == axis("j")
    assert quotient(axis("j"), 4, e) == Index() and remainder(axis("j"), 9, e) == axis("j")
    assert quotient(axis("b") * S + axis("s"), S, e) == axis("b")
    assert remainder(axis("b") * S + axis("s"), S, e) == axis("s")
    # a common factor: (384 s + k) // 1536 is s // 4, whatever k < 384 is
    assert quotient(axis("s") * 384 + axis("i"), 1536, e) == Index(((Quotient(axis("s"), 4), 1),))
    assert remainder(axis("s") * 384 + axis("i"), 1536, e) == Index(((Remainder(axis("s"), 4), 384),)) + axis("i")
    whole = Index(((Quotient(axis("i"), 2), 2), (Remainder(axis("i"), 2), 1)))
    assert simplify(whole, e) == axis("i")


def test_a_rest_under_a_quotient_is_never_negative():
    """Reversed axes (negative steps) under a reshape: 8 - i must not turn into 2 + (-i) // 4."""
    i = axis("i") * -1 + 8
    for made in (quotient(i, 4, {"i": 9}), remainder(i, 4, {"i": 9})):
        for at in points({"i": 9}):
            number(made, at)
    assert number(quotient(i, 4, {"i": 9}), {"i": 5}) == 0 and number(remainder(i, 4, {"i": 9}), {"i": 5}) == 3


def test_bounds():
    e = {"i": 6, "s": S}
    assert bounds(axis("i") * 2 + 1, e) == (1, 11)
    assert bounds(axis("i") * -2 + 10, e) == (0, 10)
    assert bounds(axis("s") * 3, e) == (0, (S - 1) * 3)
    assert bounds(axis("unknown"), e) == (0, None)
    assert bounds(axis("i") * (S - 3), e) == (None, None)


# ---- random compositions ---------------------------------------------------------------------------------------------
NAMES = ("a", "b", "c")
extents_strategy = st.fixed_dictionaries({n: st.integers(1, 5) for n in NAMES})


@st.composite
def indices(draw, depth: int = 2) -> Index:
    """A non-negative index: sums of multiples of axes and of quotients and remainders of such."""
    total = Index((), draw(st.integers(0, 6)))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("axis", "axis", "quotient", "remainder"))) if depth else "axis"
        if kind == "axis":
            part = axis(draw(st.sampled_from(NAMES)))
        else:
            inner, d = draw(indices(depth - 1)), draw(st.integers(1, 8))
            part = Index((((Quotient if kind == "quotient" else Remainder)(inner, d), 1),))
        total = total + part * draw(st.integers(1, 12))
    return total


@settings(max_examples=300, deadline=None)
@given(indices(), extents_strategy, st.integers(1, 24))
def test_simplify_quotient_remainder_agree_with_numbers(i: Index, extents: dict[str, int], d: int):
    simple, over, rest = simplify(i, extents), quotient(i, d, extents), remainder(i, d, extents)
    low, high = bounds(i, extents)
    for at in points(extents):
        value = number(i, at)
        assert number(simple, at) == value
        assert number(over, at) == value // d
        assert number(rest, at) == value % d
        assert low <= value <= high


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(-7, 7), st.integers(-7, 7), st.integers(1, 9))
def test_negative_coefficients(ea: int, eb: int, ca: int, cb: int, d: int):
    extents = {"a": ea, "b": eb}
    i = axis("a") * ca + axis("b") * cb
    low = bounds(i, extents)[0]
    i = i - low
    for at in points(extents):
        assert number(quotient(i, d, extents), at) == number(i, at) // d
        assert number(remainder(i, d, extents), at) == number(i, at) % d


@st.composite
def two_shapes(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one number of elements."""
    primes = draw(st.lists(st.sampled_from((1, 2, 2, 3, 5)), min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        order = draw(st.permutations(primes))
        cuts = sorted(draw(st.sets(st.integers(1, len(primes) - 1)))) if len(primes) > 1 else []
        return tuple(math.prod(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(primes)], strict=True))

    return grouped(), grouped()


@settings(max_examples=150, deadline=None)
@given(two_shapes())
def test_reshape_by_flatten_and_split(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    source, target = shapes
    names = [f"i{k}" for k in range(len(target))]
    extents: dict[str, Dim] = dict(zip(names, target, strict=True))
    index = split(flatten([axis(n) for n in names], target, extents), source, extents)
    data = np.arange(product(source)).reshape(source)
    expected = data.reshape(target)
    for at in points(dict(zip(names, target, strict=True))):
        assert data[tuple(number(i, at) for i in index)] == expected[tuple(at.values())]


@pytest.mark.parametrize("values", [{"S": 1, "B": 1}, {"S": 5, "B": 3}, {"S": 2, "B": 4}])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((B, S, 6), (B * S, 6)),
        ((B * S, 6), (B, S, 2, 3)),
        ((B, S * 6), (B * 2, S * 3)),
        ((S, 12), (S * 3, 4)),
        ((S * 4, 3), (S, 12)),
    ],
)
def test_symbolic_reshape_agrees_with_numbers(source, target, values):
    names = [f"i{k}" for k in range(len(target))]
    extents = dict(zip(names, target, strict=True))
    index = split(flatten([axis(n) for n in names], target, extents), source, extents)
    shape = [bind(d, values) for d in source]
    data = np.arange(math.prod(shape)).reshape(shape)
    expected = data.reshape([bind(d, values) for d in target])
    for at in points({n: bind(d, values) for n, d in extents.items()}):
        assert data[tuple(number(i, at, values) for i in index)] == expected[tuple(at.values())]
