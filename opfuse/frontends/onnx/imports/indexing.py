"""Gathers, and values made from nothing: constants, ranges, fills.

Gather(table [V, D], ids [B, S])   -> gather(table, ids, axis=0)
Range(2, S, 3)                     -> add(mul(iota(ceil((S - 2) / 3)), 3), 2)
Constant in any of its attributes  -> a constant of the graph
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from onnx import AttributeProto

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.frontends.onnx.shapes import maximum
from opfuse.frontends.onnx.types import ElementTypeError, TensorDataError, element_type, sparse_array, tensor_array
from opfuse.ir.dims import Dim, ceildiv
from opfuse.ir.types import DType

_WIDENED = (21, 23, 24, 25)  # versions that only admit more element types


# ---- constants -----------------------------------------------------------------------------------------------------
_FORMS: dict[str, np.dtype] = {
    "value_int": np.dtype(np.int64), "value_ints": np.dtype(np.int64),
    "value_float": np.dtype(np.float32), "value_floats": np.dtype(np.float32),
}  # fmt: skip


def constant(call: Call) -> str:
    given = [a for a in call.node.attribute if a.name.startswith(("value", "sparse_value"))]
    if len(given) != 1:
        raise InvalidNode(f"it must have one value attribute, and has {len(given)}")
    return call.graph.add_constant(_attribute_array(call, given[0]))


def _attribute_array(call: Call, attribute: AttributeProto) -> np.ndarray:
    try:
        if attribute.name == "value":
            return tensor_array(attribute.t, call.folder)
        if attribute.name == "sparse_value":
            return sparse_array(attribute.sparse_tensor, call.folder)
    except ElementTypeError as error:
        call.unsupported(str(error))
    except TensorDataError as error:
        raise InvalidNode(f"its value: {error}", error.code) from error
    dtype = _FORMS.get(attribute.name)
    if dtype is None:
        call.unsupported(f"its attribute {attribute.name!r} is not supported")
    values: Any = {"i": attribute.i, "f": attribute.f}[attribute.name[6]]
    if attribute.name.endswith("s"):
        values = list(attribute.ints if attribute.name == "value_ints" else attribute.floats)
    return np.asarray(values, dtype)


def constant_of_shape(call: Call) -> str:
    value = np.zeros(1, np.float32)
    found = call.attribute("value")
    if found is not None:
        value = _attribute_array(call, found)
    if value.size != 1:
        raise InvalidNode(f"its value must have one element, and has {value.size}")
    return call.emit("fill", [], shape=call.dims(0), value=value.reshape(-1)[0].item(), dtype=DType.of(value.dtype))


def eye_like(call: Call) -> str:
    """A constant where the shape is known: ones on diagonal k."""
    x = call.input(0)
    if call.rank(x) != 2:
        raise InvalidNode(f"its input has rank {call.rank(x)}, and must have rank 2")
    rows, columns = call.shape(x)
    if not isinstance(rows, int) or not isinstance(columns, int):
        call.needs_shapes("its shape depends on input shapes")
    found = call.attribute("dtype")
    dtype = element_type(found.i) if found is not None else call.dtype(x)
    return call.graph.add_constant(np.eye(rows, columns, call.int_attribute("k", 0)).astype(dtype.numpy))


def make_range(call: Call) -> str:
    """start + delta * iota(count); of floats only where the three numbers are constants."""
    dtype = call.dtype(call.input(0))
    if dtype.is_float:
        start, limit, delta = (call.item(k) for k in range(3))
        if delta == 0:
            raise InvalidNode("its delta is 0")
        count: Dim = max(math.ceil((limit - start) / delta), 0)
        kind = DType.F64 if dtype is DType.F64 else DType.F32
        steps = np.arange(count, dtype=kind.numpy)
        return call.graph.add_constant((steps * kind.numpy.type(delta) + kind.numpy.type(start)).astype(dtype.numpy))
    first, last, (step,) = call.dims(0)[0], call.dims(1)[0], call.integers(2)
    if step == 0:
        raise InvalidNode("its delta is 0")
    count = maximum(ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step), 0)
    out = call.emit("iota", [], extent=count, dtype=dtype)
    out = call.emit("mul", [out, call.scalar(step, out)]) if step != 1 else out
    return call.emit("add", [out, call.input(0)]) if first != 0 else out


# ---- gathers -------------------------------------------------------------------------------------------------------
def gather(call: Call) -> str:
    x, indices = call.input(0), call.input(1)
    return call.emit("gather", [x, indices], axis=call.axis(call.int_attribute("axis", 0), call.rank(x)))


def gather_elements(call: Call) -> str:
    x, indices = call.input(0), call.input(1)
    return call.emit("gather_elements", [x, indices], axis=call.axis(call.int_attribute("axis", 0), call.rank(x)))


def gather_nd(call: Call) -> str:
    return call.emit("gather_nd", [call.input(0), call.input(1)], batch_dims=call.int_attribute("batch_dims", 0))


def one_hot(call: Call) -> str:
    indices, values = call.input(0), call.input(2)
    depth = int(call.item(1)) if call.dtype(call.input(1)).is_float else call.dims(1)[0]
    axis = call.axis(call.int_attribute("axis", -1), call.rank(indices) + 1)
    whole = call.cast(indices, DType.I64) if call.dtype(indices).is_float else indices
    return call.emit("one_hot", [whole, values], depth=depth, axis=axis)


# ---- triangles and running sums ------------------------------------------------------------------------------------
def trilu(call: Call) -> str:
    k = int(call.item(1)) if call.has(1) else 0
    return call.emit("trilu", [call.input(0)], k=k, upper=bool(call.int_attribute("upper", 1)))


def cumulative(call: Call, ir: str) -> str:
    x = call.input(0)
    axis = call.axis(int(call.item(1)), call.rank(x))
    exclusive, backwards = (bool(call.int_attribute(n, 0)) for n in ("exclusive", "reverse"))
    return call.emit(ir, [x], axis=axis, exclusive=exclusive, reverse=backwards)


IMPORTS: tuple[Import, ...] = (
    Import("Constant", (1, 9, 11, 12, 13, 19, *_WIDENED), constant, ()),
    Import("ConstantOfShape", (9, 20, *_WIDENED), constant_of_shape, ("fill",)),
    Import("EyeLike", (9, 22), eye_like, ()),
    Import("Range", (11, 27), make_range, ("iota", "mul", "add")),
    Import("Gather", (1, 11, 13), gather, ("gather",)),
    Import("GatherElements", (11, 13), gather_elements, ("gather_elements",)),
    Import("GatherND", (11, 12, 13), gather_nd, ("gather_nd",)),
    Import("OneHot", (9, 11, 28), one_hot, ("one_hot", "cast")),
    Import("Trilu", (14,), trilu, ("trilu",)),
    Import("CumSum", (11, 14), partial(cumulative, ir="cumsum"), ("cumsum",)),
    Import("CumProd", (26,), partial(cumulative, ir="cumprod"), ("cumprod",)),
)  # fmt: skip
