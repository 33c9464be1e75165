"""Pools: a reduction over a window that slides over the spatial axes.

    max_pool(x)   kernel strides dilations pads ceil_mode layout          what lies outside counts as -inf
    avg_pool(x)   the same and count_include_pad                           what lies outside counts as 0
    max_pool_places(x, max_pool(x))   and column_major                     where the maxima stand, the first of equals

An average divides by the number of positions of its window that lie inside the tensor, or inside the padded tensor
where `count_include_pad`; positions that only `ceil_mode` adds never count (as ONNX and PyTorch). Global pools are
reductions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, SymbolicDim, product
from opfuse.ir.ops.broadcast import accumulator, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import array_oracle
from opfuse.ir.ops.reduction import lowest
from opfuse.ir.ops.spatial import Window, arrange, channel_dimension, spatial_shape
from opfuse.ir.scalar import Const, Operand, Position, Scalar, apply, cast, const, extent
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import DType, TensorType


def pool_window(call: Call) -> Window:
    return Window.of(tuple(call["kernel"]), call, spatial_shape(call.type(0), call["layout"]))


def _infer_pool(call: Call, kinds: str) -> TensorType:
    x = call.type(0)
    require_kind(x, kinds, "the input")
    if x.rank < 3:
        raise OperatorError(f"input of rank {x.rank}: a pool needs 3 or more")
    return TensorType(
        x.dtype,
        arrange(
            call["layout"], x.shape[0], x.shape[channel_dimension(call["layout"], x.rank)], pool_window(call).output
        ),
    )


def _read(call: Call, window: Window, pad: Const) -> tuple[tuple[Axis, ...], Access]:
    layout = call["layout"]
    n, c = Axis("n", call.shape(0)[0]), Axis("c", call.shape(0)[channel_dimension(layout, call.type(0).rank)])
    places = tuple(window.index(k) for k in range(len(window.extents)))
    index = (n.index, c.index, *places) if layout == "NCHW" else (n.index, *places, c.index)
    axes = (n, c, *window.axes) if layout == "NCHW" else (n, *window.axes, c)
    return axes, Access(0, index, pad if window.leaves else None)


def _max_structure(call: Call) -> Structure:
    window, dtype = pool_window(call), call.output.dtype
    axes, read = _read(call, window, Const(-np.inf if dtype.is_float else int(lowest(dtype.numpy)), dtype))
    return Structure(axes, (read,), Operand(0, dtype), window.taps, "max")


def _average_structure(call: Call) -> Structure:
    window, dtype = pool_window(call), call.output.dtype
    wide = accumulator(dtype)
    pad = Const(0.0, dtype)
    axes, read = _read(call, window, pad)
    count = _count(window, bool(call["count_include_pad"]))
    divisor = extent(count, wide) if isinstance(count, (int, SymbolicDim)) else cast(count, wide)
    finish = cast(apply("div", Operand(0, wide), divisor), dtype)
    return Structure(axes, (read,), cast(Operand(0, dtype), wide), window.taps, "sum", finish)


def _count(window: Window, include_pad: bool) -> Dim | Scalar:
    """Positions that an average counts: a number where all windows have as many, else a formula of the position."""
    same: Dim = 1
    formula: Scalar | None = None
    for k in range(len(window.extents)):
        low, high = (-window.before[k], window.extents[k] + window.after[k]) if include_pad else (0, window.extents[k])
        first, beyond = -window.before[k] - low, window.last_read(k) - high
        if first >= 0 and isinstance(beyond, int) and beyond < 0:
            same = same * window.kernel[k]
            continue
        along = _count_along(window, k, low, high)
        formula = along if formula is None else apply("mul", formula, along)
    if formula is None:
        return same
    return formula if same == 1 else apply("mul", formula, extent(same))


def _count_along(window: Window, k: int, low: int, high: Dim) -> Scalar:
    """Taps t of 0 .. kernel - 1 with low <= start + dilation * t < high."""
    step = apply("mul", Position(window.axes[k].name), const(window.strides[k], DType.I64))
    start = apply("sub", step, const(window.before[k], DType.I64))

    def taps_before(place: Scalar) -> Scalar:
        gap = apply("sub", place, start)
        if window.dilations[k] != 1:
            d = window.dilations[k]
            gap = apply("floordiv", apply("add", gap, const(d - 1, DType.I64)), const(d, DType.I64))
        return apply("max", const(0, DType.I64), apply("min", extent(window.kernel[k]), gap))

    return apply("sub", taps_before(extent(high)), taps_before(const(low, DType.I64)))


# ---- places of maxima ------------------------------------------------------------------------------------------------
def _infer_places(call: Call) -> TensorType:
    made = _infer_pool(call, "fi")
    if call["layout"] != "NCHW" or call.type(1) != made:
        raise OperatorError(f"the maxima are {call.type(1)}, and must be {made}, with channels before space")
    return TensorType(DType.I64, made.shape)


def _places_structure(call: Call) -> Structure:
    """The smallest place of a window where the input is the maximum, or NaN; places count through the whole input."""
    window, dtype = pool_window(call), call.type(0).dtype
    axes, read = _read(call, window, Const(-np.inf if dtype.is_float else int(lowest(dtype.numpy)), dtype))
    best = Access(1, tuple(a.index for a in axes))
    hit = apply("eq", Operand(0, dtype), Operand(1, dtype))
    if dtype.is_float:
        hit = apply("or", hit, apply("isnan", Operand(0, dtype)))
    order = range(len(window.extents))
    place: Scalar = apply("add", apply("mul", Position("n"), extent(call.shape(0)[1])), Position("c"))
    inside: Scalar | None = None
    for k in reversed(order) if call["column_major"] else order:
        step = apply("mul", Position(window.axes[k].name), const(window.strides[k], DType.I64))
        tap = apply("mul", Position(window.taps[k].name), const(window.dilations[k], DType.I64))
        at = apply("sub", apply("add", step, tap), const(window.before[k], DType.I64))
        place = apply("add", apply("mul", place, extent(window.extents[k])), at)
        within = apply("and", apply("ge", at, const(0, DType.I64)), apply("lt", at, extent(window.extents[k])))
        inside = within if inside is None else apply("and", inside, within)
    assert inside is not None
    body = apply("select", apply("and", inside, hit), place, const(np.iinfo(np.int64).max, DType.I64))
    return Structure(axes, (read, best), body, window.taps, "min")


def _places_array(attrs: Mapping[str, Any], x: Any, y: Any) -> Any:
    """The first tap in the order of places that holds the maximum, by brute force over taps."""
    places = np.arange(x.size).reshape(x.shape)
    if attrs["column_major"]:
        rank = x.ndim - 2
        turned = (0, 1, *range(x.ndim - 1, 1, -1))
        places = np.arange(x.size).reshape(*x.shape[:2], *x.shape[:1:-1]).transpose(turned) if rank else places
    nowhere = np.iinfo(np.int64).max
    taps = list(_taps(attrs, x, lowest(x.dtype)))
    pairs = zip(taps, _taps(attrs, places, nowhere), strict=True)
    return np.minimum.reduce([np.where((t == y) | (t != t), p, nowhere) for t, p in pairs])


# ---- oracle ----------------------------------------------------------------------------------------------------------
def _windows(attrs: Mapping[str, Any], x: Any, fill: Any, function: Any) -> Any:
    total = None
    for part in _taps(attrs, x, fill):
        total = part if total is None else function(total, part)
    return total


def _taps(attrs: Mapping[str, Any], x: Any, fill: Any) -> Iterator[Any]:
    """Shifted copies of x (NCHW), surrounded by `fill`, one for each tap."""
    rank = x.ndim - 2
    kernel, strides, dilations, pads = attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["pads"]
    counts = []
    for k in range(rank):
        room = x.shape[2 + k] + pads[k] + pads[rank + k] - (kernel[k] - 1) * dilations[k] - 1
        count = (-(-room // strides[k]) if attrs["ceil_mode"] else room // strides[k]) + 1
        if attrs["ceil_mode"] and (count - 1) * strides[k] >= x.shape[2 + k] + pads[k]:
            count -= 1
        counts.append(count)
    need = [(counts[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 for k in range(rank)]
    border = [(0, 0), (0, 0), *((pads[k], max(0, need[k] - x.shape[2 + k] - pads[k])) for k in range(rank))]
    wide = np.pad(x, border, constant_values=fill)
    for tap in itertools.product(*map(range, kernel)):
        at = tuple(
            slice(t * d, t * d + max(0, (c - 1) * s + 1), s)
            for t, d, c, s in zip(tap, dilations, counts, strides, strict=True)
        )
        yield wide[(slice(None), slice(None), *at)]


def _max_array(attrs: Mapping[str, Any], x: Any) -> Any:
    first = x if attrs["layout"] == "NCHW" else np.moveaxis(x, -1, 1)
    y = _windows(attrs, first, lowest(x.dtype), np.maximum)
    return y if attrs["layout"] == "NCHW" else np.moveaxis(y, 1, -1)


def _average_array(attrs: Mapping[str, Any], x: Any) -> Any:
    first = x if attrs["layout"] == "NCHW" else np.moveaxis(x, -1, 1)
    total = _windows(attrs, first, 0, np.add)
    inside = np.ones((1, 1, *first.shape[2:]), x.dtype)
    if attrs["count_include_pad"]:
        rank = first.ndim - 2
        pads = attrs["pads"]
        inside = np.pad(inside, [(0, 0), (0, 0), *((pads[k], pads[rank + k]) for k in range(rank))], constant_values=1)
        count = _windows({**attrs, "pads": (0,) * (2 * rank)}, inside, 0, np.add)
        count = count[(slice(None), slice(None), *(slice(0, d) for d in total.shape[2:]))]
    else:
        count = _windows(attrs, inside, 0, np.add)
    y = total / count
    return y if attrs["layout"] == "NCHW" else np.moveaxis(y, 1, -1)


# ---- table -----------------------------------------------------------------------------------------------------------
def _attrs(kernel: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    rank = len(kernel)
    return {"kernel": kernel, "strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * (2 * rank), **changes}


_SAMPLES = (
    Sample(((1, 2, 7, 6),), _attrs((3, 3), strides=(2, 2))),
    Sample(((2, 3, 8, 5),), _attrs((3, 2), strides=(2, 1), pads=(1, 0, 1, 1))),
    Sample(((1, 7, 7, 3),), _attrs((3, 3), strides=(2, 2), pads=(1, 1, 1, 1), layout="NHWC")),
    Sample(((1, 2, 6, 6),), _attrs((3, 3), strides=(2, 2), ceil_mode=True)),
    Sample(((1, 1, 5, 9),), _attrs((2, 3), strides=(3, 2), dilations=(2, 2), pads=(1, 2, 0, 2), ceil_mode=True)),
    Sample(((2, 3, 11),), _attrs((4,), strides=(3,), pads=(2, 1))),
    Sample(((1, 1, 4, 5, 4),), _attrs((2, 2, 2), strides=(2, 2, 2), pads=(0, 1, 0, 0, 0, 0))),
    Sample(((0, 2, 4, 4),), _attrs((2, 2))),
    Sample((np.array([[[1, np.nan, 3, -np.inf, 2]]], np.float32),), _attrs((2,))),
    Sample((np.full((1, 1, 4), 60000, np.float16),), _attrs((3,), pads=(1, 1))),
)
_ATTRIBUTES = {
    "kernel": REQUIRED,
    "strides": REQUIRED,
    "dilations": REQUIRED,
    "pads": REQUIRED,
    "ceil_mode": False,
    "layout": "NCHW",
}


def _places_samples() -> tuple[Sample, ...]:
    """With the maxima of small whole numbers, many of them equal."""
    out = []
    for k, given in enumerate(_SAMPLES[:7]):
        if given.attrs.get("layout", "NCHW") != "NCHW":
            continue
        x = np.random.default_rng(k).integers(-3, 4, given.inputs[0]).astype(np.float32)
        attrs = {"ceil_mode": False, "layout": "NCHW", **given.attrs}
        out.append(Sample((x, _max_array(attrs, x)), {**given.attrs, "column_major": k % 2 == 0}))
    return tuple(out)


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "max_pool",
        Kind.STRUCTURED,
        ("x",),
        lambda call: _infer_pool(call, "fi"),
        array_oracle(_max_array),
        _ATTRIBUTES,
        _max_structure,
        flops=lambda call: call.output.elements * product(call["kernel"]),
        samples=(*_SAMPLES, Sample((np.arange(-9, 0, dtype=np.int8).reshape(1, 1, 9),), _attrs((3,), pads=(1, 1)))),
    ),
    Operator(
        "avg_pool",
        Kind.STRUCTURED,
        ("x",),
        lambda call: _infer_pool(call, "f"),
        array_oracle(_average_array),
        {**_ATTRIBUTES, "count_include_pad": False},
        _average_structure,
        flops=lambda call: call.output.elements * (product(call["kernel"]) + 1),
        samples=(*_SAMPLES, *(Sample(s.inputs, {**s.attrs, "count_include_pad": True}) for s in _SAMPLES[1:6])),
    ),
    Operator(
        "max_pool_places",
        Kind.STRUCTURED,
        ("x", "y"),
        _infer_places,
        lambda attrs, arrays: _places_array(attrs, *arrays),
        {**_ATTRIBUTES, "column_major": False},
        _places_structure,
        samples=_places_samples(),
    ),
)
