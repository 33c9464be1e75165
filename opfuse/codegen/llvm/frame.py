"""Where the printer is: the tile's place on every axis, and the register tile that is being computed.

Positions have three parts: the base of the axis' tile (`block`), the place inside the tile that the loops around have
reached (`relative`), and a constant shift inside the register tile (row r, lanes of vector j, step u of a dot).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opfuse.codegen.llvm.emit import Emit, Int, Integer, Value
from opfuse.codegen.llvm.passes import PassPlan
from opfuse.codegen.llvm.vectors import Vectors
from opfuse.ir.dims import Dim, Operation, Symbol
from opfuse.ir.index import Index
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.program import Tile
from opfuse.tile.schedule import Schedule

Shift = Mapping[str, int]  # axis -> constant offset in elements
Guarded = tuple[Index, Dim]  # an index that may leave its dimension, and the extent of that


@dataclass(frozen=True)
class RegisterTile:
    """`rows` of the blocked axis by `vectors` along the lane; `mask` tells the valid lanes of the last vector."""

    blocked: Axis | None
    lane: Axis | None
    rows: int
    vectors: int
    mask: Value | None
    streaming: bool  # no loop runs inside of it

    def points(self) -> list[tuple[int, int]]:
        return [(r, j) for r in range(self.rows) for j in range(self.vectors)]


@dataclass
class Block:
    base: Integer
    size: Integer


POINT = RegisterTile(None, None, 1, 1, None, True)


class Frame:
    """State of the printer of one phase."""

    def __init__(self, symbol: str, plan: PassPlan, schedule: Schedule, target: Target) -> None:
        self.symbol, self.plan, self.schedule, self.target = symbol, plan, schedule, target
        self.e = Emit()
        self.v = Vectors(self.e, target.isa, target.lanes())
        self.block: dict[str, Block] = {}
        self.relative: dict[str, Integer] = {}
        self.at = POINT
        self.folded: tuple[Axis, int] | None = None  # a reduced axis, and how many of its rows are made together
        self.inside: frozenset[Guarded] = frozenset()  # guarded indices that the running panel of rows proves inside
        self.written_out: frozenset[str] = frozenset()  # loops that the running panel writes out
        self.lanes_of_pass: tuple[int, Value | None] | None = None  # vectors and mask, where lanes come before rows
        self.pending: set[str] = set()  # kept tiles that the running pass makes itself

    def enter(self, axis: Axis, base: Integer, size: Integer) -> None:
        self.block[axis.name], self.relative[axis.name] = Block(base, size), 0

    def position(self, axis: str) -> Integer:
        return self.e.add(self.block[axis].base, self.relative[axis])

    def shift(self, r: int, j: int) -> dict[str, int]:
        """The constant offsets of row r and vector j of the register tile."""
        out = {}
        if self.at.blocked:
            out[self.at.blocked.name] = r
        if self.at.lane:
            out[self.at.lane.name] = j * self.v.lanes
        return out

    def mask(self, j: int) -> Value | None:
        return self.at.mask if j == self.at.vectors - 1 else None

    def has_lane(self, t: Tile) -> bool:
        """Do the lanes of the register tile hold different elements of this tile?"""
        return self.at.lane is not None and self.at.lane in t.axes

    # ---- run-time extents ------------------------------------------------------------------------------------------
    def dim(self, d: Dim) -> Integer:
        """A dimension as an i64 at the top of the function."""
        if isinstance(d, int):
            return d
        total: Integer = 0
        for monomial, c in d.terms:
            factor: Integer = c
            for atom in monomial:
                factor = self.e.mul(factor, self._atom(atom))
            total = self.e.add(total, factor)
        return total

    def _atom(self, atom: Symbol | Operation) -> Integer:
        if isinstance(atom, Symbol):
            return Int(f"%{symbol_name(atom.name)}", 0)
        a, b = self.dim(atom.left), self.dim(atom.right)
        match atom.op:
            case "min":
                return self.e.least(a, b)
            case "max":
                return self.e.most(a, b)
            case "floordiv":
                return self.e.floor_div(a, b)
            case _:
                return self.e.sub(a, self.e.mul(b, self.e.floor_div(a, b)))


def symbol_name(name: str) -> str:
    """A run-time extent as an LLVM argument; any text of the model's is allowed as a quoted name."""
    return f'"n_{_quoted(name)}"'


def buffer_name(name: str) -> str:
    return f'"b_{_quoted(name)}"'


def _quoted(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() or c in "._-" else f"\\{ord(c) & 0xFF:02X}" for c in name)
