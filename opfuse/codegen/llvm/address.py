"""Index maps to addresses: one function from (buffer, index, place) to a pointer and to what the lanes do there.

Terms are added to the pointer in the order of how seldom they change, so that each sum stands in the outermost loop
that has its parts, and what remains in the innermost one is a constant displacement.

A window that may leave its buffer reads pad values: where lanes do not matter the pointer is exchanged for a row of
constants, once per row and tap; otherwise lanes are masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from opfuse.codegen.llvm.emit import Handle, Int, Integer, Value, depth, multiple, text
from opfuse.codegen.llvm.frame import Frame, Shift, buffer_name
from opfuse.codegen.llvm.lanes import constant_text
from opfuse.codegen.llvm.layout import PackedLayout, packed_layout
from opfuse.ir.dims import Dim, non_negative
from opfuse.ir.index import AxisTerm, Extents, Gathered, Index, Quotient, Remainder, bounds
from opfuse.ir.scalar import Const
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Tile

SMALL = 1 << 30  # an extent below this, with the pads and steps that lead out of it, is counted in 32 bits
PAD_ROW_LIMIT = 1 << 14  # elements of a row of pad values
MEMORY = {
    DType.F64: "double", DType.F32: "float", DType.F16: "i16", DType.BF16: "i16", DType.BOOL: "i8",
    DType.I64: "i64", DType.I32: "i32", DType.I16: "i16", DType.I8: "i8",
    DType.U64: "i64", DType.U32: "i32", DType.U16: "i16", DType.U8: "i8",
    **{d: "i8" for d in DType if d.is_narrow},
}  # fmt: skip


@dataclass
class Linear:
    """An index at lane 0 as a sum of scaled positions; along the lanes `lane` is a step, `vector` any offsets."""

    terms: list[tuple[Integer, Integer]] = field(default_factory=list)
    const: int = 0
    lane: Integer = 0
    vector: Value | None = None


@dataclass(frozen=True)
class Access:
    """Where a vector lies. `lane` is the element stride of the lanes, `offsets` are added to it; `guard` and `mask` say
    whether, and in which lanes, the place exists; one that is `outside` is padding in all lanes."""

    pointer: Handle
    lane: Integer
    offsets: Value | None = None
    guard: Handle | None = None
    mask: Value | None = None
    outside: bool = False


class Addresses(Frame):
    # ---- indices ---------------------------------------------------------------------------------------------------
    def linear(self, index: Index, shift: Shift) -> Linear:
        out = Linear()
        self._add_constant(out, self.dim(index.const))
        for term, coefficient in index.terms:
            c = self.dim(coefficient)
            match term:
                case AxisTerm(name):
                    out.terms += [(self.block[name].base, c), (self.relative[name], c)]
                    self._add_constant(out, self.e.mul(c, shift.get(name, 0)))
                    if self.at.lane and name == self.at.lane.name:
                        out.lane = self.e.add(out.lane, c)
                case Quotient(numerator, divisor):
                    self._add_divided(out, self.linear(numerator, shift), self.dim(divisor), c, quotient=True)
                case Remainder(numerator, divisor):
                    self._add_divided(out, self.linear(numerator, shift), self.dim(divisor), c, quotient=False)
                case Gathered(source):
                    self._add_gathered(out, str(source), c, shift)
        return out

    def _add_constant(self, out: Linear, c: Integer) -> None:
        if isinstance(c, int):
            out.const += c
        else:
            out.terms.append((c, 1))

    def total(self, i: Linear) -> Integer:
        """The value at lane 0; terms that change seldom are added first."""
        parts = [self.e.mul(p, c) for p, c in i.terms]
        total: Integer = i.const
        for p in sorted(parts, key=depth):
            total = self.e.add(total, p) if p != 0 else total
        return total

    def _add_divided(self, out: Linear, n: Linear, divisor: Integer, c: Integer, quotient: bool) -> None:
        """out += c * (n // divisor) or c * (n % divisor); no division along lanes that cannot cross a multiple."""
        base = self.total(n)
        together = n.vector is None and (n.lane == 0 or (n.lane == 1 and self._in_one_block(base, divisor)))
        if together:
            out.terms.append((self.e.div(base, divisor) if quotient else self.e.rem(base, divisor), c))
            if not quotient:
                out.lane = self.e.add(out.lane, self.e.mul(c, n.lane))
            return
        aligned = isinstance(divisor, int) and divisor > 0 and multiple(base) % divisor == 0
        if aligned and n.vector is None and n.lane == 1 and isinstance(divisor, int) and isinstance(c, int):
            steps = [c * (k // divisor if quotient else k % divisor) for k in range(self.v.lanes)]
            if quotient:
                out.terms.append((self.e.div(base, divisor), c))
            part = self.v.numbered(steps)
            out.vector = part if out.vector is None else self.v.add(out.vector, part)
            return
        lanes = self.along_lanes(base, n.lane, n.vector)
        d = self.v.splat_int(divisor if isinstance(divisor, int) else self.e.most(divisor, 1), lanes.dtype)
        part = self.v.op("udiv" if quotient else "urem", lanes, d)
        part = self.v.mul(part, self.v.splat_int(c, part.dtype))
        out.vector = part if out.vector is None else self.v.add(out.vector, part)

    def _in_one_block(self, base: Integer, divisor: Integer) -> bool:
        """Have base ... base + lanes - 1 one quotient? Yes where both are multiples of a number >= `lanes`."""
        step = math.gcd(multiple(base), multiple(divisor))
        return step >= self.v.lanes or (step == 0 and divisor != 0)

    def along_lanes(self, base: Integer, lane: Integer, vector: Value | None, dtype: DType = DType.I64) -> Value:
        """An index in every lane."""
        out = self.v.splat_int(base, dtype)
        if lane != 0:
            steps = self.v.iota(dtype)
            out = self.v.add(out, steps if lane == 1 else self.v.mul(steps, self.v.splat_int(lane, dtype)))
        return out if vector is None else self.v.add(out, vector)

    def _add_gathered(self, out: Linear, source: str, c: Integer, shift: Shift) -> None:
        t = self.tile_named(source)
        r, j = self.point_of(shift)
        if self.has_lane(t):
            wide = self.v.convert(self.value(t, r, j), DType.I64)
            part = wide if c == 1 else self.v.mul(wide, self.v.splat_int(c, DType.I64))
            out.vector = part if out.vector is None else self.v.add(out.vector, part)
        else:
            out.terms.append((self.scalar_of(t, r), c))

    def point_of(self, shift: Shift) -> tuple[int, int]:
        r = shift.get(self.at.blocked.name, 0) if self.at.blocked else 0
        j = shift.get(self.at.lane.name, 0) // self.v.lanes if self.at.lane else 0
        return r, j

    def tile_named(self, name: str) -> Tile:
        return self.plan.tiles[name]

    def scalar_of(self, t: Tile, r: int) -> Int:
        """An integer tile that is the same in all lanes, as an index."""
        key = ("scalar", t.name, r if self.at.blocked in t.axes else 0, *(text(self.relative[a.name]) for a in t.axes))
        for at, scope in enumerate(self.e.scopes):
            if key in scope.values:
                return Int(scope.values[key].text, at + 1)
        value = self.v.convert(self.value(t, r, 0), DType.I64)
        scalar = Value(self.v.first(value), DType.I64, 1)
        self.e.scopes[-1].values[key] = scalar
        return Int(scalar.text, self.e.depth + 1)

    def value(self, t: Tile, r: int, j: int) -> Value:
        raise NotImplementedError

    # ---- addresses -------------------------------------------------------------------------------------------------
    def access(self, buffer: Buffer, index: Sequence[Index], shift: Shift, pad: Const | None) -> Access:
        places = [self.linear(i, shift) for i in index]
        for d, i in enumerate(index):
            if any(isinstance(t, Gathered) for t, _ in i.terms):
                places[d] = self._clamped(places[d], self.dim(buffer.shape[d]))
        guarded = [] if pad is None else self._guarded(buffer, index, places)
        if guarded is None:
            return Access(Handle("%" + buffer_name(buffer.name), 0), 0, outside=True)
        packing = self.schedule.pack.get(buffer.name)
        if packing is not None:
            return self._packed(buffer, places, packed_layout(buffer, packing))
        strides = [self.dim(s) for s in buffer.element_strides]
        last = guarded[-1] + 1 if guarded else 0
        together = all(i.lane == 0 and i.vector is None for i in places[:last])  # the lanes lie inside one row
        if guarded and together and pad is not None:
            access = self._with_pad_row(buffer, index, shift, guarded, pad)
            if access is not None:
                return access
        access = self._plain(buffer, places, strides)
        if not guarded:
            return access
        guard, mask = self._guards(buffer, places, guarded)
        return Access(access.pointer, access.lane, access.offsets, guard, mask)

    def _guarded(self, buffer: Buffer, index: Sequence[Index], places: Sequence[Linear]) -> list[int] | None:
        """The dimensions that a padded read may leave here; None where it is known to lie outside."""
        extents = {a.name: a.extent for a in self.plan.axes.values()}
        guarded = []
        for d, (i, n) in enumerate(zip(index, buffer.shape, strict=True)):
            if (i, n) in self.inside or _inside(i, n, extents):
                continue
            total, extent = self.total(places[d]), self.dim(n)
            known = places[d].lane == 0 and places[d].vector is None and isinstance(extent, int)
            if not (known and isinstance(total, int) and isinstance(extent, int)):
                guarded.append(d)
            elif not 0 <= total < extent:
                return None
        return guarded

    def _clamped(self, i: Linear, extent: Integer) -> Linear:
        """A gathered index kept inside of its buffer, whatever the integers are."""
        last = self.e.sub(extent, 1)
        if i.vector is None and i.lane == 0:
            total = self.total(i)
            return Linear([(self.e.most(self.e.least(total, last), 0), 1)])
        lanes = self.along_lanes(self.total(i), i.lane, i.vector)
        top, zero = self.v.splat_int(last, DType.I64), self.v.const(0, DType.I64)
        return Linear(vector=self.v.maximum(self.v.minimum(lanes, top), zero))

    def _plain(self, buffer: Buffer, places: Sequence[Linear], strides: Sequence[Integer]) -> Access:
        terms, offset, lane, vector = self._scaled(places, strides)
        pointer = self._chain(Handle("%" + buffer_name(buffer.name), 0), terms, offset, buffer.dtype.bytes)
        return Access(pointer, lane, vector)

    def _scaled(
        self, places: Sequence[Linear], strides: Sequence[Integer]
    ) -> tuple[list[tuple[Integer, Integer]], Integer, Integer, Value | None]:
        terms: list[tuple[Integer, Integer]] = []
        offset: Integer = 0
        lane: Integer = 0
        vector: Value | None = None
        for i, s in zip(places, strides, strict=True):
            terms += [(p, self.e.mul(c, s)) for p, c in i.terms]
            offset = self.e.add(offset, self.e.mul(i.const, s))
            lane = self.e.add(lane, self.e.mul(i.lane, s))
            if i.vector is not None:
                part = i.vector if s == 1 else self.v.mul(i.vector, self.v.splat_int(s, i.vector.dtype))
                vector = part if vector is None else self.v.add(vector, part)
        return terms, offset, lane, vector

    def _chain(
        self, pointer: Handle, terms: Sequence[tuple[Integer, Integer]], offset: Integer, element: int
    ) -> Handle:
        steps = [self.e.mul(p, self.e.mul(c, element)) for p, c in terms]
        offset = self.e.mul(offset, element)
        for s in sorted((s for s in steps if isinstance(s, Int)), key=depth):
            pointer = self.e.offset(pointer, s)
        constant = sum(s for s in steps if isinstance(s, int))
        return self.e.offset(pointer, self.e.add(offset, constant))

    def _packed(self, buffer: Buffer, places: Sequence[Linear], layout: PackedLayout) -> Access:
        """[extent / panel][others][panel]. No vector crosses a panel if start and panel are multiples of it."""
        i = places[layout.axis]
        start, shift = self.total(Linear(i.terms, 0)), i.const
        step = math.gcd(multiple(start), layout.panel) or layout.panel
        if not 0 <= shift % layout.panel < step:  # adding the shift might carry into the next panel
            start, shift = self.e.add(start, shift), 0
        together = i.lane == 0 or (i.lane == 1 and self._in_one_block(self.e.add(start, shift), layout.panel))
        if i.vector is not None or not together:
            return self._plain(buffer, self._across_panels(places, layout), list(layout.strides))
        panel = self.e.div(start, layout.panel)
        inside = self.e.rem(start, layout.panel)
        packed = Linear(
            [(panel, layout.panel_stride), (inside, 1)],
            shift // layout.panel * layout.panel_stride + shift % layout.panel, i.lane,
        )  # fmt: skip
        others = [packed if d == layout.axis else p for d, p in enumerate(places)]
        return self._plain(buffer, others, list(layout.strides))

    def _across_panels(self, places: Sequence[Linear], layout: PackedLayout) -> list[Linear]:
        """Lanes that may lie in two panels: each lane's place is worked out by itself."""
        i = places[layout.axis]
        lanes = self.along_lanes(self.total(i), i.lane, i.vector)
        size = self.v.splat_int(layout.panel, lanes.dtype)
        whole = self.v.mul(self.v.op("udiv", lanes, size), self.v.splat_int(layout.panel_stride, lanes.dtype))
        packed = Linear(vector=self.v.add(whole, self.v.op("urem", lanes, size)))
        return [packed if d == layout.axis else p for d, p in enumerate(places)]

    # ---- places outside of the buffer ------------------------------------------------------------------------------
    def _guards(
        self, buffer: Buffer, places: Sequence[Linear], guarded: Sequence[int]
    ) -> tuple[Handle | None, Value | None]:
        """Is the place inside, for all lanes at once and lane by lane? A negative index is a large unsigned one."""
        guard: Handle | None = None
        mask: Value | None = None
        for d in guarded:
            extent, total = self.dim(buffer.shape[d]), self.total(places[d])
            if places[d].lane == 0 and places[d].vector is None:
                inside = self.e.compare("ult", total, extent)
                guard = inside if guard is None else self.e.both(guard, inside)
            else:
                known = places[d].vector is None and isinstance(extent, int) and extent < SMALL
                lanes = self.along_lanes(total, places[d].lane, places[d].vector, DType.I32 if known else DType.I64)
                bound = self.v.splat_int(extent, lanes.dtype)
                below = self.e.value(f"icmp ult {lanes}, {bound.text}", DType.BOOL, lanes.lanes)
                mask = below if mask is None else self.v.logic("and", mask, below)
        return guard, mask

    def _with_pad_row(
        self, buffer: Buffer, index: Sequence[Index], shift: Shift, guarded: Sequence[int], pad: Const
    ) -> Access | None:  # fmt: skip
        """A pointer into the buffer, or to pad values where the place does not exist; None where those are too many.

        It is one pointer for all rows of the register tile where the guards do not change with the row.
        """
        blocked = self.at.blocked
        first, step, size = self.exchange(buffer, index, guarded, blocked, self.at.lane, self.at.rows)
        if size > PAD_ROW_LIMIT:
            return None
        behind = {k: n for k, n in shift.items() if not (step and blocked and k == blocked.name)}
        places, strides = [self.linear(i, behind) for i in index], [self.dim(s) for s in buffer.element_strides]
        terms, offset, _, _ = self._scaled(places[:first], strides[:first])
        pointer = self._chain(Handle("%" + buffer_name(buffer.name), 0), terms, offset, buffer.dtype.bytes)
        guard, _ = self._guards(buffer, places, guarded)
        assert guard is not None
        at = max(pointer.depth, guard.depth)
        name = self.pad_row(buffer.dtype, pad, size + self.v.lanes)
        pointer = Handle(self.e.pure(at, f"select i1 {guard.text}, ptr {pointer.text}, ptr {name}"), at)
        terms, offset, lane, vector = self._scaled(places[first:], strides[first:])
        if step and blocked is not None:
            offset = self.e.add(offset, step * shift.get(blocked.name, 0))
        return Access(self._chain(pointer, terms, offset, buffer.dtype.bytes), lane, vector)

    def exchange(
        self, buffer: Buffer, index: Sequence[Index], guarded: Sequence[int], blocked: Axis | None, lane: Axis | None,
        rows: int,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Where a pointer is exchanged for one to pad values: after how many dimensions, and what lies behind it.

        That is the step from row to row of the register tile, where the guards do not change with the row, and the
        number of elements that may be read in all.
        """
        first, step = guarded[-1] + 1, 0
        if blocked is not None and not any(blocked.name in index[d].axes for d in guarded):
            while first < len(index) and blocked.name in index[first].axes:
                i, stride = index[first], buffer.element_strides[first]
                forward = i.coefficient(blocked.name) * stride
                if not (isinstance(forward, int) and forward > 0 and i.affine) or (lane and lane.name in i.axes):
                    break
                first, step = first + 1, step + forward
        return first, step, row_elements(buffer, first) + step * (rows - 1)

    def pad_row(self, dtype: DType, pad: Const, elements: int) -> str:
        """A constant of pad values, shared by the accesses that need the same."""
        value = _memory_constant(pad, dtype)
        size = 1 << max(elements - 1, 1).bit_length()
        name = f'@"{self.symbol}.pad.{dtype.value}.{value}.{size}"'
        element = MEMORY[dtype]
        zero = value in ("0", "0x0000000000000000")
        content = "zeroinitializer" if zero else "[" + ", ".join([f"{element} {value}"] * size) + "]"
        self.e.globals[name] = f"private constant [{size} x {element}] {content}, align 64"
        return name


def _memory_constant(pad: Const, dtype: DType) -> str:
    """A constant as it stands in memory; half-precision ones by their bits."""
    if dtype in (DType.F16, DType.BF16):
        import numpy as np

        return str(int(np.asarray(pad.value, dtype.numpy).view(np.int16)))
    if dtype is DType.BOOL:
        return str(int(bool(pad.value)))
    return constant_text(pad.value, dtype)


def row_elements(buffer: Buffer, first: int) -> int:
    """Elements that the dimensions from `first` on span; too many where that is not known."""
    total = 1
    for n, s in zip(buffer.shape[first:], buffer.element_strides[first:], strict=True):
        if not (isinstance(n, int) and isinstance(s, int)):
            return PAD_ROW_LIMIT + 1
        total += max(n - 1, 0) * abs(s)
    return total


def _inside(index: Index, extent: Dim, extents: Extents) -> bool:
    """Proven 0 <= index < extent over the whole iteration space."""
    low, high = bounds(index, extents)
    if low is None or high is None or not non_negative(low):
        return False
    gap = extent - high
    return isinstance(gap, int) and gap > 0
