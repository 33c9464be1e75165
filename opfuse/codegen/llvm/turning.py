"""Turned round in registers: where memory runs along the rows of a pass and not along its lanes.

A pass that keeps K[j, d] with the lanes along j would gather each vector, element by element; one that stores a
transposed result would scatter it. Squares of vectors are exchanged in registers instead:

    v0 = K[j + 0, d ..]                  scratch[d + 0, j ..] = K[j .., d + 0]
    ...                         ->       ...
    v15 = K[j + 15, d ..]                scratch[d + 15, j ..] = K[j .., d + 15]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opfuse.codegen.llvm.borders import Borders
from opfuse.codegen.llvm.emit import Integer, Value
from opfuse.codegen.llvm.frame import RegisterTile
from opfuse.codegen.llvm.layout import contiguity
from opfuse.codegen.llvm.passes import Keep, Pass, keeps
from opfuse.ir.index import AxisTerm
from opfuse.ir.structure import Axis
from opfuse.tile.program import Load, Map, Store, Tile, operands


@dataclass(frozen=True)
class Turn:
    """A pass that reads memory, or writes it, along `row`, and everything else along `lane`."""

    sinks: tuple[Keep | Store, ...]
    row: Axis
    lane: Axis


class Turning(Borders):
    def turn_of(self, p: Pass) -> Turn | None:
        """The turn that a pass is; None where it is more than that, or of a size known only at run time."""
        sinks = tuple(s for s in p.sinks if isinstance(s, Store) or isinstance(s, Keep) and keeps(s))
        words = all(s.tile.dtype.bytes == 4 for s in sinks)
        if p.lane is None or p.dotted or len(sinks) != len(p.sinks) or not words or not self._is_long(p.lane):
            return None
        rows = [r for r in reversed(p.rows) if self._is_long(r)]
        if len(sinks) == 1 and isinstance(sinks[0], Store):
            return self._turned_store(sinks[0], rows, p.lane)
        if any(isinstance(s, Store) for s in sinks):
            return None
        found = [r for r in rows if all(self._made_along(r, p.lane, s.tile) for s in sinks)]
        return Turn(sinks, found[0], p.lane) if found else None

    def _turned_store(self, store: Store, rows: list[Axis], lane: Axis) -> Turn | None:
        """Memory is written along a row, or what is written was read along one."""
        if store.buffer.dtype is not store.tile.dtype:
            return None
        for row in rows:
            if self._runs_along(row, lane, store):
                return Turn((store,), row, lane)
            if self._runs_along(lane, row, store) and self._made_along(row, lane, store.tile):
                return Turn((store,), lane, row)
        return None

    def _is_long(self, axis: Axis) -> bool:
        """Of a known size that fills half of a square."""
        size = self.block[axis.name].size
        return isinstance(size, int) and 2 * size >= self.v.lanes

    def _runs_along(self, row: Axis, lane: Axis, s: Load | Store) -> bool:
        return (
            all(isinstance(t, AxisTerm) for i in s.index for t, _ in i.terms)
            and contiguity(s, row, self.schedule) == "unit" and contiguity(s, lane, self.schedule) == "strided"
            and s.buffer.name not in self.schedule.pack
        )  # fmt: skip

    def _made_along(self, row: Axis, lane: Axis, tile: Tile) -> bool:
        """Is a tile made of loads that run along the row, and of what is one for row and lane?"""
        todo, loads = [tile], 0
        while todo:
            t = todo.pop()
            made = self.plan.definitions[t.name]
            if lane not in t.axes and row not in t.axes:
                continue
            if t.name in self.plan.scratch and t != tile or not isinstance(made, (Load, Map)):
                return False
            if isinstance(made, Load):
                loads += 1
                if made.pad is not None or not self._runs_along(row, lane, made):
                    return False
            else:
                todo += operands(made.value)
        return loads > 0

    def run_turn(self, turn: Turn, p: Pass) -> None:
        self._around([a for a in p.rows if a not in (turn.row, turn.lane)], turn)

    def _around(self, axes: Sequence[Axis], turn: Turn) -> None:
        """The other rows one by one, then squares; what is left at an edge is a square that is not full."""
        if axes:
            axis = axes[0]

            def step(i: Integer, carried: list[Value]) -> Sequence[Value]:
                self.relative[axis.name] = i
                self._around(axes[1:], turn)
                return carried

            self.e.loop(0, self.block[axis.name].size, 1, [], step)
            self.relative[axis.name] = 0
            return

        def rows(i: Integer, height: int) -> None:
            self.relative[turn.row.name] = i
            self._steps(turn.lane, lambda j, width: square(j, width, height))

        def square(j: Integer, width: int, height: int) -> None:
            self.relative[turn.lane.name] = j
            for s in turn.sinks:
                if isinstance(s, Keep):
                    self._read_square(s.tile, turn, width, height)
                else:
                    self._write_square(s, turn, width, height)

        self._steps(turn.row, rows)
        self.relative[turn.row.name] = self.relative[turn.lane.name] = 0

    def _steps(self, axis: Axis, body: Callable[[Integer, int], None]) -> None:
        """body(place, count) for whole vectors along an axis, and for what is left."""
        size, lanes = self.block[axis.name].size, self.v.lanes
        assert isinstance(size, int)
        full = size // lanes * lanes

        def stretch(count: int) -> Callable[[Integer, list[Value]], Sequence[Value]]:
            def step(i: Integer, carried: list[Value]) -> Sequence[Value]:
                body(i, count)
                return carried

            return step

        self.e.loop(0, full, lanes, [], stretch(lanes))
        if size > full:
            self.e.loop(full, full + 1, 1, [], stretch(size - full))

    def _read_square(self, tile: Tile, turn: Turn, width: int, height: int) -> None:
        """`width` vectors of `height` elements from memory, `height` vectors of `width` elements to scratch."""
        self.at = RegisterTile(turn.lane, turn.row, width, 1, self.v.lanes_below(height), True)
        given = [self.value(tile, k, 0) for k in range(width)]
        self.at = RegisterTile(None, turn.lane, 1, 1, None, False)
        for k, v in enumerate(self.exchanged(given)[:height]):
            self.write_local(tile, v, {turn.row.name: k})

    def _write_square(self, store: Store, turn: Turn, width: int, height: int) -> None:
        """`height` vectors of `width` elements made, `width` vectors of `height` elements to memory."""
        self.at = RegisterTile(turn.row, turn.lane, height, 1, self.v.lanes_below(width), True)
        given = [self.value(store.tile, k, 0) for k in range(height)]
        self.at = RegisterTile(None, turn.row, 1, 1, None, False)
        mask = self.v.lanes_below(height)
        for k, v in enumerate(self.exchanged(given)[:width]):
            self.write(store, v, {turn.lane.name: k}, mask)

    def exchanged(self, vectors: list[Value]) -> list[Value]:
        """Element k of vector i becomes element i of vector k: one bit of both numbers after the other."""
        lanes, step = self.v.lanes, 1
        out = vectors + [self.v.like(0, vectors[0])] * (lanes - len(vectors))
        while step < lanes:
            for i in range(lanes):
                if not i & step:
                    a, b = out[i], out[i + step]
                    low = [lanes + k - step if k & step else k for k in range(lanes)]
                    high = [lanes + k if k & step else k + step for k in range(lanes)]
                    out[i], out[i + step] = self._shuffled(a, b, low), self._shuffled(a, b, high)
            step *= 2
        return out

    def _shuffled(self, a: Value, b: Value, order: list[int]) -> Value:
        picks = ", ".join(f"i32 {k}" for k in order)
        return self.e.value(f"shufflevector {a}, {b}, <{len(order)} x i32> <{picks}>", a.dtype, a.lanes)
