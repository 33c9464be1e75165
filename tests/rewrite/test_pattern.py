"""Patterns: orders of operands, constants, optional operands, and refusals that name what did not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.pattern import (
    Constant,
    Match,
    Maybe,
    Pattern,
    Var,
    any_of,
    depth,
    holds,
    least_operators,
    match,
    near_match,
    needs,
    op,
    operators,
    product,
    spellings,
)

x, y = Var("x"), Var("y")


@pytest.fixture
def graph() -> Graph:
    g = Graph()
    g.add_input("a", TensorType(DType.F32, (2, 3)))
    g.add_input("b", TensorType(DType.F32, (2, 3)))
    return g


def last(g: Graph) -> Node:
    return list(g.nodes.values())[-1]


def found(m: Match | Refusal) -> Match:
    assert isinstance(m, Match), m
    return m


def test_commutative_operands_match_in_both_orders(graph: Graph) -> None:
    half = graph.scalar(0.5, DType.F32)
    for operands in ((half, "a"), ("a", half)):
        graph.emit("mul", operands)
        assert found(match(x * 0.5, graph, last(graph)))["x"] == "a"
    graph.emit("sub", [half, "a"])
    assert isinstance(match(x - 0.5, graph, last(graph)), Refusal)


def test_the_search_goes_back_over_its_choices(graph: Graph) -> None:
    """mul(exp(b), exp(a)) with x = a bound deeper: the first order of the operands is a dead end."""
    ea, eb = graph.emit("exp", ["a"]), graph.emit("exp", ["b"])
    graph.emit("mul", [eb, graph.emit("mul", ["a", ea])])
    m = found(match(op("exp", y) * (x * op("exp", x)), graph, last(graph)))
    assert (m["x"], m["y"]) == ("a", "b")


def test_the_same_name_is_the_same_value(graph: Graph) -> None:
    graph.emit("mul", ["a", "b"])
    no = match(x * x, graph, last(graph))
    assert isinstance(no, Refusal) and no.code == "other-value"
    graph.emit("mul", ["a", "a"])
    assert isinstance(match(x * x, graph, last(graph)), Match)


def test_equal_constants_are_the_same_value(graph: Graph) -> None:
    one, two = graph.scalar(3, DType.F32), graph.scalar(3, DType.F32)
    graph.emit("mul", [graph.emit("add", ["a", one]), two])
    assert isinstance(match((x + y) * y, graph, last(graph)), Match)


def test_a_refusal_names_the_guilty_value(graph: Graph) -> None:
    graph.emit("erf", [graph.emit("div", ["a", graph.scalar(1.5, DType.F32)])])
    no = match(op("erf", x / math.sqrt(2)), graph, last(graph))
    assert isinstance(no, Refusal)
    assert no.code == "other-number" and "1.5" in no.text and no.facts["matched"] == 2


def test_the_furthest_failure_is_told(graph: Graph) -> None:
    graph.emit("erf", [graph.emit("div", ["a", graph.scalar(1.5, DType.F32)])])
    no = match(op("erf", any_of(op("exp", x), x / 2, x * 2)), graph, last(graph))
    assert isinstance(no, Refusal) and no.code == "other-number"


def test_optional_operands(graph: Graph) -> None:
    pattern = op("clip", x, Maybe(Constant("low")), Maybe(Constant("high")))
    graph.emit("clip", ["a", None, graph.scalar(1, DType.F32)])
    m = found(match(pattern, graph, last(graph)))
    assert not m.has("low") and m.has("high")
    graph.emit("clip", ["a"])
    assert isinstance(match(pattern, graph, last(graph)), Match)
    graph.emit("clip", ["a", graph.scalar(0, DType.F32), None])
    assert isinstance(match(op("clip", x, 0), graph, last(graph)), Match)


def test_attributes_and_named_nodes(graph: Graph) -> None:
    graph.emit("reduce_sum", ["a"], {"axes": (1,), "keepdims": True})
    assert match(op("reduce_sum", x, name="s", keepdims=True), graph, last(graph)).nodes["s"] is last(graph)  # type: ignore[union-attr]
    no = match(op("reduce_sum", x, axes=lambda axes: 0 in axes), graph, last(graph))
    assert isinstance(no, Refusal) and no.code == "other-attribute"


def test_a_node_named_twice_is_one_node(graph: Graph) -> None:
    d = op("sub", x, y, name="d")
    e, f = graph.emit("sub", ["a", "b"]), graph.emit("sub", ["a", "b"])
    graph.emit("mul", [e, f])
    no = match(d * d, graph, last(graph))
    assert isinstance(no, Refusal) and no.code == "other-node"


@pytest.mark.parametrize(("array", "number", "expected"), [
    (np.float32(math.sqrt(2)), math.sqrt(2), True), (np.float32(1.5), math.sqrt(2), False),
    (np.float16(0.7979), math.sqrt(2 / math.pi), True), (np.full((2, 1), 0.5, np.float32), 0.5, True),
    (np.array([0.5, 0.6], np.float32), 0.5, False), (np.zeros((0,), np.float32), 0.0, False), (np.int64(1), 1, True),
    (np.float32("nan"), 1, False), (np.float32(0.6), 0.5, False),
])  # fmt: skip
def test_numbers_hold_within_the_rounding_of_their_type(array: np.ndarray, number: float, expected: bool) -> None:
    assert holds(np.asarray(array), number) is expected


def test_products_match_in_every_association(graph: Graph) -> None:
    s = graph.scalar(2, DType.F32)
    pattern = product(x, 2, op("exp", x))
    e = graph.emit("exp", ["a"])
    for tree in (((s, "a"), e), ((s, e), "a"), (("a", e), s)):
        graph.emit("mul", [tree[1], graph.emit("mul", tree[0])])
        assert isinstance(match(pattern, graph, last(graph)), Match)
    assert len(list(spellings(product(x, y, Var("z"))))) == 12


def test_what_the_engine_asks() -> None:
    pattern = any_of(x * op("exp", x), op("silu", x))
    mul, silu = needs(pattern)
    assert mul.met("mul", frozenset({"exp", "add"})) and not mul.met("mul", frozenset({"add"}))
    assert silu.met("silu", frozenset()) and not silu.met("mul", frozenset({"exp"}))
    assert depth(pattern) == 2 and least_operators(pattern) == 1
    assert operators(pattern) == {"mul", "exp", "silu"}


# ---- near matches ----------------------------------------------------------------------------------------------------
def _root(p: Pattern, axis: int = 1) -> Pattern:
    return x * op("rsqrt", op("reduce_mean", p, keepdims=True, axes=lambda a: a == (axis,)) + 1e-5)


@pytest.mark.parametrize(("made", "value", "eps", "code", "said"), [
    ("mul", "a", 1e-5, None, ""),
    ("mul", "a", 0.1, "other-number", "0.1, not 1e-05"),
    ("mul", "b", 1e-5, "other-value", "b stands where a is wanted"),
    ("add", "a", 1e-5, "other-operator", "made by add, not by mul"),
    ("exp", "a", 1e-5, "other-operator", "made by exp, not by mul"),
    ("mul", "b", 0.1, None, ""),
    ("exp", "a", 0.1, None, ""),
])  # fmt: skip
def test_one_thing_amiss_is_near(
    graph: Graph, made: str, value: str, eps: float, code: str | None, said: str
) -> None:
    """x * rsqrt(mean(x * x) + 1e-5) but for one thing; with nothing or two things amiss it is no near match."""
    square = graph.emit(made, ["a"] if made == "exp" else ["a", value])
    mean = graph.emit("reduce_mean", [square], {"axes": (1,), "keepdims": True})
    total = graph.emit("add", [graph.scalar(eps, DType.F32), mean])
    graph.emit("mul", [graph.emit("rsqrt", [total]), "a"])
    near = near_match(_root(x * x), graph, last(graph))
    assert (near.code if near is not None else None) == code
    assert near is None or said in near.text


def test_an_attribute_may_be_what_is_amiss(graph: Graph) -> None:
    mean = graph.emit("reduce_mean", [graph.emit("mul", ["a", "a"])], {"axes": (0,), "keepdims": True})
    graph.emit("mul", ["a", graph.emit("rsqrt", [graph.emit("add", [mean, graph.scalar(1e-5, DType.F32)])])])
    near = near_match(_root(x * x), graph, last(graph))
    assert near is not None and near.code == "other-attribute" and near.facts["matched"] == 5
    assert near_match(_root(x * x, axis=0), graph, last(graph)) is None, "it matches"


def test_nothing_is_near_at_another_root(graph: Graph) -> None:
    graph.emit("add", ["a", graph.emit("exp", ["a"])])
    assert near_match(x * op("exp", x), graph, last(graph)) is None
