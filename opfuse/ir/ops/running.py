"""Running sums and products: a recurrence without weights, one step for each position of an axis.

    y = cumsum(x; axis, exclusive, reverse)       y[.., t, ..] = x[.., 0, ..] + ... + x[.., t, ..]
    y = cumprod(x; axis, exclusive, reverse)

`exclusive` leaves x[.., t, ..] itself out, `reverse` goes from the last position to the first. Half precision is summed
in float32 and rounded at every position.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from opfuse.ir.index import Index
from opfuse.ir.ops.broadcast import accumulator, normal_axis, position, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, Sample
from opfuse.ir.ops.pointwise import array_oracle
from opfuse.ir.scalar import apply, cast, const
from opfuse.ir.scan import Result, Scan, ScanBuilder
from opfuse.ir.structure import Axis
from opfuse.ir.types import TensorType


def _infer(call: Call) -> TensorType:
    require_kind(call.type(0), "fi", "the input")
    normal_axis(call["axis"], call.type(0).rank)
    return call.type(0)


def _array(first: int, attrs: Mapping[str, Any], x: Any) -> Any:
    axis, kind = attrs["axis"], x.dtype
    x = x.astype(np.float32) if kind.itemsize == 2 and kind.kind not in "iu" else x
    x = np.flip(x, axis) if attrs["reverse"] else x
    y = (np.cumsum if first == 0 else np.cumprod)(x, axis=axis, dtype=x.dtype)
    if attrs["exclusive"]:
        start = np.full_like(np.take(x, range(min(1, x.shape[axis])), axis), first)
        y = np.concatenate([start, np.take(y, range(x.shape[axis] - 1), axis)], axis)
    return (np.flip(y, axis) if attrs["reverse"] else y).astype(kind)


def _steps(first: int, call: Call) -> Scan:
    shape, axis, dtype = call.shape(0), call["axis"], call.type(0).dtype
    time, wide = Axis("t", shape[axis]), accumulator(dtype)
    others = {k: Axis(f"i{k}", d) for k, d in enumerate(shape) if k != axis}
    here = Index(((time.index.terms[0][0], -1),), time.extent - 1) if call["reverse"] else time.index
    place = tuple(position(others[k]) if k in others else here for k in range(len(shape)))
    b = ScanBuilder(time, tuple(others.values()) or (Axis("one", 1),))
    before = b.carry(const(first, wide), wide)
    element = cast(b.read(0, place, dtype), wide)
    after = b.value(apply("add" if first == 0 else "mul", before, element))
    b.follow(before, after)
    shown = b.value(cast(before if call["exclusive"] else after, dtype))
    scan = b.build((Result(shown.index, place),))
    scan.check()
    return scan


def _operator(name: str, first: int) -> Operator:
    return Operator(
        name, Kind.PHASED, ("x",), _infer, array_oracle(partial(_array, first)),
        {"axis": REQUIRED, "exclusive": False, "reverse": False},
        scan=partial(_steps, first),
        flops=lambda call: call.type(0).elements,
        samples=(
            Sample(((2, 5),), {"axis": 1}),
            Sample(((3, 4, 17),), {"axis": 1}),
            Sample(((3, 4, 17),), {"axis": 0, "reverse": True}),
            Sample(((7,),), {"axis": 0, "exclusive": True}),
            Sample(((1, 33, 1),), {"axis": 1, "exclusive": True, "reverse": True}),
            Sample((np.array([1, 2, 3]),), {"axis": 0, "exclusive": True}),
            Sample((np.array([[1, 2, 3], [4, 5, 6]], np.int32),), {"axis": 0, "reverse": True, "exclusive": True}),
            Sample((np.array([[1, np.inf], [-np.inf, 2], [3, np.nan]], np.float32),), {"axis": 0}),
            Sample((np.array([[0.5, 2, 0.25]], np.float16),), {"axis": 1}),
        ),
    )  # fmt: skip


OPERATORS: tuple[Operator, ...] = (_operator("cumsum", 0), _operator("cumprod", 1))
