"""The tile IR, whole: what one kernel does, over tiles.

A `Program` is phases over buffers; a `Phase` is a grid of independent tiles, and a grid-wide step parts two phases; a
body is a list of statements in single assignment. A tile's shape is a tuple of *axes*, never of numbers: how much of an
axis one tile holds is in the `Schedule`. Axes broadcast by name, so there is no reshape, transpose, expand or mask.

    grid axis   cut by the schedule, its tiles run in any order       (r of LayerNorm, m and n of a GEMM)
    loop axis   cut by the schedule, its tiles run in order           (k of a GEMM, the keys of attention)
    whole axis  in neither grid nor loop: a tile holds all of it      (n of LayerNorm, d of attention)
    point axis  a grid or loop axis that no tile's shape lists: steps of one   (window taps, parts of split K)

What lies outside an axis' extent has no value: a printer keeps it out of reduce, dot and store. A load's `pad` is
another thing: the value the *model* gives to places outside the buffer.

    linear + bias + relu:
    phase grid(m, n):
      bias = load Bias[n]
      loop k carry acc = bias -> next:
        a = load A[m, k]; w = load W[k, n]; next = dot(acc, a, w, over k)
      y = map relu(acc); store y -> Y[m, n]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from opfuse.ir.dims import Dim, product, symbols
from opfuse.ir.index import Gathered, Index
from opfuse.ir.scalar import Apply, Const, Leaf, Position, Scalar, walk
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType

Role = Literal["in", "out", "weight", "scratch"]


@dataclass(frozen=True)
class Halo:
    """Rows that a buffer keeps around its data, and the value that its producer writes there. Part of the layout."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Buffer:
    """An argument of the kernel. `strides` are in elements; None means row-major without gaps.

    `weight` buffers are constants, which a schedule may have packed; `scratch` lives between two phases only.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    role: Role = "in"
    strides: tuple[Dim, ...] | None = None
    halo: Halo | None = None

    @property
    def element_strides(self) -> tuple[Dim, ...]:
        if self.strides is not None:
            return self.strides
        return tuple(product(self.shape[d + 1 :]) for d in range(len(self.shape)))


@dataclass(frozen=True)
class Tile(Leaf):
    """A value of the program; also a leaf of scalar expressions."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType = DType.F32

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Load:
    """out[axes] = buffer[index]. `Gathered` terms name integer tiles made earlier, whose axes `out` lists too."""

    out: Tile
    buffer: Buffer
    index: tuple[Index, ...]
    pad: Const | None = None  # None: no read leaves the buffer


@dataclass(frozen=True)
class Store:
    tile: Tile
    buffer: Buffer
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Map:
    """out[axes] = expression over tiles (broadcast by axis name), positions and constants."""

    out: Tile
    value: Scalar


@dataclass(frozen=True)
class Reduce:
    """out = tile reduced along `over`; NaN anywhere gives NaN, for max and min too."""

    out: Tile
    combine: str  # one of ir.structure.COMBINERS
    tile: Tile
    over: tuple[Axis, ...]


@dataclass(frozen=True)
class Dot:
    """out[..] = acc[..] + sum over `over` of a[..] * b[..]; axes of a and b may stand in any order.

    Products are made and summed in the type of `acc`. Axes that a, b and out share are a batch.
    """

    out: Tile
    acc: Tile
    a: Tile
    b: Tile
    over: Axis
    precision: str = "ieee"  # GPU tensor cores may be allowed "tf32", "tf32x3": it changes numbers, so it stands here


@dataclass(frozen=True)
class Rename:
    """out[.., new, ..] = tile[.., old, ..]: a tile along another axis of the same extent; both axes are whole.

    How a recurrence uses what it made along columns as the rows of the next step's product.
    """

    out: Tile
    tile: Tile
    old: Axis
    new: Axis


@dataclass(frozen=True)
class Carry:
    """A value carried round a loop: `tile` at the top of the body and after the loop, `init` first, then `next`."""

    tile: Tile
    init: Scalar
    next: Tile


@dataclass(frozen=True)
class Loop:
    """Runs over [start, stop) of the axis (all of it where None), clipped to the extent, carrying tiles.

    A grid axis in a bound means its first index in the tile for `start` and its last for `stop`. All carries change at
    once at the end of the body.
    """

    axis: Axis
    carries: tuple[Carry, ...]
    body: tuple[Statement, ...]
    start: Index | None = None
    stop: Index | None = None


Statement = Load | Store | Map | Reduce | Dot | Rename | Loop


@dataclass(frozen=True)
class Phase:
    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Beside:
    """Phases that read nothing of each other and run in one launch: the tiles of all are one grid.

    Axes, tiles and outputs are each phase's own; inputs may be shared. Where the outermost grid axes have as many tiles
    each, the phases take turns tile by tile along them, so that what both read is still near.
    """

    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class Repeat:
    """Phases run once for each point of an axis, in order (recurrences)."""

    axis: Axis
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class Program:
    name: str
    buffers: tuple[Buffer, ...]
    phases: tuple[Phase | Beside | Repeat, ...]
    origin: tuple[str, ...] = field(default=(), compare=False)  # the user's node names

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of run-time extents, sorted: the kernel's integer arguments."""
        found: set[str] = set()
        for b in self.buffers:
            for d in (*b.shape, *(b.strides or ())):
                found |= symbols(d)
        for phase in self.flat_phases():
            for a in phase_axes(phase):
                found |= symbols(a.extent)
        return tuple(sorted(found))

    def flat_phases(self) -> Iterator[Phase]:
        for p in self.phases:
            if isinstance(p, Phase):
                yield p
            else:
                yield from p.phases

    def apart(self) -> tuple[Program, ...]:
        """Each phase as a program of its own, with the buffers that it touches."""
        out = []
        for phase in self.flat_phases():
            used = {s.buffer.name for s in statements(phase.body) if isinstance(s, (Load, Store))}
            out.append(replace(self, buffers=tuple(b for b in self.buffers if b.name in used), phases=(phase,)))
        return tuple(out)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)


# ---- questions that every printer asks -------------------------------------------------------------------------------
def operands(value: Scalar) -> tuple[Tile, ...]:
    """The tiles that an expression reads, each once, in order."""
    return tuple(dict.fromkeys(x for x in walk(value) if isinstance(x, Tile)))


def positions(value: Scalar) -> tuple[str, ...]:
    return tuple(dict.fromkeys(x.axis for x in walk(value) if isinstance(x, Position)))


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those inside loops too, in order."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from statements(s.body)


def made(s: Statement) -> tuple[Tile, ...]:
    match s:
        case Load() | Map() | Reduce() | Dot() | Rename():
            return (s.out,)
        case Loop():
            return tuple(c.tile for c in s.carries)
        case _:
            return ()


def read(s: Statement) -> tuple[Tile, ...]:
    """Tiles that a statement reads directly (for a loop: by its initial values)."""
    match s:
        case Store() | Rename():
            return (s.tile,)
        case Map():
            return operands(s.value)
        case Reduce():
            return (s.tile,)
        case Dot():
            return (s.acc, s.a, s.b)
        case Loop():
            return tuple(t for c in s.carries for t in operands(c.init))
        case _:
            return ()


def gathers(index: tuple[Index, ...]) -> tuple[str, ...]:
    return tuple(t.source for i in index for t, _ in i.terms if isinstance(t, Gathered) and isinstance(t.source, str))


def loop_axes(body: tuple[Statement, ...]) -> frozenset[Axis]:
    return frozenset(s.axis for s in statements(body) if isinstance(s, Loop))


def shape_axes(body: tuple[Statement, ...]) -> frozenset[Axis]:
    """Axes that some tile's shape lists. A grid or loop axis outside this set is a point axis."""
    found: set[Axis] = set()
    for s in statements(body):
        for t in (*made(s), *read(s)):
            found |= set(t.axes)
    return frozenset(found)


def phase_axes(phase: Phase) -> frozenset[Axis]:
    return frozenset(phase.grid) | loop_axes(phase.body) | shape_axes(phase.body)


def whole_axes(phase: Phase) -> frozenset[Axis]:
    return shape_axes(phase.body) - frozenset(phase.grid) - loop_axes(phase.body)


__all__ = [
    "Apply", "Axis", "Beside", "Buffer", "Carry", "Const", "Dot", "Halo", "Leaf", "Load", "Loop", "Map", "Phase",
    "Position", "Program", "Reduce", "Rename", "Repeat", "Role", "Statement", "Store", "Tile", "gathers", "loop_axes",
    "made", "operands", "phase_axes", "positions", "read", "shape_axes", "statements", "whole_axes",
]  # fmt: skip
