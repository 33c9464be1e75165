"""Movements that move nothing, and movements of movements.

    reshape(reshape(x)) -> reshape(x)      transpose(transpose(x)) -> transpose(x)      slice(x), all of it -> x

What looks like nothing may still widen the result (expand), turn it round (a slice with a negative step) or change its
values (a cast through a narrow type): every rule compares the types, and reads every attribute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, Op, Var, any_node, op
from opfuse.rewrite.rule import Case, Input, Rule, declared, rule, same_type

x = Var("x")


def moved(name: str) -> Op:
    """One movement, captured under the name of its operator."""
    return op(name, x, name=name)


def _identity(g: Graph) -> list[str]:
    return [g.emit("relu", [g.emit("identity", [g.add_input("x", TensorType(DType.F32, (2, 3)))])])]


@rule(
    "exact", moved("identity"), when=(same_type("x"),), cases=(Case(build=_identity), Case({"x": (2, 3)}, fires=False))
)
def remove_identity(m: Match, to: Draft) -> str:
    """identity(x) -> x"""
    return m["x"]


# ---- casts -----------------------------------------------------------------------------------------------------------
def lossless(a: DType, b: DType) -> bool:
    """Does every value of type a exist in type b?"""
    if a is b or a is DType.BOOL:
        return True
    if b is DType.BOOL:
        return False
    if a.is_float:
        return b.is_float and (a, b) in _WIDENINGS
    if b.is_float:
        return a.bytes * 8 - a.is_signed <= _SIGNIFICAND[b]
    smaller, larger = np.iinfo(a.numpy), np.iinfo(b.numpy)
    return bool(larger.min <= smaller.min and smaller.max <= larger.max)


_SIGNIFICAND = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
_WIDENINGS = {
    (DType.F16, DType.F32),
    (DType.F16, DType.F64),
    (DType.BF16, DType.F32),
    (DType.BF16, DType.F64),
    (DType.F32, DType.F64),
}

_TO = "to"


@rule("exact", moved("cast"), when=(same_type("x"),), cases=(
    Case({"x": (2, 3)}, {"cast": {_TO: DType.F32}}),
    Case({"x": (2, 3)}, {"cast": {_TO: DType.F16}}, fires=False),
))  # fmt: skip
def remove_cast(m: Match, to: Draft) -> str:
    """cast(x) -> x, where x has that type"""
    return m["x"]


@rule("exact", op("cast", op("cast", x, name="inner"), name="outer"), cases=(
    Case({"x": (2, 3)}, {"inner": {_TO: DType.F64}, "outer": {_TO: DType.F32}}),
    Case({"x": Input((2, 3), DType.F16)}, {"inner": {_TO: DType.F32}, "outer": {_TO: DType.I32}}),
    Case({"x": (2, 3)}, {"inner": {_TO: DType.F16}, "outer": {_TO: DType.F32}}, fires=False),
    Case({"x": (2, 3)}, {"inner": {_TO: DType.I32}, "outer": {_TO: DType.F32}}, fires=False),
))  # fmt: skip
def merge_casts(m: Match, to: Draft) -> str | Refusal:
    """cast(cast(x, a), b) -> cast(x, b), where type a holds every value of x"""
    source, middle = m.type("x").dtype, m.nodes["inner"].attrs["to"]
    if not lossless(source, middle):
        return Refusal(
            "lossy-cast", f"{source.value} to {middle.value} loses values", {"from": source.value, "to": middle.value}
        )
    return to.emit("cast", m["x"], to=m.root.attrs["to"])


# ---- reshape, transpose, expand --------------------------------------------------------------------------------------
@rule("exact", moved("reshape"), when=(same_type("x"),), cases=(
    Case({"x": (2, 3)}, {"reshape": {"shape": (2, 3)}}),
    Case({"x": (2, 3)}, {"reshape": {"shape": (3, 2)}}, fires=False),
))  # fmt: skip
def remove_reshape(m: Match, to: Draft) -> str:
    """reshape(x) -> x, where x has that shape"""
    return m["x"]


@rule("exact", op("reshape", op("reshape", x, name="inner"), name="outer"), cases=(
    Case({"x": (2, 3)}, {"inner": {"shape": (6,)}, "outer": {"shape": (3, 2)}}),
    Case({"x": (2, 3)}, {"inner": {"shape": (6,)}, "outer": {"shape": (3, 2)}}, shown=("inner",)),
))  # fmt: skip
def merge_reshapes(m: Match, to: Draft) -> str:
    """reshape(reshape(x)) -> reshape(x)"""
    return to.emit("reshape", m["x"], shape=m.root.attrs["shape"])


@rule("exact", moved("transpose"), cases=(
    Case({"x": (2, 3)}, {"transpose": {"perm": (0, 1)}}),
    Case({"x": (2, 2)}, {"transpose": {"perm": (1, 0)}}, fires=False),
))  # fmt: skip
def remove_transpose(m: Match, to: Draft) -> str | Refusal:
    """transpose(x) -> x, where the axes keep their order"""
    perm = tuple(m.root.attrs["perm"])
    return (
        m["x"] if perm == tuple(range(len(perm))) else Refusal("moves-axes", f"perm {perm} moves axes", {"perm": perm})
    )


@rule("exact", op("transpose", op("transpose", x, name="inner"), name="outer"), cases=(
    Case({"x": (2, 3, 4)}, {"inner": {"perm": (1, 2, 0)}, "outer": {"perm": (1, 0, 2)}}),
    Case({"x": (2, 2, 2)}, {"inner": {"perm": (1, 2, 0)}, "outer": {"perm": (1, 2, 0)}}),
    Case({"x": (2, 3, 4)}, {"inner": {"perm": (0, 2, 1)}, "outer": {"perm": (0, 2, 1)}}, shown=("inner",)),
))  # fmt: skip
def merge_transposes(m: Match, to: Draft) -> str:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    inner = m.nodes["inner"].attrs["perm"]
    return to.transpose(m["x"], [inner[q] for q in m.root.attrs["perm"]])


@rule("exact", moved("transpose"), cases=(
    Case({"x": (2, 1, 3)}, {"transpose": {"perm": (1, 0, 2)}}),
    Case({"x": (2, 3, 1, 1)}, {"transpose": {"perm": (0, 3, 1, 2)}}),
    Case({"x": (2, 1, 3)}, {"transpose": {"perm": (2, 1, 0)}}, fires=False),
))  # fmt: skip
def transpose_to_reshape(m: Match, to: Draft) -> str | Refusal:
    """transpose(x) -> reshape(x), where only axes of extent 1 pass others"""
    shape, perm = m.type("x").shape, m.root.attrs["perm"]
    kept = [p for p in perm if shape[p] != 1]
    if kept != sorted(kept):
        return Refusal("moves-data", f"axes {kept} of {m['x']} change their order", {"perm": tuple(perm)})
    return to.reshape(m["x"], m.result.shape)


@rule("exact", moved("expand"), when=(same_type("x"),), cases=(
    Case({"x": (2, 3)}, {"expand": {"shape": (2, 3)}}),
    Case({"x": (2, 3)}, {"expand": {"shape": (1, 1)}}),
    Case({"x": (1, 3)}, {"expand": {"shape": (2, 3)}}, fires=False),
    Case({"x": (3,)}, {"expand": {"shape": (1, 3)}}, fires=False),
))  # fmt: skip
def remove_expand(m: Match, to: Draft) -> str:
    """expand(x) -> x, where x has that shape"""
    return m["x"]


@rule("exact", op("expand", op("expand", x, name="inner"), name="outer"), cases=(
    Case({"x": (1, 3)}, {"inner": {"shape": (2, 3)}, "outer": {"shape": (4, 1, 1)}}),
))  # fmt: skip
def merge_expands(m: Match, to: Draft) -> str:
    """expand(expand(x)) -> expand(x)"""
    return to.emit("expand", m["x"], shape=m.result.shape)


# ---- slice, pad, concat, tile ----------------------------------------------------------------------------------------
def _slice(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    return {"slice": {"starts": starts, "stops": stops, "steps": steps}}


@rule("exact", moved("slice"), when=(same_type("x"),), cases=(
    Case({"x": (2, 3)}, _slice((0, 0), (2, 3), (1, 1))),
    Case({"x": (2, 3)}, _slice((0, 2), (2, -1), (1, -1)), fires=False),
    Case({"x": (2, 3)}, _slice((0, 1), (2, 3), (1, 1)), fires=False),
))  # fmt: skip
def remove_slice(m: Match, to: Draft) -> str | Refusal:
    """slice(x) -> x, where it takes all of x forwards"""
    attrs, shape = m.root.attrs, m.type("x").shape
    turned = [k for k, s in enumerate(attrs["steps"]) if s != 1 and shape[k] != 1]
    return Refusal("turned-round", f"the steps are {attrs['steps']}", {"axes": turned}) if turned else m["x"]


@rule("exact", moved("pad"), cases=(
    Case({"x": (2, 3)}, {"pad": {"pads": (0, 0, 0, 0), "value": 5.0}}),
    Case({"x": (2, 3)}, {"pad": {"pads": (0, -1, 0, 1)}}, fires=False),
    Case({"x": (2, 3)}, {"pad": {"pads": (0, 1, 0, 0)}}, fires=False),
))  # fmt: skip
def remove_pad(m: Match, to: Draft) -> str | Refusal:
    """pad(x) -> x, where every pad is 0"""
    pads = tuple(m.root.attrs["pads"])
    return Refusal("pads", f"the pads are {pads}", {"pads": pads}) if any(p != 0 for p in pads) else m["x"]


@rule("exact", op("concat", x, name="concat"), cases=(Case({"x": (2, 3)}, {"concat": {"axis": 1}}),))
def remove_concat(m: Match, to: Draft) -> str:
    """concat(x) of one operand -> x"""
    return m["x"]


@rule("exact", moved("tile"), cases=(
    Case({"x": (2, 3)}, {"tile": {"repeats": (1, 1)}}),
    Case({"x": (2, 3)}, {"tile": {"repeats": (1, 2)}}, fires=False),
))  # fmt: skip
def remove_tile(m: Match, to: Draft) -> str | Refusal:
    """tile(x) -> x, where every dimension is repeated once"""
    repeats = tuple(m.root.attrs["repeats"])
    return Refusal("repeats", f"the repeats are {repeats}") if any(r != 1 for r in repeats) else m["x"]


@rule("exact", any_node("concat", "concat"), cases=(
    Case(build=lambda g: [_concat_with_empty(g)]),
))  # fmt: skip
def drop_empty_operands(m: Match, to: Draft) -> str | Refusal:
    """concat(x, empty, y) -> concat(x, y)"""
    axis, shapes = m.root.attrs["axis"], [m.graph.types[str(i)].shape for i in m.root.inputs]
    kept = [i for i, s in zip(m.root.inputs, shapes, strict=True) if s[axis] != 0]
    if not kept or len(kept) == len(shapes):
        return Refusal("nothing-empty", "no operand is empty, or all are")
    return to.emit("concat", *kept, axis=axis)


def _concat_with_empty(g: Graph) -> str:
    a, empty, b = (g.add_input(n, TensorType(DType.F32, s)) for n, s in (("a", (1, 2)), ("e", (0, 2)), ("b", (3, 2))))
    return g.emit("concat", [a, empty, b], {"axis": 0})


RULES: tuple[Rule, ...] = declared(globals())
