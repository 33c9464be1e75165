"""exp, log, tanh, erf, sigmoid, sin, cos, pow as vector arithmetic: no call of a math library.

Bounds are largest errors in units in the last place (ulp) over the stated range; the tests measure them.

    function       f32             f64             notes
    exp            1.5             1.5             overflow gives inf, underflow goes through the denormals to 0
    log            1.5             1.5             0 gives -inf, a negative number NaN; denormals are exact
    tanh           6               2
    erf            8               3               like tanh never beyond 1, and 1 far out
    sigmoid        3               3
    sin, cos       1               2               f32: |x| < 2^40 (computed in f64); f64: |x| < 2^30; plain: |x| < 2^27
    rsqrt          1.5             1.5
    pow            1               2 + 4 |y log x| f32 is computed in f64

Coefficients were fitted with mpmath: Chebyshev interpolation for the polynomials, reweighted least squares for the
rational functions.
"""

from __future__ import annotations

from opfuse.codegen.llvm.emit import Value
from opfuse.codegen.llvm.vectors import Vectors
from opfuse.ir.types import DType

INF = float("inf")
NAN = float("nan")
LOG2_E = 1.4426950408889634
LN2_HIGH_F32, LN2_LOW_F32 = 0.693359375, -2.12194440e-4  # the high part has 9 bits: n * it is exact
LN2_HIGH_F64, LN2_LOW_F64 = 0.6931471803691238, 1.9082149292705877e-10
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591815e-33)

EXP_F32 = (0.5, 0.16666573381900845, 0.04166655011030512, 0.008363773874405574, 0.0013926926614021907)
EXP_F64 = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333325544, 0.0013888888888883327, 0.00019841269876864356,
    2.4801587327007187e-05, 2.755725283351691e-06, 2.75572718102198e-07, 2.5106274733573296e-08, 2.0915442297780116e-09,
)  # fmt: skip
LOG_F32 = (
    0.33333331180030046, -0.24999996957950882, 0.200007157488921, -0.16667802319501254, 0.1424905764569748,
    -0.12425687331451106, 0.1168541992348674, -0.11479733846637635, 0.06971611471451178,
)  # fmt: skip
LOG_F64 = (
    0.666666666666667, 0.3999999999989607, 0.28571428627528794, 0.22222210881932927, 0.1818290749767122,
    0.1533111258796017, 0.1462395660821188,
)  # fmt: skip
# tanh(x) / x in x^2, |x| <= 9.02
TANH_F32_P = (
    0.9999999791742574,
    0.1337988308186558,
    0.0034942269099733922,
    2.0586478669719156e-05,
    1.332287893978654e-08,
)
TANH_F32_Q = (1.0, 0.46713198450773746, 0.025871814968092884, 0.00032834003672466117, 7.763652431581096e-07)
# tanh(x) / x in x^2, |x| <= 0.6
TANH_F64 = (
    1.0, -0.3333333333333333, 0.13333333333333244, -0.053968253968190175, 0.02186948853377581, -0.008863235476637057,
    0.003592127262170271, -0.0014558267196969476, 0.0005899742888244823, -0.00023886770703025916, 9.600287003933975e-05,
    -3.704629815804935e-05, 1.2203007535657973e-05, -2.4467668210977953e-06,
)  # fmt: skip
# erf(x) / x in x^2, |x| <= 3.92; half an ulp up, so that it reaches 1 at the end
ERF_F32_P = (1.1283792128421857, 0.19074832130864056, 0.05278567716184059, 0.0037781265505617534, 0.0002847814453799656,
             2.0423079881460023e-06)  # fmt: skip
ERF_F32_Q = (
    1.0,
    0.5023790133137725,
    0.1142429199918596,
    0.014994442232555189,
    0.0011648661849619063,
    3.80061905639495e-05,
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


def _double(x: Value) -> bool:
    return x.dtype is DType.F64


def _power_of_two(v: Vectors, n: Value) -> Value:
    """2^n for an integral n within the normal exponents, by building the exponent field."""
    wide, bias, shift = (DType.I64, 1023, 52) if _double(n) else (DType.I32, 127, 23)
    i = v.convert(n, wide)
    return v.bits(v.logic("shl", v.add(i, v.like(bias, i)), v.like(shift, i)), n.dtype)


def _scale(v: Vectors, x: Value, n: Value) -> Value:
    """x * 2^n, right through overflow and the denormals."""
    if v.isa == "avx512" and n.lanes == 16 and not _double(x):
        zero = v.like(0.0, x)
        return v.e.value(
            f"call {x.type} @llvm.x86.avx512.mask.scalef.ps.512({x}, {n}, {zero}, i16 -1, i32 4)", x.dtype, x.lanes
        )
    half = v.nearest(v.mul(n, v.like(0.5, n)))
    return v.mul(v.mul(x, _power_of_two(v, half)), _power_of_two(v, v.sub(n, half)))


def exp(v: Vectors, x: Value) -> Value:
    """x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r)."""
    lo, hi, high, low, p = (
        (-746.0, 710.0, -LN2_HIGH_F64, -LN2_LOW_F64, EXP_F64)
        if _double(x)
        else (-105.0, 89.0, -LN2_HIGH_F32, -LN2_LOW_F32, EXP_F32)
    )
    x = v.clamp(x, lo, hi)
    n = v.nearest(v.mul(x, v.like(LOG2_E, x)))
    r = v.fma(n, v.like(low, x), v.fma(n, v.like(high, x), x))
    tail = v.fma(v.mul(r, r), v.horner(p, r), r)
    return _scale(v, v.add(tail, v.like(1.0, x)), n)


def log(v: Vectors, x: Value) -> Value:
    """x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log x = k ln 2 + log(1 + f)."""
    wide, bits_ = (DType.I64, 52) if _double(x) else (DType.I32, 23)
    smallest = 2.0 ** (-1022 if _double(x) else -126)
    tiny = v.compare("lt", x, v.like(smallest, x))
    scaled = v.select(tiny, v.mul(x, v.like(2.0**bits_, x)), x)
    n = v.bits(scaled, wide)
    root = 0x3FE6A09E667F3BCD if _double(x) else 0x3F3504F3  # the bits of sqrt(1/2)
    moved = v.sub(n, v.like(root, n))
    exponent = v.logic("ashr", moved, v.like(bits_, n))
    mantissa = v.bits(v.sub(n, v.logic("shl", exponent, v.like(bits_, n))), x.dtype)
    f = v.sub(mantissa, v.like(1.0, x))
    k = v.convert(exponent, x.dtype)
    k = v.select(tiny, v.sub(k, v.like(float(bits_), x)), k)
    result = _log1p_f64(v, f, k) if _double(x) else _log1p_f32(v, f, k)
    result = v.select(v.compare("eq", x, v.like(INF, x)), x, result)
    result = v.select(v.compare("eq", x, v.like(0.0, x)), v.like(-INF, x), result)
    positive = v.compare("ge", x, v.like(0.0, x))
    return v.select(positive, result, v.like(NAN, x))


def _log1p_f32(v: Vectors, f: Value, k: Value) -> Value:
    square = v.mul(f, f)
    tail = v.mul(v.mul(square, f), v.horner(LOG_F32, f))
    tail = v.fma(k, v.like(LN2_LOW_F32, f), tail)
    tail = v.fma(square, v.like(-0.5, f), tail)
    return v.fma(k, v.like(LN2_HIGH_F32, f), v.add(f, tail))


def _log1p_f64(v: Vectors, f: Value, k: Value) -> Value:
    """With s = f / (2 + f): log(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2)))."""
    s = v.div(f, v.add(f, v.like(2.0, f)))
    z = v.mul(s, s)
    half = v.mul(v.mul(f, f), v.like(0.5, f))
    rest = v.mul(z, v.horner(LOG_F64, z))
    tail = v.fma(s, v.add(half, rest), v.mul(k, v.like(LN2_LOW_F64, f)))
    return v.fma(k, v.like(LN2_HIGH_F64, f), v.sub(f, v.sub(half, tail)))


def _quotient(v: Vectors, a: Value, b: Value) -> Value:
    """a / b; on AVX-512 by an approximate reciprocal and one Newton step, for b far from 0 and infinity."""
    if v.isa == "avx512" and a.lanes == 16 and not _double(a):
        zero = v.like(0.0, a)
        r = v.e.value(f"call {b.type} @llvm.x86.avx512.rcp14.ps.512({b}, {zero}, i16 -1)", b.dtype, b.lanes)
        error = v.fma(v.negative(b), r, v.like(1.0, b))
        return v.mul(a, v.fma(r, error, r))
    return v.div(a, b)


def tanh(v: Vectors, x: Value) -> Value:
    if not _double(x):
        x = v.clamp(x, -9.02, 9.02)
        t = v.mul(x, x)
        return v.clamp(_quotient(v, v.mul(x, v.horner(TANH_F32_P, t)), v.horner(TANH_F32_Q, t)), -1.0, 1.0)
    a = v.absolute(x)
    near = v.mul(x, v.horner(TANH_F64, v.mul(x, x)))
    e = exp(v, v.add(a, a))
    far = v.sub(v.like(1.0, x), v.div(v.like(2.0, x), v.add(e, v.like(1.0, x))))
    return v.select(v.compare("lt", a, v.like(0.6, x)), near, v.intrinsic("copysign", far, x))


def erf(v: Vectors, x: Value) -> Value:
    if not _double(x):
        x = v.clamp(x, -3.92, 3.92)
        t = v.mul(x, x)
        return v.clamp(_quotient(v, v.mul(x, v.horner(ERF_F32_P, t)), v.horner(ERF_F32_Q, t)), -1.0, 1.0)
    near = v.mul(x, v.horner(ERF_F64_NEAR, v.mul(x, x)))
    a = v.absolute(x)
    c = v.clamp(a, 1.0, 6.0)
    u = v.div(v.sub(c, v.like(2.0, x)), v.add(c, v.like(2.0, x)))
    tail = v.mul(exp(v, v.negative(v.mul(c, c))), v.horner(ERFC_F64_FAR, u))
    far = v.intrinsic("copysign", v.sub(v.like(1.0, x), tail), x)
    return v.select(v.compare("gt", a, v.like(1.0, x)), far, near)


def sigmoid(v: Vectors, x: Value) -> Value:
    one = v.like(1.0, x)
    return v.div(one, v.add(one, exp(v, v.negative(x))))


def sin(v: Vectors, x: Value, quarter: int = 0) -> Value:
    """x = n pi/2 + r; the quadrant n (+ 1 for cos) picks the polynomial and the sign."""
    if not _double(x):
        return v.convert(sin(v, v.convert(x, DType.F64), quarter), x.dtype)
    finite = v.compare("lt", v.absolute(x), v.like(INF, x))
    safe = v.select(v.compare("lt", v.absolute(x), v.like(2.0**50, x)), x, v.like(0.0, x))
    n = v.nearest(v.mul(safe, v.like(1.0 / HALF_PI[0], x)))
    r = safe
    for part in HALF_PI[:2] if v.isa != "plain" else (*_HALF_PI_SHORT, HALF_PI[1]):
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


# Without a fused multiply-add n * part must be exact: pi/2 in two parts of 26 bits and a rest.
_HALF_PI_SHORT = (1.5707963109016418, 1.5893254712295857e-08)


def cos(v: Vectors, x: Value) -> Value:
    return sin(v, x, quarter=1)


def fmod(v: Vectors, a: Value, b: Value) -> Value:
    """a - b trunc(a / b), with the sign of a. NaN where a is infinite or b is 0.

    r - b round(r / b) is exact with a fused multiply-add, and takes 52 bits off the quotient: exact for all floats, and
    for doubles while |a / b| < 2^312. Without one, the quotient is cut to bits that leave the product exact (floats).
    """
    if not _double(a):
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
        r = v.fma(v.negative(q), y, r)
    zero = v.like(0.0, a)
    r = v.select(v.compare("lt", r, zero), v.add(r, y), r)  # the last quotient was rounded up
    r = v.select(v.compare("ge", r, y), v.sub(r, y), r)
    r = v.select(v.compare("lt", x, y), x, r)
    return v.intrinsic("copysign", r, a)


def pow(v: Vectors, a: Value, b: Value) -> Value:
    """|a|^b = e^(b log |a|), with the sign and the special cases of IEEE pow."""
    if not _double(a):
        return v.convert(pow(v, v.convert(a, DType.F64), v.convert(b, DType.F64)), a.dtype)
    zero, one = v.like(0.0, a), v.like(1.0, a)
    size = exp(v, v.mul(b, log(v, v.absolute(a))))
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
