"""Phase + Schedule + Target -> PassPlan: where passes begin and end, what is kept, which loops carry values in registers.

A loop whose carried tiles are used point by point (GEMM, window) runs *inside* a pass, its carried values in registers;
any other loop (online softmax) runs around passes, its carried tiles in scratch. A reduction along the lane axis, or of
all axes, is *streamed*: it is a pass's sink. One over rows only is a loop inside a pass, like a dot.

The plan is a fixed point: passes are built, then looked through for tiles that must be kept, until there are no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from opfuse.codegen.llvm.layout import Unsupported, contiguity
from opfuse.codegen.llvm.passes import Keep, Once, Pass, PassPlan, Scratch, Sequential, Sink, Step, passes_of
from opfuse.codegen.llvm.scalar_functions import is_costly
from opfuse.ir.dims import Dim, product
from opfuse.ir.index import AxisTerm
from opfuse.ir.scalar import Apply
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.program import (
    Carry, Dot, Load, Loop, Map, Phase, Reduce, Statement, Store, Tile, gathers, loop_axes, made, operands, phase_axes, positions, read,
    shape_axes, statements,
)  # fmt: skip
from opfuse.tile.schedule import Schedule

KEEP_BYTES = 64 << 10  # a tile that could be made again is kept only where it stays in the nearest caches
SCRATCH_LIMIT = 256 << 20


@dataclass(frozen=True)
class Visit:
    """A tile evaluated on demand in a pass, and the space (axes looped over) at which that happens."""

    tile: Tile
    space: frozenset[Axis]


class Planner:
    """Plans one phase. All questions are answered from the program; `keep` alone grows while the plan settles."""

    def __init__(self, name: str, phase: Phase, schedule: Schedule, target: Target) -> None:
        self.name, self.phase, self.schedule, self.target = name, phase, schedule, target
        self.in_shapes = shape_axes(phase.body)
        self.axes = {a.name: a for a in phase_axes(phase)}
        self.definitions: dict[str, Statement] = {}
        self.tiles: dict[str, Tile] = {}
        self.owner: dict[str, tuple[Loop, ...]] = {}  # tile -> the loops around the statement that makes it
        self._define(phase.body, ())
        self.tile = {a.name: self._tile_size(a) for a in self.axes.values()}
        self.keep: dict[str, tuple[Axis, ...]] = {}  # tile -> order of its scratch
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

    # ---- axes --------------------------------------------------------------------------------------------------------
    def live(self, t: Tile) -> tuple[Axis, ...]:
        return tuple(a for a in t.axes if self.tile[a.name] != 1)

    def store_space(self, s: Store) -> frozenset[Axis]:
        named = {self.axes[n] for i in s.index for n in i.axes}
        return frozenset(a for a in named | set(s.tile.axes) if a in self.in_shapes and self.tile[a.name] != 1)

    @cached_property
    def accesses(self) -> list[Load | Store]:
        return [s for s in statements(self.phase.body) if isinstance(s, (Load, Store))]

    def lane(self, space: frozenset[Axis]) -> Axis | None:
        """The axis whose neighbours lie side by side in memory most often; a short axis fills few lanes and counts less."""
        if space not in self._lane_of:
            self._lane_of[space] = max(self._ordered(space), key=self._lane_score, default=None)
        return self._lane_of[space]

    def _ordered(self, space: frozenset[Axis]) -> list[Axis]:
        """In the order in which tiles list them, innermost first (so that ties go to the innermost)."""
        order = {a.name: k for t in self.tiles.values() for k, a in enumerate(t.axes)}
        return sorted(space, key=lambda a: (-order.get(a.name, 0), a.name))

    def _lane_score(self, a: Axis) -> float:
        score = {"same": 0.0, "unit": 1.0, "strided": -1.0}
        total = sum(score[contiguity(x, a, self.schedule, self.tiles)] for x in self.accesses)
        size, lanes = self.tile[a.name], self.target.lanes()
        return total * size / lanes if isinstance(size, int) and size < lanes and total > 0 else total

    # ---- kinds of statements -----------------------------------------------------------------------------------------
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
                case Store():
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
        lane = self.lane(frozenset(self.live(dot.out)))
        return lane is None or contiguity(s, lane, self.schedule, self.tiles) != "strided"

    def _cast_of_load(self, s: Map) -> bool:
        match s.value:
            case Apply("cast", (Tile() as t,), _):
                return isinstance(self.definitions[t.name], Load)
            case _:
                return False

    def stored(self, t: Tile) -> bool:
        """Is the tile read from scratch (or a register that holds a finished reduction) rather than made on demand?"""
        s = self.definitions[t.name]
        if t.name in self.keep:
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

    # ---- building ------------------------------------------------------------------------------------------------------
    def plan(self) -> PassPlan:
        self._check_carries()
        for _ in range(len(self.tiles) + 2):
            steps = self._phase_steps()
            wanted = Keeping(self, steps).wanted()
            if not wanted:
                break
            self.keep.update(wanted)
            self._inner.clear()
        scratch, size = self._place_scratch()
        used = {x.buffer.name: x.buffer for x in self.accesses}
        return PassPlan(
            self.name, self.phase, self.grid, self.tile, steps, scratch, size, self.tiles, self.definitions,
            frozenset(t for t, s in self.definitions.items() if isinstance(s, Reduce) and self.streamed(s)),
            self.axes, tuple(used.values()),
        )  # fmt: skip

    @cached_property
    def grid(self) -> tuple[Axis, ...]:
        """Grid axes in the order of the schedule, outermost first; those that it does not name follow."""
        named = [a for n in self.schedule.order for a in self.phase.grid if a.name == n]
        return (*named, *(a for a in self.phase.grid if a not in named))

    def _phase_steps(self) -> tuple[Step, ...]:
        levels, outer = self._levels, self._outer
        if outer is None:
            return self._body(self.phase.body)
        early = tuple(s for s, k in zip(self.phase.body, levels, strict=True) if k <= outer)
        late = tuple(s for s, k in zip(self.phase.body, levels, strict=True) if k > outer)
        return (Once(outer, self.grid[:outer], self._body(early)), *self._body(late))

    @cached_property
    def made_early(self) -> frozenset[str]:
        """Tiles that the innermost grid axes do not reach, where that is used (see `Once`)."""
        if self._outer is None:
            return frozenset()
        early = [s for s, k in zip(self.phase.body, self._levels, strict=True) if k <= self._outer]
        return frozenset(t.name for s in early for t in made(s))

    @cached_property
    def _outer(self) -> int | None:
        """How many of the outermost grid axes reach the statements with a loop in them that not all axes reach."""
        work = [
            k for s, k in zip(self.phase.body, self._levels, strict=True)
            if isinstance(s, (Reduce, Dot, Loop)) and k < len(self.grid)
        ]  # fmt: skip
        return max(work) if work and len(self.grid) > 1 else None

    @cached_property
    def _levels(self) -> list[int]:
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

    def _body(self, body: tuple[Statement, ...]) -> tuple[Step, ...]:
        steps: list[Step] = []
        for s in body:
            for t in made(s):
                if t.name in self.keep and (not isinstance(s, Loop) or self.inner(s)) and not self._is_streamed(s):
                    self._append(steps, Keep(t, t))
            match s:
                case Store():
                    self._append(steps, s)
                case Reduce() if self.streamed(s):
                    self._append(steps, s)
                case Loop() if not self.inner(s):
                    for c in s.carries:
                        self._append(steps, Keep(c.tile, c.init))
                    inside = list(self._body(s.body))
                    for c in self._assignment_order(s):
                        self._append(inside, Keep(c.tile, c.next))
                    steps.append(Sequential(s, self._finished(inside)))
                case _:
                    pass
        return self._finished(steps)

    def _finished(self, steps: list[Step]) -> tuple[Step, ...]:
        return tuple(self._finish(s) if isinstance(s, Pass) else s for s in steps)

    def _is_streamed(self, s: Statement) -> bool:
        return isinstance(s, Reduce) and self.streamed(s)

    def _append(self, steps: list[Step], sink: Sink) -> None:
        """Into the last pass where it fits there, or into a new one."""
        rows, reduced, lane = self._nest(sink)
        space = frozenset((*rows, *reduced, *((lane,) if lane else ())))
        last = steps[-1] if steps else None
        if isinstance(last, Pass) and last.space == space and last.lane == lane and self._may_join(last, sink):
            if reduced or (isinstance(sink, Reduce) and not last.reduced):
                last = replace(last, rows=rows, reduced=reduced)
            steps[-1] = replace(last, sinks=(*last.sinks, sink))
        else:
            steps.append(Pass(rows, reduced, lane, (1, 1), self.target.lanes(), None, (sink,)))

    def _nest(self, sink: Sink) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Axis | None]:
        """Rows, reduced rows and lane of a sink's loop nest."""
        match sink:
            case Keep(t, _):
                order = self.order(t)
                return order[:-1], (), order[-1] if order else None
            case Reduce():
                space = self.live(sink.tile)
                lane = self.lane(frozenset(space))
                rows = tuple(a for a in space if a not in sink.over and a != lane)
                return rows, tuple(a for a in space if a in sink.over and a != lane), lane
            case Store():
                space_set = self.store_space(sink)
                lane = self.lane(space_set)
                first = [a for a in sink.tile.axes if a in space_set]
                return tuple(a for a in dict.fromkeys((*first, *self._ordered(space_set)[::-1])) if a != lane), (), lane

    def order(self, t: Tile) -> tuple[Axis, ...]:
        """Order of a tile's scratch: the lanes innermost, or what a dot asked for."""
        if self.keep.get(t.name):
            return self.keep[t.name]
        live = self.live(t)
        lane = self.lane(frozenset(live))
        return tuple(a for a in live if a != lane) + ((lane,) if lane else ())

    def _may_join(self, last: Pass, sink: Sink) -> bool:
        """All that the sink needs must be there already, or be made at the same point."""
        reductions = [s for s in last.sinks if isinstance(s, Reduce)]
        if isinstance(sink, Reduce) and any(set(s.over) != set(sink.over) for s in reductions):
            return False
        finished = {s.out.name for s in reductions}
        written = finished | {s.tile.name for s in last.sinks if isinstance(s, Keep)}
        pointwise, whole = self._needs(sink)
        if (pointwise & finished) or (whole & written):
            return False
        # A carried tile that changes in this pass may not be read whole by it, nor read by a later sink at all.
        changed = {s.tile.name for s in last.sinks if isinstance(s, Keep) and s.value != s.tile}
        if pointwise & changed:
            return False
        if isinstance(sink, Keep) and sink.value != sink.tile:
            return not any(sink.tile.name in self._needs(s)[1] for s in (*last.sinks, sink))
        return True

    def _needs(self, sink: Sink) -> tuple[set[str], set[str]]:
        """Stored tiles that a sink reads at its own point, and those that it reads whole (through a dot or a loop)."""
        pointwise: set[str] = set()
        whole: set[str] = set()
        for v in self.visits(sink, frozenset()):
            if self.stored(v.tile) and v.tile.name not in made_by_sink(sink):
                (whole if v.space else pointwise).add(v.tile.name)
            if self.stored(v.tile) and v.space:
                whole.add(v.tile.name)
        return pointwise, whole

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

    def _finish(self, p: Pass) -> Pass:
        """Choose the register tile: several rows and vectors where a dot or a loop runs inside, else a stream of vectors."""
        own = {s.tile.name for s in p.sinks if keeps(s)}
        visited = {v.tile.name: v.tile for s in p.sinks for v in self.visits(s, p.space)}
        makers = [self.definitions[n] for n, t in visited.items() if not self.stored(t) or n in own]
        dots = [s for s in makers if isinstance(s, Dot)]
        loops = [s for s in makers if isinstance(s, Loop) and self.inner(s)]
        wide = any(s.out.dtype.bytes == 8 for s in dots)
        lanes = self.target.lanes(8 if wide else 4)
        kept = [a for a in p.rows]
        if not (dots or loops):
            return replace(p, register=(1, self._vectors(p.lane, lanes, self.schedule.stream)), lanes=lanes)
        batch = {a for s in dots for a in s.a.axes if a in s.b.axes}
        blocked = next((a for a in reversed(kept) if a not in batch), kept[-1] if kept else None)
        rows = tuple(a for a in p.rows if a != blocked) + ((blocked,) if blocked else ())
        register = (self.schedule.register[0] if blocked else 1, self._vectors(p.lane, lanes, self.schedule.register[1]))
        return replace(p, rows=rows, register=register, lanes=lanes, blocked=blocked, dotted=True)

    def _vectors(self, lane: Axis | None, lanes: int, wanted: int) -> int:
        size = self.tile[lane.name] if lane else 1
        return max(1, min(wanted, -(-size // lanes)) if isinstance(size, int) else wanted)

    def _check_carries(self) -> None:
        for s in statements(self.phase.body):
            if isinstance(s, Loop) and not self.inner(s):
                self._assignment_order(s)

    def _assignment_order(self, loop: Loop) -> list[Carry]:
        """Carried tiles change at once in the program, one after the other here: each when no other needs its old value."""
        left, out = list(loop.carries), []
        while left:
            free = [c for c in left if not any(self._reads_carry(o.next, c.tile.name) for o in left if o is not c)]
            if not free:
                raise Unsupported("carry-cycle", f"the tiles carried round {loop.axis.name} need each other's old values",
                                  axis=loop.axis.name, carries=[c.tile.name for c in left])  # fmt: skip
            left.remove(free[0])
            out.append(free[0])
        return out

    def _reads_carry(self, t: Tile, name: str) -> bool:
        return any(v.tile.name == name for v in self.walk(t, frozenset(), False, set()))

    # ---- scratch -----------------------------------------------------------------------------------------------------
    def scratch_shape(self, t: Tile, order: tuple[Axis, ...]) -> tuple[Dim, ...]:
        shape = [self.tile[a.name] for a in order]
        if shape and isinstance(shape[-1], int):
            lanes = self.target.lanes()
            shape[-1] = -(-shape[-1] // lanes) * lanes
        return tuple(shape)

    def scratch_bytes(self, t: Tile, order: tuple[Axis, ...]) -> Dim:
        return product(self.scratch_shape(t, order)) * held_bytes(t.dtype)

    def _place_scratch(self) -> tuple[Mapping[str, Scratch], int]:
        out: dict[str, Scratch] = {}
        at = 0
        for name, t in self.tiles.items():
            s = self.definitions[name]
            local = isinstance(s, Reduce) and self.streamed(s) and not self.live(t) and name not in self.keep
            if not self.stored(t) or local:
                continue
            order = self.order(t)
            shape, bytes_ = self.scratch_shape(t, order), self.scratch_bytes(t, order)
            if not isinstance(bytes_, int):
                raise Unsupported("symbolic-scratch", f"tile {name} must be kept and has a run-time extent",
                                  tile=name, axes=[str(a) for a in order])  # fmt: skip
            strides, size = [], 1
            for n in reversed(shape):
                strides.append(size)
                size *= int(n)  # type: ignore[arg-type]
            room = -(-max(bytes_, held_bytes(t.dtype) * self.target.lanes()) // 64) * 64
            out[name] = Scratch(t.dtype, order, tuple(reversed(strides)), at, room)
            at += room
        if at > SCRATCH_LIMIT:
            raise Unsupported("scratch-size", f"the phase keeps {at} bytes in scratch", bytes=at, limit=SCRATCH_LIMIT)
        return out, at


@dataclass(frozen=True)
class Place:
    """Where a tile is evaluated: in which pass, over which axes, inside which loops."""

    within: Pass
    space: frozenset[Axis]
    around: tuple[Loop, ...]
    early: bool


class Keeping:
    """Looks through built passes for tiles that must, or had better, be kept."""

    def __init__(self, planner: Planner, steps: tuple[Step, ...]) -> None:
        self.p, self.steps = planner, steps
        self.found: dict[str, tuple[Axis, ...]] = {}
        self.first: dict[str, Pass] = {}  # tile -> the pass that makes it first
        self.early: set[str] = set()  # tiles written by passes that run once for several grid tiles
        self.made_early = planner.made_early

    def wanted(self) -> Mapping[str, tuple[Axis, ...]]:
        self._scan(self.steps, (), False)
        self._stores_over_loads()
        return self.found

    def _keep(self, t: Tile, order: tuple[Axis, ...] = ()) -> None:
        if t.name not in self.p.keep:
            self.found.setdefault(t.name, order or self.p.order(t))
        elif order and self.p.keep[t.name] != order:
            self.found[t.name] = order

    def _scan(self, steps: tuple[Step, ...], around: tuple[Loop, ...], early: bool) -> None:
        for s in steps:
            match s:
                case Pass():
                    self._pass(s, around, early)
                case Sequential():
                    self._scan(s.body, (*around, s.loop), early)
                case Once():
                    self._scan(s.body, around, True)
                    self._crossing(s)

    def _crossing(self, once: Once) -> None:
        """What later passes need of the early ones stays in scratch."""
        self.early |= {name for p in passes_of(once.body) for s in p.sinks for name in made_by_sink(s)}
        for p in passes_of(tuple(s for s in self.steps if s is not once)):
            for s in p.sinks:
                for v in self.p.visits(s, p.space):
                    if v.tile.name in self.early:
                        self._keep(v.tile)

    def _pass(self, p: Pass, around: tuple[Loop, ...], early: bool) -> None:
        for s in p.sinks:
            for t in reads_of_sink(s):
                self._visit(t, Place(p, p.space, around, early), keeps(s))
            if isinstance(s, Keep) and isinstance(s.value, Tile) and not keeps(s):
                whole = any(v.tile.name == s.tile.name and v.space for v in self.p.visits(s, frozenset()))
                if whole:  # a carried tile may not change while its next value still reads it
                    self._keep(s.value)

    def _visit(self, t: Tile, at: Place, top: bool = False) -> None:
        """Top-down, so that the widest shared or narrow tile is kept and what is under it is not looked at."""
        planner = self.p
        s = planner.definitions[t.name]
        if (planner.stored(t) and not top) or any(s is loop for loop in at.around):
            return
        if not top and not isinstance(s, Load) and self._must_keep(t, s, at):
            return self._keep(t)
        match s:
            case Map():
                for x in operands(s.value):
                    self._visit(x, at)
            case Load():
                for g in gathers(s.index):
                    self._visit(planner.tiles[g], at)
            case Dot():
                self._visit(s.acc, at)
                self._operands(s, at)
            case Reduce() if not planner.streamed(s):
                over = frozenset(a for a in s.over if planner.tile[a.name] != 1)
                self._visit(s.tile, replace(at, space=at.space | over))
            case Loop() if planner.inner(s):
                for c in s.carries:
                    for x in operands(c.init):
                        self._visit(x, at)
                    self._visit(c.next, replace(at, around=(*at.around, s)))
            case _:
                pass

    def _must_keep(self, t: Tile, s: Statement, at: Place) -> bool:
        """A loop's result is made once, at its own space; a map is kept where that is worth a store."""
        planner = self.p
        live = frozenset(planner.live(t))
        outside = len(planner.owner[t.name]) < len(at.around) or (t.name in self.made_early and not at.early)
        again = outside or self.first.setdefault(t.name, at.within) is not at.within
        if planner.heavy(t):
            return live != at.space or again
        return isinstance(s, Map) and self._worth_keeping(t, live, at, again)

    def _operands(self, s: Dot, at: Place) -> None:
        planner = self.p
        lane = planner.lane(frozenset(planner.live(s.out)))
        for t in (s.a, s.b):
            if planner.stored(t):
                continue
            if planner.direct(t, s):
                self._visit(t, at, True)
                continue
            live = planner.live(t)
            innermost = lane if lane in live else s.over if s.over in live else None
            self._keep(t, tuple(a for a in live if a != innermost) + ((innermost,) if innermost else ()))

    def _worth_keeping(self, t: Tile, live: frozenset[Axis], at: Place, again: bool) -> bool:
        """A map that could be made again: kept where it is dear, or where it saves reading two large arrays."""
        planner = self.p
        bytes_ = planner.scratch_bytes(t, planner.order(t))
        if not isinstance(bytes_, int) or bytes_ > KEEP_BYTES or not live:
            return False
        under = [planner.definitions[v.tile.name] for v in planner.walk(t, at.space, False, set()) if not planner.stored(v.tile)]
        lane = at.within.lane
        if any(isinstance(d, Map) and is_costly(d.value) for d in under):
            return again or (lane in live and bool(at.space - live))
        wide = [d for d in under if isinstance(d, Load) and frozenset(planner.live(d.out)) == live]
        return again and len(wide) > 1

    def _stores_over_loads(self) -> None:
        """An output may be the very memory of an input with the same index map: what is read after the store is kept."""
        written: list[Store] = []
        order = {id(s): k for k, s in enumerate(statements(self.p.phase.body))}
        for p in passes_of(self.steps):
            for s in p.sinks:
                for v in self.p.visits(s, p.space):
                    d = self.p.definitions[v.tile.name]
                    if not isinstance(d, Load) or self.p.stored(v.tile):
                        continue
                    if any(may_alias(d, w) and order[id(d)] < order[id(w)] for w in written):
                        self._keep(v.tile)
            written += [s for s in p.sinks if isinstance(s, Store)]


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
            return named | {n for c in s.carries for n in positions(c.init)} | {a.name for c in s.carries for a in c.tile.axes}
        case Reduce() | Dot():
            return {a.name for a in s.out.axes}


def _all_reads(s: Statement, tiles: Mapping[str, Tile]) -> tuple[Tile, ...]:
    extra = tuple(tiles[g] for g in gathers(s.index)) if isinstance(s, (Load, Store)) else ()
    return (*read(s), *extra)


def reads_of_sink(s: Sink) -> tuple[Tile, ...]:
    match s:
        case Keep():
            return operands(s.value)
        case Reduce() | Store():
            return (s.tile,)


def made_by_sink(s: Sink) -> frozenset[str]:
    match s:
        case Keep():
            return frozenset((s.tile.name,))
        case Reduce():
            return frozenset((s.out.name,))
        case Store():
            return frozenset()


def keeps(s: Sink) -> bool:
    """Does the sink make a tile and keep it (rather than set a carried one)?"""
    return isinstance(s, Keep) and s.value == s.tile
