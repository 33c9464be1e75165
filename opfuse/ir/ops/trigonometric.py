"""Inverse and hyperbolic trigonometric functions, of the scalar functions that there are: no code of their own.

    asin acos atan   sinh cosh   asinh acosh atanh

Every formula stays within 4 units in the last place of its type over the whole range. The arctangent is halved
where a short series does; the others rest on exp(x) - 1 and log(1 + x), which keep the digits of a small x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfuse.ir.ops.definition import Operator, Sample
from opfuse.ir.ops.pointwise import Formula, pointwise
from opfuse.ir.scalar import Scalar, apply, const

HUGE = 2.0**28  # from here on x^2 + 1 is x^2, in float64 too
TINY = 2.0**-28  # below, x^2 / 3 is lost beside 1


def _below(x: Scalar, limit: float, below: Scalar, otherwise: Scalar) -> Scalar:
    return apply("select", apply("lt", x, const(limit, x.dtype)), below, otherwise)


def _plus(x: Scalar, number: float) -> Scalar:
    return apply("add", x, const(number, x.dtype))


def _times(x: Scalar, number: float) -> Scalar:
    return apply("mul", x, const(number, x.dtype))


def _odd(x: Scalar, of_size: Scalar) -> Scalar:
    """An odd function that is x near 0, from its value at |x|."""
    return _below(apply("abs", x), TINY, x, _below(x, 0, apply("neg", of_size), of_size))


def _odd_series(x: Scalar, terms: tuple[float, ...]) -> Scalar:
    """x (t0 + t1 x^2 + t2 x^4 + ...)"""
    square = apply("mul", x, x)
    total: Scalar = const(terms[-1], x.dtype)
    for term in terms[-2::-1]:
        total = _plus(apply("mul", total, square), term)
    return apply("mul", x, total)


# ---- arctangents -----------------------------------------------------------------------------------------------------
# atan(x) / x in x^2, |x| <= tan(pi / 8): Remez exchange, 0.01 units in the last place of float64
_ATAN_SERIES = (
    1.0, -0.3333333333333313, 0.1999999999994268, -0.14285714279411835, 0.11111110752410006, -0.09090897011696174,
    0.07692048749350461, -0.06662988858977521, 0.058471362397033017, -0.050362178711164635, 0.037992519018984774,
    -0.01783417333910491,
)  # fmt: skip


def _half_arctangent(x: Scalar) -> Scalar:
    """tan(atan(x) / 2) = x / (1 + sqrt(1 + x^2))"""
    return apply("div", x, _plus(apply("sqrt", _plus(apply("mul", x, x), 1)), 1))


def _atan_of_unit(x: Scalar) -> Scalar:
    """atan of |x| <= 1: twice that of tan(atan(x) / 2)."""
    return _times(_odd_series(_half_arctangent(x), _ATAN_SERIES), 2)


def _atan(attrs: Any, x: Scalar) -> Scalar:
    """Beyond 1: the rest of atan(1 / x) to a right angle."""
    outside = apply("gt", apply("abs", x), const(1, x.dtype))
    inner = _atan_of_unit(apply("select", outside, apply("div", const(1, x.dtype), x), x))
    right = _below(x, 0, const(-math.pi / 2, x.dtype), const(math.pi / 2, x.dtype))
    return _below(apply("abs", x), TINY, x, apply("select", outside, apply("sub", right, inner), inner))


def _asin(attrs: Any, x: Scalar) -> Scalar:
    """2 atan(x / (1 + sqrt((1 - x) (1 + x))))"""
    one = const(1, x.dtype)
    root = apply("sqrt", apply("mul", apply("sub", one, x), apply("add", one, x)))
    return _below(apply("abs", x), TINY, x, _times(_atan_of_unit(apply("div", x, _plus(root, 1))), 2))


def _acos(attrs: Any, x: Scalar) -> Scalar:
    """2 atan(sqrt((1 - x) / (1 + x)))"""
    one = const(1, x.dtype)
    root = apply("sqrt", apply("div", apply("sub", one, x), apply("add", one, x)))
    return _times(_atan(attrs, root), 2)


# ---- hyperbolic functions --------------------------------------------------------------------------------------------
def _half_exponentials(x: Scalar) -> tuple[Scalar, Scalar]:
    """exp(|x|) / 2 and exp(-|x|) / 2; the first overflows no sooner than it must."""
    root = apply("exp", _times(apply("abs", x), 0.5))
    return apply("mul", _times(root, 0.5), root), apply("div", apply("div", const(0.5, x.dtype), root), root)


def _sinh(attrs: Any, x: Scalar) -> Scalar:
    """(t + t / (t + 1)) / 2, t = e^x - 1, where that keeps the digits of a small x."""
    t = apply("expm1", x)
    near = _times(apply("add", t, apply("div", t, _plus(t, 1))), 0.5)
    grown = apply("sub", *_half_exponentials(x))
    return _below(apply("abs", x), 1, near, _below(x, 0, apply("neg", grown), grown))


def _cosh(attrs: Any, x: Scalar) -> Scalar:
    return apply("add", *_half_exponentials(x))


# ---- inverse hyperbolic functions ------------------------------------------------------------------------------------
def _asinh(attrs: Any, x: Scalar) -> Scalar:
    """sign(x) log(1 + |x| + x^2 / (1 + sqrt(x^2 + 1))); from 2^28 on log 2|x|; of a small x, x."""
    size, square = apply("abs", x), apply("mul", x, x)
    more = apply("div", square, _plus(apply("sqrt", _plus(square, 1)), 1))
    far = _plus(apply("log", size), math.log(2))
    return _odd(x, _below(size, HUGE, apply("log1p", apply("add", size, more)), far))


def _acosh(attrs: Any, x: Scalar) -> Scalar:
    """log(1 + t + sqrt(t (t + 2))), t = x - 1; from 2^28 on log 2x."""
    t = _plus(x, -1)
    near = apply("log1p", apply("add", t, apply("sqrt", apply("mul", t, _plus(t, 2)))))
    return _below(x, HUGE, near, _plus(apply("log", x), math.log(2)))


def _atanh(attrs: Any, x: Scalar) -> Scalar:
    """sign(x) log(1 + 2|x| / (1 - |x|)) / 2; of a small x, x."""
    size = apply("abs", x)
    return _odd(x, _times(apply("log1p", apply("div", _times(size, 2), apply("sub", const(1, x.dtype), size))), 0.5))


# ---- table -----------------------------------------------------------------------------------------------------------
def _row(name: str, formula: Formula, function: Any, edges: tuple[float, ...]) -> Operator:
    """Samples: shapes, then the whole range of the function and numbers at the borders of the formula's branches."""
    inside = np.linspace(max(edges[0], -20), min(edges[1], 20), 41)
    samples = (
        Sample((inside.astype(np.float32).reshape(1, 41),)),
        Sample((np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, *edges], np.float32),)),
        Sample((inside,)),
        Sample((np.array(inside[20], np.float32),)),
        Sample((np.zeros((2, 0), np.float32),)),
        Sample((inside[::5].astype(np.float16),)),
    )
    return pointwise(name, formula, lambda attrs, x: function(x), samples=samples)


OPERATORS: tuple[Operator, ...] = (
    _row("asin", _asin, np.arcsin, (-1, 1, 1.5, -1.5, 1e-20, 0.7071068, -0.5)),
    _row("acos", _acos, np.arccos, (-1, 1, 1.5, -1.5, 1e-20, 0.9999999, -0.9999999)),
    _row("atan", _atan, np.arctan, (-1e9, 1e9, 1, -1, 1.0000001, -1e-20, 1e30)),
    _row("sinh", _sinh, np.sinh, (-89, 89, 1, -1, 0.9999999, 1e-20, 20)),
    _row("cosh", _cosh, np.cosh, (-89, 89, 1, -1, 88.7, 1e-20, 20)),
    _row("asinh", _asinh, np.arcsinh, (-1e9, 1e9, 1e-6, 0.2499, -0.25, 3e8, -1e30)),
    _row("acosh", _acosh, np.arccosh, (1, 1e9, 1.0000001, 2, 0.5, 3e8, 1e30)),
    _row("atanh", _atanh, np.arctanh, (-1, 1, 0.9999999, -0.9999999, 1e-4, -1e-20, 2)),
)
