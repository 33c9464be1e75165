"""The stated error bounds of the vector functions, measured against wider arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opfuse.ir.scalar import apply
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Load, Map, Phase, Program, Store, Tile
from opfuse.tile.schedule import Schedule
from tests.codegen.native import aligned, run, target_of

COUNT = 20001
F32, F64 = DType.F32, DType.F64
ISAS = ("avx512", "avx2", "plain")

# function -> (float64 or wider reference, range of f32 arguments, of f64 arguments, ulp f32, ulp f64)
Reference = Callable[[Any], Any]
erf = np.vectorize(math.erf, otypes=[float])
BOUNDS: dict[str, tuple[Reference, float, float, float, float]] = {
    "exp": (np.exp, 87.0, 700.0, 1.5, 1.5),
    "log": (np.log, 1e30, 1e300, 1.5, 1.5),
    "tanh": (np.tanh, 10.0, 10.0, 6.0, 2.0),
    "erf": (lambda x: erf(x.astype(np.float64)), 5.0, 6.0, 8.0, 4.0),  # math.erf is itself good to 1 ulp
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 80.0, 700.0, 3.0, 3.0),
    "sin": (np.sin, 1e4, 1e4, 1.0, 2.0),
    "cos": (np.cos, 1e4, 1e4, 1.0, 2.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e30, 1e300, 1.5, 1.5),
}
POSITIVE = ("log", "rsqrt")


def evaluate(isa: str, name: str, *arrays: np.ndarray) -> np.ndarray:
    target = target_of(isa)
    dtype = DType.of(arrays[0].dtype)
    n = Axis("n", len(arrays[0]))
    buffers = [Buffer(f"X{k}", dtype, (n.extent,)) for k in range(len(arrays))]
    tiles = [Tile(f"x{k}", (n,), dtype) for k in range(len(arrays))]
    value = apply(name, *tiles)
    y, out = Tile("y", (n,), value.dtype), Buffer("Y", value.dtype, (n.extent,), "out")
    loads = [Load(t, b, (n.index,)) for t, b in zip(tiles, buffers, strict=True)]
    program = Program("f", (*buffers, out), (Phase((n,), (*loads, Map(y, value), Store(y, out, (n.index,)))),))
    given = {b.name: aligned(a) for b, a in zip(buffers, arrays, strict=True)}
    given["Y"] = aligned(np.zeros(len(arrays[0]), value.dtype.numpy))
    run(program, Schedule(tile={"n": 1024}), target, given, {})
    return given["Y"]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    spacing = np.spacing(np.abs(want.astype(got.dtype))).astype(np.longdouble)
    return float((np.abs(got.astype(np.longdouble) - want) / spacing).max())


def arguments(name: str, limit: float, dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(7)
    if name in POSITIVE:
        wide = 10 ** rng.uniform(-math.log10(limit), math.log10(limit), COUNT // 2)
        return np.concatenate([wide, rng.uniform(0.5, 2.0, COUNT - COUNT // 2)]).astype(dtype.numpy)
    small = 10 ** rng.uniform(-20, 0, COUNT // 4) * rng.choice([-1, 1], COUNT // 4)
    return np.concatenate([rng.uniform(-limit, limit, COUNT - COUNT // 4), small]).astype(dtype.numpy)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_errors_stay_within_the_stated_bounds(name: str, dtype: DType, isa: str) -> None:
    if dtype is F64 and np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no arithmetic wider than float64 here")
    reference, limit32, limit64, bound32, bound64 = BOUNDS[name]
    x = arguments(name, limit32 if dtype is F32 else limit64, dtype)
    got = evaluate(isa, name, x)
    assert ulps(got, reference(x.astype(np.longdouble))) <= (bound32 if dtype is F32 else bound64)


@pytest.mark.parametrize("isa", ISAS)
def test_pow(isa: str) -> None:
    rng = np.random.default_rng(3)
    a, b = np.abs(rng.standard_normal(COUNT)) * 3, rng.uniform(-8, 8, COUNT)
    x, y = a.astype(np.float32), b.astype(np.float32)
    assert ulps(evaluate(isa, "pow", x, y), x.astype(np.longdouble) ** y) <= 1.0
    exponent = np.abs(b * np.log(a)).max()
    assert ulps(evaluate(isa, "pow", a, b), a.astype(np.longdouble) ** b) <= 2 + 4 * exponent


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
        }.items():  # fmt: skip
            got, want = evaluate(isa, name, x), reference(x)
            np.testing.assert_allclose(got, want, rtol=8 * np.finfo(dtype).eps, err_msg=name)
            if name in ("floor", "ceil", "rint", "sqrt", "neg", "abs", "tanh"):
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
            loose = (
                4 * 709 if name == "pow" and dtype is np.float64 else 8
            )  # |b log a| < 709 where the result is finite
            got = evaluate(isa, name, a, b)
            np.testing.assert_allclose(got, two(a, b), rtol=loose * np.finfo(dtype).eps, err_msg=name)
