"""Movement: reshapes, slices, joins, pads. All numbers are resolved, from attributes or inputs as the version has it.

Reshape(x [B, S, 384], [0, 0, 12, -1])         -> reshape(x, shape=(B, S, 12, 32))
Slice-10(x, starts=[-2], ends=[MAX], axes=[1]) -> slice(x, starts=(0, S-2), stops=(B, S), steps=(1, 1))
Split(x [8, 6], axis=1) into 2                 -> slice 0:3, slice 3:6
"""

from __future__ import annotations

from collections.abc import Sequence

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.equal_dims import require_equal
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.frontends.onnx.shapes import reshape_target, slice_bounds
from opfuse.ir.dims import Dim, SymbolicDim, ceildiv, floordiv, product

_WIDENED = (21, 23, 24, 25)  # versions that only admit more element types


# ---- shapes --------------------------------------------------------------------------------------------------------
def reshape(call: Call) -> str:
    x = call.input(0)
    if call.inputs[1:] and call.rank(call.input(1)) != 1:
        raise InvalidNode(f"its shape is a tensor of rank {call.rank(call.input(1))}, and must have rank 1")
    target = reshape_target(call.dims(1), call.shape(x), bool(call.int_attribute("allowzero", 0)))
    return call.emit("reshape", [x], shape=target)


def flatten(call: Call) -> str:
    x = call.input(0)
    rank = call.rank(x)
    axis = call.int_attribute("axis", 1)
    if not -rank <= axis <= rank:
        raise InvalidNode(f"axis {axis} is outside a tensor of rank {rank}")
    axis += rank if axis < 0 else 0
    return call.emit("reshape", [x], shape=(product(call.shape(x)[:axis]), product(call.shape(x)[axis:])))


def _given_axes(call: Call) -> tuple[int, ...] | None:
    """Axes from the input (version 13 on) or the attribute; None where they are left out."""
    if call.version >= 13:
        return call.integers(1) if call.has(1) else None
    return call.ints_attribute("axes")


def squeeze(call: Call) -> str:
    x = call.input(0)
    shape, given = call.shape(x), _given_axes(call)
    if given is None:
        if unknown := [d for d in shape if isinstance(d, SymbolicDim)]:
            call.needs_shapes(f"it drops all dimensions of size 1, and whether {unknown[0]} is 1 is not known")
        axes: tuple[int, ...] = tuple(k for k, d in enumerate(shape) if d == 1)
    else:
        axes = call.axes(given, len(shape))
    if wrong := [k for k in axes if isinstance(shape[k], int) and shape[k] != 1]:
        raise InvalidNode(f"dimension {wrong[0]} of size {shape[wrong[0]]} cannot be dropped")
    for k in axes:
        require_equal(shape[k], 1)
    return call.emit("reshape", [x], shape=tuple(d for k, d in enumerate(shape) if k not in axes))


def unsqueeze(call: Call) -> str:
    x, given = call.input(0), _given_axes(call)
    if given is None:
        raise InvalidNode("its axes are missing")
    rest = list(call.shape(x))
    axes = call.axes(given, len(rest) + len(given))
    shape = [1 if k in axes else rest.pop(0) for k in range(len(rest) + len(axes))]
    return call.emit("reshape", [x], shape=tuple(shape))


def expand(call: Call) -> str:
    """Both ways: a dimension of the target that is 1 keeps the input's."""
    x, target = call.input(0), call.dims(1)
    shape = call.shape(x)
    rank = max(len(target), len(shape))
    pairs = zip((1,) * (rank - len(shape)) + shape, (1,) * (rank - len(target)) + target, strict=True)
    out: list[Dim] = []
    for have, want in pairs:
        if have == want or want == 1:
            out.append(have)
        elif have == 1 or isinstance(have, SymbolicDim):
            out.append(want)
        elif isinstance(want, SymbolicDim):
            out.append(have)
        else:
            raise InvalidNode(f"shape {list(shape)} does not expand to {list(target)}")
    return call.emit("expand", [x], shape=tuple(out))


def transpose(call: Call) -> str:
    x = call.input(0)
    perm = call.ints_attribute("perm")
    return call.emit("transpose", [x], perm=perm if perm is not None else tuple(reversed(range(call.rank(x)))))


# ---- slices --------------------------------------------------------------------------------------------------------
def _slice(call: Call, x: str, cuts: dict[int, tuple[Dim, Dim, int]]) -> str:
    """Slice by axis -> (start, stop, step) as ONNX writes them."""
    starts: list[Dim] = []
    stops: list[Dim] = []
    steps: list[int] = []
    for k, extent in enumerate(call.shape(x)):
        start, stop, step = cuts.get(k, (0, extent, 1))
        if step == 0:
            raise InvalidNode("a step is 0")
        start, stop = slice_bounds(start, stop, step, extent) if k in cuts else (start, stop)
        if isinstance(start, int) and isinstance(stop, int) and (stop - start) * step <= 0:
            start, stop, step = 0, 0, 1  # nothing is left
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    return call.emit("slice", [x], starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def slice_attributes(call: Call) -> str:
    starts, stops = call.ints_attribute("starts") or (), call.ints_attribute("ends") or ()
    return _slice_axes(call, starts, stops, call.ints_attribute("axes"), None)


def slice_inputs(call: Call) -> str:
    axes, steps = (call.integers(k) if call.has(k) else None for k in (3, 4))
    return _slice_axes(call, call.dims(1), call.dims(2), axes, steps)


def _slice_axes(call: Call, starts: Sequence[Dim], stops: Sequence[Dim], axes: Sequence[int] | None,
                steps: Sequence[int] | None) -> str:  # fmt: skip
    x = call.input(0)
    axes = range(len(starts)) if axes is None else [call.axis(a, call.rank(x)) for a in axes]
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(stops) == len(axes) == len(steps) or len(starts) > call.rank(x):
        raise InvalidNode(f"it has {len(starts)} starts, {len(stops)} ends, {len(axes)} axes and {len(steps)} steps")
    return _slice(call, x, dict(zip(axes, zip(starts, stops, steps, strict=True), strict=True)))


def split(call: Call) -> tuple[str | None, ...]:
    """Into parts of given sizes (attribute before version 13, then input), or equal parts, the last one smaller."""
    x = call.input(0)
    axis = call.axis(call.int_attribute("axis", 0), call.rank(x))
    extent, count = call.shape(x)[axis], len(call.node.output)
    sizes: Sequence[Dim] | None = (
        call.ints_attribute("split") if call.version < 13 else call.dims(1) if call.has(1) else None
    )
    if sizes is None:
        sizes = _equal_parts(call, extent, call.int_attribute("num_outputs", count) if call.version >= 18 else count)
    if len(sizes) != count:
        raise InvalidNode(f"it splits into {len(sizes)} parts, and has {count} outputs")
    out: list[str | None] = []
    offset: Dim = 0
    for k, size in enumerate(sizes):
        out.append(_part(call, x, axis, offset, offset + size) if call.wants(k) else None)
        offset = offset + size
    if isinstance(offset, int) and isinstance(extent, int) and offset != extent:
        raise InvalidNode(f"its parts have {offset} elements together, and axis {axis} has {extent}")
    return tuple(out)


def _part(call: Call, x: str, axis: int, start: Dim, stop: Dim) -> str:
    shape = call.shape(x)
    starts = tuple(start if k == axis else 0 for k in range(len(shape)))
    stops = tuple(stop if k == axis else d for k, d in enumerate(shape))
    return call.emit("slice", [x], starts=starts, stops=stops, steps=(1,) * len(shape))


def _equal_parts(call: Call, extent: Dim, count: int) -> list[Dim]:
    size = floordiv(extent, count)
    if size * count == extent:
        return [size] * count
    if not isinstance(extent, int):
        call.needs_shapes(f"whether {extent} divides into {count} equal parts is not known")
    if call.version < 18:
        raise InvalidNode(f"{extent} elements do not divide into {count} equal parts")
    size = ceildiv(extent, count)
    return [size] * (count - 1) + [extent - size * (count - 1)]


# ---- joins and borders ---------------------------------------------------------------------------------------------
def concat(call: Call) -> str:
    inputs = call.present()
    axis = call.axis(call.int_attribute("axis"), call.rank(inputs[0]))
    return call.emit("concat", inputs, axis=axis)


def tile(call: Call) -> str:
    return call.emit("tile", [call.input(0)], repeats=call.dims(1))


def pad_attributes(call: Call) -> str:
    return _pad(call, call.ints_attribute("pads") or (), call.float_attribute("value", 0.0))


def pad_inputs(call: Call) -> str:
    x, pads = call.input(0), call.dims(1)
    value = call.item(2) if call.has(2) else 0
    if call.has(3):
        rank = call.rank(x)
        axes = [call.axis(a, rank) for a in call.integers(3)]
        if len(pads) != 2 * len(axes):
            raise InvalidNode(f"it has {len(pads)} pads for {len(axes)} axes")
        full: list[Dim] = [0] * (2 * rank)
        for k, axis in enumerate(axes):
            full[axis], full[rank + axis] = pads[k], pads[len(axes) + k]
        pads = tuple(full)
    return _pad(call, pads, value)


def _pad(call: Call, pads: Sequence[Dim], value: float) -> str:
    x, mode = call.input(0), call.string_attribute("mode", "constant")
    if len(pads) != 2 * call.rank(x):
        raise InvalidNode(f"it has {len(pads)} pads for a tensor of rank {call.rank(x)}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        call.unsupported(f"mode {mode!r} is not supported")
    if not all(isinstance(p, int) for p in pads):
        call.needs_shapes("its pads depend on input shapes")
    if mode == "wrap":
        return _wrapped(call, x, [int(p) for p in pads])  # type: ignore[arg-type]
    return call.emit("pad", [x], pads=tuple(pads), mode=mode, value=value)


def _wrapped(call: Call, x: str, pads: Sequence[int]) -> str:
    """Axis after axis: its end, itself, its beginning. Negative pads take away first."""
    rank = call.rank(x)
    for axis in range(rank):
        before, after = pads[axis], pads[rank + axis]
        x = _part(call, x, axis, max(-before, 0), call.shape(x)[axis] - max(-after, 0))
        extent = call.shape(x)[axis]
        if isinstance(extent, int) and max(before, after) > extent:
            call.unsupported(f"its pads {before} and {after} go round {extent} elements more than once")
        parts = [_part(call, x, axis, extent - before, extent)] if before > 0 else []
        parts += [x, *([_part(call, x, axis, 0, after)] if after > 0 else [])]
        x = call.emit("concat", parts, axis=axis) if len(parts) > 1 else x
    return x


# ---- blocks of space and depth -------------------------------------------------------------------------------------
def depth_to_space(call: Call) -> str:
    x, b = call.input(0), call.int_attribute("blocksize")
    n, c, h, w = _four(call, x)
    inner = floordiv(c, b * b)
    if call.version >= 11 and call.string_attribute("mode", "DCR") == "CRD":
        blocks = call.transpose(call.emit("reshape", [x], shape=(n, inner, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        blocks = call.transpose(call.emit("reshape", [x], shape=(n, b, b, inner, h, w)), (0, 3, 4, 1, 5, 2))
    return call.emit("reshape", [blocks], shape=(n, inner, h * b, w * b))


def space_to_depth(call: Call) -> str:
    x, b = call.input(0), call.int_attribute("blocksize")
    n, c, h, w = _four(call, x)
    high, wide = floordiv(h, b), floordiv(w, b)
    mode = call.string_attribute("mode", "DCR") if call.version >= 28 else "DCR"
    if mode not in ("DCR", "CRD"):
        raise InvalidNode(f"its attribute 'mode' is {mode!r}, not DCR or CRD")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = call.transpose(call.emit("reshape", [x], shape=(n, c, high, b, wide, b)), order)
    return call.emit("reshape", [blocks], shape=(n, c * (b * b), high, wide))


def _four(call: Call, x: str) -> tuple[Dim, ...]:
    if call.rank(x) != 4:
        raise InvalidNode(f"its input has rank {call.rank(x)}, and must have rank 4")
    return call.shape(x)


# ---- shapes as values ----------------------------------------------------------------------------------------------
def shape(call: Call) -> str:
    found = call.shape(call.input(0))
    rank = len(found)
    start, end = (call.int_attribute(n, d) if call.version >= 15 else d for n, d in (("start", 0), ("end", rank)))
    start, end = (min(max(k + rank if k < 0 else k, 0), rank) for k in (start, end))
    return call.emit("dims", [], values=found[start:end])


def size(call: Call) -> str:
    return call.emit("reshape", [call.emit("dims", [], values=(product(call.shape(call.input(0))),))], shape=())


IMPORTS: tuple[Import, ...] = (
    Import("Reshape", (5, 13, 14, 19, *_WIDENED), reshape, ("reshape",)),
    Import("Flatten", (1, 9, 11, 13, *_WIDENED), flatten, ("reshape",)),
    Import("Squeeze", (1, 11, 13, *_WIDENED), squeeze, ("reshape",)),
    Import("Unsqueeze", (1, 11, 13, *_WIDENED), unsqueeze, ("reshape",)),
    Import("Expand", (8, 13), expand, ("expand",)),
    Import("Transpose", (1, 13, *_WIDENED), transpose, ("transpose",)),
    Import("Slice", (1,), slice_attributes, ("slice",)),
    Import("Slice", (10, 11, 13), slice_inputs, ("slice",)),
    Import("Split", (2, 11, 13, 18), split, ("slice",)),
    Import("Concat", (4, 11, 13), concat, ("concat",)),
    Import("Tile", (6, 13), tile, ("tile",)),
    Import("Pad", (2,), pad_attributes, ("pad",)),
    Import("Pad", (11, 13, 18, 19, *_WIDENED), pad_inputs, ("pad", "slice", "concat")),
    Import("DepthToSpace", (1, 11, 13, 28), depth_to_space, ("reshape", "transpose")),
    Import("SpaceToDepth", (1, 13, 28), space_to_depth, ("reshape", "transpose")),
    Import("Shape", (1, 13, 15, 19, *_WIDENED), shape, ("dims",)),
    Import("Size", (1, 13, 19, *_WIDENED), size, ("dims", "reshape")),
)  # fmt: skip
