"""Quantised operators: conversions, and integer products written out with their zero points.

QuantizeLinear-13(x, s [C], z [C], axis=1)      -> quantize_linear(x, s, z; axis=1)
MatMulInteger(a u8, b i8, za, zb)               -> matmul(cast(a) - cast(za), cast(b) - cast(zb)), all int32
MatMulInteger(a u8, constant b, za, zb)         -> int32(matmul(float(a) - float(za), constant floats)) in exact parts
QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)     -> quantize_linear(float(the same product) * (sa * sb / sy), 1, zy)
QLinearConv(..., bias)                          -> the same of a convolution, the bias added to its int32 sums
QLinearAdd(a, sa, za, b, sb, zb, sy, zy)        -> quantize_linear(dequantize_linear(a) + dequantize_linear(b))
DynamicQuantizeLSTM(x, w i8, r i8, ...)         -> lstm(x, float weights, ...)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import
from opfuse.frontends.onnx.imports.recurrent import recurrence
from opfuse.frontends.onnx.imports.window import convolution
from opfuse.frontends.onnx.types import ElementTypeError, element_type
from opfuse.ir.ops.quantisation import integer_range
from opfuse.ir.ops.recurrent import LSTM
from opfuse.ir.types import DType

EXACT = 1 << 24  # below it float32 holds every whole number
MOST_PARTS = 8  # products that one is parted into so that each is exact
_VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)


# ---- conversions -----------------------------------------------------------------------------------------------------
def _granularity(call: Call) -> dict[str, int]:
    """The axis and the block; the axis counts only where the scale is no single number."""
    x, scale = call.input(0), call.input(1)
    if call.shape(scale) in ((), (1,)):
        return {"axis": 0, "block": 0}
    if call.version == 10:
        raise InvalidNode("its scale is not one number")
    axis = call.axis(call.int_attribute("axis", 1), call.rank(x))
    block = call.int_attribute("block_size", 0) if call.version >= 21 else 0
    if block < 0:
        raise InvalidNode(f"its attribute 'block_size' is {block}")
    return {"axis": axis, "block": block if call.rank(scale) == call.rank(x) and block else 0}


def _type_attribute(call: Call, name: str) -> DType | None:
    number = call.int_attribute(name, 0)
    try:
        return element_type(number) if number else None
    except ElementTypeError as error:
        call.unsupported(str(error))


def _parameters(call: Call) -> tuple[str, str | None]:
    """Scale and zero point; single numbers in one form."""
    scale, zero = call.input(1), call.optional(2)
    if call.shape(scale) not in ((), (1,)):
        return scale, zero
    return call.reshape(scale, ()), None if zero is None else call.reshape(zero, ())


def quantize_linear(call: Call) -> str:
    x, (scale, zero) = call.input(0), _parameters(call)
    dtype = call.dtype(zero) if zero is not None else _type_attribute(call, "output_dtype") or DType.U8
    wide = _type_attribute(call, "precision") or call.dtype(scale)
    saturate = bool(call.int_attribute("saturate", 1))
    return call.emit("quantize_linear", [x, call.cast(scale, wide), zero], dtype=dtype, saturate=saturate,
                     **_granularity(call))  # fmt: skip


def dequantize_linear(call: Call) -> str:
    x, (scale, zero) = call.input(0), _parameters(call)
    wide = _type_attribute(call, "output_dtype") or call.dtype(scale)
    return call.emit("dequantize_linear", [x, call.cast(scale, wide), zero], **_granularity(call))


# ---- integer products ------------------------------------------------------------------------------------------------
def _centred(
    call: Call, value: str, zero: str | None, axis: int | None = None, dtype: DType = DType.I32
) -> str:  # fmt: skip
    """The whole numbers that quantised ones stand for; a zero point of rank 1 counts along `axis`."""
    whole = call.cast(value, dtype)
    if zero is None:
        return whole
    if call.dtype(zero) is not call.dtype(value):
        raise InvalidNode(f"a zero point is {call.dtype(zero).value}, and its tensor {call.dtype(value).value}")
    array = call.contents.array(zero)
    if array is not None and not array.any():
        return whole
    return call.emit("sub", [whole, call.cast(_along(call, zero, axis, call.rank(value)), dtype)])


def _along(call: Call, parameter: str, axis: int | None, rank: int) -> str:
    """A parameter of one number as it broadcasts, one of rank 1 along an axis of `rank`, any other as it is."""
    shape = call.shape(parameter)
    if shape in ((), (1,)):
        return call.reshape(parameter, ())
    if len(shape) == 1 and axis is not None:
        return call.reshape(parameter, tuple(shape[0] if k == axis else 1 for k in range(rank)))
    return parameter


def _known(call: Call, weight: str, zero: str | None, axis: int) -> np.ndarray | None:
    """The int32 numbers of a weight, where it and its zero point are constants."""
    array, shift = call.contents.array(weight), call.contents.array(zero) if zero is not None else np.zeros(())
    if array is None or shift is None:
        return None
    if shift.ndim == 1 and shift.size > 1:
        shift = shift.reshape(tuple(-1 if k == axis else 1 for k in range(array.ndim)))
    return np.asarray(array.astype(np.int32) - (shift.reshape(()) if shift.size == 1 else shift).astype(np.int32))


def _largest(call: Call, value: str, zero: str | None) -> int:
    """The largest distance of a quantised number from its zero point."""
    low, high = integer_range(call.dtype(value))
    known = call.contents.array(zero) if zero is not None else np.zeros((), np.int64)
    if known is None or not known.size:
        return high - low
    return max(int(known.max()) - low, high - int(known.min()))


def exact_parts(sizes: np.ndarray, largest: int) -> list[tuple[int, int]]:
    """Runs of rows of [terms, results] whose sums of products float32 holds exactly, whatever their order.

    `sizes` are the weights' absolute values, `largest` bounds what they are multiplied with: no sum of a run's products
    reaches 2^24. There are no runs where one row does already.
    """
    parts, start, sums = [], 0, np.zeros(sizes.shape[1], np.int64)
    products = sizes.astype(np.int64) * largest
    if int(products.max(initial=0)) >= EXACT:
        return []
    for k, row in enumerate(products):
        if int((sums + row).max(initial=0)) >= EXACT:
            parts.append((start, k))
            start, sums = k, np.zeros_like(sums)
        sums = sums + row
    return [*parts, (start, len(sizes))]


def _product(call: Call, a: str, a_zero: str | None, b: str, b_zero: str | None) -> str:
    """Zero points of a stand for rows, those of b for columns. A constant b is multiplied in exact floats."""
    rows, known = max(call.rank(a) - 2, 0), _known(call, b, b_zero, call.rank(b) - 1)
    parts = exact_parts(np.abs(known), _largest(call, a, a_zero)) if known is not None and known.ndim == 2 else []
    if known is None or not 0 < len(parts) <= MOST_PARTS:
        return call.emit("matmul", [_centred(call, a, a_zero, rows), _centred(call, b, b_zero, call.rank(b) - 1)])
    x = _centred(call, a, a_zero, rows, DType.F32)
    return _added(call, [
        call.emit("matmul", [_part(call, x, call.rank(x) - 1, *part), _constant(call, known[slice(*part)])])
        for part in parts
    ])  # fmt: skip


def _convolved(call: Call, x: str, x_zero: str | None, w: str, w_zero: str | None) -> str:
    """The int32 sums of a convolution, in exact floats where the weight is a constant."""
    known, parts = _known(call, w, w_zero, 0), list[tuple[int, int]]()
    if known is not None and known.ndim > 2:
        sizes = np.abs(known).reshape(*known.shape[:2], -1).sum(-1).T
        parts = exact_parts(sizes, _largest(call, x, x_zero))
    grouped = call.int_attribute("group", 1) != 1
    if known is None or not 0 < len(parts) <= (1 if grouped else MOST_PARTS):
        return convolution(call, _centred(call, x, x_zero), _centred(call, w, w_zero, 0))
    centred = _centred(call, x, x_zero, None, DType.F32)
    if len(parts) == 1:
        return _added(call, [convolution(call, centred, _constant(call, known))])
    return _added(call, [
        convolution(call, _part(call, centred, 1, *part), _constant(call, known[:, slice(*part)])) for part in parts
    ])  # fmt: skip


def _constant(call: Call, numbers: np.ndarray) -> str:
    return call.graph.add_constant(np.ascontiguousarray(numbers.astype(np.float32)))


def _part(call: Call, x: str, axis: int, start: int, stop: int) -> str:
    shape = call.shape(x)
    if (start, stop) == (0, shape[axis]):
        return x
    starts = tuple(start if k == axis else 0 for k in range(len(shape)))
    stops = tuple(stop if k == axis else d for k, d in enumerate(shape))
    return call.emit("slice", [x], starts=starts, stops=stops, steps=(1,) * len(shape))


def _added(call: Call, sums: list[str]) -> str:
    """Exact floats as int32, summed."""
    total = call.cast(sums[0], DType.I32)
    for part in sums[1:]:
        total = call.emit("add", [total, call.cast(part, DType.I32)])
    return total


def matmul_integer(call: Call) -> str:
    return _product(call, call.input(0), call.optional(2), call.input(1), call.optional(3))


def conv_integer(call: Call) -> str:
    return _convolved(call, call.input(0), call.optional(2), call.input(1), call.optional(3))


def _requantised(call: Call, total: str, factor: str, zero: str) -> str:
    """round(total * factor) + zero point, the factor in float32 whatever the scales are."""
    made = call.emit("mul", [call.cast(total, DType.F32), factor])
    one = call.graph.scalar(1.0, DType.F32)
    return call.emit("quantize_linear", [made, one, call.reshape(zero, ())], dtype=call.dtype(zero), axis=0, block=0)


def _factor(call: Call, a_scale: str, b_scale: str, y_scale: str) -> str:
    a, b, y = (call.cast(s, DType.F32) for s in (a_scale, b_scale, y_scale))
    return call.emit("div", [call.emit("mul", [a, b]), y])


def qlinear_matmul(call: Call) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call.input(k) for k in range(8))
    total = _product(call, a, a_zero, b, b_zero)
    rank = call.rank(total)
    a_scale, b_scale = _along(call, a_scale, rank - 2, rank), _along(call, b_scale, rank - 1, rank)
    return _requantised(call, total, _factor(call, a_scale, b_scale, call.reshape(y_scale, ())), y_zero)


def qlinear_conv(call: Call) -> str:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call.input(k) for k in range(8))
    total = _convolved(call, x, x_zero, w, w_zero)
    if (bias := call.optional(8)) is not None:
        total = call.emit("add", [total, _along(call, bias, 1, call.rank(x))])
    w_scale = _along(call, w_scale, 1, call.rank(x))
    factor = _factor(call, call.reshape(x_scale, ()), w_scale, call.reshape(y_scale, ()))
    return _requantised(call, total, factor, y_zero)


# ---- ONNX Runtime's own ----------------------------------------------------------------------------------------------
def _numbers(call: Call, k: int) -> str:
    """What inputs k (the tensor), k + 1 (its scale) and k + 2 (its zero point) stand for, in floats."""
    scale = call.reshape(call.input(k + 1), ())
    zero = call.reshape(call.input(k + 2), ()) if call.has(k + 2) else None
    return call.emit("dequantize_linear", [call.input(k), scale, zero], axis=0, block=0)


def _quantised(call: Call, y: str, k: int, like: str) -> str:
    """In the scale of input k and the zero point of input k + 1; of the type of `like` where that is left out."""
    zero = call.reshape(call.input(k + 1), ()) if call.has(k + 1) else None
    dtype = call.dtype(zero if zero is not None else like)
    scale = call.reshape(call.input(k), ())
    return call.emit("quantize_linear", [y, scale, zero], dtype=dtype, axis=0, block=0)


def qlinear_binary(call: Call, ir: str) -> str:
    return _quantised(call, call.emit(ir, [_numbers(call, 0), _numbers(call, 3)]), 6, call.input(0))


def qlinear_unary(call: Call, ir: str) -> str:
    attrs = {"alpha": call.float_attribute("alpha", 0.01)} if ir == "leaky_relu" else {}
    return _quantised(call, call.emit(ir, [_numbers(call, 0)], **attrs), 3, call.input(0))


def qlinear_global_average_pool(call: Call) -> str:
    x, last = _numbers(call, 0), bool(call.int_attribute("channels_last", 0))
    rank = call.rank(x)
    axes = tuple(range(1, rank - 1) if last else range(2, rank))
    return _quantised(call, call.emit("reduce_mean", [x], axes=axes, keepdims=True), 3, call.input(0))


def qlinear_concat(call: Call) -> str:
    """Inputs are the result's scale and zero point, then a tensor, its scale and its zero point for each part."""
    parts = [_numbers(call, k) for k in range(2, len(call.inputs), 3)]
    axis = call.axis(call.int_attribute("axis"), call.rank(parts[0]))
    return _quantised(call, call.emit("concat", parts, axis=axis), 0, call.input(2))


def matmul_integer_to_float(call: Call) -> str:
    """The integer product times both scales, which may be a column's each."""
    a, b, a_scale, b_scale = (call.input(k) for k in range(4))
    total = call.cast(_product(call, a, call.optional(4), b, call.optional(5)), call.dtype(a_scale))
    rank = call.rank(total)
    factor = call.emit("mul", [call.reshape(a_scale, ()), _along(call, b_scale, rank - 1, rank)])
    made = call.emit("mul", [total, factor])
    return call.emit("add", [made, call.input(6)]) if call.has(6) else made


# ---- recurrent -------------------------------------------------------------------------------------------------------
def dynamic_quantize_lstm(call: Call) -> tuple[str | None, ...]:
    """An LSTM of the numbers that its integer weights [direction, input, 4 hidden] stand for.

    The runtime that the operator is from rounds the input and each step's state to 8 bits too; here they stay as they
    are, so that answers differ by that rounding.
    """
    weights = [_dequantised_weight(call, k, 8 + 2 * (k - 1)) for k in (1, 2)]
    return recurrence(replace(call, inputs=(call.input(0), *weights, *call.inputs[3:8])), "lstm", LSTM)


def _dequantised_weight(call: Call, k: int, parameters: int) -> str:
    """[direction, 4 hidden, input]; scale and zero point for each direction, or for each of its columns too."""
    weight, scale = call.input(k), call.input(parameters)
    if call.rank(weight) != 3:
        raise InvalidNode(f"its input {k} has rank {call.rank(weight)}, and must have rank 3")
    zero = call.optional(parameters + 1)
    array, factor = call.contents.array(weight), call.contents.array(scale)
    shift = call.contents.array(zero) if zero is not None else np.zeros((), np.int8)
    if array is not None and factor is not None and shift is not None:
        return call.graph.add_constant(np.ascontiguousarray(_scaled(array, factor, shift).transpose(0, 2, 1)))
    parts = call.shape(scale)
    shape = (*parts[:1], 1, *(parts[1:] or (1,)))
    numbers = _centred(call, weight, None if zero is None else call.reshape(zero, shape))
    made = call.emit("mul", [call.cast(numbers, call.dtype(scale)), call.reshape(scale, shape)])
    return call.transpose(made, (0, 2, 1))


def _scaled(weight: np.ndarray, factor: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """[direction, input, 4 hidden] in floats, whatever the compiled model would do with so large a constant."""
    shape = (factor.shape[0], 1, -1)
    numbers = weight.astype(np.int32) - (shift.reshape(shape) if shift.ndim else shift).astype(np.int32)
    return np.asarray(numbers.astype(factor.dtype) * factor.reshape(shape))


_CENTRED = ("cast", "sub", "reshape", "slice", "add")
_BACK = ("dequantize_linear", "quantize_linear", "reshape")
_FACTOR = ("mul", "div", "quantize_linear")
IMPORTS: tuple[Import, ...] = (
    Import("QuantizeLinear", _VERSIONS, quantize_linear, ("quantize_linear", "cast", "reshape")),
    Import("DequantizeLinear", _VERSIONS, dequantize_linear, ("dequantize_linear", "cast", "reshape")),
    Import("QuantizeLinear", (1,), quantize_linear, ("quantize_linear", "cast", "reshape"), MICROSOFT),
    Import("DequantizeLinear", (1,), dequantize_linear, ("dequantize_linear", "cast", "reshape"), MICROSOFT),
    Import("MatMulInteger", (10,), matmul_integer, ("matmul", *_CENTRED)),
    Import("ConvInteger", (10,), conv_integer, ("conv", *_CENTRED)),
    Import("QLinearMatMul", (10, 21), qlinear_matmul, ("matmul", *_CENTRED, *_FACTOR)),
    Import("QLinearConv", (10,), qlinear_conv, ("conv", *_CENTRED, *_FACTOR)),
    *(Import(f"QLinear{op}", (1,), partial(qlinear_binary, ir=op.lower()), (op.lower(), *_BACK), MICROSOFT)
      for op in ("Add", "Mul")),
    Import("QLinearSigmoid", (1,), partial(qlinear_unary, ir="sigmoid"), ("sigmoid", *_BACK), MICROSOFT),
    Import("QLinearLeakyRelu", (1,), partial(qlinear_unary, ir="leaky_relu"), ("leaky_relu", *_BACK), MICROSOFT),
    Import("QLinearGlobalAveragePool", (1,), qlinear_global_average_pool, ("reduce_mean", *_BACK), MICROSOFT),
    Import("QLinearConcat", (1,), qlinear_concat, ("concat", *_BACK), MICROSOFT),
    Import("MatMulIntegerToFloat", (1,), matmul_integer_to_float, ("matmul", "mul", *_CENTRED), MICROSOFT),
    Import("DynamicQuantizeLSTM", (1,), dynamic_quantize_lstm, ("lstm", "mul", "transpose", *_CENTRED), MICROSOFT),
)  # fmt: skip
