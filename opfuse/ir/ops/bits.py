"""Integers as rows of bits: logic bit by bit, shifts, and numbers reinterpreted by their bits.

    bit_and bit_or bit_xor bit_not   shift_left shift_right   bit_cast(x; source, to)

A shift by a negative count, or by as many bits as the type has, leaves nothing but the sign: -1 for a negative number
to the right, otherwise 0. A shift of a signed number to the right brings copies of its sign in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.ops.broadcast import access, output_axes
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import pointwise
from opfuse.ir.scalar import Operand, apply
from opfuse.ir.structure import Structure
from opfuse.ir.types import DType, TensorType


def _binary(name: str, scalar: str, function: Any, samples: tuple[Sample, ...] = ()) -> Operator:
    return pointwise(name, lambda attrs, a, b: apply(scalar, a, b), lambda attrs, a, b: function(a, b),
                     inputs=("a", "b"), kinds="i", samples=samples)  # fmt: skip


# ---- shifts ----------------------------------------------------------------------------------------------------------
def _shift_left(a: Any, count: Any) -> Any:
    """One bit at a time, as many times as the count says."""
    width = 8 * a.dtype.itemsize
    steps = np.where((count < 0) | (count >= width), width, count).astype(np.int64)
    for k in range(width):
        a = np.where(steps > k, a + a, a)
    return a


def _shift_right(a: Any, count: Any) -> Any:
    """Halved, towards minus infinity, as many times as the count says."""
    width = 8 * a.dtype.itemsize
    steps = np.where((count < 0) | (count >= width), width, count).astype(np.int64)
    for k in range(width):
        a = np.where(steps > k, a // a.dtype.type(2), a)
    return a


def _shift_samples() -> tuple[Sample, ...]:
    counts = np.array([0, 1, 3, 7, 8, 31, 63, 64, 100, -1, -8, 2])
    numbers = np.array([-8, 5, -128, 127, -1, 77, -3, 9, -9, -2, 4, 0])
    signed = [Sample((numbers.astype(t), counts.astype(t))) for t in (np.int8, np.int16, np.int32, np.int64)]
    unsigned = [Sample((np.abs(numbers).astype(t), np.abs(counts).astype(t))) for t in (np.uint8, np.uint32, np.uint64)]
    return (*signed, *unsigned, Sample((np.array([[1], [2]], np.uint16), np.array([3, 15, 16], np.uint16))))


# ---- the same bits as another type -----------------------------------------------------------------------------------
def _infer_bit_cast(call: Call) -> TensorType:
    source, to = DType(call["source"]), DType(call["to"])
    if call.type(0).dtype is not source:
        raise OperatorError(f"the input is {call.type(0).dtype.value}, not {source.value}")
    if source.bytes != to.bytes:
        raise OperatorError(f"{source.value} and {to.value} differ in size")
    return TensorType(to, call.shape(0))


def _bit_cast_structure(call: Call) -> Structure:
    """A bool is a byte of 0 or 1; a byte as a bool is true unless it is 0."""
    axes, source, to = output_axes(call.output.shape), call.type(0).dtype, call.output.dtype
    x = Operand(0, source)
    through = apply("cast", x, dtype=to) if DType.BOOL in (source, to) else apply("bits", x, dtype=to)
    return Structure(axes, (access(0, call.shape(0), axes),), x if source is to else through)


def _bit_cast_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    data = bytearray(arrays[0].astype(DType(attrs["source"]).numpy).tobytes())
    to = DType(attrs["to"])
    made = np.frombuffer(data, np.uint8) != 0 if to is DType.BOOL else np.frombuffer(data, to.numpy)
    return made.reshape(arrays[0].shape)


def _as(array: Any, to: DType) -> Sample:
    return Sample((array,), {"source": DType.of(array.dtype).value, "to": to.value})


_BIT_CAST = Operator(
    "bit_cast", Kind.STRUCTURED, ("x",), _infer_bit_cast, _bit_cast_oracle,
    dict.fromkeys(("source", "to"), REQUIRED),  # by name: also where all is computed in float64, they are these
    _bit_cast_structure,
    samples=(
        _as(np.array([[1.5, -0.0, np.inf], [3e38, 1e-3, -7]], np.float32), DType.I32),
        _as(np.array([0x3F800000, -1082130432, 0x40490FDB], np.int32), DType.F32),
        _as(np.array([0.5, -2.5]), DType.I64),
        _as(np.array([0.5, -2.5, 65504], np.float16), DType.U16),
        _as(np.array([0x3C00, 0xC500], np.uint16), DType.F16),
        _as(np.array([0x3F80, 0xC0A0], np.uint16), DType.BF16),
        _as(np.array(-5, np.int8), DType.U8),
        _as(np.array([True, False]), DType.U8),
        _as(np.array([3, 0], np.uint8), DType.BOOL),
    ),
)  # fmt: skip

OPERATORS: tuple[Operator, ...] = (
    _binary("bit_and", "and", np.bitwise_and),
    _binary("bit_or", "or", np.bitwise_or),
    _binary("bit_xor", "xor", np.bitwise_xor),
    pointwise("bit_not", lambda attrs, x: apply("not", x), lambda attrs, x: np.invert(x), kinds="i"),
    _binary("shift_left", "shl", _shift_left, _shift_samples()),
    _binary("shift_right", "shr", _shift_right, _shift_samples()),
    _BIT_CAST,
)
