"""One small model for each spelling of each ONNX operator that can be imported: opsets, feeds, nodes.

    case("LeakyRelu", (7, 16), {"x": X}, "y = LeakyRelu <alpha = 0.3> (x)")

Answers come from ONNX Runtime. Values avoid what is implementation-defined (ties of argmax, NaN in reductions, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from opfuse.frontends.onnx.imports import OLDEST_OPSET, table, versions
from tests.frontends.quantised_cases import QUANTISED
from tests.frontends.recurrent_cases import recurrent_cases
from tests.frontends.sampling_cases import SAMPLING
from tests.frontends.small_models import Arrays

RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class ImportCase:
    op: str
    opsets: tuple[int, ...]
    feeds: Arrays
    body: str
    outputs: tuple[str, ...] = ("y",)
    constants: Arrays = field(default_factory=dict)
    terms: int = 1  # length of the longest sum, for the tolerance


def _normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = _normal(2, 3, 4)
POSITIVE = np.abs(X) + np.float32(0.1)
IMAGE = _normal(2, 3, 7, 6)
I64 = np.array([[-7, 7, -1], [5, -8, 9]], np.int64)
FLAGS = np.array([[True, False, True], [False, False, True]])
EDGES = np.array([np.nan, -np.inf, np.inf, -0.0, 0.5, -2.5, 1.5, 2.5], np.float32)

_UNARY = (
    ("LeakyRelu", (7, 16)), ("Elu", (7, 22)), ("Selu", (7, 22)), ("HardSigmoid", (7, 22)), ("Gelu", (20,)),
    ("ThresholdedRelu", (10, 22)), ("Celu", (12,)), ("Tan", (7, 22)), ("Identity", (7, 13, 16, 21)),
    ("GlobalAveragePool", (7, 22)), ("GlobalMaxPool", (7, 22)), ("LpNormalization", (7, 22)),
)  # fmt: skip
_BINARY = (
    ("Add", (7, 13, 14)), ("Sub", (7, 13, 14)), ("Mul", (7, 13, 14)), ("Div", (7, 13, 14)), ("Less", (7, 9, 13)),
    ("Greater", (7, 9, 13)), ("Equal", (11, 13, 19)), ("LessOrEqual", (12, 16)), ("GreaterOrEqual", (12, 16)),
    ("PRelu", (7, 9, 16)), ("Max", (8, 12, 13)), ("Min", (8, 12, 13)), ("Sum", (8, 13)), ("Mean", (8, 13)),
)  # fmt: skip
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")


def case(op: str, opsets: tuple[int, ...], feeds: Arrays, body: str, outputs: str = "y", terms: int = 1,
         constants: Arrays | None = None) -> ImportCase:  # fmt: skip
    return ImportCase(op, opsets, feeds, body, tuple(outputs.split()), constants or {}, terms)


def _elementwise() -> list[ImportCase]:
    out = [case(op, opsets, {"x": IMAGE}, f"y = {op} (x)", terms=64) for op, opsets in _UNARY]
    out += [case(op, opsets, {"x": POSITIVE}, f"y = {op} (x)") for op, opsets in (("Log", (7, 13)), ("Sqrt", (7, 13)))]
    out += [case(op, opsets, {"a": X, "b": _normal(3, 1)}, f"y = {op} (a, b)") for op, opsets in _BINARY]
    edges = (("Relu", (7, 13, 14)), *((op, (7, 13)) for op in ("Floor", "Abs", "Sigmoid", "Tanh")))
    out += [case(op, opsets, {"x": EDGES}, f"y = {op} (x)") for op, opsets in edges]
    out += [
        case(op, (14,), {"a": I64, "b": _ints(2, -2, 3)}, f"y = {op} (a, b)") for op in ("Add", "Sub", "Mul", "Div")
    ]
    out += [case(op, (7,), {"a": FLAGS, "b": FLAGS[:1]}, f"y = {op} (a, b)") for op in ("And", "Or", "Xor")]
    narrow = _normal(3, 1)
    return out + [
        case("Acosh", (9, 22), {"x": POSITIVE + np.float32(1)}, "y = Acosh (x)", terms=8),
        *(case(op, (9, 22), {"x": X}, f"y = {op} (x)", terms=8) for op in ("Sinh", "Cosh", "Asinh")),
        *(case(op, (7, 22), {"x": np.float32([-1, -0.5, 0, 0.9])}, f"y = {op} (x)", terms=8)
          for op in ("Asin", "Acos", "Atan")),
        case("Atanh", (9, 22), {"x": np.float32([-0.99, -0.5, 0, 0.9])}, "y = Atanh (x)", terms=8),
        *(case(f"Bitwise{op}", (18,), {"a": I64, "b": _ints(2, -2, 3)}, f"y = Bitwise{op} (a, b)")
          for op in ("And", "Or", "Xor")),
        case("BitwiseNot", (18,), {"x": I64.astype(np.int8)}, "y = BitwiseNot (x)"),
        *(case("BitShift", (11, 28), {"a": np.array([[7, 255], [129, 4]], np.uint8), "b": np.array([1, 3], np.uint8)},
               f'y = BitShift <direction = "{way}"> (a, b)') for way in ("LEFT", "RIGHT")),
        case("BitCast", (26,), {"x": X}, "y = BitCast <to = 6> (x)"),
        case("Not", (7,), {"x": FLAGS}, "y = Not (x)"),
        case("IsNaN", (9, 13, 20), {"x": EDGES}, "y = IsNaN (x)"),
        case("IsInf", (10, 20), {"x": EDGES}, "y = IsInf (x)"),
        case("IsInf", (10, 20), {"x": EDGES}, "y = IsInf <detect_negative = 0> (x)"),
        case("IsInf", (10, 20), {"x": EDGES}, "y = IsInf <detect_positive = 0> (x)"),
        case("LeakyRelu", (7, 16), {"x": X}, "y = LeakyRelu <alpha = 0.3> (x)"),
        case("Elu", (7, 22), {"x": X}, "y = Elu <alpha = 0.3> (x)"),
        case("Selu", (7, 22), {"x": X}, "y = Selu <alpha = 1.1, gamma = 0.7> (x)"),
        case("HardSigmoid", (7, 22), {"x": X}, "y = HardSigmoid <alpha = 0.16, beta = 0.4> (x)"),
        case("Gelu", (20,), {"x": X}, 'y = Gelu <approximate = "tanh"> (x)', terms=4),
        case("ThresholdedRelu", (10,), {"x": X}, "y = ThresholdedRelu <alpha = 0.4> (x)"),
        case("Celu", (12,), {"x": X}, "y = Celu <alpha = 0.4> (x)"),
        case("Shrink", (9,), {"x": X}, "y = Shrink <lambd = 0.6, bias = 0.25> (x)"),
        case("Shrink", (9,), {"x": X}, "y = Shrink (x)"),
        case("GlobalLpPool", (7, 22), {"x": IMAGE}, "y = GlobalLpPool <p = 1> (x)", terms=42),
        case("GlobalLpPool", (7,), {"x": IMAGE}, "y = GlobalLpPool (x)", terms=42),
        case("GlobalLpPool", (7,), {"x": IMAGE}, "y = GlobalLpPool <p = 3> (x)", terms=64),
        case("LRN", (7, 13), {"x": IMAGE}, "y = LRN <size = 3, alpha = 0.5, beta = 0.6, bias = 1.5> (x)", terms=16),
        case("LRN", (13,), {"x": IMAGE}, "y = LRN <size = 5, alpha = 0.1> (x)", terms=16),
        case("Swish", (24,), {"x": X}, "y = Swish <alpha = 1.5> (x)"),
        case("Max", (8, 13), {"a": X, "b": narrow, "c": _normal(4)}, "y = Max (a, b, c)"),
        case("Min", (8, 13), {"a": X}, "y = Min (a)"),
        case("Sum", (8, 13), {"a": X, "b": narrow, "c": _normal(4)}, "y = Sum (a, b, c)", terms=3),
        case("Mean", (8, 13), {"a": X, "b": narrow, "c": _normal(4)}, "y = Mean (a, b, c)", terms=3),
        case("Pow", (7, 12, 13, 15), {"a": POSITIVE, "b": _normal(4)}, "y = Pow (a, b)", terms=16),
        case("Pow", (12, 15), {"a": X, "b": np.array([2, 3, 0, 1], np.int64)}, "y = Pow (a, b)"),
        case("Pow", (12, 15), {"a": I64.astype(np.int32), "b": np.array([2.0], np.float32)}, "y = Pow (a, b)"),
        case("Mod", (10, 13), {"a": I64, "b": _ints(2, -2, 3)}, "y = Mod (a, b)"),
        case("Mod", (10, 13), {"a": X, "b": np.float32([0.7, -0.7, 2, 1])}, "y = Mod <fmod = 1> (a, b)"),
        case("Where", (9, 16), {"c": FLAGS, "a": I64, "b": _ints(1)}, "y = Where (c, a, b)"),
        case("Clip", (7,), {"x": X}, "y = Clip <min = -0.5, max = 0.3> (x)"),
        case("Clip", (7,), {"x": X}, "y = Clip <max = 0.3> (x)"),
        case("Clip", (11, 12, 13), {"x": X, "l": np.array(-0.5, np.float32)}, "y = Clip (x, l)"),
        case("Clip", (11, 13), {"x": X, "h": np.array(0.5, np.float32)}, 'y = Clip (x, "", h)'),
        case("Clip", (12, 13), {"x": I64, "l": np.array(-5), "h": np.array(6)}, "y = Clip (x, l, h)"),
        case("Cast", (7, 9, 13, 19), {"x": X}, "y = Cast <to = 11> (x)"),
        case("Cast", (9, 13), {"x": FLAGS}, "y = Cast <to = 1> (x)"),
        case("Cast", (9, 13), {"x": np.array([2.7, -2.7, 0], np.float32)}, "y = Cast <to = 6> (x)"),
        case("CastLike", (15, 19), {"x": X, "l": I64}, "y = CastLike (x, l)"),
        *(case("Cast", (19,), {"x": X * 90}, f"n = Cast <to = {to}, saturate = {k}> (x)\n y = Cast <to = 1> (n)")
          for to in (17, 18, 19, 20) for k in (0, 1)),
        case("Cast", (21,), {"x": I64}, "n = Cast <to = 22> (x)\n y = Cast <to = 6> (n)"),
        case("Dropout", (7, 10, 12, 13), {"x": X}, "y = Dropout (x)"),
        case("Dropout", (10, 12), {"x": X}, "y, m = Dropout (x)", "y m"),
        case("Dropout", (12, 13), {"x": X}, "y, m = Dropout (x, r, t)", "y m",
             constants={"r": np.float32(0.4), "t": np.array(False)}),
        case("Gelu", (14,), {"x": X}, "y = com.microsoft.Gelu (x)"),
        case("BiasGelu", (14,), {"x": X, "b": _normal(4)}, "y = com.microsoft.BiasGelu (x, b)"),
        case("FastGelu", (14,), {"x": X}, "y = com.microsoft.FastGelu (x)", terms=4),
        case("FastGelu", (14,), {"x": X, "b": _normal(4)}, "y = com.microsoft.FastGelu (x, b)", terms=4),
        case("QuickGelu", (14,), {"x": X}, "y = com.microsoft.QuickGelu <alpha = 1.702> (x)"),
    ]  # fmt: skip


def _reductions() -> list[ImportCase]:
    out = []
    for name in _REDUCTIONS:
        op, by_input = f"Reduce{name}", (13,) if name == "Sum" else (18,)
        old = tuple(v for v in (7, 11, 12, 13) if v < by_input[0])
        x = {"x": np.float32(0.5) + POSITIVE}
        out += [
            case(op, old, x, f"y = {op} <axes = [1, -1], keepdims = 0> (x)", terms=12),
            case(op, old, x, f"y = {op} (x)", terms=24),
            case(op, by_input, x, f"y = {op} <keepdims = 0> (x, a)", terms=12, constants={"a": _ints(-1, 1)}),
            case(op, by_input, x, f"y = {op} (x)", terms=24),
            case(op, by_input, x, f"y = {op} (x, a)", terms=24, constants={"a": np.zeros(0, np.int64)}),
        ]
    empty = {"a": np.zeros(0, np.int64)}
    return out + [
        case("ReduceSum", (13,), {"x": X}, "y = ReduceSum <noop_with_empty_axes = 1> (x, a)", constants=empty),
        case("ReduceMax", (18,), {"x": X}, "y = ReduceMax <noop_with_empty_axes = 1> (x)"),
        case("ReduceSum", (13,), {"x": I64}, "y = ReduceSum (x, a)", constants={"a": _ints(1)}),
        case("ReduceLogSum", (11, 13), {"x": POSITIVE}, "y = ReduceLogSum <axes = [1]> (x)", terms=3),
        case("ReduceLogSum", (18,), {"x": POSITIVE}, "y = ReduceLogSum (x, a)", terms=3, constants={"a": _ints(1)}),
        case("ArgMax", (7, 11, 12, 13), {"x": X}, "y = ArgMax <axis = 1> (x)"),
        case("ArgMax", (12, 13), {"x": _ints(1, 3, 3, 0)}, "y = ArgMax <select_last_index = 1> (x)"),
        case("ArgMin", (7, 11, 12, 13), {"x": X}, "y = ArgMin <axis = -1, keepdims = 0> (x)"),
        case("LpNormalization", (7, 22), {"x": X}, "y = LpNormalization <axis = 1, p = 1> (x)", terms=3),
    ]


def _contractions() -> list[ImportCase]:
    a, b, c = _normal(3, 5), _normal(5, 4), _normal(4)
    w, grouped, bias = _normal(4, 3, 3, 2), _normal(6, 1, 3, 3), _normal(6)
    x1, w1 = _normal(1, 2, 9), _normal(3, 2, 4)
    return [
        case("MatMul", (7, 9, 13), {"a": _normal(2, 1, 3, 5), "b": _normal(4, 5, 2)}, "y = MatMul (a, b)", terms=5),
        case("MatMul", (13,), {"a": _normal(5), "b": _normal(4, 5, 2)}, "y = MatMul (a, b)", terms=5),
        case("MatMul", (13,), {"a": _normal(4, 4)}, "y = MatMul (a, a)", terms=4),
        case("Gemm", (7, 9, 11, 13), {"a": a, "b": b, "c": c}, "y = Gemm (a, b, c)", terms=6),
        case("Gemm", (9, 13), {"a": a.T.copy(), "b": b.T.copy(), "c": c},
             "y = Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (a, b, c)", terms=6),
        case("Gemm", (11, 13), {"a": a, "b": b}, "y = Gemm <alpha = 0.5> (a, b)", terms=5),
        case("FusedMatMul", (14,), {"a": _normal(2, 5, 3), "b": b},
             "y = com.microsoft.FusedMatMul <transA = 1, alpha = 0.25> (a, b)", terms=5),
        case("FusedGemm", (14,), {"a": a, "b": b, "c": c},
             'y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.2> (a, b, c)', terms=6),
        case("Conv", (7, 11, 22), {"x": IMAGE}, "y = Conv (x, w)", terms=18, constants={"w": w}),
        case("Conv", (11,), {"x": IMAGE}, "y = Conv <strides = [2, 1], pads = [1, 0, 2, 1], dilations = [1, 2]> (x, w)",
             terms=18, constants={"w": w}),
        case("Conv", (11,), {"x": IMAGE}, "y = Conv <group = 3, kernel_shape = [3, 3]> (x, w, b)", terms=10,
             constants={"w": grouped, "b": bias}),
        *(case("Conv", (11,), {"x": IMAGE}, f'y = Conv <auto_pad = "{mode}", strides = [2, 3]> (x, w)', terms=18,
               constants={"w": w}) for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")),
        *(case("Conv", (11,), {"x": IMAGE}, f'y = Conv <auto_pad = "{mode}"> (x, w)', terms=18, constants={"w": w})
          for mode in ("SAME_UPPER", "SAME_LOWER")),
        case("Conv", (11,), {"x": x1}, 'y = Conv <auto_pad = "SAME_LOWER"> (x, w)', terms=8,
             constants={"w": w1}),
        case("ConvTranspose", (7, 11), {"x": IMAGE},
             "y = ConvTranspose <strides = [2, 2], pads = [1, 0, 1, 1], output_padding = [1, 0]> (x, w)", terms=18,
             constants={"w": _normal(3, 2, 3, 3)}),
        case("ConvTranspose", (11,), {"x": IMAGE},
             "y = ConvTranspose <strides = [2, 2], output_shape = [14, 13]> (x, w)", terms=18,
             constants={"w": _normal(3, 2, 3, 3)}),
        case("ConvTranspose", (11,), {"x": IMAGE},
             "y = ConvTranspose <group = 3, dilations = [2, 1]> (x, w, b)", terms=18,
             constants={"w": _normal(3, 2, 3, 3), "b": bias}),
        case("FusedConv", (11,), {"x": IMAGE}, 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w)', terms=18,
             constants={"w": w}),
    ]  # fmt: skip


def _pools() -> list[ImportCase]:
    x = {"x": IMAGE}
    window = "kernel_shape = [3, 2], strides = [2, 2]"
    return [
        case("MaxPool", (7, 8, 10, 11, 12, 22), x, f"y = MaxPool <{window}> (x)"),
        case("MaxPool", (10, 12), x, f"y = MaxPool <{window}, pads = [1, 1, 1, 0], ceil_mode = 1> (x)"),
        case("MaxPool", (10, 12), x, f"y = MaxPool <{window}, dilations = [2, 1]> (x)"),
        case("AveragePool", (7, 10, 11, 19, 22), x, f"y = AveragePool <{window}> (x)", terms=6),
        case("AveragePool", (7, 11), x, f"y = AveragePool <{window}, pads = [1, 1, 1, 0]> (x)", terms=6),
        case("AveragePool", (7, 11), x, 
             f"y = AveragePool <{window}, pads = [1, 1, 1, 1], count_include_pad = 1> (x)", terms=6),
        case("AveragePool", (19, 22), x, f"y = AveragePool <{window}, ceil_mode = 1> (x)", terms=6),
        *(case("LpPool", (7, 11, 18), x, f"y = LpPool <{window}, pads = [1, 1, 1, 0], p = {p}> (x)", terms=6)
          for p in (1, 2, 3)),
        *(case(op, (11,), x, f'y = {op} <auto_pad = "{mode}", {window}> (x)', terms=6)
          for mode in ("SAME_UPPER", "SAME_LOWER", "VALID") for op in ("MaxPool", "AveragePool")),
    ]  # fmt: skip


def _movement() -> list[ImportCase]:
    x = {"x": X}
    shape = {"s": _ints(0, -1, 2)}
    cut = {"b": _ints(1, -3), "e": _ints(2**31 - 1, -1), "a": _ints(1, 2), "t": _ints(1, 2)}
    back = {"b": _ints(-1, 3), "e": _ints(-(2**31), 0), "a": _ints(0, -1), "t": _ints(-1, -2)}
    return [
        case("Reshape", (7, 13, 14, 19, 21), x, "y = Reshape (x, s)", constants=shape),
        case("Reshape", (14,), {"x": np.zeros((0, 3), np.float32)}, "y = Reshape <allowzero = 1> (x, s)",
             constants={"s": _ints(3, 0)}),
        case("Flatten", (7, 9, 11, 13, 21), x, "y = Flatten (x)"),
        case("Flatten", (11, 13), x, "y = Flatten <axis = -1> (x)"),
        case("Flatten", (9, 13), x, "y = Flatten <axis = 0> (x)"),
        case("Squeeze", (7, 11), {"x": X[:1, :1]}, "y = Squeeze <axes = [1]> (x)"),
        case("Squeeze", (11,), {"x": X[:1]}, "y = Squeeze (x)"),
        case("Squeeze", (13, 21), {"x": X[:1, :1]}, "y = Squeeze (x, a)", constants={"a": _ints(-2)}),
        case("Unsqueeze", (7, 11), x, "y = Unsqueeze <axes = [0, 3]> (x)"),
        case("Unsqueeze", (13, 21), x, "y = Unsqueeze (x, a)", constants={"a": _ints(-1, 1)}),
        case("Expand", (8, 13), {"x": X[:, :1]}, "y = Expand (x, s)", constants={"s": _ints(5, 1, 3, 1)}),
        case("Transpose", (7, 13, 21), x, "y = Transpose (x)"),
        case("Transpose", (13,), x, "y = Transpose <perm = [1, 0, 2]> (x)"),
        case("Slice", (7,), x, "y = Slice <starts = [1, -3], ends = [9, -1], axes = [1, 2]> (x)"),
        case("Slice", (7,), x, "y = Slice <starts = [1], ends = [2]> (x)"),
        case("Slice", (10, 11, 13), x, "y = Slice (x, b, e, a, t)", constants=cut),
        case("Slice", (10, 13), x, "y = Slice (x, b, e, a, t)", constants=back),
        case("Slice", (13,), x, "y = Slice (x, b, e)", constants={"b": _ints(0, 2), "e": _ints(-1, 100)}),
        case("Slice", (13,), x, "y = Slice (x, b, e)", constants={"b": _ints(1), "e": _ints(1)}),
        case("Split", (7, 11), {"x": X}, "y, z = Split <axis = 2, split = [1, 3]> (x)", "y z"),
        case("Split", (7, 11, 13), {"x": X}, "y, z = Split (x)", "y z"),
        case("Split", (13, 18), {"x": X}, "y, z = Split <axis = -1> (x, s)", "y z", constants={"s": _ints(1, 3)}),
        case("Split", (18,), {"x": X}, "y, z = Split <axis = 1, num_outputs = 2> (x)", "y z"),
        case("Concat", (7, 11, 13), {"a": X, "b": X[:, :2]}, "y = Concat <axis = -2> (a, b, a)"),
        case("Tile", (7, 13), {"x": X}, "y = Tile (x, r)", constants={"r": _ints(1, 2, 3)}),
        case("Pad", (7,), x, "y = Pad <pads = [0, 1, 2, 0, 0, 1], value = 0.5> (x)"),
        case("Pad", (7,), x, 'y = Pad <mode = "reflect", pads = [0, 1, 2, 0, 0, 1]> (x)'),
        case("Pad", (11, 13, 18, 19, 21), x, "y = Pad (x, p, v)",
             constants={"p": _ints(0, -1, 2, 0, 0, -1), "v": np.float32(-3)}),
        case("Pad", (11, 18), x, 'y = Pad <mode = "edge"> (x, p)', constants={"p": _ints(1, 0, 2, 0, 2, 1)}),
        case("Pad", (18, 19), x, 'y = Pad (x, p, "", a)', constants={"p": _ints(1, 2), "a": _ints(-1)}),
        case("DepthToSpace", (7, 11, 13), {"x": _normal(1, 8, 2, 3)}, "y = DepthToSpace <blocksize = 2> (x)"),
        case("DepthToSpace", (11, 13), {"x": _normal(1, 8, 2, 3)},
             'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)'),
        case("SpaceToDepth", (7, 13), {"x": _normal(1, 2, 4, 6)}, "y = SpaceToDepth <blocksize = 2> (x)"),
        case("Shape", (7, 13, 15, 19), x, "y = Shape (x)"),
        case("Shape", (15, 19), x, "y = Shape <start = -2, end = 9> (x)"),
        case("Size", (7, 13, 19), x, "y = Size (x)"),
    ]  # fmt: skip


def _indexing() -> list[ImportCase]:
    values = "value = float[2] {1.5, -2.0}"
    return [
        case("Constant", (7, 9, 11, 13), {}, f"y = Constant <{values}> ()"),
        case("Constant", (12, 13), {}, "y = Constant <value_float = 1.5> ()"),
        case("Constant", (12, 13), {}, "y = Constant <value_floats = [1.5, 2.0]> ()"),
        case("Constant", (12, 13), {}, "y = Constant <value_int = 3> ()"),
        case("Constant", (12, 13), {}, "y = Constant <value_ints = [3, 4]> ()"),
        case("ConstantOfShape", (9, 20, 21), {}, "y = ConstantOfShape (s)", constants={"s": _ints(2, 3)}),
        case("ConstantOfShape", (9,), {}, "y = ConstantOfShape <value = int64[1] {7}> (s)", constants={"s": _ints(2)}),
        case("EyeLike", (9, 22), {"x": X[0]}, "y = EyeLike <k = 1> (x)"),
        case("Range", (11,), {}, "y = Range (a, b, c)",
             constants={"a": np.int64(7), "b": np.int64(-2), "c": np.int64(-3)}),
        case("Range", (11,), {}, "y = Range (a, b, c)",
             constants={"a": np.float32(0.5), "b": np.float32(3), "c": np.float32(0.75)}),
        case("Gather", (7, 11, 13), {"x": X, "i": np.array([[0, 2], [1, 0]])}, "y = Gather <axis = 1> (x, i)"),
        case("Gather", (11, 13), {"x": X, "i": np.array(-1)}, "y = Gather <axis = -1> (x, i)"),
        case("GatherElements", (11, 13), {"x": X[0], "i": np.array([[0, -1, 1, 2]])},
             "y = GatherElements <axis = 0> (x, i)"),
        case("GatherND", (11, 12, 13), {"x": X, "i": np.array([[0, 1], [1, -1]])}, "y = GatherND (x, i)"),
        case("GatherND", (12, 13), {"x": X, "i": np.array([[2], [0]])}, "y = GatherND <batch_dims = 1> (x, i)"),
        case("OneHot", (9, 11), {"i": np.array([[0, -1], [2, 7]])}, "y = OneHot <axis = 1> (i, d, v)",
             constants={"d": np.int64(3), "v": np.float32([-1, 5])}),
        case("Trilu", (14,), {"x": X}, "y = Trilu (x)"),
        case("Trilu", (14,), {"x": X}, "y = Trilu <upper = 0> (x, k)", constants={"k": np.array(-1)}),
        case("CumSum", (11, 14), {"x": X}, "y = CumSum (x, a)", terms=3, constants={"a": np.array(1)}),
        case("CumSum", (11, 14), {"x": X}, "y = CumSum <exclusive = 1, reverse = 1> (x, a)", terms=4,
             constants={"a": np.array(-1)}),
    ]  # fmt: skip


def _normalisation() -> list[ImportCase]:
    x, row = {"x": X}, _normal(3)
    channels = {k: np.abs(_normal(3)) + np.float32(0.2) for k in ("s", "b", "m", "v")}
    wide = {"s": _normal(4), "b": _normal(4)}
    four = _normal(2, 4, 3, 2)
    layer = "com.microsoft.SkipLayerNormalization"
    return [
        *(case(op, opsets, x, f"y = {op} <axis = {axis}> (x)", terms=12) for op in ("Softmax", "LogSoftmax")
          for opsets, axis in (((7, 11), 0), ((7, 11), 1), ((7, 11), 2), ((11,), -1), ((13,), 1), ((13,), -2))),
        *(case(op, (7, 11, 13), x, f"y = {op} (x)", terms=12) for op in ("Softmax", "LogSoftmax", "Hardmax")),
        case("Hardmax", (11, 13), x, "y = Hardmax <axis = 1> (x)"),
        case("BatchNormalization", (7, 9, 14, 15), {"x": IMAGE},
             "y = BatchNormalization <epsilon = 0.01> (x, s, b, m, v)", terms=4, constants=channels),
        case("InstanceNormalization", (7, 22), {"x": IMAGE}, "y = InstanceNormalization (x, s, b)", terms=42,
             constants={"s": row, "b": row}),
        case("GroupNormalization", (18,), {"x": four}, "y = GroupNormalization <num_groups = 2> (x, s, b)", terms=12,
             constants={"s": _normal(2), "b": _normal(2)}),
        case("GroupNormalization", (21,), {"x": four}, "y = GroupNormalization <num_groups = 2> (x, s, b)", terms=12,
             constants={"s": _normal(4), "b": _normal(4)}),
        case("LayerNormalization", (17,), x, "y = LayerNormalization <epsilon = 0.1> (x, s, b)", terms=4,
             constants=wide),
        case("LayerNormalization", (17,), x, "y, m, i = LayerNormalization <axis = 1> (x, s)", "y m i", terms=12,
             constants={"s": _normal(3, 4)}),
        case("RMSNormalization", (23,), x, "y = RMSNormalization <epsilon = 0.1> (x, s)", terms=4,
             constants={"s": wide["s"]}),
        case("MeanVarianceNormalization", (9, 13), {"x": IMAGE}, "y = MeanVarianceNormalization (x)", terms=84),
        case("SkipLayerNormalization", (14,), {"x": X, "k": _normal(2, 3, 4)},
             f"y = {layer} <epsilon = 0.1> (x, k, s, b)", terms=4, constants=wide),
        case("SkipLayerNormalization", (14,), {"x": X, "k": _normal(2, 3, 4)},
             f'y, m, i, t = {layer} (x, k, s, "", b)', "y t", terms=5, constants=wide),
    ]  # fmt: skip


def _resize() -> list[ImportCase]:
    x = {"x": _normal(1, 2, 4, 6)}
    none = np.zeros(0, np.float32)
    line = {"x": np.arange(20, dtype=np.float32).reshape(1, 1, 20)}
    out = [
        case("Upsample", (7,), x, "y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)"),
        case("Upsample", (9,), x, "y = Upsample (x, s)", constants={"s": np.float32([1, 1, 2, 3])}),
        case("Resize", (10,), x, "y = Resize (x, s)", constants={"s": np.float32([1, 1, 2, 0.5])}),
        case(
            "Resize",
            (18, 19),
            x,
            "y = Resize <axes = [3, 2]> (x, , , n)".replace(", ,", ', "",').replace(", ,", ', "",'),
            constants={"n": _ints(12, 8)},
        ),
    ]
    for mode in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            attrs = f'coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}"'
            for size in (6, 40, 31):
                out.append(case("Resize", (11, 13), line, f'y = Resize <{attrs}> (x, r, e, n)',
                                constants={"n": _ints(1, 1, size), "r": none, "e": none}))  # fmt: skip
            for scale in (0.7, 2.3, 2.5, 31 / 20):  # whole positions and halves that a rounded factor just misses
                out.append(case("Resize", (11, 13), line, f'y = Resize <{attrs}> (x, r, s)',
                                constants={"s": np.float32([1, 1, scale]), "r": none}))  # fmt: skip
    return out + _interpolations(x, none)


def _interpolations(x: dict[str, np.ndarray], none: np.ndarray) -> list[ImportCase]:
    """Linear and cubic, up and down, with every coordinate transformation."""
    out = []
    modes = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
    for kind in ("linear", "cubic"):
        for mode in modes:
            for sizes in ((7, 13), (8, 3), (1, 5)):
                versions = (19,) if mode == "half_pixel_symmetric" else (11, 13)
                attrs = f'mode = "{kind}", coordinate_transformation_mode = "{mode}"'
                out.append(case("Resize", versions, x, f"y = Resize <{attrs}> (x, r, e, n)", terms=16,
                                constants={"n": _ints(1, 2, *sizes), "r": none, "e": none}))  # fmt: skip
        for scales in ((1.5, 2.0), (0.6, 0.7)):
            line = f'y = Resize <mode = "{kind}"> (x, r, s)'
            out.append(case("Resize", (11, 18), x, line, terms=16,
                            constants={"s": np.float32([1, 1, *scales]), "r": none}))  # fmt: skip
    crop = np.float32([0, 0, 0.4, 0.6, 1, 1, 0.6, 1.2])
    attrs = 'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 10.0'
    out.append(case("Resize", (11,), x, f"y = Resize <{attrs}> (x, c, e, n)", terms=16,
                    constants={"n": _ints(1, 2, 3, 5), "c": crop, "e": none}))  # fmt: skip
    attrs = 'mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5'
    out.append(case("Resize", (13,), x, f"y = Resize <{attrs}> (x, r, e, n)", terms=16,
                    constants={"n": _ints(1, 2, 7, 9), "r": none, "e": none}))  # fmt: skip
    attrs = 'mode = "linear", antialias = 1'
    out.append(case("Resize", (18,), x, f"y = Resize <{attrs}> (x, r, e, n)", terms=32,
                    constants={"n": _ints(1, 2, 3, 4), "r": none, "e": none}))  # fmt: skip
    out.append(case("Upsample", (9,), x, 'y = Upsample <mode = "linear"> (x, s)', terms=16,
                    constants={"s": np.float32([1, 1, 2, 3])}))  # fmt: skip
    return out


def _einsums() -> list[ImportCase]:
    a, b, square = _normal(2, 3, 4), _normal(2, 4, 5), _normal(3, 3)
    row, wide, one = _normal(4), _normal(2, 3, 4, 5), _normal(2, 1, 4)
    equations: list[tuple[str, list[np.ndarray], int]] = [
        ("bij,bjk->bik", [a, b], 4), ("bij, bjk", [a, b], 4), ("...ij,...jk->...ik", [a, b], 4),
        ("bij,bjk->kib", [a, b], 4), ("bij,bij->bij", [a, a], 1), ("bij,bij->", [a, a], 24), ("bij->jb", [a], 3),
        ("ii->i", [square], 1), ("ii", [square], 3), ("bij,j->bi", [a, row], 4), ("i,j->ij", [row, row], 1),
        ("bijk,bij,bjk->ik", [wide, a, b], 8), ("bij,bik->bjk", [a, a], 3), ("...j,j->...", [a, row], 4),
        ("b...k,k...->b...", [_normal(2, 3, 4), _normal(4, 3)], 4), ("...ij,...ij->...ij", [a, one], 1),
        ("bij->", [a], 24), ("bij,bij->bj", [a, one], 3), ("iij->j", [_normal(3, 3, 5)], 3),
    ]  # fmt: skip
    return [
        case("Einsum", (12,), dict(zip("abc", arrays, strict=False)),
             f'y = Einsum <equation = "{equation}"> ({", ".join("abc"[: len(arrays)])})', terms=terms)
        for equation, arrays, terms in equations
    ]  # fmt: skip


def _recurrences() -> list[ImportCase]:
    return [case(r.op, r.opsets, r.feeds, r.body, r.outputs, r.terms, r.constants) for r in recurrent_cases()]


def _wraps() -> list[ImportCase]:
    pads = ((0, 1, 3, 0, 2, 0), (0, 0, -1, 1, 3, 3))
    return [case("Pad", (19,), {"x": X}, 'y = Pad <mode = "wrap"> (x, p)', constants={"p": _ints(*p)}) for p in pads]


def _scatters() -> list[ImportCase]:
    rows, places = np.array([[1, -1, 0]]), np.array([[[0, 1]], [[1, -1]]])
    u, v = _normal(1, 3), _normal(2, 1, 4)
    square = X[0]
    pooled = case("MaxUnpool", (9, 11, 22), {"x": IMAGE[:, :, :3, :3], "i": np.arange(54).reshape(2, 3, 3, 3) * 4},
                  "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)")  # fmt: skip
    out = [
        case("Scatter", (9,), {"x": square, "i": rows, "u": u}, "y = Scatter <axis = 1> (x, i, u)"),
        case("ScatterElements", (11, 13, 16, 18), {"x": square, "i": rows, "u": u},
             "y = ScatterElements <axis = -1> (x, i, u)"),
        case("ScatterElements", (11, 18), {"x": square, "u": u}, "y = ScatterElements <axis = 0> (x, i, u)",
             constants={"i": rows}),
        case("ScatterElements", (16,), {"x": square, "i": np.array([[1, 1, 1]]), "u": u},
             'y = ScatterElements <axis = 1, reduction = "mul"> (x, i, u)'),
        *(case("ScatterElements", (18,), {"x": square, "i": np.array([[1, 1, 1]]), "u": u},
               f'y = ScatterElements <axis = 1, reduction = "{how}"> (x, i, u)') for how in ("add", "max", "min")),
        case("ScatterND", (11, 13, 16, 18), {"x": X, "i": places, "u": v}, "y = ScatterND (x, i, u)"),
        case("ScatterND", (11, 18), {"x": X, "u": v}, "y = ScatterND (x, i, u)", constants={"i": places}),
        case("ScatterND", (18,), {"x": X, "u": v}, "y = ScatterND (x, i, u)",
             constants={"i": np.array([[[0, 1]], [[0, 1]]])}),
        case("ScatterND", (16, 18), {"x": X, "i": places, "u": v}, 'y = ScatterND <reduction = "add"> (x, i, u)'),
        case("TensorScatter", (24,), {"x": X, "u": _normal(2, 2, 4), "w": _ints(1, 0)}, "y = TensorScatter (x, u, w)"),
        case("TensorScatter", (24,), {"x": X, "u": _normal(2, 2, 4), "w": _ints(2, 4)},
             'y = TensorScatter <mode = "circular"> (x, u, w)'),
        case("TensorScatter", (24,), {"x": X, "u": _normal(2, 2, 4)}, "y = TensorScatter (x, u)"),
        case("ReverseSequence", (10,), {"x": X, "n": _ints(1, 2, 2)}, "y = ReverseSequence (x, n)"),
        case("ReverseSequence", (10,), {"x": X, "n": _ints(3, 2)},
             "y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, n)"),
        case("TopK", (7,), {"x": X}, "y, i = TopK <k = 2> (x)", "y i"),
        case("TopK", (10, 11, 24), {"x": X}, "y, i = TopK <axis = 1> (x, k)", "y i", constants={"k": _ints(2)}),
        case("TopK", (11,), {"x": I64}, "y, i = TopK <largest = 0> (x, k)", "y i", constants={"k": _ints(3)}),
        case("Det", (11, 22), {"x": _normal(2, 3, 3)}, "y = Det (x)", terms=9),
        case("CumProd", (26,), {"x": X}, "y = CumProd <reverse = 1> (x, a)", constants={"a": np.array(1)}, terms=3),
        pooled,
    ]  # fmt: skip
    return out


WRITTEN: tuple[ImportCase, ...] = (
    *_elementwise(), *_reductions(), *_contractions(), *_pools(), *_movement(), *_indexing(), *_normalisation(),
    *_resize(), *_einsums(), *_recurrences(), *_scatters(), *_wraps(),
    *(ImportCase(c.op, c.opsets, c.feeds, c.body, c.outputs, c.constants, c.terms) for c in (*QUANTISED, *SAMPLING)),
)  # fmt: skip


def _plain() -> list[ImportCase]:
    """Of each row that `direct` makes and no case above tries: floats of both signs, at the first opset of a version.

    A row that takes other types, or that must not see negative numbers, gets a case of its own.
    """
    tried = {c.op for c in WRITTEN}
    rows = {(r.op, r.since): r for r in table().values() if r.plain and not r.domain and r.op not in tried}
    out = []
    for (op, since), row in rows.items():
        opsets = tuple(sorted({max(v, OLDEST_OPSET) for v in since if v in versions("", op)}))
        feeds = dict(zip("abc", (X, _normal(3, 1), _normal(4)), strict=True))
        feeds = {name: feeds[name] for name in "abc"[: row.plain]}
        out.append(case(op, opsets, feeds, f"y = {op} ({', '.join(feeds)})"))
    return out


CASES = (*WRITTEN, *_plain())
