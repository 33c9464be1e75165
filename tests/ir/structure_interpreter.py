"""A slow, simple reading of `Structure`s in float64, to compare with the oracles.

Every axis becomes a dimension of a NumPy array (parallel axes first, then reduce axes); reads are fancy-indexed, the
body is evaluated on the whole space, and the reduce dimensions are combined at the end. Shares nothing with the code
generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.dims import bind
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder
from opfuse.ir.scalar import Apply, Const, Extent, Operand, Position, Scalar
from opfuse.ir.structure import Structure
from opfuse.ir.types import DType
from tests.scalar_reference import REFERENCE, reinterpret

Values = Mapping[str, int]


def interpret(structure: Structure, arrays: Sequence[np.ndarray | None], values: Values | None = None) -> np.ndarray:
    """The output of a structure; floats are float64 throughout, except where the body casts to a narrower type."""
    return _Interpreter(structure, arrays, values or {}).run()


def _wide(dtype: DType) -> np.dtype:
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


class _Interpreter:
    def __init__(self, structure: Structure, arrays: Sequence[np.ndarray | None], values: Values) -> None:
        structure.check()
        self.structure, self.arrays, self.values = structure, arrays, values
        self.axes = (*structure.axes, *structure.reduce_axes)
        self.shape = tuple(self.number(a.extent) for a in self.axes)
        grids = np.indices(self.shape, sparse=True)
        self.positions = {a.name: g for a, g in zip(self.axes, grids, strict=True)}
        self.reads: list[np.ndarray] = []

    def number(self, d: Any) -> int:
        n = bind(d, self.values)
        assert isinstance(n, int), f"{d} is not bound"
        return n

    def index(self, i: Index) -> Any:
        total: Any = np.asarray(self.number(i.const))
        for term, c in i.terms:
            total = total + self.term(term) * self.number(c)
        return total

    def term(self, t: Any) -> Any:
        match t:
            case AxisTerm(name):
                return self.positions[name]
            case Quotient(n, d):
                inner = self.index(n)
                assert inner.size == 0 or inner.min() >= 0, f"{n} is negative under a quotient"
                return inner // self.number(d)
            case Remainder(n, d):
                inner = self.index(n)
                assert inner.size == 0 or inner.min() >= 0, f"{n} is negative under a remainder"
                return inner % self.number(d)
            case Gathered(source):
                return self.reads[int(source)]
        raise TypeError(t)

    def read(self, k: int) -> np.ndarray:
        access = self.structure.reads[k]
        array = self.arrays[access.operand]
        assert array is not None, f"read {k} reads a missing input"
        index, inside = [], np.asarray(True)
        for i, extent in zip(access.index, array.shape, strict=True):
            at = self.index(i)
            if any(isinstance(t, Gathered) for t, _ in i.terms):
                at = np.where(at < 0, at + extent, at)
            ok = (at >= 0) & (at < extent)
            if access.pad is None and np.prod(self.shape) > 0:
                assert ok.all(), f"read {k} [{i}] leaves extent {extent} without a pad"
            inside = inside & ok
            index.append(np.clip(at, 0, max(extent - 1, 0)))
        dtype = DType.of(array.dtype)
        data = array.astype(_wide(dtype))
        if array.size == 0:
            shape = np.broadcast_shapes(*(np.shape(i) for i in index))
            pad = 0 if access.pad is None else access.pad.value
            return np.full(shape, pad, data.dtype)
        picked = data[tuple(index)]
        return picked if access.pad is None else np.where(inside, picked, np.asarray(access.pad.value, data.dtype))

    def run(self) -> np.ndarray:
        s = self.structure
        for k in range(len(s.reads)):
            self.reads.append(self.read(k))
        with np.errstate(all="ignore"):
            value = np.broadcast_to(self.evaluate(s.body, self.reads), self.shape)
            if s.combine is not None:
                over = tuple(range(len(s.axes), len(self.axes)))
                value = _COMBINE[s.combine](value, over)
            if s.finish is not None:
                value = np.broadcast_to(self.evaluate(s.finish, [value], finish=True), value.shape)
        return np.array(value)

    def evaluate(self, x: Scalar, operands: Sequence[np.ndarray], finish: bool = False) -> Any:
        match x:
            case Const(value, dtype):
                return np.asarray(value).astype(_wide(dtype))
            case Operand(k):
                return operands[k]
            case Position(name):
                grid = self.positions[name]
                return grid.reshape(grid.shape[: len(self.structure.axes)]) if finish else grid
            case Extent(dim, dtype):
                return np.asarray(self.number(dim)).astype(_wide(dtype))
            case Apply("cast", (arg,), dtype):
                return _cast(self.evaluate(arg, operands, finish), arg.dtype, dtype)
            case Apply("bits", (arg,), dtype):
                return reinterpret(self.evaluate(arg, operands, finish), arg.dtype.numpy, dtype.numpy)
            case Apply(function, args, _):
                return _FUNCTIONS[function](*(self.evaluate(a, operands, finish) for a in args))
        raise TypeError(x)


def _cast(x: Any, source: DType, to: DType) -> Any:
    if to is DType.BOOL:
        return x != 0
    if to.is_float:
        return np.asarray(x).astype(to.numpy).astype(np.float64)  # rounding is part of the formula
    if not source.is_float:
        return np.asarray(x).astype(to.numpy)
    flat = [_to_integer(float(v), to) for v in np.asarray(x, np.float64).reshape(-1)]
    return np.array(flat, to.numpy).reshape(np.shape(x))


def _to_integer(v: float, to: DType) -> int:
    """Truncation in Python integers; out of range as x86: the smallest int32 or int64, low bits kept."""
    bits, wide = to.bytes * 8, 32 if to.bytes < 4 or to is DType.I32 else 64
    n = math.trunc(v) if math.isfinite(v) else None
    if n is None or not (-(2 ** (wide - 1)) <= n < 2 ** (wide - 1) or (to is DType.U64 and 0 <= n < 2**64)):
        n = -(2 ** (wide - 1))
    n %= 2**bits
    return n - 2**bits if to.is_signed and n >= 2 ** (bits - 1) else n


def _divide(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind == "f":
        return a / b
    return np.array(
        [
            int(math.copysign(1, p) * math.copysign(1, q)) * (abs(int(p)) // abs(int(q))) if q else 0
            for p, q in np.broadcast(a, b)
        ],
        np.asarray(a).dtype,
    ).reshape(np.broadcast(a, b).shape)


def _power(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind == "f":
        return np.power(a, b)
    out = np.broadcast(a, b)
    width = 8 * np.asarray(a).dtype.itemsize
    values = [int(p) ** int(q) if q >= 0 else (int(math.trunc(1 / int(p) ** -int(q))) if p else 0) for p, q in out]
    return np.array([v % 2**width for v in values], f"u{width // 8}").astype(np.asarray(a).dtype).reshape(out.shape)


def _vector(f: Callable[[float], float]) -> Callable[[Any], Any]:
    return np.vectorize(f, otypes=[np.float64])


_FUNCTIONS: dict[str, Callable[..., Any]] = {**REFERENCE, "div": _divide, "pow": _power}


def _extreme(function: Any, low: bool) -> Callable[[Any, tuple[int, ...]], Any]:
    def combine(x: Any, over: tuple[int, ...]) -> Any:
        if x.dtype.kind == "f":
            initial: Any = -np.inf if low else np.inf
        else:
            initial = np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max
        return function(x, axis=over, initial=initial)

    return combine


_COMBINE: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "sum": lambda x, over: np.sum(x, axis=over, dtype=x.dtype),
    "prod": lambda x, over: np.prod(x, axis=over, dtype=x.dtype),
    "max": _extreme(np.max, True),
    "min": _extreme(np.min, False),
    "and": lambda x, over: np.all(x, axis=over),
    "or": lambda x, over: np.any(x, axis=over),
}
