"""exp, log, tanh, erf, sin, cos as vector arithmetic: no call of a math library.

Bounds are largest errors in units in the last place (ulp) over the stated range; the tests measure them.

    function       f32             f64             notes
    exp            1.5             1.5             overflow gives inf, underflow goes through the denormals to 0
    log            1.5             1.5             0 gives -inf, a negative number NaN; denormals are exact
    tanh           4.5 (plain: 6)  2
    erf            4.5 (plain: 6)  3               like tanh never beyond 1, and 1 far out
    sin, cos       1               2               f32: |x| < 2^40 (computed in f64); f64: |x| < 2^30; plain: |x| < 2^27
    rsqrt          1.5             1.5

Coefficients were fitted with mpmath: Chebyshev interpolation for the polynomials, reweighted least squares for the
rational functions, whose rounding to f32 was then searched for the smallest error of the whole evaluation.
"""

from __future__ import annotations

from opfuse.codegen.llvm.emit import Value
from opfuse.codegen.llvm.vectors import Vectors
from opfuse.codegen.polynomials import (
    EXP_F32,
    EXP_F64,
    LN2_HIGH_F32,
    LN2_HIGH_F64,
    LN2_LOW_F32,
    LN2_LOW_F64,
    LOG2_E,
    LOG_F32,
    LOG_F64,
)
from opfuse.ir.types import DType

INF = float("inf")
NAN = float("nan")
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591815e-33)

# tanh(x) / x in x^2, |x| <= 9.02
TANH_F32_P = (1.0, 0.13379895687103271, 0.0034942268393933773, 2.0586547179846093e-05, 1.3322863701148435e-08)
TANH_F32_Q = (1.0, 0.46713224053382874, 0.025871826335787773, 0.0003283404221292585, 7.763674716443347e-07)
# tanh(x) / x in x^2, |x| <= 0.6
TANH_F64 = (
    1.0, -0.3333333333333333, 0.13333333333333244, -0.053968253968190175, 0.02186948853377581, -0.008863235476637057,
    0.003592127262170271, -0.0014558267196969476, 0.0005899742888244823, -0.00023886770703025916, 9.600287003933975e-05,
    -3.704629815804935e-05, 1.2203007535657973e-05, -2.4467668210977953e-06,
)  # fmt: skip
# erf(x) / x in x^2, |x| <= 3.92; it reaches 1 at the end
ERF_F32_P = (1.128379225730896, 0.19074831902980804, 0.05278567224740982, 0.0037781260907649994, 0.0002847815048880875,
             2.0423078694875585e-06)  # fmt: skip
ERF_F32_Q = (
    1.0,
    0.5023790597915649,
    0.11424291878938675,
    0.014994443394243717,
    0.0011648662621155381,
    3.800618651439436e-05,
)
# erf(x) / x in x^2, |x| <= 1
ERF_F64_NEAR = (
    1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
    -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)  # fmt: skip
# exp(x^2) * erfc(x) in (x - 2) / (x + 2), 1 <= x <= 6
ERFC_F64_FAR = (
    0.25539567631050575, -0.4271858474139584, 0.24165819424246635, -0.07897858101573309, 0.003732892404344556,
    0.006997461739289944, -0.0008471432519742267, -0.0009819770300762522, 4.355563606906135e-05, 0.0001743612315319066,
    2.7524861673829758e-05, -2.758043996166221e-05, -1.3961467042970603e-05, 1.3937647275858412e-06,
    3.7492294331455126e-06, 1.1924348155131436e-06, -4.086889531377557e-07, -5.022472940496373e-07,
    -1.5712486225792008e-07, 8.22026259674723e-08, 1.0599753079203089e-07, -2.992083159656815e-08,
)  # fmt: skip
# (sin(x)/x - 1) / x^2 and (cos(x) - 1 + x^2/2) / x^4 in x^2, |x| <= pi/4
SIN_F64 = (-0.16666666666666666, 0.008333333333333331, -0.0001984126984126494, 2.7557319219243677e-06,
           -2.505210619936182e-08, 1.6058526388142101e-10, -7.586389554705215e-13)  # fmt: skip
COS_F64 = (0.041666666666666664, -0.0013888888888888887, 2.4801587301584578e-05, -2.755731922134973e-07,
           2.087675577268547e-09, -1.1470457979362018e-11, 4.745700902269626e-14)  # fmt: skip


def is_double(x: Value) -> bool:
    return x.dtype is DType.F64


def power_of_two(v: Vectors, n: Value) -> Value:
    """2^n for an integral n within the normal exponents, by building the exponent field."""
    wide, bias, shift = (DType.I64, 1023, 52) if is_double(n) else (DType.I32, 127, 23)
    i = v.convert(n, wide)
    return v.bits(v.logic("shl", v.add(i, v.like(bias, i)), v.like(shift, i)), n.dtype)


def _scale(v: Vectors, x: Value, n: Value) -> Value:
    """x * 2^n, right through overflow and the denormals."""
    if v.isa == "avx512" and n.lanes == 16 and not is_double(x):
        zero = v.like(0.0, x)
        return v.e.value(
            f"call {x.type} @llvm.x86.avx512.mask.scalef.ps.512({x}, {n}, {zero}, i16 -1, i32 4)", x.dtype, x.lanes
        )
    half = v.nearest(v.mul(n, v.like(0.5, n)))
    return v.mul(v.mul(x, power_of_two(v, half)), power_of_two(v, v.sub(n, half)))


def exp(v: Vectors, x: Value) -> Value:
    return exp_of_sum(v, x)


def exp_of_sum(v: Vectors, x: Value, rest: Value | None = None) -> Value:
    """e^(x + rest), the rest far below x. x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r)."""
    lo, hi, high, low, p = (
        (-746.0, 710.0, -LN2_HIGH_F64, -LN2_LOW_F64, EXP_F64)
        if is_double(x)
        else (-105.0, 89.0, -LN2_HIGH_F32, -LN2_LOW_F32, EXP_F32)
    )
    x = v.clamp(x, lo, hi)
    n = v.nearest(v.mul(x, v.like(LOG2_E, x)))
    r = v.fma(n, v.like(low, x), v.fma(n, v.like(high, x), x))
    r = r if rest is None else v.add(r, rest)
    tail = v.fma(v.mul(r, r), v.horner(p, r), r)
    return _scale(v, v.add(tail, v.like(1.0, x)), n)


def log(v: Vectors, x: Value) -> Value:
    smallest, up = (2.0**-1022, 52.0) if is_double(x) else (2.0**-126, 23.0)
    tiny = v.compare("lt", x, v.like(smallest, x))
    f, k = log_parts(v, v.select(tiny, v.mul(x, v.like(2.0**up, x)), x))
    result = log_rest(v, f, v.select(tiny, v.sub(k, v.like(up, x)), k))
    result = v.select(v.compare("eq", x, v.like(INF, x)), x, result)
    result = v.select(v.compare("eq", x, v.like(0.0, x)), v.like(-INF, x), result)
    positive = v.compare("ge", x, v.like(0.0, x))
    return v.select(positive, result, v.like(NAN, x))


def log_parts(v: Vectors, x: Value) -> tuple[Value, Value]:
    """f and k of a normal x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)): log x = k ln 2 + log(1 + f)."""
    wide, bits_ = (DType.I64, 52) if is_double(x) else (DType.I32, 23)
    n = v.bits(x, wide)
    root = 0x3FE6A09E667F3BCD if is_double(x) else 0x3F3504F3  # the bits of sqrt(1/2)
    moved = v.sub(n, v.like(root, n))
    exponent = v.logic("ashr", moved, v.like(bits_, n))
    mantissa = v.bits(v.sub(n, v.logic("shl", exponent, v.like(bits_, n))), x.dtype)
    return v.sub(mantissa, v.like(1.0, x)), v.convert(exponent, x.dtype)


def log_rest(v: Vectors, f: Value, k: Value, rest: Value | None = None) -> Value:
    """k ln 2 + log(1 + f) + rest, the rest far below the others."""
    if is_double(f):
        return _log_rest_f64(v, f, k, rest)
    square = v.mul(f, f)
    tail = v.mul(v.mul(square, f), v.horner(LOG_F32, f))
    tail = tail if rest is None else v.add(tail, rest)
    tail = v.fma(k, v.like(LN2_LOW_F32, f), tail)
    tail = v.fma(square, v.like(-0.5, f), tail)
    return v.fma(k, v.like(LN2_HIGH_F32, f), v.add(f, tail))


def _log_rest_f64(v: Vectors, f: Value, k: Value, rest: Value | None) -> Value:
    """With s = f / (2 + f): log(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2)))."""
    s = v.div(f, v.add(f, v.like(2.0, f)))
    z = v.mul(s, s)
    half = v.mul(v.mul(f, f), v.like(0.5, f))
    low = v.mul(k, v.like(LN2_LOW_F64, f))
    low = low if rest is None else v.add(low, rest)
    tail = v.fma(s, v.add(half, v.mul(z, v.horner(LOG_F64, z))), low)
    return v.fma(k, v.like(LN2_HIGH_F64, f), v.sub(f, v.sub(half, tail)))


def quotient(v: Vectors, a: Value, b: Value) -> Value:
    """a / b, a not -0; on AVX-512 by an approximate reciprocal and one correction, for b far from 0 and infinity."""
    if v.isa == "avx512" and a.lanes == 16 and not is_double(a):
        zero = v.like(0.0, a)
        r = v.e.value(f"call {b.type} @llvm.x86.avx512.rcp14.ps.512({b}, {zero}, i16 -1)", b.dtype, b.lanes)
        q = v.mul(a, r)
        return v.fma(v.fma(v.negative(q), b, a), r, q)
    return v.div(a, b)


def tanh(v: Vectors, x: Value) -> Value:
    if not is_double(x):
        x = v.clamp(x, -9.02, 9.02)
        t = v.mul(x, x)
        return v.clamp(v.mul(x, quotient(v, v.horner(TANH_F32_P, t), v.horner(TANH_F32_Q, t))), -1.0, 1.0)
    a = v.absolute(x)
    near = v.mul(x, v.horner(TANH_F64, v.mul(x, x)))
    e = exp(v, v.add(a, a))
    far = v.sub(v.like(1.0, x), v.div(v.like(2.0, x), v.add(e, v.like(1.0, x))))
    return v.select(v.compare("lt", a, v.like(0.6, x)), near, v.intrinsic("copysign", far, x))


def erf(v: Vectors, x: Value) -> Value:
    if not is_double(x):
        x = v.clamp(x, -3.92, 3.92)
        t = v.mul(x, x)
        return v.clamp(v.mul(x, quotient(v, v.horner(ERF_F32_P, t), v.horner(ERF_F32_Q, t))), -1.0, 1.0)
    near = v.mul(x, v.horner(ERF_F64_NEAR, v.mul(x, x)))
    a = v.absolute(x)
    c = v.clamp(a, 1.0, 6.0)
    u = v.div(v.sub(c, v.like(2.0, x)), v.add(c, v.like(2.0, x)))
    tail = v.mul(exp(v, v.negative(v.mul(c, c))), v.horner(ERFC_F64_FAR, u))
    far = v.intrinsic("copysign", v.sub(v.like(1.0, x), tail), x)
    return v.select(v.compare("gt", a, v.like(1.0, x)), far, near)


def sin(v: Vectors, x: Value, quarter: int = 0) -> Value:
    """x = n pi/2 + r; the quadrant n (+ 1 for cos) picks the polynomial and the sign."""
    if not is_double(x):
        return v.convert(sin(v, v.convert(x, DType.F64), quarter), x.dtype)
    finite = v.compare("lt", v.absolute(x), v.like(INF, x))
    safe = v.select(v.compare("lt", v.absolute(x), v.like(2.0**50, x)), x, v.like(0.0, x))
    n = v.nearest(v.mul(safe, v.like(1.0 / HALF_PI[0], x)))
    r = safe
    for part in HALF_PI if v.isa != "plain" else (*_HALF_PI_SHORT, HALF_PI[2]):
        r = v.fma(n, v.like(-part, x), r)
    z = v.mul(r, r)
    sine = v.fma(v.mul(r, z), v.horner(SIN_F64, z), r)
    cosine = v.fma(v.mul(z, z), v.horner(COS_F64, z), v.fma(z, v.like(-0.5, x), v.like(1.0, x)))
    i = v.convert(n, DType.I64)
    i = v.add(i, v.like(quarter, i))
    odd = v.compare("ne", v.logic("and", i, v.like(1, i)), v.like(0, i))
    minus = v.compare("ne", v.logic("and", i, v.like(2, i)), v.like(0, i))
    value = v.select(odd, cosine, sine)
    value = v.select(minus, v.negative(value), value)
    if quarter == 0:  # -0 stays -0
        value = v.select(v.compare("eq", x, v.like(0.0, x)), x, value)
    return v.select(finite, value, v.like(NAN, x))


# Without a fused multiply-add n * part must be exact: the first two numbers of HALF_PI in two parts of 26 bits each.
_HALF_PI_SHORT = (1.5707963109016418, 1.5893254712295857e-08, 6.123233932053594e-17, 6.368317178484799e-25)


def cos(v: Vectors, x: Value) -> Value:
    return sin(v, x, quarter=1)


def fmod(v: Vectors, a: Value, b: Value) -> Value:
    """a - b trunc(a / b), with the sign of a. NaN where a is infinite or b is 0.

    r - b round(r / b) is exact with a fused multiply-add, and takes 52 bits off the quotient: exact for all floats, and
    for doubles while |a / b| < 2^312. Without one, floats cut the quotient to bits that leave the product exact, and
    doubles take the product's rounding error along.
    """
    if not is_double(a):
        return v.convert(_fmod(v, v.convert(a, DType.F64), v.convert(b, DType.F64), 28), a.dtype)
    return _fmod(v, a, b, 53)


def _fmod(v: Vectors, a: Value, b: Value, bits: int) -> Value:
    """`bits` of the quotient, times b, make an exact product without a fused multiply-add."""
    x, y = v.absolute(a), v.absolute(b)
    r = x
    short = v.isa == "plain" and bits < 53
    for _ in range(11 if short else 6):
        q = v.nearest(v.div(r, y))
        if short:
            whole = v.bits(q, DType.I64)
            q = v.bits(v.logic("and", whole, v.like(-(1 << (53 - bits)), whole)), DType.F64)
        r = v.fma(v.negative(q), y, r) if short else v.left_of(r, q, y)
    zero = v.like(0.0, a)
    r = v.select(v.compare("lt", r, zero), v.add(r, y), r)  # the last quotient was rounded up
    r = v.select(v.compare("ge", r, y), v.sub(r, y), r)
    r = v.select(v.compare("lt", x, y), x, r)
    return v.intrinsic("copysign", r, a)
