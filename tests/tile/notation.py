"""A short notation for writing tile programs by hand in tests.

k = Kernel("linear", grid=(m, n))
with k.loop(kk, (0.0, (m, n))) as (acc,):
    k.next(k.dot(acc, k.load(A, m, kk), k.load(W, kk, n), kk))
k.store(relu(acc), Y, m, n)
program = k.program()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opfuse.ir.dims import Dim, symbol
from opfuse.ir.index import Gathered, Index, as_index
from opfuse.ir.scalar import Apply, Const, Position, Scalar, apply, const, walk
from opfuse.ir.structure import Axis
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
    Role,
    Statement,
    Store,
    Tile,
    operands,
)

F32, I64 = DType.F32, DType.I64
NEG_INF = float("-inf")
Where = Axis | Index | int
Value = Scalar | float | int | bool


def axes(**extents: Dim | str) -> list[Axis]:
    """`m, n = axes(m="M", n=8)`: axes by name; a text is a run-time extent."""
    return [Axis(name, symbol(e) if isinstance(e, str) else e) for name, e in extents.items()]


def buffer(name: str, *shape: Dim | str, dtype: DType = F32, role: Role = "in", strides: Any = None) -> Buffer:
    return Buffer(name, dtype, tuple(symbol(d) if isinstance(d, str) else d for d in shape), role, strides)


def out(name: str, *shape: Dim | str, dtype: DType = F32) -> Buffer:
    return buffer(name, *shape, dtype=dtype, role="out")


def weight(name: str, *shape: Dim | str, dtype: DType = F32) -> Buffer:
    return buffer(name, *shape, dtype=dtype, role="weight")


def index(where: Where) -> Index:
    return where.index if isinstance(where, Axis) else as_index(where)


# ---- scalars: numbers take the type of the other arguments -----------------------------------------------------------
def fn(name: str, *args: Value) -> Scalar:
    dtype = next((a.dtype for a in reversed(args) if isinstance(a, Scalar.__args__)), F32)  # type: ignore[attr-defined]
    return apply(name, *(a if isinstance(a, Scalar.__args__) else const(a, dtype) for a in args))  # type: ignore[attr-defined]


def add(a: Value, b: Value) -> Scalar:
    return fn("add", a, b)


def sub(a: Value, b: Value) -> Scalar:
    return fn("sub", a, b)


def mul(a: Value, b: Value) -> Scalar:
    return fn("mul", a, b)


def select(c: Scalar, a: Value, b: Value) -> Scalar:
    dtype = next((x.dtype for x in (a, b) if not isinstance(x, (float, int))), F32)
    return apply("select", c, *(const(x, dtype) if isinstance(x, (float, int)) else x for x in (a, b)))


def exp(x: Value) -> Scalar:
    return fn("exp", x)


def relu(x: Scalar) -> Scalar:
    return select(fn("lt", x, 0), 0, x)


def gelu(x: Scalar) -> Scalar:
    return mul(mul(0.5, x), add(1.0, fn("erf", mul(x, 0.7071067811865476))))


def finite_or_zero(m: Scalar) -> Scalar:
    """A running maximum to subtract: 0 where every element so far was -inf, so that -inf - -inf never stands."""
    return select(fn("eq", m, NEG_INF), 0.0, m)


# ---- statements ------------------------------------------------------------------------------------------------------
class Kernel:
    """Builds the body of one phase after another. `points` are axes that no tile lists."""

    def __init__(self, name: str, grid: tuple[Axis, ...], points: tuple[Axis, ...] = ()) -> None:
        self.name, self.grid, self.points = name, grid, points
        self.bodies: list[list[Statement]] = [[]]
        self.phases: list[Phase | Repeat] = []
        self.buffers: dict[str, Buffer] = {}
        self.counts: dict[str, int] = {}
        self.gathered: dict[str, Tile] = {}
        self.nexts: list[Tile] = []

    def tile(self, hint: str, listed: tuple[Axis, ...], dtype: DType) -> Tile:
        n = self.counts[hint] = self.counts.get(hint, -1) + 1
        return Tile(f"{hint}{n or ''}", listed, dtype)

    def emit(self, s: Statement) -> None:
        self.bodies[-1].append(s)

    def load(self, b: Buffer, *where: Where, pad: float | None = None, also: tuple[Tile, ...] = ()) -> Tile:
        """`also`: the gathered tiles of the index, whose axes the result lists too."""
        self.buffers.setdefault(b.name, b)
        at = tuple(index(w) for w in where)
        listed = self.listed(*(name for i in at for name in _in_order(i)), *(a.name for t in also for a in t.axes))
        t = self.tile(b.name.lower(), listed, b.dtype)
        self.emit(Load(t, b, at, None if pad is None else const(pad, b.dtype)))
        return t

    def gather(self, tile: Scalar) -> Index:
        t = self.named(tile, "at")
        return Index(((Gathered(t.name), 1),))

    def listed(self, *names: str) -> tuple[Axis, ...]:
        return tuple(self.axis(n) for n in dict.fromkeys(names) if n not in {p.name for p in self.points})

    def axis(self, name: str) -> Axis:
        return self.known[name]

    @property
    def known(self) -> dict[str, Axis]:
        return {a.name: a for a in self.all_axes}

    all_axes: tuple[Axis, ...] = ()

    def map(self, value: Scalar, hint: str = "v", listed: tuple[Axis, ...] | None = None) -> Tile:
        if listed is None:
            of_tiles = [a.name for t in operands(value) for a in t.axes]
            listed = self.listed(*of_tiles, *(x.axis for x in walk(value) if isinstance(x, Position)))
        t = self.tile(hint, listed, value.dtype)
        self.emit(Map(t, value))
        return t

    def named(self, value: Scalar, hint: str) -> Tile:
        return value if isinstance(value, Tile) else self.map(value, hint)

    def zeros(self, *listed: Axis, dtype: DType = F32) -> Tile:
        return self.map(const(0, dtype), "zero", listed)

    def reduce(self, combine: str, value: Scalar, *over: Axis) -> Tile:
        t = self.named(value, "v")
        made = self.tile(combine, tuple(a for a in t.axes if a not in over), t.dtype)
        self.emit(Reduce(made, combine, t, over))
        return made

    def dot(self, acc: Tile, a: Scalar, b: Scalar, over: Axis, precision: str = "ieee") -> Tile:
        left, right = self.named(a, "a"), self.named(b, "b")
        made = self.tile("dot", acc.axes, acc.dtype)
        self.emit(Dot(made, acc, left, right, over, precision))
        return made

    def rename(self, tile: Tile, old: Axis, new: Axis) -> Tile:
        made = self.tile("rows", tuple(new if a == old else a for a in tile.axes), tile.dtype)
        self.emit(Rename(made, tile, old, new))
        return made

    @contextmanager
    def loop(
        self,
        a: Axis,
        *carries: tuple[Value, tuple[Axis, ...]] | Tile,
        start: Where | None = None,
        stop: Where | None = None,
    ) -> Iterator[tuple[Tile, ...]]:
        """Carries are (initial value, axes), or a tile to start from. `next` gives the values of the next round."""
        given = [(c, c.axes) if isinstance(c, Tile) else c for c in carries]
        inits = [const(v, F32) if isinstance(v, (float, int)) else v for v, _ in given]
        tiles = tuple(self.tile("acc", ax, i.dtype) for i, (_, ax) in zip(inits, given, strict=True))
        self.bodies.append([])
        self.nexts = []
        yield tiles
        made = tuple(Carry(t, i, n) for t, i, n in zip(tiles, inits, self.nexts, strict=True))
        body = tuple(self.bodies.pop())
        bounds = [None if w is None else index(w) for w in (start, stop)]
        self.emit(Loop(a, made, body, *bounds))
        self.nexts = []

    def next(self, *values: Scalar) -> None:
        self.nexts = [self.named(v, "next") for v in values]

    def store(self, value: Scalar, b: Buffer, *where: Where) -> None:
        self.buffers.setdefault(b.name, b)
        self.emit(Store(self.named(value, "y"), b, tuple(index(w) for w in where)))

    def phase(self, grid: tuple[Axis, ...], points: tuple[Axis, ...] = ()) -> None:
        """End the phase so far and begin another."""
        self.phases.append(Phase(self.grid, tuple(self.bodies[0])))
        self.bodies, self.grid, self.points, self.counts = [[]], grid, points, {}

    def program(self, repeat: Axis | None = None, beside: bool = False) -> Program:
        self.phases.append(Phase(self.grid, tuple(self.bodies[0])))
        phases = [p for p in self.phases if isinstance(p, Phase)]
        made: tuple[Phase | Beside | Repeat, ...] = tuple(phases)
        if repeat is not None or beside:
            made = (Repeat(repeat, tuple(phases)) if repeat is not None else Beside(tuple(phases)),)
        order = {"in": 0, "weight": 1, "scratch": 2, "out": 3}
        return Program(self.name, tuple(sorted(self.buffers.values(), key=lambda b: order[b.role])), made)


def kernel(name: str, every: list[Axis], grid: tuple[Axis, ...], points: tuple[Axis, ...] = ()) -> Kernel:
    made = Kernel(name, grid, points)
    made.all_axes = tuple(every)
    return made


def _in_order(i: Index) -> list[str]:
    return [name for t, _ in i.terms for name in sorted(Index(((t, 1),)).axes)]


__all__ = [
    "F32",
    "I64",
    "NEG_INF",
    "Apply",
    "Axis",
    "Const",
    "Kernel",
    "Position",
    "add",
    "axes",
    "buffer",
    "exp",
    "finite_or_zero",
    "fn",
    "gelu",
    "index",
    "kernel",
    "mul",
    "out",
    "relu",
    "select",
    "sub",
    "weight",
]
