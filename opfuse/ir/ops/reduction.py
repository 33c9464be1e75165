"""Reductions over axes, and the positions of extremes.

    reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_l1 reduce_l2 reduce_sum_square   (one loop nest)
    reduce_log_sum_exp argmax argmin                                                                 (composites)

Half precision is summed in float32 and rounded once. Over an empty axis: sum 0, product 1, maximum -inf (or the
smallest integer), mean NaN. A NaN anywhere gives NaN, also for maximum and minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import Dim, product
from opfuse.ir.index import Index
from opfuse.ir.ops.broadcast import accumulator, normal_axis, output_axes, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.pointwise import ArrayFunction, array_oracle
from opfuse.ir.scalar import Operand, Scalar, apply, cast, extent, substitute
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import DType, TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph

ScalarFunction = Callable[[Scalar], Scalar]


def reduced_axes(call: Call) -> tuple[int, ...]:
    """The attribute `axes`, sorted; OperatorError where one is out of range or stands twice."""
    axes = tuple(sorted(normal_axis(a, call.type(0).rank) for a in call["axes"]))
    if len(set(axes)) != len(axes):
        raise OperatorError(f"axes {axes} repeat")
    return axes


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    if keepdims:
        return tuple(1 if d in axes else e for d, e in enumerate(shape))
    return tuple(e for d, e in enumerate(shape) if d not in axes)


def lowest(dtype: np.dtype) -> Any:
    """The value below all others: -inf, the smallest integer, False."""
    if dtype == np.bool_:
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


# ---- one loop nest ---------------------------------------------------------------------------------------------------
def _loops(call: Call) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Index, ...]]:
    """Output axes, reduce axes (r0, r2, ... by dimension of the input), and where the input is read."""
    over, keepdims = reduced_axes(call), call["keepdims"]
    outer = output_axes(call.output.shape)
    inner = tuple(Axis(f"r{d}", call.shape(0)[d]) for d in over)
    kept = iter(a for k, a in enumerate(outer) if not (keepdims and k in over))
    summed = iter(inner)
    return outer, inner, tuple((next(summed) if d in over else next(kept)).index for d in range(call.type(0).rank))


def _reduction(name: str, combine: str, function: ArrayFunction, body: ScalarFunction | None = None,
               finish: Callable[[Scalar, Dim], Scalar] | None = None, kinds: str = "fi") -> Operator:  # fmt: skip
    """`body` maps each element, `finish` the reduced value (with the count of elements)."""
    widens = combine in ("sum", "prod")

    def infer(call: Call) -> TensorType:
        require_kind(call.type(0), kinds, "the input")
        return TensorType(call.type(0).dtype, reduced_shape(call.shape(0), reduced_axes(call), call["keepdims"]))

    def structure(call: Call) -> Structure:
        outer, inner, index = _loops(call)
        dtype = call.type(0).dtype
        x: Scalar = Operand(0, dtype)
        if widens:
            x = cast(x, accumulator(dtype))
        value = body(x) if body is not None else x
        total = Operand(0, value.dtype)
        last = finish(total, product(a.extent for a in inner)) if finish is not None else total
        last = cast(last, dtype)
        reads = (Access(0, index),)
        if not inner:
            return Structure(outer, reads, substitute(last, lambda s: value if s == total else None))
        how = combine if dtype is not DType.BOOL else {"max": "or", "min": "and"}[combine]
        return Structure(outer, reads, value, inner, how, None if last == total else last)

    def reduce_array(attrs: Mapping[str, Any], x: Any) -> Any:
        return function(x, axis=tuple(attrs["axes"]), keepdims=attrs["keepdims"])

    attributes = {"axes": REQUIRED, "keepdims": True}
    return Operator(
        name, Kind.STRUCTURED, ("x",), infer, array_oracle(reduce_array), attributes, structure, samples=_samples(kinds)
    )


def _mean(total: Scalar, count: Dim) -> Scalar:
    return apply("div", total, extent(count, total.dtype))


def _mean_array(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    count = np.prod([x.shape[a] for a in axis], dtype=np.int64)
    return total / x.dtype.type(count) if x.dtype.kind == "f" else np.trunc(np.true_divide(total, count))


def _samples(kinds: str) -> tuple[Sample, ...]:
    half = np.array([[60000, 60000, 60000, 60000], [1, 2, 3, 4]], np.float16)
    out = [
        Sample(((3, 5),), {"axes": (1,), "keepdims": False}),
        Sample(((2, 3, 17),), {"axes": (0, 2), "keepdims": True}),
        Sample(((2, 3, 4, 5),), {"axes": (2, 3), "keepdims": False}),
        Sample(((4, 3),), {"axes": (0, 1), "keepdims": False}),
        Sample(((2, 3),), {"axes": (), "keepdims": False}),
        Sample(((),), {"axes": (), "keepdims": True}),
        Sample(((0, 3),), {"axes": (1,), "keepdims": False}),
        Sample(((2, 0),), {"axes": (1,), "keepdims": False}),
        Sample(
            (np.array([[np.nan, 1, 2], [2, np.nan, 1], [1, 2, np.inf]], np.float32),), {"axes": (1,), "keepdims": False}
        ),
        Sample((half,), {"axes": (1,), "keepdims": True}),
    ]
    if "i" in kinds:
        out.append(Sample((np.array([[-7, 7, -1], [5, -8, 9]]),), {"axes": (1,), "keepdims": False}))
        out.append(Sample((np.array([[1, 2], [3, 4]], np.int32),), {"axes": (0,), "keepdims": True}))
    if "b" in kinds:
        out.append(Sample((np.array([[True, False], [True, True]]),), {"axes": (1,), "keepdims": False}))
    return tuple(out)


# ---- log of a sum of exponentials ------------------------------------------------------------------------------------
def _expand_log_sum_exp(g: Graph, call: Call, inputs: tuple[str | None, ...]) -> tuple[str, ...]:
    """m + log(sum(exp(x - m))) with m the maximum, or 0 where that is infinite."""
    dtype, wide = call.type(0).dtype, accumulator(call.type(0).dtype)
    x = str(inputs[0])
    if wide is not dtype:
        x = g.emit("cast", [x], {"to": wide})
    over = {"axes": reduced_axes(call), "keepdims": True}
    top = g.emit("reduce_max", [x], over)
    top = g.emit("where", [g.emit("isinf", [top]), g.scalar(0, wide), top])
    total = g.emit("reduce_sum", [g.emit("exp", [g.emit("sub", [x, top])])], over)
    y = g.emit("add", [g.emit("log", [total]), top])
    if not call["keepdims"]:
        y = g.emit("reshape", [y], {"shape": call.output.shape})
    return (g.emit("cast", [y], {"to": dtype}) if wide is not dtype else y,)


def _log_sum_exp_array(attrs: Mapping[str, Any], x: Any) -> Any:
    if x.size == 0:
        return np.log(np.sum(np.exp(x), axis=tuple(attrs["axes"]), keepdims=attrs["keepdims"]))
    return np.logaddexp.reduce(np.moveaxis(x, attrs["axes"], range(len(attrs["axes"]))).reshape(
        -1, *[d for k, d in enumerate(x.shape) if k not in attrs["axes"]]), axis=0).reshape(
        reduced_shape(x.shape, attrs["axes"], attrs["keepdims"]))  # fmt: skip


def _infer_float_reduction(call: Call) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    return TensorType(call.type(0).dtype, reduced_shape(call.shape(0), reduced_axes(call), call["keepdims"]))


_LOG_SUM_EXP = Operator(
    "reduce_log_sum_exp",
    Kind.COMPOSITE,
    ("x",),
    _infer_float_reduction,
    array_oracle(_log_sum_exp_array),
    {"axes": REQUIRED, "keepdims": True},
    expand=_expand_log_sum_exp,
    samples=(
        *_samples("f")[:6],
        Sample(
            (np.array([[1000, 999], [-np.inf, -np.inf], [np.inf, 1], [np.nan, 1]], np.float32),),
            {"axes": (1,), "keepdims": False},
        ),
    ),
)


# ---- positions of extremes -------------------------------------------------------------------------------------------
def _infer_arg(call: Call) -> TensorType:
    require_kind(call.type(0), "fi", "the input")
    axis = normal_axis(call["axis"], call.type(0).rank)
    return TensorType(DType.I64, reduced_shape(call.shape(0), (axis,), call["keepdims"]))


def _expand_arg(g: Graph, call: Call, inputs: tuple[str | None, ...], extreme: str) -> tuple[str, ...]:
    """The smallest (or largest, for `last`) position at which x equals its extreme or is NaN."""
    x, axis = str(inputs[0]), call["axis"]
    over = {"axes": (axis,), "keepdims": True}
    hit = g.emit("equal", [x, g.emit(extreme, [x], over)])
    if call.type(0).dtype.is_float:
        hit = g.emit("or", [hit, g.emit("isnan", [x])])
    extent = call.shape(0)[axis]
    places = g.emit("iota", [], {"extent": extent, "dtype": DType.I64})
    places = g.emit("reshape", [places], {"shape": (extent, *(1,) * (call.type(0).rank - axis - 1))})
    nowhere = g.scalar(-1 if call["last"] else np.iinfo(np.int64).max, DType.I64)
    candidates = g.emit("where", [hit, places, nowhere])
    choose = "reduce_max" if call["last"] else "reduce_min"
    return (g.emit(choose, [candidates], {"axes": (axis,), "keepdims": call["keepdims"]}),)


def _arg(name: str, extreme: str, function: Any) -> Operator:
    """The first (or last) extreme; a NaN counts as the extreme, as in NumPy and PyTorch."""

    def find(attrs: Mapping[str, Any], x: Any) -> Any:
        axis, keepdims = attrs["axis"], attrs["keepdims"]
        if not attrs["last"]:
            return function(x, axis=axis, keepdims=keepdims)
        return x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keepdims)

    samples = (
        Sample(((3, 5),), {"axis": 1, "keepdims": False}),
        Sample((np.array([[2, 7, 7], [7, 1, 1]]),), {"axis": 1, "last": True}),
        Sample(
            (np.array([[np.nan, 1, 2], [2, np.nan, 1], [1, 2, np.nan]], np.float32),), {"axis": 1, "keepdims": False}
        ),
        Sample(((2, 3, 4),), {"axis": 0}),
        Sample((np.array([[np.nan, 1, np.nan]], np.float16),), {"axis": 1, "last": True, "keepdims": False}),
    )
    attributes = {"axis": REQUIRED, "keepdims": True, "last": False}
    return Operator(
        name,
        Kind.COMPOSITE,
        ("x",),
        _infer_arg,
        array_oracle(find, result=DType.I64),
        attributes,
        expand=partial(_expand_arg, extreme=extreme),
        flops=lambda call: call.type(0).elements,
        samples=samples,
    )


def _square(x: Scalar) -> Scalar:
    return apply("mul", x, x)


def _extreme(function: Any, initial: Callable[[np.dtype], Any]) -> ArrayFunction:
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims, initial=initial(x.dtype))


OPERATORS: tuple[Operator, ...] = (
    _reduction("reduce_sum", "sum", lambda x, **over: np.sum(x, dtype=x.dtype, **over)),
    _reduction("reduce_mean", "sum", _mean_array, finish=_mean),
    _reduction("reduce_max", "max", _extreme(np.max, lowest), kinds="fib"),
    _reduction("reduce_min", "min", _extreme(np.min, highest), kinds="fib"),
    _reduction("reduce_prod", "prod", lambda x, **over: np.prod(x, dtype=x.dtype, **over)),
    _reduction(
        "reduce_l1", "sum", lambda x, **over: np.sum(np.abs(x), dtype=x.dtype, **over), lambda x: apply("abs", x)
    ),
    _reduction(
        "reduce_l2",
        "sum",
        lambda x, **over: np.sqrt(np.sum(x * x, dtype=x.dtype, **over)),
        _square,
        lambda total, count: apply("sqrt", total),
        kinds="f",
    ),
    _reduction("reduce_sum_square", "sum", lambda x, **over: np.sum(x * x, dtype=x.dtype, **over), _square),
    _LOG_SUM_EXP,
    _arg("argmax", "reduce_max", np.argmax),
    _arg("argmin", "reduce_min", np.argmin),
)
