"""Resampling: elements repeated, or mixed out of neighbours, along axes.

    repeat(x; repeats)                       y[i] = x[i // repeats]: nearest neighbours by whole factors
    resample(x, places, weights, ...; axes)  y[i] = sum over taps t of weights[t, i] * x[places[t, i]]

`resample` has two inputs for each of its axes: whole numbers of shape [taps, size] that say where to read, and factors
of the same shape. Linear interpolation has 2 taps, cubic 4. All taps of all axes are summed in one formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim
from opfuse.ir.index import Gathered, Index, quotient
from opfuse.ir.ops.broadcast import accumulator, extents_of, normal_axis, output_axes, position, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import array_oracle
from opfuse.ir.scalar import Operand, Scalar, apply, cast
from opfuse.ir.structure import Access, Structure
from opfuse.ir.types import DType, TensorType

MOST_TAPS = 16  # of all axes together: each is a read of the formula


# ---- repeat ----------------------------------------------------------------------------------------------------------
def _infer_repeat(call: Call) -> TensorType:
    repeats = tuple(call["repeats"])
    if len(repeats) != call.type(0).rank:
        raise OperatorError(f"{len(repeats)} repeats for {call.type(0).rank} dimensions")
    if any(not isinstance(r, int) or r < 1 for r in repeats):
        raise OperatorError(f"repeats {repeats} must be positive whole numbers")
    return TensorType(call.type(0).dtype, tuple(d * r for d, r in zip(call.shape(0), repeats, strict=True)))


def _repeat_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    extents = extents_of(*axes)
    index = tuple(quotient(position(a), r, extents) for a, r in zip(axes, call["repeats"], strict=True))
    return Structure(axes, (Access(0, index),), Operand(0, call.output.dtype))


def _repeat_array(attrs: Mapping[str, Any], x: Any) -> Any:
    for axis, count in enumerate(attrs["repeats"]):
        x = np.repeat(x, count, axis)
    return x


_REPEAT = Operator(
    "repeat",
    Kind.STRUCTURED,
    ("x",),
    _infer_repeat,
    lambda attrs, arrays: np.asarray(_repeat_array(attrs, arrays[0])),
    {"repeats": REQUIRED},
    _repeat_structure,
    flops=lambda call: 0,
    samples=(
        Sample(((2, 3),), {"repeats": (1, 2)}),
        Sample(((1, 5, 4, 3),), {"repeats": (1, 2, 3, 1)}),
        Sample(((1, 3, 5, 4),), {"repeats": (1, 1, 2, 2)}),
        Sample(((1, 17),), {"repeats": (3, 4)}),
        Sample(((),), {"repeats": ()}),
        Sample((np.arange(6).reshape(2, 3),), {"repeats": (2, 2)}),
        Sample(((0, 3),), {"repeats": (2, 2)}),
    ),
)


# ---- resample --------------------------------------------------------------------------------------------------------
def _tables(call: Call) -> list[tuple[int, TensorType, TensorType]]:
    """(axis, type of its places, type of its weights); OperatorError where they do not fit."""
    axes = tuple(call["axes"])
    if len(call.inputs) != 1 + 2 * len(axes) or not axes or len(set(axes)) != len(axes):
        raise OperatorError(f"{len(call.inputs) - 1} tables for axes {axes}: places and weights for each, once")
    found = []
    for k, axis in enumerate(axes):
        places, weights = call.type(1 + 2 * k), call.type(2 + 2 * k)
        require_kind(places, "i", f"places of axis {axis}")
        if places.rank != 2 or places.shape != weights.shape or not isinstance(places.shape[0], int):
            raise OperatorError(f"places {places} and weights {weights} of axis {axis} must both be [taps, size]")
        require_kind(weights, "f", f"weights of axis {axis}")
        found.append((normal_axis(axis, call.type(0).rank), places, weights))
    return found


def _infer_resample(call: Call) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    shape, taps = list(call.shape(0)), 1
    for axis, places, _ in _tables(call):
        shape[axis] = places.shape[1]
        taps *= _taps(places)
    if taps > MOST_TAPS:
        raise OperatorError(f"{taps} taps together: more than {MOST_TAPS}; resample axis by axis")
    return TensorType(call.type(0).dtype, tuple(shape))


def _taps(places: TensorType) -> int:
    assert isinstance(places.shape[0], int)
    return places.shape[0]


def _resample_structure(call: Call) -> Structure:
    axes, dtype, wide = output_axes(call.output.shape), call.output.dtype, accumulator(call.output.dtype)
    reads: list[Access] = []
    along: dict[int, list[tuple[int, int]]] = {}  # axis -> for each tap the numbers of its two reads
    kinds: dict[int, DType] = {}
    for k, (axis, places, weights) in enumerate(_tables(call)):
        kinds[axis] = weights.dtype
        for t in range(_taps(places)):
            at = (Index((), t), position(axes[axis]))
            along.setdefault(axis, []).append((len(reads), len(reads) + 1))
            reads += [Access(1 + 2 * k, at), Access(2 + 2 * k, at)]
    total: Scalar | None = None
    for taps in itertools.product(*along.values()):
        index = [position(a) for a in axes]
        factors: list[Scalar] = []
        for axis, (place, weight) in zip(along, taps, strict=True):
            index[axis] = Index(((Gathered(place), 1),))
            factors.append(cast(Operand(weight, kinds[axis]), wide))
        value = cast(Operand(len(reads), dtype), wide)
        reads.append(Access(0, tuple(index)))
        term = apply("mul", value, reduce(lambda a, b: apply("mul", a, b), factors))
        total = term if total is None else apply("add", total, term)
    assert total is not None
    return Structure(axes, tuple(reads), cast(total, dtype))


def _resample_array(attrs: Mapping[str, Any], x: Any, *tables: Any) -> Any:
    """Axis after axis. Elements that no tap reads stay out: a NaN must not spread through weights of zero."""
    for k, axis in enumerate(attrs["axes"]):
        places, weights = tables[2 * k], tables[2 * k + 1].astype(x.dtype)
        read = np.moveaxis(x, axis, 0)[places]  # [taps, size, other axes...]
        x = np.moveaxis(np.einsum("ts,ts...->s...", weights, read), 0, axis)
    return x


def _resample_flops(call: Call) -> Dim:
    taps = 1
    for _, places, _ in _tables(call):
        taps *= _taps(places)
    return call.output.elements * (taps * (1 + len(call["axes"])))


def _table(*rows: tuple[float, ...], dtype: DType = DType.F32) -> np.ndarray:
    return np.array(rows, dtype.numpy)


_LOW = (_table((0, 0, 1, 1, 2), (0, 1, 1, 2, 2), dtype=DType.I64),
        _table((1, 0.75, 0.25, 0.5, 1), (0, 0.25, 0.75, 0.5, 0)))  # fmt: skip
_ONE = (_table((2, 0, 1, 3), dtype=DType.I64), _table((1, 0, 2, -1)))
_RESAMPLE = Operator(
    "resample",
    Kind.STRUCTURED,
    ("x", "tables*"),
    _infer_resample,
    array_oracle(_resample_array),
    {"axes": REQUIRED},
    _resample_structure,
    flops=_resample_flops,
    samples=(
        Sample(((2, 3), *_LOW), {"axes": (1,)}),
        Sample(((1, 3, 4, 5), *_LOW, *_ONE), {"axes": (1, 2)}),
        Sample(((1, 2, 3, 4), *_LOW, *_ONE), {"axes": (2, 3)}),
        Sample((np.array([[1, 2, np.float16(0.5)]], np.float16), *_LOW), {"axes": (1,)}),
        Sample((np.array([[1, 2, np.nan], [np.inf, 1, 0]], np.float32), *_LOW), {"axes": (1,)}),
    ),
)

OPERATORS: tuple[Operator, ...] = (_REPEAT, _RESAMPLE)
