"""Right answers, computed by hand, for models that public optimisers got wrong: what the imported graph means.

The names (R1, R2, ...) group the cases by kind of fault; other files run the same kinds through fusion.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from opfuse.errors import UnsupportedOperators
from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from tests.frontends.small_models import Arrays, small

F32 = np.float32
NAN = np.nan


def f32(values: object) -> np.ndarray:
    return np.array(values, F32)


def answers(
    opset: int, feeds: Arrays, body: str, outputs: str = "y", constants: Arrays | None = None
) -> list[np.ndarray]:
    """The outputs with numbers for shapes, once found equal to those with symbols for shapes."""
    model = small(opset, feeds, body, outputs.split(), constants=constants)
    fixed = list(evaluate(load(model), feeds).values())
    symbolic = small(opset, feeds, body, outputs.split(), constants=constants, symbolic=True)
    try:
        graph = load(symbolic)
    except UnsupportedOperators:  # some numbers are needed: give them
        graph = load(symbolic, {n: a.shape for n, a in feeds.items()})
    for one, other in zip(fixed, evaluate(graph, feeds).values(), strict=True):
        assert_array_equal(one, other)
    return fixed


def expect(actual: np.ndarray, right: object, atol: float = 1e-6) -> None:
    assert actual.shape == np.shape(right)
    assert_allclose(actual.astype(np.float64), np.asarray(right, np.float64), rtol=2e-6, atol=atol)


# ---- batch norm and bias -------------------------------------------------------------------------------------------
def test_r1_shared_weight_two_batch_norms() -> None:
    c = {
        "w": f32([1, 2]).reshape(2, 1, 1, 1),
        "two": f32([2, 2]),
        "ten": f32([10, 10]),
        "one": f32([1, 1]),
        "zero": f32([0, 0]),
    }
    body = """a = Conv (x, w) y = BatchNormalization <epsilon = 0.0> (a, two, zero, zero, one)
              b = Conv (x, w) z = BatchNormalization <epsilon = 0.0> (b, ten, one, zero, one)"""
    y, z = answers(11, {"x": f32([[[[1, 3]]]])}, body, "y z", c)
    expect(y[0, :, 0], [[2, 6], [4, 12]])
    expect(z[0, :, 0], [[11, 31], [21, 61]])


def test_r2_conv_result_used_twice() -> None:
    c = {
        "w": f32([1, 2]).reshape(2, 1, 1, 1),
        "s": f32([10, 100]),
        "b": f32([1, 2]),
        "m": f32([0, 0]),
        "v": f32([1, 1]),
    }
    body = "t = Conv (x, w) n = BatchNormalization <epsilon = 0.0> (t, s, b, m, v) y = Add (t, n)"
    y, t = answers(14, {"x": f32([[[[1, 3]]]])}, body, "y t", c)
    expect(t[0, :, 0], [[1, 3], [2, 6]])
    expect(y[0, :, 0], [[12, 34], [204, 608]])


def test_r3_grouped_transposed_convolution() -> None:
    w = np.broadcast_to(f32([1, 2, 3, 4]).reshape(4, 1, 1, 1), (4, 2, 1, 1)).copy()
    c = {
        "w": w,
        "s": f32([1, 10, 100, 1000]),
        "b": f32([0.5, 0.25, 0, 0]),
        "m": f32([0, 0, 0, 1]),
        "v": f32([1, 1, 1, 1]),
    }
    body = "t = ConvTranspose <group = 2> (x, w) y = BatchNormalization <epsilon = 0.0> (t, s, b, m, v)"
    (y,) = answers(11, {"x": np.ones((1, 4, 1, 1), F32)}, body, constants=c)
    expect(y.ravel(), [3.5, 30.25, 700, 6000])


def test_r4_transposed_convolution_scales_its_outputs() -> None:
    c = {"w": f32([[1, 2], [3, 4]]).reshape(2, 2, 1, 1), "s": f32([1, 10]), "b": f32([0, 0]), "v": f32([1, 1])}
    body = "t = ConvTranspose (x, w) y = BatchNormalization <epsilon = 0.0> (t, s, b, b, v)"
    (y,) = answers(11, {"x": np.ones((1, 2, 1, 1), F32)}, body, constants=c)
    expect(y.ravel(), [4, 60])


def test_r7_zero_variance_stays_finite_and_training_is_declined() -> None:
    c = {"w": np.full((1, 1, 1, 1), 10, np.float16), "s": np.array([2000], np.float16), "z": np.zeros(1, np.float16)}
    body = "t = Conv (x, w) y = BatchNormalization <epsilon = 0.001> (t, s, z, z, z)"
    x = np.array([[[[1e-3, 2e-3]]]], np.float16)
    (y,) = answers(15, {"x": x}, body, constants=c)
    assert_allclose(y.ravel().astype(float), [632.5, 1265], rtol=2e-3)
    model = small(
        15, {"x": x}, "y, m, v = BatchNormalization <training_mode = 1> (x, s, z, z, z)", ["y", "m", "v"], constants=c
    )
    with pytest.raises(UnsupportedOperators, match="training mode"):
        load(model)


def test_r8_weight_that_is_fed() -> None:
    c = {"s": f32([2]), "z": f32([0]), "v": f32([1])}
    body = "t = Conv <kernel_shape = [1, 1]> (x, w) y = BatchNormalization <epsilon = 0.0> (t, s, z, z, v)"
    (y,) = answers(11, {"x": f32([[[[1, 3]]]]), "w": f32([[[[5]]]])}, body, constants=c)
    expect(y.ravel(), [10, 30])


def test_r9_full_tensor_is_no_bias() -> None:
    c = {"w": f32([1, 2]).reshape(2, 1, 1, 1), "c": f32(range(0, 80, 10)).reshape(1, 2, 2, 2)}
    (y,) = answers(11, {"x": np.ones((1, 2, 2, 2), F32)}, "t = Conv <group = 2> (x, w) y = Add (t, c)", constants=c)
    expect(y[0], [[[1, 11], [21, 31]], [[42, 52], [62, 72]]])


# ---- pads and bounds -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("x", "pads", "attrs", "conv", "right"),
    [
        ([1, 2, 3, 4], [0, 0, 0, -1, 0, 0, 0, 1], "", "", [5, 7, 4]),
        ([1, 2], [0, 0, 0, 1, 0, 0, 0, 1], "five", "", [6, 3, 7]),
        ([1, 2, 3], [0, 0, 0, 1, 0, 0, 0, 1], '<mode = "reflect">', "", [3, 3, 5, 5]),
        ([1, 2, 3], [0, 0, 0, 1, 0, 0, 0, 0], "", '<auto_pad = "VALID", strides = [1, 2]>', [1, 5]),
    ],
)
def test_r11_pad_before_conv(x: list[int], pads: list[int], attrs: str, conv: str, right: list[int]) -> None:
    value, attrs = (", v", "") if attrs == "five" else ("", attrs)
    c = {"w": np.ones((1, 1, 1, 2), F32), "p": np.array(pads), **({"v": f32(5)} if value else {})}
    (y,) = answers(
        11, {"x": f32(x).reshape(1, 1, 1, -1)}, f"t = Pad {attrs} (x, p{value}) y = Conv {conv} (t, w)", constants=c
    )
    expect(y.ravel(), right)


def test_r11e_pad_with_two_readers() -> None:
    c = {"w": np.ones((1, 1, 1, 2), F32), "p": np.array([0, 0, 0, 1, 0, 0, 0, 1])}
    y, z = answers(11, {"x": f32([[[[1, 2]]]])}, "t = Pad (x, p) y = Conv (t, w) z = Relu (t)", "y z", c)
    expect(y.ravel(), [1, 3, 2])
    expect(z.ravel(), [0, 1, 2, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_r12_relu_and_clip(dtype: type) -> None:
    x = {"x": np.array([-3, -0.5, 0.5, 9], dtype)}
    c = {"l": np.array(-1, dtype), "h": np.array(1, dtype)}
    (y,) = answers(13, x, "t = Relu (x) y = Clip (t, l)", constants=c)
    expect(y, [0, 0, 0.5, 9])
    (y,) = answers(13, x, "t = Relu (x) y = Clip (t, l, h)", constants=c)
    expect(y, [0, 0, 0.5, 1])
    assert y.dtype == dtype


def test_r12_two_clips() -> None:
    x, c = {"x": f32([-3, 0, 0.5, 3, 9])}, {str(k): f32(v) for k, v in zip("abcde", (-1, 1, 2, 6, 0), strict=True)}
    (y,) = answers(11, x, "t = Clip (x, a, b) y = Clip (t, c, d)", constants=c)
    expect(y, [2, 2, 2, 2, 2])
    (y,) = answers(11, x, "t = Clip (x, a, b) y = Clip (t, e, d)", constants=c)
    expect(y, [0, 0, 0.5, 1, 1])


def test_r14_crossed_bounds() -> None:
    (y,) = answers(11, {"x": f32([0.25, -6, 2, 9, NAN])}, "y = Clip (x, l, h)", constants={"l": f32(3), "h": f32(1)})
    expect(y, [1, 1, 1, 1, NAN])
    (y,) = answers(7, {"x": f32([0.25, -6, 2, 9, NAN])}, "y = Clip <min = 3.0, max = 1.0> (x)")
    expect(y, [1, 1, 1, 1, NAN])


# ---- normalisation -------------------------------------------------------------------------------------------------
_LAYER_NORM = """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q)
    e = Add (v, eps) r = Sqrt (e) n = Div (d, r) s = Mul (n, g) y = Add (s, b)"""
_ROWS = f32([[1, 2, 4], [0, 5, 10]])


def test_r15_gamma_by_row_and_gamma_that_widens() -> None:
    c = {"two": f32(2), "eps": f32(1e-5)}
    (y,) = answers(13, {"x": _ROWS}, _LAYER_NORM, constants={**c, "g": f32([[1], [10]]), "b": f32([[0], [1]])})
    expect(y, [[-1.069041, -0.26726, 1.336302], [-11.247446, 1, 13.247446]], 2e-6)
    (y,) = answers(13, {"x": f32([[7]])}, _LAYER_NORM, constants={**c, "g": f32([2, 3]), "b": f32([0, 1])})
    expect(y, [[0, 1]])


def test_r15_layer_normalization() -> None:
    c = {"one": np.ones((2, 3), F32), "g": f32([[[1, 2, 3]]]), "b": f32([[[0, 0, 1]]])}
    body = "t = Add (x, one) y = LayerNormalization <epsilon = 0.1> (t, g, b)"
    (y,) = answers(17, {"x": _ROWS.reshape(1, 2, 3)}, body, constants=c)
    expect(y[0], [[-1.036255, -0.518128, 4.885958], [-1.221087, 0, 4.663261]], 2e-6)
    x = _ROWS.reshape(1, 2, 3)
    (y,) = answers(
        17, {"x": x}, "y = LayerNormalization <axis = 1, epsilon = 0.0> (x, g)", constants={"g": np.ones((2, 3), F32)}
    )
    all_six = (x.astype(float) - x.astype(float).mean()) / x.astype(float).std()
    expect(y, all_six)


def test_r18_half_precision_does_not_overflow() -> None:
    half = np.float16
    (y,) = answers(
        17,
        {"x": np.array([[300, -300, 0, 0]], half)},
        "y = LayerNormalization (x, g)",
        constants={"g": np.ones(4, half)},
    )
    expect(y, [[1.414, -1.414, 0, 0]], 1e-3)
    (y,) = answers(13, {"x": np.full((1, 4), 60000, half)}, "y = ReduceMean (x)")
    expect(y, [[60000]])
    (y,) = answers(13, {"x": np.array([60000, 59968, -60000], half)}, "y = Softmax (x)")
    expect(y, [1, 0, 0])


_GELU = {
    "erf": "a = Div (x, c) b = Erf (a) d = Add (b, one) e = Mul (x, d) y = Mul (e, half)",
    "tanh": """p = Mul (x, x) q = Mul (p, x) r = Mul (q, k) s = Add (x, r) t = Mul (s, f) u = Tanh (t)
               d = Add (u, one) e = Mul (x, d) y = Mul (e, half)""",
    "sigmoid": "a = Mul (x, g) b = Sigmoid (a) y = Mul (x, b)",
}


@pytest.mark.parametrize(
    ("form", "change", "right"),
    [
        ("erf", {}, [-0.0040497, -0.1586553, 0, 0.8413447, 2.9959503]),
        ("tanh", {}, [-0.0036374, -0.158808, 0, 0.841192, 2.9963626]),
        ("sigmoid", {}, [-0.0180713, -0.1542042, 0, 0.8457958, 2.9819287]),
        ("erf", {"c": f32(1.5)}, [-0.007017, -0.172889, 0, 0.827111, 2.992983]),
    ],
)
def test_r19_the_three_gelus_and_a_near_miss(form: str, change: Arrays, right: list[float]) -> None:
    c = {
        "c": f32(2**0.5),
        "one": f32(1),
        "half": f32(0.5),
        "k": f32(0.044715),
        "f": f32((2 / np.pi) ** 0.5),
        "g": f32(1.702),
    }
    (y,) = answers(13, {"x": f32([-3, -1, 0, 1, 3])}, _GELU[form], constants={**c, **change})
    expect(y, right)


def test_r19_gelu_of_rank_zero() -> None:
    c = {"c": f32(2**0.5), "one": f32(1), "half": f32(0.5)}
    (y,) = answers(13, {"x": f32(1)}, _GELU["erf"], constants=c)
    expect(y, 0.8413447)


# ---- layout and no-ops ---------------------------------------------------------------------------------------------
def test_r22_transposes() -> None:
    a, eye = f32([[1, 2], [3, 4]]), np.eye(2, dtype=F32)
    (y,) = answers(
        13,
        {"x": a},
        "t = Transpose <perm = [0, 1]> (x) u = MatMul (t, i) y = Add (u, c)",
        constants={"i": eye, "c": f32([0, 100])},
    )
    expect(y, [[1, 102], [3, 104]])
    (y,) = answers(
        13, {"x": a}, "t = Mul (x, k) u = Transpose (t) y = Gemm (x, i, u)", constants={"i": eye, "k": f32(10)}
    )
    expect(y, [[11, 32], [23, 44]])
    y, z, t = answers(
        13, {"x": a}, "t = Transpose <perm = [1, 0]> (x) y = MatMul (t, i) z = Relu (t)", "y z t", {"i": 2 * eye}
    )
    expect(y, [[2, 6], [4, 8]])
    expect(z, [[1, 3], [2, 4]])
    expect(t, [[1, 3], [2, 4]])
    body = "t = Transpose <perm = [0, 2, 3, 1]> (x) u = Add (t, c) y = Transpose <perm = [0, 3, 1, 2]> (u)"
    (y,) = answers(13, {"x": f32(range(4)).reshape(1, 2, 1, 2)}, body, constants={"c": f32([10, 20])})
    expect(y[0, :, 0], [[10, 11], [22, 23]])


def test_r24_no_ops_that_are_none() -> None:
    (y,) = answers(13, {"x": f32([1, 2, 3])}, "y = Mul (x, c)", constants={"c": np.ones((2, 1), F32)})
    expect(y, [[1, 2, 3], [1, 2, 3]])
    c = {"s": np.array([4, 5]), "c": f32([range(5)])}
    (y,) = answers(13, {"x": f32([[10]])}, "t = Expand (x, s) y = Add (t, c)", constants=c)
    expect(y, [[10, 11, 12, 13, 14]] * 4)
    (y,) = answers(13, {"x": f32([1, 2])}, "y = Add (x, c)", constants={"c": np.zeros((0, 2), F32)})
    assert y.shape == (0, 2)
    (y,) = answers(13, {"x": f32([-0.0])}, "y = Add (x, c)", constants={"c": f32([0])})
    assert not np.signbit(y[0])
    y, z = answers(13, {"x": f32([4])}, "y = Sub (c, x) z = Div (d, x)", "y z", {"c": f32(0), "d": f32(1)})
    expect(y, [-4])
    expect(z, [0.25])


def test_r25_twins() -> None:
    body = "s = Sqrt (x) y = Unsqueeze <axes = [1]> (s) t = Unsqueeze <axes = [1]> (s) z = Ceil (t)"
    y, z = answers(11, {"x": f32([0, 2, 4])}, body, "y z")
    expect(y, [[0], [1.414214], [2]])
    expect(z, [[0], [2], [2]])
    found = evaluate(load(small(13, {"x": f32([1])}, "y = Relu (x) z = Relu (x)", ["y", "z"])), {"x": f32([1])})
    assert list(found) == ["y", "z"]


@pytest.mark.parametrize("ir_version", [3, 8])
def test_r27_initialiser_that_is_an_input(ir_version: int) -> None:
    feeds = {"x": f32([2, 3]), "w": f32([10, 20])}
    model = small(11, feeds, "t = Mul (x, w) y = Add (t, w)", constants={"w": f32([1, 1])}, ir_version=ir_version)
    graph = load(model)
    expect(evaluate(graph, feeds)["y"], [30, 80])
    expect(evaluate(graph, {"x": feeds["x"]})["y"], [3, 4])


# ---- meaning by opset ----------------------------------------------------------------------------------------------
def test_r29_softmax_by_opset() -> None:
    x = {"x": np.log(np.arange(1, 9, dtype=F32)).reshape(2, 2, 2)}
    flat = [[[0.1, 0.2], [0.3, 0.4]], [[0.192308, 0.230769], [0.269231, 0.307692]]]
    for attrs in ("", "<axis = 1>"):
        (y,) = answers(11, x, f"y = Softmax {attrs} (x)")
        expect(y, flat)
    (y,) = answers(11, x, "y = LogSoftmax (x)")
    expect(y, np.log(flat), 3e-6)
    (y,) = answers(13, x, "y = Softmax (x)")
    expect(y, [[[1 / 3, 2 / 3], [3 / 7, 4 / 7]], [[5 / 11, 6 / 11], [7 / 15, 8 / 15]]])


@pytest.mark.parametrize(
    ("mode", "rounding", "right"),
    [
        ("half_pixel", "floor", [0, 0, 0, 1, 1, 2, 2, 3]),
        ("half_pixel", "ceil", [0, 1, 1, 2, 2, 3, 3, 3]),
        ("asymmetric", "floor", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("align_corners", "floor", [0, 0, 0, 1, 1, 2, 2, 3]),
    ],
)
def test_r30_resize(mode: str, rounding: str, right: list[int]) -> None:
    attrs = f'coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}"'
    c = {"s": f32([1, 1, 2])}
    (y,) = answers(13, {"x": f32([[range(4)]])}, f'y = Resize <{attrs}> (x, "", s)', constants=c)
    expect(y.ravel(), right)


def test_r30_resize_down_prefers_ceil() -> None:
    attrs = 'nearest_mode = "round_prefer_ceil"'
    (y,) = answers(
        13, {"x": f32([[range(20)]])}, f'y = Resize <{attrs}> (x, "", "", n)', constants={"n": np.array([1, 1, 6])}
    )
    expect(y.ravel(), [1, 5, 8, 11, 15, 18])


@pytest.mark.parametrize("repeat", [1, 3, 8, 17])
def test_r31_nan_comes_through(repeat: int) -> None:
    a, b = np.tile(f32([NAN, -5, NAN, 3]), repeat), np.tile(f32([6, NAN, NAN, 8]), repeat)
    y, z, r = answers(13, {"a": a, "b": b}, "y = Max (a, b) z = Min (a, b) r = Relu (a)", "y z r")
    assert_array_equal(y, np.tile(f32([NAN, NAN, NAN, 8]), repeat))
    assert_array_equal(z, np.tile(f32([NAN, NAN, NAN, 3]), repeat))
    assert_array_equal(r, np.tile(f32([NAN, 0, NAN, 3]), repeat))
    y, z = answers(13, {"a": a}, "y = Erf (a) z = Sign (a)", "y z")
    assert np.isnan(y[0]) and not np.isnan(y[1])
    rows = f32([[NAN, 1, 2], [2, NAN, 1], [1, 2, NAN]])
    m, i = answers(
        13, {"x": rows}, "m = ReduceMax <axes = [1], keepdims = 0> (x) i = ArgMax <axis = 1, keepdims = 0> (x)", "m i"
    )
    assert np.isnan(m).all()
    assert_array_equal(i, [0, 1, 2])


def test_r32_algebra_of_floats() -> None:
    y, z = answers(
        13, {"x": f32([89, -200]), "s": f32([2e19])}, "e = Exp (x) y = Log (e) q = Mul (s, s) z = Sqrt (q)", "y z"
    )
    assert_array_equal(y, [np.inf, -np.inf])
    assert_array_equal(z, [np.inf])
    x = {"x": f32([np.inf, NAN, -1])}
    y, z = answers(13, x, "y = Mul (x, c) z = Sub (x, x)", "y z", {"c": f32(0)})
    assert_array_equal(y, [NAN, NAN, -0.0])
    assert np.signbit(y[2])
    assert_array_equal(z, [NAN, NAN, 0])
    (y,) = answers(13, {"x": f32([1, 5])}, "t = Add (x, c) y = Sub (t, c)", constants={"c": f32(1e8)})
    assert_array_equal(y, [0, 8])


def test_r35_casts_out_of_range() -> None:
    x = {"x": f32([300, -1.5, NAN, np.inf, -np.inf, 50.9, -50.9])}
    int8, uint8, int32, boolean = answers(
        13, x, "a = Cast <to = 3> (x) b = Cast <to = 2> (x) c = Cast <to = 6> (x) d = Cast <to = 9> (x)", "a b c d"
    )
    low = -(2**31)
    assert_array_equal(int8, np.array([44, -1, 0, 0, 0, 50, -50], np.int8))
    assert_array_equal(uint8, np.array([44, 255, 0, 0, 0, 50, 206], np.uint8))
    assert_array_equal(int32, np.array([300, -1, low, low, low, 50, -50], np.int32))
    assert boolean.all()


def test_r37_empty_tensors_and_axes() -> None:
    empty = {"x": np.zeros((2, 0), F32)}
    body = " ".join(
        f"{o} = Reduce{n} <axes = [1], keepdims = 0> (x)" for o, n in (("p", "Prod"), ("m", "Max"), ("a", "Mean"))
    )
    p, m, a = answers(11, empty, body, "p m a")
    assert_array_equal(p, [1, 1])
    assert_array_equal(m, [-np.inf, -np.inf])
    assert np.isnan(a).all()
    (s,) = answers(13, empty, "y = ReduceSum <keepdims = 0> (x, a)", constants={"a": np.array([1])})
    assert_array_equal(s, [0, 0])
    square, none = {"x": f32([[1, 2], [3, 4]])}, {"a": np.zeros(0, np.int64)}
    (y,) = answers(13, square, "y = ReduceSum <keepdims = 0> (x, a)", constants=none)
    expect(y, 10)
    (y,) = answers(13, square, "y = ReduceSum <noop_with_empty_axes = 1> (x, a)", constants=none)
    expect(y, [[1, 2], [3, 4]])
    (y,) = answers(13, {"a": np.zeros((2, 0), F32), "b": np.zeros((0, 3), F32)}, "y = MatMul (a, b)")
    expect(y, np.zeros((2, 3)))
    (y,) = answers(13, {"a": np.zeros((0, 2), F32), "b": f32([[5, 6]])}, "y = Concat <axis = 0> (a, b)")
    expect(y, [[5, 6]])


def test_r38_integers() -> None:
    x = {"a": np.array([[-7, 7, -1], [5, -8, 9]]), "b": np.array([2, -2, 3])}
    m, d, f = answers(13, x, "m = Mod (a, b) d = Div (a, b) f = Mod <fmod = 1> (a, b)", "m d f")
    assert_array_equal(m, [[1, -1, 2], [1, 0, 0]])
    assert_array_equal(d, [[-3, -3, 0], [2, 4, 3]])
    assert_array_equal(f, [[-1, 1, -1], [1, 0, 0]])
    u = {"a": np.array([200, 255], np.uint8), "b": np.array([200, 255], np.uint8)}
    s, p = answers(14, u, "s = Add (a, b) p = Mul (a, b)", "s p")
    assert_array_equal(s, np.array([144, 254], np.uint8))
    assert_array_equal(p, np.array([64, 1], np.uint8))


def test_r42_order_of_operands() -> None:
    c = {"i": np.eye(2, dtype=F32), "b": f32([10, 20])}
    y, z = answers(13, {"x": f32([[1, 2], [3, 4]])}, "t = MatMul (x, i) y = Sub (b, t) z = Div (b, t)", "y z", c)
    expect(y, [[9, 18], [7, 16]])
    expect(z, [[10, 10], [10 / 3, 5]])


def test_r45_dropout_goes_only_where_nothing_is_dropped() -> None:
    x = f32([1, 2, 3, 4])
    body, c = "y = Dropout (x, r, t)", {"r": F32(0.5)}
    expect(answers(13, {"x": x}, body, constants={**c, "t": np.array(False)})[0], x)
    trained = small(13, {"x": x}, body, ["y"], constants={**c, "t": np.array(True)})
    asked = small(13, {"x": x, "t": np.array(True)}, body, ["y"], constants=c)
    for model in (trained, asked):
        with pytest.raises(UnsupportedOperators, match="training mode"):
            load(model)


def test_r48_one_graph_for_all_sizes() -> None:
    feeds = {"x": np.zeros((2, 4), F32), "y": f32([[1, 2, 3, 4]])}
    body = "t = Add (x, y) s = Softmax (t) z = ReduceSum <keepdims = 0> (s, a)"
    model = small(13, feeds, body, ["z"], constants={"a": np.array([0])}, symbolic=True)
    graph = load(model)
    for n in (1, 2, 3, 7, 0, 33, 1):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(F32)
        e = np.exp((x + feeds["y"]).astype(float))
        right = (e / e.sum(-1, keepdims=True)).sum(0)
        assert_allclose(evaluate(graph, {"x": x, "y": feeds["y"]})["z"], right, rtol=0, atol=8 * n * 1.2e-7)
