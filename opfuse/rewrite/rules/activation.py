"""Activations that a model spells out in primitive operators, and roots and quotients in one form.

    x * 0.5 * (1 + erf(x / sqrt(2))) -> gelu(x)         x * sigmoid(x) -> silu(x)         1 / sqrt(x) -> rsqrt(x)
    log(1 + exp(x)) -> softplus(x)                      exp(x) - 1 -> expm1(x)            log(1 + x) -> log1p(x)

The three forms of GELU (erf, tanh, sigmoid of 1.702 x) are three functions: none is taken for another. A constant
matches within the rounding of its type, so a divisor of 1.5 in the place of sqrt(2) does not.
"""

from __future__ import annotations

import math

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Pattern, Var, any_of, op, product
from opfuse.rewrite.precision import limits
from opfuse.rewrite.rule import Case, Input, Rule, declared, is_float, rule, same_type

x, y, z = Var("x"), Var("y"), Var("z")
_WIDE = (Case({"x": (17,)}), Case({"x": ()}), Case({"x": Input((3, 5), DType.F64)}, dtype=DType.F64, spellings=4))

# ---- GELU ------------------------------------------------------------------------------------------------------------
SQRT_HALF, TANH_SCALE, CUBIC = math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715
_erf = op("erf", any_of(x / math.sqrt(2), x * SQRT_HALF))
_cube = any_of(product(CUBIC, x, x, x), x**3 * CUBIC)
_tanh = op("tanh", any_of((x + _cube) * TANH_SCALE, product(x, TANH_SCALE, 1 + product(x, x, CUBIC)),
                          product(x, TANH_SCALE, 1 + x**2 * CUBIC)))  # fmt: skip


def _gate(inner: Pattern) -> Pattern:
    """x times the half of 1 + inner, in every association, and with the half multiplied out."""
    return any_of(product(x, 0.5, 1 + inner), (x / 2) * (1 + inner), x * ((1 + inner) / 2), (x * (1 + inner)) / 2,
                  x * (0.5 + inner * 0.5))  # fmt: skip


GELU, GELU_TANH = _gate(_erf), _gate(_tanh)


@rule("reassociating", GELU, when=(same_type("x"), is_float), tell=True, cases=(
    Case({"x": (17,)}, spellings=200), *_WIDE[1:],
    Case({"x": Input((17,), DType.F16)}, dtype=DType.F16, spellings=2),
))  # fmt: skip
def gelu(m: Match, to: Draft) -> str:
    """x * 0.5 * (1 + erf(x / sqrt(2))) -> gelu(x)"""
    return to.emit("gelu", m["x"])


@rule("reassociating", GELU_TANH, when=(same_type("x"), is_float), tell=True, cases=(
    Case({"x": (17,)}, spellings=60), *_WIDE[1:],
))  # fmt: skip
def gelu_tanh(m: Match, to: Draft) -> str:
    """x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) -> gelu_tanh(x)"""
    return to.emit("gelu_tanh", m["x"])


# ---- sigmoids --------------------------------------------------------------------------------------------------------
_exp_minus = op("exp", any_of(op("neg", x), x * -1))


@rule(
    "reassociating",
    any_of(1 / (1 + _exp_minus), op("reciprocal", 1 + _exp_minus)),
    when=(same_type("x"), is_float),
    cases=_WIDE,
)
def sigmoid(m: Match, to: Draft) -> str:
    """1 / (1 + exp(-x)) -> sigmoid(x)"""
    return to.emit("sigmoid", m["x"])


@rule("reassociating", any_of(x * op("sigmoid", x), x / (1 + _exp_minus)), when=(same_type("x"), is_float), cases=_WIDE)
def silu(m: Match, to: Draft) -> str:
    """x * sigmoid(x) -> silu(x)"""
    return to.emit("silu", m["x"])


@rule("reassociating", any_of(product(op("clip", x + 3, 0, 6), 1 / 6), op("clip", x + 3, 0, 6) / 6),
      when=(same_type("x"), is_float), cases=_WIDE)  # fmt: skip
def hard_sigmoid(m: Match, to: Draft) -> str:
    """clip(x + 3, 0, 6) / 6 -> hard_sigmoid(x, 1/6, 1/2)"""
    return to.emit("hard_sigmoid", m["x"], alpha=1 / 6, beta=0.5)


alpha, beta = Constant("alpha", scalar=True), Constant("beta", scalar=True)
_LINE = {"alpha": np.float32(0.2), "beta": np.float32(0.5)}


@rule("reassociating", op("clip", x * alpha + beta, 0, 1), when=(same_type("x"), is_float), cases=(
    Case({"x": (17,), **_LINE}), Case({"x": (1, 1), **_LINE, "alpha": np.full((1, 1), 2, np.float32)}),
    Case({"x": (17,), **_LINE, "alpha": np.float32("nan")}, fires=False),
))  # fmt: skip
def affine_hard_sigmoid(m: Match, to: Draft) -> str | Refusal:
    """clip(a * x + b, 0, 1) -> hard_sigmoid(x, a, b)"""
    slope, offset = float(m.array("alpha").item()), float(m.array("beta").item())
    if not math.isfinite(slope) or not math.isfinite(offset):
        return Refusal("not-finite", f"the line {slope} * x + {offset} is none", {"alpha": slope, "beta": offset})
    return to.emit("hard_sigmoid", m["x"], alpha=slope, beta=offset)


def _sixth(value: object) -> bool:
    return isinstance(value, float) and abs(value * 6 - 1) < 1e-6


_hard_gate = op("hard_sigmoid", x, alpha=_sixth, beta=0.5)


@rule(
    "reassociating",
    any_of(x * _hard_gate, product(x, op("clip", x + 3, 0, 6), 1 / 6), x * op("clip", x + 3, 0, 6) / 6),
    when=(same_type("x"), is_float),
    tell=True,
    cases=tuple(Case(c.operands, {"hard": {"alpha": 1 / 6, "beta": 0.5}}, dtype=c.dtype) for c in _WIDE),
)
def hard_swish(m: Match, to: Draft) -> str:
    """x * clip(x + 3, 0, 6) / 6 -> hard_swish(x)"""
    return to.emit("hard_swish", m["x"])


@rule(
    "reassociating",
    x * op("tanh", any_of(op("softplus", x), op("log", 1 + op("exp", x)))),
    when=(same_type("x"), is_float),
    cases=(Case({"x": (17,)}),),
)
def mish(m: Match, to: Draft) -> str:
    """x * tanh(softplus(x)) -> mish(x)"""
    return to.emit("mish", m["x"])


def _saturated(m: Match) -> Refusal | None:
    """Beyond the threshold softplus(x) is x to the last bit: log1p(exp(-x)) / x is below half an ulp."""
    threshold, eps = float(m.array("threshold").item()), limits(m.result.dtype).eps
    if threshold > 1 and math.exp(-min(threshold, 700.0)) / threshold < eps / 2:
        return None
    text = f"above {threshold} softplus(x) is not yet x in {m.result.dtype.value}"
    return Refusal("threshold", text, {"threshold": threshold})


@rule("reassociating", op("where", op("greater", x, Constant("threshold", scalar=True)), x, op("softplus", x)),
      when=(same_type("x"), is_float, _saturated), cases=(
    Case({"x": Input((17,), low=-30.0, high=30.0), "threshold": np.float32(20)}),
    Case({"x": Input((17,), low=-30.0, high=30.0), "threshold": np.float32(3)}, fires=False),
    Case({"x": Input((17,), DType.F64), "threshold": np.float64(20)}, dtype=DType.F64, fires=False),
))  # fmt: skip
def saturated_softplus(m: Match, to: Draft) -> str:
    """where(x > 20, x, softplus(x)) -> softplus(x), which does not overflow"""
    return to.emit("softplus", m["x"])


# ---- formulas that lose the digits of a small value to a 1 -----------------------------------------------------------
@rule("reassociating", any_of(op("log", 1 + op("exp", x)), op("log1p", op("exp", x))),
      when=(same_type("x"), is_float), cases=_WIDE)  # fmt: skip
def softplus(m: Match, to: Draft) -> str:
    """log(1 + exp(x)) -> softplus(x), which does not overflow"""
    return to.emit("softplus", m["x"])


@rule("reassociating", op("log", op("sigmoid", x)), when=(same_type("x"), is_float), cases=_WIDE)
def log_sigmoid(m: Match, to: Draft) -> str:
    """log(sigmoid(x)) -> -softplus(-x), which does not end at log 0"""
    return to.emit("neg", to.emit("softplus", to.emit("neg", m["x"])))


@rule("reassociating", any_of(op("exp", x) - 1, op("exp", x) + -1), when=(same_type("x"), is_float), cases=_WIDE)
def expm1(m: Match, to: Draft) -> str:
    """exp(x) - 1 -> expm1(x)"""
    return to.emit("expm1", m["x"])


@rule("reassociating", op("log", 1 + x), when=(same_type("x"), is_float), cases=(
    Case({"x": Input((17,), low=-0.9)}), Case({"x": Input((3, 5), DType.F64, -0.9)}, dtype=DType.F64),
))  # fmt: skip
def log1p(m: Match, to: Draft) -> str:
    """log(1 + x) -> log1p(x)"""
    return to.emit("log1p", m["x"])


# ---- roots and quotients ---------------------------------------------------------------------------------------------
def _single(m: Match) -> Refusal | None:
    """float64 keeps the quotient: there the answer is asked to the last bit."""
    narrow = m.result.dtype.is_float and m.result.dtype is not DType.F64
    return None if narrow else Refusal("not-narrow", f"the result is {m.result}", {"type": str(m.result)})


_POSITIVE = (
    Case({"x": Input((17,), low=0.1)}),
    Case({"x": Input((17,), DType.F64, 0.1)}, dtype=DType.F64, fires=False),
)


@rule("reassociating", any_of(op("reciprocal", op("sqrt", x)), 1 / op("sqrt", x), op("sqrt", op("reciprocal", x))),
      when=(same_type("x"), _single), cases=_POSITIVE)  # fmt: skip
def reciprocal_root(m: Match, to: Draft) -> str:
    """1 / sqrt(x) -> rsqrt(x)"""
    return to.emit("rsqrt", m["x"])


@rule("reassociating", y / op("sqrt", x), when=(_single,), cases=(
    Case({"x": Input((17,), low=0.1), "y": (2, 17)}),
    Case({"x": Input((17,), DType.F64, 0.1), "y": Input((17,), DType.F64)}, dtype=DType.F64, fires=False),
))  # fmt: skip
def divide_by_root(m: Match, to: Draft) -> str:
    """y / sqrt(x) -> y * rsqrt(x)"""
    return to.emit("mul", m["y"], to.emit("rsqrt", m["x"]))


@rule("reassociating", op("reciprocal", x) * y, cases=(Case({"x": Input((17,), low=0.5), "y": (17,)}),))
def multiply_by_reciprocal(m: Match, to: Draft) -> str:
    """(1 / x) * y -> y / x"""
    return to.emit("div", m["y"], m["x"])


@rule("exact", x**2, when=(same_type("x"),), cases=(
    Case({"x": (17,)}), Case({"x": Input((17,), DType.I32)}, dtype=DType.I32),
))  # fmt: skip
def square(m: Match, to: Draft) -> str:
    """x ** 2 -> x * x"""
    return to.emit("mul", m["x"], m["x"])


RULES: tuple[Rule, ...] = declared(globals())
