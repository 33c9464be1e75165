"""Scalar functions on intervals: what a rounding error of the operands makes of the result.

    apply_with_errors(exp, [Bounded(x, e)])   ->   Bounded(exp(x), |exp(x + e) - exp(x)| + ulps * eps * exp(x))

Every function but a few is monotone in each operand over a small interval, so its largest change stands at a corner of
the operands' intervals. Comparisons, selections, roundings to integers and remainders jump: where an interval holds
the jump, the error is the size of the jump.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import erf as _erf
from math import erfc as _erfc
from typing import Any

import numpy as np

from opfuse.ir.scalar import FUNCTIONS, Apply, Scalar
from opfuse.ir.types import DType

_UNIT = {DType.F64: 2.0**-53, DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
_LARGEST = {DType.F64: 1.7976931348623157e308, DType.F32: 3.4028234663852886e38, DType.F16: 65504.0,
            DType.BF16: 3.3895313892515355e38}  # fmt: skip


@dataclass(frozen=True)
class Bounded:
    """Float64 (or integer) values and a bound on the distance of native code's answer; 0.0 says that it is exact."""

    value: np.ndarray
    error: np.ndarray | float

    @property
    def exact(self) -> bool:
        return isinstance(self.error, float) and self.error == 0.0

    def full(self) -> np.ndarray:
        """The error as an array of the value's shape."""
        return np.broadcast_to(np.asarray(self.error, np.float64), self.value.shape)


def unit(dtype: DType) -> float:
    """The unit roundoff: half the distance from 1 to the next number. 0 for integers."""
    return _UNIT.get(dtype, 0.0)


def accumulator(dtype: DType) -> DType:
    """The type that sums of this type are carried in: half precision accumulates in float32."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def overflow_limit(dtype: DType) -> float:
    """Finite values above this may have overflowed on the way, in the type itself."""
    return _LARGEST.get(dtype, np.inf) * (1 - 2.0**-6)


def apply_with_errors(node: Scalar, operands: Sequence[Bounded]) -> Bounded:
    """One function of the scalar table on operands with errors (arrays that broadcast together)."""
    if not isinstance(node, Apply):
        raise TypeError(f"a leaf that is not known here: {node!r}")
    with np.errstate(all="ignore"):
        function = IN_FLOAT64[node.function]
        if node.function == "bits":
            function = partial(function, source=node.args[0].dtype)
        value = np.asarray(function(node.dtype, *(o.value for o in operands)))
        error = _passed_on(node, function, operands, value)
        row = FUNCTIONS[node.function]
        ulps = row.ulps
        if node.function == "cast" and not _narrows(node):
            ulps = 0.0
        if node.dtype.is_float and ulps:
            size = np.abs(value) if not row.absolute else np.maximum(np.abs(value), 1.0)
            tiny = 2.0**-126 if node.dtype in (DType.F32, DType.BF16) else 2.0**-24 if node.dtype is DType.F16 else 0.0
            own = np.where(np.isfinite(value), ulps * 2 * unit(node.dtype) * size + tiny, 0.0)
            over = np.isfinite(value) & (np.abs(value) > overflow_limit(node.dtype))
            error = np.where(over, np.inf, np.asarray(error) + own)
    return Bounded(value, error if np.any(error) else 0.0)


_LOGIC = ("and", "or", "xor", "not")


def _narrows(node: Apply) -> bool:
    source = node.args[0].dtype
    return not source.is_float or unit(node.dtype) > unit(source)


def _passed_on(
    node: Apply, function: Callable[..., Any], operands: Sequence[Bounded], value: np.ndarray
) -> np.ndarray | float:
    """The largest change of the result while each operand moves within its error."""
    if all(o.exact for o in operands):
        return 0.0
    if node.function == "select":
        return _selected(operands)
    if node.function in ("lt", "le", "gt", "ge", "eq", "ne"):
        a, b = operands
        near = np.abs(_number(a.value) - _number(b.value)) <= np.asarray(a.error) + np.asarray(b.error)
        return np.asarray(near & ((np.asarray(a.error) + np.asarray(b.error)) > 0), np.float64)
    if node.function in ("shl", "shr", "bits") or (node.function in _LOGIC and node.dtype.is_integer):
        return np.where(np.max(np.broadcast_arrays(*(np.asarray(o.error) for o in operands)), axis=0) > 0, np.inf, 0.0)
    if node.function in _LOGIC:
        return np.asarray(np.max(np.broadcast_arrays(*(np.asarray(o.error, np.float64) for o in operands)), axis=0))
    if node.function in ("sin", "cos"):
        return np.asarray(np.minimum(np.asarray(operands[0].error), 2.0))
    worst: np.ndarray | float = 0.0
    for signs in itertools.product(*((0.0,) if o.exact else (-1.0, 1.0) for o in operands)):
        moved = [_moved(o, s) for o, s in zip(operands, signs, strict=True)]
        worst = np.maximum(worst, _distance(_number(function(node.dtype, *moved)), _number(value)))
    if node.function in ("div", "mod", "fmod", "floordiv"):
        divisor = operands[1]
        crosses = ~divisor_is_safe(divisor)
        worst = np.where(crosses, np.inf, worst)
    for o in operands:  # no interval lies around a NaN that may be none
        worst = np.where(np.isnan(_number(o.value)) & (np.asarray(o.error) > 0), np.inf, worst)
    return np.where(np.isnan(worst), np.inf, worst)


def _moved(operand: Bounded, sign: float) -> np.ndarray:
    return operand.value if sign == 0.0 else _number(operand.value) + sign * np.asarray(operand.error)


def divisor_is_safe(divisor: Bounded) -> np.ndarray:
    """True where the interval does not hold zero, or is the number itself."""
    error = np.asarray(divisor.error)
    return np.asarray((error == 0) | (np.abs(_number(divisor.value)) > error))


def _selected(operands: Sequence[Bounded]) -> np.ndarray:
    condition, a, b = operands
    chosen = np.where(condition.value, np.asarray(a.error), np.asarray(b.error))
    if condition.exact:
        return np.asarray(chosen)
    either = _distance(_number(a.value), _number(b.value)) + np.asarray(a.error) + np.asarray(b.error)
    return np.where(np.asarray(condition.error) > 0, either, chosen)


def _number(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|; 0 where both are the same infinity or both NaN; infinite where only one is."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


# ---- the functions, in float64 ---------------------------------------------------------------------------------------
def _float_or_integer(in_floats: Callable[..., Any], in_integers: Callable[..., Any]) -> Callable[..., Any]:
    def call(dtype: DType, *args: np.ndarray) -> Any:
        return in_floats(*args) if dtype.is_float or any(a.dtype.kind == "f" for a in args) else in_integers(*args)

    return call


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda dtype, *args: function(*args)


def _truncated(a: np.ndarray, b: np.ndarray) -> Any:
    safe = np.where(b == 0, 1, b)
    quotient = a // safe
    return quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))


def _floor_quotient(a: np.ndarray, b: np.ndarray) -> Any:
    return a // np.where(b == 0, 1, b)


def _floor_remainder(a: np.ndarray, b: np.ndarray) -> Any:
    return a % np.where(b == 0, 1, b)


def _sigmoid(x: np.ndarray) -> Any:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _error_function(x: np.ndarray) -> Any:
    return np.vectorize(_erf, otypes=[np.float64])(x) if x.size else np.asarray(x, np.float64)


def _normal_distribution(x: np.ndarray) -> Any:
    return np.vectorize(lambda v: 0.5 * _erfc(v * -math.sqrt(0.5)), otypes=[np.float64])(x) if x.size else _number(x)


def _of_truth(of_bools: Callable[..., Any], of_bits: Callable[..., Any]) -> Callable[..., Any]:
    """The function of truth values, or bit by bit of integers."""
    return lambda *args: (of_bits if all(a.dtype.kind in "iu" for a in args) else of_bools)(*args)


def _in_width(a: np.ndarray, count: np.ndarray) -> Any:
    return (count >= 0) & (count < 8 * a.dtype.itemsize)


def _reinterpreted(dtype: DType, x: np.ndarray, source: DType) -> Any:
    return _cast(dtype, np.ascontiguousarray(x.astype(source.numpy)).view(dtype.numpy).reshape(x.shape))


def _cast(dtype: DType, x: np.ndarray) -> Any:
    if dtype.is_float:
        return _number(x)
    if dtype is DType.BOOL:
        return x != 0
    if x.dtype.kind == "f":
        return np.trunc(x)  # as a float: what lies outside the range is the oracle's to say
    return x.astype(dtype.numpy)


IN_FLOAT64: Mapping[str, Callable[..., Any]] = {
    "add": _plain(lambda a, b: a + b), "sub": _plain(lambda a, b: a - b), "mul": _plain(lambda a, b: a * b),
    "div": _float_or_integer(lambda a, b: _number(a) / b, _truncated),
    "floordiv": _float_or_integer(lambda a, b: np.floor(_number(a) / b), _floor_quotient),
    "mod": _float_or_integer(np.mod, _floor_remainder),
    "fmod": _float_or_integer(np.fmod, lambda a, b: np.fmod(a, np.where(b == 0, 1, b))),
    "max": _plain(np.maximum), "min": _plain(np.minimum),
    "pow": _float_or_integer(lambda a, b: np.power(_number(a), b), lambda a, b: np.power(a, np.maximum(b, 0))),
    "neg": _plain(lambda a: -a), "abs": _plain(np.abs), "sign": _plain(np.sign), "exp": _plain(np.exp),
    "log": _plain(np.log), "sqrt": _plain(np.sqrt), "rsqrt": _plain(lambda a: 1 / np.sqrt(a)),
    "erf": _plain(_error_function), "tanh": _plain(np.tanh), "sigmoid": _plain(_sigmoid),
    "expm1": _plain(np.expm1), "log1p": _plain(np.log1p), "normcdf": _plain(_normal_distribution),
    "sin": _plain(np.sin), "cos": _plain(np.cos),
    "floor": _plain(np.floor), "ceil": _plain(np.ceil), "rint": _plain(np.rint),
    "lt": _plain(lambda a, b: a < b), "le": _plain(lambda a, b: a <= b), "eq": _plain(lambda a, b: a == b),
    "gt": _plain(lambda a, b: a > b), "ge": _plain(lambda a, b: a >= b), "ne": _plain(lambda a, b: a != b),
    "and": _plain(_of_truth(np.logical_and, np.bitwise_and)), "or": _plain(_of_truth(np.logical_or, np.bitwise_or)),
    "xor": _plain(_of_truth(np.logical_xor, np.bitwise_xor)), "not": _plain(_of_truth(np.logical_not, np.bitwise_not)),
    "shl": _plain(lambda a, b: np.where(_in_width(a, b), np.left_shift(a, np.where(_in_width(a, b), b, 0)), 0)),
    "shr": _plain(lambda a, b: np.right_shift(a, np.where(_in_width(a, b), b, 8 * a.dtype.itemsize - 1))
                  * np.where(_in_width(a, b) | (a.dtype.kind == "i"), 1, 0).astype(a.dtype)),
    "isnan": _plain(np.isnan), "isinf": _plain(np.isinf),
    "select": _plain(np.where), "cast": _cast, "bits": _reinterpreted,
}  # fmt: skip
