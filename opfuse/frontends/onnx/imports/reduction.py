"""Reductions: their axes as an attribute in early versions, as an input from version 13 (ReduceSum) or 18 (the others).

ReduceMean-13(x, axes=[-1])          -> reduce_mean(x, axes=(2,), keepdims=True)
ReduceSum-13(x, [])                  -> over all axes; with noop_with_empty_axes, over none: identity, or what the
                                        operator makes of one element (ReduceSumSquare: x * x)
GlobalAveragePool(x [N, C, H, W])    -> reduce_mean(x, axes=(2, 3), keepdims=True)
"""

from __future__ import annotations

from functools import partial

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import

_NAMES = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod", "ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2",
    "ReduceSumSquare": "reduce_sum_square", "ReduceLogSumExp": "reduce_log_sum_exp",
}  # fmt: skip
_ATTRIBUTE_VERSIONS = {
    "ReduceSum": (1, 11), "ReduceMax": (1, 11, 12, 13), "ReduceMin": (1, 11, 12, 13),
}  # fmt: skip
_INPUT_VERSIONS = {"ReduceSum": (13,), "ReduceMax": (18, 20), "ReduceMin": (18, 20), "ReduceLogSumExp": (18, 28)}


def _reduce(call: Call, ir: str, axes: tuple[int, ...] | None) -> str:
    """Over the given axes, all of them where there are none."""
    rank = call.rank(call.input(0))
    return _reduce_resolved(call, ir, call.axes(axes, rank) if axes else tuple(range(rank)))


def _reduce_resolved(call: Call, ir: str, axes: tuple[int, ...]) -> str:
    x = call.input(0)
    if not axes and ir not in _NOT_COPIES:
        return call.emit("identity", [x])
    return call.emit(ir, [x], axes=axes, keepdims=bool(call.int_attribute("keepdims", 1)))


_NOT_COPIES = ("reduce_l1", "reduce_l2", "reduce_sum_square")  # of one element they are |x|, |x| and x*x


def reduce_attribute(call: Call, ir: str) -> str:
    return _reduce(call, ir, call.ints_attribute("axes"))


def reduce_input(call: Call, ir: str) -> str:
    axes = call.integers(1) if call.has(1) else ()
    if not axes and call.int_attribute("noop_with_empty_axes", 0):
        return _reduce_resolved(call, ir, ())
    return _reduce(call, ir, axes)


def reduce_log_sum(call: Call) -> str:
    by_input = call.version >= 18
    return call.emit("log", [reduce_input(call, "reduce_sum") if by_input else reduce_attribute(call, "reduce_sum")])


def arg_extreme(call: Call, ir: str) -> str:
    x = call.input(0)
    axis = call.axis(call.int_attribute("axis", 0), call.rank(x))
    last = bool(call.int_attribute("select_last_index", 0)) if call.version >= 12 else False
    return call.emit(ir, [x], axis=axis, keepdims=bool(call.int_attribute("keepdims", 1)), last=last)


def global_pool(call: Call, ir: str) -> str:
    x = call.input(0)
    if call.rank(x) < 3:
        raise InvalidNode(f"it pools over the spatial axes of a tensor of rank {call.rank(x)}")
    return call.emit(ir, [x], axes=tuple(range(2, call.rank(x))), keepdims=True)


def global_lp_pool(call: Call) -> str:
    """(sum of |x|^p)^(1/p) over the spatial axes."""
    p = call.int_attribute("p", 2)
    if p in (1, 2):
        return global_pool(call, f"reduce_l{p}")
    x = call.input(0)
    powers = call.emit("pow", [call.emit("abs", [x]), call.scalar(p, x)])
    total = call.emit("reduce_sum", [powers], axes=tuple(range(2, call.rank(x))), keepdims=True)
    return call.emit("pow", [total, call.scalar(1 / p, x)])


def lp_normalisation(call: Call) -> str:
    """x divided by its L1 or L2 norm along an axis; 0 where the norm is 0."""
    x, p = call.input(0), call.int_attribute("p", 2)
    axis = call.axis(call.int_attribute("axis", -1), call.rank(x))
    if p not in (1, 2):
        raise InvalidNode(f"its attribute 'p' is {p}, not 1 or 2")
    norm = call.emit(f"reduce_l{p}", [x], axes=(axis,), keepdims=True)
    zero = call.scalar(0.0, x)
    return call.emit("where", [call.emit("equal", [norm, zero]), zero, call.emit("div", [x, norm])])


IMPORTS: tuple[Import, ...] = (
    *(Import(op, _ATTRIBUTE_VERSIONS.get(op, (1, 11, 13)), partial(reduce_attribute, ir=ir), (ir, "identity"))
      for op, ir in _NAMES.items()),
    *(Import(op, _INPUT_VERSIONS.get(op, (18,)), partial(reduce_input, ir=ir), (ir, "identity"))
      for op, ir in _NAMES.items()),
    Import("ReduceLogSum", (1, 11, 13, 18, 28), reduce_log_sum, ("reduce_sum", "log", "identity")),
    Import("ArgMax", (1, 11, 12, 13), partial(arg_extreme, ir="argmax"), ("argmax",)),
    Import("ArgMin", (1, 11, 12, 13), partial(arg_extreme, ir="argmin"), ("argmin",)),
    Import("GlobalAveragePool", (1, 22), partial(global_pool, ir="reduce_mean"), ("reduce_mean",)),
    Import("GlobalMaxPool", (1, 22), partial(global_pool, ir="reduce_max"), ("reduce_max",)),
    Import("GlobalLpPool", (2, 22), global_lp_pool, ("reduce_l1", "reduce_l2", "abs", "pow", "reduce_sum")),
    Import("LpNormalization", (1, 22), lp_normalisation, ("reduce_l1", "reduce_l2", "equal", "div", "where")),
)  # fmt: skip
