"""Transposes move down, through operators that work the same in another order of axes, until they meet their inverse.

    relu(transpose(x)) -> transpose(relu(x))          reduce_max(transpose(x), axes) -> transpose(reduce_max(x, axes'))

A transpose moves only where every reader of it lets it pass, so that no value ends up wanted in two orders. The other
operands of an elementwise operator must be transposed likewise, constant, or no work to transpose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim, product
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Var, any_node, op
from opfuse.rewrite.rule import Case, Input, Rule, declared, rule, used_once
from opfuse.rewrite.rules.broadcasting import ELEMENTWISE, REDUCTIONS

x, rows = Var("x"), Constant("rows")
SOFTMAXES = ("softmax", "log_softmax")
MOVEMENTS = ("pad", "slice", "repeat", "resample")
WINDOWS = ("conv", "max_pool", "avg_pool", "batch_norm", "instance_norm")
Perm = tuple[int, ...]
DEPTH = 6  # elementwise operators to look through for a transpose that will come


def inverse(perm: Sequence[int]) -> Perm:
    return tuple(int(k) for k in np.argsort(perm))


def moves_no_data(shape: Sequence[Dim], perm: Sequence[int]) -> bool:
    kept = [p for p in perm if shape[p] != 1]
    return kept == sorted(kept)


def perm_of(graph: Graph, value: str | None) -> Perm | None:
    """The order of axes where the value is made by a transpose."""
    node = graph.producer(value) if value is not None else None
    return tuple(node.attrs["perm"]) if node is not None and node.op == "transpose" else None


# ---- who lets a transpose pass ---------------------------------------------------------------------------------------
def passes(graph: Graph, node: Node, perm: Perm, assumed: frozenset[str], depth: int) -> Refusal | None:
    """Can a transpose by `perm` of the node's operand move behind the node?

    `assumed` are transposed values that are being asked about already: x + x * g passes if x * g does, and that if x.
    """
    if node.op in ELEMENTWISE:
        return _elementwise_passes(graph, node, perm, assumed, depth)
    if node.op == "concat":
        others = [
            i
            for i in node.reads
            if not graph.is_constant(i) and not _will_be_transposed(graph, i, perm, assumed, depth)
        ]
        return (
            Refusal("other-order", f"{others[0]} is not transposed likewise", {"value": str(others[0])})
            if others
            else None
        )
    if node.op in WINDOWS:
        first = node.attrs["layout"] == "NCHW" and perm == (0, len(perm) - 1, *range(1, len(perm) - 1))
        return (
            None
            if first
            else Refusal("other-order", f"{node.name} wants its operand in this order", {"node": node.name})
        )
    if node.op in (*REDUCTIONS, *SOFTMAXES, *MOVEMENTS, "transpose"):
        return None
    return Refusal("fixed-order", f"{node.op} depends on the order of its axes", {"node": node.name})


def _elementwise_passes(graph: Graph, node: Node, perm: Perm, assumed: frozenset[str], depth: int) -> Refusal | None:
    if graph.types[node.output].rank != len(perm):
        return Refusal("widens", f"{node.name} gives its operands another rank", {"node": node.name})
    for i in node.reads:
        if _any_order(graph, i, perm) or _will_be_transposed(graph, i, perm, assumed, depth):
            continue
        return Refusal("other-order", f"{i} is not transposed likewise", {"value": i})
    return None


def _any_order(graph: Graph, value: str, perm: Perm) -> bool:
    """A constant, or an operand whose transpose moves no data."""
    shape = graph.types[value].shape
    return graph.is_constant(value) or moves_no_data((1,) * (len(perm) - len(shape)) + shape, inverse(perm))


def _will_be_transposed(graph: Graph, value: str, perm: Perm, assumed: frozenset[str], depth: int) -> bool:
    """Made by a transpose, or by elementwise operators that one moves through first."""
    if perm_of(graph, value) == perm:
        return True
    node = graph.producer(value)
    if node is None or node.op not in ELEMENTWISE or depth == 0:
        return False
    if all(_any_order(graph, i, perm) for i in node.reads):
        return False
    if _elementwise_passes(graph, node, perm, assumed, depth - 1) is not None:
        return False
    turned = [i for i in node.reads if perm_of(graph, i) == perm]
    return all(all_readers_pass(graph, i, perm, assumed, depth - 1) is None for i in turned)


def all_readers_pass(
    graph: Graph, value: str, perm: Perm, assumed: frozenset[str] = frozenset(), depth: int = DEPTH
) -> Refusal | None:
    """Does everything that reads a transposed value let the transpose pass?"""
    if value in assumed:
        return None
    if graph.is_output(value):
        return Refusal("graph-output", f"{value} is a graph output", {"value": value})
    assumed |= {value}
    return next(
        (no for n in graph.consumers(value) if (no := passes(graph, n, perm, assumed, depth)) is not None), None
    )


# ---- elementwise, concat ---------------------------------------------------------------------------------------------
def _value(g: Graph, name: str, *shape: int) -> str:
    return g.add_input(name, TensorType(DType.F32, shape))


def _turned(g: Graph, name: str, *shape: int) -> str:
    return g.emit("transpose", [_value(g, name, *shape)], {"perm": (0, 3, 1, 2)})


def _with_bias(g: Graph) -> list[str]:
    bias = g.add_constant(np.arange(3, dtype=np.float32).reshape(3, 1, 1))
    return [g.emit("relu", [g.emit("add", [_turned(g, "a", 2, 4, 5, 3), bias])])]


def _residual(g: Graph) -> list[str]:
    return [g.emit("add", [_turned(g, "a", 2, 4, 5, 3), _turned(g, "b", 2, 4, 5, 3)])]


def _gated(g: Graph) -> list[str]:
    return [g.emit("mul", [_turned(g, "a", 2, 4, 5, 3), _value(g, "gate", 2, 3, 1, 1)])]


def _squeezed_and_excited(g: Graph) -> list[str]:
    t = _turned(g, "a", 2, 4, 5, 3)
    gate = g.emit("sigmoid", [g.emit("reduce_mean", [t], {"axes": (2, 3), "keepdims": True})])
    return [g.emit("relu", [g.emit("add", [t, g.emit("mul", [t, gate])])])]


def _half_turned(g: Graph) -> list[str]:
    t = _turned(g, "a", 2, 4, 5, 3)
    return [g.emit("add", [t, g.emit("relu", [_value(g, "b", 2, 3, 4, 5)])])]


def _one_side(g: Graph) -> list[str]:
    return [g.emit("add", [_turned(g, "a", 2, 4, 5, 3), _value(g, "b", 2, 3, 4, 5)])]


def _also_shown(g: Graph) -> list[str]:
    t = _turned(g, "a", 2, 4, 5, 3)
    return [g.emit("relu", [t]), t]


@rule("exact", any_node(ELEMENTWISE, "f", reading="transpose"), cases=(
    Case(build=_with_bias), Case(build=_residual), Case(build=_gated), Case(build=_one_side, fires=False),
    Case(build=_squeezed_and_excited), Case(build=_half_turned, fires=False),
    Case(build=_also_shown, fires=False),
))  # fmt: skip
def transpose_through_elementwise(m: Match, to: Draft) -> str | Refusal:
    """f(transpose(x), transpose(y), c) -> transpose(f(x, y, transpose'(c)))"""
    perms = {i: p for i in m.root.reads if (p := perm_of(m.graph, i)) is not None}
    if not perms:
        return Refusal("no-transpose", "no operand is transposed")
    perm = next(iter(perms.values()))
    for value, p in perms.items():
        no = (
            all_readers_pass(m.graph, value, perm)
            if p == perm
            else Refusal("other-order", f"{value} has another order")
        )
        if no is not None:
            return no
    inputs = [_untransposed(m.graph, to, i, perm) for i in m.root.inputs]
    out = to.emit(m.root.op, *inputs, of=m.root, **m.root.attrs)
    return to.transpose(out, perm, of=m.graph.producer(next(iter(perms))))


def _untransposed(graph: Graph, to: Draft, value: str | None, perm: Perm) -> str | None:
    """The operand before the transpose; a constant or a small operand in the order that it had there."""
    if value is None or graph.types[value].elements == 1:
        return value
    maker = graph.producer(value)
    if maker is not None and perm_of(graph, value) == perm:
        return maker.inputs[0]
    shape = graph.types[value].shape
    lifted = to.reshape(value, (1,) * (len(perm) - len(shape)) + shape)
    if graph.is_constant(value):
        return to.transpose(lifted, inverse(perm))
    return to.reshape(lifted, tuple(to.shape(lifted)[p] for p in inverse(perm)))


def _joined(g: Graph) -> list[str]:
    return [g.emit("concat", [_turned(g, "a", 2, 4, 5, 3), _turned(g, "b", 2, 4, 5, 6)], {"axis": 1})]


@rule("exact", any_node("concat", "concat", reading="transpose"), cases=(Case(build=_joined),))
def transpose_through_concat(m: Match, to: Draft) -> str | Refusal:
    """concat(transpose(x), transpose(y), axis) -> transpose(concat(x, y, perm[axis]))"""
    perms = [p for i in m.root.inputs if (p := perm_of(m.graph, i)) is not None]
    if not perms:
        return Refusal("no-transpose", "no operand is transposed")
    for value in m.root.reads:
        no = None if m.graph.is_constant(value) else all_readers_pass(m.graph, value, perms[0])
        if no is not None:
            return no
    inputs = [_untransposed_operand(m.graph, to, str(i), perms[0]) for i in m.root.inputs]
    out = to.emit("concat", *inputs, of=m.root, axis=perms[0][m.root.attrs["axis"]])
    return to.transpose(out, perms[0])


def _untransposed_operand(graph: Graph, to: Draft, value: str, perm: Perm) -> str:
    maker = graph.producer(value)
    return to.transpose(value, inverse(perm)) if maker is None else str(maker.inputs[0])


# ---- reductions, softmax, pads and slices ----------------------------------------------------------------------------
_transposed = op("transpose", x, name="transpose")


def _readers_pass(m: Match) -> Refusal | None:
    node = m.nodes["transpose"]
    return all_readers_pass(m.graph, node.output, tuple(node.attrs["perm"]))


def _turn(**attrs: object) -> dict[str, dict[str, object]]:
    return {"transpose": {"perm": (0, 3, 1, 2)}, "f": attrs}


@rule(
    "exact",
    op(REDUCTIONS, _transposed, name="f"),
    when=(_readers_pass,),
    cases=(
        Case({"x": (2, 4, 5, 3)}, _turn(axes=(2, 3), keepdims=True)),
        Case({"x": (2, 4, 5, 3)}, _turn(axes=(1,), keepdims=False)),
        Case({"x": (2, 4, 5, 3)}, _turn(axes=(2, 3), keepdims=False)),
    ),
)
def transpose_through_reduction(m: Match, to: Draft) -> str:
    """reduce(transpose(x), axes) -> transpose(reduce(x, perm[axes]))"""
    perm, attrs = m.nodes["transpose"].attrs["perm"], m.root.attrs
    out = to.emit(m.root.op, m["x"], of=m.root, **{**attrs, "axes": tuple(sorted(perm[a] for a in attrs["axes"]))})
    if attrs["keepdims"]:
        return to.transpose(out, perm, of=m.nodes["transpose"])
    kept = [p for k, p in enumerate(perm) if k not in attrs["axes"]]
    return to.transpose(out, [sorted(kept).index(p) for p in kept], of=m.nodes["transpose"])


@rule(
    "exact",
    op(SOFTMAXES, _transposed, name="f"),
    when=(_readers_pass,),
    cases=(Case({"x": (2, 4, 5, 3)}, _turn(axis=1)),),
)
def transpose_through_softmax(m: Match, to: Draft) -> str:
    """softmax(transpose(x), axis) -> transpose(softmax(x, perm[axis]))"""
    perm = m.nodes["transpose"].attrs["perm"]
    out = to.emit(m.root.op, m["x"], of=m.root, axis=perm[m.root.attrs["axis"]])
    return to.transpose(out, perm, of=m.nodes["transpose"])


@rule("exact", op("pad", _transposed, name="f"), when=(_readers_pass,), cases=(
    Case({"x": (2, 4, 5, 3)}, _turn(pads=(0, 1, 2, 0, 0, 0, 0, 1))),
    Case({"x": (2, 4, 5, 3)}, _turn(pads=(0, -1, 0, 0, 0, 0, 0, 1), mode="constant", value=2.0)),
))  # fmt: skip
def transpose_through_pad(m: Match, to: Draft) -> str:
    """pad(transpose(x)) -> transpose(pad(x))"""
    perm, pads = m.nodes["transpose"].attrs["perm"], m.root.attrs["pads"]
    back, rank = inverse(perm), len(perm)
    moved = (*(pads[k] for k in back), *(pads[rank + k] for k in back))
    return to.transpose(
        to.emit("pad", m["x"], of=m.root, **{**m.root.attrs, "pads": moved}), perm, of=m.nodes["transpose"]
    )


@rule("exact", op("slice", _transposed, name="f"), when=(_readers_pass,), cases=(
    Case({"x": (2, 4, 5, 3)}, _turn(starts=(0, 1, 0, 4), stops=(2, 3, 4, 0), steps=(1, 1, 2, -2))),
))  # fmt: skip
def transpose_through_slice(m: Match, to: Draft) -> str:
    """slice(transpose(x)) -> transpose(slice(x))"""
    perm, attrs = m.nodes["transpose"].attrs["perm"], m.root.attrs
    moved = {n: tuple(attrs[n][k] for k in inverse(perm)) for n in ("starts", "stops", "steps")}
    return to.transpose(to.emit("slice", m["x"], of=m.root, **moved), perm, of=m.nodes["transpose"])


@rule("exact", op("repeat", _transposed, name="f"), when=(_readers_pass,), cases=(
    Case({"x": (2, 4, 5, 3)}, _turn(repeats=(1, 1, 2, 3))),
))  # fmt: skip
def transpose_through_repeat(m: Match, to: Draft) -> str:
    """repeat(transpose(x)) -> transpose(repeat(x))"""
    perm = m.nodes["transpose"].attrs["perm"]
    repeats = tuple(m.root.attrs["repeats"][k] for k in inverse(perm))
    return to.transpose(to.emit("repeat", m["x"], of=m.root, repeats=repeats), perm, of=m.nodes["transpose"])


def _resampled(g: Graph) -> list[str]:
    places = g.add_constant(np.array([[0, 1, 3], [1, 2, 3]]))
    weights = g.add_constant(np.array([[1, 0.5, 0.25], [0, 0.5, 0.75]], np.float32))
    return [g.emit("resample", [_turned(g, "a", 2, 4, 5, 3), places, weights], {"axes": (2,)})]


@rule("exact", any_node("resample", "f", reading="transpose"), cases=(Case(build=_resampled),))
def transpose_through_resample(m: Match, to: Draft) -> str | Refusal:
    """resample(transpose(x), tables, axes) -> transpose(resample(x, tables, perm[axes]))"""
    first, *tables = m.root.inputs
    perm = perm_of(m.graph, first)
    if perm is None:
        return Refusal("no-transpose", "the operand is not transposed")
    no = all_readers_pass(m.graph, str(first), perm)
    if no is not None:
        return no
    maker = m.graph.producer(str(first))
    assert maker is not None
    axes = tuple(perm[a] for a in m.root.attrs["axes"])
    return to.transpose(to.emit("resample", maker.inputs[0], *tables, of=m.root, axes=axes), perm, of=maker)


# ---- reshapes --------------------------------------------------------------------------------------------------------
def merged_axes(shape: Sequence[Dim], result: Sequence[Dim]) -> list[list[int]] | Refusal:
    """For each axis of the result the axes of the shape that it merges, in order; those of extent 1 are left out."""
    groups, at = [], 0
    axes = [k for k, d in enumerate(shape) if d != 1]
    for d in result:
        group: list[int] = []
        while d != 1 and at < len(axes) and product(shape[k] for k in group) != d:
            group.append(axes[at])
            at += 1
        if product(shape[k] for k in group) != d:
            return Refusal("splits-axes", f"the reshape of {tuple(shape)} to {tuple(result)} does more than merge axes")
        groups.append(group)
    if at < len(axes):
        return Refusal("splits-axes", f"the reshape of {tuple(shape)} to {tuple(result)} does more than merge axes")
    return groups


@rule(
    "reassociating",
    op("matmul", op("reshape", _transposed, name="reshape"), rows),
    when=(used_once("reshape"),),
    cases=(
        Case(
            {"x": (2, 4, 5, 3), "rows": np.linspace(-1, 1, 120, dtype=np.float32).reshape(60, 2)},
            {"transpose": {"perm": (0, 3, 1, 2)}, "reshape": {"shape": (2, 60)}},
        ),
        Case(
            {"x": (3, 4, 5, 2), "rows": np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)},
            {"transpose": {"perm": (3, 1, 2, 0)}, "reshape": {"shape": (4, 30)}},
            fires=False,
        ),
        Case(
            {"x": Input((2, 4, 5, 3)), "rows": np.ones((20, 2), np.float32)},
            {"transpose": {"perm": (0, 3, 1, 2)}, "reshape": {"shape": (6, 20)}},
            fires=False,
        ),
    ),
)
def transpose_into_rows(m: Match, to: Draft) -> str | Refusal:
    """matmul(reshape(transpose(x)), W) -> matmul(reshape(x), W with its rows in the other order)"""
    perm, before = m.nodes["transpose"].attrs["perm"], m.graph.types[m.nodes["transpose"].output].shape
    flat, weights = m.graph.types[m.nodes["reshape"].output].shape, m.array("rows")
    if perm[0] != 0 or len(flat) != 2 or flat[0] != before[0] or weights.ndim != 2:
        return Refusal("not-flat", f"the reshape to {flat} does not flatten all but the first axis")
    if not all(isinstance(d, int) for d in before[1:]):
        return Refusal("symbolic", "an axis that is flattened is not bound yet")
    inner = weights.reshape(*before[1:], weights.shape[1])  # type: ignore[arg-type]
    back = [k - 1 for k in inverse(perm)[1:]]
    turned = np.transpose(inner, (*back, len(back))).reshape(weights.shape)
    return to.emit("matmul", to.reshape(m["x"], flat, of=m.nodes["reshape"]), to.constant(turned), of=m.root)


@rule(
    "exact",
    op("reshape", _transposed, name="f"),
    cases=(
        Case({"x": (2, 4, 5, 3)}, _turn(shape=(2, 3, 20))),
        Case({"x": (2, 4, 1, 3)}, _turn(shape=(2, 3, 4))),
        Case({"x": (2, 4, 1, 3)}, _turn(shape=(2, 3, 1, 1, 4))),
        Case({"x": (2, 4, 5, 3)}, _turn(shape=(2, 60)), fires=False),
        Case({"x": (2, 4, 6, 3)}, _turn(shape=(2, 3, 2, 12)), fires=False),
    ),
)
def transpose_through_reshape(m: Match, to: Draft) -> str | Refusal:
    """reshape(transpose(x)) -> transpose(reshape(x)), where the reshape merges axes that are neighbours in x too"""
    perm, node = m.nodes["transpose"].attrs["perm"], m.nodes["transpose"]
    if m.graph.is_output(node.output) or len(m.graph.consumers(node.output)) != 1:
        return Refusal("other-readers", f"{node.output} is read by others too", {"value": node.output})
    groups = merged_axes(m.graph.types[node.output].shape, m.result.shape)
    if isinstance(groups, Refusal):
        return groups
    wide = [k for k, d in enumerate(m.type("x").shape) if d != 1]
    places = [[wide.index(perm[k]) for k in group] for group in groups]
    if any(p != list(range(p[0], p[0] + len(p))) for p in places if p):
        return Refusal("not-neighbours", "axes that the reshape merges are apart in the transpose's operand")
    # Axes of extent 1 are put right behind the axis that they follow in the result, so that they need not move.
    keys, last = [], -1
    for p in places:
        last = p[0] if p else last
        keys.append(last)
    order = sorted(range(len(groups)), key=lambda k: (keys[k], k))
    inner = to.reshape(m["x"], [m.result.shape[k] for k in order], of=m.root)
    return to.transpose(inner, inverse(order), of=node)


RULES: tuple[Rule, ...] = declared(globals())
