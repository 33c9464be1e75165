"""Regions of an image resampled to one size.

RoiAlign(x, rois [R, 4], batch [R])  -> rows [R, 1, h, H] x gather(x, batch) [R, C, H, W] x columns [R, 1, W, w]

An average of bilinear samples is separable: `rows` and `columns` hold each output position's weights, which are
formulas of the regions, so that both products are matrix products. The maximum reads its samples one by one.
"""

from __future__ import annotations

import itertools

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import Dim
from opfuse.ir.types import DType


class _Side:
    """One axis of the regions: `size` positions of the image, `out` of the result, `samples` for each of those."""

    def __init__(self, call: Call, rois: str, ends: tuple[int, int], size: int, out: int, samples: int, dtype: DType,
                 centred: bool) -> None:  # fmt: skip
        self.call, self.size, self.out, self.samples, self.dtype = call, size, out, samples, dtype
        self.regions = call.shape(rois)[0]
        low, high = (self._end(rois, k, centred) for k in ends)
        length = call.emit("sub", [high, low])
        if not centred:
            length = self._with("maximum", length, 1.0)
        steps = (np.arange(out * samples) + 0.5) / (out * samples)  # of the region's length
        own = call.graph.add_constant(steps.astype(dtype.numpy).reshape(1, -1))
        self.at = call.emit("add", [low, call.emit("mul", [length, own])])  # [R, out * samples]

    def _with(self, op: str, x: str, number: float) -> str:
        return self.call.emit(op, [x, self.call.graph.scalar(number, self.dtype)])

    def _end(self, rois: str, k: int, centred: bool) -> str:
        cut = self.call.emit("slice", [rois], starts=(0, k), stops=(self.regions, k + 1), steps=(1, 1))
        scaled = self._with("mul", cut, self.call.float_attribute("spatial_scale", 1.0))
        return self._with("sub", scaled, 0.5) if centred else scaled

    def inside(self) -> str:
        """What lies more than one position outside counts as nothing."""
        return self.call.emit("and", [self._with("greater_equal", self.at, -1.0),
                                      self._with("less_equal", self.at, float(self.size))])  # fmt: skip

    def clamped(self) -> str:
        ends = [self.call.graph.scalar(n, self.dtype) for n in (0.0, self.size - 1.0)]
        return self.call.emit("clip", [self.at, *ends])

    def weights(self) -> str:
        """[R, out, size]: the sum over an output's samples of 1 - distance, where that is positive."""
        rows = (self.regions, self.out, self.samples, 1)
        place = self.call.reshape(self.clamped(), rows)
        own = self.call.graph.add_constant(np.arange(self.size).astype(self.dtype.numpy))
        distance = self.call.emit("abs", [self.call.emit("sub", [place, own])])
        near = self._with("maximum", self.call.emit("sub", [self.call.graph.scalar(1.0, self.dtype), distance]), 0.0)
        near = self.call.emit("where", [self.call.reshape(self.inside(), rows), near,
                                        self.call.graph.scalar(0.0, self.dtype)])  # fmt: skip
        return self.call.emit("reduce_sum", [near], axes=(2,), keepdims=False)

    def taps(self) -> list[tuple[str, str]]:
        """(index, weight) of the position below and the one above, each [R, out * samples]."""
        place = self.clamped()
        first = self.call.emit("floor", [place])
        rest = self.call.emit("sub", [place, first])
        under = self.call.emit("sub", [self.call.graph.scalar(1.0, self.dtype), rest])
        last = self.call.graph.scalar(self.size - 1, DType.I64)
        index = self.call.emit("minimum", [self.call.cast(first, DType.I64), last])
        index = self.call.emit("maximum", [index, self.call.graph.scalar(0, DType.I64)])  # NaN was made an integer
        one = self.call.graph.scalar(1, DType.I64)
        return [(index, under), (self.call.emit("minimum", [self.call.emit("add", [index, one]), last]), rest)]


def roi_align(call: Call) -> str:
    x, rois, batch = (call.input(k) for k in range(3))
    shape, mode = call.shape(x), call.string_attribute("mode", "avg")
    high, wide = (call.int_attribute(f"output_{n}", 1) for n in ("height", "width"))
    samples = call.int_attribute("sampling_ratio", 0)
    if len(shape) != 4 or call.rank(rois) != 2 or mode not in ("avg", "max"):
        raise InvalidNode(f"an input of rank {len(shape)}, regions of rank {call.rank(rois)}, mode {mode!r}")
    if samples <= 0:
        call.unsupported("sampling_ratio=0 is not supported: how many samples it takes depends on data")
    if not isinstance(shape[2], int) or not isinstance(shape[3], int):
        call.needs_shapes("its formulas depend on the extents of its input")
    dtype = DType.F64 if call.dtype(x) is DType.F64 else DType.F32
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    centred = call.string_attribute("coordinate_transformation_mode", default) == "half_pixel"
    wider = call.cast(rois, dtype)
    rows = _Side(call, wider, (1, 3), shape[2], high, samples, dtype, centred)
    columns = _Side(call, wider, (0, 2), shape[3], wide, samples, dtype, centred)
    images = call.emit("gather", [call.cast(x, dtype), batch], axis=0)
    made = _average(call, images, rows, columns) if mode == "avg" else _maximum(call, images, rows, columns)
    return call.cast(made, call.dtype(x))


def _average(call: Call, images: str, rows: _Side, columns: _Side) -> str:
    down = call.reshape(rows.weights(), (rows.regions, 1, rows.out, rows.size))
    across = call.reshape(columns.weights(), (rows.regions, 1, columns.out, columns.size))
    total = call.emit("matmul", [call.emit("matmul", [down, images]), call.transpose(across, (0, 1, 3, 2))])
    return call.emit("mul", [total, call.graph.scalar(1 / rows.samples**2, rows.dtype)])


def _maximum(call: Call, images: str, rows: _Side, columns: _Side) -> str:
    """The largest weighted corner of any sample, as the specification has it."""
    regions, channels = call.shape(images)[:2]
    flat = call.reshape(images, (regions, channels, rows.size * columns.size))
    down, across = rows.out * rows.samples, columns.out * columns.samples

    def grid(row: str, column: str, op: str) -> str:
        return call.emit(op, [call.reshape(row, (regions, down, 1)), call.reshape(column, (regions, 1, across))])

    def spread(value: str, channels: Dim) -> str:
        return call.emit("expand", [call.reshape(value, (regions, 1, down * across))],
                         shape=(regions, channels, down * across))  # fmt: skip

    best: str | None = None
    for (i, u), (j, v) in itertools.product(rows.taps(), columns.taps()):
        step = call.emit("mul", [i, call.graph.scalar(columns.size, DType.I64)])
        value = call.emit("gather_elements", [flat, spread(grid(step, j, "add"), channels)], axis=2)
        value = call.emit("mul", [value, spread(grid(u, v, "mul"), channels)])
        best = value if best is None else call.emit("maximum", [best, value])
    inside = spread(grid(rows.inside(), columns.inside(), "and"), channels)
    best = call.emit("where", [inside, best, call.graph.scalar(0.0, rows.dtype)])
    parted = (regions, channels, rows.out, rows.samples, columns.out, columns.samples)
    return call.emit("reduce_max", [call.reshape(best, parted)], axes=(3, 5), keepdims=False)


IMPORTS: tuple[Import, ...] = (
    Import("RoiAlign", (10, 16, 22), roi_align,
           ("slice", "mul", "sub", "add", "maximum", "minimum", "greater_equal", "less_equal", "and", "clip", "reshape",
            "abs", "where", "reduce_sum", "reduce_max", "floor", "cast", "gather", "gather_elements", "expand",
            "matmul", "transpose")),
)  # fmt: skip
