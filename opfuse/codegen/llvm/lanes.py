"""Vectors made from nothing: constants, splats of scalars, lane numbers, masks of the first lanes.

v.const(0.5, DType.F32);  v.splat_int(i);  v.iota();  v.lanes_below(rest)        # None where all lanes are valid
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from opfuse.codegen.llvm.emit import HELD, Emit, Handle, Integer, Value, depth
from opfuse.ir.types import DType


def float_text(x: float, dtype: DType) -> str:
    """A constant in LLVM's spelling: the bits of a double, which for a float must be exactly representable."""
    with np.errstate(over="ignore"):
        d = float(np.asarray(x).astype(dtype.numpy))
    return f"0x{struct.unpack('<Q', struct.pack('<d', d))[0]:016X}"


def constant_text(x: float | int | bool, dtype: DType) -> str:
    if dtype.is_float:
        return float_text(float(x), dtype)
    if dtype is DType.BOOL:
        return "true" if x else "false"
    bits = dtype.bytes * 8
    n = int(x) & ((1 << bits) - 1)
    return str(n - (1 << bits) if n >> (bits - 1) else n)


class Lanes:
    """`lanes` is the width of what is made here; the printer sets it for each pass."""

    def __init__(self, emit: Emit, isa: str, lanes: int) -> None:
        self.e, self.isa, self.lanes = emit, isa, lanes

    def const(self, x: float | int | bool, dtype: DType, lanes: int = 0) -> Value:
        return Value(f"splat ({HELD[dtype]} {constant_text(x, dtype)})", dtype, lanes or self.lanes)

    def like(self, x: float | int | bool, other: Value) -> Value:
        return self.const(x, other.dtype, other.lanes)

    def iota(self, dtype: DType = DType.I32, lanes: int = 0) -> Value:
        n = lanes or self.lanes
        return Value("<" + ", ".join(f"{HELD[dtype]} {k}" for k in range(n)) + ">", dtype, n)

    def numbered(self, numbers: Sequence[int]) -> Value:
        """A number for each lane."""
        return Value("<" + ", ".join(f"i64 {n}" for n in numbers) + ">", DType.I64, len(numbers))

    def numbers_of(self, v: Value) -> tuple[int, ...] | None:
        """The numbers of a vector made by `numbered`; None for one that is computed."""
        parts = v.text.strip("<>").split(", ") if v.text.startswith("<i64 ") else []
        return tuple(int(x.removeprefix("i64 ")) for x in parts) or None

    def picked(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes of two vectors; those of the second one are numbered on."""
        order = ", ".join(f"i32 {k}" for k in lanes)
        return self.e.value(f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{order}>", a.dtype, len(lanes))

    def splat(self, scalar: str, dtype: DType) -> Value:
        """All lanes equal to a scalar register."""
        t = f"<{self.lanes} x {HELD[dtype]}>"
        first = self.e.op(f"insertelement {t} poison, {HELD[dtype]} {scalar}, i64 0")
        return self.e.value(
            f"shufflevector {t} {first}, {t} poison, <{self.lanes} x i32> zeroinitializer", dtype, self.lanes
        )

    def splat_int(self, i: Integer, dtype: DType = DType.I32) -> Value:
        if isinstance(i, int):
            return self.const(i, dtype)
        scalar = i.text if dtype.bytes == 8 else self.e.pure(i.depth, f"trunc i64 {i.text} to {HELD[dtype]}")
        t = f"<{self.lanes} x {HELD[dtype]}>"
        first = self.e.pure(i.depth, f"insertelement {t} poison, {HELD[dtype]} {scalar}, i64 0")
        spread = f"shufflevector {t} {first}, {t} poison, <{self.lanes} x i32> zeroinitializer"
        return Value(self.e.pure(i.depth, spread), dtype, self.lanes)

    def splat_bit(self, bit: Handle) -> Value:
        t = f"<{self.lanes} x i1>"
        first = self.e.pure(bit.depth, f"insertelement {t} poison, i1 {bit.text}, i64 0")
        spread = f"shufflevector {t} {first}, {t} poison, <{self.lanes} x i32> zeroinitializer"
        return Value(self.e.pure(bit.depth, spread), DType.BOOL, self.lanes)

    def lanes_below(self, limit: Integer) -> Value | None:
        """Mask of the lanes whose number is below `limit`; None where that is all of them."""
        if isinstance(limit, int):
            if limit >= self.lanes:
                return None
            bits = ", ".join(f"i1 {int(k < limit)}" for k in range(self.lanes))
            return Value(f"<{bits}>", DType.BOOL, self.lanes)
        clipped = self.e.least(limit, self.lanes)
        bound = self.splat_int(clipped)
        mask = self.e.pure(depth(clipped), f"icmp slt {bound.type} {self.iota().text}, {bound.text}")
        return Value(mask, DType.BOOL, self.lanes)

    def turned(self, v: Value) -> Value:
        """The lanes in reverse order."""
        return self.picked(v, v, range(v.lanes - 1, -1, -1))

    def constant_lanes(self, mask: Value) -> int:
        """How many lanes a constant mask of the first lanes holds; 0 for a mask computed at run time."""
        return mask.text.count("i1 1")
