"""Between floats and the integers that stand for them: y = round(x / scale) + zero point, and back.

    quantize_linear(x, scale, zero_point?; dtype, axis, block)     dequantize_linear(x, scale, zero_point?; axis, block)

Scale and zero point are one number for the whole tensor, one for each position of `axis`, or (`block` above 0) one for
each run of `block` positions of `axis`: then they have the rank of x. Both are loops over points as any elementwise
operator. A quotient is rounded half to even; what lies outside of the integer type becomes its nearest end. Narrow
types (`narrow`) are quantised to as well; a narrow float is rounded by its own format, and `saturate` is for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, ceildiv, dims_text
from opfuse.ir.index import Index, quotient
from opfuse.ir.ops.broadcast import accumulator, extents_of, normal_axis, output_axes, position, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.narrow import FORMATS, INTEGER_BITS, array_to_narrow, decoded, encoded
from opfuse.ir.ops.pointwise import widen
from opfuse.ir.scalar import Operand, Scalar, apply, cast, const
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import DType, TensorType


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    bits = INTEGER_BITS.get(dtype, 8 * dtype.bytes)
    signed = dtype.is_signed or dtype in (DType.I4, DType.I2)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _number(x: Scalar) -> Scalar:
    """A quantised number in a type that is computed with: int32, float32 of narrow floats."""
    return decoded(x) if x.dtype.is_narrow else cast(x, DType.I32)


def _check_parameters(call: Call) -> None:
    """OperatorError where scale or zero point fit neither the tensor, nor its axis, nor its blocks."""
    x, scale = call.type(0), call.type(1)
    require_kind(scale, "f", "input 'scale'")
    if call.has(2) and call.shape(2) != scale.shape:
        raise OperatorError(f"scale [{dims_text(scale.shape)}] and zero point [{dims_text(call.shape(2))}] differ")
    if scale.shape in ((), (1,)):
        return
    axis, block = normal_axis(call["axis"], x.rank), call["block"]
    whole: tuple[Dim, ...] = (x.shape[axis],)
    if block:
        whole = tuple(ceildiv(d, block) if k == axis else d for k, d in enumerate(x.shape))
    if scale.shape != whole:
        raise OperatorError(f"scale [{dims_text(scale.shape)}] for axis {axis} of [{dims_text(x.shape)}]")


def _parameter_index(call: Call, axes: Sequence[Axis]) -> tuple[Index, ...]:
    """Where scale and zero point are read."""
    shape = call.shape(1)
    if shape in ((), (1,)):
        return (Index(),) * len(shape)
    axis, block = call["axis"], call["block"]
    if not block:
        return (position(axes[axis]),)
    blocks = quotient(position(axes[axis]), block, extents_of(*axes))
    return tuple(blocks if k == axis else position(a) for k, a in enumerate(axes))


def _reads(call: Call, axes: Sequence[Axis]) -> tuple[Access, ...]:
    at = _parameter_index(call, axes)
    given = [Access(0, tuple(position(a) for a in axes)), Access(1, at)]
    return (*given, Access(2, at)) if call.has(2) else tuple(given)


def spread(parameter: Any, x: Any, axis: int, block: int) -> Any:
    """Scale or zero point as an array that broadcasts against x."""
    if parameter.size == 1:
        return parameter.reshape(())
    if block:
        return np.repeat(parameter, block, axis=axis).take(np.arange(x.shape[axis]), axis=axis)
    return parameter.reshape(-1, *(1,) * (x.ndim - axis - 1))


QUANTISED = (DType.U8, DType.I8, DType.U16, DType.I16, *INTEGER_BITS, *FORMATS)


# ---- to integers -----------------------------------------------------------------------------------------------------
def _infer_quantize(call: Call) -> TensorType:
    require_kind(call.type(0), "fi", "input 'x'")
    _check_parameters(call)
    dtype = call["dtype"]
    if dtype not in QUANTISED:
        raise OperatorError(f"quantised to {dtype.value}, not to one of {', '.join(d.value for d in QUANTISED)}")
    if call.has(2) and call.type(2).dtype is not dtype:
        raise OperatorError(f"the zero point is {call.type(2).dtype.value}, the result {dtype.value}")
    return TensorType(dtype, call.shape(0))


def _quantize_structure(call: Call) -> Structure:
    """Computed in float32 (float64 where the scale is): integers of 16 bits and their sums are exact there."""
    axes, wide = output_axes(call.output.shape), accumulator(call.type(1).dtype)
    x, scale = (cast(Operand(k, call.type(k).dtype), wide) for k in (0, 1))
    dtype, steps = call["dtype"], apply("div", x, scale)
    if dtype not in FORMATS:
        steps = apply("rint", steps)
    if call.has(2):
        steps = apply("add", steps, cast(_number(Operand(2, dtype)), wide))
    if dtype in FORMATS:
        return Structure(axes, _reads(call, axes), encoded(steps, dtype, call["saturate"]))
    low, high = (const(end, wide) for end in integer_range(dtype))
    kept = apply("min", apply("max", steps, low), high)
    return Structure(axes, _reads(call, axes), encoded(kept, dtype) if dtype.is_narrow else cast(kept, dtype))


def _quantize_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x, scale, *rest = arrays
    scale, dtype = widen(scale), attrs["dtype"]
    with np.errstate(all="ignore"):
        steps = widen(x).astype(scale.dtype) / spread(scale, x, attrs["axis"], attrs["block"])
        steps = steps if dtype in FORMATS else np.rint(steps)
        if rest and rest[0] is not None:
            steps = steps + spread(rest[0], x, attrs["axis"], attrs["block"]).astype(scale.dtype)
        if dtype in FORMATS:
            return np.asarray(array_to_narrow(steps, dtype, attrs["saturate"]))
        low, high = integer_range(dtype)
        whole = np.nan_to_num(np.clip(steps, low, high)).astype(np.int32)
    return np.asarray(whole.astype(dtype.numpy))


# ---- and back --------------------------------------------------------------------------------------------------------
def _infer_dequantize(call: Call) -> TensorType:
    require_kind(call.type(0), "in", "input 'x'")
    _check_parameters(call)
    if call.has(2) and call.type(2).dtype is not call.type(0).dtype:
        raise OperatorError(f"the zero point is {call.type(2).dtype.value}, the input {call.type(0).dtype.value}")
    return TensorType(call.type(1).dtype, call.shape(0))


def _dequantize_structure(call: Call) -> Structure:
    axes, dtype = output_axes(call.output.shape), call.type(1).dtype
    wide = accumulator(dtype)
    number = _number(Operand(0, call.type(0).dtype))
    if call.has(2):
        number = apply("sub", number, _number(Operand(2, call.type(2).dtype)))
    body = apply("mul", cast(number, wide), cast(Operand(1, dtype), wide))
    return Structure(axes, _reads(call, axes), cast(body, dtype))


def _dequantize_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x, scale, *rest = arrays
    exact = np.float64 if DType.of(x.dtype) in FORMATS else np.int64
    number = x.astype(exact)
    if rest and rest[0] is not None:
        number = number - spread(rest[0], x, attrs["axis"], attrs["block"]).astype(exact)
    wide = widen(scale)
    return np.asarray(number.astype(wide.dtype) * spread(wide, x, attrs["axis"], attrs["block"])).astype(scale.dtype)


# ---- table -----------------------------------------------------------------------------------------------------------
_X = np.array([[-300.5, -1.25, -0.5, 0, 0.5, 1.5, np.inf], [2.5, 127, 254.9, 1e9, -1e9, -np.inf, 3.5]], np.float32)
_SCALES = np.array([0.5, 2.0], np.float32)
_BLOCKS = np.array([[0.5, 1, 2, 4], [1, 0.25, 8, 3]], np.float32)


def _zero(dtype: Any, *values: int) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], dtype)


_QUANTIZE_SAMPLES = (
    Sample((_X, np.array(0.5, np.float32), _zero(np.uint8, 128)), {"dtype": DType.U8}),
    Sample((_X, np.array(1.5, np.float32), _zero(np.int8, -3)), {"dtype": DType.I8}),
    Sample((_X, np.array([2.0], np.float32), None), {"dtype": DType.U8}),
    Sample((_X, _SCALES, _zero(np.int16, 7, -30000)), {"dtype": DType.I16, "axis": 0}),
    Sample((_X, _BLOCKS, np.arange(8, dtype=np.uint16).reshape(2, 4)), {"dtype": DType.U16, "axis": 1, "block": 2}),
    Sample((np.array([-7, 300, 12], np.int32), np.array(2, np.float32), None), {"dtype": DType.I8, "axis": 0}),
    Sample((np.linspace(-9, 9, 12).astype(np.float16).reshape(3, 4), np.array(0.25, np.float16), None),
           {"dtype": DType.I8}),
    Sample(((2, 0), np.array(1, np.float32), None), {"dtype": DType.I8}),
    *(Sample((_X, np.array(0.5, np.float32), None), {"dtype": d}) for d in (*INTEGER_BITS, *FORMATS)),
    Sample((_X, _SCALES, _zero(DType.I4.numpy, 3, -2)), {"dtype": DType.I4, "axis": 0}),
    Sample((_X, np.array(0.5, np.float32), None), {"dtype": DType.F8E5M2, "saturate": False}),
)  # fmt: skip
_BYTES = np.array([[0, 255, 128, 7, 100, 3, 77], [1, 2, 3, 4, 5, 6, 9]], np.uint8)
_DEQUANTIZE_SAMPLES = (
    Sample((_BYTES, np.array(0.1, np.float32), _zero(np.uint8, 128))),
    Sample((_BYTES.view(np.int8), np.array([0.1], np.float32), None)),
    Sample((_BYTES, _SCALES, _zero(np.uint8, 7, 250)), {"axis": 0}),
    Sample((_BYTES.astype(np.int16), _BLOCKS, -np.arange(8, dtype=np.int16).reshape(2, 4)), {"axis": 1, "block": 2}),
    Sample((np.array([-70000, 5], np.int32), np.array(0.125, np.float32), None)),
    Sample((_BYTES, np.array(0.1, np.float16), _zero(np.uint8, 3))),
    *(Sample((_BYTES.astype(d.numpy), np.array(0.5, np.float32), None)) for d in (*INTEGER_BITS, *FORMATS)),
    Sample((_BYTES.astype(DType.U4.numpy), _SCALES, _zero(DType.U4.numpy, 7, 15)), {"axis": 0}),
)
_ATTRIBUTES = {"axis": 1, "block": 0}
OPERATORS: tuple[Operator, ...] = (
    Operator("quantize_linear", Kind.STRUCTURED, ("x", "scale", "zero_point?"), _infer_quantize, _quantize_oracle,
             {"dtype": REQUIRED, "saturate": True, **_ATTRIBUTES}, _quantize_structure, samples=_QUANTIZE_SAMPLES),
    Operator("dequantize_linear", Kind.STRUCTURED, ("x", "scale", "zero_point?"), _infer_dequantize,
             _dequantize_oracle, _ATTRIBUTES, _dequantize_structure, samples=_DEQUANTIZE_SAMPLES),
)  # fmt: skip
