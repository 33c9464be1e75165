"""Images read at computed places: formulas of the coordinates, one gather for each tap, and their weighted sum.

GridSample(x [N, C, H, W], grid [N, h, w, 2])   -> the sum over taps of weight * gather_elements(x [N, C, H W], place)
DeformConv(x, w, offset, b, mask)                -> the same at tap + offset, then matmul(w, values)

All of it is elementwise but the gathers, so that one kernel computes coordinates, reads the taps and sums them up.
Places are clamped after they were made integers: no coordinate, NaN neither, reads outside of the image.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.equal_dims import require_equal
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import product
from opfuse.ir.types import DType

CUBIC = -0.75  # the parameter of the kernel (Keys, "Cubic convolution interpolation", 1981)
_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class _Tap:
    """One of the places that an axis' coordinate is read at: its index, its weight, whether it lies inside."""

    index: str
    weight: str | None
    inside: str | None


class _Axis:
    """The formulas of one spatial axis of `size` positions."""

    def __init__(self, call: Call, size: int, padding: str, corners: bool, dtype: DType) -> None:
        self.call, self.size, self.padding, self.dtype = call, size, padding, dtype
        self.low, self.high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        self.corners = corners

    def number(self, value: float) -> str:
        return self.call.graph.scalar(value, self.dtype)

    def apply(self, op: str, a: str, b: str | float) -> str:
        return self.call.emit(op, [a, self.number(b) if isinstance(b, float) else b])

    def position(self, x: str) -> str:
        """From -1 ... 1 to positions; the ends are centres of the first and last element, or their outer edges."""
        x = self.apply("add", x, 1.0)
        if self.corners:
            return self.apply("mul", x, (self.size - 1) / 2)
        return self.apply("div", self.apply("sub", self.apply("mul", x, float(self.size)), 1.0), 2.0)

    def brought_in(self, x: str) -> str:
        """As the padding says for what lies outside; zeros leave it there."""
        if self.padding == "border":
            return self.call.emit("clip", [x, self.number(0.0), self.number(self.size - 1.0)])
        if self.padding == "reflection":
            return self._reflected(x)
        return x

    def _reflected(self, x: str) -> str:
        span = self.high - self.low
        if span == 0:
            return self.apply("mul", x, 0.0)
        away = self.apply("mod", self.apply("sub", x, self.low), 2 * span)
        folded = self.apply("minimum", away, self.call.emit("sub", [self.number(2 * span), away]))
        outside = self.call.emit("or", [self.apply("less", x, self.low), self.apply("greater", x, self.high)])
        return self.call.emit("where", [outside, self.apply("add", folded, self.low), x])

    def tap(self, place: str, weight: str | None) -> _Tap:
        """Of a whole number that is still a float."""
        inside = None
        if self.padding == "zeros":
            inside = self.call.emit("and", [self.apply("greater_equal", place, 0.0),
                                            self.apply("less_equal", place, self.size - 1.0)])  # fmt: skip
        whole = self.call.cast(self.brought_in(place), DType.I64)
        ends = (self.call.graph.scalar(n, DType.I64) for n in (0, self.size - 1))
        return _Tap(self.call.emit("clip", [whole, *ends]), weight, inside)

    def taps(self, x: str, mode: str) -> list[_Tap]:
        if mode == "nearest":
            return [self.tap(self.brought_in(self.call.emit("round", [x])), None)]
        if mode == "linear":  # the weights of a cubic stay those of the place outside, as in PyTorch
            x = self.brought_in(x)
        first = self.call.emit("floor", [x])
        rest = self.call.emit("sub", [x, first])
        if mode == "linear":
            weights = [self.call.emit("sub", [self.number(1.0), rest]), rest]
            return [self.tap(self.apply("add", first, float(k)), w) for k, w in enumerate(weights)]
        return [self.tap(self.apply("add", first, float(k)), self._cubic(rest, k)) for k in range(-1, 3)]

    def _cubic(self, rest: str, k: int) -> str:
        """The weight of the tap at distance |rest - k|: two polynomials, within 1 and within 2."""
        d = self.apply("sub", rest, float(k)) if k < 1 else self.call.emit("sub", [self.number(float(k)), rest])
        near = k in (0, 1)
        powers = (CUBIC + 2, -(CUBIC + 3), 0.0, 1.0) if near else (CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)
        total = self.apply("mul", d, powers[0])
        for c in powers[1:3]:
            total = self.call.emit("mul", [self.apply("add", total, c), d])
        return self.apply("add", total, powers[3])


def grid_sample(call: Call) -> str:
    x, grid, rank = call.input(0), call.input(1), call.rank(call.input(0))
    mode, padding = call.string_attribute("mode", "linear"), call.string_attribute("padding_mode", "zeros")
    corners = bool(call.int_attribute("align_corners", 0))
    if mode not in _MODES or padding not in _PADDINGS:
        raise InvalidNode(f"its mode is {mode!r} and its padding {padding!r}")
    shape, places = call.shape(x), call.shape(grid)
    if rank < 3 or len(places) != rank or (isinstance(places[-1], int) and places[-1] != rank - 2):
        raise InvalidNode(f"a grid of shape {list(places)} for an input of rank {rank}")
    require_equal(places[-1], rank - 2)
    require_equal(places[0], shape[0])
    sizes = [d for d in shape[2:] if isinstance(d, int)]
    if len(sizes) != rank - 2:
        call.needs_shapes("its formulas depend on the extents of its input")
    dtype = DType.F64 if call.dtype(x) is DType.F64 else DType.F32
    count = product(places[1:-1])
    rows = call.reshape(call.cast(grid, dtype), (places[0], count, rank - 2))
    axes = []
    for k, size in enumerate(sizes):  # the grid names the last axis first
        axis = _Axis(call, size, padding, corners, dtype)
        axes.append(axis.taps(axis.position(_column(call, rows, rank - 3 - k)), _MODES[mode]))
    made = _summed(call, call.cast(x, dtype), sizes, axes)
    return call.cast(call.reshape(made, (*shape[:2], *places[1:-1])), call.dtype(x))


def _column(call: Call, rows: str, k: int) -> str:
    """[N, P] of [N, P, axes]."""
    n, count, _ = call.shape(rows)
    cut = call.emit("slice", [rows], starts=(0, 0, k), stops=(n, count, k + 1), steps=(1, 1, 1))
    return call.reshape(cut, (n, count))


def _summed(call: Call, x: str, sizes: list[int], axes: list[list[_Tap]]) -> str:
    """[N, C, P]: the sum over every combination of the axes' taps."""
    n, channels = call.shape(x)[:2]
    image = call.reshape(x, (n, channels, product(sizes)))
    total: str | None = None
    for taps in itertools.product(*axes):
        place: str | None = None
        for tap, size in zip(taps, sizes, strict=True):
            here = tap.index
            if place is not None:
                moved = call.emit("mul", [place, call.graph.scalar(size, DType.I64)])
                here = call.emit("add", [moved, here])
            place = here
        assert place is not None
        count = call.shape(place)[1]
        index = call.emit("expand", [call.reshape(place, (n, 1, count))], shape=(n, channels, count))
        value = call.emit("gather_elements", [image, index], axis=2)
        for op, parts in (("and", [t.inside for t in taps]), ("mul", [t.weight for t in taps])):
            given = [p for p in parts if p is not None]
            if not given:
                continue
            whole = given[0]
            for part in given[1:]:
                whole = call.emit(op, [whole, part])
            whole = call.reshape(whole, (n, 1, count))
            value = (call.emit("where", [whole, value, call.scalar(0.0, value)]) if op == "and"
                     else call.emit("mul", [value, whole]))  # fmt: skip
        total = value if total is None else call.emit("add", [total, value])
    assert total is not None
    return total


# ---- deformable convolution ------------------------------------------------------------------------------------------
def deform_conv(call: Call) -> str:
    """Every tap of the kernel read at its own place, then the product with the weights; space has two axes."""
    x, w, offset = (call.input(k) for k in range(3))
    shape, weight = call.shape(x), call.shape(w)
    numbers = [d for d in (*shape, *weight, *call.shape(offset)[2:]) if isinstance(d, int)]
    if len(shape) != 4 or len(weight) != 4:
        call.unsupported(f"an input of rank {len(shape)} is not supported: it must have two axes of space")
    if len(numbers) != 10:
        call.needs_shapes("its formulas depend on the extents of its inputs")
    batch, channels, high, wide, m, per_group, kh, kw, oh, ow = numbers
    group, parts = call.int_attribute("group", 1), call.int_attribute("offset_group", 1)
    strides, dilations = (call.ints_attribute(n) or (1, 1) for n in ("strides", "dilations"))
    pads = call.ints_attribute("pads") or (0, 0, 0, 0)
    taps, places, rows = kh * kw, oh * ow, batch * parts
    dtype = DType.F64 if call.dtype(x) is DType.F64 else DType.F32
    moved = call.reshape(call.cast(offset, dtype), (rows, taps, 2, places))
    axes = []
    for k, size in enumerate((high, wide)):
        tap = np.repeat(np.arange(kh), kw) if k == 0 else np.tile(np.arange(kw), kh)
        step = np.repeat(np.arange(oh), ow) if k == 0 else np.tile(np.arange(ow), oh)
        base = tap[:, None] * dilations[k] + step[None] * strides[k] - pads[k]
        cut = call.emit("slice", [moved], starts=(0, 0, k, 0), stops=(rows, taps, k + 1, places), steps=(1,) * 4)
        own = call.graph.add_constant(base.reshape(1, taps * places).astype(dtype.numpy))
        axis = _Axis(call, size, "zeros", corners=False, dtype=dtype)
        axes.append(axis.taps(call.emit("add", [call.reshape(cut, (rows, taps * places)), own]), "linear"))
    image = call.reshape(call.cast(x, dtype), (rows, channels // parts, high, wide))
    read = _summed(call, image, [high, wide], axes)
    if call.has(4):
        mask = call.reshape(call.cast(call.input(4), dtype), (rows, 1, taps * places))
        read = call.emit("mul", [read, mask])
    columns = call.reshape(read, (batch, group, per_group * taps, places))
    filters = call.reshape(call.cast(w, dtype), (group, m // group, per_group * taps))
    made = call.reshape(call.emit("matmul", [filters, columns]), (batch, m, oh, ow))
    if call.has(3):
        made = call.emit("add", [made, call.reshape(call.cast(call.input(3), dtype), (m, 1, 1))])
    return call.cast(made, call.dtype(x))


_ELEMENTWISE = ("add", "sub", "mul", "div", "mod", "minimum", "clip", "round", "floor", "where", "and", "or", "less",
                "greater", "greater_equal", "less_equal", "cast")  # fmt: skip
IMPORTS: tuple[Import, ...] = (
    Import("GridSample", (16, 20, 22), grid_sample, ("gather_elements", "slice", "reshape", "expand", *_ELEMENTWISE)),
    Import("DeformConv", (19, 22), deform_conv,
           ("gather_elements", "slice", "reshape", "expand", "matmul", *_ELEMENTWISE)),
)  # fmt: skip
