"""A NumPy interpreter of tile programs: what a program means, point by point, in float64. Shares no code with printers.

Tiles are arrays with one dimension an axis, in the tile's own order. Nothing is padded or masked: an axis is the array
of the positions that are there. By default a tile holds all of every axis that tiles list, and axes that no tile lists
go in single steps; `tile` cuts axes further, which must not change what comes out.

    run(program, {"A": a, "W": w})["Y"]            # floats come out as float64, integers and bool as they are
    run(program, arrays, tile={"m": 3, "k": 5})    # the same values
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.ir.dims import Symbol, SymbolicDim, bind
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder
from opfuse.ir.scalar import Apply, Const, Position, Scalar
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import (
    Beside,
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
    shape_axes,
    whole_axes,
)
from tests.scalar_reference import REFERENCE, reinterpret

Array = Any  # np.ndarray of any element type: NumPy's own annotations say no more here
Arrays = Mapping[str, Array]
Positions = Mapping[str, Any]  # axis name -> its positions in the tile, or one integer


def run(program: Program, arrays: Arrays, tile: Mapping[str, int] | None = None) -> dict[str, Array]:
    """The out buffers. `arrays` hold the in and weight buffers by name, logical shapes (no strides, no halo)."""
    sizes = sizes_of(program, arrays)
    memory: dict[str, Array] = {}
    for b in program.buffers:
        dtype = np.dtype(np.float64) if b.dtype.is_float else b.dtype.numpy
        if b.role in ("in", "weight"):
            memory[b.name] = np.asarray(arrays[b.name]).astype(dtype)
        else:
            shape = tuple(_int(bind(d, sizes)) for d in b.shape)
            memory[b.name] = np.full(shape, np.nan if b.dtype.is_float else 99, dtype)
    with np.errstate(all="ignore"):
        for part in program.phases:
            if isinstance(part, Repeat):
                for at in range(_int(bind(part.axis.extent, sizes))):
                    for phase in part.phases:
                        _PhaseRun(phase, memory, sizes, tile or {}).run({part.axis.name: at})
            else:
                for phase in part.phases if isinstance(part, Beside) else (part,):
                    _PhaseRun(phase, memory, sizes, tile or {}).run({})
    return {b.name: memory[b.name] for b in program.buffers if b.role == "out"}


def sizes_of(program: Program, arrays: Arrays) -> dict[str, int]:
    """Values of the program's symbols, from the dimensions that are a symbol alone."""
    sizes: dict[str, int] = {}
    for b in program.buffers:
        if b.name in arrays:
            for d, n in zip(b.shape, arrays[b.name].shape, strict=True):
                match d:
                    case SymbolicDim(terms=(((Symbol(name),), 1),)):
                        sizes[name] = n
                    case _:
                        pass
    return sizes


@dataclass
class _PhaseRun:
    phase: Phase
    memory: dict[str, Array]
    sizes: Mapping[str, int]
    tile: Mapping[str, int]

    def run(self, fixed: Mapping[str, int]) -> None:
        self.cut = shape_axes(self.phase.body)
        whole = {a.name: np.arange(self.extent(a)) for a in whole_axes(self.phase)}
        choices = [list(self.pieces(a, 0, self.extent(a))) for a in self.phase.grid]
        for pieces in itertools.product(*choices):
            at: dict[str, Any] = {**fixed, **whole}
            at |= {a.name: piece for a, piece in zip(self.phase.grid, pieces, strict=True)}
            self.body(self.phase.body, at, {})

    def extent(self, a: Axis) -> int:
        return _int(bind(a.extent, self.sizes))

    def pieces(self, a: Axis, start: int, stop: int) -> Iterator[Any]:
        """Positions of the axis, a tile at a time; a plain integer each for an axis that no tile lists."""
        if a not in self.cut:
            yield from range(start, stop)
            return
        step = self.tile.get(a.name, max(1, stop - start))
        for at in range(start, stop, step):
            yield np.arange(at, min(stop, at + step))

    def body(self, body: tuple[Statement, ...], at: dict[str, Any], tiles: dict[str, Array]) -> None:
        for s in body:
            match s:
                case Load():
                    tiles[s.out.name] = self.load(s, at, tiles)
                case Store():
                    where = tuple(self.index(i, s.tile.axes, at, tiles) for i in s.index)
                    self.memory[s.buffer.name][where] = tiles[s.tile.name]
                case Map():
                    tiles[s.out.name] = self.full(s.value, s.out, at, tiles)
                case Reduce():
                    dims = tuple(s.tile.axes.index(a) for a in s.over)
                    left = [a for a in s.tile.axes if a not in s.over]
                    tiles[s.out.name] = _in_order(_reduce(s.combine, tiles[s.tile.name], dims), left, s.out.axes)
                case Dot():
                    tiles[s.out.name] = self.dot(s, tiles)
                case Rename():
                    renamed = tuple(s.new if a == s.old else a for a in s.tile.axes)
                    tiles[s.out.name] = _in_order(tiles[s.tile.name], renamed, s.out.axes)
                case Loop():
                    self.loop(s, at, tiles)

    def loop(self, s: Loop, at: dict[str, Any], tiles: dict[str, Array]) -> None:
        for c in s.carries:
            tiles[c.tile.name] = self.full(c.init, c.tile, at, tiles)
        extent = self.extent(s.axis)
        start = 0 if s.start is None else max(0, self.bound(s.start, at, np.min))
        stop = extent if s.stop is None else min(extent, self.bound(s.stop, at, np.max))
        for piece in self.pieces(s.axis, start, stop):
            inner = dict(tiles)
            self.body(s.body, {**at, s.axis.name: piece}, inner)
            after = {c.tile.name: _in_order(inner[c.next.name], c.next.axes, c.tile.axes) for c in s.carries}
            tiles |= after

    def bound(self, i: Index, at: Positions, end: Any) -> int:
        total = _int(bind(i.const, self.sizes))
        for t, c in i.terms:
            assert isinstance(t, AxisTerm)
            total += _int(bind(c, self.sizes)) * int(end(at[t.name]))
        return total

    # ---- places -----------------------------------------------------------------------------------------------------
    def load(self, s: Load, at: Positions, tiles: Arrays) -> Array:
        source = self.memory[s.buffer.name]
        where = [self.index(i, s.out.axes, at, tiles) for i in s.index]
        shape = tuple(len(at[a.name]) for a in s.out.axes)
        if s.pad is None:
            return np.broadcast_to(source[tuple(where)], shape)
        inside = np.ones(shape, bool)
        for d, i in enumerate(where):
            inside = inside & (i >= 0) & (i < source.shape[d])
        out = np.full(shape, s.pad.value, source.dtype)
        where = [np.broadcast_to(i, shape)[inside] for i in where]
        out[inside] = source[tuple(where)]
        return out

    def index(self, i: Index, axes: tuple[Axis, ...], at: Positions, tiles: Arrays) -> Array:
        total = np.asarray(_int(bind(i.const, self.sizes)))
        for t, c in i.terms:
            match t:
                case AxisTerm(name):
                    value = self.position(name, axes, at)
                case Quotient(n, d):
                    value = self.index(n, axes, at, tiles) // _int(bind(d, self.sizes))
                case Remainder(n, d):
                    value = self.index(n, axes, at, tiles) % _int(bind(d, self.sizes))
                case Gathered(source):
                    value = self.spread(tiles[str(source)], self.axes_of[str(source)], axes)
            total = total + value * _int(bind(c, self.sizes))
        return total

    def position(self, name: str, axes: tuple[Axis, ...], at: Positions) -> Array:
        where = np.asarray(at[name])
        if where.ndim == 0:
            return where
        return where.reshape([-1 if a.name == name else 1 for a in axes])

    @property
    def axes_of(self) -> dict[str, tuple[Axis, ...]]:
        return {t.name: t.axes for t in _all_tiles(self.phase.body)}

    # ---- values -----------------------------------------------------------------------------------------------------
    @staticmethod
    def spread(value: Array, own: tuple[Axis, ...], axes: tuple[Axis, ...]) -> Array:
        """A tile's array with its dimensions put where they stand in `axes`, and one where it has none."""
        value = _in_order(value, own, [a for a in axes if a in own])
        return np.expand_dims(value, tuple(k for k, a in enumerate(axes) if a not in own))

    def full(self, x: Scalar, out: Tile, at: Positions, tiles: Arrays) -> Array:
        value = self.value(x, out.axes, at, tiles)
        return np.broadcast_to(value, tuple(len(at[a.name]) for a in out.axes))

    def value(self, x: Scalar, axes: tuple[Axis, ...], at: Positions, tiles: Arrays) -> Array:
        match x:
            case Const(value, dtype):
                return np.asarray(value, _wide(dtype))
            case Tile():
                return self.spread(tiles[x.name], x.axes, axes)
            case Position(name, dtype):
                return self.position(name, axes, at).astype(_wide(dtype))
            case Apply("bits", (arg,), dtype):
                return reinterpret(self.value(arg, axes, at, tiles), arg.dtype.numpy, dtype.numpy)
            case Apply(function, args, dtype):
                return evaluate(function, [self.value(a, axes, at, tiles) for a in args], dtype)
        raise TypeError(f"no value for {x}")

    def dot(self, s: Dot, tiles: Arrays) -> Array:
        letters = {a: chr(ord("a") + k) for k, a in enumerate(dict.fromkeys((*s.a.axes, *s.b.axes)))}
        parts = ["".join(letters[a] for a in axes) for axes in (s.a.axes, s.b.axes, s.out.axes)]
        a, b = (tiles[t.name].astype(_wide(s.acc.dtype)) for t in (s.a, s.b))
        acc = _in_order(tiles[s.acc.name], s.acc.axes, s.out.axes)
        return acc + np.einsum(f"{parts[0]},{parts[1]}->{parts[2]}", a, b)


def _all_tiles(body: tuple[Statement, ...]) -> Iterator[Tile]:
    for s in body:
        match s:
            case Load() | Map() | Reduce() | Dot() | Rename():
                yield s.out
            case Loop():
                yield from (c.tile for c in s.carries)
                yield from _all_tiles(s.body)
            case _:
                pass


def _in_order(value: Array, own: Any, want: Any) -> Array:
    own, want = list(own), list(want)
    return value if own == want else np.transpose(value, [own.index(a) for a in want])


def _int(d: Any) -> int:
    assert isinstance(d, int), f"{d} is not bound to a number"
    return d


def _wide(dtype: DType) -> Any:
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def _reduce(combine: str, value: Array, dims: tuple[int, ...]) -> Array:
    kept = value.dtype
    match combine:
        case "sum":
            return value.sum(dims, dtype=kept)
        case "prod":
            return value.prod(dims, dtype=kept)
        case "max":
            return value.max(dims, initial=_limit(kept, np.min))
        case "min":
            return value.min(dims, initial=_limit(kept, np.max))
        case "and":
            return value.all(dims)
        case "or":
            return value.any(dims)
    raise ValueError(combine)


def _limit(dtype: Any, end: Any) -> Any:
    if dtype.kind == "f":
        return -np.inf if end is np.min else np.inf
    return end is not np.min if dtype.kind == "b" else np.iinfo(dtype).min if end is np.min else np.iinfo(dtype).max


_FUNCTIONS = {**REFERENCE, "pow": np.power}


def evaluate(function: str, args: list[Array], dtype: DType) -> Array:
    """One scalar function on arrays; floats are float64 throughout, so casts between them do not round."""
    if function == "cast":
        if dtype is DType.BOOL:
            return args[0] != 0
        return args[0].astype(_wide(dtype))
    if function == "div":
        if dtype.is_float:
            return args[0] / args[1]
        quotient = np.abs(args[0].astype(object)) // np.abs(args[1].astype(object))
        return (np.where((args[0] < 0) != (args[1] < 0), -quotient, quotient)).astype(dtype.numpy)
    if function == "pow" and not dtype.is_float and np.any(np.less(args[1], 0)):
        return (args[0].astype(np.float64) ** args[1]).astype(dtype.numpy)  # truncated, as ONNX's integers are
    return np.asarray(_FUNCTIONS[function](*args))
