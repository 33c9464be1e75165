"""Seconds that a kernel will take: a roofline over a tile program, its schedule and a target.

    seconds = start + max over levels(bytes(level) / bandwidth(level), dots / rate, element operations / rate)

A buffer counts at the cache level that its size fits; a store counts its write-allocate; a load that the grid repeats
(weights for every block of rows) counts each time, from the level where it stays. Work is shared by the threads as far
as there are tiles for them. Every rate is measured on the machine (`tune.calibrate`) or names its source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from opfuse.fuse.provider import Cost
from opfuse.ir.scalar import FUNCTIONS, Apply, walk
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.axes import linear_stride
from opfuse.tile.program import (
    Beside,
    Buffer,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Reduce,
    Statement,
    Store,
    Tile,
    shape_axes,
)
from opfuse.tile.schedule import Schedule

NOMINAL_EXTENT = 64  # of an axis that is bound at run time only

# A step of the native driver with one empty tile takes 0.16 us on one thread (one server, 2026). A microsecond for
# steps that threads share was tried: its joins lost 20 % of a transformer at two threads and gained nothing elsewhere.
LEAST_START_S = 0.2e-6

# A gathered element costs about this many vector multiplies a lane; a guarded row of a window this many scalar steps
# (read off generated kernels: 16 lanes of a gather take 20 to 26 cycles on AVX-512 servers of 2022 to 2025).
GATHER_OPERATIONS = 16.0
GUARD_OPERATIONS = 8.0

# Share of the peak multiply-add rate by accumulator tile (rows x vectors): 6x4 91 %, 14x2 88 %, 28x1 74 % of the peak,
# measured on GEMMs in L2 in 2026 (one AVX-512 server); narrower tiles wait for their own latency (4 cycles, 2 units).
_FULL_TILE = 8


def extent(a: Axis) -> int:
    return a.extent if isinstance(a.extent, int) else NOMINAL_EXTENT


@dataclass
class _Work:
    dots: float = 0.0  # multiply-adds, counted as two
    dot_seconds: float = 0.0  # on one thread
    operations: float = 0.0  # element operations in units of a multiply
    traffic: dict[str, float] = field(default_factory=dict)  # buffer -> bytes loaded or stored, repeats too


def predict(program: Program, schedule: Schedule, target: Target, near: frozenset[str] = frozenset()) -> Cost:
    """Cost of one run of the program. `bytes` are its buffers once each; `flops` its dots and element operations.

    Buffers named in `near` were read a moment ago, tile by tile, by a phase beside this one.
    """
    if any(isinstance(part, Beside) for part in program.phases):
        return _predict_beside(program, schedule, target)
    work, tiles = _Work(), math.inf
    for phase in program.flat_phases():
        _count(phase, schedule, target, work, phase.body, ())
        tiles = min(tiles, math.prod(-(-extent(a) // cut(a, schedule)) for a in phase.grid))
    rates = target.rates
    units = max(1, min(target.units, int(tiles)))
    balance = math.ceil(tiles / units) * units / max(tiles, 1)  # the last round may leave threads idle
    by_level: dict[str, float] = {}
    for b in program.buffers:
        size = buffer_bytes(b)
        moved = work.traffic.get(b.name, 0.0)
        first, again = min(moved, size), max(0.0, moved - size)
        found = "l2" if b.name in near else level(size, b, target)
        by_level[found] = by_level.get(found, 0.0) + first
        if again:
            kept = level(size, b, target, again=True)
            by_level[kept] = by_level.get(kept, 0.0) + again
    bandwidth = {"dram": rates.dram_bytes_per_s, "l3": rates.l3_bytes_per_s, "l2": rates.l2_bytes_per_s}
    share = {"dram": 1, "l3": units, "l2": units}  # the memory bus is one, caches are a thread's own
    memory = sum(n / (bandwidth[k] * share[k]) for k, n in by_level.items())
    dots = work.dot_seconds / units * balance
    operations = work.operations / rates.vector_ops_per_s / units * balance
    start = max(rates.start_s, LEAST_START_S)
    seconds = (
        start * len(list(program.flat_phases()))
        + max(memory, dots)
        + operations * 0.8
        + min(memory, dots) * 0.2
    )
    facts: dict[str, Any] = {
        "memory_s": memory, "dot_s": dots, "element_s": operations,
        "bound": "memory" if memory > dots + operations else "compute",
        **{f"{k}_bytes": int(n) for k, n in by_level.items()},
    }  # fmt: skip
    total = sum(buffer_bytes(b) for b in program.buffers if b.role != "scratch")
    return Cost(seconds, int(total), int(work.dots + work.operations), facts)


def _predict_beside(program: Program, schedule: Schedule, target: Target) -> Cost:
    """Phases in one launch have one start; what a phase reads after another is near if they take turns."""
    start = max(target.rates.start_s, LEAST_START_S)
    seconds, flops, memory, dots, elements = start, 0, 0.0, 0.0, 0.0
    seen: frozenset[str] = frozenset()
    parts = program.apart()
    turns = {outer_tiles(next(p.flat_phases()), schedule.of(k)) for k, p in enumerate(parts)}
    for k, part in enumerate(parts):
        cost = predict(part, schedule.of(k), target, seen if len(turns) == 1 else frozenset())
        seen |= {b.name for b in part.buffers}
        seconds, flops = seconds + cost.seconds - start, flops + cost.flops
        memory, dots = memory + cost.facts["memory_s"], dots + cost.facts["dot_s"]
        elements += cost.facts["element_s"]
    bound = "memory" if memory > dots + elements else "compute"
    facts = {"memory_s": memory, "dot_s": dots, "element_s": elements, "bound": bound, "beside": len(parts)}
    return Cost(seconds, sum(buffer_bytes(b) for b in program.buffers), flops, facts)


def outer_tiles(phase: Phase, schedule: Schedule) -> int:
    """Tiles along the outermost grid axis."""
    grid = {a.name: a for a in phase.grid}
    order = [grid[n] for n in schedule.order if n in grid] or list(phase.grid)
    return -(-extent(order[0]) // cut(order[0], schedule)) if order else 1


def buffer_bytes(b: Buffer) -> int:
    return math.prod(d if isinstance(d, int) else NOMINAL_EXTENT for d in b.shape) * b.dtype.bytes


def level(size: float, b: Buffer, target: Target, again: bool = False) -> str:
    """Where a buffer is found: activations where they fit, weights in L3 at best on their first use in a call."""
    if size <= target.l2_bytes * 0.75 and (b.role != "weight" or again):
        return "l2"
    return "l3" if size <= target.l3_bytes * 0.75 else "dram"


def cut(a: Axis, schedule: Schedule) -> int:
    return max(1, min(schedule.tile.get(a.name, extent(a)), extent(a)))


def dot_efficiency(dot: Dot, schedule: Schedule, target: Target, phase: Phase) -> float:
    """Share of the peak rate that a dot reaches: lanes and rows that are filled, and enough accumulators in flight."""
    lanes = target.lanes(dot.out.dtype.bytes)
    if not dot.out.axes:
        return 1.0 / lanes
    column = dot.out.axes[-1]
    if not extent(column):
        return 1.0
    above = [a for a in dot.out.axes[:-1] if (a in dot.a.axes) != (a in dot.b.axes)]
    width = min(extent(column), cut(column, schedule)) if column in phase.grid else extent(column)
    filled = width / (-(-width // lanes) * lanes)
    rows, vectors = schedule.register
    heights = [cut(a, schedule) if a in phase.grid else extent(a) for a in reversed(above)]
    rows = min(rows, next((h for h in heights if h >= rows), max([1, *heights])))  # as the printer chooses them
    vectors = min(vectors, -(-width // lanes))
    return filled * min(1.0, rows * vectors / _FULL_TILE) * (0.75 + 0.25 * min(1.0, vectors / 2))


def _count(phase: Phase, schedule: Schedule, target: Target, work: _Work, body: tuple[Statement, ...],
           loops: tuple[Axis, ...]) -> None:  # fmt: skip
    """Add what the statements of a body do over the whole grid."""
    points = math.prod(extent(a) for a in loops if not _listed(a, body))
    broadcast = _broadcast(body)
    for s in body:
        match s:
            case Load():
                operations = _load_operations(s, target, s.out.name in broadcast)
                work.operations += operations * _times(phase, schedule, s.out) * points
                _traffic(work, s.buffer, _times(phase, schedule, s.out) * s.buffer.dtype.bytes, points)
            case Store():
                moved = _times(phase, schedule, s.tile) * s.buffer.dtype.bytes
                _traffic(work, s.buffer, moved * 2, points)  # write-allocate
            case Map():
                count = sum(FUNCTIONS[x.function].cost for x in walk(s.value) if isinstance(x, Apply))
                work.operations += count * _times(phase, schedule, s.out) * points / lane_fill(s.out, target)
            case Reduce():
                work.operations += _times(phase, schedule, s.tile) * points / lane_fill(s.tile, target)
            case Dot():
                axes = {*s.a.axes, *s.b.axes, *s.out.axes}
                flops = 2.0 * math.prod(extent(a) for a in axes) * _repeats(phase, schedule, axes) * points
                work.dots += flops
                work.dot_seconds += flops / (target.rates.flops_per_s * dot_efficiency(s, schedule, target, phase))
            case Loop():
                _count(phase, schedule, target, work, s.body, (*loops, s.axis))


def lane_fill(t: Tile, target: Target) -> float:
    """Share of the vector lanes that hold elements: a last axis of 8 fills half of 16 lanes."""
    if not t.axes:
        return 1.0 / target.lanes()
    width, lanes = extent(t.axes[-1]), target.lanes(t.dtype.bytes)
    return width / (-(-width // lanes) * lanes) if width else 1.0


def _broadcast(body: tuple[Statement, ...]) -> set[str]:
    """Tiles that dots read element by element, since they have no columns: any stride costs them the same."""
    dots = [s for s in body if isinstance(s, Dot) and s.out.axes]
    return {t.name for s in dots for t in (s.a, s.b) if s.out.axes[-1] not in t.axes}


def _load_operations(s: Load, target: Target, broadcast: bool) -> float:
    """Work of a load in vector operations an element: addresses of a gather, guards of a window's border."""
    cost = 0.0
    if s.out.axes and not broadcast:
        stride = linear_stride(s.buffer, s.index, s.out.axes[-1].name)
        if not (isinstance(stride, int) and stride in (0, 1)):
            cost += GATHER_OPERATIONS
    if s.pad is not None:
        cost += GUARD_OPERATIONS / target.lanes()
    return cost


def _listed(a: Axis, body: tuple[Statement, ...]) -> bool:
    """The axis is cut into tiles that statements list; otherwise it goes in single steps and repeats them."""
    return a in shape_axes(body)


def _times(phase: Phase, schedule: Schedule, t: Tile) -> float:
    """Elements of a tile that are made in all: its index space, again for every grid tile that does not cut it."""
    listed = set(t.axes)
    return float(math.prod(extent(a) for a in listed) * _repeats(phase, schedule, listed))


def _repeats(phase: Phase, schedule: Schedule, listed: set[Axis]) -> int:
    return math.prod(-(-extent(a) // cut(a, schedule)) for a in phase.grid if a not in listed)


def _traffic(work: _Work, buffer: Buffer, moved: float, points: int) -> None:
    """A window reads its buffer again from a cache; that traffic is bounded by the arithmetic and not counted."""
    size = buffer_bytes(buffer)
    total = moved * points
    work.traffic[buffer.name] = work.traffic.get(buffer.name, 0.0) + (
        total if buffer.role == "weight" else min(total, 2.0 * size)
    )
