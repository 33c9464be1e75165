"""Neighbours of R22 to R30, R37 to R40, R45, R48: transposes, operations that do nothing, twins, empty tensors, memory.

Sizes along different axes are often equal: an axis that is mistaken for another gives no error then.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from opfuse.errors import InputError
from tests.cases.agreement import check, compile_here
from tests.frontends.small_models import small

F32 = np.float32
NAN, INF = np.nan, np.inf


def normal(seed: int, *shape: int, dtype: Any = F32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def counted(*shape: int, dtype: Any = F32) -> np.ndarray:
    """Small whole numbers: sums of them are exact."""
    return (np.arange(math.prod(shape)) % 7 - 3).reshape(shape).astype(dtype)


# ---- R22: transposes -------------------------------------------------------------------------------------------------
PERMS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


@pytest.mark.parametrize("side", ["left", "right", "both", "behind"])
@pytest.mark.parametrize("fed", [False, True])
def test_r22_every_permutation_around_a_product(side: str, fed: bool) -> None:
    """All extents are 4: whoever reads the operator and not its permutation is wrong without an error."""
    x, w = counted(4, 4, 4), counted(4, 4, 4)[::-1].copy() + F32(1)
    texts, right = [], {}
    for k, perm in enumerate(PERMS):
        t = f"t{k} = Transpose <perm = {list(perm)}>"
        a, b = x.transpose(perm), w.transpose(perm)
        text, y = {
            "left": (f"{t} (x) y{k} = MatMul (t{k}, w)", a @ w), "right": (f"{t} (w) y{k} = MatMul (x, t{k})", x @ b),
            "both": (f"{t} (x) u{k} = Transpose <perm = {list(perm)}> (w) y{k} = MatMul (t{k}, u{k})", a @ b),
            "behind": (f"m{k} = MatMul (x, w) {t} (m{k}) y{k} = Relu (t{k})", np.maximum((x @ w).transpose(perm), 0)),
        }[side]  # fmt: skip
        texts.append(text)
        right[f"y{k}"] = np.ascontiguousarray(y)
    feeds = {"x": x, "w": w} if fed else {"x": x}
    check(13, feeds, " ".join(texts), right, constants={} if fed else {"w": w}, exact=False)


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
def test_r22_gemm_with_all_its_attributes(a: int, b: int) -> None:
    """Turned by attributes and by nodes before it; the addend is turned, a row, a column or one number."""
    x, w, c = counted(5, 5), counted(5, 5)[::-1].copy(), counted(5, 5) * F32(2)
    left, right_ = (x.T if a else x), (w.T if b else w)
    attrs = f"alpha = 0.5, beta = 2.0, transA = {a}, transB = {b}"
    body = f"""y = Gemm <{attrs}> (x, w, c) ct = Transpose (c) z = Gemm <{attrs}> (x, w, ct) xt = Transpose (x)
               u = Gemm <{attrs}> (xt, w, row) wt = Transpose (w) v = Gemm <{attrs}> (x, wt, col)
               q = Gemm <{attrs}> (x, w, one) r = Gemm <{attrs}> (x, w)"""
    row, col = counted(5), counted(5, 1)
    product = 0.5 * left @ right_
    right = {"y": product + 2 * c, "z": product + 2 * c.T, "u": 0.5 * left.T @ right_ + 2 * row,
             "v": 0.5 * left @ right_.T + 2 * col, "q": product + 2, "r": product}  # fmt: skip
    check(13, {"x": x, "c": c}, body, {k: v.astype(F32) for k, v in right.items()}, terms=8,
          constants={"w": w, "row": row, "col": col, "one": F32(1)})  # fmt: skip


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4)))[1::2], ids=str)
def test_r22_there_and_back_around_every_addend(perm: tuple[int, ...]) -> None:
    """Back by the inverse, and by the same permutation, which is another one for cycles; the middle is wanted too."""
    x, k = normal(1, 3, 3, 3, 3), normal(2, 3)
    back = tuple(int(n) for n in np.argsort(perm))
    t = x.transpose(perm) + k
    body = f"""t = Transpose <perm = {list(perm)}> (x) a = Add (t, k) y = Transpose <perm = {list(back)}> (a)
               z = Transpose <perm = {list(perm)}> (a) m = Mul (t, k) w = Transpose <perm = {list(back)}> (m)"""
    right = {"y": t.transpose(back), "z": t.transpose(perm), "a": t, "w": (x.transpose(perm) * k).transpose(back)}
    check(13, {"x": x}, body, {n: np.ascontiguousarray(v) for n, v in right.items()}, constants={"k": k})


# ---- R24: what does nothing, and what seems to -----------------------------------------------------------------------
def same(x: np.ndarray) -> np.ndarray:
    return x


IDLE = {  # nodes -> what they make of x [3, 1, 5]
    "Mul (x, ones3)": lambda x: x * np.ones((3, 3, 1), F32), "Mul (x, one)": same,
    "Mul (x, one1111)": lambda x: x[None],
    "Add (x, zeros5)": same, "Add (zeros2, x)": lambda x: x + np.zeros((3, 2, 5), F32),
    "Div (x, ones3)": lambda x: np.broadcast_to(x, (3, 3, 5)), "Sub (zeros5, x)": lambda x: 0 - x,
    "Div (one, x)": lambda x: 1 / x, "Pow (x, one)": same, "Pow (one, x)": np.ones_like, "Expand (x, s315)": same,
    "Expand (x, s1)": same, "Expand (x, s345)": lambda x: np.broadcast_to(x, (3, 4, 5)), "Reshape (x, s315)": same,
    "Reshape (x, s135)": lambda x: x.reshape(1, 3, 5), "Reshape (x, sz)": lambda x: x.reshape(3, 5),
    "Pad (x, p0)": same,
    "Slice (x, b0, ends, a2)": same, "Slice (x, ends, bm, a2, minus)": lambda x: x[:, :, ::-1],
    "Concat <axis = 1> (x)": same, "Transpose <perm = [0, 1, 2]> (x)": same,
    "Transpose <perm = [1, 0, 2]> (x)": lambda x: x.transpose(1, 0, 2), "Max (x, low)": same, "Min (x, x)": same,
    "Flatten <axis = 0> (x)": lambda x: x.reshape(1, 15), "Max (x)": same, "Cast <to = 1> (x)": same,
    "Sum (x, zeros2)": lambda x: x + np.zeros((3, 2, 5), F32), "ReduceMax <axes = [1]> (x)": same,
    "ReduceMax <axes = [1], keepdims = 0> (x)": lambda x: x[:, 0], "ReduceL1 <axes = [1]> (x)": np.abs,
    "ReduceSum (x, a1)": same, "Where (true, x, x)": same,
    "Where (true3, x, x)": lambda x: np.broadcast_to(x, (3, 3, 5)),
    "Tile (x, t111)": same, "Tile (x, t121)": lambda x: np.tile(x, (1, 2, 1)), "Dropout (x)": same,
    "Identity (x)": same,
    "AveragePool <kernel_shape = [1]> (x)": same,
    "MaxPool <kernel_shape = [1], strides = [2]> (x)": lambda x: x[:, :, ::2],
    "Gather (x, order)": same, "Mul (x, empty)": lambda x: x * np.ones((0, 1), F32), "Clip (x, low, high)": same,
    "Squeeze (x, a1)": lambda x: x[:, 0], "Neg (x)": np.negative,
}  # fmt: skip
PARTS: dict[str, Any] = {
    "ones3": np.ones((3, 3, 1), F32), "one": F32(1), "one1111": np.ones((1, 1, 1, 1), F32), "zeros5": np.zeros(5, F32),
    "zeros2": np.zeros((2, 1), F32), "s315": np.array([3, 1, 5]), "s1": np.array([1]), "s345": np.array([3, 4, 1]),
    "s135": np.array([1, 3, 5]), "sz": np.array([0, -1]), "p0": np.zeros(6, np.int64), "b0": np.array([0]),
    "ends": np.array([2**62]), "bm": np.array([-(2**62)]), "a2": np.array([2]), "minus": np.array([-1]),
    "low": F32(-INF), "high": F32(INF), "a1": np.array([1]), "true": np.array(True), "true3": np.ones((3, 3, 1), bool),
    "t111": np.array([1, 1, 1]), "t121": np.array([1, 2, 1]), "order": np.array([0, 1, 2]),
    "empty": np.ones((0, 1), F32),
}  # fmt: skip


@pytest.mark.parametrize("behind", ["output", "relu"])
@pytest.mark.parametrize("half", [0, 1])
def test_r24_operations_that_do_nothing_and_others(half: int, behind: str) -> None:
    """All of them side by side: each of the value itself, and each shown or read once more."""
    x = normal(1, 3, 1, 5)
    texts, right = [], {}
    for k, (text, function) in enumerate(list(IDLE.items())[half::2]):
        name = f"y{k}" if behind == "output" else f"t{k}"
        texts.append(f"{name} = {text}" + ("" if behind == "output" else f" y{k} = Relu (t{k})"))
        y = np.ascontiguousarray(function(x))
        right[f"y{k}"] = y if behind == "output" else np.maximum(y, 0)
    body = " ".join(texts)
    used = {k: v for k, v in PARTS.items() if f" {k})" in body or f" {k}," in body or f"({k}," in body}
    check(13, {"x": x}, body, right, constants=used, terms=1)


# ---- R25: twins ------------------------------------------------------------------------------------------------------
def test_r25_twins_that_differ_in_what_is_read_last() -> None:
    """Alike but for an attribute, a constant's value, a type, or the order of operands."""
    x, w = normal(1, 1, 3, 6, 6), normal(2, 3, 1, 3, 3)
    u = w.copy()
    u[2, 0, 1, 1] += F32(0.5)
    rows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    a, b = (np.einsum("nchwij,cij->nchw", rows.astype(float), v[:, 0]) for v in (w, u))
    e = [np.exp(x.astype(float)) for _ in range(2)]
    right = {
        "y0": a, "y1": b, "y2": a[:, :, ::2, ::2], "y3": e[0] / e[0].sum(3, keepdims=True),
        "y4": e[1] / e[1].sum(2, keepdims=True), "y5": x - 2, "y6": 2 - x, "y7": x.mean(3, keepdims=True, dtype=float),
        "y8": x.mean(3, dtype=float), "y9": x.max(3), "ya": x.transpose(0, 1, 3, 2),
    }  # fmt: skip
    body = """y0 = Conv <group = 3> (x, w) y1 = Conv <group = 3> (x, u) y2 = Conv <group = 3, strides = [2, 2]> (x, w)
              y3 = Softmax <axis = 3> (x) y4 = Softmax <axis = 2> (x) y5 = Sub (x, two) y6 = Sub (two, x)
              y7 = ReduceMean <axes = [3]> (x) y8 = ReduceMean <axes = [3], keepdims = 0> (x)
              y9 = ReduceMax <axes = [3], keepdims = 0> (x) ya = Transpose <perm = [0, 1, 3, 2]> (x)"""
    check(13, {"x": x}, body, {k: np.ascontiguousarray(v).astype(F32) for k, v in right.items()}, terms=9,
          constants={"w": w, "u": u, "two": F32(2)})  # fmt: skip


@pytest.mark.parametrize("shown", [("y",), ("y", "z"), ("y", "z", "a", "b"), ("b", "a"), ("z", "y", "x2")])
def test_r25_twins_of_which_any_are_outputs(shown: tuple[str, ...]) -> None:
    x = normal(1, 2, 5)
    body = "a = Relu (x) b = Relu (x) y = Neg (a) z = Neg (b) x2 = Identity (x)"
    relu = np.maximum(x, 0)
    right = {"y": -relu, "z": -relu, "a": relu, "b": relu, "x2": x}
    exe = check(13, {"x": x}, body, {k: right[k] for k in shown}, exact=True)
    first = exe(x=x)
    for name in shown:  # no output is the memory of another one, or of the input
        first[name][:] = 7
        assert all(not np.shares_memory(first[name], v) for k, v in first.items() if k != name)
        assert not np.shares_memory(first[name], x)


# ---- R27: initialisers that are inputs -------------------------------------------------------------------------------
FED: dict[str, tuple[str, np.ndarray, np.ndarray]] = {  # what is fed: nodes, default, other value
    "bound": ("y = Clip (x, w)", F32(0), F32(1)), "exponent": ("y = Pow (x, w)", F32(1), F32(2)),
    "factor": ("y = Mul (x, w)", F32(1), F32(3)), "zero": ("y = Add (x, w)", F32(-0.0), F32(3)),
    "divisor": ("y = Div (x, w)", F32(1), F32(4)), "slope": ("y = PRelu (x, w)", F32(1), F32(0.25)),
    "mask": ("y = Where (w, x, n)", np.array(True), np.array(False)),
}  # fmt: skip


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("name", FED)
def test_r27_defaults_that_make_an_operation_idle(name: str, ir_version: int) -> None:
    """With the default nothing happens; fed, something does; and again without."""
    body, default, other = FED[name]
    x = np.linspace(0.5, 2, 17, dtype=F32)
    c = {"w": np.asarray(default), **({"n": F32(0)} if name == "mask" else {})}
    model = small(11, {"x": x, "w": c["w"]}, body, constants=c, ir_version=ir_version)
    if ir_version == 3:  # every initialiser is an input
        model.graph.input.extend(v for v in _described(c) if v.name != "w")
    makes = {"bound": np.maximum, "exponent": np.power, "factor": np.multiply, "zero": np.add, "divisor": np.divide,
             "slope": lambda a, b: a, "mask": lambda a, b: np.where(b, a, 0)}[name]  # fmt: skip
    exe = compile_here(model)
    for feeds, value in (({}, default), ({"w": np.asarray(other)}, other), ({}, default)):
        np.testing.assert_allclose(exe({"x": x, **feeds})["y"], makes(x, value), rtol=1e-6)


BUILT_IN = {  # an initialiser that shapes depend on, fed: nodes, default
    "shape": ("y = Reshape (x, w)", [4, 3]), "pads": ("y = Pad (x, w)", [0, 0, 0, 0]),
    "axes": ("y = Unsqueeze (x, w)", [0]),
    "starts": ("e = Constant <value_ints = [3]> () y = Slice (x, w, e)", [1]), "repeats": ("y = Tile (x, w)", [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
def test_r27_defaults_that_shapes_depend_on_are_not_ignored(name: str) -> None:
    """They are built in and are no inputs any more: who feeds one is told so, and never gets the default's answer."""
    body, default = BUILT_IN[name]
    x, w = normal(1, 3, 4), np.array(default)
    exe = compile_here(small(13, {"x": x, "w": w}, body, constants={"w": w}))
    assert exe(x=x)["y"].size >= 4
    with pytest.raises(InputError, match="input 'w': the model has no such input"):
        exe(x=x, w=w + 1)


def _described(arrays: dict[str, Any]) -> list[Any]:
    from onnx import helper

    return [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype), np.shape(v))
            for k, v in arrays.items()]  # fmt: skip


# ---- R30: resize -----------------------------------------------------------------------------------------------------
ROUNDINGS = {"floor": math.floor, "ceil": math.ceil, "round_prefer_floor": lambda v: math.ceil(v - 0.5),
             "round_prefer_ceil": lambda v: math.floor(v + 0.5)}  # fmt: skip


def source(mode: str, k: int, n: int, m: int) -> float:
    """Where element k of m comes from among n."""
    scale = m / n
    match mode:
        case "half_pixel":
            return (k + 0.5) / scale - 0.5
        case "asymmetric":
            return k / scale
        case "align_corners":
            return k * (n - 1) / (m - 1) if m > 1 else 0.0
        case _:
            return (k + 0.5) / scale - 0.5 if m > 1 else 0.0


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("axes", [(2,), (2, 3), (1, 2, 3)])
def test_r30_nearest_along_one_to_three_axes(axes: tuple[int, ...], mode: str, rounding: str) -> None:
    """Up by 2, down to a part, and up by a factor that is none of whole numbers, each along its own axis."""
    x = counted(2, 4, 5, 6)
    sizes = [{1: 8, 2: 3, 3: 16}[a] if a in axes else n for a, n in enumerate(x.shape)]
    y = x
    for a in axes:
        n, m = x.shape[a], sizes[a]
        places = [ROUNDINGS[rounding](round(source(mode, k, n, m), 9)) for k in range(m)]
        y = np.take(y, np.clip(places, 0, n - 1), a)
    text = f'y = Resize <coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}"> (x, "", "", n)'
    check(13, {"x": x}, text, {"y": y}, constants={"n": np.array(sizes)}, exact=True)


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("sizes", [(1, 7), (9, 1), (11, 13), (5, 6)])
def test_r30_linear_at_the_border(mode: str, sizes: tuple[int, int]) -> None:
    x = normal(1, 1, 2, 5, 6)
    y = x.astype(float)
    for a, m in zip((2, 3), sizes, strict=True):
        n = x.shape[a]
        at = np.clip([source(mode, k, n, m) for k in range(m)], 0, n - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, n - 1)
        part = (at - low).reshape(-1, *(1,) * (3 - a))
        y = np.take(y, low, a) * (1 - part) + np.take(y, high, a) * part
    text = f'y = Resize <mode = "linear", coordinate_transformation_mode = "{mode}"> (x, "", "", n)'
    check(13, {"x": x}, text, {"y": y.astype(F32)}, constants={"n": np.array([1, 2, *sizes])}, terms=16)


# ---- R37: nothing ----------------------------------------------------------------------------------------------------
REDUCE: dict[str, tuple[Any, float]] = {  # what it makes of something, and of nothing
    "Sum": (np.sum, 0), "Prod": (np.prod, 1), "Max": (np.max, -INF), "Min": (np.min, INF), "Mean": (np.mean, NAN),
    "L1": (lambda x, **k: np.abs(x).sum(**k), 0), "SumSquare": (lambda x, **k: (x * x).sum(**k), 0),
    "L2": (lambda x, **k: np.sqrt((x * x).sum(**k)), 0),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_r37_reductions_of_nothing_along_every_axis(shape: tuple[int, ...], keepdims: int) -> None:
    x = np.zeros(shape, F32)
    texts, right = [], {}
    for axes in ([k] for k in range(len(shape))):
        rest = tuple(1 if k in axes else d for k, d in enumerate(shape) if keepdims or k not in axes)
        for op, (_, nothing) in REDUCE.items():
            name = f"y{len(texts)}"
            texts.append(f"{name} = Reduce{op} <axes = {axes}, keepdims = {keepdims}> (x)")
            right[name] = np.full(rest, nothing if shape[axes[0]] == 0 else 0, F32)
    with np.errstate(invalid="ignore"):
        check(11, {"x": x}, " ".join(texts), right)


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("axes", ["empty", "absent", "all"])
def test_r37_lists_of_axes_that_are_empty(op: str, axes: str) -> None:
    x = np.array([[1, -2], [3, 4]], F32)
    given = "(x, a)" if axes != "absent" else "(x)"
    c = {} if axes == "absent" else {"a": np.array([0, 1] if axes == "all" else [], np.int64)}
    all_ = REDUCE[op][0](x.astype(float), axis=(0, 1)).astype(F32)
    idle = {"L1": np.abs(x), "SumSquare": x * x, "L2": np.abs(x)}.get(op, x)
    body = f"""y = Reduce{op} <keepdims = 0> {given} z = Reduce{op} <noop_with_empty_axes = 1, keepdims = 0> {given}"""
    check(18, {"x": x}, body, {"y": all_, "z": all_ if axes == "all" else idle}, constants=c, terms=4)


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("n", [0, 4])
def test_r37_products_of_nothing(m: int, k: int, n: int) -> None:
    a, b, c = counted(2, m, k), counted(k, n), counted(n)
    t = (a @ b).astype(F32)
    right = {"y": np.maximum(t + c, 0), "t": t, "s": (t + c).sum(1)}
    body = "t = MatMul (a, b) u = Add (t, c) y = Relu (u) s = ReduceSum <keepdims = 0> (u, one)"
    check(13, {"a": a, "c": c}, body, right, constants={"b": b, "one": np.array([1])})


def test_r37_layers_without_a_batch() -> None:
    """Convolution, pool, norm, softmax, attention, resize, concat, gather and slice of no element."""
    x, w = np.zeros((0, 3, 6, 6), F32), normal(1, 4, 3, 3, 3)
    right = {
        "c": np.zeros((0, 4, 4, 4)), "m": np.zeros((0, 3, 3, 3)), "g": np.zeros((0, 3, 1, 1)), "s": x, "p": x,
        "k": np.zeros((0, 6, 6, 6)), "e": np.zeros((0, 2, 6, 6)), "l": np.zeros((0, 3, 2, 6)), "n": x,
        "o": np.ones((2, 3, 6, 6)), "h": np.zeros((2, 0, 6, 6)), "f": np.zeros((0, 108)),
    }  # fmt: skip
    body = """c = Conv (x, w) m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) g = GlobalAveragePool (x)
              s = Softmax (x) p = MatMul (x, sq) k = Concat <axis = 1> (x, x) e = Gather <axis = 1> (x, two)
              l = Slice (x, b, d, ax) n = LayerNormalization (x, ga) o = Concat <axis = 0> (x, ones)
              h = Slice (ones, d, b, one) f = Flatten (x)"""
    c = {"w": w, "sq": normal(2, 6, 6), "two": np.array([0, 2]), "b": np.array([1]), "d": np.array([3]),
         "ax": np.array([2]), "ga": np.ones(6, F32), "ones": np.ones((2, 3, 6, 6), F32), "one": np.array([1])}
    check(17, {"x": x}, body, {n: v.astype(F32) for n, v in right.items()}, constants=c)


def test_r37_numbers_without_dimensions() -> None:
    """Of rank 0: pointwise, reduced over no axis, into a vector and back, as an index."""
    x, v = np.array(3, F32), counted(4)
    right = {"a": np.array(9, F32), "m": x, "u": x.reshape(1), "q": x, "p": v * 3, "g": v[2],
             "e": np.full((2, 2), 3, F32), "w": np.array(True), "s": np.array(v.sum(), F32)}  # fmt: skip
    body = """a = Mul (x, x) m = ReduceMean <keepdims = 0> (x) u = Unsqueeze (x, z) q = Squeeze (u, z) p = Mul (v, x)
              g = Gather (v, two) e = Expand (x, sq) w = Greater (x, zero) s = ReduceSum <keepdims = 0> (v)"""
    c = {"z": np.array([0]), "two": np.array(2), "sq": np.array([2, 2]), "zero": F32(0)}
    check(13, {"x": x, "v": v}, body, right, constants=c)


# ---- R40: memory -----------------------------------------------------------------------------------------------------
def test_r40_arrays_of_the_caller_are_only_read() -> None:
    """Views with strides of every kind, the same array twice, and what the last call gave."""
    x = normal(1, 6, 6)
    body = "s = Add (a, b) y = Mul (s, s) i = Identity (a) r = Reshape (b, flat) t = Transpose (a)"
    exe = compile_here(small(13, {"a": x, "b": x}, body, ["y", "i", "r", "t"], constants={"flat": np.array([36])}))
    wide = normal(2, 12, 12)
    views = [x, x.T, x[::-1], x[:, ::-1], wide[::2, 1::2], np.broadcast_to(x[:1], (6, 6)), x[::-1].T]
    for a, b in itertools.product(views, views):
        before = a.copy(), b.copy()
        found = exe(a=a, b=b)
        np.testing.assert_array_equal(found["y"], (before[0] + before[1]) ** 2)
        np.testing.assert_array_equal(found["i"], before[0])
        np.testing.assert_array_equal(found["r"], before[1].reshape(-1))
        np.testing.assert_array_equal(found["t"], before[0].T)
        for array in found.values():
            array[...] = NAN  # the caller's own from now on
        np.testing.assert_array_equal(a, before[0])
        np.testing.assert_array_equal(b, before[1])


def test_r40_results_that_are_fed_again() -> None:
    """What a call gave stays as it is while later calls read it and write their own."""
    x = normal(1, 3, 17)
    exe = compile_here(small(13, {"x": x}, "y = Add (x, one) z = Mul (y, two) w = Reshape (y, flat)", ["y", "z", "w"],
                             constants={"one": F32(1), "two": F32(2), "flat": np.array([51])}))  # fmt: skip
    kept, values = [], x
    for _ in range(4):
        found = exe(x=values)
        kept.append((values.copy(), values, found))
        values = found["y"]
    for before, fed, found in kept:
        np.testing.assert_array_equal(fed, before)
        np.testing.assert_array_equal(found["y"], before + 1)
        np.testing.assert_array_equal(found["z"], (before + 1) * 2)
        np.testing.assert_array_equal(found["w"], (before + 1).reshape(-1))


def test_r40b_rolled_rows_and_a_quotient_by_the_largest_of_a_column() -> None:
    """The rolled input is an output, and read by another kernel after it."""
    p, q = np.arange(6, dtype=F32).reshape(3, 2), np.arange(1, 7, dtype=F32).reshape(3, 2)
    rolled = np.roll(p, 1, 0)
    right = {"r": rolled, "y": rolled * (q / q.max(0))}
    body = """a = Slice (p, two, three, zero) b = Slice (p, zero, two, zero) r = Concat <axis = 0> (a, b)
              m = ReduceMax <axes = [0]> (q) d = Div (q, m) y = Mul (r, d)"""
    c = {"zero": np.array([0]), "two": np.array([2]), "three": np.array([3])}
    check(13, {"p": p, "q": q}, body, right, constants=c)
    np.testing.assert_allclose(right["y"], [[0.8, 1.6666667], [0, 0.6666667], [2, 3]], rtol=1e-6)


# ---- R45: dropout ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_r45_dropout_does_nothing_when_a_model_runs(opset: int, ratio: float) -> None:
    """Its mask is all true since opset 12; before, nothing says what it is, and ONNX Runtime's is all false."""
    x = np.array([[1, INF, NAN], [-0.0, 4, 5]], F32)
    if opset < 12:
        body, c = f"y, m = Dropout <ratio = {ratio}> (x) z = Mul (y, two)", {"two": F32(2)}
    else:
        body, c = "y, m = Dropout (x, r, t) z = Mul (y, two)", {"two": F32(2), "r": F32(ratio), "t": np.array(False)}
    right = {"y": x, "z": x * 2} | ({"m": np.full((2, 3), opset >= 12)} if opset >= 10 else {})
    if opset == 7:
        body = body.replace("y, m", "y")
    check(opset, {"x": x}, body, right, constants=c, exact=True)


# ---- R48: sizes that come later --------------------------------------------------------------------------------------
DYNAMIC = {  # nodes over x [n, m] and y [1, m] or [n, m]
    "softmax": ("t = Add (x, y) z = Softmax (t)", lambda x, y: np.exp(x + y) / np.exp(x + y).sum(-1, keepdims=True)),
    "norm": ("t = Mul (x, y) z = LayerNormalization <epsilon = 0.1> (t, one)", lambda x, y:
             (x * y - (x * y).mean(-1, keepdims=True)) / np.sqrt((x * y).var(-1, keepdims=True) + 0.1)),
    "product": ("t = Transpose (y) z = MatMul (x, t)", lambda x, y: x @ y.T),
    "concat": ("z = Concat <axis = 0> (x, y)", lambda x, y: np.concatenate([x, y])),
    "shape": ("s = Shape (x) t = Expand (y, s) z = Sub (t, x)", lambda x, y: np.broadcast_to(y, x.shape) - x),
    "sum": ("t = Sub (x, y) z = ReduceSum <keepdims = 0> (t, axis)", lambda x, y: (x - y).sum(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("sizes", [
    [(1, 4), (2, 4), (1, 1), (7, 17)], [(4, 4), (4, 5), (5, 4)], [(3, 2), (0, 2), (3, 0), (33, 1)],
])  # fmt: skip
def test_r48_one_executable_whatever_comes_first(name: str, sizes: list[tuple[int, int]]) -> None:
    """1 first, equal extents first, none: y has one row, or as many as x."""
    body, function = DYNAMIC[name]
    used = {k: v for k, v in {"one": F32([1]), "axis": np.array([0])}.items() if f" {k})" in body}
    for rows in ("one", "as many"):
        first = {"x": np.zeros((3, 5), F32), "y": np.zeros((1 if rows == "one" else 3, 5), F32)}
        model = small(17, first, body, ["z"], symbolic=True, constants=used)
        if rows == "as many":  # the same symbols on both
            for k in (0, 1):
                model.graph.input[1].type.tensor_type.shape.dim[k].dim_param = f"x_{k}"
        else:
            model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "x_1"
        exe = compile_here(model)
        for n, m in (*sizes, sizes[0]):
            if name == "norm" and m == 0:
                continue
            x, y = normal(n, n, m), normal(m + 9, 1 if rows == "one" else n, m)
            with np.errstate(invalid="ignore"):
                right = np.asarray(function(x.astype(float), y.astype(float)))
            found = exe(x=x, y=y)["z"]
            assert found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=0, atol=2e-5, err_msg=f"{rows}, {n} x {m}")
        assert len(exe.variants) <= len(set(sizes))
