"""Loops inside of a register tile: the matrix microkernel, window loops, reductions over rows.

All of them carry one vector a point of the register tile. The microkernel is `rows` broadcasts times `vectors` loads a
step of k, with the products summed in registers; what follows it is emitted right behind, on the same registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opfuse.codegen.llvm.emit import Int, Integer, Value
from opfuse.codegen.llvm.long_sums import SUMMED, Body, LongSums
from opfuse.codegen.llvm.values import Point
from opfuse.ir.index import Index
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Dot, Load, Loop, Map, Reduce, Tile, gathers, operands
from opfuse.tile.summation import SUM_BLOCK

UNROLL = 4  # steps of k in one turn of the microkernel's loop
LINE = 64  # bytes of a cache line


class InnerLoops(LongSums):
    # ---- the matrix microkernel ------------------------------------------------------------------------------------
    def contraction(self, s: Dot) -> None:
        points = self._distinct(s.out)
        accumulators = [self.value(s.acc, *p) for p in points]
        self._gather_rows(s)
        outer, begins = self.sums, self.open_nest(s, accumulators)
        size = self.block[s.over.name].size

        def steps(n: int) -> Body:
            def run(i: Integer, carried: list[Value]) -> Sequence[Value]:
                before = self.relative[s.over.name]
                self.relative[s.over.name] = i
                self._prefetch_panel(s, i)
                for u in range(n):
                    self._step(s, u, points, carried)
                self.relative[s.over.name] = before
                return carried

            return run

        if isinstance(size, int):
            full = size // UNROLL * UNROLL
            out = self.sum_loop(s.out.name, 0, full, UNROLL, accumulators, steps(UNROLL), UNROLL)
            if size > full:
                out = self.sum_loop("", full, full + 1, 1, out, steps(size - full))
        else:
            whole = self.e.mul(self.e.div(size, UNROLL), UNROLL)
            out = self.sum_loop(s.out.name, 0, whole, UNROLL, accumulators, steps(UNROLL), UNROLL)
            out = self.sum_loop("", whole, size, 1, out, steps(1))
        if begins:
            out, self.sums = self.close_sums(out), outer
        self.remember(s.out, dict(zip(points, out, strict=True)))

    def _step(self, s: Dot, u: int, points: list[Point], carried: list[Value]) -> None:
        """One step of k: each operand is read once for all the points that share it."""
        read: dict[tuple[str, int, int], Value] = {}
        for n, (r, j) in enumerate(points):
            pair = []
            for t in (s.a, s.b):
                at = (t.name, r if self.at.blocked in t.axes else 0, j if self.has_lane(t) else 0)
                if at not in read:
                    read[at] = self._operand(t, s, at[1], at[2], u)
                pair.append(read[at])
            carried[n] = self.v.fma(pair[0], pair[1], carried[n])

    def _operand(self, t: Tile, s: Dot, r: int, j: int, u: int) -> Value:
        shift = {**self.shift(r, j), s.over.name: u}
        definition = self.plan.definitions[t.name]
        if t.name in self.plan.scratch:
            return self.v.convert(self.read_local(t, shift), s.acc.dtype)
        if isinstance(definition, Map):  # a cast of a load
            (source,) = operands(definition.value)
            inner = self.plan.definitions[source.name]
            assert isinstance(inner, Load)
            value = self.v.convert(self.read(inner, shift, self.mask(j)), definition.out.dtype)
        elif isinstance(definition, Load):
            value = self.read(definition, shift, self.mask(j))
        else:  # a single element, which a reduction left in a register
            value = self.value(t, r, j)
        return self.v.convert(value, s.acc.dtype)

    def _gather_rows(self, s: Dot) -> None:
        """Row numbers read from memory are read before the loop."""
        for t in (s.a, s.b):
            definition = self.plan.definitions[t.name]
            if isinstance(definition, Load):
                for name in gathers(definition.index):
                    for r in range(self.at.rows):
                        self.value(self.tile_named(name), r, 0)

    def _prefetch_panel(self, s: Dot, i: Integer) -> None:
        """One line of the next packed panel (into L2) each turn; the row panels of a tile together sweep all of it."""
        panels = [t for t in (s.a, s.b) if self.has_lane(t)]
        definition = self.plan.definitions[panels[0].name] if panels else None
        if not (self.schedule.prefetch_panel and self.at.blocked and isinstance(definition, Load)):
            return
        packing = self.schedule.pack.get(definition.buffer.name)
        if packing is None or not isinstance(i, Int):
            return
        width = packing.panel * definition.buffer.dtype.bytes * UNROLL
        row = self.e.div(self.relative[self.at.blocked.name], self.at.rows)
        line = self.e.mul(self.e.rem(row, max(width // LINE, 1)), LINE)
        at = self.access(definition.buffer, _next_panel(definition.index, packing.axis, packing.panel), {}, None)
        pointer = self.e.offset(at.pointer, line)
        self.e.line(f"call void @llvm.prefetch.p0(ptr {pointer.text}, i32 0, i32 2, i32 1)")

    # ---- other loops -----------------------------------------------------------------------------------------------
    def inner_reduction(self, s: Reduce) -> None:
        """A reduction over rows: the lanes are elements of the result."""
        points = self._distinct(s.out)
        start = [self.v.const(identity(s.combine, s.out.dtype), s.out.dtype) for _ in points]
        last = [a for a in s.over if self.folded and a == self.folded[0]]  # the folded axis runs innermost
        axes = (*(a for a in s.over if a not in last), *last)
        outer = self.sums
        groups = [(n,) for n in range(len(points))] if s.combine == "sum" and s.out.dtype in SUMMED else []
        levels = [(a.name, self.at_most(a)) for a in axes if groups]
        self.open_sums(self.blocks_of(levels, 1, SUM_BLOCK, SUM_BLOCK), groups, start)

        def step_over(axis: Axis, rest: tuple[Axis, ...], rows: int) -> Body:
            def step(i: Integer, inside: list[Value]) -> Sequence[Value]:
                self.relative[axis.name] = i
                if rows == 1:
                    return over(rest, inside)
                outer, self.at = self.at, replace(self.at, blocked=axis, rows=rows)
                for r in range(rows):
                    inside = [fold(c, r, j) for c, (_, j) in zip(inside, points, strict=True)]
                self.at = outer
                return inside

            return step

        def fold(total: Value, r: int, j: int) -> Value:
            return self.v.combine(s.combine, total, self.value(s.tile, r, j))

        def over(axes: tuple[Axis, ...], carried: list[Value]) -> list[Value]:
            if not axes:
                return [fold(c, *p) for c, p in zip(carried, points, strict=True)]
            axis, rest = axes[0], axes[1:]
            before, size = self.relative[axis.name], self.block[axis.name].size
            high = self.folded[1] if self.folded and self.folded[0] == axis else 1
            for lo, hi, rows in self.row_panels(size, high):
                carried = self.sum_loop(axis.name, lo, hi, rows, carried, step_over(axis, rest, rows), rows)
            self.relative[axis.name] = before
            return carried

        total = self.close_sums(over(axes, start))
        self.sums = outer
        self.remember(s.out, dict(zip(points, total, strict=True)))

    def row_panels(self, size: Integer, most: int) -> list[tuple[Integer, Integer, int]]:
        """(from, to, rows a panel). A size known only at run time also gets code for what few rows may be left."""
        if most == 1:
            return [(0, size, 1)]
        if isinstance(size, int):
            if size == 0:
                return []
            count = -(-size // most)
            few, larger = size // count, size % count
            cut = larger * (few + 1)
            return [x for x in [(0, cut, few + 1), (cut, size, few)] if x[0] != x[1]]
        e = self.e
        count_ = e.ceil_div(size, most)
        enough = e.compare("sge", size, (most - 1) * (most - 2))  # then panels of `most` and `most - 1` rows suffice
        larger_ = e.choose(enough, e.sub(size, e.mul(count_, most - 1)), e.div(size, most))
        smaller = e.choose(enough, e.sub(count_, larger_), 0)
        at: Integer = 0
        out: list[tuple[Integer, Integer, int]] = []
        for n, rows in ((larger_, most), (smaller, most - 1)):
            end = e.add(at, e.mul(n, rows))
            out.append((at, end, rows))
            at = end
        half = (most - 1) // 2
        if half > 1:
            end = e.add(at, e.mul(e.div(e.sub(size, at), half), half))
            out.append((at, end, half))
            at = end
        return [*out, (at, size, 1)]

    def _distinct(self, t: Tile) -> list[Point]:
        """Points of the register tile at which the tile has different elements."""
        rows = self.at.rows if self.at.blocked in t.axes else 1
        vectors = self.at.vectors if self.has_lane(t) else 1
        return [(r, j) for r in range(rows) for j in range(vectors)]

    def inner_loop(self, s: Loop) -> None:
        points = self._distinct(s.carries[0].tile)
        lo, hi = self.bounds(s)
        size = self.plan.tile[s.axis.name]

        def at(n: Integer) -> Body:
            def run(i: Integer, flat: list[Value]) -> Sequence[Value]:
                self.enter(s.axis, i, n)
                self._remember_carried(s, points, flat)
                return [self.value(c.next, *p) for c in s.carries for p in points]

            return run

        flat = [self.expression(c.init, *p) for c in s.carries for p in points]
        outer, begins, name = self.sums, self.open_nest(s, flat), s.carries[0].tile.name
        if not isinstance(size, int):  # one step over all of a run-time extent, or none
            trips = self.e.choose(self.e.compare("slt", lo, hi), 1, 0)
            whole_step = at(self.e.sub(hi, lo))
            flat = self.sum_loop("", 0, trips, 1, flat, lambda _, inside: whole_step(lo, inside))
        elif isinstance(lo, int) and isinstance(hi, int):
            if s.axis.name in self.schedule.unroll or s.axis.name in self.written_out:
                for n, i in enumerate(range(lo, hi, size), 1):
                    flat = self.sum_loop("", i, i + 1, 1, flat, at(min(size, hi - i)))
                    flat = self.flush_after(name, n, flat)
            else:
                full = lo + max(hi - lo, 0) // size * size
                flat = self.sum_loop(name, lo, full, size, flat, at(size))
                if hi > full:
                    flat = self.sum_loop("", full, full + 1, 1, flat, at(hi - full))
        else:
            whole = self.e.mul(self.e.div(self.e.most(self.e.sub(hi, lo), 0), size), size)
            full_end = self.e.add(lo, whole)
            flat = self.sum_loop(name, lo, full_end, size, flat, at(size))
            if size > 1:
                flat = self.sum_loop("", full_end, hi, 1, flat, at(1))
        if begins:
            flat, self.sums = self.close_sums(flat), outer
        self._remember_carried(s, points, flat)

    def _remember_carried(self, s: Loop, points: list[Point], flat: Sequence[Value]) -> None:
        for n, c in enumerate(s.carries):
            part = flat[n * len(points) : (n + 1) * len(points)]
            self.remember(c.tile, dict(zip(points, part, strict=True)))

    def bounds(self, s: Loop) -> tuple[Integer, Integer]:
        """A grid axis in a bound stands for its first index in the tile (start) or its last (stop)."""
        extent = self.dim(s.axis.extent)
        lo: Integer = 0 if s.start is None else self.e.most(0, self._bound(s.start, last=False))
        hi: Integer = extent if s.stop is None else self.e.most(0, self.e.least(extent, self._bound(s.stop, last=True)))
        return lo, hi

    def _bound(self, index: Index, last: bool) -> Integer:
        edge = {}
        for name in index.axes:
            block = self.block[name]
            edge[name] = self.e.add(block.base, self.e.sub(block.size, 1)) if last else block.base
        before = {name: (self.block[name], self.relative[name]) for name in index.axes}
        for name, position in edge.items():
            self.enter(self.plan.axes[name], position, 1)
        total = self.total(self.linear(index, {}))
        for name, (block, relative) in before.items():
            self.block[name], self.relative[name] = block, relative
        return total


def _next_panel(index: tuple[Index, ...], axis: int, panel: int) -> tuple[Index, ...]:
    return tuple(i + panel if d == axis else i for d, i in enumerate(index))


def identity(combine: str, dtype: DType) -> float | int | bool:
    """What a reduction of nothing gives."""
    match combine:
        case "sum" | "or":
            return 0
        case "prod" | "and":
            return 1
        case _:
            return lowest(dtype) if combine == "max" else highest(dtype)


def lowest(dtype: DType) -> float | int | bool:
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype is DType.BOOL or not dtype.is_signed else -(1 << (dtype.bytes * 8 - 1))


def highest(dtype: DType) -> float | int | bool:
    if dtype.is_float:
        return float("inf")
    bits = dtype.bytes * 8 - (1 if dtype.is_signed else 0)
    return True if dtype is DType.BOOL else (1 << bits) - 1
