"""The pass plan: how a tile program's body runs on a CPU. Frozen data between tile IR and LLVM text, with its own text.

A *pass* is one loop nest over the elements of a tile space, rows x lanes, at a register tile of `register[0]` rows by
`register[1]` vectors; all that its sinks need is evaluated on demand at that register tile. A pass ends where a
reduction must be complete or a dot needs a whole operand. What later passes need is *kept* in scratch, or made again.

    phase linear: grid m/192, n/64; scratch 0 bytes
      pass m, lane n, 6x4 of 16: store y -> Y
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opfuse.ir.dims import Dim
from opfuse.ir.scalar import Scalar
from opfuse.ir.scalar import text as scalar_text
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Loop, Phase, Reduce, Statement, Store, Tile, operands


@dataclass(frozen=True)
class Keep:
    """Write a value to a tile's scratch: a tile kept for later, or a carried tile's first or next value."""

    tile: Tile
    value: Scalar

    def __str__(self) -> str:
        if self.value == self.tile:
            return f"keep {self.tile}"
        return f"{self.tile} := {scalar_text(self.value)}"


Sink = Keep | Reduce | Store


@dataclass(frozen=True)
class Pass:
    """Loops over `rows`, then over `reduced` rows, with the lane's vectors inside; a single point has no lane."""

    rows: tuple[Axis, ...]
    reduced: tuple[Axis, ...]  # rows that the pass's reductions run over; their partial results stay in registers
    lane: Axis | None
    register: tuple[int, int]
    lanes: int  # elements of a vector
    blocked: Axis | None  # the row axis that a register tile holds several of
    sinks: tuple[Sink, ...]
    dotted: bool = False  # a dot or a loop runs inside of the register tile
    folded: Axis | None = None  # the rows of a register tile are of this axis, and are reduced at once
    lane_first: bool = False  # all rows of the blocked axis for some lanes, then for the next ones

    @property
    def space(self) -> frozenset[Axis]:
        return frozenset((*self.rows, *self.reduced, *((self.lane,) if self.lane else ())))

    def lines(self, indent: str) -> list[str]:
        over = [a.name for a in self.rows] + [f"({a.name})" for a in self.reduced]
        if self.folded:
            over.append(f"folding {self.folded.name}")
        if self.lane:
            over.append(f"lane {self.lane.name}" + (" first" if self.lane_first else ""))
        sinks = "; ".join(_sink_text(s) for s in self.sinks)
        return [
            f"{indent}pass {', '.join(over) or 'point'}, {self.register[0]}x{self.register[1]} of {self.lanes}: {sinks}"
        ]


@dataclass(frozen=True)
class Sequential:
    """A loop whose carried tiles lie in scratch, around passes."""

    loop: Loop
    body: tuple[Step, ...]

    def lines(self, indent: str) -> list[str]:
        carried = ", ".join(c.tile.name for c in self.loop.carries)
        head = f"{indent}loop {self.loop.axis.name}" + (f" carrying {carried} in scratch" if carried else "")
        return [head, *(line for s in self.body for line in s.lines(indent + "  "))]


@dataclass(frozen=True)
class Once:
    """What the grid axes after the first `outer` do not reach: run when those begin anew, and first in each call."""

    outer: int
    axes: tuple[Axis, ...]
    body: tuple[Step, ...]

    def lines(self, indent: str) -> list[str]:
        head = f"{indent}once for each {', '.join(a.name for a in self.axes) or 'call'}"
        return [head, *(line for s in self.body for line in s.lines(indent + "  "))]


Step = Pass | Sequential | Once


@dataclass(frozen=True)
class Scratch:
    """Where a tile lies in a thread's scratch: row-major over `order`, the last axis padded to whole vectors."""

    dtype: DType
    order: tuple[Axis, ...]
    strides: tuple[int, ...]  # elements
    offset: int  # bytes
    bytes: int


@dataclass(frozen=True)
class PassPlan:
    """One phase, planned."""

    name: str
    phase: Phase
    grid: tuple[Axis, ...]  # outermost first
    tile: Mapping[str, Dim]  # axis -> how much of it a tile holds
    steps: tuple[Step, ...]
    scratch: Mapping[str, Scratch]
    scratch_bytes: int
    tiles: Mapping[str, Tile]
    definitions: Mapping[str, Statement]  # tile -> the statement that makes it
    streamed: frozenset[str]  # results of reductions that a pass completes
    axes: Mapping[str, Axis]
    buffers: tuple[Buffer, ...]  # those that the phase touches, in the program's order

    def live(self, axis: Axis) -> bool:
        """Does a tile hold more than one element of this axis?"""
        return self.tile[axis.name] != 1

    def text(self) -> str:
        grid = ", ".join(f"{a.name}/{self.tile[a.name]}" for a in self.grid)
        lines = [f"phase {self.name}: grid {grid or 'of one tile'}; scratch {self.scratch_bytes} bytes"]
        for name, s in self.scratch.items():
            shape = " x ".join(f"{a.name}*{k}" for a, k in zip(s.order, s.strides, strict=True))
            lines.append(f"  scratch {name}: {s.dtype.value} [{shape}] at {s.offset}, {s.bytes} bytes")
        for step in self.steps:
            lines += step.lines("  ")
        return "\n".join(lines) + "\n"


def passes_of(steps: tuple[Step, ...]) -> list[Pass]:
    """All passes in the order in which they run, those inside loops too."""
    out: list[Pass] = []
    for s in steps:
        out += [s] if isinstance(s, Pass) else passes_of(s.body)
    return out


def _sink_text(s: Sink) -> str:
    match s:
        case Keep():
            return str(s)
        case Reduce():
            return f"{s.out} = {s.combine} of {s.tile} over {', '.join(a.name for a in s.over)}"
        case Store():
            return f"store {s.tile} -> {s.buffer.name}[{', '.join(map(str, s.index))}]"


def reads_of_sink(s: Sink) -> tuple[Tile, ...]:
    match s:
        case Keep():
            return operands(s.value)
        case Reduce() | Store():
            return (s.tile,)


def made_by_sink(s: Sink) -> frozenset[str]:
    match s:
        case Keep():
            return frozenset((s.tile.name,))
        case Reduce():
            return frozenset((s.out.name,))
        case Store():
            return frozenset()


def keeps(s: Sink) -> bool:
    """Does the sink make a tile and keep it (rather than set a carried one)?"""
    return isinstance(s, Keep) and s.value == s.tile
