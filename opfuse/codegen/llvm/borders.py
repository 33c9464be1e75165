"""Windows at a border: rows that read nothing outside of their buffers get code without guards.

A row of a padded window tests, for each tap, whether its place exists, and exchanges the pointer where it does not. In
a depthwise convolution that is more work than the arithmetic. So the panels of rows are cut into stretches:

    |first panel| panels that stay inside for all taps | last panel|

The panels at the ends stand at known places, so that their windows are written out and each tap is known to be read or
to be padding. Where a place is known at run time only, a panel asks once and runs one of two copies of its code. What
is the same for a whole panel (the image row of a tap) keeps its guard, one for each tap. Long products hide the tests
and keep one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opfuse.codegen.llvm.address import PAD_ROW_LIMIT, _inside
from opfuse.codegen.llvm.dot import InnerLoops
from opfuse.codegen.llvm.emit import Handle, Integer
from opfuse.codegen.llvm.frame import Guarded
from opfuse.codegen.llvm.passes import Keep, Pass
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.structure import Axis
from opfuse.tile.program import Dot, Load, Loop, Map, Reduce, Tile, operands

LONG_PRODUCT = 32  # steps of k from which a row's test no longer counts
MOST_TAPS = 9  # of a loop that is written out at a border
MOST_PANELS = 2  # at each end that get code of their own


@dataclass(frozen=True)
class Stretch:
    """Panels of `rows` rows in [lo, hi). `inside` is proven for all of them; `asks` is to be asked at run time."""

    lo: Integer
    hi: Integer
    rows: int
    inside: frozenset[Guarded] = frozenset()
    written_out: frozenset[str] = frozenset()
    asks: frozenset[Guarded] = frozenset()


@dataclass(frozen=True)
class Windows:
    """The guarded indices that change from row to row, and the loops over taps."""

    guarded: frozenset[Guarded]
    loops: Mapping[str, Axis]


class Borders(InnerLoops):
    def stretches(self, p: Pass, panels: list[tuple[Integer, Integer, int]]) -> list[Stretch]:
        windows = self._windows(p)
        if windows is None or not windows.guarded:
            return [Stretch(*x) for x in panels]
        return [s for x in panels for s in self._cut(p, windows, *x)]

    def _cut(self, p: Pass, windows: Windows, lo: Integer, hi: Integer, rows: int) -> list[Stretch]:
        """A border is left once: from a first panel to a last one all stay inside."""
        asked = [Stretch(lo, hi, rows, asks=windows.guarded)]
        if not (isinstance(lo, int) and isinstance(hi, int)):
            return asked
        first, last = lo, hi
        while first < hi and not (clear := self._known_clear(p, windows, first, rows)):
            if clear is None or first - lo >= MOST_PANELS * rows:
                return asked
            first += rows
        while last > first and not self._known_clear(p, windows, last - rows, rows):
            if hi - last >= MOST_PANELS * rows:
                return asked
            last -= rows
        taps = frozenset(n for i, _ in windows.guarded for n in i.axes if n in windows.loops)
        ends = [*range(lo, first, rows), *range(last, hi, rows)]
        out = [Stretch(i, i + rows, rows, written_out=taps) for i in ends]
        return sorted([*out, *([Stretch(first, last, rows, windows.guarded)] if last > first else [])], key=_start)

    def _known_clear(self, p: Pass, windows: Windows, start: int, rows: int) -> bool | None:
        """Does the panel at `start` stay inside? None where that is known at run time only."""
        assert p.blocked is not None
        self.relative[p.blocked.name] = start
        ends = [(*self._ends(i, windows.loops, p, rows), self.dim(extent)) for i, extent in windows.guarded]
        self.relative[p.blocked.name] = 0
        known = [(a, b, n) for a, b, n in ends if isinstance(a, int) and isinstance(b, int) and isinstance(n, int)]
        return all(a >= 0 and b < n for a, b, n in known) if len(known) == len(ends) else None

    def stays_inside(self, p: Pass, guarded: frozenset[Guarded], rows: int) -> Handle:
        """The condition under which none of these indices leaves its buffer in the next `rows` rows."""
        windows = self._windows(p)
        assert windows is not None and guarded
        every: Handle | None = None
        for i, extent in sorted(guarded, key=str):
            low, high = self._ends(i, windows.loops, p, rows)
            for c in (self.e.compare("sge", low, 0), self.e.compare("slt", high, self.dim(extent))):
                every = c if every is None else self.e.both(every, c)
        assert every is not None
        return every

    def _windows(self, p: Pass) -> Windows | None:
        """None where there is no guarded read, where the lanes run along the border, or where tests do not matter."""
        if any(isinstance(s, Reduce) for s in p.sinks) or p.blocked is None:
            return None
        loops: dict[str, Axis] = {}
        loads: list[Load] = []
        for s in self._made_inside(p):
            if isinstance(s, Loop):
                if s.start is not None or s.stop is not None or not isinstance(s.axis.extent, int):
                    return None
                loops[s.axis.name] = s.axis
            elif isinstance(s, Dot):
                if isinstance(s.over.extent, int) and s.over.extent < LONG_PRODUCT:
                    continue
                return None
            elif isinstance(s, Load):
                loads.append(s)
        guarded: set[Guarded] = set()
        extents = {a.name: a.extent for a in self.plan.axes.values()}
        for load in loads:
            may_leave = [
                (i, n) for i, n in zip(load.index, load.buffer.shape, strict=True)
                if load.pad is not None and not _inside(i, n, extents)
            ]  # fmt: skip
            if not all(self._is_simple(i, loops, p) for i, _ in may_leave):
                return None
            guarded.update(may_leave if self._each_row_alone(load, p, may_leave) else
                           [x for x in may_leave if p.blocked.name in x[0].axes])  # fmt: skip
        return Windows(frozenset(guarded), loops)

    def _each_row_alone(self, load: Load, p: Pass, guarded: list[Guarded]) -> bool:
        """Would a guard that is the same for all rows be asked for each, since there are too many pad values?"""
        assert p.blocked is not None
        may_leave = [d for d, i in enumerate(load.index) if i in [g for g, _ in guarded]]
        same = [d for d in may_leave if p.blocked.name not in load.index[d].axes]
        if not same:
            return False
        size = self.exchange(load.buffer, load.index, same, p.blocked, p.lane, p.register[0])[2]
        return size > PAD_ROW_LIMIT

    def _is_simple(self, index: Index, loops: Mapping[str, Axis], p: Pass) -> bool:
        """An affine index, of places and taps known to the panel and the same in all lanes."""
        return all(
            isinstance(t, AxisTerm) and isinstance(c, int) and (p.lane is None or t.name != p.lane.name)
            and (t.name in loops or t.name in self.block)
            for t, c in index.terms
        )  # fmt: skip

    def _ends(self, index: Index, loops: Mapping[str, Axis], p: Pass, rows: int) -> tuple[Integer, Integer]:
        """The smallest and the largest value of a simple index over the rows and the taps."""
        low = high = self.dim(index.const)
        for term, coefficient in index.terms:
            assert isinstance(term, AxisTerm) and isinstance(coefficient, int)
            span: Integer = 0
            first: Integer = 0
            if term.name in loops:
                extent = loops[term.name].extent
                assert isinstance(extent, int)
                span = extent - 1
            else:
                first = self.position(term.name)
                span = rows - 1 if p.blocked is not None and term.name == p.blocked.name else 0
            near, far = self.e.mul(first, coefficient), self.e.mul(self.e.add(first, span), coefficient)
            low = self.e.add(low, near if coefficient > 0 else far)
            high = self.e.add(high, far if coefficient > 0 else near)
        return low, high

    def _made_inside(self, p: Pass) -> Iterator[Load | Loop | Dot | Map]:
        """The statements that the register tile evaluates on demand."""
        seen: set[str] = set()
        todo: list[Tile] = [t for s in p.sinks for t in (operands(s.value) if isinstance(s, Keep) else (s.tile,))]
        while todo:
            t = todo.pop()
            if t.name in seen or (t.name in self.plan.scratch and t.name not in self.pending):
                continue
            seen.add(t.name)
            match self.plan.definitions[t.name]:
                case Load() as s:
                    yield s
                case Map() as s:
                    todo += operands(s.value)
                    yield s
                case Dot() as s:
                    todo += [s.acc, s.a, s.b]
                    yield s
                case Loop() as s:
                    todo += [c.next for c in s.carries]
                    todo += [x for c in s.carries for x in operands(c.init)]
                    yield s
                case s:
                    todo += [s.tile] if isinstance(s, Reduce) else []


def _start(s: Stretch) -> int:
    assert isinstance(s.lo, int)
    return s.lo
