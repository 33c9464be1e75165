"""Operators whose number of results depends on data: known where their inputs are constants, declined otherwise.

NonZero(constant), Unique(constant), NonMaxSuppression(constants)   -> constants
Compress(x, constant condition)                                     -> gather(x, constant places)
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode, Unsupported
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import product


def _known(call: Call, k: int) -> np.ndarray:
    """Input k; Unsupported, with the inputs of the model that it follows from, where it is no constant."""
    value = call.input(k)
    call.contents.fix_defaults(value)
    found = call.contents.array(value)
    if found is None:
        _depends(call, value)
    return found


def _depends(call: Call, value: str) -> NoReturn:
    raise Unsupported("how many results it has depends on data", call.behind(value))


def non_zero(call: Call) -> str:
    return call.graph.add_constant(np.asarray(np.nonzero(np.atleast_1d(_known(call, 0))), np.int64))


def compress(call: Call) -> str:
    """The places along an axis, or in the flattened tensor, where the condition holds; it may be shorter."""
    x, places = call.input(0), np.flatnonzero(_known(call, 1)).astype(np.int64)
    axis = call.int_attribute("axis") if call.attribute("axis") is not None else None
    if axis is None:
        x, axis = call.reshape(x, (product(call.shape(x)),)), 0
    axis = call.axis(axis, call.rank(x))
    extent = call.shape(x)[axis]
    if places.size and isinstance(extent, int) and places[-1] >= extent:
        raise InvalidNode(f"its condition holds at {places[-1]}, its axis has {extent} elements")
    return call.emit("gather", [x, call.graph.add_constant(places)], axis=axis)


def unique(call: Call) -> tuple[str | None, ...]:
    """In ascending order, or in that of their first places; those, each element's number, and how often it stands."""
    x = _known(call, 0)
    axis = call.int_attribute("axis") if call.attribute("axis") is not None else None
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = call.axis(axis, x.ndim)
    _, first, inverse, counts = np.unique(
        _comparable(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(first.size) if call.int_attribute("sorted", 1) else np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    made = (np.take(x, first[order], axis=axis), first[order], rank[inverse.reshape(-1)], counts[order])
    results = [made[0], *(np.asarray(m, np.int64) for m in made[1:])]
    return tuple(call.graph.add_constant(np.ascontiguousarray(r)) for r in results)


def _comparable(x: np.ndarray) -> Any:
    """NumPy has no order for the types that it does not know."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


# ---- boxes -----------------------------------------------------------------------------------------------------------
def non_max_suppression(call: Call) -> str:
    """(batch, class, box) of each box kept: the best first, without those that overlap a better one too much."""
    boxes, scores = _known(call, 0).astype(np.float64), _known(call, 1)
    most = int(call.item(2)) if call.has(2) else 0
    overlap, least = (float(call.item(k)) if call.has(k) else d for k, d in ((3, 0.0), (4, -np.inf)))
    corners = _corners(boxes, bool(call.int_attribute("center_point_box", 0)))
    kept: list[tuple[int, int, int]] = []
    for batch, one in np.ndindex(*scores.shape[:2]):
        chosen: list[int] = []
        for place in np.argsort(-scores[batch, one], kind="stable"):
            if len(chosen) >= most or not scores[batch, one, place] > least:
                break
            if all(_overlap(corners[batch, place], corners[batch, c]) <= overlap for c in chosen):
                chosen.append(int(place))
        kept += [(batch, one, c) for c in chosen]
    return call.graph.add_constant(np.array(kept, np.int64).reshape(-1, 3))


def _corners(boxes: np.ndarray, centred: bool) -> Any:
    """(y0, x0, y1, x1), the smaller first; given as corners in any order, or as (x, y, width, height) of the centre."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union."""
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    common = float(np.prod(sides))
    union = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - common
    return common / union if union > 0 else 0.0


IMPORTS: tuple[Import, ...] = (
    Import("NonZero", (9, 13), non_zero, ()),
    Import("Compress", (9, 11, 28), compress, ("gather", "reshape")),
    Import("Unique", (11, 28), unique, ()),
    Import("NonMaxSuppression", (10, 11), non_max_suppression, ()),
)
