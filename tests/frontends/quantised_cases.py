"""Small models of the quantised operators, for `import_cases`: each granularity and type, zero points or none."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.frontends.small_models import Arrays

RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class QuantisedCase:
    op: str
    opsets: tuple[int, ...]
    feeds: Arrays
    body: str
    constants: Arrays = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    terms: int = 1


def _bytes(*shape: int, signed: bool = False) -> np.ndarray:
    low, high = (-128, 128) if signed else (0, 256)
    return RNG.integers(low, high, shape).astype(np.int8 if signed else np.uint8)


def _zeros(*values: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], dtype)


X = RNG.standard_normal((2, 3, 4)).astype(np.float32) * 40
SCALE, SCALES = np.float32(0.7), np.float32([0.5, 0.7, 1.3])
BLOCKS = np.abs(RNG.standard_normal((2, 3, 2))).astype(np.float32) + np.float32(0.1)


def _conversions() -> list[QuantisedCase]:
    scale, per_axis = {"s": SCALE, "z": _zeros(128)}, {"s": SCALES, "z": _zeros(-1, 5, 100, dtype=np.int8)}
    blocked = {"s": BLOCKS, "z": _bytes(2, 3, 2)}
    forward, back = "QuantizeLinear", "DequantizeLinear"
    u8, i8 = _bytes(2, 3, 4), _bytes(2, 3, 4, signed=True)
    return [
        QuantisedCase(forward, (10, 13, 19, 21), {"x": X}, "y = QuantizeLinear (x, s, z)", scale),
        QuantisedCase(forward, (13, 21), {"x": X}, "y = QuantizeLinear (x, s)", {"s": SCALE}),
        QuantisedCase(forward, (13, 21), {"x": X}, "y = QuantizeLinear (x, s, z)", per_axis),
        QuantisedCase(forward, (13,), {"x": X}, "y = QuantizeLinear <axis = -2> (x, s, z)", per_axis),
        QuantisedCase(forward, (21,), {"x": X}, "y = QuantizeLinear <axis = 2, block_size = 2> (x, s, z)", blocked),
        QuantisedCase(forward, (21,), {"x": X}, "y = QuantizeLinear <output_dtype = 3> (x, s)", {"s": SCALE}),
        QuantisedCase(forward, (21,), {"x": X * 100}, "y = QuantizeLinear (x, s, z)",
                      {"s": SCALE, "z": _zeros(-7, dtype=np.int16)}),
        QuantisedCase(back, (10, 13, 19, 21), {"x": u8}, "y = DequantizeLinear (x, s, z)", scale),
        QuantisedCase(back, (13, 21), {"x": i8}, "y = DequantizeLinear (x, s, z)", per_axis),
        QuantisedCase(back, (13, 21), {"x": i8}, "y = DequantizeLinear (x, s)", {"s": SCALE}),
        QuantisedCase(back, (13,), {"x": np.array([[-70000, 3]], np.int32)}, "y = DequantizeLinear (x, s)",
                      {"s": np.float32([0.1])}),
        QuantisedCase(back, (21,), {"x": u8}, "y = DequantizeLinear <axis = 2, block_size = 2> (x, s, z)", blocked),
        QuantisedCase(forward, (14,), {"x": X}, "y = com.microsoft.QuantizeLinear (x, s, z)", scale),
        QuantisedCase(back, (14,), {"x": u8}, "y = com.microsoft.DequantizeLinear (x, s, z)", scale),
    ]  # fmt: skip


def _products() -> list[QuantisedCase]:
    a, b = _bytes(2, 3, 5), _bytes(5, 4, signed=True)
    columns = _zeros(-1, 0, 3, 7, dtype=np.int8)
    image, kernel = _bytes(1, 4, 6, 5), _bytes(6, 2, 3, 3, signed=True)
    plain = {"sa": np.float32(0.05), "za": _zeros(120), "sb": np.float32(0.1), "zb": _zeros(3, dtype=np.int8),
             "sy": np.float32(1.5), "zy": _zeros(100)}  # fmt: skip
    per_column = {**plain, "sb": np.float32([0.1, 0.05, 0.2, 0.01]), "zb": _zeros(0, 0, 0, 0, dtype=np.int8)}
    channels = {**plain, "sb": np.float32([0.1, 0.05, 0.2, 0.01, 0.03, 0.3]), "zb": _zeros(*(0,) * 6, dtype=np.int8),
                "c": RNG.integers(-900, 900, 6).astype(np.int32)}  # fmt: skip
    given = "(a, sa, za, b, sb, zb, sy, zy"
    signed = {"za": _zeros(-3, dtype=np.int8)}
    return [
        QuantisedCase("MatMulInteger", (10,), {"a": a, "b": b}, "y = MatMulInteger (a, b)"),
        QuantisedCase("MatMulInteger", (10,), {"a": a, "b": b}, "y = MatMulInteger (a, b, z)", {"z": _zeros(120)}),
        QuantisedCase("MatMulInteger", (10,), {"a": a, "b": b}, "y = MatMulInteger (a, b, z, w)",
                      {"z": _zeros(120), "w": columns}),
        QuantisedCase("MatMulInteger", (10,), {"a": b.T.copy(), "b": b}, 'y = MatMulInteger (a, b, z, "")',
                      {"z": signed["za"]}),
        QuantisedCase("ConvInteger", (10,), {"x": image, "w": kernel}, "y = ConvInteger <group = 2> (x, w)"),
        QuantisedCase("ConvInteger", (10,), {"x": image, "w": kernel},
                      "y = ConvInteger <group = 2, pads = [1, 0, 1, 2], strides = [2, 1]> (x, w, z)",
                      {"z": _zeros(120)}),
        QuantisedCase("QLinearMatMul", (10, 21), {"a": a, "b": b}, f"y = QLinearMatMul {given})", plain),
        QuantisedCase("QLinearMatMul", (10, 21), {"a": a, "b": b}, f"y = QLinearMatMul {given})", per_column),
        QuantisedCase("QLinearConv", (10,), {"a": image, "b": kernel}, f"y = QLinearConv <group = 2> {given})",
                      {**plain, "zb": _zeros(0, dtype=np.int8)}),
        QuantisedCase("QLinearConv", (10,), {"a": image, "b": kernel},
                      f"y = QLinearConv <group = 2, pads = [1, 1, 1, 1]> {given}, c)", channels),
    ]  # fmt: skip


def _of_the_runtime() -> list[QuantisedCase]:
    """Scales are powers of two, so that no quotient lies next to a half."""
    a, b = _bytes(2, 3, 4, 5), _bytes(3, 4, 5)
    signed = _bytes(2, 3, 4, 5, signed=True)
    p = {"sa": np.float32(0.25), "za": _zeros(120), "sb": np.float32(0.5), "zb": _zeros(7), "sy": np.float32(1),
         "zy": _zeros(100)}  # fmt: skip
    q = {"sa": np.float32(0.03125), "za": _zeros(-5, dtype=np.int8), "sy": np.float32(2.0**-7),
         "zy": _zeros(-128, dtype=np.int8)}  # fmt: skip
    unary, scale = "(a, sa, za, sy, zy)", {"sa": np.float32(0.25), "sb": np.float32([0.5, 1, 2, 0.125])}
    return [
        *(QuantisedCase(f"QLinear{op}", (14,), {"a": a, "b": b},
                        f"y = com.microsoft.QLinear{op} (a, sa, za, b, sb, zb, sy, zy)", p) for op in ("Add", "Mul")),
        QuantisedCase("QLinearSigmoid", (14,), {"a": signed}, f"y = com.microsoft.QLinearSigmoid {unary}", q),
        QuantisedCase("QLinearLeakyRelu", (14,), {"a": signed},
                      f"y = com.microsoft.QLinearLeakyRelu <alpha = 0.25> {unary}",
                      {**q, "sy": np.float32(0.0625), "zy": _zeros(3, dtype=np.int8)}),
        QuantisedCase("QLinearGlobalAveragePool", (14,), {"a": a},
                      f"y = com.microsoft.QLinearGlobalAveragePool {unary}", p),
        QuantisedCase("QLinearConcat", (14,), {"a": a, "b": a[:1]},
                      "y = com.microsoft.QLinearConcat <axis = 0> (sy, zy, a, sa, za, b, sb, zb)", p),
        QuantisedCase("MatMulIntegerToFloat", (14,), {"a": _bytes(2, 3, 5)},
                      "y = com.microsoft.MatMulIntegerToFloat (a, b, sa, sb, za, zb, c)",
                      {**scale, "b": _bytes(5, 4, signed=True), "za": _zeros(128), "zb": _zeros(0, dtype=np.int8),
                       "c": np.float32([1, 2, 3, 4])}, terms=8),
    ]  # fmt: skip


def _recurrences() -> list[QuantisedCase]:
    """Feeds of whole 255ths, a small recurrent part: the runtime rounds both to 8 bits, and loses next to nothing."""
    weights = {"w": _bytes(1, 3, 8, signed=True), "r": _bytes(1, 2, 8, signed=True), "sw": np.float32([0.01]),
               "zw": np.zeros(1, np.int8), "sr": np.float32([1e-6]), "zr": np.zeros(1, np.int8)}  # fmt: skip
    x = np.array([[[0, 255, 17]], [[3, 128, 200]]], np.float32) / np.float32(255)
    body = 'y, h, c = com.microsoft.DynamicQuantizeLSTM <hidden_size = 2> (x, w, r, "", "", "", "", "", sw, zw, sr, zr)'
    return [QuantisedCase("DynamicQuantizeLSTM", (14,), {"x": x}, body, weights, ("y", "h", "c"), 64)]


def _packed() -> list[QuantisedCase]:
    a, out = {"a": RNG.standard_normal((2, 3, 40)).astype(np.float32)}, []
    for bits in (4, 8):
        weights = {"b": _bytes(5, 3, 16 * bits // 8),
                   "s": np.abs(RNG.standard_normal((5, 3))).astype(np.float32).reshape(-1)}  # fmt: skip
        attrs = f"K = 40, N = 5, bits = {bits}, block_size = 16"
        packed = _bytes(5 * -(-3 * bits // 8))
        out += [
            QuantisedCase("MatMulNBits", (14,), a, f"y = com.microsoft.MatMulNBits <{attrs}> (a, b, s)", weights,
                          terms=400),
            QuantisedCase("MatMulNBits", (14,), a, f"y = com.microsoft.MatMulNBits <{attrs}> (a, b, s, z)",
                          {**weights, "z": packed}, terms=400),
        ]  # fmt: skip
    return out


QUANTISED: tuple[QuantisedCase, ...] = (*_conversions(), *_products(), *_of_the_runtime(), *_packed(), *_recurrences())
