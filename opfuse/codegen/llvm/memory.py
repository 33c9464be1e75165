"""Vectors to and from memory: neighbours, one element for all lanes, strides and gathers; masked tails; scratch tiles.

v = memory.read(load, {"m": 2, "n": 16}, mask)         # lanes of a buffer at the current place plus a shift
memory.write_local(tile, v, 2, 1)                      # a kept tile, at row 2 and vector 1 of the register tile
"""

from __future__ import annotations

from opfuse.codegen.llvm.address import MEMORY, Access, Addresses
from opfuse.codegen.llvm.emit import Handle, Int, Integer, Value, depth
from opfuse.codegen.llvm.frame import Shift
from opfuse.codegen.llvm.passes import Scratch
from opfuse.ir.scalar import Const
from opfuse.ir.types import DType
from opfuse.tile.program import Load, Store, Tile

STORED = {DType.F16: DType.I16, DType.BF16: DType.I16, DType.BOOL: DType.U8}  # held otherwise than they lie in memory
LOCAL = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.BOOL: DType.U8}  # in scratch half precision stays a float

NEAR = 4  # vectors that are read whole for the lanes of one: a gather costs as much as a dozen


class Memory(Addresses):
    # ---- buffers ---------------------------------------------------------------------------------------------------
    def read(self, load: Load, shift: Shift, mask: Value | None) -> Value:
        access = self.access(load.buffer, load.index, shift, load.pad)
        dtype = load.buffer.dtype
        raw = self._load(
            access, STORED.get(dtype, dtype), dtype, load.pad, mask, load.buffer.name in self.schedule.pack
        )
        self._prefetch_ahead(load, access)
        held = self.v.from_memory(raw, dtype)
        return self.v.convert(held, load.out.dtype)

    def _load(
        self, a: Access, stored: DType, dtype: DType, pad: Const | None, mask: Value | None, padded: bool
    ) -> Value:
        type_, lanes = MEMORY[dtype], self.v.lanes
        if a.outside:
            return self._outside(pad, dtype, stored)
        if a.offsets is None and a.lane == 0 and a.mask is None:
            pointer = a.pointer
            if a.guard is not None and pad is not None:
                at = max(pointer.depth, a.guard.depth)
                row = self.pad_row(dtype, pad, 1)
                pointer = Handle(self.e.pure(at, f"select i1 {a.guard.text}, ptr {pointer.text}, ptr {row}"), at)
            scalar = self.e.op(f"load {type_}, ptr {pointer.text}, align {dtype.bytes}")
            return self.v.splat(scalar, stored)
        valid = self._valid(a, None if padded else mask)
        outside = self._outside(pad, dtype, stored)
        vector = f"<{lanes} x {type_}>"
        if a.offsets is None and a.lane == -1:  # the same neighbours, turned round
            first = self.e.offset(a.pointer, -(lanes - 1) * dtype.bytes)
            valid = self._valid(a, mask)
            turned = Access(first, 1, mask=None if valid is None else self.v.turned(valid))
            return self.v.turned(self._load(turned, stored, dtype, pad, None, padded))
        if a.offsets is None and a.lane == 1:
            if valid is None:
                return self.e.value(f"load {vector}, ptr {a.pointer.text}, align {dtype.bytes}", stored, lanes)
            call = f"call {vector} @llvm.masked.load.v{lanes}{_suffix(type_)}.p0("
            place = f"ptr align {dtype.bytes} {a.pointer.text}"
            return self.e.value(f"{call}{place}, {valid}, {outside})", stored, lanes)
        near = self._near(a, mask)
        if near is not None:
            return self._picked(a.pointer, near, stored, dtype)
        places = self._places(a, type_)
        every = valid or Value("splat (i1 true)", DType.BOOL, lanes)
        call = f"call {vector} @llvm.masked.gather.v{lanes}{_suffix(type_)}.v{lanes}p0("
        return self.e.value(f"{call}<{lanes} x ptr> align {dtype.bytes} {places}, {every}, {outside})", stored, lanes)

    def _near(self, a: Access, mask: Value | None) -> list[int] | None:
        """Where the lanes lie behind the pointer, if that is known and near: every second element, each twice."""
        lanes = self.v.lanes
        steps = self.v.numbers_of(a.offsets) if a.offsets is not None else (0,) * lanes
        valid = lanes if mask is None else self.v.constant_lanes(mask)
        if a.mask is not None or a.guard is not None or steps is None or not isinstance(a.lane, int) or not valid:
            return None
        places = [n + k * a.lane for k, n in enumerate(steps[:valid])]
        return places if min(places) >= 0 and max(places) < NEAR * lanes else None

    def _picked(self, pointer: Handle, places: list[int], stored: DType, dtype: DType) -> Value:
        """Whole vectors are read, up to the last place, and lanes picked out of them, two vectors at a time."""
        lanes, end = self.v.lanes, max(places) + 1
        parts: list[Value] = []
        for at in range(0, end, lanes):
            place = self.e.offset(pointer, at * dtype.bytes)
            parts.append(self._load(Access(place, 1), stored, dtype, None, self.v.lanes_below(end - at), False))
        places = places + places[-1:] * (lanes - len(places))
        halves = []
        for k in range(0, len(parts), 2):
            pair = parts[k : k + 2]
            inside = [p - k * lanes if k * lanes <= p < (k + 2) * lanes else 0 for p in places]
            halves.append(self.v.picked(pair[0], pair[-1], inside))
        if len(halves) == 1:
            return halves[0]
        order = [k if p < 2 * lanes else k + lanes for k, p in enumerate(places)]
        return self.v.picked(halves[0], halves[1], order)

    def _outside(self, pad: Const | None, dtype: DType, stored: DType) -> Value:
        if pad is None:
            return self.v.const(0, stored)
        if dtype in (DType.F16, DType.BF16):
            return self.v.to_memory(self.v.const(pad.value, dtype))
        return self.v.const(int(bool(pad.value)) if dtype is DType.BOOL else pad.value, stored)

    def _valid(self, a: Access, mask: Value | None) -> Value | None:
        """Lanes that exist; None where all do."""
        valid = mask
        for extra in (a.mask, None if a.guard is None else self.v.splat_bit(a.guard)):
            if extra is not None:
                valid = extra if valid is None else self.v.logic("and", valid, extra)
        return valid

    def _places(self, a: Access, type_: str) -> str:
        """One pointer a lane."""
        lanes = self.v.lanes
        if a.offsets is None and isinstance(a.lane, int) and abs(a.lane) * lanes < 1 << 31:
            steps = "<" + ", ".join(f"i32 {k * a.lane}" for k in range(lanes)) + ">"
            return self.e.op(f"getelementptr {type_}, ptr {a.pointer.text}, <{lanes} x i32> {steps}")
        steps_value = self.along_lanes(0, a.lane, a.offsets)
        return self.e.op(f"getelementptr {type_}, ptr {a.pointer.text}, {steps_value}")

    def _prefetch_ahead(self, load: Load, a: Access) -> None:
        """A streaming load asks for what it will read soon."""
        if self.at.streaming and self.schedule.prefetch and a.lane == 1 and len(load.buffer.shape) > 1:
            ahead = self.e.op(f"getelementptr i8, ptr {a.pointer.text}, i64 {self.schedule.prefetch}")
            self.e.line(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")

    def write(self, store: Store, value: Value, shift: Shift, mask: Value | None) -> None:
        dtype, lanes = store.buffer.dtype, self.v.lanes
        a = self.access(store.buffer, store.index, shift, None)
        raw = self.v.to_memory(self.v.convert(value, dtype))
        type_ = MEMORY[dtype]
        vector = f"<{lanes} x {type_}>"
        if a.offsets is None and a.lane == 0:
            self.e.line(f"store {type_} {self.v.first(raw)}, ptr {a.pointer.text}, align {dtype.bytes}")
        elif a.offsets is None and a.lane == -1 and mask is None:
            place = self.e.offset(a.pointer, -(lanes - 1) * dtype.bytes)
            self.e.line(f"store {self.v.turned(raw)}, ptr {place.text}, align {dtype.bytes}")
        elif a.offsets is None and a.lane == 1 and mask is None:
            self.e.line(f"store {vector} {raw.text}, ptr {a.pointer.text}, align {dtype.bytes}")
        elif a.offsets is None and a.lane == 1 and mask is not None:
            self._store_masked(a.pointer, raw, mask, dtype)
        elif dtype.is_float and dtype.bytes >= 4 and (near := self._near(a, mask)) and len({*near}) == len(near):
            self._spread(a.pointer, near, raw, dtype)
        else:
            every = mask or Value("splat (i1 true)", DType.BOOL, lanes)
            call = f"call void @llvm.masked.scatter.v{lanes}{_suffix(type_)}.v{lanes}p0({vector} {raw.text}, "
            self.e.line(f"{call}<{lanes} x ptr> align {dtype.bytes} {self._places(a, type_)}, {every})")

    def _spread(self, pointer: Handle, places: list[int], raw: Value, dtype: DType) -> None:
        """Lanes are moved to where they lie in whole vectors, which are stored without the lanes between."""
        lanes, type_ = self.v.lanes, MEMORY[dtype]
        lane_at = {p: k for k, p in enumerate(places)}
        for at in range(0, max(places) + 1, lanes):
            here = [lane_at.get(at + k) for k in range(lanes)]
            moved = self.v.picked(raw, raw, [k or 0 for k in here])
            bits = ", ".join(f"i1 {int(k is not None)}" for k in here)
            place = self.e.offset(pointer, at * dtype.bytes)
            call = f"call void @llvm.masked.store.v{lanes}{_suffix(type_)}.p0({moved}, "
            self.e.line(f"{call}ptr align {dtype.bytes} {place.text}, <{lanes} x i1> <{bits}>)")

    def _store_masked(self, pointer: Handle, raw: Value, mask: Value, dtype: DType) -> None:
        """The first lanes only; a known number of them as plain stores of 8, 4, 2 and 1 of them.

        A CPU takes a masked store for one of the whole vector when a later load asks whether it must wait: in a kernel
        that runs in place, the next row's does, for twenty cycles a row.
        """
        type_, lanes = MEMORY[dtype], self.v.lanes
        count, at = self.v.constant_lanes(mask), 0
        if not count:
            call = f"call void @llvm.masked.store.v{lanes}{_suffix(type_)}.p0(<{lanes} x {type_}> {raw.text}, "
            self.e.line(f"{call}ptr align {dtype.bytes} {pointer.text}, {mask})")
        while at < count:
            n = 1 << (count - at).bit_length() - 1
            picked = ", ".join(f"i32 {at + k}" for k in range(n))
            part = self.e.op(f"shufflevector {raw}, {raw.type} poison, <{n} x i32> <{picked}>")
            place = self.e.offset(pointer, at * dtype.bytes)
            self.e.line(f"store <{n} x {type_}> {part}, ptr {place.text}, align {dtype.bytes}")
            at += n

    # ---- scratch ---------------------------------------------------------------------------------------------------
    def _local(self, t: Tile, shift: Shift) -> tuple[Handle, int, DType]:
        """Pointer to a kept tile at the current place, the element stride of the lanes, and the type in scratch."""
        s: Scratch = self.plan.scratch[t.name]
        dtype = LOCAL.get(t.dtype, t.dtype)
        terms: list[Integer] = []
        offset, lane = s.offset, 0
        for a, stride in zip(s.order, s.strides, strict=True):
            terms.append(self.e.mul(self.relative[a.name], stride * dtype.bytes))
            offset += shift.get(a.name, 0) * stride * dtype.bytes
            lane = stride if a == self.at.lane else lane
        pointer = Handle("%scratch", 0)
        for term in sorted((x for x in terms if isinstance(x, Int)), key=depth):
            pointer = self.e.offset(pointer, term)
        offset += sum(x for x in terms if isinstance(x, int))
        return self.e.offset(pointer, offset), lane, dtype

    def read_local(self, t: Tile, shift: Shift) -> Value:
        pointer, lane, dtype = self._local(t, shift)
        raw = self._load(Access(pointer, lane), dtype, dtype, None, None, True)
        return self.v.from_memory(raw, DType.BOOL) if t.dtype is DType.BOOL else Value(raw.text, t.dtype, raw.lanes)

    def write_local(self, t: Tile, value: Value, shift: Shift) -> None:
        pointer, lane, dtype = self._local(t, shift)
        held = Value(value.text, dtype, value.lanes) if t.dtype in (DType.F16, DType.BF16) else self.v.to_memory(value)
        type_, lanes = MEMORY[dtype], self.v.lanes
        if lane == 1:
            self.e.line(f"store {held}, ptr {pointer.text}, align {dtype.bytes}")
        elif lane == 0:
            self.e.line(f"store {type_} {self.v.first(held)}, ptr {pointer.text}, align {dtype.bytes}")
        else:
            mask = self.at.mask or Value("splat (i1 true)", DType.BOOL, lanes)
            call = f"call void @llvm.masked.scatter.v{lanes}{_suffix(type_)}.v{lanes}p0({held}, "
            places = self._places(Access(pointer, lane), type_)
            self.e.line(f"{call}<{lanes} x ptr> align {dtype.bytes} {places}, {mask})")


def _suffix(type_: str) -> str:
    return {"double": "f64", "float": "f32"}.get(type_, type_)
