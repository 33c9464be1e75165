"""Neighbours of R12, R14, R31, R32, R34, R35, R38: bounds, NaN, float and integer arithmetic, in vectors and tails.

Lengths 1, 7, 17 and 33 leave tails of vectors of every width, 0 is no element.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.cases.agreement import answers_of, check, check_model
from tests.frontends.small_models import small

F32, F16, F64, BF16 = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
NAN, INF = np.nan, np.inf
SPECIAL = [NAN, -5, 0.0, -0.0, INF, -INF, 0.5, 3, 1e-40, -2.5]
LENGTHS = [0, 1, 7, 17, 33]


def special(length: int, dtype: Any = F32, shift: int = 0) -> np.ndarray:
    """The special values over and over, from another one on for each shift."""
    with np.errstate(all="ignore"):
        return np.resize(np.roll(np.array(SPECIAL, dtype), shift), length).astype(dtype)


# ---- R12, R14: bounds ------------------------------------------------------------------------------------------------
def clipped(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """min(max(x, low), high), where the upper bound wins and NaN stays."""
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


PAIRS = [((-1, None), None), ((None, 1), None), ((-1, 1), None), ((-1, 1), (2, 6)), ((2, 6), (-1, 1)),
         ((-1, 1), (0, 6)), ((0, None), (None, 0.5)), ((3, 1), (0, 2)), ((0, 6), (3, 1)),
         ((-INF, INF), (1, None))]  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("relu", ["before", "between", "after", "no"])
def test_r12_bounds_behind_bounds(relu: str, dtype: type) -> None:
    """All pairs of bounds at once, with a ReLU in each place; the middle values have a second reader in some."""
    x = special(17, dtype)
    constants: dict[str, np.ndarray] = {}
    texts, right = [], {}
    for k, (first, second) in enumerate(PAIRS):
        names = []
        for j, bounds in enumerate((first, second or (None, None))):
            for side, bound in zip("lh", bounds, strict=True):
                if bound is not None:
                    constants[f"{side}{k}{j}"] = np.array(bound, dtype)
            names.append([f"{s}{k}{j}" if b is not None else '""' for s, b in zip("lh", bounds, strict=True)])
        steps = [("Clip", names[0]), *([("Clip", names[1])] if second else [])]
        place = {"before": 0, "between": 1, "after": len(steps), "no": None}[relu]
        if place is not None:
            steps.insert(place, ("Relu", []))
        y, name = x, "x"
        for j, (op, bounds) in enumerate(steps):
            y = np.maximum(y, dtype(0)) if op == "Relu" else clipped(y, *(constants.get(b) for b in bounds))
            after = f"y{k}" if j == len(steps) - 1 else f"t{k}_{j}"
            texts.append(f"{after} = {op} ({', '.join([name, *bounds])})")
            name = after
        right[f"y{k}"] = y
    check(13, {"x": x}, " ".join(texts), right, constants=constants)


@pytest.mark.parametrize("opset", [7, 11, 12, 13])
def test_r12_r14_bounds_at_every_opset(opset: int) -> None:
    """As attributes, then as inputs that are constant, fed, or left out."""
    x = special(33)
    if opset == 7:
        body = """a = Clip <min = -1.0, max = 2.0> (x) b = Clip <min = 3.0, max = 1.0> (x) c = Clip <max = 0.0> (x)
                  d = Clip (x)"""
        check(7, {"x": x}, body, {"a": clipped(x, -1, 2), "b": clipped(x, 3, 1), "c": clipped(x, None, 0), "d": x})
        return
    body = 'a = Clip (x, l, h) b = Clip (x, h, l) c = Clip (x, "", z) d = Clip (x) r = Relu (a)'
    right = {"a": clipped(x, -1, 2), "b": clipped(x, 2, -1), "c": clipped(x, None, 0), "d": x,
             "r": np.maximum(clipped(x, -1, 2), F32(0))}  # fmt: skip
    bounds = {"l": np.array(-1, F32), "h": np.array(2, F32), "z": np.array(0, F32)}
    check(opset, {"x": x}, body, right, constants=bounds)
    check(opset, {"x": x, **bounds}, body, right)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("length", [1, 7, 33])
def test_r12_bounds_of_integers(dtype: type, length: int) -> None:
    info = np.iinfo(dtype)
    x = np.resize(np.array([info.min, info.max, 3, 7, 100], dtype), length)
    c = {"l": np.array(5, dtype), "h": np.array(100, dtype)}
    right = {"a": np.clip(x, 5, 100), "b": np.minimum(np.maximum(x, 100), 5).astype(dtype), "c": np.clip(x, 5, None)}
    check(13, {"x": x}, "a = Clip (x, l, h) b = Clip (x, h, l) c = Clip (x, l)", right, constants=c, exact=True)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("length", [1, 5, 17])
def test_r14_a_bound_that_is_no_number(length: int, fed: bool) -> None:
    """It makes every result NaN, as `minimum` and `maximum` do: fused as unfused, in vectors as in tails."""
    x = np.resize(np.array([0.25, -6, 2, 9, NAN], F32), length)
    bounds = {"n": np.array(NAN, F32), "z": np.array(0, F32)}
    body = "a = Clip (x, n, z) b = Clip (x, z, n) r = Relu (x) c = Clip (r, z, n)"
    every = np.full(length, NAN, F32)
    check(13, {"x": x, **(bounds if fed else {})}, body, {"a": every, "b": every, "c": every},
          constants={} if fed else bounds)  # fmt: skip


# ---- R31: NaN --------------------------------------------------------------------------------------------------------
def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


KEEP_NAN = {  # operator -> what it makes of numbers
    "Relu (x)": lambda x: np.maximum(x, 0), "LeakyRelu <alpha = 0.25> (x)": lambda x: np.where(x < 0, x * 0.25, x),
    "HardSigmoid <alpha = 0.5, beta = 0.25> (x)": lambda x: np.clip(x * 0.5 + 0.25, 0, 1), "Abs (x)": np.abs,
    "HardSwish (x)": lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Sigmoid (x)": sigmoid, "Tanh (x)": np.tanh,
    "Elu (x)": lambda x: np.where(x < 0, np.expm1(x), x), "Sign (x)": np.sign, "Floor (x)": np.floor, "Exp (x)": np.exp,
    "Ceil (x)": np.ceil, "Round (x)": np.round, "Erf (x)": lambda x: np.array([math.erf(v) for v in x]),
    "PRelu (x, s)": lambda x: np.where(x < 0, x * 0.25, x), "Max (x, s)": lambda x: np.maximum(x, 0.25),
    "Max (s, x)": lambda x: np.maximum(x, 0.25), "Min (x, s)": lambda x: np.minimum(x, 0.25),
    "Min (s, x)": lambda x: np.minimum(x, 0.25), "Softplus (x)": lambda x: np.log1p(np.exp(x)),
    "Softsign (x)": lambda x: x / (1 + abs(x)),
    "ThresholdedRelu <alpha = 1.0> (x)": lambda x: np.where(x > 1, x, 0), "Neg (x)": np.negative,
    "Clip (x, s, t)": lambda x: np.clip(x, 0.25, 1.5), "Clip (x, s)": lambda x: np.maximum(x, 0.25),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("length", [1, 7, 17, 33])
def test_r31_nan_in_every_place_of_every_function(length: int, dtype: type) -> None:
    x = np.resize(np.array([-2.5, NAN, 0.75, 2], dtype), length)
    x[-1] = NAN
    texts = [f"y{k} = {text}" for k, text in enumerate(KEEP_NAN)]
    with np.errstate(all="ignore"):
        right = {f"y{k}": f(x.astype(float)).astype(dtype) for k, f in enumerate(KEEP_NAN.values())}
    assert all(np.isnan(y[-1]) for k, y in right.items() if "Thresholded" not in texts[int(k[1:])])
    c = {"s": np.array(0.25, dtype), "t": np.array(1.5, dtype)}
    check(16, {"x": x}, " ".join(texts), right, constants=c, terms=4)


REDUCED = {
    "Max": np.max, "Min": np.min, "Sum": np.sum, "Mean": np.mean, "Prod": np.prod,
    "SumSquare": lambda a, **k: np.sum(a * a, **k),
    "L1": lambda a, **k: np.sum(np.abs(a), **k), "L2": lambda a, **k: np.sqrt(np.sum(a * a, **k)),
    "LogSumExp": lambda a, **k: np.log(np.sum(np.exp(a), **k)),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 3, 8, 17])
def test_r31_nan_in_every_reduction(length: int, axis: int) -> None:
    """One row has none, one begins with it, one ends with it; the arg of a maximum is where the first one is."""
    x = np.linspace(-1, 1, 3 * length, dtype=F32).reshape(3, length)
    x[1, 0] = x[2, -1] = NAN
    x = np.moveaxis(np.stack([x, x * F32(0.5)]), 2, axis)  # the long axis stands at `axis`
    body = " ".join(f"r{k} = Reduce{op} <axes = [{axis}], keepdims = 0> (x)" for k, op in enumerate(REDUCED))
    right = {f"r{k}": f(x.astype(float), axis=axis).astype(F32) for k, f in enumerate(REDUCED.values())}
    check(12, {"x": x}, body, right, terms=4 * length)
    args = {"p": np.argmax(x, axis), "q": np.argmin(x, axis)}
    body = f"p = ArgMax <axis = {axis}, keepdims = 0> (x) q = ArgMin <axis = {axis}, keepdims = 0> (x)"
    check(13, {"x": x}, body, args, exact=True, native=False)


def test_r31_nan_in_pools_softmax_and_products() -> None:
    x = np.linspace(-1, 1, 2 * 5 * 6, dtype=F32).reshape(1, 2, 5, 6)
    x[0, 1, 2, 3] = NAN
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    e = np.exp(x.astype(float))
    right = {"m": windows.max((-1, -2)), "a": windows.mean((-1, -2)), "g": x.max((2, 3), keepdims=True),
             "s": (e / e.sum(-1, keepdims=True)).astype(F32), "p": x @ np.ones((6, 3), F32)}  # fmt: skip
    body = """m = MaxPool <kernel_shape = [2, 2]> (x) a = AveragePool <kernel_shape = [2, 2]> (x) g = GlobalMaxPool (x)
              s = Softmax (x) p = MatMul (x, w)"""
    check(13, {"x": x}, body, right, constants={"w": np.ones((6, 3), F32)}, terms=8)
    assert [int(np.isnan(right[k]).sum()) for k in "magsp"] == [4, 4, 1, 6, 3]


# ---- R32: algebra over the reals -------------------------------------------------------------------------------------
def of(x: Any, dtype: Any = F32) -> np.ndarray:
    return np.array(x, dtype)


ALGEBRA: dict[str, tuple[list[float], str, Any]] = {  # name -> x, nodes, what comes out in the type's own arithmetic
    "log exp": ([89, -200, 1], "t = Exp (x) y = Log (t)", [INF, -INF, 1]),
    "exp log": ([-1, 0, 4], "t = Log (x) y = Exp (t)", [NAN, 0, 4]),
    "root of square": ([2e19, -3, -INF], "t = Mul (x, x) y = Sqrt (t)", [INF, 3, INF]),
    "square of root": ([-1, 4, 2], "t = Sqrt (x) y = Mul (t, t)", [NAN, 4, 2]),
    "power of power": ([-3, 1e30, 2], "t = Pow (x, two) y = Pow (t, half)", [3, INF, 2]),
    "times zero": ([INF, NAN, -1, 1], "y = Mul (x, zero)", [NAN, NAN, -0.0, 0]),
    "zero times": ([INF, NAN, -1, 1], "y = Mul (zero, x)", [NAN, NAN, -0.0, 0]),
    "minus itself": ([INF, -INF, NAN, 1], "y = Sub (x, x)", [NAN, NAN, NAN, 0]),
    "by itself": ([0, INF, -2, NAN], "y = Div (x, x)", [NAN, NAN, 1, NAN]),
    "plus and minus": ([1, 5], "t = Add (x, big) y = Sub (t, big)", [0, 8]),
    "minus and plus": ([1, -5], "t = Sub (x, big) y = Add (big, t)", [0, -8]),
    "there and back": ([1e20, 1], "t = Mul (x, huge) y = Mul (t, tiny)", [INF, 1]),
    "back and there": ([1e-20, 1], "t = Mul (x, tiny) y = Mul (huge, t)", [0, 1]),
    "by and by": ([1e20, 1e-20], "t = Div (x, tiny) y = Div (t, huge)", [INF, 1e-20]),
    "twice turned": ([INF, 0, -0.0, 4], "t = Reciprocal (x) y = Reciprocal (t)", [INF, 0, -0.0, 4]),
    "twice negated": ([NAN, 0, -0.0], "t = Neg (x) y = Neg (t)", [NAN, 0, -0.0]),
    "zero minus": ([0, -0.0, 1], "y = Sub (zero, x)", [0, 0, -1]),
    "plus zero": ([0, -0.0, 1], "y = Add (x, zero)", [0, 0, 1]),
    "plus minus zero": ([0, -0.0, 1], "y = Add (x, nought)", [0, -0.0, 1]),
    "minus zero": ([0, -0.0, 1], "y = Sub (x, zero)", [0, -0.0, 1]),
    "turned root": ([0, 4, INF, -1], "t = Sqrt (x) y = Reciprocal (t)", [INF, 0.5, 0, NAN]),
    "one by root": ([0, 4, INF, -1], "t = Sqrt (x) y = Div (one, t)", [INF, 0.5, 0, NAN]),
    "products of exponentials": ([100, 1], "n = Mul (x, down) a = Exp (x) b = Exp (n) y = Mul (a, b)", [NAN, None]),
    "same compared": ([NAN, 1, INF], "e = Equal (x, x) y = Cast <to = 1> (e)", [0, 1, 1]),
    "same chosen": ([NAN, 1], "e = Less (x, x) y = Where (e, zero, x)", [NAN, 1]),
    "distributed": ([3e38, 1], "a = Mul (x, two) b = Mul (x, down) y = Add (a, b)", [INF, None]),
    "squares": ([0.1, 3.3], "n = Neg (x) a = Mul (x, x) b = Mul (n, n) c = Neg (b) d = Add (a, c) y = Sqrt (d)",
                [0, 0]),
    "products": ([0.1, 3.3], "a = Mul (x, x) b = Mul (a, minus) c = Mul (x, x) d = Add (c, b) y = Sqrt (d)", [0, 0]),
    "maximum of itself": ([NAN, -1], "y = Max (x, x)", [NAN, -1]),
    "sum of two": ([3e38, NAN], "y = Sum (x, x)", [INF, NAN]),
}  # fmt: skip
NUMBERS = {"zero": 0.0, "nought": -0.0, "one": 1, "two": 2, "half": 0.5, "big": 1e8, "huge": 1e30, "tiny": 1e-30,
           "down": -1.1, "minus": -1}  # fmt: skip


@pytest.mark.parametrize("name", ALGEBRA)
@pytest.mark.parametrize("length", [2, 17])
def test_r32_what_holds_over_the_reals_only(name: str, length: int) -> None:
    x, body, right = ALGEBRA[name]
    numbers = {k: F32(v) for k, v in NUMBERS.items() if k in body}
    with np.errstate(all="ignore"):
        wanted = [F32(2 * F32(v) - F32(1.1) * F32(v)) if name == "distributed" and r is None else
                  F32(np.exp(F32(v)) * np.exp(F32(v) * F32(-1.1))) if r is None else r
                  for v, r in zip(x, right, strict=True)]  # fmt: skip
    size = max(length, len(x))
    check(13, {"x": np.resize(of(x), size)}, body, {"y": np.resize(of(wanted), size)}, constants=numbers,
          exact=name not in ("log exp", "exp log", "power of power", "square of root", "products of exponentials",
                             "distributed", "by and by", "there and back", "back and there"), terms=4)  # fmt: skip


@pytest.mark.parametrize("name", ["root of square", "times zero", "minus itself", "plus zero", "twice negated"])
@pytest.mark.parametrize("dtype", [F16, F64])
def test_r32_in_other_types(name: str, dtype: type) -> None:
    x, body, right = ALGEBRA[name]
    if dtype is F16 and name == "root of square":
        x = [300, -3, -INF]
    numbers = {k: np.array(v, dtype) for k, v in NUMBERS.items() if k in body}
    if dtype is F64 and name == "root of square":
        x = [2e200, -3, -INF]
    check(13, {"x": np.resize(of(x, dtype), 19)}, body, {"y": np.resize(of(right, dtype), 19)}, constants=numbers,
          exact=True)  # fmt: skip


def test_r32_roots_in_double_precision() -> None:
    x = np.resize(np.array([3.0, 2.0, 7.0]), 17)
    right = {"y": 1 / np.sqrt(x), "z": x / np.sqrt(x + 1)}
    body = "s = Sqrt (x) y = Div (one, s) p = Add (x, one) q = Sqrt (p) z = Div (x, q)"
    check(13, {"x": x}, body, right, constants={"one": np.array(1.0)}, exact=True)
    assert right["y"][0] == 0.5773502691896258


# ---- R34: comparisons and steps behind low precision -----------------------------------------------------------------
def typed(dtype: Any) -> int:
    return onnx.TensorProto.BFLOAT16 if dtype is BF16 else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("length", [1, 3, 18, 35])
def test_r34_steps_see_the_rounded_sum(length: int, dtype: Any) -> None:
    """Every discontinuous reader of a value gets what the value is in its own type."""
    a = np.resize(np.array([256, 257, 1, 2048, 2049, 0.1], dtype), length)
    b = np.resize(np.array([1, 0.5, 0.0039, 1, 0.5, 0.2], dtype), length)
    s = a + b
    model = small(16, {}, """s = Add (a, b) m = ReduceMax <keepdims = 0> (s) e = Equal (s, m) d = Sub (s, a)
                  f = Equal (d, b) g = Less (a, s) h = Floor (s) i = Cast <to = 6> (s) w = Where (f, a, b)""",
                  ["e", "f", "g", "h", "i", "w"])  # fmt: skip
    for name in ("a", "b"):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, typed(dtype), [length]))
    d = s - a
    right = {"e": s == s.max(), "f": d == b, "g": a < s, "h": np.floor(s.astype(F32)).astype(dtype),
             "i": s.astype(F32).astype(np.int32), "w": np.where(d == b, a, b)}  # fmt: skip
    with np.errstate(invalid="ignore"):
        for answers in answers_of(model, {"a": a, "b": b})[1].values():
            for name, want in right.items():
                assert answers[name].dtype == want.dtype
                np.testing.assert_array_equal(answers[name].astype(float), want.astype(float), err_msg=name)


def test_r34_casts_round_between_half_precision_products() -> None:
    """5000 squared is no half-precision number: infinite, whatever is computed around it in single precision."""
    x = np.resize(np.array([5000, 100, 0.1], F32), 19)
    half = x.astype(F16)
    with np.errstate(over="ignore"):
        right = {"y": (half * half).astype(F32), "z": (half * half + half).astype(F32)}
    body = """h = Cast <to = 10> (x) p = Mul (h, h) y = Cast <to = 1> (p) q = Add (p, h) z = Cast <to = 1> (q)"""
    check(13, {"x": x}, body, right, exact=True)
    assert right["y"][0] == INF


# ---- R35: casts ------------------------------------------------------------------------------------------------------
WIDTHS = {np.int8: 3, np.uint8: 2, np.int16: 5, np.uint16: 4, np.int32: 6, np.uint32: 12, np.int64: 7, np.uint64: 13}


def as_integer(v: float, dtype: type) -> int:
    """Through int32 or int64, where what does not fit is the smallest number; then the low bits."""
    wide = np.int32 if np.iinfo(dtype).bits <= 16 or dtype is np.int32 else np.int64
    info = np.iinfo(wide)
    n = int(v) if math.isfinite(v) and info.min <= int(v) <= info.max else int(info.min)
    return n & (2 ** np.iinfo(dtype).bits - 1)


@pytest.mark.parametrize("source", [F16, F32, F64])
@pytest.mark.parametrize("length", [1, 7, 33])
def test_r35_floats_out_of_the_range_of_integers(length: int, source: type) -> None:
    with np.errstate(over="ignore"):
        x = np.resize(np.array([300, -1.5, NAN, INF, -INF, 50.9, -50.9, 3e9, 70000, -1e10, 1e30, -0.0], source), length)
    body = " ".join(f"y{k} = Cast <to = {to}> (x)" for k, to in enumerate(WIDTHS.values()))
    right = {f"y{k}": np.array([as_integer(float(v), t) for v in x], np.uint64).astype(t) for k, t in enumerate(WIDTHS)}
    right["b"] = x != 0
    body += " b = Cast <to = 9> (x)"
    check(13, {"x": x}, body, right, exact=True)


@pytest.mark.parametrize("length", [1, 7, 33])
def test_r35_integers_to_narrower_integers_and_to_floats(length: int) -> None:
    x = np.resize(np.array([-1, 300, 2**31, -(2**40) + 5, 127, 2**62 + 1], np.int64), length)
    body = " ".join(f"y{k} = Cast <to = {to}> (x)" for k, to in enumerate(WIDTHS.values()))
    right = {f"y{k}": x.astype(t) for k, t in enumerate(WIDTHS)} | {"f": x.astype(F32), "d": x.astype(F64), "b": x != 0}
    check(13, {"x": x}, body + " f = Cast <to = 1> (x) d = Cast <to = 11> (x) b = Cast <to = 9> (x)", right, exact=True)


# ---- R38: integers ---------------------------------------------------------------------------------------------------
SIGNED, UNSIGNED = [np.int8, np.int16, np.int32, np.int64], [np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("length", [1, 7, 17, 33])
def test_r38_signs_of_quotients_and_remainders(length: int, dtype: type) -> None:
    values, divisors = ([-7, 7, -1, 5, -8, 9], [2, -2, 3]) if dtype in SIGNED else ([7, 250, 1, 5, 8, 9], [2, 200, 3])
    a, b = np.resize(np.array(values, dtype), length), np.resize(np.array(divisors, dtype), length)
    body = "d = Div (a, b) m = Mod (a, b) f = Mod <fmod = 1> (a, b) e = Div (a, c) n = Mod (a, c)"
    whole, signs = a.astype(object), [1 if x >= 0 else -1 for x in a.astype(object)]
    other = b.astype(object)
    towards_zero = [abs(x) // abs(y) * s * (1 if y >= 0 else -1) for x, y, s in zip(whole, other, signs, strict=True)]
    three = [abs(x) // 3 * s for x, s in zip(whole, signs, strict=True)]
    right = {"d": np.array(towards_zero, dtype), "m": np.mod(a, b), "f": np.fmod(a, b), "e": np.array(three, dtype),
             "n": np.mod(a, dtype(3))}  # fmt: skip
    check(14, {"a": a, "b": b}, body, right, constants={"c": np.array(3, dtype)}, exact=True)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("length", [1, 7, 33])
def test_r38_sums_and_products_wrap_around(length: int, dtype: type) -> None:
    info = np.iinfo(dtype)
    a = np.resize(np.array([info.max, info.min, 100, 3], dtype), length)
    b = np.resize(np.array([info.max, 1, 200 % (int(info.max) + 1), 5], dtype), length)
    with np.errstate(over="ignore"):
        right = {"s": a + b, "p": a * b, "d": a - b, "q": (a + b) * b - a, "m": np.maximum(a, b)}
    body = "s = Add (a, b) p = Mul (a, b) d = Sub (a, b) t = Mul (s, b) q = Sub (t, a) m = Max (a, b)"
    check(14, {"a": a, "b": b}, body, right, exact=True)


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("length", [1, 4, 33])
def test_r38_shifts(length: int, dtype: type) -> None:
    """By as many bits as there are, or more, nothing is left."""
    bits = np.iinfo(dtype).bits
    a = np.resize(np.array([1, 200, 5, 7, 255], dtype), length)
    b = np.resize(np.array([bits - 1, 1, bits, 2, min(bits + 1, 255)], dtype), length)
    full = 2**bits
    left = np.array([int(x) << int(n) & full - 1 if n < bits else 0 for x, n in zip(a, b, strict=True)], object)
    right = np.array([int(x) >> int(n) if n < bits else 0 for x, n in zip(a, b, strict=True)], object)
    body = 'l = BitShift <direction = "LEFT"> (a, b) r = BitShift <direction = "RIGHT"> (a, b)'
    check(14, {"a": a, "b": b}, body, {"l": left.astype(dtype), "r": right.astype(dtype)}, exact=True)


def test_r38_a_sum_of_integers_keeps_its_type() -> None:
    x = np.resize(np.array([2**30, -5, 7], np.int32), (4, 9))
    with np.errstate(over="ignore"):
        right = {"s": x.sum(1, dtype=np.int32, keepdims=True), "p": x.prod(1, dtype=np.int32, keepdims=True),
                 "m": x.max(1, keepdims=True)}  # fmt: skip
    body = "s = ReduceSum (x, a) p = ReduceProd <axes = [1]> (x) m = ReduceMax <axes = [1]> (x)"
    check(13, {"x": x}, body, right, constants={"a": np.array([1])}, exact=True)


def test_check_model_takes_models_too() -> None:
    check_model(small(13, {"x": of([1])}, "y = Neg (x)"), {"x": of([1])}, {"y": of([-1])}, exact=True)
