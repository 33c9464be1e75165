"""The cases that optimisers got wrong, compiled: natively fused, natively operator by operator, and the oracle agree.

The tests of `test_cases_import` and `test_cases_rewrite` run here once more with answers that compiled models give,
then come cases that only a compiled model can get wrong: lanes and tails, attention masks, casts, post-operations,
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import opfuse
from opfuse.decision import Ledger
from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from opfuse.rewrite.rules import PASSES
from opfuse.runtime.executable import Executable
from tests.cases import test_cases_import as imported
from tests.cases import test_cases_rewrite as rewritten
from tests.frontends.small_models import Arrays, small

F32 = np.float32
NAN, INF = np.nan, np.inf
ALL_RULES = tuple(dict.fromkeys(r.name for p in PASSES for r in p.rules))
FEW, MANY = 1, 8  # repeats of a short vector: a tail alone, and whole vectors


@pytest.fixture(autouse=True)
def _quiet_and_native(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    _CACHE.setdefault("directory", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(imported, "answers", native_answers)
    monkeypatch.setattr(rewritten, "Run", NativeRun)


_CACHE: dict[str, str] = {}


def executable(model: Any, **options: Any) -> Executable:
    return opfuse.compile(model, calibrate=False, cache=_CACHE["directory"], **{"threads": 2, **options})


def compiled(model: onnx.ModelProto, feeds: Arrays, native: bool = True) -> dict[str, np.ndarray]:
    """Answers of the fused model, once found equal to those without fusion and without rules, up to rounding."""
    fused = executable(model)
    apart = executable(model, disable_fusions={"all"}, threads=1)
    plain = executable(model, disable_fusions={"all"}, disable_rules=ALL_RULES)
    found, *others = (dict(exe(dict(feeds))) for exe in (fused, apart, plain))
    oracle = evaluate(load(model), feeds)
    if native:
        assert not [d for d in fused.model.ledger if d.kind == "host"]
    for other in (*others, oracle):
        assert list(other) == list(found)
        for name, array in other.items():
            assert array.shape == found[name].shape and array.dtype == found[name].dtype
            loose = 4e-3 if array.dtype == np.float16 else 3e-6
            assert_allclose(found[name].astype(np.float64), array.astype(np.float64), rtol=loose, atol=loose)
    return found


def native_answers(
    opset: int, feeds: Arrays, body: str, outputs: str = "y", constants: Arrays | None = None
) -> list[np.ndarray]:
    return list(compiled(small(opset, feeds, body, outputs.split(), constants=constants), feeds).values())


class NativeRun(rewritten.Run):
    """Its values are the compiled model's."""

    def __init__(self, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> None:
        super().__init__(proto, feeds, tolerance)
        self.values = compiled(proto, {k: v for k, v in feeds.items() if k in self.source.inputs}, native=False)


# The same tests, by their own names with the file's in front: they look `answers` and `Run` up when they run.
globals().update({f"test_import_{n[5:]}": f for n, f in vars(imported).items() if n.startswith("test_")})
globals().update({f"test_rewrite_{n[5:]}": f for n, f in vars(rewritten).items() if n.startswith("test_")})


def answers(opset: int, feeds: Arrays, body: str, outputs: str = "y", **constants: Any) -> list[np.ndarray]:
    return native_answers(opset, feeds, body, outputs, constants)


def f32(values: object) -> np.ndarray:
    return np.array(values, F32)


# ---- attention -------------------------------------------------------------------------------------------------------
ATTENTION = """s = MatMul (q, k) t = Mul (s, scale) u = Add (t, mask) p = Softmax (u) y = MatMul (p, v)"""


def attention(q: Any, k: Any, v: Any, mask: Any, scale: float) -> np.ndarray:
    s = np.matmul(q.astype(np.float64), k.astype(np.float64)) * scale + mask
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.matmul(e / e.sum(-1, keepdims=True), v.astype(np.float64))


@pytest.mark.parametrize(("batch", "keys", "size"), [(1, 3, 5), (2, 3, 5), (2, 17, 8), (1, 33, 5)])
def test_r20_mask_with_a_hole(batch: int, keys: int, size: int) -> None:
    rng = np.random.default_rng(keys)
    q, v = (rng.standard_normal((batch, 1, keys, size)).astype(F32) for _ in range(2))
    k = rng.standard_normal((batch, 1, size, keys)).astype(F32)
    mask = np.where(rng.random((batch, 1, 1, keys)) < 0.4, F32(-1e9), F32(0))
    mask[..., keys // 2], mask[..., 0] = -1e9, 0
    (y,) = answers(13, {"q": q, "k": k, "v": v, "mask": mask}, ATTENTION, scale=f32(0.5))
    assert_allclose(y, attention(q, k, v, mask, 0.5), rtol=0, atol=3e-6)


def test_r20_guard_behind_the_softmax() -> None:
    """A row that is masked whole is NaN in the softmax and 0 behind the guard."""
    feeds = {"x": f32([[1, 2, -1], [0, 0, 0]]), "mask": f32([[0, 0, -INF], [-INF, -INF, -INF]])}
    body = "t = Add (x, mask) p = Softmax (t) n = IsNaN (p) y = Where (n, zero, p)"
    (y,) = answers(13, feeds, body, zero=f32(0))
    assert_allclose(y, [[0.26894143, 0.7310586, 0], [0, 0, 0]], atol=1e-6)


# ---- NaN, infinities and signs in lanes and tails -------------------------------------------------------------------
@pytest.mark.parametrize("length", [1, 3, 8, 17, 33])
@pytest.mark.parametrize("at", [0, -1])
def test_r31_one_nan_anywhere(length: int, at: int) -> None:
    x = np.linspace(-3, 3, length, dtype=F32)[None].repeat(3, 0)
    x[1, at] = NAN
    body = """r = Relu (x) m = Max (x, z) n = Min (x, z) c = Clip (x, l, h) s = Sign (x) e = Erf (x)
              a = ReduceMax <axes = [1], keepdims = 0> (x) b = ReduceMin <axes = [1], keepdims = 0> (x)
              d = ReduceMean <axes = [1], keepdims = 0> (r)"""
    *pointwise, a, b, d = answers(13, {"x": x}, body, "r m n c s e a b d", z=f32(0), l=f32(-1), h=f32(1))
    for y in pointwise:
        assert_array_equal(np.isnan(y), np.isnan(x))
    for y in (a, b, d):
        assert_array_equal(np.isnan(y), [False, True, False])


@pytest.mark.parametrize("repeat", [FEW, MANY])
def test_r32_what_holds_over_the_reals_only(repeat: int) -> None:
    x = {"x": np.tile(f32([89, -200, 2e19, INF, 0]), repeat), "w": np.tile(f32([0, 0, 1, 0, 0]), repeat)}
    body = "e = Exp (x) a = Log (e) s = Mul (x, x) b = Sqrt (s) c = Mul (x, w) d = Sub (x, x) f = Div (w, w)"
    y = answers(13, x, body, "a b c d f")
    a, b, c, d, f = (np.asarray(v[:5], np.float64) for v in y)
    assert_array_equal(a, [INF, -INF, INF, INF, 0])
    assert b[2] == INF and b[3] == INF
    assert_array_equal(c, [0, -0.0, F32(2e19), NAN, 0])
    assert_array_equal(np.signbit(c), [False, True, False, np.signbit(c[3]), False])
    assert_array_equal(d, [0, 0, 0, NAN, 0])
    assert_array_equal(f, [NAN, NAN, 1, NAN, NAN])


def test_r34_comparison_sees_the_rounded_sum() -> None:
    import ml_dtypes

    half = ml_dtypes.bfloat16
    feeds = {"a": np.array([256, 257, 1] * 6, half), "b": np.array([1, 0.5, 0.0039] * 6, half)}
    model = small(13, {}, "s = Add (a, b) y = Equal (s, m) d = Sub (s, a) z = Equal (d, b)", ["y", "z"],
                  constants={"m": np.array(258, half)})  # fmt: skip
    for name in ("a", "b"):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BFLOAT16, [18]))
    found = compiled(model, feeds)
    s = feeds["a"] + feeds["b"]
    assert_array_equal(found["y"], s == half(258))
    assert_array_equal(found["z"], (s - feeds["a"]) == feeds["b"])


@pytest.mark.parametrize("repeat", [FEW, MANY])
def test_r35_casts_in_lanes_and_tails(repeat: int) -> None:
    x = np.tile(f32([300, -1.5, NAN, INF, -INF, 50.9, -50.9]), repeat)
    body = " ".join(f"{n} = Cast <to = {k}> (x)" for n, k in zip("abcde", (3, 2, 6, 9, 7), strict=True))
    a, b, c, d, e = (v[-7:] for v in answers(13, {"x": x}, body, "a b c d e"))
    assert_array_equal(a, [44, -1, 0, 0, 0, 50, -50])
    assert_array_equal(b, [44, 255, 0, 0, 0, 50, 206])
    assert_array_equal(c, [300, -1, *[-(2**31)] * 3, 50, -50])
    assert d.all()
    assert_array_equal(e, [300, -1, *[-(2**63)] * 3, 50, -50])


# ---- integers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("length", [1, 7, 33])
def test_r38_division_never_traps(dtype: type, length: int) -> None:
    """By zero, and of the smallest number by -1: some value, and the others right."""
    info = np.iinfo(dtype)
    a = np.resize(np.array([info.min, info.max, 7, 0, 1, info.min], dtype), length)
    b = np.resize(np.array([-1 if info.min else 1, 3, 0, 0, 2, 0], np.int64).astype(dtype), length)
    exe = executable(small(14, {"a": a, "b": b}, "d = Div (a, b) m = Mod (a, b)", ["d", "m"]))
    found = exe(a=a, b=b)
    safe = (b != 0) & ~((a == info.min) & (b == -1) & (info.min < 0))
    assert_array_equal(found["d"][safe], a[safe] // b[safe])  # signs agree here: towards zero is down
    assert_array_equal(found["m"][safe], np.mod(a[safe], b[safe]))


# ---- post-operations -------------------------------------------------------------------------------------------------
def test_r42_both_sides_are_convolutions_and_addends_broadcast() -> None:
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, 3, 5, 5)).astype(F32), "c": rng.standard_normal((1, 4, 3, 3)).astype(F32)}
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(F32), "u": rng.standard_normal((4, 3, 3, 3)).astype(F32)}
    body = "a = Conv (x, w) b = Conv (x, u) s = Add (a, b) t = Sub (c, s) d = Sub (b, a) y = Relu (t)"
    y, d, s = answers(13, feeds, body, "y d s", **weights)
    assert_allclose(y, np.maximum(feeds["c"] - s, 0), atol=2e-5)
    assert d.shape == (2, 4, 3, 3)


def test_r40_an_input_that_is_also_an_output_is_never_written() -> None:
    x = f32(range(6)).reshape(3, 2)
    body = "y = Add (x, one) z = Mul (y, y) i = Identity (x)"
    model = small(13, {"x": x}, body, ["i", "y", "z"], constants={"one": f32(1)})
    exe, kept = executable(model), x.copy()
    first = exe(x=x)
    first["i"][:] = -1  # the caller's own array
    assert_array_equal(x, kept)
    second = exe(x=first["y"])
    assert_array_equal(second["y"], kept + 2)
    assert_array_equal(first["y"], kept + 1)


# ---- shapes ----------------------------------------------------------------------------------------------------------
def test_r27_initialiser_fed_and_left() -> None:
    feeds = {"x": f32([2, 3]), "w": f32([10, 20])}
    model = small(11, feeds, "t = Mul (x, w) y = Add (t, w)", constants={"w": f32([1, 1])})
    exe = executable(model)
    assert_array_equal(exe(feeds)["y"], [30, 80])
    assert_array_equal(exe(x=feeds["x"])["y"], [3, 4])
    assert_array_equal(exe(feeds)["y"], [30, 80])


@pytest.mark.parametrize("sizes", [(1, 2, 3, 7, 0, 33, 1), (1, 2, 1), (5, 5, 4)])
def test_r48_one_executable_for_all_sizes(sizes: Sequence[int]) -> None:
    feeds = {"x": np.zeros((2, 4), F32), "y": f32([[1, 2, 3, 4]])}
    body = "t = Add (x, y) s = Softmax (t) z = ReduceSum <keepdims = 0> (s, a)"
    exe = executable(small(13, feeds, body, ["z"], constants={"a": np.array([0])}, symbolic=True))
    for n in sizes:
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(F32)
        e = np.exp((x + feeds["y"]).astype(float))
        right = (e / e.sum(-1, keepdims=True)).sum(0)
        assert_allclose(exe(x=x, y=feeds["y"])["z"], right, rtol=0, atol=8 * max(n, 1) * 1.2e-7)
    assert len(exe.variants) == len(set(sizes))


def test_r48_two_dimensions_that_happen_to_be_equal() -> None:
    feeds = {"x": np.ones((4, 4), F32)}
    exe = executable(small(13, feeds, "t = Transpose (x) y = MatMul (x, t)", symbolic=True))
    for shape in ((4, 4), (2, 5), (5, 2)):
        x = np.random.default_rng(1).standard_normal(shape).astype(F32)
        assert_allclose(exe(x=x)["y"], x @ x.T, atol=1e-5)


def test_the_rules_are_switched_off_by_name() -> None:
    """What `compiled` counts on: no rule stays on."""
    model = small(13, {"x": f32([1])}, "a = Identity (x) b = Neg (a) y = Neg (b)")
    ledger: Ledger = executable(model, disable_rules=ALL_RULES).model.ledger
    assert not [d for d in ledger if d.kind == "rewrite" and d.outcome == "taken"]
