"""The stated error bounds of the vector functions, measured against wider arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opfuse.ir.scalar import Scalar, apply
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Load, Map, Phase, Program, Store, Tile
from opfuse.tile.schedule import Schedule
from tests.codegen.native import aligned, run, target_of

COUNT = 20001
F32, F64 = DType.F32, DType.F64
ISAS = ("avx512", "avx2", "plain")

Reference = Callable[[Any], Any]
Range = tuple[float, float]
WIDE = np.longdouble


def _density(t: Any) -> Any:
    """exp(-t^2 / 2) / sqrt(2 pi), the square taken in two parts."""
    top = (t.astype(np.float64).view(np.int64) >> np.int64(30) << np.int64(30)).view(np.float64).astype(WIDE)
    return np.exp(-top * top / 2) * np.exp(-(top + t) * (t - top) / 2) / np.sqrt(8 * np.arctan(WIDE(1)))


def _between(t: Any) -> Any:
    """The normal distribution between 0 and t: its Taylor series over the density, of positive terms."""
    term = total = t
    for k in range(1, 250):
        term = term * t * t / (2 * k + 1)
        total = total + term
    return _density(t) * total


def normcdf(x: Any) -> Any:
    """In the tail by the continued fraction of Mills' ratio (Abramowitz and Stegun, 26.2.14)."""
    t, rest = np.abs(x), WIDE(0)
    for k in range(400, 0, -1):
        rest = k / (t + rest)
    tail = np.where(t < 2, WIDE(0.5) - _between(np.minimum(t, 2)), _density(t) / (t + rest))
    return np.where(x > 0, 1 - tail, tail)


def erf(x: Any) -> Any:
    return np.copysign(2 * _between(np.abs(x) * np.sqrt(WIDE(2))), x)


def sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# function -> (reference in wider arithmetic, range of f32 arguments, of f64 arguments, ulp f32, ulp f64)
HUGE = ((-3e38, 3e38), (-1e308, 1e308))
POSITIVE = ((1e-45, 3e38), (5e-324, 1e308))
BOUNDS: dict[str, tuple[Reference, Range, Range, float, float]] = {
    "exp": (np.exp, (-104.0, 88.7), (-745.2, 709.7), 1.5, 1.5),
    "log": (np.log, *POSITIVE, 1.5, 1.5),
    "tanh": (np.tanh, (-12.0, 12.0), (-25.0, 25.0), 4.5, 2.0),
    "erf": (erf, (-5.0, 5.0), (-7.0, 7.0), 4.5, 3.0),
    "sigmoid": (sigmoid, (-104.0, 104.0), (-745.2, 745.2), 3.0, 3.0),
    "sin": (np.sin, (-1e4, 1e4), (-1e4, 1e4), 1.0, 2.0),
    "cos": (np.cos, (-1e4, 1e4), (-1e4, 1e4), 1.0, 2.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), *POSITIVE, 1.5, 1.5),
    "expm1": (np.expm1, (-200.0, 88.7), (-800.0, 709.7), 2.0, 2.0),
    "log1p": (np.log1p, (-0.99999994, 3e38), (-1 + 2.0**-53, 1e308), 1.5, 1.5),
    "normcdf": (normcdf, (-14.2, 10.0), (-38.5, 10.0), 4.0, 4.0),
}
UNFUSED = {"tanh": 6.0, "erf": 6.0, "normcdf": 5.0}  # f32 on a CPU without multiply-add


def evaluate(isa: str, name: str, *arrays: np.ndarray) -> np.ndarray:
    return evaluate_formula(isa, lambda *x: apply(name, *x), *arrays)


def evaluate_formula(isa: str, formula: Callable[..., Scalar], *arrays: np.ndarray) -> np.ndarray:
    """The formula at every point, by native code; it is given the arrays' tiles."""
    target = target_of(isa)
    dtype = DType.of(arrays[0].dtype)
    n = Axis("n", len(arrays[0]))
    buffers = [Buffer(f"X{k}", dtype, (n.extent,)) for k in range(len(arrays))]
    tiles = [Tile(f"x{k}", (n,), dtype) for k in range(len(arrays))]
    value = formula(*tiles)
    y, out = Tile("y", (n,), value.dtype), Buffer("Y", value.dtype, (n.extent,), "out")
    loads = [Load(t, b, (n.index,)) for t, b in zip(tiles, buffers, strict=True)]
    program = Program("f", (*buffers, out), (Phase((n,), (*loads, Map(y, value), Store(y, out, (n.index,)))),))
    given = {b.name: aligned(a) for b, a in zip(buffers, arrays, strict=True)}
    given["Y"] = aligned(np.zeros(len(arrays[0]), value.dtype.numpy))
    run(program, Schedule(tile={"n": 1024}), target, given, {})
    return given["Y"]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    spacing = np.spacing(np.abs(want.astype(got.dtype))).astype(WIDE)
    return float((np.abs(got.astype(WIDE) - want) / spacing).max())


def arguments(limits: Range, dtype: DType) -> np.ndarray:
    """As many numbers of each binade of the range, down to the denormals, and as many of each interval; its ends."""
    rng, (low, high), kind = np.random.default_rng(7), limits, np.finfo(dtype.numpy)
    even = rng.uniform(low, high, COUNT // 2) if high < 1e30 else rng.uniform(max(low, -1.0), 3.0, COUNT // 2)
    top = math.log2(max(abs(low), abs(high)))
    binades = 2.0 ** rng.uniform(kind.minexp - kind.nmant, top, COUNT) * rng.choice([-1, 1], COUNT)
    x = np.concatenate([even, binades[(binades >= low) & (binades <= high)], [low, high]]).astype(dtype.numpy)
    return x[(x >= dtype.numpy.type(low)) & (x <= dtype.numpy.type(high))]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_errors_stay_within_the_stated_bounds(name: str, dtype: DType, isa: str) -> None:
    if dtype is F64 and np.finfo(WIDE).eps > 1e-18:
        pytest.skip("no arithmetic wider than float64 here")
    reference, limits32, limits64, bound32, bound64 = BOUNDS[name]
    x = arguments(limits32 if dtype is F32 else limits64, dtype)
    bound = bound64 if dtype is F64 else UNFUSED.get(name, bound32) if isa == "plain" else bound32
    with np.errstate(all="ignore"):
        want = reference(x.astype(WIDE))
    assert ulps(evaluate(isa, name, x), want) <= bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BOUNDS)
def test_every_lane_and_the_rest_of_a_row_give_the_same_bits(name: str, isa: str) -> None:
    """A number's value does not hang on where it stands: in any lane, or in the masked vector at the end."""
    x = np.resize(arguments(BOUNDS[name][1], F32), 67)
    rows = [evaluate(isa, name, np.roll(x, k)) for k in range(0, 67, 5)]
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(np.roll(row, -5 * k).view(np.int32), rows[0].view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow(dtype: Any, isa: str) -> None:
    """Bases of all binades and next to 1, with exponents that reach from the smallest result to the largest."""
    rng, kind = np.random.default_rng(3), np.finfo(dtype)
    near = 1 + 2.0 ** rng.uniform(-kind.nmant, -1, COUNT) * rng.choice([-1, 1], COUNT)
    a = np.concatenate([2.0 ** rng.uniform(kind.minexp - kind.nmant, kind.maxexp - 1, COUNT), near]).astype(dtype)
    a = a[(a > 0) & (a != 1)]
    powers = rng.uniform(np.log(kind.tiny), np.log(kind.max), len(a))
    b = (powers / np.log(a.astype(np.float64))).astype(dtype)
    with np.errstate(all="ignore"):
        want = _power(a, b)
        fits = want < float(kind.max)
    error = ulps(evaluate(isa, "pow", a, b)[fits], want[fits])
    assert error <= (1.0 if dtype is np.float32 else 2.0)


def _power(a: np.ndarray, b: np.ndarray) -> Any:
    """a^b in wider arithmetic, the exponent of 2 in two parts: x87's own power loses 10 bits of a large exponent."""
    mantissa, exponent = np.frexp(a.astype(WIDE))
    mantissa, exponent = np.where(mantissa < 0.75, 2 * mantissa, mantissa), exponent - (mantissa < 0.75)
    f = mantissa - 1
    s = f / (2 + f)
    left = (f - _product(s, 2 + f)[0]) - _product(s, 2 + f)[1]
    high, low = 2 * s, 2 * left / (2 + f)
    z = s * s
    series, term = WIDE(0), s * z
    for n in range(3, 90, 2):
        series, term = series + 2 * term / n, term * z
    return _scaled_power(exponent, high, low + series, b.astype(WIDE))


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b and its rounding error (Dekker)."""

    def halves(x: Any) -> tuple[Any, Any]:
        c = x * (2.0**32 + 1)
        return c - (c - x), x - (c - (c - x))

    (a1, a2), (b1, b2) = halves(a), halves(b)
    p = a * b
    return p, ((a1 * b1 - p) + (a1 * b2 + a2 * b1)) + a2 * b2


def _scaled_power(exponent: Any, high: Any, low: Any, b: Any) -> Any:
    """2^(exponent b) e^(b (high + low)): whole powers of 2 taken out of both."""
    p, p_low = _product(b, high)
    q, q_low = _product(b, exponent.astype(WIDE))
    whole = np.rint(q)
    rest = (q - whole + q_low) * np.log(WIDE(2)) + p_low + b * low
    n = np.rint(p / np.log(WIDE(2)))
    ln2 = (WIDE(0x162E42FEFA39EF) * WIDE(2.0**-53), WIDE(2.3190468138462996e-17))
    r = (p - n * ln2[0]) - n * ln2[1] + rest
    return np.exp(r) * WIDE(2) ** (whole + n)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_next_to_their_zeros(name: str, isa: str) -> None:
    """Doubles next to multiples of pi / 2, as far as the quotient is exact: small results keep their digits."""
    quarters = np.random.default_rng(5).integers(1, 2**26 if isa == "plain" else 2**29, COUNT)
    for x in (quarters * (np.pi / 2), (quarters * (np.pi / 2)).astype(np.float32)):
        want = {"sin": np.sin, "cos": np.cos}[name](x.astype(WIDE))
        assert ulps(evaluate(isa, name, x), want) <= (1.0 if x.dtype == np.float32 else 2.0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(isa: str, dtype: Any) -> None:
    big = 1e30 if dtype is np.float32 else 1e300
    tiny = np.nextafter(dtype(0), dtype(1))
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, big, -big, tiny, -tiny, 0.5, 2.5, -1.5, -0.25], dtype)
    with np.errstate(all="ignore"):
        for name, reference in {
            "exp": np.exp, "log": np.log, "tanh": np.tanh, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil,
            "rint": np.rint, "abs": np.abs, "neg": np.negative, "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
            "expm1": np.expm1, "log1p": np.log1p, "erf": lambda v: np.vectorize(math.erf)(v).astype(v.dtype),
            "normcdf": lambda v: np.vectorize(lambda a: math.erfc(-a / math.sqrt(2)) / 2)(v).astype(v.dtype),
        }.items():  # fmt: skip
            got, want = evaluate(isa, name, x), reference(x)
            np.testing.assert_allclose(got, want, rtol=8 * np.finfo(dtype).eps, err_msg=name)
            if name in ("floor", "ceil", "rint", "sqrt", "neg", "abs", "tanh", "erf", "expm1", "log1p"):
                zero = want == 0
                np.testing.assert_array_equal(
                    np.signbit(got[zero]), np.signbit(want[zero]), err_msg=f"sign of 0, {name}"
                )
        for name, two in {
            "pow": np.power,
            "fmod": np.fmod,
            "mod": np.mod,
            "max": np.maximum,
            "min": np.minimum,
        }.items():
            a, b = (v.ravel() for v in np.meshgrid(x, x))
            if name in ("fmod", "mod"):
                keep = ~(np.abs(a) > 2.0**40 * np.abs(b)) & np.isfinite(b)
                a, b = a[keep], b[keep]
            got = evaluate(isa, name, a, b)
            np.testing.assert_allclose(got, two(a, b), rtol=8 * np.finfo(dtype).eps, err_msg=name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_and_whole_quotients_are_exact(dtype: Any, isa: str) -> None:
    """fmod is exact; mod adds the divisor at most; a whole quotient is the rounded one, or a double next to it."""
    rng = np.random.default_rng(9)
    a, b = ((rng.choice([-1, 1], 2000) * 2.0 ** rng.uniform(-30, 30, 2000)).astype(dtype) for _ in range(2))
    np.testing.assert_array_equal(evaluate(isa, "fmod", a, b), np.fmod(a, b))
    exact = [Fraction(float(x)) // Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    rests = [float(Fraction(float(x)) % Fraction(float(y))) for x, y in zip(a, b, strict=True)]
    assert ulps(evaluate(isa, "mod", a, b), np.array(rests, WIDE)) <= 1.0
    assert ulps(evaluate(isa, "floordiv", a, b), np.array([float(n) for n in exact], WIDE)) <= 1.0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_to_integers(dtype: Any, isa: str) -> None:
    """Halves of every size, up to the last numbers that have a fraction."""
    binades = 2.0 ** np.arange(-3, np.finfo(dtype).nmant + 3)
    x = (binades[:, None] * np.linspace(1, 2, 33)).ravel()
    x = np.concatenate([x, np.rint(x) + 0.5, -x, -np.rint(x) - 0.5]).astype(dtype)
    for name, function in (("rint", np.rint), ("floor", np.floor), ("ceil", np.ceil)):
        np.testing.assert_array_equal(evaluate(isa, name, x), function(x), err_msg=name)


def assert_half(got: np.ndarray, want: Any, dtype: DType) -> None:
    """Within half a unit in the last place of f16 or bf16, and what a float adds to that."""
    digits, least = (11, -24) if dtype is DType.F16 else (8, -133)
    unit = np.maximum(np.ldexp(1.0, np.frexp(want.astype(np.float64))[1] - digits), 2.0**least)
    largest = 65504.0 if dtype is DType.F16 else 3.3895e38
    fits = np.abs(want) <= largest
    assert (np.abs(got.astype(np.float64) - want)[fits] <= 0.51 * unit[fits]).all()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", BOUNDS)
def test_every_number_of_half_precision(name: str, dtype: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    low, high = BOUNDS[name][1]
    wide = x.astype(np.float32)
    x = x[np.isfinite(wide) & (wide >= low) & (wide <= high)]
    with np.errstate(all="ignore"):
        want = BOUNDS[name][0](x.astype(np.float64).astype(WIDE))
    assert_half(evaluate("avx2", name, x), want, dtype)
