"""Elementwise operators: arithmetic, comparison, logic, activations, casts.

Max(a, b, c)              -> maximum(maximum(a, b), c)
Clip-6(x, min=0, max=6)   -> clip(x, 0, 6) with constants; Clip-11 has them as inputs already
Dropout(x)                -> identity(x)
"""

from __future__ import annotations

import math
from functools import partial

from opfuse.frontends.onnx.call import Call, InvalidNode, Unsupported
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import, direct
from opfuse.frontends.onnx.types import ElementTypeError, element_type
from opfuse.ir.types import DType


# ---- activations with attributes -----------------------------------------------------------------------------------
def _with_alpha(call: Call, ir: str, alpha: float) -> str:
    return call.emit(ir, [call.input(0)], alpha=call.float_attribute("alpha", alpha))


def selu(call: Call) -> str:
    alpha = call.float_attribute("alpha", 1.67326319217681884765625)
    return call.emit(
        "selu", [call.input(0)], alpha=alpha, gamma=call.float_attribute("gamma", 1.05070102214813232421875)
    )


def hard_sigmoid(call: Call) -> str:
    alpha, beta = call.float_attribute("alpha", 0.2), call.float_attribute("beta", 0.5)
    return call.emit("hard_sigmoid", [call.input(0)], alpha=alpha, beta=beta)


def gelu(call: Call) -> str:
    form = call.string_attribute("approximate", "none")
    if form not in ("none", "tanh"):
        raise InvalidNode(f"its attribute 'approximate' is {form!r}, not none or tanh")
    return call.emit("gelu" if form == "none" else "gelu_tanh", [call.input(0)])


def thresholded_relu(call: Call) -> str:
    """x where x > alpha, else 0."""
    x = call.input(0)
    above = call.emit("greater", [x, call.scalar(call.float_attribute("alpha", 1.0), x)])
    return call.emit("where", [above, x, call.scalar(0.0, x)])


def shrink(call: Call) -> str:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    x = call.input(0)
    bias, edge, zero = call.float_attribute("bias", 0.0), call.float_attribute("lambd", 0.5), call.scalar(0.0, x)
    below = call.emit("less", [x, call.scalar(-edge, x)])
    above = call.emit("greater", [x, call.scalar(edge, x)])
    high = call.emit("where", [above, call.emit("sub", [x, call.scalar(bias, x)]), zero])
    return call.emit("where", [below, call.emit("add", [x, call.scalar(bias, x)]), high])


def celu(call: Call) -> str:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)), the formula of the specification."""
    x = call.input(0)
    alpha, zero = call.scalar(call.float_attribute("alpha", 1.0), x), call.scalar(0.0, x)
    grown = call.emit("sub", [call.emit("exp", [call.emit("div", [x, alpha])]), call.scalar(1.0, x)])
    negative = call.emit("minimum", [zero, call.emit("mul", [alpha, grown])])
    return call.emit("add", [call.emit("maximum", [zero, x]), negative])


def swish(call: Call) -> str:
    return _sigmoid_gated(call, call.input(0), call.float_attribute("alpha", 1.0))


def quick_gelu(call: Call) -> str:
    return _sigmoid_gated(call, call.input(0), call.float_attribute("alpha", 1.702))


def _sigmoid_gated(call: Call, x: str, alpha: float) -> str:
    if alpha == 1.0:
        return call.emit("silu", [x])
    return call.emit("mul", [x, call.emit("sigmoid", [call.emit("mul", [x, call.scalar(alpha, x)])])])


def tan(call: Call) -> str:
    x = call.input(0)
    return call.emit("div", [call.emit("sin", [x]), call.emit("cos", [x])])


def is_infinite(call: Call) -> str:
    x = call.input(0)
    positive, negative = call.int_attribute("detect_positive", 1), call.int_attribute("detect_negative", 1)
    if positive and negative:
        return call.emit("isinf", [x])
    sign = math.inf if positive else -math.inf
    found = call.emit("equal", [x, call.scalar(sign, x)])
    return found if positive or negative else call.emit("and", [found, call.graph.scalar(False, DType.BOOL)])


# ---- arithmetic ----------------------------------------------------------------------------------------------------
def _chain(call: Call, ir: str) -> str:
    """A variadic operator as a chain of binary ones, from the left; of one operand, `identity`."""
    first, *others = call.present()
    out = first
    for other in others:
        out = call.emit(ir, [out, other])
    return out if others else call.emit("identity", [first])


def mean(call: Call) -> str:
    total = _chain(call, "add")
    return call.emit("div", [total, call.scalar(len(call.present()), total)])


def power(call: Call) -> str:
    """The result has the type of the base; an integer base under a float exponent is computed in floats."""
    base, exponent = call.input(0), call.input(1)
    kind = call.dtype(base)
    if kind.is_float or not call.dtype(exponent).is_float:
        return call.emit("pow", [base, call.cast(exponent, kind)])
    return call.cast(call.emit("pow", [call.cast(base, call.dtype(exponent)), exponent]), kind)


def modulo(call: Call) -> str:
    """fmod=1: the sign of the dividend, as C; fmod=0: the sign of the divisor, integers only before version 28."""
    a, b = call.input(0), call.input(1)
    if call.int_attribute("fmod", 0):
        return call.emit("fmod", [a, b])
    if call.dtype(a).is_float and call.version < 28:
        raise InvalidNode("floats need the attribute fmod=1")
    return call.emit("mod", [a, b])


def clip_attributes(call: Call) -> str:
    x = call.input(0)
    low, high = (call.scalar(call.float_attribute(n), x) if call.attribute(n) else None for n in ("min", "max"))
    return call.emit("clip", [x, low, high])


def clip_inputs(call: Call) -> str:
    return call.emit("clip", [call.input(0), call.optional(1), call.optional(2)])


# ---- types and copies ----------------------------------------------------------------------------------------------
def cast(call: Call) -> str:
    try:
        target = element_type(call.int_attribute("to"))
    except ElementTypeError as error:
        call.unsupported(str(error))
    return _converted(call, target)


def _converted(call: Call, to: DType) -> str:
    """A cast; from and to narrow types by operators of their own, through a wide one where both are narrow."""
    x = call.input(0)
    if call.dtype(x) is to:
        return call.emit("identity", [x])
    if call.dtype(x).is_narrow:
        x = call.emit("from_narrow", [x], to=DType.F32 if to.is_narrow else to)
    elif not to.is_narrow:
        return call.emit("cast", [x], to=to)
    if not to.is_narrow:
        return x
    saturate = bool(call.int_attribute("saturate", 1))
    return call.emit("to_narrow", [x], to=to, saturate=saturate, rounding=call.string_attribute("round_mode", "up"))


def bit_cast(call: Call) -> str:
    try:
        target = element_type(call.int_attribute("to"))
    except ElementTypeError as error:
        call.unsupported(str(error))
    x = call.input(0)
    return call.emit("bit_cast", [x], source=call.dtype(x).value, to=target.value)


def bit_shift(call: Call) -> str:
    direction = call.string_attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise InvalidNode(f"its attribute 'direction' is {direction!r}, not LEFT or RIGHT")
    return call.emit(f"shift_{direction.lower()}", [call.input(0), call.input(1)])


def cast_like(call: Call) -> str:
    return _converted(call, call.dtype(call.input(1)))


def identity(call: Call) -> str:
    return call.emit("identity", [call.input(0)])


def dropout(call: Call) -> tuple[str | None, ...]:
    """Inference only: the values pass. A model that asks for training mode, and to drop some, is declined.

    The mask is all true from version 12 on; before, the specification says nothing and ONNX Runtime gives all false.
    """
    if call.has(2):
        ratio, training = (call.contents.array(call.input(k)) if call.has(k) else None for k in (1, 2))
        if (training is None or training.any()) and (ratio is None or ratio.any()):
            unknown = [k for k, known in ((1, ratio), (2, training)) if call.has(k) and known is None]
            needs = tuple(dict.fromkeys(i for k in unknown for i in call.behind(call.input(k))))
            raise Unsupported("training mode is not supported, and its input 'training_mode' may be true", needs)
    x = call.input(0)
    mask = (
        call.emit("fill", [], shape=call.shape(x), value=call.version >= 12, dtype=DType.BOOL)
        if call.wants(1)
        else None
    )
    if mask is not None and call.version < 10:
        mask = call.cast(mask, call.dtype(x))
    return call.emit("identity", [x]), mask


def has_element(call: Call) -> str:
    """Of a tensor, or of nothing: what is optional has no type here."""
    return call.graph.scalar(call.has(0), DType.BOOL)


def bias_gelu(call: Call) -> str:
    return call.emit("gelu", [call.emit("add", [call.input(0), call.input(1)])])


def fast_gelu(call: Call) -> str:
    x = call.emit("add", [call.input(0), call.input(1)]) if call.has(1) else call.input(0)
    return call.emit("gelu_tanh", [x])


_UNARY = (
    ("Neg", (6, 13), "neg"), ("Abs", (6, 13), "abs"), ("Sign", (9, 13), "sign"), ("Exp", (6, 13), "exp"),
    ("Log", (6, 13), "log"), ("Sqrt", (6, 13), "sqrt"), ("Reciprocal", (6, 13), "reciprocal"), ("Erf", (9, 13), "erf"),
    ("Tanh", (6, 13), "tanh"), ("Sigmoid", (6, 13), "sigmoid"), ("Sin", (7, 22), "sin"), ("Cos", (7, 22), "cos"),
    ("Asin", (7, 22), "asin"), ("Acos", (7, 22), "acos"), ("Atan", (7, 22), "atan"), ("Sinh", (9, 22), "sinh"),
    ("Cosh", (9, 22), "cosh"), ("Asinh", (9, 22), "asinh"), ("Acosh", (9, 22), "acosh"), ("Atanh", (9, 22), "atanh"),
    ("Floor", (6, 13), "floor"), ("Ceil", (6, 13), "ceil"), ("Round", (11, 22), "round"), ("Relu", (6, 13, 14), "relu"),
    ("Not", (1,), "not"), ("IsNaN", (9, 13, 20), "isnan"), ("Softplus", (1, 22), "softplus"),
    ("Softsign", (1, 22), "softsign"), ("HardSwish", (14, 22), "hard_swish"), ("Mish", (18, 22), "mish"),
)  # fmt: skip
_BINARY = (
    ("Add", (7, 13, 14), "add"), ("Sub", (7, 13, 14), "sub"), ("Mul", (7, 13, 14), "mul"), ("Div", (7, 13, 14), "div"),
    ("And", (7,), "and"), ("Or", (7,), "or"), ("Xor", (7,), "xor"), ("Equal", (7, 11, 13, 19), "equal"),
    ("Less", (7, 9, 13), "less"), ("LessOrEqual", (12, 16), "less_equal"), ("Greater", (7, 9, 13), "greater"),
    ("GreaterOrEqual", (12, 16), "greater_equal"), ("PRelu", (7, 9, 16), "prelu"),
)  # fmt: skip
_CASTS = ("cast", "from_narrow", "to_narrow", "identity")
_COPIES = (1, 13, 14, 16, 19, 21, 23, 24, 25)

IMPORTS: tuple[Import, ...] = (
    *(direct(op, since, ir) for op, since, ir in _UNARY),
    *(direct(op, since, ir, 2) for op, since, ir in _BINARY),
    direct("Where", (9, 16), "where", 3),
    Import("LeakyRelu", (6, 16), partial(_with_alpha, ir="leaky_relu", alpha=0.01), ("leaky_relu",)),
    Import("Elu", (6, 22), partial(_with_alpha, ir="elu", alpha=1.0), ("elu",)),
    Import("Selu", (6, 22), selu, ("selu",)),
    Import("HardSigmoid", (6, 22), hard_sigmoid, ("hard_sigmoid",)),
    Import("Gelu", (20,), gelu, ("gelu", "gelu_tanh")),
    Import("ThresholdedRelu", (10, 22), thresholded_relu, ("greater", "where")),
    Import("Shrink", (9,), shrink, ("less", "greater", "where", "add", "sub")),
    Import("Celu", (12, 28), celu, ("div", "exp", "sub", "mul", "minimum", "maximum", "add")),
    Import("Swish", (24,), swish, ("silu", "mul", "sigmoid")),
    Import("Tan", (7, 22), tan, ("sin", "cos", "div")),
    Import("IsInf", (10, 20), is_infinite, ("isinf", "equal", "and")),
    Import("Max", (6, 8, 12, 13), partial(_chain, ir="maximum"), ("maximum", "identity")),
    Import("Min", (6, 8, 12, 13), partial(_chain, ir="minimum"), ("minimum", "identity")),
    Import("Sum", (6, 8, 13), partial(_chain, ir="add"), ("add", "identity")),
    Import("Mean", (6, 8, 13), mean, ("add", "div", "identity")),
    Import("Pow", (7, 12, 13, 15), power, ("pow", "cast")),
    Import("Mod", (10, 13, 28), modulo, ("mod", "fmod")),
    Import("Clip", (6,), clip_attributes, ("clip",)),
    Import("Clip", (11, 12, 13), clip_inputs, ("clip",)),
    Import("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), cast, _CASTS),
    direct("BitwiseNot", (18,), "bit_not"),
    *(direct(f"Bitwise{name}", (18,), f"bit_{name.lower()}", 2) for name in ("And", "Or", "Xor")),
    Import("BitShift", (11, 28), bit_shift, ("shift_left", "shift_right")),
    Import("BitCast", (26,), bit_cast, ("bit_cast",)),
    Import("CastLike", (15, 19, 21, 23, 24, 25), cast_like, _CASTS),
    Import("Identity", _COPIES, identity, ("identity",)),
    Import("OptionalGetElement", (15, 18, 28), identity, ("identity",)),
    Import("OptionalHasElement", (15, 18, 28), has_element, ()),
    Import("Dropout", (7, 10, 12, 13, 22), dropout, ("identity", "fill", "cast")),
    Import("Gelu", (1,), lambda call: call.emit("gelu", [call.input(0)]), ("gelu",), MICROSOFT),
    Import("BiasGelu", (1,), bias_gelu, ("add", "gelu"), MICROSOFT),
    Import("FastGelu", (1,), fast_gelu, ("add", "gelu_tanh"), MICROSOFT),
    Import("QuickGelu", (1,), quick_gelu, ("silu", "mul", "sigmoid"), MICROSOFT),
)  # fmt: skip
