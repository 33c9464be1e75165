"""One test region: a tile program, inputs for given sizes, schedules for each machine, and a float64 reference.

    for sizes in case.sizes:
        arrays = case.arrays(sizes)                    # in and weight filled, out and scratch poisoned
        ...run, writing the out arrays...
        assert case.faults(arrays, case.want(arrays)) == []

Tolerances are derived from the program: every statement adds its unit roundoff, times the square root of the length of
its sum (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019; constant 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.ir.dims import bind
from opfuse.ir.scalar import FUNCTIONS, Apply, walk
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Dot, Loop, Map, Phase, Program, Reduce, Repeat, Statement
from opfuse.tile.schedule import Schedule

Array = Any
Arrays = dict[str, Array]
Fill = Callable[[np.random.Generator, Buffer, tuple[int, ...]], Array]
ROUNDOFF = {DType.F64: 2.0**-53, DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
TF32 = 2.0**-11
ERROR = 16  # ulps of a transcendental: a few of its own, and the rounding of its argument times |x| <= 16
LAMBDA = 4


def normal(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
    """Standard normal values, weights divided by the root of their fan-in; small integers; random bools."""
    if b.dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if b.dtype.is_integer:
        low = -50 if b.dtype.is_signed else 0
        return rng.integers(low, 50, shape)
    x = rng.standard_normal(shape)
    return x / math.sqrt(max(1, math.prod(shape[:-1]))) if b.role == "weight" else x


@dataclass(frozen=True)
class Case:
    """`reference` takes the in and weight buffers by name, floats as float64, and gives the out buffers."""

    name: str
    program: Program
    reference: Callable[..., Mapping[str, Array]]
    sizes: tuple[Mapping[str, int], ...] = ({},)
    cpu: tuple[Schedule, ...] = (Schedule(),)
    gpu: tuple[Schedule, ...] = (Schedule(),)
    fill: Fill = normal
    rounded: tuple[str, ...] = ()  # integer outputs of which the reference gives the value before rounding
    seed: int = 0
    small: float | None = None  # errors are relative to each element above this; None: to the largest element

    def __str__(self) -> str:
        return self.name

    def shape(self, b: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(bind(d, sizes)) for d in b.shape)  # type: ignore[arg-type]

    def arrays(self, sizes: Mapping[str, int]) -> Arrays:
        """One array a buffer, 64-byte aligned; laid out with the buffer's strides; outputs and scratch poisoned."""
        rng, made = np.random.default_rng(self.seed), {}
        for b in self.program.buffers:
            shape = self.shape(b, sizes)
            a = made[b.name] = aligned(shape, b, sizes)
            if b.role in ("in", "weight"):
                a[...] = self.fill(rng, b, shape)
            else:
                a[...] = np.nan if b.dtype.is_float else 99 if b.dtype.is_integer else True
        return made

    def want(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        given = {b.name: arrays[b.name] for b in self.program.buffers if b.role in ("in", "weight")}
        wide = {k: np.asarray(a, np.float64) if DType.of(a.dtype).is_float else np.asarray(a) for k, a in given.items()}
        with np.errstate(all="ignore"):
            return dict(self.reference(**wide))

    def faults(self, got: Mapping[str, Array], want: Mapping[str, Array], extra: float = 0.0) -> list[str]:
        """What differs, in words; empty where all is right. `extra` is a relative error allowed on top."""
        found = []
        for b in self.program.buffers:
            if b.role == "out":
                found += [
                    f"{self.name}: {b.name} {fault}" for fault in self.differs(b, got[b.name], want[b.name], extra)
                ]
        return found

    def differs(self, b: Buffer, got: Array, want: Array, extra: float) -> list[str]:
        if got.shape != want.shape:
            return [f"has shape {got.shape}, wanted {want.shape}"]
        if not b.dtype.is_float and b.name not in self.rounded:
            wrong = int((got != want).sum())
            return [f"differs in {wrong} of {want.size} elements"] if wrong else []
        g, w = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if (np.isnan(g) != np.isnan(w)).any():
            return [f"has {int(np.isnan(g).sum())} NaN, wanted {int(np.isnan(w).sum())}"]
        if (np.isinf(w) & (g != w)).any() or (np.isinf(g) & ~np.isinf(w)).any():
            return ["differs in infinities"]
        finite = np.isfinite(w)
        largest = float(np.abs(w[finite]).max(initial=0.0))
        scale = np.full(w.shape, largest) if self.small is None else np.maximum(np.abs(w), self.small)
        allowed = ((self.tolerance + extra) * scale + (0.5 if b.name in self.rounded else 0.0))[finite]
        off = np.abs(g - w)[finite]
        if not (off > allowed).any():
            return []
        worst = int(np.argmax(off - allowed))
        return [f"is off by {off[worst]:.3e} at {w[finite][worst]:.3e}, allowed {allowed[worst]:.3e}"]

    @property
    def tolerance(self) -> float:
        """Error allowed, relative to the largest element of the output."""
        total = 0.0
        for part in self.program.phases:
            phases = (part,) if isinstance(part, Phase) else part.phases
            once = sum(_error(s, ()) for phase in phases for s in phase.body)
            total += once * (self.most(part.axis) if isinstance(part, Repeat) else 1)
        stored = max(
            (ROUNDOFF[b.dtype] for b in self.program.buffers if b.role == "out" and b.dtype.is_float), default=0.0
        )
        return total + stored

    def most(self, a: Axis) -> int:
        """The largest extent of an axis over the case's sizes."""
        return max(int(bind(a.extent, sizes)) for sizes in self.sizes)  # type: ignore[arg-type]


def _error(s: Statement, loops: tuple[Axis, ...]) -> float:
    match s:
        case Loop():
            return sum(_error(inner, (*loops, s.axis)) for inner in s.body)
        case Dot():
            rounded = 4 * TF32 if s.precision == "tf32" else 0.0
            return ROUNDOFF.get(s.out.dtype, 0.0) * LAMBDA * math.sqrt(_steps(s.out.axes, loops, (s.over,))) + rounded
        case Reduce() if s.combine in ("sum", "prod"):
            return ROUNDOFF.get(s.out.dtype, 0.0) * LAMBDA * math.sqrt(_steps(s.out.axes, loops, s.over))
        case Map():
            parts = [x for x in walk(s.value) if isinstance(x, Apply) and x.dtype.is_float]
            size = {x: ERROR if FUNCTIONS[x.function].ulps > 2 else 1 for x in parts}
            each = sum(ROUNDOFF[x.dtype] * size[x] for x in parts if _rounds(x))
            return each * math.sqrt(_steps(s.out.axes, loops, ()))
        case _:
            return 0.0


def _rounds(x: Apply) -> bool:
    return x.function not in ("max", "min", "select", "neg", "abs", "floor", "ceil", "rint", "sign")


def _steps(listed: tuple[Axis, ...], loops: tuple[Axis, ...], over: tuple[Axis, ...]) -> int:
    """How many terms one chain adds up: the reduced axes, and the loops around that the result does not list."""
    extents = {a.name: a.extent for a in (*over, *(a for a in loops if a not in listed))}
    return max(1, math.prod(e if isinstance(e, int) else 64 for e in extents.values()))


def aligned(shape: tuple[int, ...], b: Buffer, sizes: Mapping[str, int]) -> Array:
    """An array of the buffer's shape and strides, its first element on a 64-byte boundary."""
    dtype = b.dtype.numpy
    strides = [int(bind(s, sizes)) for s in b.element_strides]  # type: ignore[arg-type]
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    raw = np.zeros(max(count, 1) * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    flat = raw[start : start + max(count, 1) * dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in strides])
