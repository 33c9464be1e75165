"""Writing at computed places, and order: nothing that is loops over the output with affine reads. It runs on the host.

    scatter_elements(x, indices, updates; axis, reduction)    scatter_nd(x, indices, updates; reduction)
    top_k(x; k, axis, largest) -> values, indices             determinant(x)

`reduction` says what becomes of the number that is there: "none" forgets it (and of two updates of one place the later
one stays), "add", "mul", "max" and "min" combine. Indices may be negative: they count from the end. Where the indices
are constants, the import makes gathers of these operators, which have loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, dims_text
from opfuse.ir.ops.broadcast import normal_axis, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.indexing import wrap_indices
from opfuse.ir.ops.pointwise import is_half, widen
from opfuse.ir.types import DType, TensorType

_COMBINE: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
REDUCTIONS = ("none", *_COMBINE)


def _no_flops(call: Call) -> Dim:
    return 0


# ---- scatter ---------------------------------------------------------------------------------------------------------
def _check_scatter(call: Call) -> None:
    require_kind(call.type(1), "i", "input 'indices'")
    if call["reduction"] not in REDUCTIONS:
        raise OperatorError(f"reduction {call['reduction']!r} is none of {', '.join(REDUCTIONS)}")
    if call.type(2).dtype is not call.type(0).dtype:
        raise OperatorError(f"updates are {call.type(2).dtype.value}, the tensor is {call.type(0).dtype.value}")


def _infer_scatter_elements(call: Call) -> TensorType:
    _check_scatter(call)
    normal_axis(call["axis"], call.type(0).rank)
    if call.type(1).rank != call.type(0).rank or call.shape(2) != call.shape(1):
        raise OperatorError(f"indices [{dims_text(call.shape(1))}] and updates [{dims_text(call.shape(2))}] "
                            f"for a tensor [{dims_text(call.shape(0))}]")  # fmt: skip
    return call.type(0)


def _infer_scatter_nd(call: Call) -> TensorType:
    _check_scatter(call)
    x, indices = call.shape(0), call.shape(1)
    depth = indices[-1] if indices else None
    if not isinstance(depth, int) or not 0 < depth <= len(x):
        raise OperatorError(f"the last dimension of indices [{dims_text(indices)}] for a tensor of rank {len(x)}")
    if call.shape(2) != (*indices[:-1], *x[depth:]):
        raise OperatorError(f"updates [{dims_text(call.shape(2))}] for indices [{dims_text(indices)}]")
    return call.type(0)


def _combined(x: Any, places: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    y = widen(x).copy()
    if reduction == "none":
        y[places] = widen(updates)
    else:
        _COMBINE[reduction].at(y, places, widen(updates))
    return y.astype(x.dtype) if is_half(x.dtype) else y


def _scatter_elements_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (x, indices, updates), axis = arrays, attrs["axis"]
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = wrap_indices(indices, x.shape[axis])
    return np.asarray(_combined(x, tuple(np.broadcast_arrays(*places)), updates, attrs["reduction"]))


def _scatter_nd_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x, indices, updates = arrays
    places = tuple(wrap_indices(indices[..., k], x.shape[k]) for k in range(indices.shape[-1]))
    return np.asarray(_combined(x, places, updates, attrs["reduction"]))


_ELEMENTS = np.array([[1, -1, 0], [2, 2, 1]])
_ROWS = np.array([[2], [-3], [2]])


def _scatter_samples(indices: np.ndarray, shape: tuple[int, ...], attrs: Mapping[str, Any]) -> tuple[Sample, ...]:
    kept = tuple(Sample(((4, 3), indices, shape), {**attrs, "reduction": r}) for r in REDUCTIONS)
    whole = Sample((np.arange(12, dtype=np.int32).reshape(4, 3), indices.astype(np.int32), np.ones(shape, np.int32)),
                   {**attrs, "reduction": "add"})  # fmt: skip
    tenth = np.full(shape, 0.1, np.float16)
    half = Sample((np.ones((4, 3), np.float16), indices, tenth), {**attrs, "reduction": "mul"})
    return (*kept, whole, half)


# ---- order -----------------------------------------------------------------------------------------------------------
def _infer_top_k(call: Call) -> tuple[TensorType, TensorType]:
    require_kind(call.type(0), "fi", "the input")
    axis, k, shape = normal_axis(call["axis"], call.type(0).rank), call["k"], call.shape(0)
    short = shape[axis] - k
    if isinstance(short, int) and short < 0:
        raise OperatorError(f"the first {k} of {shape[axis]} elements")
    out = (*shape[:axis], k, *shape[axis + 1 :])
    return TensorType(call.type(0).dtype, out), TensorType(DType.I64, out)


def _top_k_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """In order; of equal elements the first one first. A NaN is larger than any number."""
    (x,), axis = arrays, attrs["axis"]
    if attrs["largest"]:  # the last of a backward order: equal elements come out forward again
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, range(attrs["k"]), axis=axis).astype(np.int64)
    return np.take_along_axis(x, order, axis), order


# ---- determinant -----------------------------------------------------------------------------------------------------
def _infer_determinant(call: Call) -> TensorType:
    require_kind(call.type(0), "f", "the input")
    shape = call.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise OperatorError(f"[{dims_text(shape)}] is no square matrix")
    return TensorType(call.type(0).dtype, shape[:-2])


def _determinant_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (x,) = arrays
    return np.asarray(np.linalg.det(widen(x))).astype(x.dtype)


OPERATORS: tuple[Operator, ...] = (
    Operator("scatter_elements", Kind.HOST, ("x", "indices", "updates"), _infer_scatter_elements,
             _scatter_elements_oracle, {"axis": REQUIRED, "reduction": "none"}, flops=_no_flops,
             samples=(*_scatter_samples(_ELEMENTS, (2, 3), {"axis": 0}),
                      Sample(((2, 5), np.array([[1, 0, -1], [4, 3, 2]]), (2, 3)), {"axis": 1}))),
    Operator("scatter_nd", Kind.HOST, ("x", "indices", "updates"), _infer_scatter_nd, _scatter_nd_oracle,
             {"reduction": "none"}, flops=_no_flops,
             samples=(*_scatter_samples(_ROWS, (3, 3), {}),
                      Sample(((4, 3), np.array([[0, 1], [3, -1]]), (2,))),
                      Sample(((2, 4, 3), np.array([[[0, 1]], [[1, 3]]]), (2, 1, 3))))),
    Operator("top_k", Kind.HOST, ("x",), _infer_top_k, _top_k_oracle,
             {"k": REQUIRED, "axis": REQUIRED, "largest": True}, outputs=2, flops=_no_flops,
             samples=(Sample(((3, 7),), {"k": 3, "axis": 1}),
                      Sample(((4, 3),), {"k": 4, "axis": 0, "largest": False}),
                      Sample((np.array([[2, 5, 5, 1, 5]], np.uint64),), {"k": 4, "axis": 1}),
                      Sample((np.array([2.0, 1, np.nan, 1], np.float32),), {"k": 3, "axis": 0, "largest": False}))),
    Operator("determinant", Kind.HOST, ("x",), _infer_determinant, _determinant_oracle,
             samples=(Sample(((3, 3),)), Sample(((2, 4, 4),)))),
)  # fmt: skip
