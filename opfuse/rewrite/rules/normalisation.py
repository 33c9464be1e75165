"""Layer norms and softmaxes that a model spells out.

    (x - mean) / sqrt(mean((x - mean)**2) + eps) * g + b -> layer_norm(x, g, b)
    exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)

The core is recognised first, without scale and bias; these are taken in afterwards, where they do not widen the
result. The epsilon is the model's own, never a default. A softmax without its maximum overflows where the true one
does not: it stays.
"""

from __future__ import annotations

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import product as product_of
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Maybe, Pattern, Var, any_of, holds, op
from opfuse.rewrite.rule import Case, Condition, Rule, declared, is_float, rule, same_type, used_once

x, g, b = Var("x"), Var("g"), Var("b")
epsilon = Constant("epsilon", scalar=True)
_EPS = np.float32(0.1)

# ---- the mean --------------------------------------------------------------------------------------------------------
count = Constant("count", scalar=True)


def _mean_case(factor: float, fires: bool) -> Case:
    def build(graph: Graph) -> list[str]:
        x = graph.add_input("x", TensorType(DType.F32, (2, 8, 3)))
        total = graph.emit("reduce_sum", [x], {"axes": (1,), "keepdims": False})
        return [graph.emit("mul", [graph.scalar(factor, DType.F32), total])]

    return Case(build=build, fires=fires)


@rule(
    "reassociating",
    any_of(op("reduce_sum", x, name="sum") * count, op("reduce_sum", x, name="sum") / count),
    when=(is_float,),
    cases=(_mean_case(1 / 8, True), _mean_case(1 / 7, False)),
)
def mean(m: Match, to: Draft) -> str | Refusal:
    """sum(x) / n -> mean(x), where n is the number of elements summed"""
    total, shape = m.nodes["sum"], m.type("x").shape
    summed = product_of(shape[k] for k in total.attrs["axes"])
    if not isinstance(summed, int) or summed == 0:
        return Refusal("count", f"the number of elements summed is {summed}", {"count": str(summed)})
    if m.result != m.graph.types[total.output]:
        return Refusal("other-type", "the constant widens the sum")
    if not holds(m.array("count"), summed if m.root.op == "div" else 1 / summed):
        return Refusal(
            "other-number", f"{m['count']} is not the number of elements summed, {summed}", {"count": summed}
        )
    return to.emit("reduce_mean", m["x"], of=total, **total.attrs)


# ---- layer norm ------------------------------------------------------------------------------------------------------
def _axes(axes: object) -> bool:
    return isinstance(axes, tuple) and len(axes) > 0


def _mean(p: Pattern, name: str) -> Pattern:
    return op("reduce_mean", p, name=name, keepdims=True, axes=_axes)


def _square(p: Pattern) -> Pattern:
    return any_of(op("mul", p, p), p**2)


_mu = _mean(x, "mean")
_centred = op("sub", x, _mu, name="centred")
_difference = op("sub", _mean(_square(x), "variance"), _square(_mu))  # E[x^2] - E[x]^2
_variance = any_of(
    _mean(_square(_centred), "variance"), op("relu", _difference), op("maximum", _difference, 0), _difference
)
_deviation = op("sqrt", _variance + epsilon)
_inverse = any_of(op("rsqrt", _variance + epsilon), op("reciprocal", _deviation), 1 / _deviation)
LAYER_NORM = any_of(_centred * _inverse, _centred / _deviation, _centred * (_inverse * g), _centred * g * _inverse,
                    _centred * g / _deviation)  # fmt: skip


def _norm_case(axes: tuple[int, ...], fires: bool = True, spellings: int = 24) -> Case:
    attrs = {n: {"axes": axes, "keepdims": True} for n in ("mean", "variance")}
    return Case(
        {"x": (2, 3, 17), "epsilon": _EPS, "g": np.linspace(1, 2, 17, dtype=np.float32), "b": (17,)},
        attrs,
        fires,
        spellings=spellings,
    )


@rule("reassociating", LAYER_NORM, when=(is_float,), tell=True, cases=(
    _norm_case((2,)), _norm_case((1, 2)), _norm_case((1,), False, 2), _norm_case((0, 2), False, 2),
))  # fmt: skip
def layer_norm(m: Match, to: Draft) -> str | Refusal:
    """(x - mean) / sqrt(mean((x - mean)**2) + eps) -> layer_norm(x), over the last axes"""
    axes = tuple(m.nodes["mean"].attrs["axes"])
    if tuple(m.nodes["variance"].attrs["axes"]) != axes:
        return Refusal("other-axes", "mean and variance go over different axes", {"axes": axes})
    no = _not_trailing(m, axes)
    if no is not None:
        return no
    core = to.emit("layer_norm", m["x"], None, None, axis=min(axes), epsilon=float(m.array("epsilon").item()))
    scaled = to.emit("mul", core, m["g"]) if m.has("g") else core
    return to.emit("add", scaled, m["b"]) if m.has("b") else scaled


# x * f + (b - mean * f) with f = g / deviation: what TensorFlow's batch_normalization makes of a layer norm.
_by = any_of(op("mul", _inverse, g, name="f"), op("rsqrt", _variance + epsilon, name="f"),
             op("reciprocal", _deviation, name="f"), op("div", 1, _deviation, name="f"))  # fmt: skip
_moved = _mu * _by


@rule("reassociating", any_of(x * _by + (b - _moved), op("sub", x * _by, _moved), op("sub", x * _by + b, _moved)),
      when=(is_float,), tell=True, cases=(
    _norm_case((2,), spellings=60), _norm_case((1,), False, 2),
))  # fmt: skip
def multiplied_layer_norm(m: Match, to: Draft) -> str | Refusal:
    """x * f + (b - mean * f) -> layer_norm(x) * g + b, where f = g / sqrt(variance + eps)"""
    return layer_norm.build(m, to)  # type: ignore[return-value]


def _not_trailing(m: Match, axes: tuple[int, ...]) -> Refusal | None:
    rank = m.type("x").rank
    if tuple(sorted(axes)) != tuple(range(min(axes), rank)):
        return Refusal(
            "inner-axes", f"the norm goes over axes {axes} of {rank}, not over the last ones", {"axes": axes}
        )
    return None


_SCALED = {"norm": {"axis": 1, "epsilon": 0.1}}


def _leaves(name: str) -> Condition:
    """A scale or bias of the norm's own type that does not widen it."""

    def condition(m: Match) -> Refusal | None:
        if m.result != m.type("x"):
            return Refusal("widens", f"{m[name]} of {m.type(name)} widens {m.type('x')}", {"value": m[name]})
        return None

    return condition


@rule("exact", op(("layer_norm", "rms_norm"), x, name="norm") * g, when=(_leaves("g"), used_once("norm")), cases=(
    Case({"x": (2, 3), "g": np.array([1, 2, 3], np.float32)}, _SCALED),
    Case({"x": (2, 3), "g": np.array([[1], [10]], np.float32)}, _SCALED),
    Case({"x": (1, 1), "g": np.array([2, 3], np.float32)}, _SCALED, fires=False),
    Case({"x": (2, 3), "g": (3,)}, _SCALED, fires=False, shown=("norm",)),
))  # fmt: skip
def scale_into_norm(m: Match, to: Draft) -> str:
    """layer_norm(x) * g -> layer_norm(x, g)"""
    norm = m.nodes["norm"]
    return to.emit(norm.op, m["x"], m["g"], **norm.attrs)


@rule("exact", op("layer_norm", x, Maybe(g), name="norm") + b, when=(_leaves("b"), used_once("norm")), cases=(
    Case({"x": (2, 3), "g": np.array([1, 2, 3], np.float32), "b": np.array([[0], [1]], np.float32)}, _SCALED),
    Case({"x": (2, 1), "g": np.array([2], np.float32), "b": (2, 3)}, _SCALED, fires=False),
))  # fmt: skip
def bias_into_norm(m: Match, to: Draft) -> str | Refusal:
    """layer_norm(x, g) + b -> layer_norm(x, g, b)"""
    if not m.graph.is_constant(m["b"]):
        return Refusal(
            "not-constant", f"{m['b']} is known only when the model runs: a residual, not a bias", {"value": m["b"]}
        )
    norm = m.nodes["norm"]
    return to.emit("layer_norm", m["x"], m["g"] if m.has("g") else None, m["b"], **norm.attrs)


_RMS = _mean(_square(x), "variance") + epsilon


@rule(
    "reassociating",
    any_of(x * op("rsqrt", _RMS), x * op("reciprocal", op("sqrt", _RMS)), x / op("sqrt", _RMS)),
    when=(same_type("x"), is_float),
    tell=True,
    cases=(
        Case({"x": (2, 17), "epsilon": _EPS}, {"variance": {"axes": (1,), "keepdims": True}}),
        Case({"x": (2, 17), "epsilon": _EPS}, {"variance": {"axes": (0,), "keepdims": True}}, fires=False),
    ),
)
def rms_norm(m: Match, to: Draft) -> str | Refusal:
    """x / sqrt(mean(x**2) + eps) -> rms_norm(x), over the last axes"""
    axes = tuple(m.nodes["variance"].attrs["axes"])
    no = _not_trailing(m, axes)
    if no is not None:
        return no
    return to.emit("rms_norm", m["x"], None, axis=min(axes), epsilon=float(m.array("epsilon").item()))


# ---- softmax ---------------------------------------------------------------------------------------------------------
_shifted = op("sub", x, op("reduce_max", x, name="max", keepdims=True), name="shifted")
_weights = op("exp", _shifted, name="weights")
_total = op("reduce_sum", _weights, name="sum", keepdims=True)


def _softmax_case(axes: tuple[int, ...], sum_axes: tuple[int, ...], fires: bool) -> Case:
    attrs = {"max": {"axes": axes, "keepdims": True}, "sum": {"axes": sum_axes, "keepdims": True}}
    return Case({"x": (2, 3, 5)}, attrs, fires)


_SOFTMAX_CASES = (
    _softmax_case((2,), (2,), True), _softmax_case((1,), (1,), True), _softmax_case((1, 2), (1, 2), False),
    _softmax_case((1,), (2,), False),
)  # fmt: skip


def _one_axis(m: Match) -> Refusal | None:
    most, total = tuple(m.nodes["max"].attrs["axes"]), tuple(m.nodes["sum"].attrs["axes"])
    if most != total or len(most) != 1:
        return Refusal("axes", f"the maximum goes over {most}, the sum over {total}", {"max": most, "sum": total})
    return None


@rule(
    "reassociating",
    any_of(_weights / _total, _weights * op("reciprocal", _total)),
    when=(_one_axis, is_float),
    tell=True,
    cases=_SOFTMAX_CASES,
)
def softmax(m: Match, to: Draft) -> str:
    """exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)"""
    return to.emit("softmax", m["x"], axis=m.nodes["max"].attrs["axes"][0])


@rule("reassociating", op("sub", _shifted, op("log", _total)), when=(_one_axis, is_float), cases=_SOFTMAX_CASES)
def log_softmax(m: Match, to: Draft) -> str:
    """(x - max(x)) - log(sum(exp(x - max(x)))) -> log_softmax(x)"""
    return to.emit("log_softmax", m["x"], axis=m.nodes["max"].attrs["axes"][0])


_log_sum = op("reduce_log_sum_exp", x, name="sum", keepdims=True)


@rule("reassociating", op("sub", x, _log_sum), when=(is_float,), cases=(
    Case({"x": (2, 3, 5)}, {"sum": {"axes": (1,)}}), Case({"x": (2, 3, 5)}, {"sum": {"axes": (1, 2)}}, fires=False),
))  # fmt: skip
def log_softmax_of_log_sum(m: Match, to: Draft) -> str | Refusal:
    """x - log(sum(exp(x))) -> log_softmax(x), where the sum is one stable operator"""
    axes = tuple(m.nodes["sum"].attrs["axes"])
    if len(axes) != 1:
        return Refusal("axes", f"the sum goes over {axes}, a softmax over one axis", {"axes": axes})
    return to.emit("log_softmax", m["x"], axis=axes[0])


RULES: tuple[Rule, ...] = declared(globals())
