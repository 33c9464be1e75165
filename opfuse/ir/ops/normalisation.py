"""Normalisations: composites, kept whole for matching and expanded into primitive operators for fusion.

    softmax(x; axis) log_softmax(x; axis)
    layer_norm(x, scale?, bias?; axis, epsilon) rms_norm(x, scale?; axis, epsilon)    over dimensions axis ... last
    batch_norm(x, scale, bias, mean, var; epsilon, layout) instance_norm(x, scale, bias; epsilon, layout)

Half precision is widened to float32 first and rounded once at the end, so that no square or sum overflows. A softmax
row of only -inf is NaN, as in ONNX and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import Dim, dims_text
from opfuse.ir.ops.broadcast import accumulator, normal_axis, require_broadcast_to, require_kind, require_one_dtype
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import array_oracle
from opfuse.ir.ops.spatial import channel_dimension
from opfuse.ir.types import DType, TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph

Names = tuple[str | None, ...]
Body = Callable[["Graph", Call, tuple[str | None, ...], DType], str]


def _widened(body: Body) -> Callable[[Graph, Call, Names], tuple[str, ...]]:
    """An expansion whose body sees all float inputs in the type in which values are summed."""

    def expand(g: Graph, call: Call, inputs: Names) -> tuple[str, ...]:
        dtype = call.output.dtype
        wide = accumulator(dtype)
        if wide is not dtype:
            inputs = tuple(g.emit("cast", [i], {"to": wide}) if i is not None else None for i in inputs)
        y = body(g, call, inputs, wide)
        return (g.emit("cast", [y], {"to": dtype}) if wide is not dtype else y,)

    return expand


# ---- softmax ---------------------------------------------------------------------------------------------------------
def _infer_softmax(call: Call) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    normal_axis(call["axis"], call.type(0).rank)
    return call.type(0)


def _softmax(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    over = {"axes": (call["axis"],), "keepdims": True}
    e = g.emit("exp", [g.emit("sub", [inputs[0], g.emit("reduce_max", [inputs[0]], over)])])
    return g.emit("div", [e, g.emit("reduce_sum", [e], over)])


def _log_softmax(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    over = {"axes": (call["axis"],), "keepdims": True}
    centred = g.emit("sub", [inputs[0], g.emit("reduce_max", [inputs[0]], over)])
    return g.emit("sub", [centred, g.emit("log", [g.emit("reduce_sum", [g.emit("exp", [centred])], over)])])


def _softmax_array(attrs: Mapping[str, Any], x: Any) -> Any:
    axis = attrs["axis"]
    weights = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return weights / np.sum(weights, axis=axis, keepdims=True, dtype=x.dtype)


def _log_softmax_array(attrs: Mapping[str, Any], x: Any) -> Any:
    axis = attrs["axis"]
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True, dtype=x.dtype))


_ROWS = np.array(
    [[-np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [np.nan, 0, 1], [np.inf, 0, 1], [1e4, 1e4, -1e4]], np.float32
)
_SOFTMAX_SAMPLES = (
    Sample(((3, 5),), {"axis": 1}),
    Sample(((2, 7, 3),), {"axis": 1}),
    Sample(((4,),), {"axis": 0}),
    Sample(((2, 0),), {"axis": 1}),
    Sample((_ROWS,), {"axis": 1}),
    Sample((np.array([60000, 59968, -60000], np.float16),), {"axis": 0}),
)


# ---- layer and rms norm ----------------------------------------------------------------------------------------------
def _normalised_axes(call: Call) -> tuple[int, ...]:
    return tuple(range(normal_axis(call["axis"], call.type(0).rank), call.type(0).rank))


def _infer_layer_norm(call: Call) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    require_one_dtype(call)
    _normalised_axes(call)
    for k, name in ((1, "scale"), (2, "bias")):
        if call.has(k):
            require_broadcast_to(call.shape(k), call.shape(0), name)
    return call.type(0)


def _standardised(g: Graph, x: str, axes: tuple[int, ...], epsilon: float, wide: DType, centre: bool = True) -> str:
    """(x - mean) * rsqrt(mean of squares + epsilon) over the axes; without `centre` the mean counts as 0."""
    over = {"axes": axes, "keepdims": True}
    if centre:
        x = g.emit("sub", [x, g.emit("reduce_mean", [x], over)])
    square = g.emit("reduce_mean", [g.emit("mul", [x, x])], over)
    return g.emit("mul", [x, g.emit("rsqrt", [g.emit("add", [square, g.scalar(epsilon, wide)])])])


def _layer_norm(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    y = _standardised(g, str(inputs[0]), _normalised_axes(call), call["epsilon"], wide)
    y = g.emit("mul", [y, inputs[1]]) if call.has(1) else y
    return g.emit("add", [y, inputs[2]]) if call.has(2) else y


def _rms_norm(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    y = _standardised(g, str(inputs[0]), _normalised_axes(call), call["epsilon"], wide, centre=False)
    return g.emit("mul", [y, inputs[1]]) if call.has(1) else y


def _layer_norm_array(attrs: Mapping[str, Any], x: Any, scale: Any = None, bias: Any = None) -> Any:
    axes = tuple(range(attrs["axis"], x.ndim))
    y = (x - np.mean(x, axis=axes, keepdims=True)) / np.sqrt(
        np.var(x, axis=axes, keepdims=True) + x.dtype.type(attrs["epsilon"])
    )
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def _rms_norm_array(attrs: Mapping[str, Any], x: Any, scale: Any = None) -> Any:
    axes = tuple(range(attrs["axis"], x.ndim))
    y = x / np.sqrt(np.mean(np.square(x), axis=axes, keepdims=True) + x.dtype.type(attrs["epsilon"]))
    return y if scale is None else y * scale


_NORM_SAMPLES = (
    Sample(((3, 5), (5,)), {"axis": 1}),
    Sample(((2, 3, 7), (3, 1)), {"axis": 1, "epsilon": 0.1}),
    Sample(((2, 4),), {"axis": 1}),
    Sample((np.array([[300, -300, 0, 0]], np.float16), np.ones(4, np.float16)), {"axis": 1}),
    Sample(((0, 4), (4,)), {"axis": 1}),
    Sample((np.array([[np.nan, 1, 2], [1, 1, 1]], np.float32),), {"axis": 1}),
)


# ---- batch and instance norm -----------------------------------------------------------------------------------------
def _channel_shape(call: Call) -> tuple[Dim, ...]:
    """The shape in which a vector over the channels broadcasts to x."""
    channel, rank = channel_dimension(call["layout"], call.type(0).rank), call.type(0).rank
    return tuple(call.shape(0)[k] if k == channel else 1 for k in range(rank))


def _infer_channel_norm(call: Call, names: tuple[str, ...]) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    require_one_dtype(call)
    channels = call.shape(0)[channel_dimension(call["layout"], call.type(0).rank)]
    for k, name in enumerate(names, 1):
        if call.shape(k) != (channels,):
            raise OperatorError(f"{name} of shape [{dims_text(call.shape(k))}] for {channels} channels")
    return call.type(0)


def _batch_norm(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    """x * s + (bias - mean * s) with s = scale / sqrt(var + epsilon)."""
    x, scale, bias, mean, var = inputs
    s = g.emit("div", [scale, g.emit("sqrt", [g.emit("add", [var, g.scalar(call["epsilon"], wide)])])])
    shift = g.emit("sub", [bias, g.emit("mul", [mean, s])])
    shape = {"shape": _channel_shape(call)}
    return g.emit("add", [g.emit("mul", [x, g.emit("reshape", [s], shape)]), g.emit("reshape", [shift], shape)])


def _instance_norm(g: Graph, call: Call, inputs: Names, wide: DType) -> str:
    channel, rank = channel_dimension(call["layout"], call.type(0).rank), call.type(0).rank
    y = _standardised(g, str(inputs[0]), tuple(k for k in range(1, rank) if k != channel), call["epsilon"], wide)
    shape = {"shape": _channel_shape(call)}
    return g.emit(
        "add", [g.emit("mul", [y, g.emit("reshape", [inputs[1]], shape)]), g.emit("reshape", [inputs[2]], shape)]
    )


def _along_channels(x: Any, vector: Any, layout: str) -> Any:
    return vector if layout == "NHWC" else vector.reshape(-1, *(1,) * (x.ndim - 2))


def _batch_norm_array(attrs: Mapping[str, Any], x: Any, *vectors: Any) -> Any:
    scale, bias, mean, var = (_along_channels(x, v, attrs["layout"]) for v in vectors)
    return (x - mean) / np.sqrt(var + x.dtype.type(attrs["epsilon"])) * scale + bias


def _instance_norm_array(attrs: Mapping[str, Any], x: Any, *vectors: Any) -> Any:
    scale, bias = (_along_channels(x, v, attrs["layout"]) for v in vectors)
    axes = tuple(range(2, x.ndim)) if attrs["layout"] == "NCHW" else tuple(range(1, x.ndim - 1))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(
        x.var(axes, keepdims=True) + x.dtype.type(attrs["epsilon"])
    ) * scale + bias


def _vectors(channels: int, count: int, dtype: type = np.float32) -> tuple[np.ndarray, ...]:
    return tuple((np.arange(1, channels + 1) * (0.5 + k)).astype(dtype) for k in range(count))


_HALF_BATCH = (np.array([[[1e-3, 2e-3]]], np.float16), *(np.array([v], np.float16) for v in (2000, 0, 0, 0)))
OPERATORS: tuple[Operator, ...] = (
    Operator(
        "softmax",
        Kind.COMPOSITE,
        ("x",),
        _infer_softmax,
        array_oracle(_softmax_array),
        {"axis": REQUIRED},
        expand=_widened(_softmax),
        samples=_SOFTMAX_SAMPLES,
    ),
    Operator(
        "log_softmax",
        Kind.COMPOSITE,
        ("x",),
        _infer_softmax,
        array_oracle(_log_softmax_array),
        {"axis": REQUIRED},
        expand=_widened(_log_softmax),
        samples=_SOFTMAX_SAMPLES,
    ),
    Operator(
        "layer_norm",
        Kind.COMPOSITE,
        ("x", "scale?", "bias?"),
        _infer_layer_norm,
        array_oracle(_layer_norm_array),
        {"axis": REQUIRED, "epsilon": 1e-5},
        expand=_widened(_layer_norm),
        samples=(
            *_NORM_SAMPLES,
            Sample(((2, 3, 5), (5,), (3, 5)), {"axis": 2}),
            Sample(((4, 3), None, (3,)), {"axis": 1}),
        ),
    ),
    Operator(
        "rms_norm",
        Kind.COMPOSITE,
        ("x", "scale?"),
        _infer_layer_norm,
        array_oracle(_rms_norm_array),
        {"axis": REQUIRED, "epsilon": 1e-5},
        expand=_widened(_rms_norm),
        samples=_NORM_SAMPLES,
    ),
    Operator(
        "batch_norm",
        Kind.COMPOSITE,
        ("x", "scale", "bias", "mean", "var"),
        lambda call: _infer_channel_norm(call, ("scale", "bias", "mean", "var")),
        array_oracle(_batch_norm_array),
        {"epsilon": 1e-5, "layout": "NCHW"},
        expand=_widened(_batch_norm),
        samples=(
            Sample(((2, 3, 4, 5), *_vectors(3, 4))),
            Sample(((2, 4, 3), *_vectors(3, 4)), {"layout": "NHWC"}),
            Sample(((4, 3), *_vectors(3, 4)), {"epsilon": 0.1}),
            Sample(_HALF_BATCH, {"epsilon": 1e-3}),
        ),
    ),
    Operator(
        "instance_norm",
        Kind.COMPOSITE,
        ("x", "scale", "bias"),
        lambda call: _infer_channel_norm(call, ("scale", "bias")),
        array_oracle(_instance_norm_array),
        {"epsilon": 1e-5, "layout": "NCHW"},
        expand=_widened(_instance_norm),
        samples=(
            Sample(((2, 3, 4, 5), *_vectors(3, 2))),
            Sample(((2, 6, 3), *_vectors(3, 2)), {"layout": "NHWC", "epsilon": 0.1}),
        ),
    ),
)
