"""Arithmetic with constants, and bounds of bounds.

    x * 1 -> x        relu(clip(x, -1, 1)) -> clip(x, 0, 1)        x / 8 -> x * 0.125        (x * a) * b -> x * (a * b)

Only what holds for NaN, infinities and signed zeros is exact: x + 0.0 stays (-0.0 + 0.0 is 0.0), x * 0 stays, and
sums of constants are never merged ((1 + 1e8) - 1e8 is 0).
"""

from __future__ import annotations

import math

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Maybe, Var, any_of, op
from opfuse.rewrite.precision import limits
from opfuse.rewrite.rule import Case, Input, Rule, declared, is_float, rule, same_type

x = Var("x")
c, a, b = Constant("c"), Constant("a", scalar=True), Constant("b", scalar=True)
low, high = Constant("low", scalar=True), Constant("high", scalar=True)

_ONES = np.ones((2, 1), np.float32)
_NEUTRAL_CASES = (
    Case({"x": (2, 3)}),
    Case({"x": Input((2, 3), DType.I64)}, dtype=DType.I64),
    Case({"x": ()}),
)


@rule("exact", x * 1, when=(same_type("x"),), cases=_NEUTRAL_CASES)
def multiply_by_one(m: Match, to: Draft) -> str:
    """x * 1 -> x"""
    return m["x"]


@rule("exact", x / 1, when=(same_type("x"),), cases=_NEUTRAL_CASES)
def divide_by_one(m: Match, to: Draft) -> str:
    """x / 1 -> x"""
    return m["x"]


@rule("exact", x**1, when=(same_type("x"),), cases=_NEUTRAL_CASES)
def power_of_one(m: Match, to: Draft) -> str:
    """x ** 1 -> x"""
    return m["x"]


def _keeps_zeros(array: np.ndarray, negative: bool) -> bool:
    """Zeros of the sign that leaves -0.0 as it is; any zero of an integer."""
    if not np.all(array == 0):
        return False
    return not DType.of(array.dtype).is_float or bool(np.all(np.signbit(array) == negative))


@rule("exact", x + c, when=(same_type("x"),), cases=(
    Case({"x": (2, 3), "c": np.full((3,), -0.0, np.float32)}),
    Case({"x": Input((2, 3), DType.I32), "c": np.zeros((1, 3), np.int32)}),
    Case({"x": (2, 3), "c": np.zeros((3,), np.float32)}, fires=False),
    Case({"x": (1, 2), "c": np.zeros((0, 2), np.float32)}, fires=False),
    Case({"x": (3,), "c": np.full((2, 1), -0.0, np.float32)}, fires=False),
))  # fmt: skip
def add_zero(m: Match, to: Draft) -> str | Refusal:
    """x + -0.0 -> x (and x + 0 of integers): the zero that leaves -0.0 as it is"""
    if not _keeps_zeros(m.array("c"), negative=True):
        return Refusal("not-zero", f"{m['c']} is not a zero that leaves -0.0 as it is")
    return m["x"]


@rule("exact", x - c, when=(same_type("x"),), cases=(
    Case({"x": (2, 3), "c": np.zeros((3,), np.float32)}),
    Case({"x": (2, 3), "c": np.full((3,), -0.0, np.float32)}, fires=False),
    Case({"x": (3,), "c": np.zeros((2, 1), np.float32)}, fires=False),
))  # fmt: skip
def subtract_zero(m: Match, to: Draft) -> str | Refusal:
    """x - 0.0 -> x"""
    if not _keeps_zeros(m.array("c"), negative=False):
        return Refusal("not-zero", f"{m['c']} is not a zero that leaves -0.0 as it is")
    return m["x"]


@rule("exact", any_of(op("neg", op("neg", x)), op("not", op("not", x))), cases=(
    Case({"x": (2, 3)}, spellings=1),
))  # fmt: skip
def remove_double_negation(m: Match, to: Draft) -> str:
    """neg(neg(x)) -> x, not(not(x)) -> x"""
    return m["x"]


@rule("exact", any_of(op("relu", op("relu", x)), op("abs", op("abs", x)), op("relu", op("sigmoid", x)),
                      op("relu", op("exp", x))), cases=(Case({"x": (2, 3)}),))  # fmt: skip
def remove_idle_relu(m: Match, to: Draft) -> str | Refusal:
    """relu(relu(x)) -> relu(x): what is never negative is left alone"""
    return m.root.inputs[0] or Refusal("operand-missing", "no operand")


# ---- bounds of bounds ------------------------------------------------------------------------------------------------
def _number(m: Match, name: str) -> float | None:
    return float(m.array(name).item()) if m.has(name) else None


def _unordered(*bounds: float | None) -> Refusal | None:
    """A NaN bound makes NaN of everything: it has no place among bounds that are compared."""
    if any(v is not None and math.isnan(v) for v in bounds):
        return Refusal("nan-bound", "a bound is NaN", {"bounds": [str(v) for v in bounds]})
    return None


def _larger(p: float | None, q: float | None) -> float | None:
    return p if q is None else q if p is None else max(p, q)


def _clipped(
    m: Match, to: Draft, compared: tuple[float | None, ...], least: float | None, most: float | None
) -> str | Refusal:
    no = _unordered(*compared)
    if no is not None:
        return no
    dtype = m.type("x").dtype
    bounds = [None if v is None else to.scalar(v if dtype.is_float else int(v), dtype) for v in (least, most)]
    return to.emit("clip", m["x"], *bounds)


_CLIP = op("clip", x, Maybe(low), Maybe(high), name="clip")
_F = np.float32


@rule("exact", op("clip", op("relu", x), Maybe(low), Maybe(high)), when=(same_type("x"),), either_zero=True, cases=(
    Case({"x": (17,), "low": _F(-1), "high": _F(1)}),
    Case({"x": (17,), "low": _F(0.5), "high": _F(-0.5)}),
    Case({"x": (17,), "low": _F("nan"), "high": _F(1)}, fires=False, spellings=1),
))  # fmt: skip
def clip_of_relu(m: Match, to: Draft) -> str | Refusal:
    """clip(relu(x), low, high) -> clip(x, max(low, 0), high)"""
    least, most = _number(m, "low"), _number(m, "high")
    return _clipped(m, to, (least, most), _larger(least, 0.0), most)


@rule("exact", op("relu", _CLIP), when=(same_type("x"),), either_zero=True, cases=(
    Case({"x": (17,), "low": _F(-1), "high": _F(1)}),
    Case({"x": (17,), "low": _F(-2), "high": _F(-1)}),
    Case({"x": (17,), "low": _F(-2), "high": _F("nan")}, fires=False, spellings=1),
))  # fmt: skip
def relu_of_clip(m: Match, to: Draft) -> str | Refusal:
    """relu(clip(x, low, high)) -> clip(x, max(low, 0), max(high, 0))"""
    least, most = _number(m, "low"), _number(m, "high")
    return _clipped(m, to, (least, most), _larger(least, 0.0), None if most is None else max(most, 0.0))


@rule("exact", op("clip", _CLIP, Maybe(a), Maybe(b), name="outer"), when=(same_type("x"),), either_zero=True, cases=(
    Case({"x": (17,), "low": _F(-1), "high": _F(1), "a": _F(2), "b": _F(6)}),
    Case({"x": (17,), "low": _F(-1), "high": _F(1), "a": _F(0), "b": _F(6)}),
    Case({"x": (17,), "low": _F(1), "high": _F(-1), "a": _F(-3), "b": _F(0.5)}),
    Case({"x": (17,), "low": _F(-1), "high": _F("nan"), "a": _F(0), "b": _F(6)}, fires=False, spellings=1),
))  # fmt: skip
def merge_clips(m: Match, to: Draft) -> str | Refusal:
    """clip(clip(x, low, high), a, b) -> clip(x, max(low, a), min(max(high, a), b)); the upper bound wins in each"""
    least, most, first, last = (_number(m, n) for n in ("low", "high", "a", "b"))
    upper = None if most is None else most if first is None else max(most, first)
    upper = last if upper is None else upper if last is None else min(upper, last)
    return _clipped(m, to, (least, most, first, last), _larger(least, first), upper)


@rule(
    "exact",
    any_of(op("maximum", op("maximum", x, a), b), op("minimum", op("minimum", x, a), b)),
    when=(same_type("x"),),
    either_zero=True,
    cases=(
        Case({"x": (17,), "a": _F(-1), "b": _F(1)}),
        Case({"x": (17,), "a": _F("nan"), "b": _F(1)}, fires=False, spellings=1),
    ),
)
def merge_bounds(m: Match, to: Draft) -> str | Refusal:
    """maximum(maximum(x, a), b) -> maximum(x, max(a, b)); minimum the same"""
    first, second = float(m.array("a").item()), float(m.array("b").item())
    chosen = (max if m.root.op == "maximum" else min)(first, second)
    no = _unordered(first, second)
    return no if no is not None else to.emit(m.root.op, m["x"], m["a"] if chosen == first else m["b"])


@rule("exact", any_of(op("maximum", x, a), op("minimum", x, a)), when=(same_type("x"),), cases=(
    Case({"x": (17,), "a": _F("-inf")}, spellings=1),
    Case({"x": (17,), "a": _F("inf")}, fires=False, spellings=1),
    Case({"x": (17,), "a": _F(0)}, fires=False, spellings=1),
))  # fmt: skip
def remove_idle_bound(m: Match, to: Draft) -> str | Refusal:
    """maximum(x, -inf) -> x, minimum(x, inf) -> x"""
    idle = -math.inf if m.root.op == "maximum" else math.inf
    bound = float(m.array("a").item())
    return m["x"] if bound == idle else Refusal("bound", f"{m['a']} is {bound}", {"bound": str(bound)})


@rule("exact", any_of(op("maximum", x, x), op("minimum", x, x)), cases=(
    Case({"x": (2, 3)}),
    Case({"x": Input((2, 3), DType.I32)}),
    Case(build=lambda g: [g.emit("maximum", [g.add_input("x", TensorType(DType.F32, (3,))),
                                             g.add_input("y", TensorType(DType.F32, (3,)))])], fires=False),
))  # fmt: skip
def remove_idle_choice(m: Match, to: Draft) -> str:
    """maximum(x, x) -> x, minimum(x, x) -> x"""
    return m["x"]


@rule("exact", op("minimum", op("maximum", x, low), high), when=(same_type("x"),), either_zero=True, cases=(
    Case({"x": (17,), "low": _F(-1), "high": _F(1)}),
    Case({"x": (17,), "low": _F(1), "high": _F(-1)}),
))  # fmt: skip
def bounds_to_clip(m: Match, to: Draft) -> str:
    """minimum(maximum(x, low), high) -> clip(x, low, high)"""
    return to.emit("clip", m["x"], to.reshape(m["low"], ()), to.reshape(m["high"], ()))


@rule("exact", any_of(op("relu", op("minimum", x, high)), op("minimum", op("relu", x), high)), when=(same_type("x"),),
      either_zero=True, cases=(
    Case({"x": (17,), "high": _F(1)}),
    Case({"x": (17,), "high": _F(-1)}, fires=False),
    Case({"x": (17,), "high": _F("nan")}, fires=False),
))  # fmt: skip
def bounded_relu_to_clip(m: Match, to: Draft) -> str | Refusal:
    """minimum(relu(x), high) -> clip(x, 0, high), relu(minimum(x, high)) the same"""
    most = float(m.array("high").item())
    if not most >= 0:
        return Refusal("bound", f"{m['high']} is {most}", {"bound": str(most)})
    return _clipped(m, to, (most,), 0.0, most)


@rule("exact", op("maximum", op("minimum", x, high), low), when=(same_type("x"),), either_zero=True, cases=(
    Case({"x": (17,), "low": _F(-1), "high": _F(1)}),
    Case({"x": (17,), "low": _F(1), "high": _F(-1)}, fires=False),
    Case({"x": (17,), "low": _F("nan"), "high": _F(1)}, fires=False),
))  # fmt: skip
def upper_bound_first_to_clip(m: Match, to: Draft) -> str | Refusal:
    """maximum(minimum(x, high), low) -> clip(x, low, high), where low <= high"""
    least, most = float(m.array("low").item()), float(m.array("high").item())
    if not least <= most:
        return Refusal("bounds", f"the lower bound {least} is not below {most}", {"low": str(least), "high": str(most)})
    return to.emit("clip", m["x"], to.reshape(m["low"], ()), to.reshape(m["high"], ()))


@rule("exact", any_of(op("maximum", x, 0), op("clip", x, 0)), when=(same_type("x"), is_float), either_zero=True, cases=(
    Case({"x": (17,)}),
    Case({"x": Input((17,), DType.I32)}, dtype=DType.I32, fires=False),
))  # fmt: skip
def bound_to_relu(m: Match, to: Draft) -> str:
    """maximum(x, 0) -> relu(x), clip(x, 0) -> relu(x)"""
    return to.emit("relu", m["x"])


# ---- other rounding --------------------------------------------------------------------------------------------------
def _is_normal(array: np.ndarray) -> bool:
    """Every element is finite, and neither 0 nor below the smallest normal number."""
    size = np.abs(array.astype(np.float64))
    able = limits(DType.of(array.dtype))
    return bool(np.all(size <= able.largest) and np.all(size >= able.smallest))


def _reciprocal(array: np.ndarray) -> np.ndarray | Refusal:
    if not array.size or not _is_normal(array):
        return Refusal("no-reciprocal", "a divisor is 0, infinite, NaN or denormal")
    out = (1.0 / array.astype(np.float64)).astype(array.dtype)
    return out if _is_normal(out) else Refusal("no-reciprocal", "a reciprocal leaves the range of the type")


def _power_of_two(array: np.ndarray) -> bool:
    return bool(np.all(np.abs(np.frexp(array.astype(np.float64))[0]) == 0.5))


@rule("exact", x / c, when=(is_float,), cases=(
    Case({"x": (2, 3), "c": np.array([8.0, 0.5, -2.0], _F)}),
    Case({"x": (2, 3), "c": _F(3)}, fires=False),
    Case({"x": (2, 3), "c": _F(0)}, fires=False),
    Case({"x": Input((2, 3), DType.I32), "c": np.int32(2)}, fires=False),
))  # fmt: skip
def divide_by_power_of_two(m: Match, to: Draft) -> str | Refusal:
    """x / 2**k -> x * 2**-k"""
    reciprocal = _reciprocal(m.array("c"))
    if isinstance(reciprocal, Refusal):
        return reciprocal
    if not _power_of_two(m.array("c")):
        return Refusal("rounds", f"{m['c']} is no power of two: its reciprocal is rounded")
    return to.emit("mul", m["x"], to.constant(reciprocal))


@rule("reassociating", x / c, when=(is_float,), cases=(
    Case({"x": (2, 3), "c": np.array([3.0, 7.0, -1.1], _F)}),
    Case({"x": (2, 3), "c": np.array([3.0, 0.0, 1.0], _F)}, fires=False),
    Case({"x": (2, 3), "c": _F(3e38)}, fires=False),
    Case({"x": Input((2, 3), DType.I32), "c": np.int32(3)}, fires=False),
))  # fmt: skip
def divide_by_constant(m: Match, to: Draft) -> str | Refusal:
    """x / c -> x * (1 / c)"""
    reciprocal = _reciprocal(m.array("c"))
    return reciprocal if isinstance(reciprocal, Refusal) else to.emit("mul", m["x"], to.constant(reciprocal))


@rule("reassociating", x * a * b, when=(is_float, same_type("x")), cases=(
    Case({"x": (2, 3), "a": _F(3), "b": _F(0.7)}),
    Case({"x": (2, 3), "a": _F(1e30), "b": _F(1e30)}, fires=False),
    Case({"x": (2, 3), "a": _F(1e-30), "b": _F(1e-30)}, fires=False),
    Case({"x": (2, 3), "a": _F(1e30), "b": _F(1e-30)}, fires=False),  # 1e20 * 1e30 is infinite, and stays so
    Case({"x": (2, 3), "a": _F(1e-30), "b": _F(-1e30)}, fires=False),
))  # fmt: skip
def multiply_constants(m: Match, to: Draft) -> str | Refusal:
    """(x * a) * b -> x * (a * b)"""
    with np.errstate(all="ignore"):
        wide = m.array("a").astype(np.float64).reshape(()) * m.array("b").astype(np.float64).reshape(())
        merged = wide.astype(m.result.dtype.numpy)
    if not _is_normal(merged):
        return Refusal("range", f"the product {float(wide)} leaves the range of {m.result.dtype.value}")
    low, high = sorted(abs(float(m.array(n).item())) for n in "ab")
    far = limits(m.result.dtype).largest ** 0.25
    if low < 1 < high and (high > far or low < 1 / far):
        return Refusal("range", f"x * {m.array('a').item():g} may leave the range where {float(wide):g} x does not")
    return to.emit("mul", m["x"], to.constant(merged))


SCALING: tuple[Rule, ...] = (divide_by_constant, multiply_constants)  # once activations have been recognised
RULES: tuple[Rule, ...] = declared(globals(), apart=SCALING)
