"""Tidying the axes of a freshly lowered program: fewer, longer, lane last.

squeeze_buffers   dimensions of extent 1 leave the buffers
merge_axes        (b, s) of a row-major [B, S, N] become one axis of extent B*S wherever every access allows it
order_axes        the axis with the most unit-stride traffic comes last in every tile: vector lanes run along it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from opfuse.ir.dims import Dim
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder
from opfuse.ir.scalar import Position, Scalar, substitute
from opfuse.ir.structure import Axis
from opfuse.tile.program import (
    Buffer,
    Carry,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Reduce,
    Rename,
    Statement,
    Store,
    Tile,
    loop_axes,
    positions,
    shape_axes,
    statements,
)  # fmt: skip

FULL_ENOUGH = 0.85  # share of the fullest panels for which an inner axis is preferred


# ---- rewriting a program ---------------------------------------------------------------------------------------------
def map_program(
    program: Program,
    tile: Callable[[Tile], Tile],
    access: Callable[[Buffer, tuple[Index, ...]], tuple[Index, ...]],
    buffer: Callable[[Buffer], Buffer],
    axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]],
    place: Callable[[Position | Index], Position | Index] = lambda i: i,
) -> Program:
    """A copy of a one-phase program with its tiles, accesses, buffers and axis lists mapped.

    `place` maps the positions in formulas and the bounds of loops.
    """

    def leaf(x: Scalar) -> Scalar | None:
        mapped = tile(x) if isinstance(x, Tile) else place(x) if isinstance(x, Position) else None
        return mapped if not isinstance(mapped, Index) else None

    def scalar(x: Scalar) -> Scalar:
        return substitute(x, leaf)

    def bound(i: Index | None) -> Index | None:
        mapped = place(i) if i is not None else None
        return mapped if isinstance(mapped, Index) else None

    def statement(s: Statement) -> Statement:
        match s:
            case Load():
                return Load(tile(s.out), buffer(s.buffer), access(s.buffer, s.index), s.pad)
            case Store():
                return Store(tile(s.tile), buffer(s.buffer), access(s.buffer, s.index))
            case Map():
                return Map(tile(s.out), scalar(s.value))
            case Reduce():
                return Reduce(tile(s.out), s.combine, tile(s.tile), axes(s.over))
            case Dot():
                return replace(s, out=tile(s.out), acc=tile(s.acc), a=tile(s.a), b=tile(s.b), over=axes((s.over,))[0])
            case Rename():
                old, new = axes((s.old,))[0], axes((s.new,))[0]
                return Rename(tile(s.out), tile(s.tile), old, new)
            case Loop():
                carries = tuple(Carry(tile(c.tile), scalar(c.init), tile(c.next)) for c in s.carries)
                body = tuple(statement(b) for b in s.body)
                return Loop(axes((s.axis,))[0], carries, body, bound(s.start), bound(s.stop))

    phases = []
    for phase in program.phases:
        assert isinstance(phase, Phase), "lowering makes single phases"
        phases.append(Phase(axes(phase.grid), tuple(statement(s) for s in phase.body)))
    return replace(program, buffers=tuple(buffer(b) for b in program.buffers), phases=tuple(phases))


def accesses(program: Program) -> list[tuple[Buffer, tuple[Index, ...], Load | Store]]:
    return [
        (s.buffer, s.index, s)
        for p in program.flat_phases()
        for s in statements(p.body)
        if isinstance(s, (Load, Store))
    ]


# ---- extent 1 --------------------------------------------------------------------------------------------------------
def squeeze_buffers(program: Program) -> Program:
    """Drop buffer dimensions of extent 1 that every access reads at 0 (a padded access keeps what it may leave)."""
    keep: dict[str, list[int]] = {}
    for b in program.buffers:
        used = {d for c, index, s in accesses(program) if c.name == b.name for d, i in enumerate(index) if i != Index()}
        keep[b.name] = [d for d, extent in enumerate(b.shape) if extent != 1 or d in used]

    def buffer(b: Buffer) -> Buffer:
        kept = keep[b.name]
        strides = tuple(b.strides[d] for d in kept) if b.strides is not None else None
        return replace(b, shape=tuple(b.shape[d] for d in kept), strides=strides)

    return map_program(
        program, lambda t: t, lambda b, index: tuple(index[d] for d in keep[b.name]), buffer, lambda a: a
    )


# ---- merging ---------------------------------------------------------------------------------------------------------
def merge_axes(program: Program) -> Program:
    program = squeeze_buffers(program)
    while (pair := _mergeable(program)) is not None:
        program = _merge(program, *pair)
    return program


def _plain(i: Index) -> str | None:
    """The axis that an index is, alone."""
    match i.terms:
        case ((AxisTerm(name), 1),) if i.const == 0:
            return name
        case _:
            return None


def _parts(i: Index) -> list[tuple[str, str]]:
    """Pairs of axes in one index that may be the parts of one axis."""
    names = [t.name for t, _ in i.terms if isinstance(t, AxisTerm)]
    return [(p, q) for p in names for q in names if p != q] if len(names) > 1 else []


def _mergeable(program: Program) -> tuple[Axis, Axis] | None:
    phase = next(program.flat_phases())
    by_name = {a.name: a for a in (*phase.grid, *shape_axes(phase.body))}
    candidates: dict[tuple[str, str], None] = {}
    for _, index, _ in accesses(program):
        pairs = [(_plain(first), _plain(second)) for first, second in zip(index, index[1:], strict=False)]
        pairs += [pair for i in index for pair in _parts(i)]
        for p, q in pairs:
            if p is not None and q is not None and p in by_name and q in by_name:
                candidates[p, q] = None
    for p, q in candidates:
        if _may_merge(program, phase, by_name[p], by_name[q]):
            return by_name[p], by_name[q]
    return None


def _may_merge(program: Program, phase: Phase, p: Axis, q: Axis) -> bool:
    """Every access has both, in neighbouring dimensions that they walk whole, or neither; so has every tile."""
    loops = loop_axes(phase.body)
    if p in loops or q in loops or (p in phase.grid) != (q in phase.grid):
        return False
    shapes: dict[str, int | None] = {}
    for buffer, index, _ in accesses(program):
        where = _place(buffer, index, p, q)
        if where == NOWHERE or (buffer.name in shapes and shapes[buffer.name] != where):
            return False
        shapes[buffer.name] = where
    for s in statements(phase.body):
        if isinstance(s, Map) and {p.name, q.name} & set(positions(s.value)):
            return False
        if isinstance(s, Reduce) and (p in s.over) != (q in s.over):
            return False
        if isinstance(s, Dot) and s.over in (p, q):
            return False
        if isinstance(s, Rename) and {s.old, s.new} & {p, q}:
            return False
        if isinstance(s, Loop):
            bounds = [i for i in (s.start, s.stop) if i is not None]
            if any({p.name, q.name} & i.axes for i in bounds):
                return False
    return all((p in t.axes) == (q in t.axes) for s in statements(phase.body) for t in _tiles(s))


def _tiles(s: Statement) -> tuple[Tile, ...]:
    from opfuse.tile.program import made, read

    return (*made(s), *read(s))


NOWHERE = -1


def _place(buffer: Buffer, index: tuple[Index, ...], p: Axis, q: Axis) -> int | None:
    """The dimension of p, followed by q; None where neither stands in the index; NOWHERE where they cannot merge here.

    Parts of one axis in one dimension d (.. + p*extent(q)*c + q*c) give `-2 - d`.
    """
    mentioned = {n for i in index for n in i.axes} & {p.name, q.name}
    if not mentioned:
        return None
    holders = [d for d, i in enumerate(index) if mentioned & i.axes]
    if len(holders) == 1 and len(mentioned) == 2:
        i = index[holders[0]]
        c = i.coefficient(q.name)
        parts = c != 0 and i.coefficient(p.name) == c * q.extent
        inside = [t for t, _ in i.terms if isinstance(t, (Quotient, Remainder)) and mentioned & t.numerator.axes]
        return -2 - holders[0] if parts and not inside else NOWHERE
    if any(isinstance(t, Gathered) for i in index for t, _ in i.terms) and buffer.strides is not None:
        return NOWHERE
    for d in range(len(index) - 1):
        if _plain(index[d]) == p.name and _plain(index[d + 1]) == q.name:
            others = {n for k, i in enumerate(index) if k not in (d, d + 1) for n in i.axes}
            if others & {p.name, q.name} or buffer.shape[d] != p.extent or buffer.shape[d + 1] != q.extent:
                return NOWHERE
            strides = buffer.element_strides
            return d if strides[d] == strides[d + 1] * q.extent else NOWHERE
    return NOWHERE


def _merge(program: Program, p: Axis, q: Axis) -> Program:
    merged = Axis(p.name + q.name if len(p.name + q.name) < 12 else p.name + "_", p.extent * q.extent)
    places = {b.name: _place(b, index, p, q) for b, index, _ in accesses(program)}

    def axes(names: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(merged if a == p else a for a in names if a != q)

    def access(b: Buffer, index: tuple[Index, ...]) -> tuple[Index, ...]:
        d = places[b.name]
        if d is None:
            return index
        if d < 0:  # parts of one axis
            c = index[-2 - d].coefficient(q.name)
            joined = index[-2 - d] - p.index * (c * q.extent) - q.index * c + merged.index * c
            return (*index[: -2 - d], joined, *index[-1 - d :])
        return (*index[:d], merged.index, *index[d + 2 :])

    def buffer(b: Buffer) -> Buffer:
        d = places.get(b.name)
        if d is None or d < 0:
            return b
        shape = (*b.shape[:d], merged.extent, *b.shape[d + 2 :])
        strides = (*b.strides[:d], b.strides[d + 1], *b.strides[d + 2 :]) if b.strides is not None else None
        return replace(b, shape=shape, strides=strides)

    return map_program(program, lambda t: replace(t, axes=axes(t.axes)), access, buffer, axes)


# ---- order -----------------------------------------------------------------------------------------------------------
def order_axes(program: Program) -> Program:
    """Sort the axes of every tile by unit-stride traffic, least first; ties keep the order of the grid and the walk."""
    rank = {name: k for k, name in enumerate(sorted_axes(program))}

    def tile(t: Tile) -> Tile:
        return replace(t, axes=tuple(sorted(t.axes, key=lambda a: rank[a.name])))

    return map_program(program, tile, lambda b, index: index, lambda b: b, lambda a: a)


def sorted_axes(program: Program) -> list[str]:
    traffic: dict[str, int] = {}
    for phase in program.flat_phases():
        for a in (*phase.grid, *(a for s in statements(phase.body) for t in _tiles(s) for a in t.axes)):
            traffic.setdefault(a.name, 0)
        for s in statements(phase.body):
            if isinstance(s, (Load, Store)):
                for a in (s.out if isinstance(s, Load) else s.tile).axes:
                    if linear_stride(s.buffer, s.index, a.name) == 1:
                        traffic[a.name] += volume(s.out if isinstance(s, Load) else s.tile)
    return sorted(traffic, key=lambda n: traffic[n])


def linear_stride(buffer: Buffer, index: tuple[Index, ...], name: str) -> Dim | None:
    """Elements between neighbours along an axis; None where the address is not linear in it."""
    total: Dim = 0
    for i, stride in zip(index, buffer.element_strides, strict=True):
        if any(name in i_.numerator.axes for i_, _ in i.terms if not isinstance(i_, (AxisTerm, Gathered))):
            return None
        total = total + i.coefficient(name) * stride
    return total


def fullest(sizes: Sequence[int], most: int) -> int:
    """Which of several extents, innermost first, is best cut into panels of at most `most` rows: 7 by 6 are 4 and 3."""
    rows = [n / max(-(-n // most), 1) for n in sizes]
    return next(k for k, n in enumerate(rows) if n >= max(rows) * FULL_ENOUGH)


def volume(t: Tile, nominal: Mapping[str, int] | int = 64) -> int:
    """Elements of the whole index space of a tile; run-time extents count as `nominal`."""
    out = 1
    for a in t.axes:
        out *= a.extent if isinstance(a.extent, int) else nominal if isinstance(nominal, int) else nominal[a.name]
    return out
