"""Neighbours of R15 to R20, R29, R49: norms, activations, attention, softmax by opset, quantised values.

Right values are computed in double precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cases.agreement import check, compile_here
from tests.frontends.small_models import small

F32, F16 = np.float32, np.float16
NAN, INF = np.nan, np.inf
SIZES = [1, 7, 17, 33]


def normal(seed: int, *shape: int, dtype: Any = F32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def layer_norm(x: np.ndarray, axes: Any, epsilon: float, gamma: Any = 1.0, beta: Any = 0.0) -> np.ndarray:
    d = x.astype(float) - x.astype(float).mean(axes, keepdims=True)
    return d / np.sqrt((d * d).mean(axes, keepdims=True) + epsilon) * np.asarray(gamma, float) + np.asarray(beta, float)


def softmax(x: np.ndarray, axis: Any = -1) -> np.ndarray:
    e = np.exp(x.astype(float) - x.astype(float).max(axis, keepdims=True, initial=-INF))
    return e / e.sum(axis, keepdims=True)


def operators(exe: Any) -> list[str]:
    assert exe.model.graph is not None
    return [n.op for n in exe.model.graph.nodes.values()]


# ---- R15, R17: layer norms -------------------------------------------------------------------------------------------
def spelled(axes: str, square: str = "Pow (d, two)", by: str = "n = Div (d, r)", opset: int = 13) -> str:
    mean = "ReduceMean (x, axes)" if opset >= 18 else f"ReduceMean <axes = {axes}> (x)"
    return f"""m = {mean} d = Sub (x, m) q = {square} v = {mean.replace("x", "q", 1) if opset >= 18 else
               f"ReduceMean <axes = {axes}> (q)"} e = Add (v, eps) r = Sqrt (e) {by} s = Mul (n, g) y = Add (s, b)"""


SPELLINGS = [("Pow (d, two)", "n = Div (d, r)"), ("Mul (d, d)", "n = Div (d, r)"),
             ("Pow (d, two)", "i = Reciprocal (r) n = Mul (d, i)"),
             ("Mul (d, d)", "i = Div (one, r) n = Mul (i, d)")]  # fmt: skip
# Rows and columns are equal in number, so that a gamma read along the wrong one gives no error.
GAMMAS = [(5,), (5, 1), (1, 5), (5, 5), (1,), (), (3, 1, 1), (3, 5, 5), (1, 1, 1, 5)]


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_r15_r17_gammas_of_every_shape(gamma: tuple[int, ...], epsilon: float) -> None:
    x, g, b = normal(1, 3, 5, 5), normal(2, *gamma), normal(3, *gamma)
    c = {"two": F32(2), "eps": F32(epsilon), "g": g, "b": b}
    y = layer_norm(x, -1, float(F32(epsilon)), g, b).astype(F32)
    exe = check(13, {"x": x}, spelled("[-1]"), {"y": y}, constants=c, terms=16)
    if gamma == (5,):
        assert len(exe.explain().kernels) == 1


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
@pytest.mark.parametrize(("opset", "width"), [(7, 7), *((13, n) for n in SIZES), (18, 33)])
def test_r15_r51_every_spelling_at_every_opset(width: int, opset: int, spelling: tuple[str, str]) -> None:
    x, g, b = normal(1, 2, 3, width) * F32(10), normal(2, width), normal(3, width)
    body = spelled("[2]", *spelling, opset=opset)
    c = {"two": F32(2), "one": F32(1), "eps": F32(0.1), "g": g, "b": b, "axes": np.array([-1])}
    used = {k: v for k, v in c.items() if f" {k})" in body or f"({k}," in body}
    y = layer_norm(x, -1, float(F32(0.1)), g, b).astype(F32)
    exe = check(opset, {"x": x}, body, {"y": y}, constants=used, terms=width + 8)
    assert len(exe.explain().kernels) == 1


@pytest.mark.parametrize(("axes", "numbers"), [((0,), (3, 1, 1)), ((1,), (4, 1)), ((2,), (5,)), ((1, 2), (4, 5)),
                                               ((0, 2), (5,)), ((0, 1, 2), ())])  # fmt: skip
def test_r15_norms_over_other_axes(axes: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    x, g, b = normal(1, 3, 4, 5), normal(2, *numbers), normal(3, *numbers)
    c = {"two": F32(2), "eps": F32(0.1), "g": g, "b": b}
    y = layer_norm(x, axes, float(F32(0.1)), g, b).astype(F32)
    check(13, {"x": x}, spelled(str(list(axes))), {"y": y}, constants=c, terms=64)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_r15d_the_operator_along_every_axis(axis: int, dtype: Any) -> None:
    """Mean and inverse deviation are outputs too."""
    x = (normal(1, 2, 3, 5) * 3).astype(dtype)
    over = tuple(range(axis % 3, 3))
    g, b = normal(2, *x.shape[axis % 3 :], dtype=dtype), normal(3, *x.shape[axis % 3 :], dtype=dtype)
    wide = x.astype(float)
    right = {"y": layer_norm(x, over, 0.1, g, b).astype(dtype), "m": wide.mean(over, keepdims=True).astype(F32),
             "i": (1 / np.sqrt(wide.var(over, keepdims=True) + 0.1)).astype(F32)}  # fmt: skip
    if dtype is F16:
        del right["m"], right["i"]
    outputs = ", ".join(right)
    check(17, {"x": x}, f"{outputs} = LayerNormalization <axis = {axis}, epsilon = 0.1> (x, g, b)", right,
          constants={"g": g, "b": b}, terms=16)  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_r15_norms_with_neighbours_and_several_readers(rows: int) -> None:
    """A sum before, an activation behind; the sum and the normalised rows are wanted as well."""
    x, z, g = normal(1, rows, 17), normal(2, rows, 17), normal(3, 17)
    s = x + z
    n = layer_norm(s, -1, 0.1, g)
    right = {"s": s, "n": n.astype(F32), "y": np.maximum(n, 0).astype(F32), "w": (n * s).astype(F32)}
    body = "s = Add (x, z) n = LayerNormalization <epsilon = 0.1> (s, g) y = Relu (n) w = Mul (n, s)"
    check(17, {"x": x, "z": z}, body, right, constants={"g": g}, terms=32)


# ---- R18: half precision ---------------------------------------------------------------------------------------------
def test_r17_r18_sums_of_half_precision_are_wide() -> None:
    """Squares of 300 leave the range; sums of 70,000 ones do, and their mean is 1."""
    rows = np.array([[300, -300, 0, 0], [60000, 60000, 60000, 60000]], F16)
    wide = rows.astype(float)
    right = {
        "a": layer_norm(rows, -1, 1e-5).astype(F16), "m": wide.mean(-1, keepdims=True).astype(F16),
        "l": np.sqrt((wide**2).sum(-1, keepdims=True)), "p": softmax(rows).astype(F16),
        "s": wide.sum(-1, keepdims=True),
    }  # fmt: skip
    with np.errstate(over="ignore"):
        right |= {k: right[k].astype(F16) for k in "ls"}
    body = """a = LayerNormalization (x, g) m = ReduceMean <axes = [-1]> (x) l = ReduceL2 <axes = [-1]> (x)
              p = Softmax (x) s = ReduceSum (x, last)"""
    check(17, {"x": rows}, body, right, constants={"g": np.ones(4, F16), "last": np.array([-1])}, terms=2)
    assert right["s"][1, 0] == INF and right["m"][1, 0] == 60000 and right["l"][0, 0] == F16(424.2)


def test_r18_a_long_mean_of_ones() -> None:
    x = np.ones((2, 70000), F16)
    right = {"m": np.ones((2, 1), F16), "s": np.full((2, 1), INF, F16)}
    check(13, {"x": x}, "m = ReduceMean <axes = [1]> (x) s = ReduceSum (x, a)", right,
          constants={"a": np.array([1])}, exact=True)  # fmt: skip


@pytest.mark.parametrize("width", [3, 17, 33])
def test_r18_softmax_of_large_scores(width: int) -> None:
    for dtype, large in ((F16, 60000), (F32, 3e38), (np.float64, 1e308)):
        x = np.full((2, width), -large, dtype)
        x[0, -1] = x[1, 0] = x[1, -1] = large
        right = {"y": softmax(x / dtype(large) * 800).astype(dtype)}
        check(13, {"x": x}, "y = Softmax (x)", right, terms=2)


def test_r17_large_values_in_half_precision() -> None:
    """|x| about 300, epsilon of R15c."""
    x = (normal(5, 4, 33) * 50 + 300).astype(F16)
    g, b = normal(2, 33, dtype=F16), normal(3, 33, dtype=F16)
    y = layer_norm(x, -1, 0.1, g, b).astype(F16)
    body = "y = LayerNormalization <epsilon = 0.1> (x, g, b)"
    check(17, {"x": x}, body, {"y": y}, constants={"g": g, "b": b}, terms=2)


# ---- R19: gelu -------------------------------------------------------------------------------------------------------
def erf_gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


GELU = "a = Div (x, c) b = Erf (a) d = Add (b, one) e = Mul (x, d) y = Mul (e, half)"
TANH = """p = Pow (x, three) r = Mul (p, k) s = Add (x, r) t = Mul (s, f) u = Tanh (t) d = Add (u, one) e = Mul (x, d)
          y = Mul (e, half)"""


@pytest.mark.parametrize("dtype", [F16, F32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 17), (0, 3), (2, 3, 1, 5)], ids=str)
def test_r19_both_forms_in_every_type_and_rank(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.resize(np.array([1, -3, -1, 0, 3, -0.25], dtype), shape)
    numbers = {"c": 2**0.5, "one": 1, "half": 0.5, "three": 3, "k": 0.044715, "f": (2 / np.pi) ** 0.5}
    erf = np.array([erf_gelu(v) for v in x.reshape(-1).tolist()]).reshape(shape)
    wide = x.astype(float)
    tanh = 0.5 * wide * (1 + np.tanh((2 / np.pi) ** 0.5 * (wide + 0.044715 * wide**3)))
    for body, y in ((GELU, erf), (TANH, tanh)):
        c = {k: np.array(v, dtype) for k, v in numbers.items() if f" {k})" in body}
        exe = check(13, {"x": x}, body, {"y": y.astype(dtype)}, constants=c, terms=9)
        assert any(op.startswith("gelu") for op in operators(exe)) or dtype is not F32


def test_r19_the_tail() -> None:
    """Fused, the tail keeps its digits; as it is spelled, 1 + erf leaves nothing: both are within a rounding of 1."""
    x = np.resize(np.array([-6, -4, -8, 6], F32), 17)
    c = {"c": F32(2**0.5), "one": F32(1), "half": F32(0.5)}
    y = np.array([erf_gelu(v) for v in x.tolist()])
    check(13, {"x": x}, GELU, {"y": y.astype(F32)}, constants=c)
    fused = compile_here(small(13, {"x": x}, GELU, constants=c))(x=x)["y"]
    np.testing.assert_allclose(fused, y, rtol=2e-6)
    assert y[0] == pytest.approx(-5.92e-9, rel=1e-3)


@pytest.mark.parametrize("shown", ["a", "b", "d", "e"])
def test_r19_inner_values_that_are_wanted(shown: str) -> None:
    x, c = np.linspace(-3, 3, 17, dtype=F32), {"c": F32(2**0.5), "one": F32(1), "half": F32(0.5)}
    erf = np.array([math.erf(v / 2**0.5) for v in x.tolist()])
    right = {"a": x / F32(2**0.5), "b": erf, "d": erf + 1, "e": x * (erf + 1), "y": x * (erf + 1) / 2}
    check(13, {"x": x}, GELU, {k: right[k].astype(F32) for k in ("y", shown)}, constants=c, terms=4)


# ---- R20: attention --------------------------------------------------------------------------------------------------
Q, K, H = 5, 7, 3  # queries, keys, size of a head
MASKS: dict[str, tuple[int, ...]] = {
    "row": (K,), "each batch": (2, 1, 1, K), "each query": (Q, K), "each head": (1, 4, 1, K), "all": (2, 4, Q, K),
    "one number": (1,),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["added", "chosen", "infinite"])
@pytest.mark.parametrize("name", MASKS)
def test_r20_masks_with_holes(name: str, kind: str) -> None:
    """Added as large negative numbers, chosen by Where, and infinite where some keys stay."""
    q, k, v = normal(1, 2, 4, Q, H), normal(2, 2, 4, K, H), normal(3, 2, 4, K, H)
    hidden = np.random.default_rng(4).random(MASKS[name]) < 0.4
    hidden[..., 0] = False
    if hidden.size > 2:
        hidden[..., -1], hidden[..., hidden.shape[-1] // 2] = False, True
    low = {"added": F32(-1e9), "chosen": F32(-1e4), "infinite": F32(-INF)}[kind]
    mask = hidden if kind == "chosen" else np.where(hidden, low, F32(0))
    s = q.astype(float) @ k.transpose(0, 1, 3, 2) / np.sqrt(H)
    y = softmax(np.where(hidden, -1e9, s)) @ v
    step = "u = Where (mask, low, t)" if kind == "chosen" else "u = Add (t, mask)"
    body = f"""kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, kt) t = Div (s, root) {step} p = Softmax (u)
               y = MatMul (p, v)"""
    c = {"root": F32(np.sqrt(H))} | ({"low": low} if kind == "chosen" else {})
    check(13, {"q": q, "k": k, "v": v, "mask": mask}, body, {"y": y.astype(F32)}, constants=c, terms=16)


@pytest.mark.parametrize("queries", [1, 7, 33])
@pytest.mark.parametrize("size", [1, 7, 17])
def test_r20_heads_of_every_size_without_a_mask(queries: int, size: int) -> None:
    """Of rank 3, with the heads' axis split off a wider one that is no multiple of the vector."""
    heads, width = 3, 3 * size
    x, w = normal(1, 2, queries, width), [normal(10 + n, width, width) for n in range(3)]
    parts = [(x.astype(float) @ m).reshape(2, queries, heads, size).transpose(0, 2, 1, 3) for m in w]
    y = softmax(parts[0] @ parts[1].transpose(0, 1, 3, 2) * 0.5) @ parts[2]
    right = {"y": y.transpose(0, 2, 1, 3).reshape(2, queries, width).astype(F32)}
    body = """qp = MatMul (x, w0) kp = MatMul (x, w1) vp = MatMul (x, w2) qr = Reshape (qp, split)
              kr = Reshape (kp, split) vr = Reshape (vp, split) q = Transpose <perm = [0, 2, 1, 3]> (qr)
              k = Transpose <perm = [0, 2, 3, 1]> (kr) v = Transpose <perm = [0, 2, 1, 3]> (vr) s = MatMul (q, k)
              t = Mul (s, half) p = Softmax (t) o = MatMul (p, v) r = Transpose <perm = [0, 2, 1, 3]> (o)
              y = Reshape (r, whole)"""
    c = {**{f"w{n}": m for n, m in enumerate(w)}, "split": np.array([0, 0, heads, size]), "half": F32(0.5),
         "whole": np.array([0, 0, -1])}  # fmt: skip
    check(13, {"x": x}, body, right, constants=c, terms=64 * width)


@pytest.mark.parametrize("guard", [False, True])
def test_r20_rows_that_are_hidden_whole(guard: bool) -> None:
    """NaN without the guard, 0 with it; the other rows are as if there were no such row."""
    q, k, v = normal(1, 2, 4, H), normal(2, 2, H, K), normal(3, 2, K, H)
    mask = np.zeros((2, 4, K), F32)
    mask[0, 1], mask[1, 3, 2:5] = -INF, -INF
    with np.errstate(invalid="ignore"):
        p = softmax(q.astype(float) @ k + mask)
    p = np.where(np.isnan(p), 0, p) if guard else p
    step = "n = IsNaN (p) g = Where (n, zero, p)" if guard else "g = Identity (p)"
    body = f"s = MatMul (q, k) u = Add (s, mask) p = Softmax (u) {step} y = MatMul (g, v)"
    check(13, {"q": q, "k": k, "v": v, "mask": mask}, body, {"y": (p @ v).astype(F32)}, terms=16,
          constants={"zero": F32(0)} if guard else {})  # fmt: skip


def test_r20_scores_that_are_wanted_themselves() -> None:
    q, k, v = normal(1, 2, 5, H), normal(2, 2, H, 17), normal(3, 2, 17, H)
    s = q.astype(float) @ k
    right = {"s": s, "p": softmax(s), "y": softmax(s) @ v}
    check(13, {"q": q, "k": k, "v": v}, "s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)",
          {n: a.astype(F32) for n, a in right.items()}, terms=16)  # fmt: skip


# ---- R29: softmax by opset -------------------------------------------------------------------------------------------
FAMILY: dict[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "Softmax": softmax, "LogSoftmax": lambda x, axis: np.log(softmax(x, axis)),
    "Hardmax": lambda x, axis: np.moveaxis(np.eye(x.shape[axis])[np.argmax(x, axis)], -1, axis),
}  # fmt: skip


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("shape", [(17,), (2, 7), (2, 3, 4), (2, 1, 3, 5), (0, 4), (3, 1)], ids=str)
def test_r29_every_axis_before_and_since_opset_13(shape: tuple[int, ...], op: str) -> None:
    """Before: all axes from the given one on are one (by default from the second); since: the axis (the last one)."""
    x = normal(1, *shape)
    for opset, axis in itertools.product((7, 11, 13), (None, *range(-len(shape), len(shape)))):
        if opset < 11 and axis is not None and axis < 0 or opset < 13 and len(shape) == 1 and axis is None:
            continue
        if op == "Hardmax" and not x.size:
            continue  # NumPy has no argmax of nothing
        at = (1 if opset < 13 else len(shape) - 1) if axis is None else axis % len(shape)
        if opset < 13:
            flat = x.reshape(math.prod(shape[:at]), math.prod(shape[at:]))
            y = FAMILY[op](flat, 1).reshape(shape)
        else:
            y = FAMILY[op](x, at)
        text = "" if axis is None else f"<axis = {axis}>"
        found = compile_here(small(opset, {"x": x}, f"y = {op} {text} (x)"))(x=x)["y"]
        np.testing.assert_allclose(found, y, rtol=0, atol=2e-6, err_msg=f"opset {opset}, axis {axis}")


# ---- R49: quantised values -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", SIZES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 0), (np.int8, -128), (np.int8, 5), (np.uint8, 0), (np.uint8, 10),
                                             (np.uint8, 255)])  # fmt: skip
def test_r49_a_relu_before_a_quantisation(dtype: Any, zero: int, relu: bool, length: int) -> None:
    """It may go only where the quantised range begins at zero."""
    x = np.resize(np.array([-3, -0.4, 0.74, 0.76, 0.25, -0.25, 200, -200, 0.75], F32), length)
    r = np.maximum(x, 0) if relu else x
    info = np.iinfo(dtype)
    q = np.clip(np.rint(r / 0.5) + zero, info.min, info.max).astype(dtype)
    c = {"s": F32(0.5), "z": np.array(zero, dtype)}
    first = "r = Relu (x)" if relu else "r = Identity (x)"
    right = {"q": q, "y": ((q.astype(int) - zero) * F32(0.5)).astype(F32)}
    check(13, {"x": x}, f"{first} q = QuantizeLinear (r, s, z) y = DequantizeLinear (q, s, z)", right, constants=c,
          exact=False)  # fmt: skip
    if relu and (dtype, zero) in ((np.int8, 0), (np.uint8, 10)) and length == 7:
        np.testing.assert_array_equal(right["y"][:4], [0, 0, 0.5, 1])


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_r49_ties_and_ends(opset: int) -> None:
    """Half to even, then bounded by the type."""
    x = np.resize(np.array([0.5, 1.5, 2.5, -0.5, 300, -300, INF, -INF], F32), 17)
    c = {"s": F32(1), "z": np.array(0, np.int8)}
    q = np.clip(np.rint(x), -128, 127).astype(np.int8)
    check(opset, {"x": x}, "q = QuantizeLinear (x, s, z)", {"q": q}, constants=c, exact=True)
    np.testing.assert_array_equal(q[:5], [0, 2, 2, 0, 127])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_r49_scales_along_an_axis(axis: int) -> None:
    x = normal(1, 3, 4, 5) * 20
    n = x.shape[axis]
    s, z = np.linspace(0.1, 2, n, dtype=F32), np.arange(n).astype(np.int8)
    place = [1, 1, 1]
    place[axis] = n
    q = np.clip(np.rint(x / s.reshape(place)) + z.reshape(place), -128, 127).astype(np.int8)
    y = ((q.astype(int) - z.reshape(place)) * s.reshape(place)).astype(F32)
    body = f"q = QuantizeLinear <axis = {axis}> (x, s, z) y = DequantizeLinear <axis = {axis}> (q, s, z)"
    check(13, {"x": x}, body, {"q": q, "y": y}, constants={"s": s, "z": z})


def test_r49_a_product_between_quantised_values() -> None:
    """Quantised operands, a product, a bias, a ReLU, quantised again: as the spelled floats give it."""
    x, w = (normal(1, 5, 17) * 30).astype(np.int8), (normal(2, 17, 9) * 30).astype(np.int8)
    b = normal(3, 9)
    t = (x.astype(float) - 3) * 0.02 @ (w.astype(float) * 0.01) + b
    near = np.abs(np.maximum(t, 0) / 0.05 - np.floor(np.maximum(t, 0) / 0.05) - 0.5) < 1e-4
    assert not near.any()  # no tie that float32 might turn
    q = np.clip(np.rint(np.maximum(t, 0) / 0.05) - 128, -128, 127).astype(np.int8)
    body = """a = DequantizeLinear (x, sx, zx) c = DequantizeLinear (w, sw, zw) m = MatMul (a, c) n = Add (m, b)
              r = Relu (n) q = QuantizeLinear (r, sy, zy)"""
    c = {"w": w, "sx": F32(0.02), "zx": np.array(3, np.int8), "sw": F32(0.01), "zw": np.array(0, np.int8),
         "sy": F32(0.05), "zy": np.array(-128, np.int8), "b": b}  # fmt: skip
    check(13, {"x": x}, body, {"q": q}, constants=c, exact=True)
