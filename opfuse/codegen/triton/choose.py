"""Schedules worth trying for a program on a GPU, from its shape alone: the first is the default, tuning measures all.

    choose_gpu(program, target)                          # a Schedule, or the Refusal of the last one tried
    for schedule in candidates(program, target): ...     # all of them legal, the default first; none where it refuses

A dot's rows and columns get blocks from 128 x 256 down, cut from the innermost axis outward, so that rows of an image
make one block; kernels without a dot get blocks of a few thousand elements, a row at a time where a row is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from opfuse.codegen.triton.blocks import matrix_shaped, power_of_two
from opfuse.codegen.triton.legality import legal
from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.program import (
    Dot,
    Load,
    Loop,
    Phase,
    Program,
    Store,
    loop_axes,
    shape_axes,
    statements,
    whole_axes,
)
from opfuse.tile.schedule import Footprint, Schedule

# rows, columns, bytes of k, warps, pipeline stages
DOT_SHAPES = (
    (128, 128, 128, 8, 3),
    (128, 256, 128, 8, 3),
    (128, 64, 128, 4, 3),
    (128, 64, 128, 8, 3),
    (64, 128, 128, 4, 4),
    (64, 64, 128, 4, 4),
    (32, 64, 128, 4, 4),
    (16, 64, 256, 4, 4),
    (64, 32, 64, 4, 2),
    (16, 16, 64, 4, 2),
)
STREAM_SHAPES = ((1024, 4), (4096, 8), (2048, 4), (512, 4), (8192, 8))  # elements of a block, warps
LARGEST_SCALAR = 128 * 64  # accumulators of a block without tensor cores: larger ones spill when compiled for sm_90
TRANSACTION = 32  # elements: 128 bytes of f32, what one warp reads at once
NOMINAL = 64  # of a run-time extent
BAND = 8  # rows of blocks that run together (the `group` of Triton's own matrix tutorial)


def choose_gpu(program: Program, target: Target) -> Schedule | Refusal:
    """The default: the first legal candidate that fills the multiprocessors, or else the one with most blocks."""
    tried = [(s, legal(program, s, target)) for s in _all(program)]
    fitting = [(s, f) for s, f in tried if isinstance(f, Footprint)]
    if not fitting:
        refusals = [f for _, f in tried if isinstance(f, Refusal)]
        return refusals[-1] if refusals else Refusal("no-schedule", f"no schedule is known for {program.name}")
    filling = [s for s, f in fitting if f.tiles == 0 or f.tiles >= target.units]
    return filling[0] if filling else max(fitting, key=lambda t: t[1].tiles)[0]


def candidates(program: Program, target: Target) -> tuple[Schedule, ...]:
    """Legal schedules, the default first, each once."""
    default = choose_gpu(program, target)
    if isinstance(default, Refusal):
        return ()
    found = [default]
    for s in _all(program):
        if s not in found and isinstance(legal(program, s, target), Footprint):
            found.append(s)
    return tuple(found)


def _all(program: Program) -> Iterator[Schedule]:
    phases = list(program.flat_phases())
    if any(isinstance(s, Dot) and matrix_shaped(s) for p in phases for s in statements(p.body)):
        scalar = any(isinstance(s, Dot) and _scalar_units(s) for p in phases for s in statements(p.body))
        for rows, columns, k_bytes, warps, stages in DOT_SHAPES:
            if scalar and rows * columns > LARGEST_SCALAR:
                continue
            tile: dict[str, int] = {}
            for p in phases:
                tile = {**_stream_tile(p, 4096), **_dot_tile(p, rows, columns, k_bytes), **tile}
            yield Schedule(tile, warps=warps, stages=stages, group=BAND)
        return
    for elements, warps in STREAM_SHAPES:
        tile = {}
        for p in phases:
            tile = {**_stream_tile(p, elements), **tile}
        short = tuple(sorted({s.axis.name for p in phases for s in _loops(p) if _short(s.axis.extent)}))
        yield Schedule(tile, warps=warps, stages=2, unroll=short)


def _scalar_units(s: Dot) -> bool:
    """IEEE float32 products run on the ordinary multiply-add units, with every accumulator in a register."""
    return s.precision == "ieee" and s.a.dtype is DType.F32


def _loops(phase: Phase) -> Iterable[Loop]:
    return (s for s in statements(phase.body) if isinstance(s, Loop))


def _short(extent: Dim) -> bool:
    return isinstance(extent, int) and extent <= 3


def _size(d: Dim) -> int:
    return d if isinstance(d, int) else NOMINAL


# ---- with dots -------------------------------------------------------------------------------------------------------
def _dot_tile(phase: Phase, rows: int, columns: int, k_bytes: int) -> dict[str, int]:
    """Tiles of the grid and loop axes that the phase's dots have as rows, columns, batch or sum."""
    cut = frozenset(phase.grid) | loop_axes(phase.body)
    tile: dict[str, int] = {}
    for s in statements(phase.body):
        if not isinstance(s, Dot):
            continue
        batch = [a for a in s.a.axes if a in s.b.axes and a != s.over and a in cut]
        tile |= {a.name: 1 for a in batch if a.name not in tile}
        _share([a for a in s.a.axes if a not in s.b.axes], rows, cut, tile)
        _share([a for a in s.b.axes if a not in s.a.axes], columns, cut, tile)
        if s.over in cut and s.over.name not in tile:
            tile[s.over.name] = max(16, k_bytes // max(s.a.dtype.bytes, s.b.dtype.bytes))
    return tile


def _share(axes: list[Axis], elements: int, cut: frozenset[Axis], tile: dict[str, int]) -> None:
    """Divide a block among axes, the last one first; axes that are whole take their part and keep it."""
    left = elements
    for a in axes:
        if a not in cut:
            left = max(1, left // power_of_two(_size(a.extent)))
    for a in reversed([a for a in axes if a in cut]):
        wanted = tile.setdefault(
            a.name, min(left, power_of_two(_size(a.extent)) if isinstance(a.extent, int) else left)
        )
        left = max(1, left // wanted)


# ---- without dots ----------------------------------------------------------------------------------------------------
def _stream_tile(phase: Phase, elements: int) -> dict[str, int]:
    """A block of about so many elements: whole axes first, then loops, then the grid from its contiguous axis outward.

    An axis along which some access is contiguous gets a whole memory transaction; where two are (a transpose), both do.
    """
    listed = shape_axes(phase.body)
    lanes = _lanes(phase)
    left = max(1, elements // math.prod(power_of_two(_size(a.extent)) for a in whole_axes(phase)))
    grid = sorted((a for a in phase.grid if a in listed), key=lambda a: lanes.get(a.name, 0))
    looped = sorted((a for a in loop_axes(phase.body) if a in listed), key=lambda a: a.name)
    order = [*looped, *reversed(grid)]
    tile: dict[str, int] = {}
    for k, a in enumerate(order):
        later = math.prod(min(TRANSACTION, power_of_two(_size(b.extent))) for b in order[k + 1 :] if b.name in lanes)
        wanted = max(left // later, TRANSACTION if a.name in lanes else 1)
        tile[a.name] = min(wanted, power_of_two(a.extent)) if isinstance(a.extent, int) else wanted
        left = max(1, left // tile[a.name])
    return tile


def _lanes(phase: Phase) -> dict[str, int]:
    """Axes along which the largest loads and stores walk memory element by element, and how many do."""
    accesses = [
        (s, s.out if isinstance(s, Load) else s.tile) for s in statements(phase.body) if isinstance(s, (Load, Store))
    ]
    sizes = [math.prod(_size(a.extent) for a in t.axes) for _, t in accesses]
    lanes: dict[str, int] = {}
    for (s, _), size in zip(accesses, sizes, strict=True):
        name = _contiguous(s)
        if name and 4 * size >= max(sizes):
            lanes[name] = lanes.get(name, 0) + 1
    return lanes


def _contiguous(s: Load | Store) -> str:
    for i, stride in zip(s.index, s.buffer.element_strides, strict=True):
        names = [n for n in i.axes if i.coefficient(n) == 1]
        if stride == 1 and len(names) == 1:
            return names[0]
    return ""
