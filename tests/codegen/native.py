"""Runs the printed functions of a tile program on NumPy arrays: compile, pack weights, call phase after phase.

run(program, schedule, target, arrays, {"R": 7})       # arrays: buffer name -> array, outputs are written
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from opfuse.codegen.llvm.jit import Library, assemble, compile_object, load_object
from opfuse.codegen.llvm.printer import PrintedPhase, print_program
from opfuse.decision import Refusal
from opfuse.ir.dims import bind
from opfuse.target import Target, host
from opfuse.tile.packing import pack
from opfuse.tile.program import Program
from opfuse.tile.schedule import Schedule


class Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.text} {dict(refusal.facts)}")
        self.refusal = refusal


class Native:
    """A compiled program: its phases' functions, ready to be called."""

    def __init__(self, program: Program, schedule: Schedule, target: Target) -> None:
        printed = print_program(program, schedule, target, "kernel")
        if isinstance(printed, Refusal):
            raise Refused(printed)
        self.program, self.schedule = program, schedule
        self.phases: tuple[PrintedPhase, ...] = printed
        text = assemble([p.text for p in printed], target)
        self.library: Library = load_object(compile_object(text, target))

    def packed(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: aligned(pack(a, self.schedule.pack[n])) if n in self.schedule.pack else a for n, a in arrays.items()}

    def run(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], splits: Sequence[float] = ()) -> None:
        """Call each phase over all its tiles, cut at the given shares; each piece gets fresh, poisoned scratch."""
        packed = self.packed(arrays)
        for p in self.phases:
            tiles = int(bind(p.tiles, sizes))  # type: ignore[arg-type]
            cuts = sorted({0, *(round(x * tiles) for x in splits), tiles})
            for begin, end in zip(cuts, cuts[1:], strict=False):
                self.call(p, packed, sizes, begin, end)

    def call(
        self, p: PrintedPhase, packed: Mapping[str, np.ndarray], sizes: Mapping[str, int], begin: int, end: int
    ) -> None:
        guard = 64
        raw = np.full(p.scratch_bytes + 2 * guard + 64, 0xFF, np.uint8)
        at = -raw.ctypes.data % 64 + guard
        types = [ctypes.c_void_p] * len(p.arguments) + [ctypes.c_int64] * len(p.integers) + [ctypes.c_void_p]
        function = ctypes.CFUNCTYPE(None, *types, ctypes.c_int64, ctypes.c_int64)(self.library.address(p.symbol))
        pointers = [packed[n].ctypes.data for n in p.arguments]
        function(*pointers, *(sizes[s] for s in p.integers), raw.ctypes.data + at, begin, end)
        outside = np.concatenate([raw[:at], raw[at + p.scratch_bytes :]])
        assert (outside == 0xFF).all(), f"{p.symbol} wrote outside of its {p.scratch_bytes} bytes of scratch"


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    at = -raw.ctypes.data % 64
    out = raw[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def run(
    program: Program, schedule: Schedule, target: Target, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int],
    splits: Sequence[float] = (),
) -> None:  # fmt: skip
    Native(program, schedule, target).run(arrays, sizes, splits)


def target_of(isa: str) -> Target:
    """The machine at hand restricted to an instruction set; the test is skipped where it has none."""
    try:
        return host(isa=isa)
    except ValueError as missing:
        pytest.skip(str(missing))


def compiled(program: Program, schedule: Schedule, isa: str, refusals: Sequence[str] = ()) -> Native:
    """The program compiled; the test is skipped where it is refused for one of the given reasons."""
    try:
        return Native(program, schedule, target_of(isa))
    except Refused as refused:
        assert refused.refusal.code in (*refusals, *(("half-precision",) if isa == "plain" else ())), str(refused)
        pytest.skip(str(refused))
