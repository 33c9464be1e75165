"""Scales in front of a convolution or a product go into its weights; scales and shifts behind a batch norm into it.

    conv(x * s, w, b) -> conv(x, w * s, b)    matmul(x * s, w) -> matmul(x, s * w)    batch_norm(x) * s -> batch_norm(x)

A scale passes through padding (0 * s is 0). A shift stays in front: x - m is small where x and m are large and close,
and the sum of w * x less the sum of w * m is not. All in float64, rounded once, as for what follows a convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Node
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Maybe, Var, any_of, op
from opfuse.rewrite.rule import Case, Operand, Rule, declared, is_float, rule, used_once
from opfuse.rewrite.rules.linear import channel_axis, checked_weights, per_channel, rounded

x, b = Var("x"), Var("b")
w, c = Constant("w"), Constant("c")
_scaled = any_of(op("mul", x, c, name="front"), op("neg", x, name="front"))


def _scale(m: Match, axis: int) -> np.ndarray | Refusal:
    """The factor of each channel of the operand, which it does not widen."""
    front, shape = m.nodes["front"], m.type("x").shape
    if m.graph.types[front.output] != m.type("x"):
        return Refusal("widens", f"{m['c']} widens {m['x']}", {"value": m["c"]})
    return per_channel(m.array("c") if front.op == "mul" else np.array(-1.0), shape, axis)


# ---- convolutions ----------------------------------------------------------------------------------------------------
def scaled_channels(node: Node, weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """w with each *input* channel multiplied by its scale, in float64."""
    wide: np.ndarray = weights.astype(np.float64)
    if node.op == "conv_transpose":  # [channels in, channels out / group, kernel...]
        return np.asarray(wide * scale.reshape(-1, *(1,) * (wide.ndim - 1)))
    group, spatial = node.attrs["group"], (1,) * (wide.ndim - 2)
    first = wide if node.attrs["layout"] == "NCHW" else np.moveaxis(wide, (-1, -2), (0, 1))  # [out, in / group, ...]
    parts = first.reshape(group, first.shape[0] // group, *first.shape[1:])
    scaled = (parts * scale.reshape(group, 1, -1, *spatial)).reshape(first.shape)
    return scaled if node.attrs["layout"] == "NCHW" else np.moveaxis(scaled, (0, 1), (-1, -2))


_ATTRS: dict[str, Any] = {"strides": (2,), "dilations": (1,), "pads": (1, 1), "group": 1, "output_padding": (0,)}
_PER_CHANNEL = np.array([[1], [-2], [0.5], [3]], np.float32)
_VECTOR = np.array([1, -2, 0.5, 3], np.float32)


def _conv_case(shape: tuple[int, ...], fires: bool = True, c: Operand = _PER_CHANNEL, shown: tuple[str, ...] = (),
               last: bool = False, **attrs: Any) -> Case:  # fmt: skip
    values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    operands: dict[str, Operand] = {"x": (2, 5, 4) if last else (2, 4, 5), "w": values, "b": None, "c": c}
    return Case(operands, {"conv": {**_ATTRS, **attrs}}, fires, shown, spellings=12)


@rule("reassociating", op("conv", op("mul", x, c, name="front"), w, Maybe(b), name="conv"),
      when=(used_once("front"), is_float), tell=True, cases=(
    _conv_case((6, 4, 3)), _conv_case((6, 2, 3), group=2), _conv_case((6, 4, 3), c=np.float32(2)),
    _conv_case((3, 4, 6), layout="NHWC", last=True, c=_VECTOR),
    _conv_case((3, 1, 8), layout="NHWC", last=True, c=_VECTOR, group=4),
    _conv_case((6, 4, 3), False, np.arange(5, dtype=np.float32)), _conv_case((6, 4, 3), False, shown=("front",)),
    _conv_case((6, 4, 3), False, np.float32("inf")),
))  # fmt: skip
def scale_before_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(x * c, w, b) -> conv(x, w * c, b), where c is one number for each input channel"""
    return _before_conv(m, to)


@rule("reassociating", op("conv_transpose", op("mul", x, c, name="front"), w, Maybe(b), name="conv"),
      when=(used_once("front"), is_float), tell=True, cases=(
          _conv_case((4, 6, 3)), _conv_case((4, 3, 3), group=2)))  # fmt: skip
def scale_before_conv_transpose(m: Match, to: Draft) -> str | Refusal:
    """conv_transpose(x * c, w, b) -> conv_transpose(x, w * c, b), where c is one number for each input channel"""
    return _before_conv(m, to)


@rule("reassociating", op(("conv", "conv_transpose"), op("neg", x, name="front"), w, Maybe(b), name="conv"),
      when=(used_once("front"), is_float), cases=(_conv_case((4, 4, 3)),))  # fmt: skip
def negation_before_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(-x, w, b) -> conv(x, -w, b)"""
    return _before_conv(m, to)


def _before_conv(m: Match, to: Draft) -> str | Refusal:
    node = m.root
    scale = _scale(m, channel_axis(node, m.result.rank))
    if isinstance(scale, Refusal):
        return scale
    wide = scaled_channels(node, m.array("w"), scale)
    scaled = checked_weights(wide, m.result.dtype, f"the weights of {node.name}")
    if isinstance(scaled, Refusal):
        return scaled
    return to.emit(node.op, m["x"], to.constant(scaled), m["b"] if m.has("b") else None, **node.attrs)


# ---- matrix products -------------------------------------------------------------------------------------------------
_ROWS = np.array([1, -2, 0.5], np.float32)
_W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@rule("reassociating", op("matmul", _scaled, w, name="matmul"), when=(used_once("front"), is_float), cases=(
    Case({"x": (2, 3), "c": _ROWS, "w": _W}), Case({"x": (2, 5, 3), "c": np.float32(0.3), "w": _W}),
    Case({"x": (3,), "c": _ROWS, "w": _W}, fires=False),
    Case({"x": (2, 3), "c": _ROWS, "w": _W}, fires=False, shown=("front",)),
    Case({"x": (2, 3), "c": _ROWS, "w": np.ones((2, 3, 4), np.float32)}, fires=False),
))  # fmt: skip
def scale_before_linear(m: Match, to: Draft) -> str | Refusal:
    """matmul(x * c, w) -> matmul(x, c * w), where c is one number for each row of w; -x the same"""
    if m.array("w").ndim != 2 or m.type("x").rank < 2:
        return Refusal("not-a-matrix", f"{m['w']} is no matrix of weights", {"shape": m.array("w").shape})
    scale = _scale(m, m.type("x").rank - 1)
    if isinstance(scale, Refusal):
        return scale
    wide = m.array("w").astype(np.float64) * scale.reshape(-1, 1)
    scaled = checked_weights(wide, m.result.dtype, f"the weights of {m.root.name}")
    return scaled if isinstance(scaled, Refusal) else to.emit("matmul", m["x"], to.constant(scaled))


# ---- behind a batch norm ---------------------------------------------------------------------------------------------
scale_, shift_ = Constant("scale"), Constant("shift")
_norm = op("batch_norm", x, scale_, shift_, Var("mean"), Var("var"), name="norm")


def _norm_case(c: Operand, fires: bool = True, shown: tuple[str, ...] = (), layout: str = "NCHW") -> Case:
    operands: dict[str, Operand] = {
        "x": (2, 4, 5) if layout == "NCHW" else (2, 5, 4), "scale": _VECTOR, "shift": _VECTOR[::-1],
        "mean": _VECTOR / 2, "var": _VECTOR**2, "c": c,
    }  # fmt: skip
    return Case(operands, {"norm": {"epsilon": 0.1, "layout": layout}}, fires, shown)


def _channels(m: Match) -> np.ndarray | Refusal:
    norm = m.nodes["norm"]
    shape = m.graph.types[norm.output].shape
    return per_channel(m.array("c"), shape, channel_axis(norm, len(shape)))


def _renormed(m: Match, to: Draft, scale: np.ndarray, shift: np.ndarray) -> str | Refusal:
    dtype, norm = m.result.dtype, m.nodes["norm"]
    vectors = [checked_weights(v, dtype, f"the factors of {norm.name}") for v in (scale, shift)]
    for v in vectors:
        if isinstance(v, Refusal):
            return v
    made = [to.constant(v) for v in vectors if not isinstance(v, Refusal)]
    return to.emit("batch_norm", m["x"], *made, m["mean"], m["var"], **norm.attrs)


@rule("reassociating", _norm * c, when=(used_once("norm"), is_float), cases=(
    _norm_case(_PER_CHANNEL), _norm_case(np.float32(3)), _norm_case(_VECTOR, layout="NHWC"),
    _norm_case(np.ones((4, 5), np.float32), False), _norm_case(_PER_CHANNEL, False, ("norm",)),
))  # fmt: skip
def scale_into_batch_norm(m: Match, to: Draft) -> str | Refusal:
    """batch_norm(x) * c -> batch_norm(x), its scale and bias times c"""
    factor = _channels(m)
    if isinstance(factor, Refusal):
        return factor
    return _renormed(m, to, m.array("scale").astype(np.float64) * factor, m.array("shift") * factor)


@rule("reassociating", any_of(_norm + c, _norm - c), when=(used_once("norm"), is_float), cases=(
    _norm_case(_PER_CHANNEL), _norm_case(np.float32(3)), _norm_case(np.ones((4, 5), np.float32), False),
))  # fmt: skip
def shift_into_batch_norm(m: Match, to: Draft) -> str | Refusal:
    """batch_norm(x) + c -> batch_norm(x), its bias greater by c; batch_norm(x) - c the same"""
    vector = _channels(m)
    if isinstance(vector, Refusal):
        return vector
    sign, what = 1 if m.root.op == "add" else -1, f"the bias of {m.nodes['norm'].name}"
    total = rounded(m.array("shift").astype(np.float64) + sign * vector, m.result.dtype, what)
    if isinstance(total, Refusal):
        return total
    return to.emit("batch_norm", m["x"], m["scale"], to.constant(total), m["mean"], m["var"], **m.nodes["norm"].attrs)


RULES: tuple[Rule, ...] = declared(globals())
