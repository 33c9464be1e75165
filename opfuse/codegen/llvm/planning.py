"""Phase + Schedule + Target -> PassPlan: where passes begin and end, and which loops run inside of them.

A loop whose carried tiles are used point by point (GEMM, window) runs *inside* a pass, its carried values in registers;
any other loop (online softmax) runs around passes, its carried tiles in scratch. A reduction along the lane axis, or of
all axes, is *streamed*: it is a pass's sink. One over rows only is a loop inside a pass, like a dot.

The plan is a fixed point: passes are built, then looked through for tiles that must be kept, until there are no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from opfuse.codegen.llvm.analysis import Analysis, held_bytes
from opfuse.codegen.llvm.keeping import Keeping
from opfuse.codegen.llvm.layout import Unsupported
from opfuse.codegen.llvm.passes import (
    Keep,
    Once,
    Pass,
    PassPlan,
    Scratch,
    Sequential,
    Sink,
    Step,
    keeps,
    made_by_sink,
)
from opfuse.ir.structure import Axis
from opfuse.tile.axes import fullest
from opfuse.tile.program import (
    Carry,
    Dot,
    Loop,
    Reduce,
    Rename,
    Statement,
    Store,
    Tile,
    made,
    statements,
)

SCRATCH_LIMIT = 256 << 20


class Planner(Analysis):
    """Plans one phase."""

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

    def _phase_steps(self) -> tuple[Step, ...]:
        levels, outer = self.levels, self.outer
        if outer is None:
            return self._body(self.phase.body)
        early = tuple(s for s, k in zip(self.phase.body, levels, strict=True) if k <= outer)
        late = tuple(s for s, k in zip(self.phase.body, levels, strict=True) if k > outer)
        return (Once(outer, self.grid[:outer], self._body(early)), *self._body(late))

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

    def _finish(self, p: Pass) -> Pass:
        """Choose the register tile: rows and vectors where a dot or a loop runs inside, else a stream of vectors."""
        own = {s.tile.name for s in p.sinks if keeps(s)}
        visited = {v.tile.name: v.tile for s in p.sinks for v in self.visits(s, p.space)}
        makers = [self.definitions[n] for n, t in visited.items() if not self.stored(t) or n in own]
        dots = [s for s in makers if isinstance(s, Dot)]
        loops = [s for s in makers if isinstance(s, Loop) and self.inner(s)]
        wide = any(s.out.dtype.bytes == 8 for s in dots)
        lanes = self.target.lanes(8 if wide else 4)
        if not (dots or loops):
            return replace(p, register=(1, self._vectors(p.lane, lanes, self.schedule.stream)), lanes=lanes)
        # Rows share what the lanes read; an axis of that (a batch, a head of the columns) reads it anew for each row.
        batch = {a for s in dots for t in (s.a, s.b) if p.lane in t.axes for a in t.axes}
        batch |= {a for s in dots for a in s.a.axes if a in s.b.axes}
        blocked = self._blocked([a for a in p.rows if a not in batch] or list(p.rows[-1:]))
        folded = self._folded(makers, batch) if blocked is None else None
        rows = tuple(a for a in p.rows if a != blocked) + ((blocked,) if blocked else ())
        # A folded row axis needs registers for the reduction itself: one row less.
        high = self.schedule.register[0] if blocked else max(1, self.schedule.register[0] - 1) if folded else 1
        register = (high, self._vectors(p.lane, lanes, self.schedule.register[1]))
        p = replace(p, rows=rows, register=register, lanes=lanes, blocked=blocked, dotted=True, folded=folded)
        return replace(p, lane_first=self._lane_first(p, dots))

    def _blocked(self, rows: list[Axis]) -> Axis | None:
        """The row axis that fills the rows of register tiles best, an inner one if it is about as good."""
        most, inner_first = self.schedule.register[0], rows[::-1]
        sizes = [n if isinstance(n := self.tile[a.name], int) else most for a in inner_first]
        return inner_first[fullest(sizes, most)] if rows else None

    def _lane_first(self, p: Pass, dots: list[Dot]) -> bool:
        """Weights are read once for all rows, not once for each panel of rows, where the rows take less room."""
        if p.blocked is None or p.lane is None or any(isinstance(s, Reduce) for s in p.sinks):
            return False
        rows, columns = self.tile[p.blocked.name], self.tile[p.lane.name]
        several = isinstance(rows, int) and rows > p.register[0]
        if not several or not isinstance(columns, int) or columns <= p.register[1] * p.lanes:
            return False
        operands = {t for s in dots for t in (s.a, s.b)}
        shared = sum(self._room(t, p) for t in operands if p.blocked not in t.axes)
        return shared > max(self.target.l1_bytes // 2, sum(self._room(t, p) for t in operands if p.blocked in t.axes))

    def _room(self, t: Tile, p: Pass) -> int:
        """Bytes of an operand that a pass reads: its own rows and lanes, and all of what is summed over."""
        sizes = [self.tile[a.name] if a in p.space else a.extent for a in t.axes]
        return math.prod(n if isinstance(n, int) else 1 for n in sizes) * t.dtype.bytes

    def _folded(self, makers: list[Statement], batch: set[Axis]) -> Axis | None:
        """The axis of a reduction over rows of a dot: several rows are made together, then reduced."""
        for s in makers:
            if isinstance(s, Reduce) and not self.streamed(s) and self.heavy(s.tile):
                rows = [a for a in s.over if self.tile[a.name] != 1 and a not in batch]
                if rows:
                    return rows[-1]
        return None

    def _vectors(self, lane: Axis | None, lanes: int, wanted: int) -> int:
        size = self.tile[lane.name] if lane else 1
        return max(1, min(wanted, -(-size // lanes)) if isinstance(size, int) else wanted)

    def _check_carries(self) -> None:
        """Where carried tiles need each other's old values, next ones are kept until all old ones are used."""
        for s in statements(self.phase.body):
            if isinstance(s, Loop) and not self.inner(s):
                while (stuck := self._ordered_carries(s)[1]) and self._keep_next(stuck):
                    pass
                self._assignment_order(s)

    def _keep_next(self, stuck: list[Carry]) -> bool:
        """Keep the next value of one of them, best one that is read whole and waits anyway; False where none can be."""
        made_here = [c for c in stuck if not isinstance(self.definitions[c.next.name], Loop)]
        read_whole = [c for c in made_here if any(self._reads_carry(o.next, c.tile.name, whole=True) for o in stuck)]
        for c in (*read_whole, *made_here):
            if c.next.name not in self.keep:
                self.keep[c.next.name] = self.order(c.next)
                self._inner.clear()
                return True
        return False

    def _assignment_order(self, loop: Loop) -> list[Carry]:
        """Carried tiles change at once in the program, one by one here: each when no other needs its old value."""
        out, left = self._ordered_carries(loop)
        if left:
            raise Unsupported("carry-cycle", f"tiles carried round {loop.axis.name} need each other's old values",
                              axis=loop.axis.name, carries=[c.tile.name for c in left])  # fmt: skip
        return out

    def _ordered_carries(self, loop: Loop) -> tuple[list[Carry], list[Carry]]:
        """Those that can be set one after the other, and those that are left over."""
        left, out = list(loop.carries), []
        while left:
            free = [c for c in left if not any(self._reads_carry(o.next, c.tile.name) for o in left if o is not c)]
            if not free:
                break
            left.remove(free[0])
            out.append(free[0])
        return out, left

    def _reads_carry(self, t: Tile, name: str, whole: bool = False) -> bool:
        """Does making `t` read the carried tile (at other points than its own, where `whole` is asked)?"""
        visits = self.walk(t, frozenset(), False, set())
        return any(v.tile.name == name and (bool(v.space) or not whole) for v in visits)

    def _place_scratch(self) -> tuple[Mapping[str, Scratch], int]:
        out: dict[str, Scratch] = {}
        at = 0
        for name, t in self.tiles.items():
            s = self.definitions[name]
            if isinstance(s, Rename):
                source = out[s.tile.name]
                out[name] = replace(source, order=tuple(s.new if a == s.old else a for a in source.order))
                continue
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
