"""Elementwise arithmetic, comparison, logic, selection and casts. Activations stand in `activation`, inverse and
hyperbolic functions in `trigonometric`.

    neg abs sign exp log expm1 log1p sqrt rsqrt reciprocal erf tanh sigmoid sin cos floor ceil round not isnan isinf
    identity cast   add sub mul div pow maximum minimum mod fmod   equal not_equal less less_equal greater
    greater_equal and or xor   where clip

Integers wrap; `div` of integers truncates towards zero, `mod` has the sign of the divisor, `fmod` of the dividend. A
NaN in any operand comes through, in `maximum`, `minimum` and the bounds of `clip` too; where min > max, `clip` gives
max.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.ops.broadcast import access, output_axes
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import ArrayFunction, Formula, pointwise
from opfuse.ir.scalar import Operand, Scalar, apply, cast, const
from opfuse.ir.structure import Structure
from opfuse.ir.types import DType, TensorType


def _formula(function: str) -> Formula:
    return lambda attrs, *operands: apply(function, *operands)


def _array(function: Any) -> ArrayFunction:
    return lambda attrs, *arrays: function(*arrays)


def _unary(name: str, scalar: str, function: Any, kinds: str = "f", result: DType | None = None) -> Operator:
    return pointwise(name, _formula(scalar), _array(function), kinds=kinds, result=result)


def _binary(name: str, scalar: str, function: Any, kinds: str = "f", result: DType | None = None) -> Operator:
    return pointwise(name, _formula(scalar), _array(function), inputs=("a", "b"), kinds=kinds, result=result)


# ---- oracles that NumPy does not have --------------------------------------------------------------------------------
def array_erf(x: Any) -> Any:
    """erf of each element through the C library, in float64, rounded to the type of x."""
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def array_sigmoid(x: Any) -> Any:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


def _divide(a: Any, b: Any) -> Any:
    """Quotients; of integers towards zero (and 0 where the divisor is 0)."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    floor = a // b
    inexact = floor * b != a
    return np.where(b == 0, 0, floor + (inexact & ((a < 0) != (b < 0))))


def _power(a: Any, b: Any) -> Any:
    """Powers; an integer to a negative power is the truncated quotient 1 / a**-b."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.power(a, b)
    whole = np.power(a, np.where(b < 0, 0, b).astype(b.dtype))
    if not np.issubdtype(b.dtype, np.signedinteger):
        return whole
    odd = np.where(b % 2 == 1, -1, 1)
    return np.where(b >= 0, whole, np.where(a == 1, 1, np.where(a == -1, odd, 0)).astype(whole.dtype))


# ---- casts -----------------------------------------------------------------------------------------------------------
def cast_array(x: np.ndarray, to: np.dtype) -> Any:
    """x in another type. Floats to integers truncate; what does not fit gives what x86 gives.

    That is: through int32 for 8 and 16 bits and int32, through int64 for the others, where NaN and values out of range
    become the smallest integer; then the low bits are kept. Anything but 0 is true as a bool, NaN too.
    """
    if to == np.bool_:
        return x != 0
    target = np.dtype(to)
    if x.dtype == np.bool_ or np.issubdtype(x.dtype, np.integer) or target.kind not in "iu":
        with np.errstate(all="ignore"):
            return x.astype(target)
    wide = x.astype(np.float64)
    bits = 32 if target.itemsize < 4 or target == np.int32 else 64
    whole = np.trunc(wide)
    if target == np.uint64:
        high = (whole >= 2.0**63) & (whole < 2.0**64)
        low = _truncate(np.where(high, whole - 2.0**63, whole), 64).astype(np.uint64)
        return low + np.where(high, np.uint64(2**63), np.uint64(0))
    return _truncate(whole, bits).astype(target)


def _truncate(whole: np.ndarray, bits: int) -> Any:
    limit = 2.0 ** (bits - 1)
    fits = (whole >= -limit) & (whole < limit)
    signed = np.int32 if bits == 32 else np.int64
    return np.where(fits, np.where(fits, whole, 0).astype(signed), np.iinfo(signed).min)


def _infer_cast(call: Call) -> TensorType:
    if not isinstance(call["to"], DType):
        raise OperatorError(f"the target of a cast is {call['to']!r}, not an element type")
    return TensorType(call["to"], call.shape(0))


def _cast_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    return Structure(axes, (access(0, call.shape(0), axes),), cast(Operand(0, call.type(0).dtype), call.output.dtype))


def _cast_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    return np.asarray(cast_array(arrays[0], attrs["to"].numpy))


_FLOATS = np.array([300, -1.5, np.nan, np.inf, -np.inf, 50.9, -50.9, 0, -0.0], np.float32)
_CAST = Operator(
    "cast",
    Kind.STRUCTURED,
    ("x",),
    _infer_cast,
    _cast_oracle,
    {"to": REQUIRED},
    _cast_structure,
    samples=(
        *(
            Sample((_FLOATS,), {"to": t})
            for t in (DType.I8, DType.U8, DType.I32, DType.I64, DType.BOOL, DType.F64, DType.F16)
        ),
        Sample((np.array([[200, 3], [-1, 2**33 + 5]]),), {"to": DType.I32}),
        Sample((np.array([True, False]),), {"to": DType.F32}),
        Sample(((2, 0),), {"to": DType.I64}),
        Sample(((),), {"to": DType.BF16}),
    ),
)


# ---- selection -------------------------------------------------------------------------------------------------------
def _clip(attrs: Any, x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    x = apply("max", x, low) if low is not None else x
    return apply("min", x, high) if high is not None else x


def _clip_array(attrs: Any, x: Any, low: Any, high: Any) -> Any:
    x = np.maximum(x, low) if low is not None else x
    return np.minimum(x, high) if high is not None else x


_BOUNDS = np.array([0.25, -6, 2, 9, np.nan], np.float32)
_SELECTION = (
    pointwise(
        "where",
        lambda attrs, c, a, b: apply("select", c, a, b),
        lambda attrs, c, a, b: np.where(c, a, b),
        inputs=("condition", "a", "b"),
        kinds="fib",
        typed=1,
        rounds=False,
        samples=(
            Sample((np.array([[True], [False]]), (2, 3), (1,))),
            Sample((np.array(True), np.array([1, 2, 3]), np.array([[4], [5]]))),
            Sample(
                (
                    np.array([True, False, True]),
                    np.array([np.nan, np.nan, -0.0], np.float32),
                    np.array([0.0, 1, 2], np.float32),
                )
            ),
            Sample((np.zeros((0, 2), np.bool_), (0, 2), ())),
        ),
    ),
    pointwise(
        "clip",
        _clip,
        _clip_array,
        inputs=("x", "min?", "max?"),
        kinds="fi",
        samples=(
            Sample((_BOUNDS, np.array(3, np.float32), np.array(1, np.float32))),
            Sample((_BOUNDS, np.array(0, np.float32), None)),
            Sample((_BOUNDS, None, np.array(1, np.float32))),
            Sample(((2, 3),)),
            Sample((np.array([-5, 0, 5]), np.array(-1), np.array(2))),
        ),
    ),
)

OPERATORS: tuple[Operator, ...] = (
    _unary("neg", "neg", np.negative, "fi"),
    _unary("abs", "abs", np.abs, "fi"),
    _unary("sign", "sign", np.sign, "fi"),
    _unary("exp", "exp", np.exp),
    _unary("log", "log", np.log),
    _unary("expm1", "expm1", np.expm1),
    _unary("log1p", "log1p", np.log1p),
    _unary("sqrt", "sqrt", np.sqrt),
    _unary("rsqrt", "rsqrt", lambda x: 1 / np.sqrt(x)),
    pointwise("reciprocal", lambda attrs, x: apply("div", const(1, x.dtype), x), lambda attrs, x: np.reciprocal(x)),
    _unary("erf", "erf", array_erf),
    _unary("tanh", "tanh", np.tanh),
    _unary("sigmoid", "sigmoid", array_sigmoid),
    _unary("sin", "sin", np.sin),
    _unary("cos", "cos", np.cos),
    _unary("floor", "floor", np.floor),
    _unary("ceil", "ceil", np.ceil),
    _unary("round", "rint", np.rint),
    _unary("not", "not", np.logical_not, "b"),
    _unary("isnan", "isnan", np.isnan, result=DType.BOOL),
    _unary("isinf", "isinf", np.isinf, result=DType.BOOL),
    pointwise("identity", lambda attrs, x: x, lambda attrs, x: x, kinds="fibn", rounds=False),
    _CAST,
    _binary("add", "add", np.add, "fi"),
    _binary("sub", "sub", np.subtract, "fi"),
    _binary("mul", "mul", np.multiply, "fi"),
    _binary("div", "div", _divide, "fi"),
    _binary("pow", "pow", _power, "fi"),
    _binary("maximum", "max", np.maximum, "fib"),
    _binary("minimum", "min", np.minimum, "fib"),
    _binary("mod", "mod", np.mod, "fi"),
    _binary("fmod", "fmod", np.fmod, "fi"),
    _binary("equal", "eq", np.equal, "fib", DType.BOOL),
    _binary("not_equal", "ne", np.not_equal, "fib", DType.BOOL),
    _binary("less", "lt", np.less, "fi", DType.BOOL),
    _binary("less_equal", "le", np.less_equal, "fi", DType.BOOL),
    _binary("greater", "gt", np.greater, "fi", DType.BOOL),
    _binary("greater_equal", "ge", np.greater_equal, "fi", DType.BOOL),
    _binary("and", "and", np.logical_and, "b"),
    _binary("or", "or", np.logical_or, "b"),
    _binary("xor", "xor", np.logical_xor, "b"),
    *_SELECTION,
)
