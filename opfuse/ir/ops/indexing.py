"""Reading at computed places, and tensors made of nothing but their shape.

    gather(x, indices; axis)   gather_elements(x, indices; axis)   gather_nd   one_hot(indices, values; depth, axis)
    dims(values) -> i64 vector   fill(shape, value, dtype)   iota(extent, dtype)   trilu(x; k, upper)
    non_zero

non_zero runs on the host for now.

Indices may be negative: they count from the end, and a structure's `Gathered` term means the index *after* that
wrapping. The oracle raises IndexError, with the guilty index, for one that lies outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, dims_text, symbol
from opfuse.ir.index import Gathered, Index
from opfuse.ir.ops.broadcast import kind_of, normal_axis, output_axes, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.scalar import Operand, Position, Scalar, apply, cast, const, extent
from opfuse.ir.structure import Access, Structure
from opfuse.ir.types import DType, TensorType

_GATHERED = Index(((Gathered(0), 1),))


def wrap_indices(indices: np.ndarray, extent: int) -> np.ndarray:
    """Indices in [0, extent); IndexError names the first that lies outside [-extent, extent)."""
    outside = (indices < -extent) | (indices >= extent)
    if outside.any():
        raise IndexError(f"index {indices[outside].flat[0]} is outside a dimension of extent {extent}")
    return np.where(indices < 0, indices + extent, indices).astype(np.int64)


def _zero_flops(call: Call) -> Dim:
    return 0


# ---- gather ----------------------------------------------------------------------------------------------------------
def _infer_gather(call: Call) -> TensorType:
    require_kind(call.type(1), "i", "input 'indices'")
    axis, shape = normal_axis(call["axis"], call.type(0).rank), call.shape(0)
    return TensorType(call.type(0).dtype, (*shape[:axis], *call.shape(1), *shape[axis + 1 :]))


def _gather_structure(call: Call) -> Structure:
    axes, axis, rank = output_axes(call.output.shape), call["axis"], call.type(1).rank
    before, chosen, after = axes[:axis], axes[axis : axis + rank], axes[axis + rank :]
    data = (*(a.index for a in before), _GATHERED, *(a.index for a in after))
    return Structure(axes, (Access(1, tuple(a.index for a in chosen)), Access(0, data)), Operand(1, call.output.dtype))


def _gather_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x, indices = arrays
    return np.asarray(np.take(x, wrap_indices(indices, x.shape[attrs["axis"]]), axis=attrs["axis"]))


def _infer_gather_elements(call: Call) -> TensorType:
    require_kind(call.type(1), "i", "input 'indices'")
    x, indices, axis = call.shape(0), call.shape(1), normal_axis(call["axis"], call.type(0).rank)
    if len(x) != len(indices):
        raise OperatorError(f"indices of rank {len(indices)} for a tensor of rank {len(x)}")
    for d, (a, b) in enumerate(zip(x, indices, strict=True)):
        gap = a - b
        if d != axis and isinstance(gap, int) and gap < 0:  # symbols are compared once they are bound
            raise OperatorError(f"indices [{dims_text(indices)}] are larger than [{dims_text(x)}] in dimension {d}")
    return TensorType(call.type(0).dtype, indices)


def _gather_elements_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    data = tuple(_GATHERED if d == call["axis"] else a.index for d, a in enumerate(axes))
    return Structure(axes, (Access(1, tuple(a.index for a in axes)), Access(0, data)), Operand(1, call.output.dtype))


def _gather_elements_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (x, indices), axis = arrays, attrs["axis"]
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = wrap_indices(indices, x.shape[axis])
    return np.asarray(x[tuple(places)])


def _infer_gather_nd(call: Call) -> TensorType:
    require_kind(call.type(1), "i", "input 'indices'")
    x, indices, batch = call.shape(0), call.shape(1), call["batch_dims"]
    if not indices or not isinstance(indices[-1], int):
        raise OperatorError("the last dimension of the indices must be a known number")
    depth = indices[-1]
    if batch >= len(indices) or x[:batch] != indices[:batch] or depth < 1 or batch + depth > len(x):
        raise OperatorError(f"indices [{dims_text(indices)}] with {batch} batch dimensions do not fit [{dims_text(x)}]")
    return TensorType(call.type(0).dtype, (*indices[:-1], *x[batch + depth :]))


def _gather_nd_structure(call: Call) -> Structure:
    """A read of the indices for each dimension that they choose, then the data at all of them."""
    axes, indices, batch = output_axes(call.output.shape), call.shape(1), call["batch_dims"]
    depth = indices[-1]
    assert isinstance(depth, int)
    chosen, after = axes[: len(indices) - 1], axes[len(indices) - 1 :]
    reads = [Access(1, (*(a.index for a in chosen), Index((), k))) for k in range(depth)]
    gathered = (Index(((Gathered(k), 1),)) for k in range(depth))
    data = (*(a.index for a in axes[:batch]), *gathered, *(a.index for a in after))
    return Structure(axes, (*reads, Access(0, data)), Operand(depth, call.output.dtype))


def _gather_nd_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (x, indices), batch = arrays, attrs["batch_dims"]
    depth = indices.shape[-1]
    wrapped = tuple(wrap_indices(indices[..., k], x.shape[batch + k]) for k in range(depth))
    rank = indices.ndim - 1
    places = [np.arange(x.shape[d]).reshape(-1, *(1,) * (rank - d - 1)) for d in range(batch)]
    return np.asarray(x[(*places, *wrapped)])


_GATHER = Operator(
    "gather",
    Kind.STRUCTURED,
    ("x", "indices"),
    _infer_gather,
    _gather_oracle,
    {"axis": REQUIRED},
    _gather_structure,
    flops=_zero_flops,
    samples=(
        Sample(((5, 3), np.array([[0, -1], [4, 2]])), {"axis": 0}),
        Sample(((2, 5, 3), np.array([-5, 1], np.int32)), {"axis": 1}),
        Sample(((4, 3), np.array(-2)), {"axis": 1}),
        Sample((np.array([10, 20, 30]), np.array([2, 0, -3, 1])), {"axis": 0}),
        Sample(((3, 2), np.zeros((0,), np.int64)), {"axis": 0}),
    ),
)
_GATHER_ELEMENTS = Operator(
    "gather_elements",
    Kind.STRUCTURED,
    ("x", "indices"),
    _infer_gather_elements,
    _gather_elements_oracle,
    {"axis": REQUIRED},
    _gather_elements_structure,
    flops=_zero_flops,
    samples=(
        Sample(((3, 4), np.array([[0, -1], [3, 2]])), {"axis": 1}),
        Sample(((3, 2), np.array([[0, -1], [2, 1], [-3, 0], [1, 1]])), {"axis": 0}),
        Sample((np.array([10, 20, 30]), np.array([2, 2, 0])), {"axis": 0}),
    ),
)
_GATHER_ND = Operator(
    "gather_nd", Kind.STRUCTURED, ("x", "indices"), _infer_gather_nd, _gather_nd_oracle, {"batch_dims": 0},
    _gather_nd_structure, flops=_zero_flops,
    samples=(
        Sample(((3, 4, 2), np.array([[0, -1], [2, 1]]))),
        Sample(((3, 4), np.array([[[0, 1]], [[-1, -1]]]))),
        Sample(((2, 3, 4), np.array([[[1], [0]], [[-1], [2]]])), {"batch_dims": 1}),
    ),
)  # fmt: skip


# ---- one_hot ---------------------------------------------------------------------------------------------------------
def _infer_one_hot(call: Call) -> TensorType:
    require_kind(call.type(0), "i", "input 'indices'")
    if call.shape(1) != (2,):
        raise OperatorError(f"values of shape [{dims_text(call.shape(1))}] must be (off, on)")
    axis, shape = normal_axis(call["axis"], call.type(0).rank + 1), call.shape(0)
    return TensorType(call.type(1).dtype, (*shape[:axis], call["depth"], *shape[axis:]))


def _one_hot_structure(call: Call) -> Structure:
    axes, axis = output_axes(call.output.shape), call["axis"]
    read = Access(0, tuple(a.index for d, a in enumerate(axes) if d != axis))
    dtype = call.output.dtype
    i = cast(Operand(0, call.type(0).dtype), DType.I64)
    wrapped = apply("select", apply("lt", i, const(0, DType.I64)), apply("add", i, extent(call["depth"])), i)
    body = apply("select", apply("eq", wrapped, Position(axes[axis].name)), Operand(2, dtype), Operand(1, dtype))
    return Structure(axes, (read, Access(1, (Index((), 0),)), Access(1, (Index((), 1),))), body)


def _one_hot_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (indices, (off, on)), axis, depth = arrays, attrs["axis"], attrs["depth"]
    wrapped = np.expand_dims(np.where(indices < 0, indices + depth, indices), axis)
    shape = [1] * wrapped.ndim
    shape[axis] = depth
    return np.where(wrapped == np.arange(depth).reshape(shape), on, off).astype(arrays[1].dtype)


_ONE_HOT = Operator(
    "one_hot",
    Kind.STRUCTURED,
    ("indices", "values"),
    _infer_one_hot,
    _one_hot_oracle,
    {"depth": REQUIRED, "axis": REQUIRED},
    _one_hot_structure,
    samples=(
        Sample((np.array([0, -1, 7, 2]), np.array([0, 1], np.float32)), {"depth": 3, "axis": 1}),
        Sample((np.array([[1, 2], [0, -3]], np.int32), np.array([5, 9])), {"depth": 3, "axis": 0}),
        Sample((np.array(1), np.array([False, True])), {"depth": 4, "axis": 0}),
    ),
)


# ---- tensors of a shape ----------------------------------------------------------------------------------------------
def _dims_structure(call: Call) -> Structure:
    (axis,) = axes = output_axes(call.output.shape)
    values = call["values"]
    body: Scalar = extent(values[-1]) if values else const(0, DType.I64)
    for k in reversed(range(len(values) - 1)):
        body = apply("select", apply("eq", Position(axis.name), const(k, DType.I64)), extent(values[k]), body)
    return Structure(axes, (), body)


def _infer_fill(call: Call) -> TensorType:
    return TensorType(call["dtype"], tuple(call["shape"]))


def _infer_iota(call: Call) -> TensorType:
    if kind_of(call["dtype"]) == "b":
        raise OperatorError("iota counts in integers or floats")
    return TensorType(call["dtype"], (call["extent"],))


def _iota_structure(call: Call) -> Structure:
    (axis,) = axes = output_axes(call.output.shape)
    return Structure(axes, (), cast(Position(axis.name), call.output.dtype))


_MADE = (
    Operator(
        "dims",
        Kind.STRUCTURED,
        (),
        lambda call: TensorType(DType.I64, (len(call["values"]),)),
        lambda attrs, arrays: np.array(attrs["values"], np.int64),
        {"values": REQUIRED},
        _dims_structure,
        flops=_zero_flops,
        samples=(Sample((), {"values": (2, 3, 4)}), Sample((), {"values": ()}), Sample((), {"values": (7,)})),
    ),
    Operator(
        "fill",
        Kind.STRUCTURED,
        (),
        _infer_fill,
        lambda attrs, arrays: np.full(attrs["shape"], np.asarray(attrs["value"]).astype(attrs["dtype"].numpy)),
        dict.fromkeys(("shape", "value", "dtype"), REQUIRED),
        lambda call: Structure(output_axes(call.output.shape), (), const(call["value"], call["dtype"])),
        flops=_zero_flops,
        samples=(
            Sample((), {"shape": (2, 3), "value": 0.5, "dtype": DType.F32}),
            Sample((), {"shape": (), "value": 7, "dtype": DType.I64}),
            Sample((), {"shape": (0, 2), "value": True, "dtype": DType.BOOL}),
            Sample((), {"shape": (3,), "value": float("-inf"), "dtype": DType.F16}),
        ),
    ),
    Operator(
        "iota",
        Kind.STRUCTURED,
        (),
        _infer_iota,
        lambda attrs, arrays: np.arange(attrs["extent"]).astype(attrs["dtype"].numpy),
        dict.fromkeys(("extent", "dtype"), REQUIRED),
        _iota_structure,
        flops=_zero_flops,
        samples=(
            Sample((), {"extent": 5, "dtype": DType.I64}),
            Sample((), {"extent": 3, "dtype": DType.F32}),
            Sample((), {"extent": 0, "dtype": DType.I32}),
        ),
    ),
)


# ---- triangles, positions ------------------------------------------------------------------------------
def _infer_trilu(call: Call) -> TensorType:
    if call.type(0).rank < 2:
        raise OperatorError(f"input of rank {call.type(0).rank} is no matrix")
    return call.type(0)


def _trilu_structure(call: Call) -> Structure:
    axes, dtype = output_axes(call.output.shape), call.output.dtype
    diagonal = apply("add", Position(axes[-2].name), const(call["k"], DType.I64))
    kept = apply("ge" if call["upper"] else "le", Position(axes[-1].name), diagonal)
    body = apply("select", kept, Operand(0, dtype), const(0, dtype))
    return Structure(axes, (Access(0, tuple(a.index for a in axes)),), body)


def _trilu_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x = arrays[0]
    mask = np.tri(x.shape[-2], x.shape[-1], attrs["k"] - 1 if attrs["upper"] else attrs["k"], dtype=np.bool_)
    return np.where(~mask if attrs["upper"] else mask, x, np.zeros((), x.dtype))


_LAST = (
    Operator(
        "trilu",
        Kind.STRUCTURED,
        ("x",),
        _infer_trilu,
        _trilu_oracle,
        {"k": 0, "upper": True},
        _trilu_structure,
        flops=_zero_flops,
        samples=(
            Sample(((3, 5),)),
            Sample(((2, 4, 3),), {"k": -1, "upper": False}),
            Sample((np.arange(9).reshape(3, 3),), {"k": 1}),
            Sample((np.full((2, 2), np.nan, np.float32),), {"k": 1, "upper": True}),
        ),
    ),
    Operator(
        # The count of columns is known at run time only; the symbol stands for it and is never bound.
        "non_zero",
        Kind.HOST,
        ("x",),
        lambda call: TensorType(DType.I64, (call.type(0).rank, symbol("non_zero"))),
        lambda attrs, arrays: np.array(np.nonzero(arrays[0]), np.int64).reshape(arrays[0].ndim, -1),
        flops=_zero_flops,
        samples=(Sample((np.array([[1, 0], [0, 3]]),)), Sample((np.array([0.0, np.nan, 2], np.float32),))),
    ),
)

OPERATORS: tuple[Operator, ...] = (_GATHER, _GATHER_ELEMENTS, _GATHER_ND, _ONE_HOT, *_MADE, *_LAST)
