"""Long sums in blocks: each is added up from zero, and the blocks' sums are kept apart with their rounding errors.

The loops of a sum carry accumulators in registers. Where one accumulator would be added to very often, the loop that
reaches the limit runs block by block. After a block its accumulators are flushed into a pair of vectors (s, c):

    for block in range(n / g):              t = s + block's sum
        acc = 0                             c = c + the rounding error of that addition (Knuth's two-sum)
        for trip in range(g): acc += x      s = t
        flush acc into (s, c)
    for trip in the rest: acc += x          the sum is acc + s + c

A sum of a usual length has no such pair, and its code is as if this module was not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opfuse.codegen.llvm.emit import Integer, Value
from opfuse.codegen.llvm.values import Values
from opfuse.ir.dims import Dim
from opfuse.ir.scalar import Apply
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Dot, Loop, Map, Tile, operands, read, statements
from opfuse.tile.summation import DOT_BLOCK, LONGEST_DOT, LONGEST_SUM, SUM_BLOCK, block_of

Body = Callable[[Integer, list[Value]], Sequence[Value]]
SUMMED = (DType.F32, DType.F64)
Level = tuple[str, Integer]  # a loop of a nest, and its trips


@dataclass
class Sums:
    """A nest of loops whose carried values are sums. `kept` holds s and c of each group, as they are here."""

    groups: tuple[tuple[int, ...], ...]  # accumulators that are parts of one sum
    blocks: Mapping[str, Integer]  # loop of the nest -> trips of a block; 0 where it is not cut
    kept: list[Value]


class LongSums(Values):
    sums: Sums | None = None  # of the nest of loops that is being printed; None where it needs no blocks

    def blocks_of(self, levels: Sequence[Level], each: int, longest: int, most: int) -> dict[str, Integer]:
        """Loops (outermost first, with their trips) to be cut, so that an accumulator is added to `most` times only.

        The innermost loop adds `each` times a trip. Empty where there are no more than `longest` additions in all.
        """
        total = each
        for _, trips in levels:
            total = total * trips if isinstance(trips, int) and total >= 0 else -1
        if 0 <= total <= longest:
            return {}
        blocks: dict[str, Integer] = {}
        chain: Integer = each  # additions that a trip leaves in an accumulator
        for name, trips in reversed(levels):
            if isinstance(trips, int) and isinstance(chain, int):
                size = block_of(trips, max(1, most // chain)) if trips * chain > most else 0
                blocks[name], chain = size, (trips % size if size else trips) * chain
            else:
                blocks[name] = block = self.e.most(self.e.div(most, chain), 1)
                chain = self.e.mul(self.e.rem(trips, block), chain)
        return blocks

    def at_most(self, axis: Axis) -> Integer:
        """How much of an axis the running tile holds, or at most holds where that is known now."""
        size, tile = self.block[axis.name].size, self.plan.tile[axis.name]
        return tile if isinstance(tile, int) and not isinstance(size, int) else size

    def open_sums(self, blocks: Mapping[str, Integer], groups: Sequence[Sequence[int]], start: Sequence[Value]) -> None:
        zeros = [self.v.like(0.0, start[g[0]]) for g in groups for _ in range(2)]
        self.sums = Sums(tuple(map(tuple, groups)), blocks, zeros) if blocks and groups else None

    def close_sums(self, accumulators: Sequence[Value]) -> list[Value]:
        """The accumulators, with what was kept apart added to the first of each group."""
        out, v = list(accumulators), self.v
        if self.sums is not None:
            for (first, *_), s, c in zip(self.sums.groups, self.sums.kept[::2], self.sums.kept[1::2], strict=True):
                finite = v.compare("lt", v.absolute(s), v.like(float("inf"), s))  # of infinities c is NaN
                out[first] = v.add(out[first], v.add(s, v.select(finite, c, v.like(0.0, c))))
        return out

    def flush(self, accumulators: Sequence[Value]) -> list[Value]:
        """Adds the sums of a block to those that are kept, and starts anew."""
        sums, v, out = self.sums, self.v, list(accumulators)
        assert sums is not None
        for k, group in enumerate(sums.groups):
            parts = [out[n] for n in group]
            while len(parts) > 1:
                odd = parts[-1:] if len(parts) % 2 else []
                parts = [v.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
            s, c, x = sums.kept[2 * k], sums.kept[2 * k + 1], parts[0]
            t = v.add(s, x)
            back = v.sub(t, s)
            error = v.add(v.sub(s, v.sub(t, back)), v.sub(x, back))
            sums.kept[2 * k : 2 * k + 2] = [t, v.add(c, error)]
            for n in group:
                out[n] = v.like(0.0, out[n])
        return out

    def sum_loop(
        self, name: str, lo: Integer, hi: Integer, step: int, start: Sequence[Value], body: Body, each: int = 1
    ) -> list[Value]:
        """`Emit.loop`, for a loop of a nest of sums: in blocks where that was planned for it.

        `each`: how many of the planned trips one trip of this loop is.
        """
        sums, e = self.sums, self.e
        if sums is None:
            return e.loop(lo, hi, step, start, body)
        count = len(start)

        def carried(run: Body) -> Body:
            def around(i: Integer, values: list[Value]) -> Sequence[Value]:
                sums.kept = values[count:]
                out = list(run(i, values[:count]))
                return [*out, *sums.kept]

            return around

        def block(number: Integer, values: list[Value]) -> Sequence[Value]:
            first = e.add(lo, e.mul(number, span))
            fresh = list(values)
            for n in (n for group in sums.groups for n in group):
                fresh[n] = self.v.like(0.0, values[n])
            made = e.loop(first, e.add(first, span), step, [*fresh, *sums.kept], carried(body))
            sums.kept = made[count:]
            out = self.flush(made[:count])
            for n in (n for group in sums.groups for n in group):
                out[n] = values[n]
            return out

        planned = sums.blocks.get(name, 0)
        values, first = [*start, *sums.kept], lo
        if planned != 0:
            span = e.mul(e.most(e.div(planned, each), 1), step)
            blocks = e.div(e.most(e.sub(hi, lo), 0), span)
            values = e.loop(0, blocks, 1, values, carried(block))
            first = e.add(lo, e.mul(blocks, span))
        values = e.loop(first, hi, step, values, carried(body))
        sums.kept = values[count:]
        return values[:count]

    def flush_after(self, name: str, trip: int, accumulators: list[Value]) -> list[Value]:
        """For a loop that is written out: flushes after the last trip of a block."""
        planned = self.sums.blocks.get(name, 0) if self.sums is not None else 0
        ends = isinstance(planned, int) and planned > 0 and trip % planned == 0
        return self.flush(accumulators) if ends else accumulators

    # ---- nests of loops around one accumulator -----------------------------------------------------------------------
    def open_nest(self, s: Loop | Dot, start: Sequence[Value]) -> bool:
        """Plans the blocks of a nest that begins here; False inside of one, whose plan goes on."""
        own = s.out if isinstance(s, Dot) else s.carries[0].tile
        if self.sums is not None and own.name in self.sums.blocks:
            return False
        levels = self._levels(s) if own.dtype in SUMMED else None
        products = levels is not None and isinstance(self.plan.definitions[levels[-1][0]], Dot)
        longest, most = (LONGEST_DOT, DOT_BLOCK) if products else (LONGEST_SUM, SUM_BLOCK)
        blocks = self.blocks_of(levels, 1, longest, most) if levels else {}
        self.open_sums(blocks, [(n,) for n in range(len(start))], start)
        return True

    def _levels(self, s: Loop | Dot) -> list[Level] | None:
        """The loops of a nest that only adds to its accumulator, outermost first; None where it does more."""
        if isinstance(s, Dot):
            return [(s.out.name, self.at_most(s.over))]
        if len(s.carries) != 1:
            return None
        (carry,) = s.carries
        inner = self._added(s, carry.tile, carry.next)
        if inner is None:
            return None
        return [(carry.tile.name, self._trips(s.axis.extent, self.plan.tile[s.axis.name])), *inner]

    def _added(self, s: Loop, tile: Tile, last: Tile) -> list[Level] | None:
        """What is inside of a loop that adds to `tile` and gives `last`."""
        if sum(t == tile for x in statements(s.body) for t in read(x)) != 1 or last.axes != tile.axes:
            return None
        made = self.plan.definitions[last.name]
        match made:
            case Dot() if made.acc == tile:
                return [(last.name, self.dim(self.plan.tile[made.over.name]))]
            case Loop() if len(made.carries) == 1 and made.carries[0].init == tile:
                return self._levels(made)
            case Map(value=Apply("add", (a, b))) if (a == tile) != (b == tile):
                return [] if tile not in operands(b if a == tile else a) else None
            case _:
                return None

    def _trips(self, extent: Dim, size: Dim) -> Integer:
        """Whole steps of a loop at most."""
        if isinstance(extent, int) and isinstance(size, int):
            return max(1, extent // size)
        return self.e.ceil_div(self.dim(extent), size) if isinstance(size, int) else 1
