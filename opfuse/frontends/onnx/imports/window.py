"""Convolutions and pools: windows with explicit pads, whatever auto_pad says.

    Conv(x, w, auto_pad=SAME_UPPER, strides=[2, 2])   -> conv(x, w, pads=(0, 0, 1, 1), ...)      for an even extent
    MaxPool(x, kernel_shape=[3, 3])                   -> max_pool(x, kernel=(3, 3), strides=(1, 1), ...)

SAME pads to ceil(extent / stride) output positions (ONNX, Conv): total = max((ceil(d / s) - 1) * s + span - d, 0), the
odd one at the end for SAME_UPPER and at the beginning for SAME_LOWER.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import
from opfuse.frontends.onnx.shapes import maximum
from opfuse.ir.dims import Dim, ceildiv

Numbers = tuple[int, ...]


def _numbers(call: Call, name: str, default: int, count: int) -> tuple[int, ...]:
    found = call.ints_attribute(name) or (default,) * count
    if len(found) != count:
        raise InvalidNode(f"its attribute {name!r} has {len(found)} numbers, and needs {count}")
    return found


def _spatial(call: Call, x: str) -> tuple[Dim, ...]:
    if call.rank(x) < 3:
        raise InvalidNode(f"it needs an input with spatial axes, and gets one of rank {call.rank(x)}")
    return call.shape(x)[2:]


def _pads(call: Call, extents: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int]) -> tuple[int, ...]:  # fmt: skip
    """Begins, then ends; auto_pad resolved."""
    mode = call.string_attribute("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return _numbers(call, "pads", 0, 2 * len(kernel))
    if mode == "VALID":
        return (0,) * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise InvalidNode(f"its attribute 'auto_pad' is {mode!r}")
    begins, ends = [], []
    for d, k, s, dilation in zip(extents, kernel, strides, dilations, strict=True):
        total = maximum((ceildiv(d, s) - 1) * s + (k - 1) * dilation + 1 - d, 0)
        if not isinstance(total, int):
            call.needs_shapes(f"auto_pad={mode} with stride {s} depends on the extent {d}")
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return (*begins, *ends)


# ---- convolution ---------------------------------------------------------------------------------------------------
def _kernel(call: Call, w: str, rank: int) -> tuple[int, ...]:
    """The kernel's extents from the weight, which must agree with the attribute where it is given."""
    shape = call.shape(w)
    if len(shape) != rank:
        raise InvalidNode(f"its weight has rank {len(shape)}, and its input has rank {rank}")
    kernel = [d for d in shape[2:] if isinstance(d, int)]
    if len(kernel) != rank - 2:
        call.needs_shapes("the kernel's extents are not known")
    given = call.ints_attribute("kernel_shape")
    if given is not None and given != tuple(kernel):
        raise InvalidNode(f"its attribute 'kernel_shape' is {list(given)}, and its weight has {kernel}")
    return tuple(kernel)


def conv(call: Call) -> str:
    return convolution(call, call.input(0), call.input(1), call.optional(2))


def convolution(call: Call, x: str, w: str, bias: str | None = None) -> str:
    """A convolution of these values with the attributes of the node."""
    extents = _spatial(call, x)
    kernel = _kernel(call, w, call.rank(x))
    strides, dilations = (_numbers(call, name, 1, len(kernel)) for name in ("strides", "dilations"))
    pads = _pads(call, extents, kernel, strides, dilations)
    inputs = [x, w, bias] if bias is not None else [x, w]
    return call.emit(
        "conv", inputs, strides=strides, dilations=dilations, pads=pads, group=call.int_attribute("group", 1)
    )


def conv_transpose(call: Call) -> str:
    """output_shape and auto_pad become pads, by the formula of the specification."""
    x, w = call.input(0), call.input(1)
    extents = _spatial(call, x)
    kernel = _kernel(call, w, call.rank(x))
    count = len(kernel)
    strides, dilations = (_numbers(call, name, 1, count) for name in ("strides", "dilations"))
    extra = _numbers(call, "output_padding", 0, count)
    mode, shape = call.string_attribute("auto_pad", "NOTSET"), call.ints_attribute("output_shape")
    if shape is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = (0,) * (2 * count) if mode == "VALID" else _numbers(call, "pads", 0, 2 * count)
    else:
        targets = shape[-count:] if shape is not None else [d * s for d, s in zip(extents, strides, strict=True)]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads, extra = _transposed_pads(call, extents, targets, spans, strides, extra, mode)
    inputs = [x, w, call.optional(2)] if call.has(2) else [x, w]
    return call.emit("conv_transpose", inputs, strides=strides, dilations=dilations, pads=pads, output_padding=extra,
                     group=call.int_attribute("group", 1))  # fmt: skip


def _transposed_pads(call: Call, extents: Sequence[Dim], targets: Sequence[Dim], spans: Sequence[int],
                     strides: Sequence[int], extra: Sequence[int], mode: str) -> tuple[Numbers, Numbers]:  # fmt: skip
    """Pads, and the output padding: what a larger output_shape has beyond the product's reach, it has at the end."""
    begins, ends, after = [], [], []
    for d, target, span, s, e in zip(extents, targets, spans, strides, extra, strict=True):
        total = (d - 1) * s + e + span - target
        if not isinstance(total, int):
            call.needs_shapes(f"its pads depend on the extent {d}")
        after.append(e + max(-total, 0))
        total = max(total, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return (*begins, *ends), tuple(after)


# ---- pools ---------------------------------------------------------------------------------------------------------
def _pool(call: Call, ir: str, x: str, **attrs: bool) -> str:
    extents = _spatial(call, x)
    kernel = call.ints_attribute("kernel_shape")
    if kernel is None or len(kernel) != len(extents):
        raise InvalidNode(f"its attribute 'kernel_shape' must have {len(extents)} numbers")
    strides, dilations = (_numbers(call, name, 1, len(kernel)) for name in ("strides", "dilations"))
    pads = _pads(call, extents, kernel, strides, dilations)
    same = call.string_attribute("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    ceil_mode = bool(call.int_attribute("ceil_mode", 0)) and not same  # SAME says how many positions there are
    return call.emit(
        ir, [x], kernel=kernel, strides=strides, dilations=dilations, pads=pads, ceil_mode=ceil_mode, **attrs
    )


def max_pool(call: Call) -> tuple[str | None, ...]:
    y = _pool(call, "max_pool", call.input(0))
    if not call.wants(1):
        return y, None
    made = call.graph.producer(y)
    assert made is not None
    column_major = bool(call.int_attribute("storage_order", 0))
    return y, call.emit("max_pool_places", [call.input(0), y], **made.attrs, column_major=column_major)


def average_pool(call: Call) -> str:
    counted = bool(call.int_attribute("count_include_pad", 0))
    return _pool(call, "avg_pool", call.input(0), count_include_pad=counted)


def lp_pool(call: Call) -> str:
    """(sum of |x|^p)^(1/p): the mean over windows that count their pads, times the window's size."""
    p, kernel = call.int_attribute("p", 2), call.ints_attribute("kernel_shape") or ()
    if p < 1:
        raise InvalidNode(f"its attribute 'p' is {p}, and must be 1 or more")
    if call.int_attribute("ceil_mode", 0):
        call.unsupported("ceil_mode is not supported: its last windows reach beyond the pads")
    size = call.emit("abs", [call.input(0)])
    powers = size if p == 1 else call.emit("mul", [size, size]) if p == 2 else call.emit(
        "pow", [size, call.scalar(p, size)])  # fmt: skip
    mean = _pool(call, "avg_pool", powers, count_include_pad=True)
    total = call.emit("mul", [mean, call.scalar(math.prod(kernel), mean)])
    if p <= 2:
        return total if p == 1 else call.emit("sqrt", [total])
    return call.emit("pow", [total, call.scalar(1 / p, total)])


# ---- with an activation --------------------------------------------------------------------------------------------
_PLAIN_ACTIVATIONS = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}


def activate(call: Call, x: str) -> str:
    """The attribute 'activation' of the fused operators of ONNX Runtime."""
    name = call.string_attribute("activation", "")
    if not name:
        return x
    if name in _PLAIN_ACTIVATIONS:
        return call.emit(_PLAIN_ACTIVATIONS[name], [x])
    if name == "LeakyRelu":
        found = call.attribute("activation_params")
        alpha = (
            found.floats[0] if found is not None and found.floats else call.float_attribute("activation_alpha", 0.01)
        )
        return call.emit("leaky_relu", [x], alpha=float(alpha))
    call.unsupported(f"its activation {name!r} is not supported")


def fused_conv(call: Call) -> str:
    y = conv(call)
    if call.has(3):
        y = call.emit("add", [y, call.input(3)])
    return activate(call, y)


ACTIVATIONS = ("relu", "tanh", "sigmoid", "leaky_relu")
IMPORTS: tuple[Import, ...] = (
    Import("Conv", (1, 11, 22), conv, ("conv",)),
    Import("ConvTranspose", (1, 11, 22), conv_transpose, ("conv_transpose",)),
    Import("MaxPool", (1, 8, 10, 11, 12, 22), max_pool, ("max_pool", "max_pool_places")),
    Import("AveragePool", (7, 10, 11, 19, 22), average_pool, ("avg_pool",)),
    Import("LpPool", (2, 11, 18, 22), lp_pool, ("abs", "mul", "pow", "avg_pool", "sqrt")),
    Import("FusedConv", (1,), fused_conv, ("conv", "add", *ACTIVATIONS), MICROSOFT),
)  # fmt: skip
