"""Scalar functions as Triton text: one row for each function of `ir.scalar.FUNCTIONS`, and how each type is computed.

    apply_text("max", ("a", "b"), DType.F32)   -> "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)"

What Triton has no function for, or none that keeps the table's promises (NaN comes through, halves round to even,
signs of remainders), stands in PRELUDE as a jitted function of the generated file. bfloat16 is computed in float32 and
rounded after every function; float16 likewise where the hardware has no float16 form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from opfuse.codegen.triton import relative_math
from opfuse.ir.scalar import Const
from opfuse.ir.types import DType

TYPES = {
    DType.F64: "tl.float64",
    DType.F32: "tl.float32",
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U64: "tl.uint64",
    DType.U32: "tl.uint32",
    DType.U16: "tl.uint16",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
    **{d: "tl.uint8" for d in DType if d.is_narrow},  # by its byte
}

HEADER = "import triton\nimport triton.language as tl\n"

# Functions of the generated file, each printed only where it is used. Names that others need come with them.
PRELUDE: dict[str, str] = {
    "keep_nan_max": """
@triton.jit
def keep_nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "keep_nan_min": """
@triton.jit
def keep_nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "multiply": """
@triton.jit
def multiply(a, b):
    return a * b
""",
    "either": """
@triton.jit
def either(a, b):
    return a | b
""",
    "both": """
@triton.jit
def both(a, b):
    return a & b
""",
    "round_half_even": """
@triton.jit
def round_half_even(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5) == 1.0
    up = (rest > 0.5) | ((rest == 0.5) & odd)
    return tl.where(up, low + 1.0, low)
""",
    # Odd polynomial near 0 (Cephes, tanhf.c), where 1 - 2 / (exp(2x) + 1) would lose its digits.
    "tanh_f32": """
@triton.jit
def tanh_f32(x):
    s = x * x
    p = -5.70498872745e-3
    p = p * s + 2.06390887954e-2
    p = p * s - 5.37397155531e-2
    p = p * s + 1.33314422036e-1
    p = p * s - 3.33332819422e-1
    near = x + x * s * p
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0.0, -far, far))
""",
    # Taylor series of tanh(x / 4) near 0, its next term below 2e-17 of the value, and the double angle twice.
    "tanh_f64": """
@triton.jit
def tanh_f64(x):
    y = x * 0.25
    s = y * y
    p = s * (21844.0 / 6081075.0) - 1382.0 / 155925.0
    p = s * (s * (s * (s * p + 62.0 / 2835.0) - 17.0 / 315.0) + 2.0 / 15.0) - 1.0 / 3.0
    t = y * (1.0 + s * p)
    t = 2.0 * t / (1.0 + t * t)
    near = 2.0 * t / (1.0 + t * t)
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.4, near, tl.where(x < 0.0, -far, far))
""",
    # In float64, so that the logarithm's error times the exponent stays below float32's rounding (IEEE 754, 9.2.1).
    "power": """
@triton.jit
def power(x, y):
    a, b = x.to(tl.float64), y.to(tl.float64)
    odd = tl.abs(b - 2.0 * tl.floor(b * 0.5)) == 1.0
    whole = tl.floor(b) == b
    made = tl.exp(b * tl.log(tl.abs(a)))
    made = tl.where((a < 0.0) & odd, -made, made)
    made = tl.where((a < 0.0) & ~whole & (tl.abs(a) != float("inf")), float("nan"), made)
    made = tl.where((tl.abs(a) == 1.0) & (tl.abs(b) == float("inf")), 1.0, made)
    return tl.where((b == 0.0) | (a == 1.0), 1.0, made).to(x.dtype)
""",
    "integer_power": """
@triton.jit
def integer_power(x, y):
    made = x * 0 + y * 0 + 1  # the shape of both
    factor = x + y * 0
    rest = y + x * 0
    for _ in range(0, 64):
        made = tl.where((rest & 1) != 0, made * factor, made)
        factor = factor * factor
        rest = rest >> 1
    return made
""",
    "floor_division": """
@triton.jit
def floor_division(a, b):
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "floor_modulo": """
@triton.jit
def floor_modulo(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "shift_left": """
@triton.jit
def shift_left(x, y):
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, y, 0), 0).to(x.dtype)
""",
    "shift_right": """
@triton.jit
def shift_right(x, y):
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    half = (x.dtype.primitive_bitwidth - 1) // 2  # what the sign fills is left after two shifts of half the bits
    rest = (x >> half) >> (x.dtype.primitive_bitwidth - 1 - half)
    return tl.where(inside, x >> tl.where(inside, y, 0), tl.where(x < 0, rest, 0)).to(x.dtype)
""",
    **relative_math.PRELUDE,
}

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "gt": ">",
    "ge": ">=",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
COMPARISONS = ("lt", "le", "eq", "gt", "ge", "ne", "isnan", "isinf")
# What Triton does to float16 itself, with one rounding or none; all else is computed in float32 and rounded at the end.
HALF_FORMS = ("max", "min", "neg", "abs", "sign", "isnan", "isinf", "select")

NAN = "propagate_nan=tl.PropagateNan.ALL"
FLOAT: dict[str, str] = {
    "div": "({0} / {1})",
    "floordiv": "tl.floor({0} / {1})",
    "mod": "floor_modulo({0}, {1})",
    "fmod": "({0} % {1})",
    "max": f"tl.maximum({{0}}, {{1}}, {NAN})",
    "min": f"tl.minimum({{0}}, {{1}}, {NAN})",
    "pow": "power({0}, {1})",
    "neg": "({0} * -1.0)",  # Triton's own minus is 0 - x, which loses the sign of zero
    "abs": "tl.abs({0})",
    "sign": "tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, {0}))",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "erf": "tl.erf({0})",
    "tanh": "tanh_f64({0})",
    "sigmoid": "logistic_f64({0})",
    "expm1": "expm1_f64({0})",
    "log1p": "log1p_f64({0})",
    "normcdf": "normcdf_f64({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "rint": "round_half_even({0})",
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "select": "tl.where({0}, {1}, {2})",
}
# Triton's plain float32 division and root are off by up to two units in the last place; these are IEEE's.
FLOAT32 = {
    "div": "tl.div_rn({0}, {1})",
    "floordiv": "tl.floor(tl.div_rn({0}, {1}))",
    "sqrt": "tl.sqrt_rn({0})",
    "exp": "exp_of_sum_f32({0}, 0.0)",
    "rsqrt": "rsqrt_f32({0})",
    "tanh": "tanh_f32({0})",
    "sigmoid": "logistic_f32({0})",
    "expm1": "expm1_f32({0})",
    "log1p": "log1p_f32({0})",
    "normcdf": "normcdf_f32({0})",
}
# Beside products and reductions exp counts (5 to 15 % of attention, 20 % of a long softmax, measured on an H200): there
# it is the unit's own, off by |x| ulp, which the weights of a softmax do not need.
FAST = {"exp": "tl.exp({0})"}
INTEGER: dict[str, str] = {
    "div": "({0} // {1})",  # Triton's integer division truncates
    "floordiv": "floor_division({0}, {1})",
    "mod": "floor_modulo({0}, {1})",
    "fmod": "({0} % {1})",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "pow": "integer_power({0}, {1})",
    "neg": "(-{0})",
    "abs": "tl.abs({0})",
    "sign": "tl.where({0} > 0, 1, tl.where({0} < 0, -1, {0}))",
    "not": "(~{0})",
    "shl": "shift_left({0}, {1})",
    "shr": "shift_right({0}, {1})",
    "select": "tl.where({0}, {1}, {2})",
}
UNSIGNED = {"floordiv": "({0} // {1})", "mod": "({0} % {1})", "sign": "tl.where({0} > 0, 1, {0})",
            "not": "({0} ^ ((1 << {0}.dtype.primitive_bitwidth) - 1))"}  # fmt: skip
BOOL: dict[str, str] = {
    "max": "({0} | {1})",
    "min": "({0} & {1})",
    "not": "(~{0})",
    "select": "tl.where({0}, {1}, {2})",
}


def number_text(value: float | int | bool) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def typed_number(c: Const) -> str:
    """A number with a type of its own, for where no tensor beside it gives one."""
    return f"tl.full((), {number_text(c.value)}, {TYPES[c.dtype]})"


def apply_text(function: str, args: Sequence[str], dtype: DType, fast: bool = False) -> str:
    """The function of arguments given as text, all of `dtype` (a select's condition apart); `fast`: see FAST."""
    if function in INFIX and dtype is not DType.BF16:
        return f"({args[0]} {INFIX[function]} {args[1]})"
    if dtype is DType.BF16 or (dtype is DType.F16 and function not in HALF_FORMS):
        if function == "select":
            return _template(function, dtype).format(*args)
        wide = apply_text(function, [f"{a}.to(tl.float32)" for a in args], DType.F32, fast)
        return wide if function in COMPARISONS else f"{wide}.to({TYPES[dtype]})"
    if fast and dtype is DType.F32 and function in FAST:
        return FAST[function].format(*args)
    return _template(function, dtype).format(*args)


def _template(function: str, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return BOOL[function]
    if dtype.is_float:
        return FLOAT32.get(function, FLOAT[function]) if dtype is DType.F32 else FLOAT[function]
    return INTEGER[function] if dtype.is_signed else UNSIGNED.get(function, INTEGER[function])


def cast_text(x: str, source: DType, to: DType) -> str:
    if to is DType.BOOL:
        return f"({x} != 0)"
    if to is DType.BF16 and source is not DType.F32:
        return f"{x}.to(tl.float32).to(tl.bfloat16)"
    if source is DType.BF16 and to is not DType.F32:
        return f"{x}.to(tl.float32).to({TYPES[to]})"
    return f"{x}.to({TYPES[to]})"


def bits_text(x: str, to: DType) -> str:
    return f"{x}.to({TYPES[to]}, bitcast=True)"


def reduce_text(combine: str, x: str, axis: int, dtype: DType) -> str:
    """A tile reduced along one dimension. `tl.max` and `tl.min` drop NaN, so floats get combiners of their own."""
    if dtype in (DType.F16, DType.BF16):
        return f"{reduce_text(combine, f'{x}.to(tl.float32)', axis, DType.F32)}.to({TYPES[dtype]})"
    if dtype is DType.BOOL:
        return f"tl.reduce({x}, {axis}, {'either' if combine in ('or', 'max') else 'both'})"
    match combine:
        case "sum":
            made = f"tl.sum({x}, axis={axis})"
        case "prod":
            made = f"tl.reduce({x}, {axis}, multiply)"
        case _ if dtype.is_float:
            made = f"tl.reduce({x}, {axis}, keep_nan_{combine})"
        case _:
            made = f"tl.{combine}({x}, axis={axis})"
    return made if dtype.bytes >= 4 else f"{made}.to({TYPES[dtype]})"


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The value that a reduction starts from, and that stands for what lies outside an extent."""
    match combine:
        case "sum" | "or":
            return 0.0 if dtype.is_float else 0 if dtype is not DType.BOOL else False
        case "prod" | "and":
            return 1.0 if dtype.is_float else 1 if dtype is not DType.BOOL else True
        case _ if dtype is DType.BOOL:
            return combine == "min"
        case _ if dtype.is_float:
            return float("-inf") if combine == "max" else float("inf")
        case _:
            bits = 8 * dtype.bytes
            low = -(1 << bits - 1) if dtype.is_signed else 0
            return low if combine == "max" else low + (1 << bits) - 1


def prelude_of(body: str) -> str:
    """The definitions that some generated text needs, and those that they need, in the table's order."""
    text, names = body, list[str]()
    for name in reversed(PRELUDE):  # what a definition needs stands before it
        if f"{name}(" in text or f", {name})" in text:
            text += PRELUDE[name]
            names.append(name)
    return "".join(f"\n{PRELUDE[name]}" for name in reversed(names))
