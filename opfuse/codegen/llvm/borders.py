"""Windows clear of a border: a register tile that reads nothing outside of its buffers gets code without guards.

A row of a padded window tests, for each tap, whether its place exists, and exchanges the pointer where it does not. In
a depthwise convolution that is more work than the arithmetic. So a panel of rows asks once whether its first and last
row stay inside for all taps, and runs one of two copies of its code. Long products hide the tests and keep one copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from opfuse.codegen.llvm.address import _inside
from opfuse.codegen.llvm.dot import InnerLoops
from opfuse.codegen.llvm.emit import Handle, Integer
from opfuse.codegen.llvm.passes import Keep, Pass
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.structure import Axis
from opfuse.tile.program import Dot, Load, Loop, Map, Reduce, Tile, operands

LONG_PRODUCT = 32  # steps of k from which a row's test no longer counts


class Borders(InnerLoops):
    def clear_of_borders(self, p: Pass, rows: int) -> Handle | None:
        """The condition under which no guarded read of the next `rows` rows leaves its buffer.

        None where there is no such read, where the lanes run along the border, or where the tests do not matter.
        """
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
        conditions: list[Handle] = []
        extents = {a.name: a.extent for a in self.plan.axes.values()}
        for load in loads:
            for i, extent in zip(load.index, load.buffer.shape, strict=True):
                if load.pad is None or _inside(i, extent, extents):
                    continue
                ends = self._ends(i, loops, p, rows)
                if ends is None:
                    return None
                conditions += [self.e.compare("sge", ends[0], 0), self.e.compare("slt", ends[1], self.dim(extent))]
        if not conditions:
            return None
        every = conditions[0]
        for c in conditions[1:]:
            every = self.e.both(every, c)
        return every

    def _ends(self, index: Index, loops: dict[str, Axis], p: Pass, rows: int) -> tuple[Integer, Integer] | None:
        """The smallest and the largest value of an index over the rows and the taps; None where it is not affine."""
        low = high = self.dim(index.const)
        for term, coefficient in index.terms:
            if not isinstance(term, AxisTerm) or not isinstance(coefficient, int):
                return None
            name = term.name
            if p.lane is not None and name == p.lane.name:
                return None
            span: Integer = 0
            first: Integer = 0
            if name in loops:
                extent = loops[name].extent
                assert isinstance(extent, int)
                span = extent - 1
            elif name in self.block:
                first = self.position(name)
                span = rows - 1 if p.blocked is not None and name == p.blocked.name else 0
            else:
                return None
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
