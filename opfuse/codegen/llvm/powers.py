"""Powers: |a|^b = e^(b log |a|), with the sign and special cases of IEEE pow; within 1 ulp for floats, 2 for doubles.

The error of the logarithm is multiplied by b log |a|, up to 709. Floats are computed in double precision, where that
leaves enough; for doubles the logarithm is a sum of two numbers, with 66 good bits.
"""

from __future__ import annotations

from opfuse.codegen.llvm.emit import Value
from opfuse.codegen.llvm.vector_math import INF, NAN, exp_of_sum, is_double, log, log_parts
from opfuse.codegen.llvm.vectors import Vectors
from opfuse.codegen.polynomials import LN2_HIGH_F64, LN2_LOW_F64, LOG_TAIL_F64
from opfuse.ir.types import DType

TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
OVERFLOWS = 2048.0  # an exponent of e with which any double is 0 or infinite


def raised(v: Vectors, a: Value, b: Value) -> Value:
    if is_double(a):
        return _with_special_cases(v, a, b, _size_of_double(v, v.absolute(a), b))
    a_wide, b_wide = v.convert(a, DType.F64), v.convert(b, DType.F64)
    size = exp_of_sum(v, v.mul(b_wide, log(v, v.absolute(a_wide))))
    return v.convert(_with_special_cases(v, a_wide, b_wide, size), a.dtype)


def _with_special_cases(v: Vectors, a: Value, b: Value, size: Value) -> Value:
    zero, one = v.like(0.0, a), v.like(1.0, a)
    whole = v.compare("eq", v.nearest(b), b)
    half = v.mul(b, v.like(0.5, b))
    odd = v.logic("and", whole, v.compare("ne", v.nearest(half), half))
    negative = v.compare("lt", v.intrinsic("copysign", one, a), zero)
    signed = v.select(v.logic("and", odd, negative), v.negative(size), size)
    strict = v.logic("and", v.compare("lt", a, zero), v.complement(whole))
    strict = v.logic("and", strict, v.compare("gt", a, v.like(-INF, a)))
    result = v.select(strict, v.like(NAN, a), signed)
    unit = v.logic("and", v.compare("eq", v.absolute(a), one), v.compare("eq", v.absolute(b), v.like(INF, b)))
    result = v.select(unit, one, result)
    certain = v.logic("or", v.compare("eq", b, zero), v.compare("eq", a, one))
    return v.select(certain, one, result)


def _size_of_double(v: Vectors, a: Value, b: Value) -> Value:
    high, low = _log_in_two(v, a)
    exponent = v.mul(b, high)
    rest = v.add(v.product_error(b, high, exponent), v.mul(b, low))
    near = v.compare("lt", v.absolute(exponent), v.like(OVERFLOWS, b))  # beyond, the rest may be NaN
    return exp_of_sum(v, exponent, v.select(near, rest, v.like(0.0, b)))


def _log_in_two(v: Vectors, x: Value) -> tuple[Value, Value]:
    """log x, x >= 0: 2 s + s^3 (2/3 + s^2 R(s^2)) + k ln 2 with s = f / (2 + f), all but R in two numbers."""
    tiny = v.compare("lt", x, v.like(2.0**-1022, x))
    f, k = log_parts(v, v.select(tiny, v.mul(x, v.like(2.0**52, x)), x))
    k = v.select(tiny, v.sub(k, v.like(52.0, x)), k)
    t = v.add(v.like(2.0, x), f)
    t_low = v.sub(f, v.sub(t, v.like(2.0, x)))
    s = v.div(f, t)
    product = v.mul(s, t)
    left = v.sub(v.sub(f, product), v.product_error(s, t, product))
    s_low = v.div(v.sub(left, v.mul(s, t_low)), t)
    z = v.mul(s, s)
    z_low = v.add(v.product_error(s, s, z), v.mul(v.add(s, s), s_low))
    rest = v.mul(z, v.horner(LOG_TAIL_F64, z))
    p = v.add(v.like(TWO_THIRDS[0], x), rest)
    p_low = v.add(v.sub(rest, v.sub(p, v.like(TWO_THIRDS[0], x))), v.like(TWO_THIRDS[1], x))
    cube = v.mul(s, z)
    cube_low = v.add(v.product_error(s, z, cube), v.fma(s, z_low, v.mul(s_low, z)))
    tail = v.mul(cube, p)
    tail_low = v.add(v.product_error(cube, p, tail), v.fma(cube, p_low, v.mul(cube_low, p)))
    whole, twice = v.mul(k, v.like(LN2_HIGH_F64, x)), v.add(s, s)
    first = v.add(whole, twice)
    second = v.add(first, tail)
    low = v.add(v.sub(twice, v.sub(first, whole)), v.sub(tail, v.sub(second, first)))
    low = v.add(low, v.fma(k, v.like(LN2_LOW_F64, x), v.add(v.add(s_low, s_low), tail_low)))
    high = v.add(second, low)
    low = v.sub(low, v.sub(high, second))
    high = v.select(v.compare("lt", x, v.like(INF, x)), high, x)  # infinity, NaN
    return v.select(v.compare("eq", x, v.like(0.0, x)), v.like(-INF, x), high), low
