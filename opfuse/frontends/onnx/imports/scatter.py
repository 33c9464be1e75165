"""Writing at computed places, and reading in a computed order.

ScatterElements(x, constant indices, u)     -> where(constant mask, gather(u flat, constant places), x)
ScatterElements(x, indices, u), ScatterND   -> scatter_elements, scatter_nd
TensorScatter(past, update, w)              -> where(0 <= t - w < L, gather_elements(update, t - w), past)
ReverseSequence(x, lengths)                 -> gather_elements(x, t < length ? length - 1 - t : t)
MaxUnpool(x, places)                        -> scatter_elements(zeros, places, x flat)
"""

from __future__ import annotations

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import, direct
from opfuse.ir.dims import product
from opfuse.ir.ops.indexing import wrap_indices
from opfuse.ir.types import DType


def _reduction(call: Call) -> str:
    return call.string_attribute("reduction", "none") if call.version >= 16 else "none"


# ---- scatters --------------------------------------------------------------------------------------------------------
def scatter_elements(call: Call) -> str:
    x, indices, updates = (call.input(k) for k in range(3))
    axis, how = call.axis(call.int_attribute("axis", 0), call.rank(x)), _reduction(call)
    known, shape = call.contents.array(indices), _numbers(call, x)
    if known is None or shape is None or how != "none":
        return call.emit("scatter_elements", [x, indices, updates], axis=axis, reduction=how)
    places = list(np.indices(known.shape))
    places[axis] = _wrapped(known, shape[axis])
    return _gathered(call, x, updates, np.ravel_multi_index(tuple(places), shape))


def scatter_nd(call: Call) -> str:
    x, indices, updates = (call.input(k) for k in range(3))
    how, known, shape = _reduction(call), call.contents.array(indices), _numbers(call, x)
    if known is None or shape is None or how != "none":
        return call.emit("scatter_nd", [x, indices, updates], reduction=how)
    depth = known.shape[-1]
    rows = np.ravel_multi_index(tuple(_wrapped(known[..., k], shape[k]) for k in range(depth)), shape[:depth])
    inner = int(np.prod(shape[depth:], dtype=np.int64))
    return _gathered(call, x, updates, rows.reshape(-1, 1) * inner + np.arange(inner))


def _numbers(call: Call, x: str) -> tuple[int, ...] | None:
    """The shape; None where it holds symbols, or no elements."""
    shape = tuple(d for d in call.shape(x) if isinstance(d, int))
    return shape if len(shape) == call.rank(x) and 0 not in shape else None


def _wrapped(indices: np.ndarray, extent: int) -> np.ndarray:
    try:
        return wrap_indices(indices, extent)
    except IndexError as error:
        raise InvalidNode(str(error)) from error


def _gathered(call: Call, x: str, updates: str, flat: np.ndarray) -> str:
    """`flat` are the places in x of the updates, in their order: each place of x takes its last one, or stays."""
    total = call.graph.types[x].static_shape
    if not flat.size:
        return call.emit("identity", [x])
    last = np.full(total, -1, np.int64).reshape(-1)
    np.maximum.at(last, flat.reshape(-1), np.arange(flat.size))
    rows = call.reshape(updates, (product(call.shape(updates)),))
    new = call.emit("gather", [rows, call.graph.add_constant(np.maximum(last, 0).reshape(total))], axis=0)
    return call.emit("where", [call.graph.add_constant((last >= 0).reshape(total)), new, x])


def tensor_scatter(call: Call) -> str:
    past, update, starts = call.input(0), call.input(1), call.optional(2)
    axis = call.axis(call.int_attribute("axis", -2), call.rank(past))
    length, extent = call.shape(update)[axis], call.shape(past)[axis]
    place = _along(call, call.emit("iota", [], extent=extent, dtype=DType.I64), axis, call.rank(past))
    if starts is not None:
        place = call.emit("sub", [place, _along(call, call.cast(starts, DType.I64), 0, call.rank(past))])
    if call.string_attribute("mode", "linear") == "circular":
        place = call.emit("mod", [place, _number(call, extent)])
    zero = call.graph.scalar(0, DType.I64)
    inside = call.emit("and", [call.emit("greater_equal", [place, zero]),
                               call.emit("less", [place, _number(call, length)])])  # fmt: skip
    index = call.emit("expand", [call.emit("where", [inside, place, zero])], shape=call.shape(past))
    return call.emit("where", [inside, call.emit("gather_elements", [update, index], axis=axis), past])


def _along(call: Call, vector: str, axis: int, rank: int) -> str:
    """A vector as it broadcasts along one axis."""
    extent = call.shape(vector)[0]
    return call.reshape(vector, tuple(extent if k == axis else 1 for k in range(rank)))


def _number(call: Call, number: object) -> str:
    """A dimension as a value."""
    if isinstance(number, int):
        return call.graph.scalar(number, DType.I64)
    return call.reshape(call.emit("dims", [], values=(number,)), ())


# ---- orders ----------------------------------------------------------------------------------------------------------
def reverse_sequence(call: Call) -> str:
    x, rank = call.input(0), call.rank(call.input(0))
    time, batch = (call.axis(call.int_attribute(n, d), rank) for n, d in (("time_axis", 0), ("batch_axis", 1)))
    if {time, batch} != {0, 1}:
        raise InvalidNode(f"its time axis is {time} and its batch axis {batch}: they must be 0 and 1")
    lengths = _along(call, call.cast(call.input(1), DType.I64), batch, rank)
    place = _along(call, call.emit("iota", [], extent=call.shape(x)[time], dtype=DType.I64), time, rank)
    back = call.emit("sub", [call.emit("sub", [lengths, call.graph.scalar(1, DType.I64)]), place])
    index = call.emit("where", [call.emit("less", [place, lengths]), back, place])
    return call.emit("gather_elements", [x, call.emit("expand", [index], shape=call.shape(x))], axis=time)


def top_k(call: Call) -> tuple[str | None, ...]:
    """The first ones in order; those that need not be `sorted` are in order too."""
    x = call.input(0)
    axis = call.axis(call.int_attribute("axis", -1), call.rank(x))
    k = call.int_attribute("k") if call.version < 10 else call.dims(1)[0]
    largest = bool(call.int_attribute("largest", 1)) if call.version >= 11 else True
    made = call.graph.producer(call.emit("top_k", [x], k=k, axis=axis, largest=largest))
    assert made is not None
    return made.outputs


def max_unpool(call: Call) -> str:
    """Indices count through the whole output that the attributes ask for; a larger `output_shape` adds zeros."""
    x, places = call.input(0), call.input(1)
    kernel = call.ints_attribute("kernel_shape") or ()
    count = len(kernel)
    strides, pads = call.ints_attribute("strides") or (1,) * count, call.ints_attribute("pads") or (0,) * (2 * count)
    if call.rank(x) != count + 2 or len(strides) != count or len(pads) != 2 * count:
        raise InvalidNode(f"it has a kernel of {count} axes, {len(strides)} strides and {len(pads)} pads")
    small = call.shape(x)[2:]
    spatial = tuple((d - 1) * s + k - pads[a] - pads[count + a]
                    for a, (d, s, k) in enumerate(zip(small, strides, kernel, strict=True)))  # fmt: skip
    whole = (*call.shape(x)[:2], *spatial)
    zeros = call.emit("fill", [], shape=(product(whole),), value=0, dtype=call.dtype(x))
    rows = [call.reshape(v, (product(call.shape(v)),)) for v in (places, x)]
    out = call.reshape(call.emit("scatter_elements", [zeros, *rows], axis=0, reduction="none"), whole)
    if not call.has(2):
        return out
    ends = tuple(want - have for want, have in zip(call.dims(2), whole, strict=True))
    if not all(isinstance(e, int) for e in ends):
        call.unsupported("its output shape depends on input shapes; give the shapes of the inputs")
    return call.emit("pad", [out], pads=((0,) * len(ends)) + ends, mode="constant", value=0) if any(ends) else out


_INDEXED = ("iota", "sub", "less", "where", "expand", "gather_elements", "reshape", "cast")
IMPORTS: tuple[Import, ...] = (
    Import("Scatter", (9, 11), scatter_elements, ("scatter_elements", "gather", "where", "identity", "reshape")),
    Import("ScatterElements", (11, 13, 16, 18), scatter_elements,
           ("scatter_elements", "gather", "where", "identity", "reshape")),
    Import("ScatterND", (11, 13, 16, 18), scatter_nd, ("scatter_nd", "gather", "where", "identity", "reshape")),
    Import("TensorScatter", (24,), tensor_scatter, (*_INDEXED, "mod", "and", "greater_equal", "dims")),
    Import("ReverseSequence", (10, 28), reverse_sequence, _INDEXED),
    Import("TopK", (1, 10, 11, 24), top_k, ("top_k",)),
    Import("MaxUnpool", (9, 11, 22), max_unpool, ("fill", "scatter_elements", "reshape", "pad")),
    direct("Det", (11, 22), "determinant"),
)  # fmt: skip
