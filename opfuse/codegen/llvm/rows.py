"""One pass: the loops over rows and lanes, the register tile inside, and the end of streamed reductions.

A number of rows that does not divide evenly is cut into balanced panels (128 rows by 6: 18 panels of 6 and 4 of 5), so
that no thin panel is left. Points are emitted one by one through all sinks: few values live beside accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from opfuse.codegen.llvm.analysis import may_alias
from opfuse.codegen.llvm.borders import Stretch
from opfuse.codegen.llvm.dot import identity
from opfuse.codegen.llvm.emit import Int, Integer, Value
from opfuse.codegen.llvm.frame import POINT, Guarded, RegisterTile
from opfuse.codegen.llvm.long_sums import SUMMED, Body
from opfuse.codegen.llvm.passes import Keep, Pass
from opfuse.codegen.llvm.turning import Turning
from opfuse.ir.structure import Axis
from opfuse.tile.program import Dot, Load, Loop, Map, Reduce, Store, Tile, gathers, operands
from opfuse.tile.summation import SUM_BLOCK


class Rows(Turning):
    def run_pass(self, p: Pass) -> None:
        lanes, self.v.lanes = self.v.lanes, p.lanes
        self.pending = {s.tile.name for s in p.sinks if isinstance(s, Keep) and s.value == s.tile}
        results: list[tuple[Tile, Value]] = []
        self.folded = (p.folded, p.register[0]) if p.folded else None
        self.e.push()
        turn = self.turn_of(p)
        if turn is None:
            self._rows(p, p.rows, results)
        else:
            self.run_turn(turn, p)
        self.e.pop()
        self.pending = set()
        self.at = POINT
        for t, value in results:  # reductions to a single element stay in a register
            self.e.scopes[-1].values[self.key(t, 0, 0)] = value
        self.v.lanes = lanes

    def _rows(self, p: Pass, rows: tuple[Axis, ...], results: list[tuple[Tile, Value]]) -> None:
        if not rows:
            self._columns(p, 1, results)
            return
        axis, rest = rows[0], rows[1:]
        if axis != p.blocked:
            self._over_rows(axis, [Stretch(0, self.block[axis.name].size, 1)], lambda s: self._rows(p, rest, results))
            return

        def panels() -> None:
            stretches = self.stretches(p, self.row_panels(self.block[axis.name].size, p.register[0]))
            self._over_rows(axis, stretches, lambda s: self._panel(p, s, results))

        if not p.lane_first:
            panels()
            return

        def some_lanes(vectors: int, mask: Value | None, carried: list[Value]) -> list[Value]:
            self.lanes_of_pass = vectors, mask
            panels()
            self.lanes_of_pass = None
            return carried

        self._over_lanes(p, [], some_lanes)

    def _over_rows(self, axis: Axis, stretches: Sequence[Stretch], run: Callable[[Stretch], None]) -> None:
        for s in stretches:

            def step(i: Integer, carried: list[Value], s: Stretch = s) -> Sequence[Value]:
                self.relative[axis.name] = i
                run(s)
                return carried

            self.e.loop(s.lo, s.hi, s.rows, [], step)
        self.relative[axis.name] = 0

    def _panel(self, p: Pass, s: Stretch, results: list[tuple[Tile, Value]]) -> None:
        """A panel of rows, in two copies where it asks whether its windows leave their buffers."""
        blocked = p.blocked
        assert blocked is not None
        self.inside, self.written_out = s.inside, s.written_out
        if not s.asks:
            self._columns(p, s.rows, results)
        else:

            def copy(inside: frozenset[Guarded]) -> Callable[[], None]:
                def run() -> None:
                    place = self.relative[blocked.name]
                    if isinstance(place, Int):  # what depends on the row is worked out in the copy that needs it
                        self.relative[blocked.name] = place._replace(depth=self.e.depth)
                    self.inside = inside
                    self._columns(p, s.rows, results)
                    self.relative[blocked.name] = place

                return run

            self.e.when(self.stays_inside(p, s.asks, s.rows), copy(s.asks), copy(frozenset()))
        self.inside, self.written_out = frozenset(), frozenset()

    # ---- lanes, and reduced rows around them -----------------------------------------------------------------------
    def _columns(self, p: Pass, rows: int, results: list[tuple[Tile, Value]]) -> None:
        reductions = [s for s in p.sinks if isinstance(s, Reduce)]
        streaming = not p.dotted
        partial = p.register[1] if streaming else 1  # several partial results hide latency; a dot leaves no registers
        start = [
            self.v.const(identity(s.combine, s.out.dtype), s.out.dtype)
            for s in reductions
            for _ in range(rows * partial)
        ]
        tile = RegisterTile(p.blocked, p.lane, rows, p.register[1], None, streaming)

        def reduced(axes: tuple[Axis, ...], carried: list[Value]) -> list[Value]:
            if not axes:
                return self._lanes(p, tile, carried, partial)
            axis, rest = axes[0], axes[1:]

            def step(i: Integer, inside: list[Value]) -> Sequence[Value]:
                self.relative[axis.name] = i
                return reduced(rest, inside)

            out = self.sum_loop(axis.name, 0, self.block[axis.name].size, 1, carried, step)
            self.relative[axis.name] = 0
            return out

        outer = self.sums
        self._open_sums(p, reductions, rows, partial, start)
        total = self.close_sums(reduced(p.reduced, start))
        self.sums = outer
        self.at = replace(tile, lane=None, vectors=1)
        for k, s in enumerate(reductions):
            for r in range(rows):
                first = (k * rows + r) * partial
                self._finish(s, total[first : first + partial], r, results, p.lane is not None)

    def _open_sums(self, p: Pass, reductions: list[Reduce], rows: int, partial: int, start: list[Value]) -> None:
        """Sums along many lanes and rows go in blocks; the partial results of a row are parts of one sum."""
        groups = [
            range((k * rows + r) * partial, (k * rows + r + 1) * partial)
            for k, s in enumerate(reductions) if s.combine == "sum" and s.out.dtype in SUMMED
            for r in range(rows)
        ]  # fmt: skip
        levels = [(a.name, self.at_most(a)) for a in p.reduced if groups]
        if p.lane is not None and groups:
            size, width = self.at_most(p.lane), self.v.lanes * p.register[1]
            rest = 0 if isinstance(size, int) else p.register[1]  # a run-time size ends with single vectors
            levels.append((p.lane.name, self.e.most(self.e.add(self.e.div(size, width), rest), 1)))
        each = -(-p.register[1] // partial)
        self.open_sums(self.blocks_of(levels, each, SUM_BLOCK, SUM_BLOCK), groups, start)

    def _finish(self, s: Reduce, partial: list[Value], r: int, results: list[tuple[Tile, Value]], across: bool) -> None:
        while len(partial) > 1:
            odd = partial[-1:] if len(partial) % 2 else []
            partial = [self.v.combine(s.combine, a, b) for a, b in zip(partial[::2], partial[1::2], strict=False)] + odd
        value = partial[0]
        if across:
            scalar = self.v.across(value, lambda a, b: self.v.combine(s.combine, a, b))
            value = self.v.splat(scalar, s.out.dtype)
        if s.out.name in self.plan.scratch:
            self.write_local(s.out, value, self.shift(r, 0))
        else:
            results.append((s.out, value))

    def _lanes(self, p: Pass, tile: RegisterTile, carried: list[Value], partial: int) -> list[Value]:
        self.at = tile
        self._before_lanes(p)
        if p.lane is None:
            self.e.push()
            out = self._register_tile(p, tile, list(carried), partial)
            self.e.pop()
            return out

        def block(vectors: int, mask: Value | None, inside: list[Value]) -> list[Value]:
            return self._register_tile(p, replace(tile, vectors=vectors, mask=mask), inside, partial)

        if self.lanes_of_pass is not None:  # a loop around the rows goes over them
            return block(*self.lanes_of_pass, carried)
        return self._over_lanes(p, carried, block)

    def _over_lanes(
        self, p: Pass, carried: list[Value], run: Callable[[int, Value | None, list[Value]], list[Value]]
    ) -> list[Value]:
        """`run(vectors, mask of the last one, carried)` for each block of lanes."""
        lane = p.lane
        assert lane is not None
        size, width = self.block[lane.name].size, self.v.lanes * p.register[1]

        def block(vectors: int, limit: Integer | None = None) -> Body:
            def at(i: Integer, inside: list[Value]) -> Sequence[Value]:
                self.relative[lane.name] = i
                last = self.e.add(i, self.v.lanes * (vectors - 1))
                mask = None if limit is None else self.v.lanes_below(self.e.sub(limit, last))
                return run(vectors, mask, list(inside))

            return at

        if isinstance(size, int):
            full = size // width * width
            out = self.sum_loop(lane.name, 0, full, width, carried, block(p.register[1]))
            if size > full:
                rest = -(-(size - full) // self.v.lanes)
                out = self.sum_loop("", full, full + 1, 1, out, block(rest, size))
        else:
            whole = self.e.mul(self.e.div(size, width), width)
            out = self.sum_loop(lane.name, 0, whole, width, carried, block(p.register[1]))
            out = self.sum_loop("", whole, size, self.v.lanes, out, block(1, size))
        self.relative[lane.name] = 0
        return out

    def _before_lanes(self, p: Pass) -> None:
        """What is the same in all lanes is made before the loop over them, for each row."""
        seen: set[str] = set()
        for s in p.sinks:
            for t in operands(s.value) if isinstance(s, Keep) else (s.tile,):
                self._hoist(t, p, seen)

    def _hoist(self, t: Tile, p: Pass, seen: set[str]) -> None:
        if t.name in seen:
            return
        seen.add(t.name)
        definition = self.plan.definitions[t.name]
        ready = t.name in self.plan.scratch and t.name not in self.pending
        if not self.has_lane(t) and p.lane is not None:
            if not p.dotted and not isinstance(definition, (Dot, Loop)):
                for r in range(self.at.rows):
                    self.value(t, r, 0)
            return
        if ready:
            return
        match definition:
            case Map():
                for x in operands(definition.value):
                    self._hoist(x, p, seen)
            case Load():
                for name in gathers(definition.index):
                    x = self.tile_named(name)
                    if not self.has_lane(x):
                        for r in range(self.at.rows):
                            self.scalar_of(x, r)
            case Dot():
                self._hoist(definition.acc, p, seen)
            case _:
                pass

    # ---- the register tile -----------------------------------------------------------------------------------------
    def _register_tile(self, p: Pass, tile: RegisterTile, carried: list[Value], partial: int) -> list[Value]:
        self.at = tile
        first = self._loads_before_stores(p)
        for r, j in tile.points():
            k = 0
            for t in first:
                self.value(t, r, j)
            for s in p.sinks:
                match s:
                    case Reduce():
                        at = (k * tile.rows + r) * partial + j % partial
                        carried[at] = self._accumulate(s, carried[at], r, j)
                        k += 1
                    case Store():
                        self.write(s, self.value(s.tile, r, j), self.shift(r, j), self.mask(j))
                    case Keep():
                        made = self.value(s.tile, r, j) if s.value == s.tile else self.expression(s.value, r, j)
                        self.write_local(s.tile, made, self.shift(r, j))
        return carried

    def _accumulate(self, s: Reduce, total: Value, r: int, j: int) -> Value:
        x, mask = self.value(s.tile, r, j), self.mask(j)
        if mask is not None:
            x = self.v.select(mask, x, self.v.like(identity(s.combine, s.out.dtype), x))
        return self.v.combine(s.combine, total, x)

    def _loads_before_stores(self, p: Pass) -> list[Tile]:
        """Where several results leave at one point, inputs that an output may lie on are read before any of them."""
        stores = [s for s in p.sinks if isinstance(s, Store)]
        if len(p.sinks) < 2 or not stores:
            return []
        out: dict[str, Tile] = {}
        for s in p.sinks:
            todo = list(operands(s.value)) if isinstance(s, Keep) else [s.tile]
            while todo:
                t = todo.pop()
                definition = self.plan.definitions[t.name]
                stored = t.name in self.plan.scratch and t.name not in self.pending
                if isinstance(definition, Map) and not stored:
                    todo += operands(definition.value)
                elif isinstance(definition, Load) and not stored and any(may_alias(definition, x) for x in stores):
                    out[t.name] = t
        return list(out.values())
