"""Scales and shifts that follow a convolution or a matrix product go into its weights and bias.

    batch_norm(conv(x, w, b)) -> conv(x, w * s, b * s + t)          s = scale / sqrt(var + eps), t = bias - mean * s

All of it in float64, rounded once. Weights are new constants, so another reader of the old ones keeps them; a value
that others read is not folded away; a folded weight that its type cannot hold (fp16) is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Node
from opfuse.ir.types import DType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Maybe, Var, any_of, op
from opfuse.rewrite.precision import limits
from opfuse.rewrite.rule import Case, Input, Operand, Rule, declared, is_float, rule, used_once

x = Var("x")
w, bias, c = Constant("w"), Constant("bias"), Constant("c")
_conv = op(("conv", "conv_transpose"), x, w, Maybe(bias), name="conv")
_bare_conv = op(("conv", "conv_transpose"), x, w, name="conv")


# ---- arithmetic on weights -------------------------------------------------------------------------------------------
def rounded(wide: np.ndarray, dtype: DType, what: str) -> np.ndarray | Refusal:
    """A float64 result in the type of the weights; a Refusal where it would overflow, or vanish as a whole."""
    able = limits(dtype)
    size = np.abs(wide)
    largest = float(size.max(initial=0.0))
    if not np.all(np.isfinite(wide)) or largest > able.largest:
        facts = {"largest": largest, "type": dtype.value}
        return Refusal("range", f"{what} would reach {largest:g}, beyond {dtype.value}", facts)
    if 0 < largest < able.smallest:
        facts = {"largest": largest, "type": dtype.value}
        return Refusal("range", f"{what} would vanish: {largest:g} is below the normal numbers of {dtype.value}", facts)
    return wide.astype(dtype.numpy)


def per_channel(array: np.ndarray, shape: Sequence[Dim], axis: int) -> np.ndarray | Refusal:
    """The vector over the channels that the array is when it broadcasts to a shape, in float64.

    A Refusal where it varies along another axis (a full tensor is no bias), or widens the shape.
    """
    rank, channels = len(shape), shape[axis]
    if array.ndim > rank or not isinstance(channels, int):
        return Refusal(
            "widens", f"a constant of shape {array.shape} widens a value of rank {rank}", {"shape": array.shape}
        )
    lifted = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(d != 1 for k, d in enumerate(lifted.shape) if k != axis) or lifted.shape[axis] not in (1, channels):
        text = f"a constant of shape {array.shape} is not one number for each of {channels} channels"
        return Refusal("not-per-channel", text, {"shape": array.shape, "channels": channels})
    return np.broadcast_to(lifted.reshape(-1), (channels,)).astype(np.float64)


def channel_axis(node: Node, rank: int) -> int:
    """The channels of a convolution's, pool's or norm's result."""
    return rank - 1 if node.attrs.get("layout") == "NHWC" else 1


def scaled_weights(node: Node, weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """w with each output channel multiplied by its scale, in float64."""
    wide: np.ndarray = weights.astype(np.float64)
    if node.op == "conv_transpose":  # [channels in, channels out / group, kernel...]: the scale is laid out by group
        group = node.attrs["group"]
        parts = wide.reshape(group, wide.shape[0] // group, *wide.shape[1:])
        by_group = scale.reshape(group, 1, wide.shape[1], *(1,) * (wide.ndim - 2))
        wide = (parts * by_group).reshape(wide.shape)
    elif node.op == "matmul" or node.attrs["layout"] == "NHWC":  # output channels last
        wide = wide * scale
    else:
        wide = wide * scale.reshape(-1, *(1,) * (wide.ndim - 1))
    return wide


def new_weights(node: Node, weights: np.ndarray, scale: np.ndarray, dtype: DType) -> np.ndarray | Refusal:
    """The scaled weights in their own type. In half precision they may not be rounded once more.

    An error of half an ulp in every weight is much more than the one rounding of the sum that the scale would cost
    behind the product (bfloat16: 0.12 against 0.016 in one public report).
    """
    return checked_weights(scaled_weights(node, weights, scale), dtype, f"the weights of {node.name}")


def checked_weights(wide: np.ndarray, dtype: DType, what: str) -> np.ndarray | Refusal:
    """New weights in their own type, as `new_weights` has it."""
    narrow = rounded(wide, dtype, what)
    if isinstance(narrow, Refusal) or dtype.bytes > 2 or np.array_equal(narrow.astype(np.float64), wide):
        return narrow
    return Refusal("precision", f"{what} would be rounded to {dtype.value} once more", {"type": dtype.value})


def _affine_conv(m: Match, to: Draft, scale: np.ndarray, shift: np.ndarray) -> str | Refusal:
    """The convolution with scale * result + shift folded into its weights and bias."""
    node, dtype = m.nodes["conv"], m.result.dtype
    before = m.array("bias").astype(np.float64) if m.has("bias") else np.zeros_like(shift)
    weights = new_weights(node, m.array("w"), scale, dtype)
    if isinstance(weights, Refusal):
        return weights
    new_bias = rounded(before * scale + shift, dtype, f"the bias of {node.name}")
    if isinstance(new_bias, Refusal):
        return new_bias
    return to.emit(node.op, m["x"], to.constant(weights), to.constant(new_bias), **node.attrs)


# ---- batch norm ------------------------------------------------------------------------------------------------------
scale_, shift_, mean_, var_ = (Constant(n) for n in ("scale", "shift", "mean", "var"))


def _normalisation(m: Match) -> tuple[np.ndarray, np.ndarray] | Refusal:
    """s and t of batch_norm(y) = y * s + t."""
    gamma, beta, mean, var = (m.array(n).astype(np.float64) for n in ("scale", "shift", "mean", "var"))
    variance = var + m.root.attrs["epsilon"]
    if not np.all(variance > 0):
        return Refusal(
            "variance",
            "var + epsilon is not positive everywhere",
            {"smallest": float(np.min(variance, initial=np.inf))},
        )
    s = gamma / np.sqrt(variance)
    return s, beta - mean * s


_V: dict[str, Operand] = {
    "scale": np.array([1, -2, 0.5, 3], np.float32),
    "shift": np.array([0.5, 0.25, 0, 1], np.float32),
    "mean": np.array([0, 1, -1, 0.5], np.float32),
    "var": np.array([1, 0.25, 2, 0], np.float32),
}
_ATTRS = {"strides": (1,), "dilations": (1,), "pads": (1, 1), "group": 1, "output_padding": (0,)}


def _conv_case(weights: tuple[int, ...], group: int = 1, fires: bool = True, shown: tuple[str, ...] = (),
               operands: Mapping[str, Operand] | None = None, c: Operand = None) -> Case:  # fmt: skip
    values = np.linspace(-1, 1, int(np.prod(weights)), dtype=np.float32).reshape(weights)
    bias: Operand = np.array([1, 2, 3, 4], np.float32)
    channels: dict[str, Operand] = {"x": (2, 4, 5), "w": values, "bias": bias, "c": c, **(operands or {})}
    attrs: dict[str, dict[str, Any]] = {"conv": {**_ATTRS, "group": group}, "norm": {"epsilon": 0.1}}
    return Case(channels, attrs, fires, shown, spellings=4)


@rule(
    "reassociating",
    op("batch_norm", op("conv", x, w, Maybe(bias), name="conv"), scale_, shift_, mean_, var_, name="norm"),
    when=(used_once("conv"),),
    tell=True,
    cases=(
        _conv_case((4, 4, 3), operands=_V),
        _conv_case((4, 2, 3), 2, operands=_V),
        _conv_case((4, 4, 3), fires=False, shown=("conv",), operands=_V),
        Case(
            {
                "x": Input((1, 1, 2), DType.F16),
                "w": np.full((1, 1, 1), 10, np.float16),
                "bias": None,
                **{k: np.array([v], np.float16) for k, v in (("scale", 2000), ("shift", 0), ("mean", 0), ("var", 0))},
            },
            {"conv": {**_ATTRS, "pads": (0, 0)}, "norm": {"epsilon": 1e-3}},
            fires=False,
            dtype=DType.F16,
            spellings=1,
        ),
        Case(  # 1.1 * 1.3 is no half
            {
                "x": Input((1, 1, 2), DType.F16),
                "w": np.full((1, 1, 1), 1.1, np.float16),
                "bias": None,
                **{k: np.array([v], np.float16) for k, v in (("scale", 1.3), ("shift", 0), ("mean", 0), ("var", 1))},
            },
            {"conv": {**_ATTRS, "pads": (0, 0)}, "norm": {"epsilon": 0.0}},
            fires=False,
            dtype=DType.F16,
            spellings=1,
        ),
        Case(  # 1.1 * 2 is
            {
                "x": Input((1, 1, 2), DType.F16),
                "w": np.full((1, 1, 1), 1.1, np.float16),
                "bias": None,
                **{k: np.array([v], np.float16) for k, v in (("scale", 2), ("shift", 0), ("mean", 0), ("var", 1))},
            },
            {"conv": {**_ATTRS, "pads": (0, 0)}, "norm": {"epsilon": 0.0}},
            dtype=DType.F16,
            spellings=1,
        ),
    ),
)
def fold_batch_norm(m: Match, to: Draft) -> str | Refusal:
    """batch_norm(conv(x, w, b)) -> conv(x, w * s, b * s + t)"""
    return _fold_norm(m, to)


@rule("reassociating",
      op("batch_norm", op("conv_transpose", x, w, Maybe(bias), name="conv"), scale_, shift_, mean_, var_, name="norm"),
      when=(used_once("conv"),), tell=True, cases=(
          _conv_case((4, 4, 3), operands=_V), _conv_case((4, 2, 3), 2, operands=_V)))  # fmt: skip
def fold_batch_norm_transposed(m: Match, to: Draft) -> str | Refusal:
    """batch_norm(conv_transpose(x, w, b)) -> conv_transpose(x, w * s, b * s + t), the scale laid out by group"""
    return _fold_norm(m, to)


def _fold_norm(m: Match, to: Draft) -> str | Refusal:
    conv, rank = m.nodes["conv"], m.result.rank
    if channel_axis(conv, rank) != channel_axis(m.root, rank):
        return Refusal("other-layout", "convolution and norm have their channels at different axes")
    affine = _normalisation(m)
    return affine if isinstance(affine, Refusal) else _affine_conv(m, to, *affine)


_MATMUL_V: dict[str, Operand] = {
    **_V,
    "w": np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4),
    "bias": np.array([1, 2, 3, 4], np.float32),
}
_matmul = op("matmul", x, w, name="matmul")
_linear = any_of(_matmul, op("add", _matmul, bias, name="add"))


@rule(
    "reassociating",
    op("batch_norm", _linear, scale_, shift_, mean_, var_, name="norm"),
    when=(used_once("matmul", "add"),),
    tell=True,
    cases=(
        Case({"x": (3, 5), **_MATMUL_V}, {"norm": {"epsilon": 0.1}}),
        Case({"x": (2, 4, 5), **_MATMUL_V}, {"norm": {"epsilon": 0.1}}, fires=False),
    ),
)
def fold_batch_norm_linear(m: Match, to: Draft) -> str | Refusal:
    """batch_norm(matmul(x, w) + b) -> matmul(x, w * s) + (b * s + t), where the channels are the last axis"""
    if channel_axis(m.root, m.result.rank) != m.result.rank - 1:
        return Refusal("other-axis", "the norm's channels are not the columns of the product", {"rank": m.result.rank})
    affine = _normalisation(m)
    return affine if isinstance(affine, Refusal) else _affine_matmul(m, to, *affine)


def _affine_matmul(m: Match, to: Draft, scale: np.ndarray, shift: np.ndarray | None) -> str | Refusal:
    node, dtype, columns = m.nodes["matmul"], m.result.dtype, m.result.shape
    if m.array("w").ndim < 2:
        return Refusal("vector", f"{m['w']} is a vector: the product has no columns")
    weights = new_weights(node, m.array("w"), scale, dtype)
    if isinstance(weights, Refusal):
        return weights
    if m.has("bias"):
        before = per_channel(m.array("bias"), columns, m.result.rank - 1)
        if isinstance(before, Refusal):
            return before
        shift = before * scale + (0.0 if shift is None else shift)
    out = to.emit("matmul", m["x"], to.constant(weights), of=node)
    if shift is None:
        return out
    new_bias = rounded(shift, dtype, f"the bias of {node.name}")
    return new_bias if isinstance(new_bias, Refusal) else to.emit("add", out, to.constant(new_bias))


# ---- bias ------------------------------------------------------------------------------------------------------------
_FULL = np.arange(40, dtype=np.float32).reshape(2, 4, 5)
_PER_CHANNEL = np.arange(4, dtype=np.float32).reshape(4, 1)


@rule("exact", _bare_conv + c, when=(used_once("conv"), is_float), tell=True, cases=(
    _conv_case((4, 4, 3), c=_PER_CHANNEL), _conv_case((4, 2, 3), 2, c=np.float32(2)),
    _conv_case((4, 2, 3), 2, c=_PER_CHANNEL[None]),
    _conv_case((4, 2, 3), 2, fires=False, c=_FULL), _conv_case((4, 4, 3), fires=False, shown=("conv",), c=_PER_CHANNEL),
))  # fmt: skip
def bias_into_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(x, w) + b -> conv(x, w, b), where b is one number for each output channel"""
    conv = m.nodes["conv"]
    vector = per_channel(m.array("c"), m.graph.types[conv.output].shape, channel_axis(conv, m.result.rank))
    if isinstance(vector, Refusal):
        return vector
    return to.emit(conv.op, m["x"], m["w"], to.constant(vector.astype(m.result.dtype.numpy)), **conv.attrs)


_squeezed = op("reshape", op("conv", x, w, name="conv"), name="reshape")


def _unit_axes(shape: Sequence[Dim], axis: int, result: Sequence[Dim]) -> int | Refusal:
    """Where an axis of a shape stands after a reshape that only adds and drops axes of extent 1."""
    if [d for d in shape if d != 1] != [d for d in result if d != 1] or shape[axis] == 1:
        return Refusal("moves-data", "the reshape does more than add and drop axes of extent 1")
    passed = sum(1 for d in shape[:axis] if d != 1)
    return [k for k, d in enumerate(result) if d != 1][passed]


@rule("exact", _squeezed + c, when=(used_once("conv", "reshape"), is_float), cases=(
    Case({"x": (2, 5, 1, 4), "w": _FULL[..., None].reshape(1, 2, 4, 5), "c": np.arange(5, dtype=np.float32)},
         {"conv": {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 1, 0, 0), "group": 1, "layout": "NHWC"},
          "reshape": {"shape": (2, 5, 5)}}),
))  # fmt: skip
def bias_through_reshape(m: Match, to: Draft) -> str | Refusal:
    """reshape(conv(x, w)) + b -> reshape(conv(x, w, b)), where the reshape adds or drops axes of extent 1"""
    conv, shape = m.nodes["conv"], m.graph.types[m.nodes["conv"].output].shape
    axis = _unit_axes(shape, channel_axis(conv, len(shape)), m.graph.types[m.nodes["reshape"].output].shape)
    if isinstance(axis, Refusal):
        return axis
    vector = per_channel(m.array("c"), m.graph.types[m.nodes["reshape"].output].shape, axis)
    if isinstance(vector, Refusal):
        return vector
    out = to.emit(
        "conv", m["x"], m["w"], to.constant(vector.astype(m.result.dtype.numpy)), of=(m.root, conv), **conv.attrs
    )
    return to.reshape(out, m.result.shape, of=m.nodes["reshape"])


@rule("reassociating", any_of(_conv + c, _conv - c, op("sub", c, _conv)), when=(used_once("conv"), is_float), cases=(
    _conv_case((4, 4, 3), c=_PER_CHANNEL), _conv_case((4, 4, 3), fires=False, c=_FULL),
))  # fmt: skip
def shift_into_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(x, w, b) + c -> conv(x, w, b + c), and with either of the two subtracted"""
    conv = m.nodes["conv"]
    vector = per_channel(m.array("c"), m.graph.types[conv.output].shape, channel_axis(conv, m.result.rank))
    if isinstance(vector, Refusal):
        return vector
    scale, shift = _signs(m)
    return _affine_conv(m, to, np.full_like(vector, scale), shift * vector)


def _signs(m: Match) -> tuple[int, int]:
    """Of the value and of the constant c in their sum or difference."""
    if m.root.op == "add":
        return 1, 1
    return (-1, 1) if m.root.inputs[0] == m["c"] else (1, -1)


@rule("reassociating", op("neg", _conv), when=(used_once("conv"), is_float), cases=(_conv_case((4, 4, 3)),))
def negation_into_conv(m: Match, to: Draft) -> str | Refusal:
    """-conv(x, w, b) -> conv(x, -w, -b)"""
    conv = m.nodes["conv"]
    negative = -np.ones(int(m.graph.types[conv.output].static_shape[channel_axis(conv, m.result.rank)]))
    return _scaled_conv(m, to, negative)


# ---- scale -----------------------------------------------------------------------------------------------------------
@rule(
    "reassociating",
    _conv * c,
    when=(used_once("conv"), is_float),
    tell=True,
    cases=(
        _conv_case((4, 4, 3), c=_PER_CHANNEL),
        _conv_case((4, 2, 3), 2, c=np.float32(2)),
        _conv_case((4, 2, 3), 2, fires=False, c=_FULL),
        _conv_case((4, 4, 3), fires=False, c=np.float32("inf")),
    ),
)
def scale_into_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(x, w, b) * c -> conv(x, w * c, b * c), where c is one number for each output channel"""
    conv = m.nodes["conv"]
    vector = per_channel(m.array("c"), m.graph.types[conv.output].shape, channel_axis(conv, m.result.rank))
    return vector if isinstance(vector, Refusal) else _scaled_conv(m, to, vector)


def _scaled_conv(m: Match, to: Draft, scale: np.ndarray) -> str | Refusal:
    conv = m.nodes["conv"]
    if m.has("bias"):
        return _affine_conv(m, to, scale, np.zeros_like(scale))
    weights = new_weights(conv, m.array("w"), scale, m.result.dtype)
    return weights if isinstance(weights, Refusal) else to.emit(conv.op, m["x"], to.constant(weights), **conv.attrs)


@rule(
    "reassociating",
    _linear * c,
    when=(used_once("matmul", "add"), is_float),
    tell=True,
    cases=(
        Case({"x": (3, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.float32(0.5)}),
        Case({"x": (2, 3, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.arange(4, dtype=np.float32)}),
        Case(
            {"x": (4, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.ones((4, 1), np.float32) * 2},
            fires=False,
        ),
        Case(
            {"x": (3, 5), "w": _MATMUL_V["w"], "bias": None, "c": np.float32(2)},
            fires=False,
            shown=("matmul",),
            spellings=1,
        ),
    ),
)
def scale_into_linear(m: Match, to: Draft) -> str | Refusal:
    """(matmul(x, w) + b) * c -> matmul(x, w * c) + b * c, where c is one number for each column"""
    product = m.graph.types[m.nodes["matmul"].output]
    if product != m.result or not product.rank:
        return Refusal("widens", "the bias or the scale widens the product")
    vector = per_channel(m.array("c"), product.shape, product.rank - 1)
    return vector if isinstance(vector, Refusal) else _affine_matmul(m, to, vector, None)


@rule("reassociating", op("neg", _linear), when=(used_once("matmul", "add"), is_float), cases=(
    Case({"x": (3, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"]}),
    Case({"x": (3, 5), "w": np.ones(5, np.float32), "bias": np.float32(1)}, fires=False),
))  # fmt: skip
def negation_into_linear(m: Match, to: Draft) -> str | Refusal:
    """-(matmul(x, w) + b) -> matmul(x, -w) + -b"""
    product = m.graph.types[m.nodes["matmul"].output]
    if product != m.result or not product.rank:
        return Refusal("widens", "the bias widens the product")
    return _affine_matmul(m, to, -np.ones(m.array("w").shape[-1]), None)


# ---- shift -----------------------------------------------------------------------------------------------------------
_biased = op("add", _matmul, bias, name="add")


@rule("reassociating", any_of(_biased + c, _biased - c, _matmul - c, op("sub", c, _biased), op("sub", c, _matmul)),
      when=(used_once("matmul", "add"), is_float), cases=(
    Case({"x": (3, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.float32(0.5)}),
    Case({"x": (2, 3, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.arange(4, dtype=np.float32)}),
    Case({"x": (4, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.ones((4, 1), np.float32)}, fires=False),
    Case({"x": (4, 5), "w": _MATMUL_V["w"], "bias": _MATMUL_V["bias"], "c": np.float32("inf")}, fires=False),
))  # fmt: skip
def shift_into_linear(m: Match, to: Draft) -> str | Refusal:
    """(matmul(x, w) + b) + c -> matmul(x, w) + (b + c), and with either of the two subtracted"""
    product = m.graph.types[m.nodes["matmul"].output]
    if product != m.result or not product.rank:
        return Refusal("widens", "the bias or the shift widens the product")
    vector = per_channel(m.array("c"), product.shape, product.rank - 1)
    if isinstance(vector, Refusal):
        return vector
    scale, shift = _signs(m)
    return _affine_matmul(m, to, np.full_like(vector, scale), shift * vector)


RULES: tuple[Rule, ...] = declared(globals())
