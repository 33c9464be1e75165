"""Neighbours of R1 to R11 and R42: what stands behind and before convolutions and products, in other ranks and shapes.

Right values are sums written out in NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from opfuse.runtime.executable import Executable
from tests.cases.agreement import check, check_model, compile_here
from tests.frontends.small_models import runtime_answers, small

F32 = np.float32


def normal(seed: int, *shape: int, dtype: Any = F32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def conv(x: np.ndarray, w: np.ndarray, b: Any = None, group: int = 1) -> np.ndarray:
    """A convolution of any rank without pads, summed in double precision."""
    kernel = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), kernel, tuple(range(2, x.ndim)))
    sums = []
    for g in range(group):
        channels = slice(g * w.shape[1], (g + 1) * w.shape[1])
        outs = slice(g * w.shape[0] // group, (g + 1) * w.shape[0] // group)
        axes = [1, *range(x.ndim, windows.ndim)]
        sums.append(np.moveaxis(np.tensordot(windows[:, channels], w[outs].astype(float),
                                             (axes, list(range(1, w.ndim)))), -1, 1))  # fmt: skip
    y = np.concatenate(sums, 1)
    return y if b is None else y + column(b, y.ndim)


def conv_transpose(x: np.ndarray, w: np.ndarray, group: int = 1, stride: int = 1) -> np.ndarray:
    """Every input element adds its weights to the window that it spreads over."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    wide = [(n - 1) * stride + k for n, k in zip(spatial, kernel, strict=True)]
    y, per = np.zeros((x.shape[0], w.shape[1] * group, *wide)), x.shape[1] // group
    x, w = x.astype(float), w.astype(float)
    for c in range(x.shape[1]):
        outs = slice(c // per * w.shape[1], (c // per + 1) * w.shape[1])
        for at in itertools.product(*(range(n) for n in spatial)):
            place = tuple(slice(a * stride, a * stride + k) for a, k in zip(at, kernel, strict=True))
            y[(slice(None), outs, *place)] += np.multiply.outer(x[(slice(None), c, *at)], w[c])
    return y


def column(v: np.ndarray, rank: int) -> np.ndarray:
    """Numbers for each channel, to be broadcast."""
    return np.asarray(v, float).reshape(-1, *(1,) * (rank - 2))


def norm(y: np.ndarray, c: dict[str, np.ndarray], prefix: str, epsilon: float) -> np.ndarray:
    s, t, m, v = (column(c[prefix + n], y.ndim) for n in "stmv")
    return (y - m) / np.sqrt(v + epsilon) * s + t


def norm_numbers(seed: int, channels: int, prefix: str, dtype: Any = F32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {prefix + n: (rng.uniform(0.5, 2, channels) if n in "sv" else rng.standard_normal(channels)).astype(dtype)
            for n in "stmv"}  # fmt: skip


def norm_text(x: str, y: str, prefix: str, epsilon: float = 1e-3) -> str:
    return f"{y} = BatchNormalization <epsilon = {epsilon}> ({x}, {prefix}s, {prefix}t, {prefix}m, {prefix}v)"


def taken(exe: Executable, rule: str) -> int:
    return sum(1 for d in exe.model.ledger if d.rule == rule and d.outcome == "taken")


# ---- R1, R2: weights and results with several readers ----------------------------------------------------------------
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("spatial", [(9,), (5, 6), (3, 4, 5)])
def test_r1_a_weight_and_a_bias_of_two_convolutions(spatial: tuple[int, ...], group: int) -> None:
    """Each has a norm of its own; the weight is read a third time, as it is."""
    rank = 2 + len(spatial)
    x, u = normal(1, 2, 4, *spatial), normal(6, 2, 4, *spatial)
    w, b = normal(2, 6, 4 // group, *(2,) * len(spatial)), normal(3, 6)
    c = {"w": w, "b": b, **norm_numbers(4, 6, "p"), **norm_numbers(5, 6, "q")}
    body = f"""a = Conv <group = {group}> (x, w, b) {norm_text("a", "y", "p")}
               d = Conv <group = {group}> (u, w, b) {norm_text("d", "z", "q")} r = Relu (w)"""
    s, t = (conv(v, w, b, group) for v in (x, u))
    right = {"y": norm(s, c, "p", 1e-3), "z": norm(t, c, "q", 1e-3), "r": np.maximum(w, 0)}
    right = {k: v.astype(F32) for k, v in right.items()}
    exe = check(13, {"x": x, "u": u}, body, right, constants=c, terms=4 * 2**rank)
    assert taken(exe, "fold_batch_norm") == 2


@pytest.mark.parametrize("shared", ["norm", "scale"])
def test_r1_norms_and_scales_that_two_layers_share(shared: str) -> None:
    x, w, u = normal(1, 2, 3, 5, 5), normal(2, 7, 3, 2, 2), normal(3, 7, 3, 1, 1)
    c = {"w": w, "u": u, "k": normal(6, 7, 1, 1), **norm_numbers(4, 7, "p")}
    if shared == "norm":
        body = f"a = Conv (x, w) {norm_text('a', 'y', 'p')} d = Conv (x, u) {norm_text('d', 'z', 'p')}"
        right = [norm(conv(x, k), c, "p", 1e-3) for k in (w, u)]
    else:
        body = "a = Conv (x, w) y = Mul (a, k) d = Conv (x, u) z = Mul (k, d)"
        right = [conv(x, k) * c["k"] for k in (w, u)]
    check(13, {"x": x}, body, {n: r.astype(F32) for n, r in zip("yz", right, strict=True)}, constants=c, terms=24)


BEHIND = {
    "norm": norm_text("t", "y", "p"), "bias": "y = Add (t, k)", "scale": "y = Mul (k, t)", "relu": "y = Relu (t)",
}  # fmt: skip


@pytest.mark.parametrize("how", ["output", "reader"])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MatMul"])
def test_r2_a_result_that_is_wanted_itself(op: str, behind: str, how: str) -> None:
    if op == "MatMul":  # a norm's channels are the second axis
        x, w = normal(1, 5, 3) if behind == "norm" else normal(1, 2, 5, 3), normal(2, 3, 7)
    else:
        x, w = normal(1, 2, 3, 4, 4), normal(2, *((7, 3) if op == "Conv" else (3, 7)), 2, 2)
    t = x.astype(float) @ w if op == "MatMul" else conv(x, w) if op == "Conv" else conv_transpose(x, w)
    c = {"w": w, "k": normal(3, 7) if op == "MatMul" else normal(3, 7, 1, 1), **norm_numbers(4, 7, "p")}
    y = {"norm": lambda: norm(t, c, "p", 1e-3), "bias": lambda: t + c["k"], "scale": lambda: t * c["k"],
         "relu": lambda: np.maximum(t, 0)}[behind]()  # fmt: skip
    more = "" if how == "output" else "z = Mul (y, t)"
    right = {"y": y, "t": t} if how == "output" else {"z": y * t}
    body = f"t = {op} (x, w) {BEHIND[behind]} {more}"
    check(13, {"x": x}, body, {k: v.astype(F32) for k, v in right.items()}, constants=c, terms=32)


# ---- R3, R4: weights of transposed convolutions ----------------------------------------------------------------------
@pytest.mark.parametrize(("channels", "outs", "group"), [(4, 4, 1), (4, 2, 2), (4, 1, 4), (3, 5, 1), (6, 2, 2)])
@pytest.mark.parametrize(("spatial", "kernel", "stride"), [((5,), 3, 2), ((3, 4), 1, 1), ((2, 2, 3), 2, 2)])
def test_r3_r4_norms_behind_transposed_convolutions(
    channels: int, outs: int, group: int, spatial: tuple[int, ...], kernel: int, stride: int
) -> None:
    rank = len(spatial)
    x, w = normal(1, 2, channels, *spatial), normal(2, channels, outs, *(kernel,) * rank)
    c = {"w": w, "b": normal(3, outs * group), **norm_numbers(4, outs * group, "p")}
    attributes = f"group = {group}, strides = {[stride] * rank}"
    body = f"t = ConvTranspose <{attributes}> (x, w, b) {norm_text('t', 'u', 'p')} y = Relu (u)"
    t = conv_transpose(x, w, group, stride) + column(c["b"], rank + 2)
    y = np.maximum(norm(t, c, "p", 1e-3), 0).astype(F32)
    exe = check(11, {"x": x}, body, {"y": y}, constants=c, terms=16 * channels)
    assert taken(exe, "fold_batch_norm_transposed") == 1


# ---- R7: folds in half precision ------------------------------------------------------------------------------------
HALF = np.float16
RANGES = {  # weight, scale, variance, mean, shift -> what must not be rounded away or leave the range
    "overflow": (10, 2000, 0, 0, 0), "underflow": (1e-4, 1e-4, 1, 0, 0), "shift overflows": (1, 300, 1, 300, 0),
    "plain": (0.5, 2, 1, 0.25, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_r7_folds_that_leave_the_range_of_half_precision(op: str, name: str) -> None:
    weight, scale, variance, mean, shift = RANGES[name]
    x = {"overflow": [1e-3, 2e-3], "underflow": [1e4, 2e4], "shift overflows": [300, 301], "plain": [1, -3]}[name]
    feeds = {"x": np.array(x, HALF).reshape(1, 1, 1, 2)}
    numbers = {"s": scale, "t": shift, "m": mean, "v": variance}
    c = {"w": np.full((1, 1, 1, 1), weight, HALF), **{f"p{k}": np.array([n], HALF) for k, n in numbers.items()}}
    values = {k: float(a.reshape(-1)[0]) for k, a in c.items()}
    t = feeds["x"].astype(float) * values["w"]
    y = (t - values["pm"]) / np.sqrt(values["pv"] + 1e-3) * values["ps"] + values["pt"]
    check(15, feeds, f"t = {op} (x, w) {norm_text('t', 'y', 'p')}", {"y": y.astype(HALF)}, constants=c)


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_r7_scales_that_leave_the_range_of_half_precision(op: str) -> None:
    """A factor of 3e4 into a weight of 10."""
    x = np.full((1, 1, 1, 1), 1e-3, HALF) if op == "Conv" else np.full((1, 1), 1e-3, HALF)
    c = {"w": np.full_like(x, 10), "k": np.array(30000, HALF)}
    y = np.full(x.shape, (float(HALF(1e-3)) * 10) * 30000).astype(HALF)
    check(13, {"x": x}, f"t = {op} (x, w) y = Mul (t, k)", {"y": y}, constants=c, terms=4)


# ---- R8: weights that may change -------------------------------------------------------------------------------------
@pytest.mark.parametrize("fed", ["w", "ps", "pm", "pv", "pt"])
@pytest.mark.parametrize("kind", ["input", "default"])
def test_r8_weights_and_statistics_that_are_fed(fed: str, kind: str) -> None:
    """A default that is fed is used; the next call without it has the default again."""
    x = normal(1, 2, 3, 4)
    c = {"w": normal(2, 5, 3, 2), **norm_numbers(4, 5, "p")}
    changed = {**c, fed: (np.abs(normal(7, *c[fed].shape)) + F32(0.5)).astype(F32)}
    feeds = {"x": x, fed: c[fed]}
    held = c if kind == "default" else {k: v for k, v in c.items() if k != fed}
    body = f"t = Conv (x, w) {norm_text('t', 'y', 'p')}"
    exe = compile_here(small(13, feeds, body, ["y"], constants=held))
    for numbers in (c, changed, c):
        right = norm(conv(x, numbers["w"]), numbers, "p", 1e-3)
        np.testing.assert_allclose(exe({"x": x, fed: numbers[fed]})["y"], right, rtol=0, atol=2e-5)
        if kind == "default":
            np.testing.assert_allclose(exe(x=x)["y"], norm(conv(x, c["w"]), c, "p", 1e-3), rtol=0, atol=2e-5)


# ---- R9, R42: addends ------------------------------------------------------------------------------------------------
# Channels, height and width are equal: a shape that is read wrong gives no error.
ADDENDS = [(3, 1, 1), (3,), (3, 1), (3, 3), (1, 3, 3), (3, 3, 3), (1, 3, 1, 1), (2, 3, 1, 1), (1, 3, 3, 3), (),
           (2, 1, 1, 1), (2, 3, 3, 3), (1, 1, 1, 3)]  # fmt: skip


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("shape", ADDENDS, ids=str)
def test_r9_r42_operands_behind_convolutions(shape: tuple[int, ...], fed: bool) -> None:
    """On both sides, of every shape that broadcasts; one of the convolutions has a group for each channel."""
    x, k = normal(1, 2, 3, 3, 3), (np.abs(normal(3, *shape)) + 0.5).astype(F32)
    weights = {f"w{n}": normal(10 + n, 3, 1 if n == 1 else 3, 1, 1) for n in range(6)}
    made = [conv(x, w, None, 3 if w.shape[1] == 1 else 1) for w in weights.values()]
    texts = [f"t{n} = Conv <group = {3 if n == 1 else 1}> (x, w{n})" for n in range(6)]
    body = " ".join((*texts, "y0 = Add (t0, k) y1 = Add (k, t1) y2 = Sub (k, t2) y3 = Mul (k, t3) y4 = Div (t4, k)",
                     "a = Abs (t5) b = Add (a, one) y5 = Div (k, b)"))  # fmt: skip
    y = [made[0] + k, k + made[1], k - made[2], k * made[3], made[4] / k, k / (np.abs(made[5]) + 1)]
    right = {f"y{n}": v.astype(F32) for n, v in enumerate(y)}
    feeds, constants = {"x": x, **({"k": k} if fed else {})}, {**weights, "one": F32(1)}
    check(13, feeds, body, right, constants=constants if fed else {**constants, "k": k}, terms=8)


@pytest.mark.parametrize("shape", ADDENDS, ids=str)
def test_r9_r42_operands_in_front_of_convolutions(shape: tuple[int, ...]) -> None:
    """With a border of zeros, which a shift may not move and a scale may not widen; dense, grouped and transposed."""
    k = (np.abs(normal(3, *shape)) + 0.5).astype(F32)
    front = {"Mul (x, k)": np.multiply, "Add (k, x)": np.add, "Sub (x, k)": np.subtract, "Div (x, k)": np.divide,
             "Neg (x)": lambda x, _: -x}  # fmt: skip
    feeds, constants, texts, right = {}, {"k": k}, [], {}
    for n, ((text, function), kind) in enumerate(itertools.product(front.items(), ("dense", "grouped", "transposed"))):
        x = feeds[f"x{n}"] = normal(30 + n, 2, 3, 3, 3)  # each of its own: a value with several readers stays
        t, transposed = function(x, k), kind == "transposed"
        w = constants[f"w{n}"] = normal(60 + n, *{"dense": (6, 3), "grouped": (6, 1), "transposed": (3, 4)}[kind], 2, 2)
        op = "ConvTranspose" if transposed else f"Conv <group = {3 if kind == 'grouped' else 1}, pads = [1, 0, 0, 1]>"
        texts.append(f"t{n} = {text.replace('x', f'x{n}')} y{n} = {op} (t{n}, w{n})")
        wide = np.pad(t, [(0, 0), (0, 0), (1, 0), (0, 1)])
        right[f"y{n}"] = conv_transpose(t, w) if transposed else conv(wide, w, None, 3 if kind == "grouped" else 1)
    exe = check(13, feeds, " ".join(texts), {n: y.astype(F32) for n, y in right.items()}, constants=constants, terms=24)
    per_channel = shape in ((), (3, 1, 1), (1, 3, 1, 1))
    assert taken(exe, "scale_before_conv") == (4 if per_channel else 0)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 4), (3, 1, 1), (3, 4, 4), (1,), ()], ids=str)
def test_r42_operands_behind_products(shape: tuple[int, ...]) -> None:
    """Rows and columns are equal in number; the operand stands first where an order means something."""
    x, k = np.abs(normal(1, 3, 4, 5)), np.abs(normal(3, *shape))
    weights = {f"w{n}": np.abs(normal(10 + n, 5, 4)) for n in range(8)}
    t = [x.astype(float) @ w for w in weights.values()]
    texts = {
        "y0 = Add (k, t0)": k + t[0], "y1 = Sub (k, t1)": k - t[1], "y2 = Mul (t2, k)": t[2] * k,
        "y3 = Pow (t3, k)": t[3] ** k, "y4 = Max (k, t4)": np.maximum(k, t[4]), "y5 = Less (k, t5)": k < t[5],
        "c = Less (t6, k) y6 = Where (c, k, t6)": np.where(t[6] < k, k, t[6]),
        "n = Neg (t7) y7 = PRelu (n, k)": -t[7] * k,
    }  # fmt: skip
    body = " ".join((*(f"t{n} = MatMul (x, w{n})" for n in range(8)), *texts))
    right = {f"y{n}": y.astype(F32 if n != 5 else bool) for n, y in enumerate(texts.values())}
    check(13, {"x": x, "k": k}, body, right, constants=weights, terms=64)


def test_r42_a_residual_in_the_other_layout() -> None:
    """The addend comes channels-last through a transpose, and the sum leaves channels-last as well."""
    x, w, r = normal(1, 2, 3, 5, 6), normal(2, 7, 3, 1, 1), normal(3, 2, 5, 6, 7)
    y = conv(x, w) - r.transpose(0, 3, 1, 2)
    body = """t = Conv (x, w) p = Transpose <perm = [0, 3, 1, 2]> (r) y = Sub (t, p) q = Sub (p, t)
              z = Transpose <perm = [0, 2, 3, 1]> (q)"""
    right = {"y": y.astype(F32), "z": -y.transpose(0, 2, 3, 1).astype(F32)}
    check(13, {"x": x, "r": r}, body, right, constants={"w": w}, terms=8)


# ---- R11: pads -------------------------------------------------------------------------------------------------------
def padded(x: np.ndarray, pads: list[int], mode: str, value: float = 0.0) -> np.ndarray:
    """NumPy's pad, with negative pads that cut."""
    n = x.ndim
    cut = x[tuple(slice(max(-pads[k], 0), x.shape[k] - max(-pads[n + k], 0)) for k in range(n))]
    width = [(max(pads[k], 0), max(pads[n + k], 0)) for k in range(n)]
    return np.pad(cut, width, mode=mode, **({"constant_values": value} if mode == "constant" else {}))  # type: ignore[call-overload]


PADS = {
    "none": [0] * 8, "both axes": [0, 0, 1, 2, 0, 0, 2, 0], "one side": [0, 0, 0, 1, 0, 0, 0, 0],
    "channels": [0, 1, 0, 0, 0, 1, 0, 0], "batch": [1, 0, 0, 0, 0, 0, 0, 0], "cuts": [0, 0, -1, 0, 0, 0, 1, -1],
}  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "value"), [
    *((name, "constant", value) for name in PADS for value in (0.0, 5.0)),
    *((name, mode, 0.0) for name in PADS if name != "cuts" for mode in ("reflect", "edge")),
])  # fmt: skip
def test_r11_pads_before_convolutions_and_pools(name: str, mode: str, value: float) -> None:
    """Zeros are a convolution's border; a maximum has -inf there, and an average may not count it."""
    x, pads = normal(1, 2, 3, 4, 5), PADS[name]
    wide = padded(x, pads, mode, value)
    w = normal(2, 4, wide.shape[1], 2, 2)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (2, 2), (2, 3))
    body = f"""p = Pad <mode = "{mode}"> (x, pads, v) y = Conv (p, w) q = Pad <mode = "{mode}"> (x, pads, v)
               m = MaxPool <kernel_shape = [2, 2]> (q) r = Pad <mode = "{mode}"> (x, pads, v)
               a = AveragePool <kernel_shape = [2, 2]> (r)"""
    right = {"y": conv(wide, w).astype(F32), "m": windows.max((-1, -2)), "a": windows.mean((-1, -2), dtype=float)}
    right["a"] = right["a"].astype(F32)
    c = {"pads": np.array(pads), "v": F32(value), "w": w}
    check(13, {"x": x}, body, right, constants=c, terms=16)
    if mode == "constant" and not value and name == "both axes":
        exe = compile_here(small(13, {"x": x}, "p = Pad (x, pads) y = Conv (p, w)", ["y"], constants=c))
        assert taken(exe, "pad_into_conv") == 1


@pytest.mark.parametrize("opset", [2, 11, 13, 18])
def test_r11_pads_at_every_opset(opset: int) -> None:
    """As an attribute, an input, and for some axes only; behind it another pad of the convolution's own."""
    x, w = normal(1, 1, 2, 4, 4), normal(2, 3, 2, 3, 3)
    wide = padded(x, [0, 0, 2, 3, 0, 0, 1, 2], "constant")  # the pad, and 1 all around
    text = {2: "p = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 1]> (x)", 18: "p = Pad (x, few, v, axes)"}
    body = f"{text.get(opset, 'p = Pad (x, pads, v)')} y = Conv <pads = [1, 1, 1, 1]> (p, w)"
    c = {"w": w, "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "few": np.array([2, 1, 1, 0]), "axes": np.array([-1, 2]),
         "v": F32(0)}  # fmt: skip
    used = {k: v for k, v in c.items() if f"{k}," in body.replace(")", ",")}
    exe = check(max(opset, 7), {"x": x}, body, {"y": conv(wide, w).astype(F32)}, constants=used, terms=18)
    assert taken(exe, "pad_into_conv") == 1


def test_r11_a_pad_of_one_axis_with_three_readers_and_an_output() -> None:
    x, w = normal(1, 2, 3, 9), normal(2, 4, 3, 2)
    wide = padded(x, [0, 0, 1, 0, 0, 2], "constant")
    body = "p = Pad (x, pads) y = Conv (p, w) z = Relu (p) s = ReduceSum (p, axes)"
    right = {"p": wide, "y": conv(wide, w).astype(F32), "z": np.maximum(wide, 0),
             "s": wide.sum(2, keepdims=True, dtype=float).astype(F32)}  # fmt: skip
    c = {"pads": np.array([0, 0, 1, 0, 0, 2]), "w": w, "axes": np.array([2])}
    check(13, {"x": x}, body, right, constants=c, terms=12)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
def test_r11_pads_before_pads(auto: str, stride: int) -> None:
    """A pad in front of a border of the operator's own, given or automatic: as ONNX Runtime has it."""
    x, w = normal(1, 1, 3, 7, 8), normal(2, 4, 3, 3, 3)
    own = "pads = [1, 0, 1, 1]" if auto == "NOTSET" else f'auto_pad = "{auto}"'
    window = f"strides = [{stride}, {stride}], {own}"
    pool = f"kernel_shape = [3, 3], {window}"
    body = f"""p = Pad (x, pads) y = Conv <{window}> (p, w) r = Relu (x) q = Pad (r, pads) m = MaxPool <{pool}> (q)
               s = Pad (x, pads) n = MaxPool <{pool}> (s) a = Pad (x, pads) u = AveragePool <{pool}> (a)
               b = Pad (x, pads) v = AveragePool <{pool}, count_include_pad = 1> (b)"""
    constants = {"w": w, "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1])}
    model = small(13, {"x": x}, body, [*"ymnuv"], constants=constants)
    check_model(model, {"x": x}, runtime_answers(model, {"x": x}), terms=27)
