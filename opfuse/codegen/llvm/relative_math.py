"""expm1, log1p, sigmoid, normcdf: as right where they are small as where they are large.

The obvious formulas subtract from 1, or add to it, and keep an absolute error. These keep digits, through the
denormals, as `vector_math` does for the functions that have no such trap; bounds in units in the last place (ulp):

    function       f32             f64             notes
    expm1          2               2               e^x - 1; exact where x is the answer
    log1p          2               2               log(1 + x); -1 gives -inf, less than -1 gives NaN
    sigmoid        3               3               1 / (1 + e^-x); for x < 0 it is e^x / (1 + e^x)
    normcdf        4               5               (1 + erf(x / sqrt 2)) / 2 = erfc(-x / sqrt 2) / 2
"""

from __future__ import annotations

from opfuse.codegen.llvm.emit import Value
from opfuse.codegen.llvm.vector_math import (
    INF,
    NAN,
    exp_of_sum,
    is_double,
    log_parts,
    log_rest,
    power_of_two,
    quotient,
)
from opfuse.codegen.llvm.vectors import Vectors
from opfuse.codegen.polynomials import (
    EXP_F64,
    EXPM1_F32,
    LN2_HIGH_F32,
    LN2_HIGH_F64,
    LN2_LOW_F32,
    LN2_LOW_F64,
    LOG2_E,
    TAIL_F32,
    TAIL_F64,
)


def expm1(v: Vectors, x: Value) -> Value:
    """x = n ln 2 + r; e^x - 1 = 2^n (e^r - 1) + (2^n - 1), halved on the way so that 2^1024 is not met."""
    lo, hi, tiny, high, low, p = (
        (-38.0, 710.0, 2.0**-54, -LN2_HIGH_F64, -LN2_LOW_F64, EXP_F64)
        if is_double(x)
        else (-18.0, 89.0, 2.0**-25, -LN2_HIGH_F32, -LN2_LOW_F32, EXPM1_F32)
    )
    c = v.clamp(x, lo, hi)
    n = v.nearest(v.mul(c, v.like(LOG2_E, x)))
    r = v.fma(n, v.like(low, x), v.fma(n, v.like(high, x), c))
    tail = v.fma(v.mul(r, r), v.horner(p, r), r)
    half = power_of_two(v, v.sub(n, v.like(1.0, x)))
    near_one = v.fma(half, tail, v.sub(half, v.like(0.5, x)))
    return v.select(v.compare("lt", v.absolute(x), v.like(tiny, x)), x, v.add(near_one, near_one))


def log1p(v: Vectors, x: Value) -> Value:
    """log(u) + d / u, with 1 + x = u + d exactly."""
    one = v.like(1.0, x)
    u = v.add(one, x)
    back = v.sub(u, one)
    d = v.add(v.sub(one, v.sub(u, back)), v.sub(x, back))
    f, k = log_parts(v, u)
    result = log_rest(v, f, k, quotient(v, d, u))
    result = v.select(v.compare("eq", u, v.like(INF, x)), u, result)
    result = v.select(v.compare("eq", u, v.like(0.0, x)), v.like(-INF, x), result)
    result = v.select(v.compare("ge", u, v.like(0.0, x)), result, v.like(NAN, x))
    return v.select(v.compare("eq", x, v.like(0.0, x)), x, result)  # -0 stays -0


def sigmoid(v: Vectors, x: Value) -> Value:
    one = v.like(1.0, x)
    e = exp_of_sum(v, v.negative(v.absolute(x)))
    return v.div(v.select(v.compare("lt", x, v.like(0.0, x)), e, one), v.add(one, e))


def normcdf(v: Vectors, x: Value) -> Value:
    """The tail e^(-t^2/2) g(t) at t = |x|; 1 less that for x > 0. The square is taken with its rounding error."""
    t = v.clamp(v.absolute(x), 0.0, 39.0 if is_double(x) else 14.5)
    half = v.mul(t, v.like(-0.5, x))
    square = v.mul(t, half)
    e = exp_of_sum(v, square, v.product_error(t, half, square))
    sum_ = v.add(t, v.like(4.0, x))
    u = quotient(v, v.sub(t, v.like(4.0, x)), sum_)
    tail = v.mul(e, quotient(v, v.horner(TAIL_F64 if is_double(x) else TAIL_F32, u), sum_))
    return v.select(v.compare("gt", x, v.like(0.0, x)), v.sub(v.like(1.0, x), tail), tail)
