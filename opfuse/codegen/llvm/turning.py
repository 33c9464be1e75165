"""Tiles that are kept turned round: neighbours in memory become rows of scratch, as a product wants its columns.

A pass that keeps K[j, d] with the lanes along j would gather each vector, element by element. Where memory runs along
one of the pass's rows, squares of vectors are read as they lie there and exchanged in registers:

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
from opfuse.tile.program import Load


@dataclass(frozen=True)
class Turn:
    """A pass whose tiles are read along `row` and written along `lane`."""

    loads: tuple[Load, ...]
    row: Axis
    lane: Axis


class Turning(Borders):
    def turn_of(self, p: Pass) -> Turn | None:
        """The turn that a pass is; None where it is more than that, or of a size known only at run time."""
        loads = [self.plan.definitions[s.tile.name] for s in p.sinks if isinstance(s, Keep) and keeps(s)]
        plain = [x for x in loads if isinstance(x, Load) and x.pad is None and x.out.dtype.bytes == 4]
        if p.lane is None or len(plain) != len(p.sinks) or not isinstance(self.block[p.lane.name].size, int):
            return None
        rows = [r for r in p.rows if isinstance(self.block[r.name].size, int) and self._runs_along(r, p.lane, plain)]
        return Turn(tuple(plain), rows[-1], p.lane) if rows else None

    def _runs_along(self, row: Axis, lane: Axis, loads: Sequence[Load]) -> bool:
        return all(
            all(isinstance(t, AxisTerm) for i in x.index for t, _ in i.terms)
            and contiguity(x, row, self.schedule) == "unit" and contiguity(x, lane, self.schedule) == "strided"
            and x.buffer.name not in self.schedule.pack
            for x in loads
        )  # fmt: skip

    def run_turn(self, turn: Turn, p: Pass) -> None:
        self._around([a for a in p.rows if a != turn.row], turn)

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
            for load in turn.loads:
                self._square(load, turn, width, height)

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

    def _square(self, load: Load, turn: Turn, width: int, height: int) -> None:
        """`width` vectors of `height` elements in, `height` vectors of `width` elements out."""
        self.at = RegisterTile(None, turn.row, 1, 1, None, False)
        mask = self.v.lanes_below(height)
        given = [self.read(load, {turn.lane.name: k}, mask) for k in range(width)]
        given += [self.v.const(0, load.out.dtype)] * (self.v.lanes - width)
        self.at = RegisterTile(None, turn.lane, 1, 1, None, False)
        for k, v in enumerate(self.exchanged(given)[:height]):
            self.write_local(load.out, v, {turn.row.name: k})

    def exchanged(self, vectors: list[Value]) -> list[Value]:
        """Element k of vector i becomes element i of vector k: one bit of both numbers after the other."""
        lanes, step = self.v.lanes, 1
        out = list(vectors)
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
