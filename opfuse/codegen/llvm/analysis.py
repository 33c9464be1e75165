"""What a phase is, asked by the planner: which axes are live, which one the lanes run along, what is made where.

live(t)        axes of which a tile holds more than one element
lane(space)    the axis along which vectors run where `space` is looped over
streamed(r)    does a pass complete this reduction, or a loop inside of a pass?
inner(loop)    do its carried tiles stay in registers?
stored(t)      read from scratch, or made on demand?   walk(t): everything made on demand for it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from opfuse.codegen.llvm.layout import contiguity
from opfuse.codegen.llvm.passes import (
    Sink,
    keeps,
    reads_of_sink,
)
from opfuse.ir.dims import Dim, product
from opfuse.ir.index import AxisTerm
from opfuse.ir.scalar import FUNCTIONS, Apply, walk
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.axes import linear_stride
from opfuse.tile.program import (
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Reduce,
    Rename,
    Statement,
    Store,
    Tile,
    gathers,
    loop_axes,
    made,
    operands,
    phase_axes,
    positions,
    read,
    shape_axes,
    statements,
)
from opfuse.tile.schedule import Schedule

STRIDED = 2.0  # vector operations for an element of a gather or scatter: a cycle of the three that do two or three
DOT_READS = 2  # an operand of a dot is read at each step of its sum, for several rows at a time


PAGE = 4096  # bytes: lines this far apart fall into one set of an L1 cache of 64 sets
WAYS = 16  # more lines than a set holds
REUSED = 48  # rows that read the columns: below, a copy of them costs more than it saves


@dataclass(frozen=True)
class Visit:
    """A tile evaluated on demand in a pass, and the space (axes looped over) at which that happens."""

    tile: Tile
    space: frozenset[Axis]


class Analysis:
    """Answers from the program, the schedule and the target; only `keep`, the tiles kept so far, changes."""

    def __init__(self, name: str, phase: Phase, schedule: Schedule, target: Target) -> None:
        self.name, self.phase, self.schedule, self.target = name, phase, schedule, target
        self.in_shapes = shape_axes(phase.body)
        self.axes = {a.name: a for a in phase_axes(phase)}
        self.definitions: dict[str, Statement] = {}
        self.tiles: dict[str, Tile] = {}
        self.owner: dict[str, tuple[Loop, ...]] = {}  # tile -> the loops around the statement that makes it
        self._define(phase.body, ())
        self.tile = {a.name: self._tile_size(a) for a in self.axes.values()}
        self.keep: dict[str, tuple[Axis, ...]] = {}  # tile -> order of its scratch; grows while the plan settles
        self._lane_of: dict[frozenset[Axis], Axis | None] = {}
        self._inner: dict[int, bool] = {}

    def _define(self, body: tuple[Statement, ...], around: tuple[Loop, ...]) -> None:
        for s in body:
            for t in made(s):
                self.definitions[t.name], self.tiles[t.name], self.owner[t.name] = s, t, around
            if isinstance(s, Loop):
                self._define(s.body, (*around, s))

    def _tile_size(self, a: Axis) -> Dim:
        loops = {x.name for x in (*self.phase.grid, *loop_axes(self.phase.body))}
        if a not in self.in_shapes:
            return 1
        size = self.schedule.tile.get(a.name, a.extent) if a.name in loops else a.extent
        if isinstance(size, int) and isinstance(a.extent, int):
            size = min(size, a.extent)
        return max(size, 1) if isinstance(size, int) and a.name in loops else size

    # ---- axes ------------------------------------------------------------------------------------------------------
    def live(self, t: Tile) -> tuple[Axis, ...]:
        return tuple(a for a in t.axes if self.tile[a.name] != 1)

    def store_space(self, s: Store) -> frozenset[Axis]:
        named = {self.axes[n] for i in s.index for n in i.axes}
        return frozenset(a for a in named | set(s.tile.axes) if a in self.in_shapes and self.tile[a.name] != 1)

    @cached_property
    def accesses(self) -> list[Load | Store]:
        return [s for s in statements(self.phase.body) if isinstance(s, (Load, Store))]

    def lane(self, space: frozenset[Axis]) -> Axis | None:
        """The axis along which vectors cost least: neighbours lie side by side in memory, and many lanes are filled."""
        if space not in self._lane_of:
            self._lane_of[space] = min(self._ordered(space), key=lambda a: self._lane_cost(a, space), default=None)
        return self._lane_of[space]

    def _ordered(self, space: frozenset[Axis]) -> list[Axis]:
        """In the order in which tiles list them, innermost first (so that ties go to the innermost)."""
        order = {a.name: k for t in self.tiles.values() for k, a in enumerate(t.axes)}
        return sorted(space, key=lambda a: (-order.get(a.name, 0), a.name))

    def _accesses_of(self, space: frozenset[Axis]) -> list[Load | Store]:
        """What passes over this space read and write: loads that its tiles are made of, stores of what they make."""
        here = [t for t in self.tiles.values() if frozenset(self.live(t)) == space]
        if not here:
            return self.accesses
        behind = self._behind(here, space)
        return [
            s for s in self.accesses
            if (s.out.name in behind if isinstance(s, Load) else self._behind([s.tile], space) & {t.name for t in here})
        ]  # fmt: skip

    def _behind(self, tiles: list[Tile], space: frozenset[Axis]) -> set[str]:
        """Tiles that these are made of, themselves included; results of other spaces' sums are made in other passes."""
        found, todo = {t.name for t in tiles}, list(tiles)
        while todo:
            t = todo.pop()
            s = self.definitions[t.name]
            if isinstance(s, (Reduce, Dot, Loop)) and frozenset(self.live(t)) != space:
                continue
            new = [x for x in self._sources(s, t.name) if x.name not in found]
            found.update(x.name for x in new)
            todo += new
        return found

    def _sources(self, s: Statement, name: str) -> tuple[Tile, ...]:
        """What a tile is made of, directly."""
        if isinstance(s, Loop):
            carry = next(c for c in s.carries if c.tile.name == name)
            return (*operands(carry.init), carry.next)
        return _all_reads(s, self.tiles)

    def _lane_cost(self, a: Axis, space: frozenset[Axis]) -> float:
        """Vector operations an element: accesses and arithmetic, the dearer the more lanes stay empty."""
        size, lanes = self.tile[a.name], self.target.lanes()
        filled = max(1, min(size, lanes)) if isinstance(size, int) else lanes
        strided = unit = 0
        for x in self._accesses_of(space):
            times = DOT_READS if isinstance(x, Load) and x.out.name in self._operands else 1
            match contiguity(x, a, self.schedule, self.tiles):
                case "strided":
                    strided += times
                case "unit":
                    unit += times
                case "same":
                    pass
        maps = [s for s in self.definitions.values() if isinstance(s, Map) and frozenset(self.live(s.out)) == space]
        operations = sum(FUNCTIONS[x.function].cost for s in maps for x in walk(s.value) if isinstance(x, Apply))
        return strided * STRIDED + (unit + operations) / filled

    @cached_property
    def _operands(self) -> frozenset[str]:
        """Tiles that a dot reads, and what those are made of point by point."""
        todo = [t for s in self.definitions.values() if isinstance(s, Dot) for t in (s.a, s.b)]
        found: set[str] = set()
        while todo:
            t = todo.pop()
            found.add(t.name)
            s = self.definitions[t.name]
            todo += [x for x in operands(s.value) if x.name not in found] if isinstance(s, Map) else []
        return frozenset(found)

    # ---- kinds of statements ---------------------------------------------------------------------------------------
    def streamed(self, s: Reduce) -> bool:
        """Does a pass complete this reduction (True), or a loop inside of one (False)?"""
        space = frozenset(self.live(s.tile))
        lane = self.lane(space)
        return not self.live(s.out) or lane is None or lane in s.over

    def inner(self, loop: Loop) -> bool:
        if id(loop) not in self._inner:
            self._inner[id(loop)] = self._can_run_inside(loop)
        return self._inner[id(loop)]

    def _can_run_inside(self, loop: Loop) -> bool:
        spaces = {frozenset(self.live(c.tile)) for c in loop.carries}
        if len(spaces) != 1 or any(t.name in self.keep for s in loop.body for t in made(s)):
            return False
        (space,) = spaces
        here = {t.name for s in loop.body for t in made(s)}
        for s in loop.body:
            match s:
                case Loop():
                    if not self.inner(s) or frozenset(self.live(s.carries[0].tile)) != space:
                        return False
                case Store() | Rename():
                    return False
                case Reduce():
                    if self.streamed(s) or frozenset(self.live(s.out)) != space:
                        return False
                case Dot():
                    operands_here = [t for t in (s.a, s.b) if t.name in here]
                    if frozenset(self.live(s.out)) != space or not all(self.direct(t, s) for t in operands_here):
                        return False
                case Map():
                    if not set(self.live(s.out)) <= space and not self._cast_of_load(s):
                        return False
                case Load():
                    pass
        return True

    def direct(self, t: Tile, dot: Dot) -> bool:
        """Can a dot read this operand as it stands in memory: along the lanes, or one element for all of them?"""
        s = self.definitions[t.name]
        if isinstance(s, Map) and self._cast_of_load(s):
            (source,) = operands(s.value)
            s = self.definitions[source.name]
        if not isinstance(s, Load):
            return False
        if any(dot.over in self.tiles[g].axes for g in gathers(s.index)):  # another place at each step of the sum
            return False
        lane = self.lane(frozenset(self.live(dot.out)))
        if lane is None:
            return True
        return contiguity(s, lane, self.schedule, self.tiles) != "strided" and not self._aliases(s, dot, lane)

    def _aliases(self, s: Load, dot: Dot, lane: Axis) -> bool:
        """Do the rows of columns that are read again and again lie whole pages apart, in few sets of the L1 cache?"""
        rows = [self.tile[a.name] for a in self.live(dot.out) if a not in s.out.axes]
        if lane not in s.out.axes or dot.over in loop_axes(self.phase.body) or s.buffer.name in self.schedule.pack:
            return False
        stride, depth = linear_stride(s.buffer, s.index, dot.over.name), self.tile[dot.over.name]
        return (
            isinstance(stride, int) and stride * s.buffer.dtype.bytes % PAGE == 0 and stride != 0
            and isinstance(depth, int) and depth >= WAYS and any(not isinstance(n, int) or n >= REUSED for n in rows)
        )  # fmt: skip

    def _cast_of_load(self, s: Map) -> bool:
        match s.value:
            case Apply("cast", (Tile() as t,), _):
                return isinstance(self.definitions[t.name], Load)
            case _:
                return False

    def stored(self, t: Tile) -> bool:
        """Is the tile read from scratch (or a register that holds a finished reduction) rather than made on demand?"""
        s = self.definitions[t.name]
        if t.name in self.keep or isinstance(s, Rename):
            return True
        return (isinstance(s, Reduce) and self.streamed(s)) or (isinstance(s, Loop) and not self.inner(s))

    def heavy(self, t: Tile) -> bool:
        """Does making it on demand run a loop?"""
        if self.stored(t):
            return False
        s = self.definitions[t.name]
        if isinstance(s, Map):
            return any(self.heavy(x) for x in operands(s.value))
        return not isinstance(s, Load)

    # ---- the grid --------------------------------------------------------------------------------------------------
    @cached_property
    def grid(self) -> tuple[Axis, ...]:
        """Grid axes in the order of the schedule, outermost first; those that it does not name follow."""
        named = [a for n in self.schedule.order for a in self.phase.grid if a.name == n]
        return (*named, *(a for a in self.phase.grid if a not in named))

    @property
    def made_early(self) -> frozenset[str]:
        """Tiles that the innermost grid axes do not reach, where that is used (see `Once`)."""
        if self.outer is None:
            return frozenset()
        early = [s for s, k in zip(self.phase.body, self.levels, strict=True) if k <= self.outer]
        return frozenset(t.name for s in early for t in made(s))

    @property
    def outer(self) -> int | None:
        """How many of the outermost grid axes reach the work that not all axes reach: loops, and kept tiles."""
        work = [k for s, k in zip(self.phase.body, self.levels, strict=True) if k < len(self.grid) and self._is_work(s)]
        return max(work) if work and len(self.grid) > 1 else None

    def _is_work(self, s: Statement) -> bool:
        return isinstance(s, (Reduce, Dot, Loop)) or any(t.name in self.keep for t in made(s))

    @cached_property
    def levels(self) -> list[int]:
        """For each statement of the phase, how many of the outermost grid axes it depends on."""
        level: dict[str, int] = {}
        position = {a.name: k + 1 for k, a in enumerate(self.grid)}
        levels = []
        for s in self.phase.body:
            inside = list(statements((s,)))
            names = {n for x in inside for n in _axes_named(x)}
            tiles = [t.name for x in inside for t in _all_reads(x, self.tiles)]
            k = max([0, *(position.get(n, 0) for n in names), *(level.get(t, 0) for t in tiles)])
            levels.append(len(self.grid) if any(isinstance(x, Store) for x in inside) else k)
            level.update({t.name: levels[-1] for x in inside for t in made(x)})
        return levels

    # ---- what a sink evaluates on demand ---------------------------------------------------------------------------
    def visits(self, sink: Sink, space: frozenset[Axis]) -> Iterator[Visit]:
        """All tiles that a sink evaluates or reads."""
        seen: set[tuple[str, bool]] = set()
        for t in reads_of_sink(sink):
            yield from self.walk(t, space, keeps(sink), seen)

    def walk(self, t: Tile, space: frozenset[Axis], top: bool, seen: set[tuple[str, bool]]) -> Iterator[Visit]:
        """The tiles evaluated on demand for `t`, parents first. `space` grows inside loops.

        The walk ends at stored tiles, but goes into `t` itself where `top` says that a sink makes it.
        """
        if (t.name, bool(space)) in seen:
            return
        seen.add((t.name, bool(space)))
        yield Visit(t, space)
        s = self.definitions[t.name]
        if isinstance(s, Rename):  # the same scratch, read at other places
            yield from self.walk(s.tile, space | {s.new}, False, seen)
        if self.stored(t) and not top:
            return
        for x, inner_space in self._demands(t, space):
            yield from self.walk(x, inner_space, False, seen)

    def _demands(self, t: Tile, space: frozenset[Axis]) -> Iterator[tuple[Tile, frozenset[Axis]]]:
        s = self.definitions[t.name]
        match s:
            case Load():
                yield from ((self.tiles[g], space) for g in gathers(s.index))
            case Map():
                yield from ((x, space) for x in operands(s.value))
            case Dot():
                yield s.acc, space
                yield from ((x, space | {s.over}) for x in (s.a, s.b))
            case Reduce() if not self.streamed(s):
                yield s.tile, space | frozenset(s.over)
            case Loop() if self.inner(s):
                for c in s.carries:
                    yield from ((x, space) for x in operands(c.init))
                    yield c.next, space | {s.axis}
            case _:
                pass

    # ---- scratch ---------------------------------------------------------------------------------------------------
    def order(self, t: Tile) -> tuple[Axis, ...]:
        """Order of a tile's scratch: the lanes innermost, or what a dot asked for."""
        if self.keep.get(t.name):
            return self.keep[t.name]
        live = self.live(t)
        lane = self.lane(frozenset(live))
        return tuple(a for a in live if a != lane) + ((lane,) if lane else ())

    def scratch_shape(self, t: Tile, order: tuple[Axis, ...]) -> tuple[Dim, ...]:
        shape = [self.tile[a.name] for a in order]
        if shape and isinstance(shape[-1], int):
            lanes = self.target.lanes()
            shape[-1] = -(-shape[-1] // lanes) * lanes
        return tuple(shape)

    def scratch_bytes(self, t: Tile, order: tuple[Axis, ...]) -> Dim:
        return product(self.scratch_shape(t, order)) * held_bytes(t.dtype)


def may_alias(load: Load, store: Store) -> bool:
    """Could the planner have put the store's buffer on the load's? Only where the index maps are the same."""
    a, b = load.buffer, store.buffer
    return a.role == "in" and a.dtype.bytes == b.dtype.bytes and a.shape == b.shape and load.index == store.index


def held_bytes(dtype: DType) -> int:
    """Bytes of an element in scratch, where half precision is held as a float."""
    return max(dtype.bytes, 4) if dtype.is_float else dtype.bytes


def _axes_named(s: Statement) -> set[str]:
    """Names of axes that a statement depends on by itself."""
    match s:
        case Load():
            return {n for i in s.index for n in i.axes} | {a.name for a in s.out.axes}
        case Store():
            return {n for i in s.index for n in i.axes}
        case Map():
            return set(positions(s.value)) | {a.name for a in s.out.axes}
        case Loop():
            bounds = [i for i in (s.start, s.stop) if i is not None]
            named = {t.name for i in bounds for t, _ in i.terms if isinstance(t, AxisTerm)}
            return (
                named
                | {n for c in s.carries for n in positions(c.init)}
                | {a.name for c in s.carries for a in c.tile.axes}
            )
        case Reduce() | Dot() | Rename():
            return {a.name for a in s.out.axes}


def _all_reads(s: Statement, tiles: Mapping[str, Tile]) -> tuple[Tile, ...]:
    extra = tuple(tiles[g] for g in gathers(s.index)) if isinstance(s, (Load, Store)) else ()
    return (*read(s), *extra)
