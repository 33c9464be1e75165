"""Movement: the output holds the input's values at other places. All are index maps, so fusion folds them into reads.

    transpose(perm) reshape(shape) expand(shape) slice(starts, stops, steps) concat(xs..., axis) tile(repeats)
    pad(x; pads, mode, value)

Squeeze, unsqueeze and flatten are reshapes; a split is slices. `pad` by "edge" and "reflect" expands into slices and
concat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import Dim, ceildiv, dims_text, product
from opfuse.ir.index import Index, flatten, remainder, split
from opfuse.ir.ops.broadcast import broadcast, extents_of, normal_axis, output_axes, position, require_one_dtype
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.scalar import Const, Operand, Position, Scalar, apply, const, extent
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph


def _moves(call: Call, axes: tuple[Axis, ...], index: Sequence[Index]) -> Structure:
    return Structure(axes, (Access(0, tuple(index)),), Operand(0, call.output.dtype))


def _zero_flops(call: Call) -> Dim:
    return 0


# ---- transpose -------------------------------------------------------------------------------------------------------
def _infer_transpose(call: Call) -> TensorType:
    perm = tuple(call["perm"])
    if sorted(perm) != list(range(call.type(0).rank)):
        raise OperatorError(f"perm {perm} is no permutation of the {call.type(0).rank} dimensions")
    return TensorType(call.type(0).dtype, tuple(call.shape(0)[p] for p in perm))


def _transpose_structure(call: Call) -> Structure:
    axes, perm = output_axes(call.output.shape), tuple(call["perm"])
    return _moves(call, axes, [axes[perm.index(d)].index for d in range(len(perm))])


# ---- reshape ---------------------------------------------------------------------------------------------------------
def _infer_reshape(call: Call) -> TensorType:
    shape = tuple(call["shape"])
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise OperatorError(f"shape [{dims_text(shape)}] has a negative dimension")
    # Two products of symbols may turn out equal (an extent divisible by 32): only a known difference is refused.
    excess = product(shape) - call.type(0).elements
    if isinstance(excess, int) and excess != 0:
        raise OperatorError(
            f"[{dims_text(call.shape(0))}] has {call.type(0).elements} elements, "
            f"[{dims_text(shape)}] has {product(shape)}"
        )
    return TensorType(call.type(0).dtype, shape)


def matching_groups(before: Sequence[Dim], after: Sequence[Dim]) -> list[tuple[range, range]]:
    """Runs of dimensions of two shapes with equal products, in order.

    (B, S, 6) and (B*S, 2, 3) -> [(range(0, 2), range(0, 1)), (range(2, 3), range(1, 3))]
    """
    cuts = [(0, 0)]
    left = [product(before[:k]) for k in range(len(before) + 1)]
    right = [product(after[:k]) for k in range(len(after) + 1)]
    for i in range(1, len(before)):
        j = next((j for j in range(max(cuts[-1][1], 1), len(after)) if right[j] == left[i]), None)
        if j is not None and i > cuts[-1][0]:
            cuts.append((i, j))
    cuts.append((len(before), len(after)))
    return [(range(a, c), range(b, d)) for (a, b), (c, d) in zip(cuts, cuts[1:], strict=False)]


def _reshape_structure(call: Call) -> Structure:
    axes, source = output_axes(call.output.shape), call.shape(0)
    if any(d == 0 for d in source):
        return _moves(call, axes, [Index()] * len(source))  # no point is ever read
    extents = extents_of(*axes)
    index: list[Index] = []
    for inputs, outputs in matching_groups(source, call.output.shape):
        flat = flatten([position(axes[k]) for k in outputs], [axes[k].extent for k in outputs], extents)
        index += split(flat, [source[k] for k in inputs], extents)
    return _moves(call, axes, index)


# ---- expand, slice, tile ---------------------------------------------------------------------------------------------
def _infer_expand(call: Call) -> TensorType:
    return TensorType(call.type(0).dtype, broadcast(call.shape(0), call["shape"]))


def _expand_structure(call: Call) -> Structure:
    axes, source = output_axes(call.output.shape), call.shape(0)
    aligned = axes[len(axes) - len(source) :]
    return _moves(call, axes, [Index() if d == 1 else a.index for d, a in zip(source, aligned, strict=True)])


def slice_extent(start: Dim, stop: Dim, step: int) -> Dim:
    count = ceildiv(stop - start, step) if step > 0 else ceildiv(start - stop, -step)
    return max(count, 0) if isinstance(count, int) else count


def _leaves(place: Dim, extent: Dim) -> bool:
    """Proven outside [0, extent)."""
    return isinstance(place, int) and (place < 0 or (isinstance(extent, int) and place >= extent))


def _infer_slice(call: Call) -> TensorType:
    shape, rank = call.shape(0), call.type(0).rank
    starts, stops, steps = call["starts"], call["stops"], call["steps"]
    if not len(starts) == len(stops) == len(steps) == rank:
        raise OperatorError(f"starts, stops and steps must have {rank} numbers each")
    if 0 in steps:
        raise OperatorError("a step is 0")
    out = tuple(map(slice_extent, starts, stops, steps))
    for d, (start, count, step) in enumerate(zip(starts, out, steps, strict=True)):
        ends = (start, start + (count - 1) * step) if count != 0 else ()
        if any(_leaves(e, shape[d]) for e in ends):
            raise OperatorError(f"the slice {start}:{stops[d]}:{step} leaves dimension {d} of extent {shape[d]}")
    return TensorType(call.type(0).dtype, out)


def _slice_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    return _moves(
        call,
        axes,
        [position(a) * step + start for a, start, step in zip(axes, call["starts"], call["steps"], strict=True)],
    )


def _slice_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    # A stop of -1 with a negative step means "before the first element", which Python spells None.
    cut = (
        slice(b, None if e < 0 else e, s)
        for b, e, s in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
    )
    return np.asarray(arrays[0][tuple(cut)])


def _infer_tile(call: Call) -> TensorType:
    repeats = tuple(call["repeats"])
    if len(repeats) != call.type(0).rank:
        raise OperatorError(f"{len(repeats)} repeats for {call.type(0).rank} dimensions")
    return TensorType(call.type(0).dtype, tuple(d * r for d, r in zip(call.shape(0), repeats, strict=True)))


def _tile_structure(call: Call) -> Structure:
    axes, source = output_axes(call.output.shape), call.shape(0)
    extents = extents_of(*axes)
    return _moves(
        call,
        axes,
        [a.index if a.extent == d else remainder(a.index, d, extents) for a, d in zip(axes, source, strict=True)],
    )


# ---- concat ----------------------------------------------------------------------------------------------------------
MANY_PARTS = 16


def _infer_concat(call: Call) -> TensorType:
    if not call.inputs:
        raise OperatorError("nothing to concatenate")
    dtype = require_one_dtype(call)
    axis, first = normal_axis(call["axis"], call.type(0).rank), call.shape(0)
    total: Dim = 0
    for k in range(len(call.inputs)):
        shape = call.shape(k)
        if len(shape) != len(first) or any(
            a != b for d, (a, b) in enumerate(zip(shape, first, strict=True)) if d != axis
        ):
            raise OperatorError(f"[{dims_text(first)}] and [{dims_text(shape)}] do not join along axis {axis}")
        total = total + shape[axis]
    return TensorType(dtype, (*first[:axis], total, *first[axis + 1 :]))


def _concat_structure(call: Call) -> Structure:
    """The first input below the first offset, and so on. Each read may leave its input, hence the pads."""
    axes, axis, dtype = output_axes(call.output.shape), call["axis"], call.output.dtype
    count = len(call.inputs)
    pad = const(0, dtype) if count > 1 else None
    assert pad is None or isinstance(pad, Const)
    reads, ends = list[Access](), list[Dim]()
    offset: Dim = 0
    for k in range(count):
        index = tuple(a.index - offset if d == axis else a.index for d, a in enumerate(axes))
        reads.append(Access(k, index, pad))
        offset = offset + call.shape(k)[axis]
        ends.append(offset)

    def picked(first: int, last: int) -> Scalar:
        """One of the inputs from `first` to `last`; of many by halves, so that no formula is hundreds of calls deep."""
        if first == last:
            return Operand(first, dtype)
        middle = (first + last) // 2 if last - first >= MANY_PARTS else first
        below = apply("lt", Position(axes[axis].name), extent(ends[middle]))
        return apply("select", below, picked(first, middle), picked(middle + 1, last))

    return Structure(axes, tuple(reads), picked(0, count - 1))


# ---- pad -------------------------------------------------------------------------------------------------------------
PAD_MODES = ("constant", "reflect", "edge")


def _infer_pad(call: Call) -> TensorType:
    rank, pads = call.type(0).rank, tuple(call["pads"])
    if call["mode"] not in PAD_MODES:
        raise OperatorError(f"mode {call['mode']!r} is none of {', '.join(PAD_MODES)}")
    if len(pads) != 2 * rank:
        raise OperatorError(f"{len(pads)} pads for {rank} dimensions, must be {2 * rank}")
    shape = call.shape(0)
    out = tuple(d + pads[k] + pads[rank + k] for k, d in enumerate(shape))
    for k, d in enumerate(shape):
        kept = d + min(pads[k], 0) + min(pads[rank + k], 0)  # what negative pads leave
        if isinstance(kept, int) and kept < 0:
            raise OperatorError(f"pads {pads[k]} and {pads[rank + k]} take more than the {d} elements of dimension {k}")
        widest = max(pads[k], pads[rank + k])
        if call["mode"] == "reflect" and isinstance(kept, int) and widest > 0 and widest >= kept:
            raise OperatorError(f"a reflection of {widest} needs more than the {kept} elements of dimension {k}")
        if call["mode"] == "edge" and kept == 0 and widest > 0:
            raise OperatorError(f"dimension {k} is empty: it has no edge to repeat")
    return TensorType(call.type(0).dtype, out)


def _pad_structure(call: Call) -> Structure:
    axes, pads = output_axes(call.output.shape), call["pads"]
    value = const(call["value"], call.output.dtype)
    assert isinstance(value, Const)
    index = tuple(a.index - pads[k] for k, a in enumerate(axes))
    return Structure(
        axes, (Access(0, index, value if any(p > 0 for p in pads) else None),), Operand(0, call.output.dtype)
    )


def _expand_pad(g: Graph, call: Call, inputs: tuple[str | None, ...]) -> tuple[str, ...]:
    """Dimension after dimension: concat(border before, x, border after), after what negative pads take away."""
    x, rank, pads = str(inputs[0]), call.type(0).rank, call["pads"]
    for k in range(rank):
        if pads[k] < 0 or pads[rank + k] < 0:
            x = _cut(g, x, k, max(-pads[k], 0), g.types[x].shape[k] - max(-pads[rank + k], 0))
        n = g.types[x].shape[k]
        before, after = max(pads[k], 0), max(pads[rank + k], 0)
        parts = [x]
        reflect = call["mode"] == "reflect"
        if before:
            border = _cut(g, x, k, before, 0, -1) if reflect else _repeat(g, _cut(g, x, k, 0, 1), k, before)
            parts = [border, *parts]
        if after:
            last = n - 1
            parts.append(_cut(g, x, k, last - 1, last - 1 - after, -1) if reflect
                         else _repeat(g, _cut(g, x, k, last, n), k, after))  # fmt: skip
        x = g.emit("concat", parts, {"axis": k}) if len(parts) > 1 else x
    return (x,)


def _cut(g: Graph, x: str, axis: int, start: Dim, stop: Dim, step: int = 1) -> str:
    shape = g.types[x].shape
    return g.emit("slice", [x], {
        "starts": tuple(start if d == axis else 0 for d in range(len(shape))),
        "stops": tuple(stop if d == axis else e for d, e in enumerate(shape)),
        "steps": tuple(step if d == axis else 1 for d in range(len(shape))),
    })  # fmt: skip


def _repeat(g: Graph, x: str, axis: int, count: int) -> str:
    return g.emit("expand", [x], {"shape": tuple(count if d == axis else e for d, e in enumerate(g.types[x].shape))})


def _pad_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    x, pads = arrays[0], attrs["pads"]
    rank = x.ndim
    x = x[tuple(slice(max(-pads[k], 0), x.shape[k] - max(-pads[rank + k], 0)) for k in range(rank))]
    if not rank:
        return np.asarray(x)
    width = [(max(pads[k], 0), max(pads[rank + k], 0)) for k in range(rank)]
    if attrs["mode"] == "constant":
        return np.pad(x, width, constant_values=np.asarray(attrs["value"]).astype(x.dtype))
    return np.pad(x, width, mode=attrs["mode"])


# ---- table -----------------------------------------------------------------------------------------------------------
def _plain(
    name: str, infer: Any, function: Any, attrs: tuple[str, ...], structure: Any, samples: tuple[Sample, ...]
) -> Operator:
    def oracle(attributes: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
        return np.asarray(function(arrays[0], *(attributes[a] for a in attrs)))

    return Operator(name, Kind.STRUCTURED, ("x",), infer, oracle, dict.fromkeys(attrs, REQUIRED), structure,
                    flops=_zero_flops, samples=samples)  # fmt: skip


_WHOLE = np.arange(24).reshape(2, 3, 4)
_TRANSPOSE = _plain(
    "transpose", _infer_transpose, np.transpose, ("perm",), _transpose_structure,
    (
        Sample(((3, 5),), {"perm": (1, 0)}),
        Sample(((2, 3, 4, 5),), {"perm": (0, 2, 3, 1)}),
        Sample(((2, 3, 4),), {"perm": (2, 0, 1)}),
        Sample(((),), {"perm": ()}),
        Sample((_WHOLE,), {"perm": (1, 2, 0)}),
        Sample(((0, 3),), {"perm": (1, 0)}),
    ),
)  # fmt: skip
_RESHAPE = _plain(
    "reshape", _infer_reshape, np.reshape, ("shape",), _reshape_structure,
    (
        Sample(((2, 3, 4),), {"shape": (6, 4)}),
        Sample(((6, 4),), {"shape": (2, 3, 2, 2)}),
        Sample(((2, 9),), {"shape": (3, 6)}),
        Sample(((4, 3, 5),), {"shape": (2, 15, 1, 2)}),
        Sample(((1, 1),), {"shape": ()}),
        Sample(((),), {"shape": (1, 1)}),
        Sample(((1, 7, 1, 2),), {"shape": (7, 2, 1)}),
        Sample(((0, 3),), {"shape": (3, 0, 5)}),
        Sample((_WHOLE,), {"shape": (24,)}),
    ),
)  # fmt: skip
_EXPAND = _plain(
    "expand",
    _infer_expand,
    lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)),
    ("shape",),
    _expand_structure,
    (
        Sample(((3, 1),), {"shape": (2, 3, 5)}),
        Sample(((3, 4),), {"shape": (4,)}),
        Sample(((),), {"shape": (2, 2)}),
        Sample(((1, 2),), {"shape": (0, 1)}),
        Sample((np.array([[True], [False]]),), {"shape": (2, 3)}),
    ),
)
_TILE = _plain(
    "tile", _infer_tile, np.tile, ("repeats",), _tile_structure,
    (
        Sample(((2, 3),), {"repeats": (2, 1)}),
        Sample(((1, 3, 2),), {"repeats": (4, 2, 3)}),
        Sample((np.arange(3),), {"repeats": (0,)}),
    ),
)  # fmt: skip
_SLICE = Operator(
    "slice",
    Kind.STRUCTURED,
    ("x",),
    _infer_slice,
    _slice_oracle,
    dict.fromkeys(("starts", "stops", "steps"), REQUIRED),
    _slice_structure,
    flops=_zero_flops,
    samples=(
        Sample(((5, 7),), {"starts": (1, 0), "stops": (4, 7), "steps": (1, 3)}),
        Sample(((5, 7),), {"starts": (4, 6), "stops": (-1, 2), "steps": (-1, -2)}),
        Sample((_WHOLE,), {"starts": (1, 0, 3), "stops": (2, 0, 4), "steps": (1, 1, 1)}),
        Sample(((),), {"starts": (), "stops": (), "steps": ()}),
    ),
)
_CONCAT = Operator(
    "concat",
    Kind.STRUCTURED,
    ("xs*",),
    _infer_concat,
    lambda attrs, arrays: np.concatenate(arrays, axis=attrs["axis"]),
    {"axis": REQUIRED},
    _concat_structure,
    flops=_zero_flops,
    samples=(
        Sample(((2, 3), (2, 5)), {"axis": 1}),
        Sample(((1, 3, 2), (4, 3, 2), (2, 3, 2)), {"axis": 0}),
        Sample(((0, 2), (1, 2)), {"axis": 0}),
        Sample(((3,),), {"axis": 0}),
        Sample((np.array([[True]]), np.array([[False]]), np.array([[True]]), np.array([[True]])), {"axis": 1}),
        Sample((np.array([np.nan, -0.0], np.float32), np.array([np.inf], np.float32)), {"axis": 0}),
    ),
)
_PAD = Operator(
    "pad",
    Kind.STRUCTURED,
    ("x",),
    _infer_pad,
    _pad_oracle,
    {"pads": REQUIRED, "mode": "constant", "value": 0},
    _pad_structure,
    _expand_pad,
    needs_expansion=lambda call: call["mode"] != "constant",
    flops=_zero_flops,
    samples=(
        Sample(((2, 3),), {"pads": (1, 0, 0, 2), "value": 5.0}),
        Sample(((1, 4),), {"pads": (0, -1, 0, 1)}),
        Sample(((3, 4),), {"pads": (1, 2, 2, 3), "mode": "reflect"}),
        Sample(((3, 1),), {"pads": (1, 2, 0, 3), "mode": "edge"}),
        Sample((np.arange(6).reshape(2, 3),), {"pads": (0, 1, 1, 0), "value": -1}),
        Sample(((0, 2),), {"pads": (1, 0, 1, 0), "value": float("-inf")}),
        Sample(((2, 5),), {"pads": (0, -1, 0, 2), "mode": "edge"}),
        Sample(((0, 5),), {"pads": (0, 1, 0, 2), "mode": "edge"}),
    ),
)

OPERATORS: tuple[Operator, ...] = (_TRANSPOSE, _RESHAPE, _EXPAND, _SLICE, _CONCAT, _TILE, _PAD)
