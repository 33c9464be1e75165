'''expm1, log1p, sigmoid and normcdf as jitted functions of a generated file: the formulas that the CPU's vectors use.

    PRELUDE["log1p_f32"]   -> """@triton.jit def log1p_f32(x): ..."""

Triton's own exp and log of float32 are approximations with an absolute error in the exponent; what must be right where
it is small is computed from the bits of the number instead.
'''

from __future__ import annotations

from collections.abc import Sequence

from opfuse.codegen.polynomials import (
    EXP_F32,
    EXP_F64,
    EXPM1_F32,
    LN2_HIGH_F32,
    LN2_HIGH_F64,
    LN2_LOW_F32,
    LN2_LOW_F64,
    LOG2_E,
    LOG_F32,
    TAIL_F32,
    TAIL_F64,
)


def _horner(coefficients: Sequence[float], x: str, name: str = "p") -> str:
    """Lines that leave the polynomial in `name`."""
    lines = [f"    {name} = {x} * 0.0 + {coefficients[-1]!r}"]
    lines += [f"    {name} = {name} * {x} + {c!r}" for c in coefficients[-2::-1]]
    return "\n".join(lines)


def _exp_of_sum(suffix: str, low: float, high: float, parts: tuple[float, float], bits: int, bias: int, shift: int,
                polynomial: Sequence[float]) -> str:  # fmt: skip
    """e^(x + rest), the rest far below x; the power of two comes in two halves, for the denormals."""
    return f"""
@triton.jit
def exp_of_sum_{suffix}(x, rest):
    c = tl.where(x < {low}, {low}, tl.where(x > {high}, {high}, x))
    n = tl.floor(c * {LOG2_E!r} + 0.5)
    r = c - n * {parts[0]!r}
    r = r - n * {parts[1]!r} + rest
{_horner(polynomial, "r")}
    e = 1.0 + (r + r * r * p)
    m = tl.floor(n * 0.5)
    one = ((m.to(tl.int{bits}) + {bias}) << {shift}).to(tl.float{bits}, bitcast=True)
    two = (((n - m).to(tl.int{bits}) + {bias}) << {shift}).to(tl.float{bits}, bitcast=True)
    return e * one * two
"""


def _normcdf(suffix: str, end: float, bits: int, mask: int, polynomial: Sequence[float]) -> str:
    """The tail e^(-t^2/2) g(t) at t = |x|; the square's rounding error by Dekker's product of halves."""
    return f"""
@triton.jit
def normcdf_{suffix}(x):
    t = tl.abs(x)
    t = tl.where(t > {end}, {end}, t)
    top = ((t.to(tl.int{bits}, bitcast=True) >> {mask}) << {mask}).to(tl.float{bits}, bitcast=True)
    low = t - top
    square = t * t
    error = ((top * top - square) + 2.0 * (top * low)) + low * low
    e = exp_of_sum_{suffix}(square * -0.5, error * -0.5)
    u = (t - 4.0) / (t + 4.0)
{_horner(polynomial, "u")}
    tail = e * (p / (t + 4.0))
    return tl.where(x > 0.0, 1.0 - tail, tail)
"""


PRELUDE: dict[str, str] = {
    "exp_of_sum_f32": _exp_of_sum("f32", -105.0, 89.0, (LN2_HIGH_F32, LN2_LOW_F32), 32, 127, 23, EXP_F32),
    "exp_of_sum_f64": _exp_of_sum("f64", -746.0, 710.0, (LN2_HIGH_F64, LN2_LOW_F64), 64, 1023, 52, EXP_F64),
    "expm1_f32": f"""
@triton.jit
def expm1_f32(x):
    c = tl.where(x < -18.0, -18.0, tl.where(x > 89.0, 89.0, x))
    n = tl.floor(c * {LOG2_E!r} + 0.5)
    r = c - n * {LN2_HIGH_F32!r}
    r = r - n * {LN2_LOW_F32!r}
{_horner(EXPM1_F32, "r")}
    half = ((n.to(tl.int32) + 126) << 23).to(tl.float32, bitcast=True)
    near_one = half * (r + r * r * p) + (half - 0.5)
    return tl.where(tl.abs(x) < {2.0**-25!r}, x, near_one + near_one)
""",
    "expm1_f64": f"""
@triton.jit
def expm1_f64(x):
{_horner(EXP_F64, "x")}
    near = tl.where(tl.abs(x) < {2.0**-54!r}, x, x + x * x * p)
    return tl.where(tl.abs(x) < 0.34, near, tl.exp(x) - 1.0)
""",
    "log1p_f32": f"""
@triton.jit
def log1p_f32(x):
    u = 1.0 + x
    back = u - 1.0
    d = (1.0 - (u - back)) + (x - back)
    n = u.to(tl.int32, bitcast=True)
    k = (n - 0x3F3504F3) >> 23
    f = (n - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    exponent = k.to(tl.float32)
    square = f * f
{_horner(LOG_F32, "f")}
    tail = square * f * p + d / u
    tail = exponent * {LN2_LOW_F32!r} + tail
    tail = square * -0.5 + tail
    made = exponent * {LN2_HIGH_F32!r} + (f + tail)
    made = tl.where(u == float("inf"), u, tl.where(u == 0.0, float("-inf"), made))
    made = tl.where(u >= 0.0, made, float("nan"))
    return tl.where(x == 0.0, x, made)
""",
    "log1p_f64": """
@triton.jit
def log1p_f64(x):
    u = 1.0 + x
    back = u - 1.0
    made = tl.log(u) + ((1.0 - (u - back)) + (x - back)) / u
    made = tl.where(u == float("inf"), u, tl.where(u == 0.0, float("-inf"), made))
    return tl.where(x == 0.0, x, made)
""",
    "logistic_f32": """
@triton.jit
def logistic_f32(x):
    e = exp_of_sum_f32(tl.abs(x) * -1.0, 0.0)
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)
""",
    "logistic_f64": """
@triton.jit
def logistic_f64(x):
    e = tl.exp(tl.abs(x) * -1.0)
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)
""",
    "rsqrt_f32": """
@triton.jit
def rsqrt_f32(x):
    return tl.div_rn(1.0, tl.sqrt_rn(x))
""",
    "normcdf_f32": _normcdf("f32", 14.5, 32, 12, TAIL_F32),
    "normcdf_f64": _normcdf("f64", 39.0, 64, 27, TAIL_F64),
}
