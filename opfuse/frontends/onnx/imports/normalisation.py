"""Softmax and the normalisations, by all their versions.

Softmax-11(x [2, 3, 4], axis=1)          -> reshape to [2, 12], softmax(axis=1), reshape back
LayerNormalization(x, s, b) -> (y, m, i) -> layer_norm, and the mean and 1 / deviation only where they are read
BatchNormalization in training mode      -> declined: batch statistics are not inference
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import
from opfuse.frontends.onnx.types import ElementTypeError, element_type
from opfuse.ir.dims import floordiv, product


# ---- softmax -------------------------------------------------------------------------------------------------------
def softmax(call: Call, ir: str) -> str:
    return _along_axis(call, lambda x, axis: call.emit(ir, [x], axis=axis))


def hardmax(call: Call) -> str:
    """1 at the first greatest element, 0 elsewhere."""

    def along(x: str, axis: int) -> str:
        first = call.emit("argmax", [x], axis=axis, keepdims=False)
        values = call.graph.add_constant(np.array([0, 1], call.dtype(x).numpy))
        return call.emit("one_hot", [first, values], depth=call.shape(x)[axis], axis=axis)

    return _along_axis(call, along)


def _along_axis(call: Call, function: Callable[[str, int], str]) -> str:
    """Along one axis from version 13 on; before, over all axes from the given one (default 1) as one row."""
    x = call.input(0)
    rank, shape = call.rank(x), call.shape(x)
    if call.version >= 13:
        return function(x, call.axis(call.int_attribute("axis", -1), rank))
    axis = call.int_attribute("axis", 1)
    axis = axis if axis == rank else call.axis(axis, rank)  # a last axis equal to the rank: rows of one element
    if axis == rank - 1:
        return function(x, axis)
    rows = call.emit("reshape", [x], shape=(product(shape[:axis]), product(shape[axis:])))
    return call.emit("reshape", [function(rows, 1)], shape=shape)


# ---- normalisation by batch, instance, group -----------------------------------------------------------------------
def batch_normalisation(call: Call) -> tuple[str | None, ...]:
    if call.version >= 14 and call.int_attribute("training_mode", 0):
        call.unsupported("training mode is not supported: it normalises by the statistics of the batch")
    if call.version < 14 and any(call.wants(k) for k in range(1, 5)):
        call.unsupported("it has outputs that only training makes")
    if call.version < 9 and not call.int_attribute("spatial", 1):
        call.unsupported("spatial=0 (statistics for each element) is not supported")
    x, scale, bias, mean, var = (call.input(k) for k in range(5))
    kind = call.dtype(x)
    parameters = [call.cast(p, kind) for p in (scale, bias, mean, var)]  # version 15 lets them be of a wider type
    y = call.emit("batch_norm", [x, *parameters], epsilon=call.float_attribute("epsilon", 1e-5))
    return (y, *(None,) * (len(call.node.output) - 1))


def instance_normalisation(call: Call) -> str:
    inputs = [call.input(k) for k in range(3)]
    return call.emit("instance_norm", inputs, epsilon=call.float_attribute("epsilon", 1e-5))


def group_normalisation(call: Call) -> str:
    """Each group is an instance of one long channel; scale and bias are a group's in version 18, a channel's in 21."""
    x, scale, bias = (call.input(k) for k in range(3))
    groups, shape, kind = call.int_attribute("num_groups"), call.shape(x), call.dtype(x)
    if len(shape) < 3:
        raise InvalidNode(f"its input has rank {len(shape)}, and must have rank 3 or more")
    batch, channels = shape[:2]
    ones = call.graph.add_constant(_filled(groups, 1, kind.numpy))
    zeros = call.graph.add_constant(_filled(groups, 0, kind.numpy))
    rows = call.reshape(x, (batch, groups, floordiv(product(shape[1:]), groups)))
    epsilon = call.float_attribute("epsilon", 1e-5)
    normal = call.emit("instance_norm", [rows, ones, zeros], epsilon=epsilon)
    tail = (1,) * (len(shape) - 2)
    if call.version < 21:
        normal = call.emit("mul", [normal, call.reshape(scale, (groups, 1))])
        return call.reshape(call.emit("add", [normal, call.reshape(bias, (groups, 1))]), shape)
    normal = call.emit("mul", [call.reshape(normal, shape), call.reshape(scale, (channels, *tail))])
    return call.emit("add", [normal, call.reshape(bias, (channels, *tail))])


def _filled(count: int, value: int, dtype: np.dtype) -> np.ndarray:
    return np.full(count, value, dtype)


def local_response_normalisation(call: Call) -> str:
    """x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta."""
    x, size = call.input(0), call.int_attribute("size")
    shape, rank = call.shape(x), call.rank(x)
    before, after = (size - 1) // 2, size // 2
    squares = call.emit("mul", [x, x])
    wide = [0] * (2 * rank)
    wide[1], wide[rank + 1] = before, after
    squares = call.emit("pad", [squares], pads=tuple(wide))
    total = None
    for k in range(size):
        starts = tuple(k if d == 1 else 0 for d in range(rank))
        stops = tuple(n + k if d == 1 else n for d, n in enumerate(shape))
        part = call.emit("slice", [squares], starts=starts, stops=stops, steps=(1,) * rank)
        total = part if total is None else call.emit("add", [total, part])
    if total is None:
        raise InvalidNode(f"its attribute 'size' is {size}, and must be 1 or more")
    alpha, beta = call.float_attribute("alpha", 1e-4) / size, call.float_attribute("beta", 0.75)
    scaled = call.emit("mul", [total, call.scalar(alpha, x)])
    below = call.emit("add", [scaled, call.scalar(call.float_attribute("bias", 1.0), x)])
    return call.emit("div", [x, call.emit("pow", [below, call.scalar(beta, x)])])


# ---- layer norm and its relatives ----------------------------------------------------------------------------------
def layer_normalisation(call: Call) -> tuple[str | None, ...]:
    x = call.input(0)
    axis = call.axis(call.int_attribute("axis", -1), call.rank(x))
    epsilon = call.float_attribute("epsilon", 1e-5)
    y = call.emit("layer_norm", [x, call.optional(1), call.optional(2)], axis=axis, epsilon=epsilon)
    mean, deviation = _statistics(call, x, axis, epsilon) if call.wants(1) or call.wants(2) else (None, None)
    return y, mean, deviation


def _statistics(call: Call, x: str, axis: int, epsilon: float) -> tuple[str, str]:
    """Mean and 1 / sqrt(variance + epsilon), computed in the type that 'stash_type' names."""
    try:
        kind = element_type(call.int_attribute("stash_type", 1))
    except ElementTypeError as error:
        call.unsupported(str(error))
    x, axes = call.cast(x, kind), tuple(range(axis, call.rank(x)))
    mean = call.emit("reduce_mean", [x], axes=axes, keepdims=True)
    gap = call.emit("sub", [x, mean])
    variance = call.emit("reduce_mean", [call.emit("mul", [gap, gap])], axes=axes, keepdims=True)
    return mean, call.emit("rsqrt", [call.emit("add", [variance, call.scalar(epsilon, variance)])])


def rms_normalisation(call: Call) -> str:
    x, scale = call.input(0), call.optional(1)
    axis = call.axis(call.int_attribute("axis", -1), call.rank(x))
    return call.emit("rms_norm", [x, scale], axis=axis, epsilon=call.float_attribute("epsilon", 1e-5))


def mean_variance_normalisation(call: Call) -> str:
    """(x - mean) / (sqrt(mean of squares - square of mean) + 1e-9), the formula of the specification."""
    x = call.input(0)
    axes = call.axes(call.ints_attribute("axes") or (0, 2, 3), call.rank(x))
    mean = call.emit("reduce_mean", [x], axes=axes, keepdims=True)
    squares = call.emit("reduce_mean", [call.emit("mul", [x, x])], axes=axes, keepdims=True)
    variance = call.emit("sub", [squares, call.emit("mul", [mean, mean])])
    deviation = call.emit("add", [call.emit("sqrt", [variance]), call.scalar(1e-9, x)])
    return call.emit("div", [call.emit("sub", [x, mean]), deviation])


def skip_layer_normalisation(call: Call) -> tuple[str | None, ...]:
    """layer_norm(input + skip + bias, gamma, beta); the fourth output is that sum."""
    x, skip, gamma = (call.input(k) for k in range(3))
    total = call.emit("add", [x, skip])
    total = call.emit("add", [total, call.input(4)]) if call.has(4) else total
    axis, epsilon = call.rank(total) - 1, call.float_attribute("epsilon", 1e-12)
    y = call.emit("layer_norm", [total, gamma, call.optional(3)], axis=axis, epsilon=epsilon)
    mean, deviation = _statistics(call, total, axis, epsilon) if call.wants(1) or call.wants(2) else (None, None)
    return y, mean, deviation, total


_LAYER_NORM = ("layer_norm", "mul", "add", "cast", "reduce_mean", "sub", "rsqrt")
IMPORTS: tuple[Import, ...] = (
    Import("Softmax", (1, 11, 13), partial(softmax, ir="softmax"), ("softmax", "reshape")),
    Import("LogSoftmax", (1, 11, 13), partial(softmax, ir="log_softmax"), ("log_softmax", "reshape")),
    Import("Hardmax", (1, 11, 13), hardmax, ("argmax", "one_hot", "reshape")),
    Import("BatchNormalization", (7, 9, 14, 15), batch_normalisation, ("batch_norm", "cast")),
    Import("InstanceNormalization", (6, 22), instance_normalisation, ("instance_norm",)),
    Import("GroupNormalization", (18, 21), group_normalisation, ("reshape", "instance_norm", "mul", "add")),
    # ONNX Runtime writes this operator into the standard domain of models of any opset: version 1 stands for that.
    Import("LayerNormalization", (1, 17), layer_normalisation, _LAYER_NORM),
    Import("RMSNormalization", (23,), rms_normalisation, ("rms_norm",)),
    Import("MeanVarianceNormalization", (9, 13), mean_variance_normalisation,
           ("reduce_mean", "mul", "sub", "sqrt", "add", "div")),
    Import("LRN", (1, 13), local_response_normalisation, ("mul", "pad", "slice", "add", "pow", "div")),
    Import("SkipLayerNormalization", (1,), skip_layer_normalisation, _LAYER_NORM, MICROSOFT),
)  # fmt: skip
