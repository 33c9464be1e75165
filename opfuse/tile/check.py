"""Is a tile program well formed? Every lowering is checked before it is printed, so that printers need not ask.

Single assignment inside a phase, known axes, matching carries, index ranks, types, no race between grid tiles. What a
program means can only be told by running it; this finds what no printer could give a meaning to.

    check(program)          # None, or raises IllFormed: "in 'next[m, n] = dot(acc, a, w, over k)': w does not list k"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opfuse.ir.dims import Dim
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder
from opfuse.ir.scalar import FUNCTIONS, Apply, Operand, Position, Scalar, walk
from opfuse.ir.structure import COMBINERS, Axis
from opfuse.ir.types import DType
from opfuse.tile.program import (
    Beside,
    Buffer,
    Carry,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Reduce,
    Rename,
    Repeat,
    Statement,
    Store,
    Tile,
    made,
    phase_axes,
    read,
    statements,
)
from opfuse.tile.text import statement_text

LOGICAL = ("and", "or")
PRECISIONS = ("ieee", "tf32", "tf32x3")


class IllFormed(ValueError):
    """A tile program that has no meaning. `statement` is the one at fault, where it is one."""

    def __init__(self, message: str, statement: Statement | None = None) -> None:
        super().__init__(message if statement is None else f"in {statement_text(statement)!r}: {message}")
        self.statement = statement


def check(program: Program) -> None:
    """IllFormed where the program's parts do not fit together; the message names the statement."""
    names = [b.name for b in program.buffers]
    if len(set(names)) != len(names):
        raise IllFormed(f"buffer names repeat: {names}")
    for b in program.buffers:
        if b.strides is not None and len(b.strides) != len(b.shape):
            raise IllFormed(f"buffer {b.name} has {len(b.shape)} dimensions and {len(b.strides)} strides")
    written: set[str] = set()
    for part in program.phases:
        if isinstance(part, Repeat):
            written |= {b for phase in part.phases for b in _stored(phase)}
        phases = (part,) if isinstance(part, Phase) else part.phases
        for phase in phases:
            _PhaseCheck(program, phase, part.axis if isinstance(part, Repeat) else None, frozenset(written)).run()
        if isinstance(part, Beside):
            _check_apart(part)
        written |= {b for phase in phases for b in _stored(phase)}
    for b in program.buffers:
        if b.role == "out" and b.name not in written:
            raise IllFormed(f"nothing is stored to the output {b.name}")


def _check_apart(part: Beside) -> None:
    """Phases that run at the same time have axes of their own, and none reads or writes what another writes."""
    seen: set[str] = set()
    for number, phase in enumerate(part.phases):
        names = {a.name for a in phase_axes(phase)}
        if names & seen:
            raise IllFormed(f"phases beside each other share the axes {sorted(names & seen)}")
        seen |= names
        loaded = {s.buffer.name for s in statements(phase.body) if isinstance(s, Load)}
        for other in part.phases[:number] + part.phases[number + 1 :]:
            if common := (loaded | _stored(phase)) & _stored(other):
                raise IllFormed(f"phases beside each other meet in the buffers {sorted(common)}")


def _stored(phase: Phase) -> set[str]:
    return {s.buffer.name for s in statements(phase.body) if isinstance(s, Store)}


@dataclass
class _Scope:
    """Tiles visible in a body, and the axes that its loops fix."""

    tiles: dict[str, Tile] = field(default_factory=dict)
    loops: tuple[Axis, ...] = ()


class _PhaseCheck:
    def __init__(self, program: Program, phase: Phase, repeat: Axis | None, written: frozenset[str]) -> None:
        self.program, self.phase, self.repeat, self.written = program, phase, repeat, written
        self.names: set[str] = set()  # every tile made in the phase
        self.axes: dict[str, Axis] = {}
        self.grid = frozenset(a.name for a in phase.grid)
        self.looped = frozenset(s.axis.name for s in statements(phase.body) if isinstance(s, Loop))
        self.listed = {a.name for s in statements(phase.body) for t in (*made(s), *read(s)) for a in t.axes}
        self.statement: Statement | None = None

    def fail(self, message: str) -> IllFormed:
        return IllFormed(message, self.statement)

    def run(self) -> None:
        if len(self.grid) != len(self.phase.grid):
            raise self.fail(f"grid axes repeat: {[a.name for a in self.phase.grid]}")
        for a in (*phase_axes(self.phase), *((self.repeat,) if self.repeat else ())):
            if self.axes.setdefault(a.name, a) != a:
                raise self.fail(f"axis {a.name} has two extents: {self.axes[a.name].extent} and {a.extent}")
        if both := sorted(self.grid & self.looped):
            raise self.fail(f"axes {both} are grid axes and loop axes at once")
        self.body(self.phase.body, _Scope())

    def body(self, body: Iterable[Statement], scope: _Scope) -> None:
        for s in body:
            self.statement = s
            match s:
                case Load():
                    self.load(s, scope)
                case Store():
                    self.store(s, scope)
                case Map():
                    self.scalar(s.value, s.out, scope)
                case Reduce():
                    self.reduce(s, scope)
                case Dot():
                    self.dot(s, scope)
                case Rename():
                    self.rename(s, scope)
                case Loop():
                    self.loop(s, scope)
            self.statement = s
            if not isinstance(s, Loop):
                for t in made(s):
                    self.define(t, scope)

    # ---- names and axes ---------------------------------------------------------------------------------------------
    def define(self, t: Tile, scope: _Scope) -> None:
        if t.name in self.names:
            raise self.fail(f"tile {t.name} is made twice")
        if len({a.name for a in t.axes}) != len(t.axes):
            raise self.fail(f"tile {t.name} lists an axis twice")
        inside = {a.name for a in scope.loops}
        for a in t.axes:
            if self.repeat is not None and a.name == self.repeat.name:
                raise self.fail(f"tile {t.name} lists {a.name}, which is repeated around the phase")
            if a.name in self.looped and a.name not in inside:
                raise self.fail(f"tile {t.name} lists {a.name} outside its loop")
        self.names.add(t.name)
        scope.tiles[t.name] = t

    def known(self, t: Tile, scope: _Scope) -> None:
        have = scope.tiles.get(t.name)
        if have is None:
            why = "not visible here" if t.name in self.names else "not made before"
            raise self.fail(f"tile {t.name} is {why}")
        if have != t:
            raise self.fail(f"tile {t.name} is read with other axes or another type than it was made with")

    def fixed(self, name: str, listed: Iterable[Axis], scope: _Scope) -> None:
        """A position along `name` has one value at each point of a tile with these axes."""
        if name in {a.name for a in listed}:
            return
        if name not in self.axes:
            raise self.fail(f"axis {name} is not an axis of the phase")
        outside = name not in self.grid and name not in {a.name for a in scope.loops}
        if outside and (self.repeat is None or name != self.repeat.name):
            raise self.fail(f"axis {name} stands in an index, but the tile does not list it")
        if name in self.listed:
            raise self.fail(f"axis {name} stands in an index and is cut into tiles, but this tile does not list it")

    def index(self, index: tuple[Index, ...], buffer: Buffer, listed: tuple[Axis, ...], scope: _Scope) -> None:
        if buffer not in self.program.buffers:
            raise self.fail(f"buffer {buffer.name} is not one of the program's buffers")
        if len(index) != len(buffer.shape):
            raise self.fail(f"{len(index)} indices for the {len(buffer.shape)} dimensions of {buffer.name}")
        for i in index:
            for name in sorted(i.axes):
                self.fixed(name, listed, scope)
            for source in _gathered(i):
                self.gathered(source, listed, scope)

    def gathered(self, name: str | int, listed: tuple[Axis, ...], scope: _Scope) -> None:
        tile = scope.tiles.get(name) if isinstance(name, str) else None
        if tile is None:
            raise self.fail(f"gathered tile {name} is not made before")
        if not tile.dtype.is_integer:
            raise self.fail(f"gathered tile {name} is {tile.dtype.value}, not an integer")
        if missing := [a.name for a in tile.axes if a not in listed]:
            raise self.fail(f"gathered tile {name} has axes {missing} that the result does not list")

    # ---- statements -------------------------------------------------------------------------------------------------
    def load(self, s: Load, scope: _Scope) -> None:
        self.index(s.index, s.buffer, s.out.axes, scope)
        self.same(s.out.dtype, s.buffer.dtype, f"tile {s.out.name} and buffer {s.buffer.name}")
        if s.pad is not None:
            self.same(s.pad.dtype, s.buffer.dtype, f"pad and buffer {s.buffer.name}")
        elif not empty((*s.out.axes, *self.phase.grid)) and (where := self.leaves(s.index, s.buffer, scope)):
            raise self.fail(f"index {where} leaves the buffer {s.buffer.name} and there is no pad")
        if s.buffer.role in ("out", "scratch"):
            if s.buffer.name not in self.written:
                raise self.fail(f"{s.buffer.role} buffer {s.buffer.name} is read before any phase has written it")
            if self.repeat is None and s.buffer.name in _stored(self.phase):
                raise self.fail(f"buffer {s.buffer.name} is read and written in one phase")

    def store(self, s: Store, scope: _Scope) -> None:
        self.known(s.tile, scope)
        self.index(s.index, s.buffer, s.tile.axes, scope)
        self.same(s.tile.dtype, s.buffer.dtype, f"tile {s.tile.name} and buffer {s.buffer.name}")
        if s.buffer.role not in ("out", "scratch"):
            raise self.fail(f"a store to {s.buffer.name}, which is {s.buffer.role}")
        if any(_gathered(i) for i in s.index):
            raise self.fail("a store to a gathered place: two points could write one element")
        used = {name for i in s.index for name in i.axes}
        for a in (*self.phase.grid, *s.tile.axes):
            if a.name not in used and a.extent != 1:
                raise self.fail(f"axis {a.name} does not stand in the index: several points write one element")
        if where := self.leaves(s.index, s.buffer, scope):
            raise self.fail(f"index {where} leaves the buffer {s.buffer.name}")

    def reduce(self, s: Reduce, scope: _Scope) -> None:
        self.known(s.tile, scope)
        if s.combine not in COMBINERS:
            raise self.fail(f"no combiner {s.combine!r}; there are {', '.join(COMBINERS)}")
        if not s.over:
            raise self.fail("a reduction over no axis")
        for a in s.over:
            self.summed(a, s.tile)
        if set(s.out.axes) != set(s.tile.axes) - set(s.over):
            raise self.fail(f"{s.out.name} must list the axes of {s.tile.name} without those reduced")
        self.same(s.out.dtype, s.tile.dtype, f"{s.out.name} and {s.tile.name}")
        if (s.combine in LOGICAL) != (s.tile.dtype is DType.BOOL) and s.combine not in ("max", "min"):
            raise self.fail(f"{s.combine} of {s.tile.dtype.value}")

    def dot(self, s: Dot, scope: _Scope) -> None:
        for t in (s.acc, s.a, s.b):
            self.known(t, scope)
        for t in (s.a, s.b):
            self.summed(s.over, t)
        if set(s.out.axes) != set(s.acc.axes):
            raise self.fail(f"{s.out.name} and {s.acc.name} differ in axes")
        if set(s.out.axes) != (set(s.a.axes) | set(s.b.axes)) - {s.over}:
            raise self.fail(f"{s.out.name} must list the axes of {s.a.name} and {s.b.name} without {s.over.name}")
        self.same(s.out.dtype, s.acc.dtype, f"{s.out.name} and {s.acc.name}")
        kinds = {(t.dtype.is_float, t.dtype is DType.BOOL) for t in (s.acc, s.a, s.b)}
        if len(kinds) > 1 or s.acc.dtype is DType.BOOL:
            raise self.fail(f"a dot of {s.a.dtype.value} and {s.b.dtype.value} into {s.acc.dtype.value}")
        if s.precision not in PRECISIONS:
            raise self.fail(f"no precision {s.precision!r}; there are {', '.join(PRECISIONS)}")

    def rename(self, s: Rename, scope: _Scope) -> None:
        self.known(s.tile, scope)
        if s.old not in s.tile.axes or s.old.extent != s.new.extent:
            raise self.fail(f"{s.tile.name} lists no axis {s.old.name} as long as {s.new.name}")
        for a in (s.old, s.new):
            if a.name in self.grid or a.name in self.looped:
                raise self.fail(f"{a.name} is cut into tiles: a tile holds a part of it")
        if set(s.out.axes) != (set(s.tile.axes) - {s.old}) | {s.new}:
            raise self.fail(f"{s.out.name} must list the axes of {s.tile.name} with {s.new.name} for {s.old.name}")
        self.same(s.out.dtype, s.tile.dtype, f"{s.out.name} and {s.tile.name}")

    def summed(self, a: Axis, tile: Tile) -> None:
        if a not in tile.axes:
            raise self.fail(f"{tile.name} does not list {a.name}")
        if a.name in self.grid:
            raise self.fail(f"{a.name} is a grid axis: a tile holds a part of it, and no other tile's part is seen")

    def loop(self, s: Loop, scope: _Scope) -> None:
        if s.axis.name in {a.name for a in scope.loops}:
            raise self.fail(f"a loop over {s.axis.name} inside a loop over it")
        for c in s.carries:
            self.scalar(c.init, c.tile, scope)
        for bound in (s.start, s.stop):
            for name in bound.axes if bound is not None else ():
                if name not in self.grid and name not in {a.name for a in scope.loops}:
                    raise self.fail(f"the loop's bound names {name}, which is no grid axis and no loop around it")
            if bound is not None and not bound.affine:
                raise self.fail("the loop's bound is not affine")
        for c in s.carries:
            if s.axis in c.tile.axes:
                raise self.fail(f"carried tile {c.tile.name} lists the loop's own axis")
            self.define(c.tile, scope)
        inner = _Scope(dict(scope.tiles), (*scope.loops, s.axis))
        self.body(s.body, inner)
        self.statement = s
        for c in s.carries:
            self.carried(c, inner)

    def carried(self, c: Carry, inner: _Scope) -> None:
        self.known(c.next, inner)
        if set(c.next.axes) != set(c.tile.axes):
            raise self.fail(f"carried tile {c.tile.name} and its next value {c.next.name} differ in axes")
        self.same(c.next.dtype, c.tile.dtype, f"carried tile {c.tile.name} and its next value {c.next.name}")

    # ---- scalars ----------------------------------------------------------------------------------------------------
    def scalar(self, value: Scalar, out: Tile, scope: _Scope) -> None:
        self.same(value.dtype, out.dtype, f"{out.name} and its value")
        for x in walk(value):
            match x:
                case Tile():
                    self.known(x, scope)
                    if missing := [a.name for a in x.axes if a not in out.axes]:
                        raise self.fail(f"{x.name} has axes {missing} that {out.name} does not list")
                case Position(name):
                    self.fixed(name, out.axes, scope)
                case Apply():
                    self.application(x)
                case Operand():
                    raise self.fail("operands stand in structures, not in tile programs")

    def application(self, x: Apply) -> None:
        row = FUNCTIONS.get(x.function)
        if row is None or row.arity != len(x.args):
            raise self.fail(f"no scalar function {x.function} of {len(x.args)} arguments")
        values = x.args[1:] if x.function == "select" else x.args
        if len({a.dtype for a in values}) > 1:
            raise self.fail(f"{x.function} of mixed types {[a.dtype.value for a in values]}")
        if x.function == "select":
            self.same(x.args[0].dtype, DType.BOOL, "select's condition and bool")
        kind = "f" if values[-1].dtype.is_float else "b" if values[-1].dtype is DType.BOOL else "i"
        if kind not in row.kinds:
            raise self.fail(f"{x.function} of {values[-1].dtype.value}")

    def same(self, a: DType, b: DType, what: str) -> None:
        if a is not b:
            raise self.fail(f"{what} differ in type: {a.value} and {b.value}")

    # ---- bounds -----------------------------------------------------------------------------------------------------
    def leaves(self, index: tuple[Index, ...], buffer: Buffer, scope: _Scope) -> str:
        """The first index that certainly reaches outside the buffer; "" where none is known to."""
        partly = {s.axis.name for s in statements(self.phase.body) if isinstance(s, Loop) and (s.start or s.stop)}
        for d, i in enumerate(index):
            reach = affine_range(i, {n: a.extent for n, a in self.axes.items() if n not in partly})
            before, after = (buffer.halo.before[d], buffer.halo.after[d]) if buffer.halo is not None else (0, 0)
            extent = buffer.shape[d]
            if reach is not None and isinstance(extent, int) and (reach[0] < -before or reach[1] >= extent + after):
                return str(i)
        return ""


def affine_range(i: Index, extents: Mapping[str, Dim]) -> tuple[int, int] | None:
    """Smallest and largest value of an affine index over constant extents; None where something is not constant."""
    if not isinstance(i.const, int):
        return None
    low = high = i.const
    for term, c in i.terms:
        extent = extents.get(term.name) if isinstance(term, AxisTerm) else None
        if not isinstance(c, int) or not isinstance(extent, int) or extent < 1:
            return None
        low, high = low + min(0, c * (extent - 1)), high + max(0, c * (extent - 1))
    return low, high


def _gathered(i: Index) -> list[str | int]:
    found: list[str | int] = []
    for t, _ in i.terms:
        if isinstance(t, Gathered):
            found.append(t.source)
        elif isinstance(t, (Quotient, Remainder)):
            found += _gathered(t.numerator)
    return found


__all__ = ["IllFormed", "affine_range", "check"]


def empty(axes: Iterable[Axis]) -> bool:
    """The axes span no point: nothing is ever read over them."""
    return any(a.extent == 0 for a in axes)
