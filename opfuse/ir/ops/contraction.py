"""Contractions: matrix products and convolutions.

    matmul(a, b)       NumPy's rule for any rank from 1
    conv(x, w, b?)     strides dilations pads(begins..., ends...) group layout
    conv_transpose     the same and output_padding; NCHW only; host, until a rewrite expands it in the graph

In "NCHW" the weight of a convolution is [M, C/group, spatial...] and in "NHWC" it is [spatial..., C/group, M]. A
convolution with a bias is two loop nests: it expands into one without and an addition, which fusion joins again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import Dim, dims_text, product
from opfuse.ir.index import Index, quotient
from opfuse.ir.ops.broadcast import accumulator, broadcast, extents_of, require_kind, require_one_dtype
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import array_oracle
from opfuse.ir.ops.spatial import Window, arrange, channel_dimension, spatial_shape
from opfuse.ir.scalar import Const, Operand, Scalar, apply, cast, const
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import DType, TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph


def sum_of_products(axes: tuple[Axis, ...], over: tuple[Axis, ...], a: Access, b: Access, dtype: DType) -> Structure:
    """The structure of a contraction; half precision is multiplied and summed in float32 and rounded once."""
    wide = accumulator(dtype)
    body = apply("mul", cast(Operand(0, dtype), wide), cast(Operand(1, dtype), wide))
    finish: Scalar | None = None if wide is dtype else cast(Operand(0, wide), dtype)
    return Structure(axes, (a, b), body, over, "sum", finish)


# ---- matmul ----------------------------------------------------------------------------------------------------------
def _infer_matmul(call: Call) -> TensorType:
    for k in (0, 1):
        require_kind(call.type(k), "fi", f"input {k}")
    dtype = require_one_dtype(call)
    a, b = call.shape(0), call.shape(1)
    if not a or not b:
        raise OperatorError("operands must have rank 1 or more")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise OperatorError(f"[{dims_text(a)}] x [{dims_text(b)}]: the inner dimensions {a[-1]} and {inner} differ")
    return TensorType(dtype, (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))


def _matmul_structure(call: Call) -> Structure:
    a, b = call.shape(0), call.shape(1)
    batch_shape = broadcast(a[:-2], b[:-2])
    batch = tuple(Axis(f"b{k}", d) for k, d in enumerate(batch_shape))
    m = (Axis("m", a[-2]),) if len(a) > 1 else ()
    n = (Axis("n", b[-1]),) if len(b) > 1 else ()
    k = Axis("k", a[-1])

    def batch_index(shape: Sequence[Dim]) -> tuple[Index, ...]:
        aligned = batch[len(batch) - len(shape) :]
        return tuple(Index() if d == 1 else axis.index for d, axis in zip(shape, aligned, strict=True))

    left = Access(0, (*batch_index(a[:-2]), *(axis.index for axis in m), k.index))
    right = Access(1, (*batch_index(b[:-2]), k.index, *(axis.index for axis in n)))
    return sum_of_products((*batch, *m, *n), (k,), left, right, call.output.dtype)


_MATMUL = Operator(
    "matmul",
    Kind.STRUCTURED,
    ("a", "b"),
    _infer_matmul,
    array_oracle(lambda attrs, a, b: np.matmul(a, b)),
    {},
    _matmul_structure,
    samples=(
        Sample(((3, 5), (5, 7))),
        Sample(((2, 1, 4, 6), (3, 6, 5))),
        Sample(((6,), (2, 6, 5))),
        Sample(((2, 3, 6), (6,))),
        Sample(((17,), (17,))),
        Sample(((2, 0), (0, 3))),
        Sample((np.array([[1, -2], [3, 4]]), np.array([[5, 6], [7, -8]]))),
        Sample((np.full((1, 4), 300, np.float16), np.array([[300], [-300], [1], [2]], np.float16))),
    ),
)


# ---- conv ------------------------------------------------------------------------------------------------------------
def weight_parts(shape: Sequence[Dim], layout: str) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """Output channels, input channels a group, and the kernel's extents of a convolution's weight."""
    if layout == "NCHW":
        return shape[0], shape[1], tuple(shape[2:])
    return shape[-1], shape[-2], tuple(shape[:-2])


def conv_window(call: Call) -> Window:
    return Window.of(weight_parts(call.shape(1), call["layout"])[2], call, spatial_shape(call.type(0), call["layout"]))


def _infer_conv(call: Call) -> TensorType:
    x, w, layout, group = call.type(0), call.type(1), call["layout"], call["group"]
    require_kind(x, "fi", "input 'x'")
    dtype = require_one_dtype(call)
    if x.rank < 3 or w.rank != x.rank:
        raise OperatorError(
            f"input of rank {x.rank} and weight of rank {w.rank}: both must have the same rank of 3 or more"
        )
    channels = x.shape[channel_dimension(layout, x.rank)]
    m, per_group, _ = weight_parts(w.shape, layout)
    if per_group * group != channels:
        raise OperatorError(f"{channels} input channels, but the weight has {per_group} in each of {group} groups")
    if isinstance(m, int) and m % group:
        raise OperatorError(f"{m} output channels do not divide into {group} groups")
    if call.has(2) and call.shape(2) != (m,):
        raise OperatorError(f"bias of shape [{dims_text(call.shape(2))}] for {m} output channels")
    return TensorType(dtype, arrange(layout, x.shape[0], m, conv_window(call).output))


def _conv_structure(call: Call) -> Structure:
    layout, window, group = call["layout"], conv_window(call), call["group"]
    m, per_group, _ = weight_parts(call.shape(1), layout)
    n, c, ic = Axis("n", call.shape(0)[0]), Axis("c", m), Axis("ic", per_group)
    inner = () if per_group == 1 else (ic,)
    within = Index() if per_group == 1 else ic.index
    channel = within
    if group != 1:
        channel = quotient(c.index, m // group, extents_of(c)) * per_group + within
    places = tuple(window.index(k) for k in range(len(window.extents)))
    taps = tuple(t.index for t in window.taps)
    pad = const(0, call.type(0).dtype) if window.leaves else None
    assert pad is None or isinstance(pad, Const)
    if layout == "NCHW":
        read, weight = Access(0, (n.index, channel, *places), pad), Access(1, (c.index, within, *taps))
        axes = (n, c, *window.axes)
    else:
        read, weight = Access(0, (n.index, *places, channel), pad), Access(1, (*taps, within, c.index))
        axes = (n, *window.axes, c)
    return sum_of_products(axes, (*window.taps, *inner), read, weight, call.output.dtype)


def _expand_bias(g: Graph, call: Call, inputs: tuple[str | None, ...]) -> tuple[str, ...]:
    """conv(x, w) + b, b shaped to stand at the channels."""
    y = g.emit("conv", inputs[:2], call.attrs)
    bias = str(inputs[2])
    if call["layout"] == "NCHW":
        bias = g.emit("reshape", [bias], {"shape": (*call.shape(2), *(1,) * (call.output.rank - 2))})
    return (g.emit("add", [y, bias]),)


def _to_nchw(x: Any, layout: str) -> Any:
    return x if layout == "NCHW" else np.moveaxis(x, -1, 1)


def _conv_array(attrs: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    """A matrix product for each tap of the window, summed."""
    layout, group = attrs["layout"], attrs["group"]
    x = _to_nchw(x, layout)
    w = w if layout == "NCHW" else np.moveaxis(w, (-1, -2), (0, 1))
    rank = x.ndim - 2
    pads, strides, dilations, kernel = attrs["pads"], attrs["strides"], attrs["dilations"], w.shape[2:]
    border = [(0, 0), (0, 0), *((max(pads[k], 0), max(pads[rank + k], 0)) for k in range(rank))]
    x = np.pad(x, border)
    x = x[
        (
            slice(None),
            slice(None),
            *(slice(max(-pads[k], 0), x.shape[2 + k] - max(-pads[rank + k], 0)) for k in range(rank)),
        )
    ]
    out = [(x.shape[2 + k] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(rank)]
    n, c, m = x.shape[0], x.shape[1], w.shape[0]
    y = np.zeros((n, group, m // group, int(np.prod(out))), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        at = tuple(
            slice(t * d, t * d + (o - 1) * s + 1 if o else t * d, s)
            for t, d, o, s in zip(tap, dilations, out, strides, strict=True)
        )
        part = x[(slice(None), slice(None), *at)].reshape(n, group, c // group, int(np.prod(out)))
        y += np.matmul(w[(slice(None), slice(None), *tap)].reshape(1, group, m // group, c // group), part)
    y = y.reshape(n, m, *out)
    if b is not None:
        y = y + b.reshape(-1, *(1,) * rank)
    return y if layout == "NCHW" else np.moveaxis(y, 1, -1)


def _conv_flops(call: Call) -> Dim:
    _, per_group, kernel = weight_parts(call.shape(1), call["layout"])
    return call.output.elements * (product(kernel) * per_group * 2 + (1 if call.has(2) else 0))


def _conv_attrs(rank: int, **changes: Any) -> dict[str, Any]:
    return {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * (2 * rank), **changes}


_CONV_ATTRIBUTES = {"strides": REQUIRED, "dilations": REQUIRED, "pads": REQUIRED, "group": 1, "layout": "NCHW"}
_CONV = Operator(
    "conv",
    Kind.STRUCTURED,
    ("x", "w", "b?"),
    _infer_conv,
    array_oracle(_conv_array),
    _CONV_ATTRIBUTES,
    _conv_structure,
    _expand_bias,
    needs_expansion=lambda call: call.has(2),
    flops=_conv_flops,
    samples=(
        Sample(((2, 3, 7, 5), (4, 3, 3, 3)), _conv_attrs(2, pads=(1, 1, 1, 1))),
        Sample(((1, 3, 8, 9), (2, 3, 3, 2), (2,)), _conv_attrs(2, strides=(2, 3), pads=(1, 0, 0, 1))),
        Sample(((1, 4, 9, 9), (6, 2, 3, 3)), _conv_attrs(2, group=2, dilations=(2, 1), pads=(2, 1, 2, 1))),
        Sample(((1, 5, 6, 6), (5, 1, 3, 3)), _conv_attrs(2, group=5, pads=(1, 1, 1, 1), strides=(2, 2))),
        Sample(((1, 3, 6, 6), (6, 1, 3, 3), (6,)), _conv_attrs(2, group=3)),
        Sample(((2, 7, 5, 3), (3, 3, 3, 4), (4,)), _conv_attrs(2, pads=(1, 1, 1, 1), layout="NHWC")),
        Sample(((1, 6, 6, 4), (3, 1, 2, 4)), _conv_attrs(2, group=2, layout="NHWC", strides=(2, 1))),
        Sample(((1, 6, 6, 5), (3, 3, 1, 5)), _conv_attrs(2, group=5, layout="NHWC", pads=(1, 1, 1, 1))),
        Sample(((2, 3, 11), (4, 3, 5)), _conv_attrs(1, pads=(4, 0), strides=(2,))),
        Sample(((1, 2, 4, 5, 3), (3, 2, 2, 2, 2)), _conv_attrs(3, pads=(0, 1, 0, 0, 1, 0))),
        Sample(((0, 3, 4, 4), (2, 3, 3, 3)), _conv_attrs(2)),
        Sample((np.full((1, 1, 1, 4), 300, np.float16), np.full((1, 1, 1, 3), 300, np.float16)), _conv_attrs(2)),
    ),
)


# ---- conv_transpose --------------------------------------------------------------------------------------------------
def _infer_conv_transpose(call: Call) -> TensorType:
    x, w, group = call.type(0), call.type(1), call["group"]
    require_kind(x, "f", "input 'x'")
    dtype = require_one_dtype(call)
    if x.rank < 3 or w.rank != x.rank:
        raise OperatorError(
            f"input of rank {x.rank} and weight of rank {w.rank}: both must have the same rank of 3 or more"
        )
    if x.shape[1] != w.shape[0]:
        raise OperatorError(f"{x.shape[1]} input channels, but the weight has {w.shape[0]}")
    rank = x.rank - 2
    lengths = {"strides": rank, "dilations": rank, "pads": 2 * rank, "output_padding": rank}
    for name, count in lengths.items():
        if len(call[name]) != count:
            raise OperatorError(f"{name} has {len(call[name])} numbers for {rank} spatial axes, must have {count}")
    pads = call["pads"]
    spatial = tuple(
        (x.shape[2 + k] - 1) * call["strides"][k]
        + call["output_padding"][k]
        + (w.shape[2 + k] - 1) * call["dilations"][k]
        + 1
        - pads[k]
        - pads[rank + k]
        for k in range(rank)
    )
    m = w.shape[1] * group
    if call.has(2) and call.shape(2) != (m,):
        raise OperatorError(f"bias of shape [{dims_text(call.shape(2))}] for {m} output channels")
    return TensorType(dtype, (x.shape[0], m, *spatial))


def _expand_conv_transpose(g: Graph, call: Call, inputs: tuple[str | None, ...]) -> tuple[str, ...]:
    """A convolution of the input, zeros set between its elements, with the reversed weight.

    Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", section 4.5. Of the products that it
    makes, one in the product of the strides is with an element of x.
    """
    x, (_, per_group, *kernel), rank = str(inputs[0]), call.shape(1), call.type(0).rank - 2
    for k, stride in enumerate(call["strides"]):
        x = _spread(g, x, 2 + k, stride)
    spans = [(t - 1) * d for t, d in zip(kernel, call["dilations"], strict=True)]
    pads, extra = call["pads"], call["output_padding"]
    attrs = {
        "strides": (1,) * rank,
        "dilations": call["dilations"],
        "pads": (*(s - p for s, p in zip(spans, pads[:rank], strict=True)),
                 *(s - p + e for s, p, e in zip(spans, pads[rank:], extra, strict=True))),
        "group": call["group"],
    }  # fmt: skip
    y = g.emit("conv", [x, _reversed_weight(g, str(inputs[1]), call["group"], per_group)], attrs)
    if not call.has(2):
        return (y,)
    return (g.emit("add", [y, g.emit("reshape", [inputs[2]], {"shape": (*call.shape(2), *(1,) * rank)})]),)


def _spread(g: Graph, x: str, axis: int, stride: int) -> str:
    """stride - 1 zeros between the elements along an axis: [.., n, ..] -> [.., (n - 1) * stride + 1, ..]."""
    if stride == 1:
        return x
    shape = g.types[x].shape
    rank, n = len(shape), shape[axis]
    x = g.emit("reshape", [x], {"shape": (*shape[: axis + 1], 1, *shape[axis + 1 :])})
    after = [0] * (rank + 1)
    after[axis + 1] = stride - 1
    x = g.emit("pad", [x], {"pads": (*[0] * (rank + 1), *after)})
    whole = (*shape[:axis], n * stride, *shape[axis + 1 :])
    x = g.emit("reshape", [x], {"shape": whole})
    stops = tuple(d - (stride - 1) if k == axis else d for k, d in enumerate(whole))
    return g.emit("slice", [x], {"starts": (0,) * rank, "stops": stops, "steps": (1,) * rank})


def _reversed_weight(g: Graph, w: str, group: int, per_group: Dim) -> str:
    """[C, M/group, kernel...] -> [M, C/group, kernel... reversed]."""
    channels, _, *kernel = g.types[w].shape
    rank, inner = len(kernel), channels // group
    starts, stops = (0, 0, *(d - 1 for d in kernel)), (channels, per_group, *(-1 for _ in kernel))
    w = g.emit("slice", [w], {"starts": starts, "stops": stops, "steps": (1, 1, *(-1,) * rank)})
    w = g.emit("reshape", [w], {"shape": (group, inner, per_group, *kernel)})
    w = g.emit("transpose", [w], {"perm": (0, 2, 1, *range(3, 3 + rank))})
    return g.emit("reshape", [w], {"shape": (per_group * group, inner, *kernel)})


def _conv_transpose_array(attrs: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    """Each tap adds its matrix product at the places that it reaches."""
    group, rank = attrs["group"], x.ndim - 2
    strides, dilations, pads, kernel = attrs["strides"], attrs["dilations"], attrs["pads"], w.shape[2:]
    n, c, per_group = x.shape[0], x.shape[1], w.shape[1]
    full = [
        (x.shape[2 + k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 + attrs["output_padding"][k]
        for k in range(rank)
    ]
    y = np.zeros((n, group * per_group, *full), x.dtype)
    flat = x.reshape(n, group, c // group, int(np.prod(x.shape[2:])))
    for tap in itertools.product(*map(range, kernel)):
        at = tuple(
            slice(tap[k] * dilations[k], tap[k] * dilations[k] + (x.shape[2 + k] - 1) * strides[k] + 1, strides[k])
            for k in range(rank)
        )
        taps = w[(slice(None), slice(None), *tap)].reshape(1, group, c // group, per_group)
        part = np.matmul(np.swapaxes(taps, -1, -2), flat)
        y[(slice(None), slice(None), *at)] += part.reshape(n, group * per_group, *x.shape[2:])
    y = y[(slice(None), slice(None), *(slice(pads[k], full[k] - pads[rank + k]) for k in range(rank)))]
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


_CONV_TRANSPOSE = Operator(
    "conv_transpose",
    Kind.HOST,
    ("x", "w", "b?"),
    _infer_conv_transpose,
    array_oracle(_conv_transpose_array),
    {"strides": REQUIRED, "dilations": REQUIRED, "pads": REQUIRED, "output_padding": REQUIRED, "group": 1},
    expand=_expand_conv_transpose,
    flops=lambda call: call.type(0).elements * product(call.shape(1)[1:]) * 2,
    samples=(
        Sample(((1, 3, 4, 5), (3, 2, 3, 3)), _conv_attrs(2, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 0))),
        Sample(((1, 4, 1, 1), (4, 2, 1, 1), (4,)), _conv_attrs(2, group=2, output_padding=(0, 0))),
        Sample(
            ((2, 2, 6), (2, 3, 4), (3,)), _conv_attrs(1, strides=(3,), dilations=(2,), pads=(0, 2), output_padding=(0,))
        ),
    ),
)

OPERATORS: tuple[Operator, ...] = (_MATMUL, _CONV, _CONV_TRANSPOSE)
