"""Seconds that a kernel will take: a roofline over a tile program, its schedule and a target.

    seconds = start + max over levels(bytes(level) / bandwidth(level), dots / rate, element operations / rate)

A buffer counts at the cache level that its size fits; a store counts its write-allocate; a load that the grid repeats
(weights for every block of rows) counts each time, from the level where it stays. Work is shared by the threads as far
as there are tiles for them. Every rate is measured on the machine (`tune.calibrate`) or names its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opfuse.fuse.provider import Cost
from opfuse.ir.index import Index, Quotient, Remainder
from opfuse.ir.scalar import FUNCTIONS, Apply, walk
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.axes import fullest, linear_stride
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
    gathers,
    made,
    operands,
    shape_axes,
    statements,
)
from opfuse.tile.schedule import Schedule

NOMINAL_EXTENT = 64  # of an axis that is bound at run time only

# A step of the native driver with one empty tile takes 0.16 us on one thread (one server, 2026). A microsecond for
# steps that threads share was tried: its joins lost 20 % of a transformer at two threads and gained nothing elsewhere.
LEAST_START_S = 0.2e-6

# Accesses in vector operations an element. A strided one is turned in registers or gathered; from the nearest few
# vectors lanes are picked; where lanes stay empty there are more accesses than bytes tell. A guarded row of a window
# costs this many scalar steps: most rows are known to lie inside.
STRIDED_OPERATIONS = 16.0
TURNED_OPERATIONS = 6.0
ACCESS_OPERATIONS = 1.5
GUARD_OPERATIONS = 2.0
NEAR = 4  # vectors that lanes are picked out of

# An element that is found by an index of its own: 4.8 us for 17680 of them, 0.25 to 0.3 ns whatever the CPU's vector
# rate (one server, 2026; 16 lanes of a gather take 16 to 26 cycles on AVX-512 servers of 2022 to 2025).
GATHER_S = 0.27e-9

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
        work.operations += _gathered_products(phase, schedule) * target.rates.vector_ops_per_s
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
    of_columns = {a for t in (dot.a, dot.b) if column in t.axes for a in t.axes}
    above = [a for a in dot.out.axes[:-1] if (a in dot.a.axes or a in dot.b.axes) and a not in of_columns]
    width = min(extent(column), cut(column, schedule)) if column in phase.grid else extent(column)
    filled = width / (-(-width // lanes) * lanes)
    rows, vectors = schedule.register
    heights = [cut(a, schedule) if a in phase.grid else extent(a) for a in reversed(above)]
    height = heights[fullest(heights, rows)] if heights else 1
    rows = max(1, height // -(-height // rows)) if height else 1
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
                operations = _load_operations(s, phase, target, s.out.name in broadcast)
                work.operations += operations * _times(phase, schedule, s.out) * points
                _traffic(work, s.buffer, _times(phase, schedule, s.out) * s.buffer.dtype.bytes, points)
            case Store():
                times = _times(phase, schedule, s.tile)
                work.operations += _access_operations(s, s.tile, phase, target) * times * points
                moved = times * s.buffer.dtype.bytes
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


def _gathered_products(phase: Phase, schedule: Schedule) -> float:
    """Seconds of gathers in products that are made along the columns of a second one, which reads them crosswise.

    K = x @ w is read by Q @ K' along its rows; made so, it reads x along rows too, at each step of its own sum.
    """
    makers = {t.name: s for s in statements(phase.body) for t in made(s)}
    seconds = 0.0
    for s in makers.values():
        if isinstance(s, Dot) and s.out.axes:
            column = s.out.axes[-1]
            crosswise = [t for t in (s.a, s.b) if column in t.axes and t.axes[-1] != column]
            for inner in (d for t in crosswise for d in _products_behind(t, makers)):
                if any(column in t.axes and t.axes[-1] != column for t in (inner.a, inner.b)):
                    axes = {*inner.a.axes, *inner.b.axes, *inner.out.axes}
                    steps = math.prod(extent(a) for a in axes) * _repeats(phase, schedule, axes)
                    seconds += GATHER_S * steps / schedule.register[0]
    return seconds


def _products_behind(t: Tile, makers: Mapping[str, Statement]) -> Iterator[Dot]:
    """The dots that make a tile, through maps and loops."""
    match makers.get(t.name):
        case Dot() as s:
            yield s
        case Map(_, value):
            for x in operands(value):
                yield from _products_behind(x, makers)
        case Loop() as s:
            inner = {x.name: b for b in s.body for x in made(b)}
            for c in s.carries:
                if c.tile == t:
                    yield from _products_behind(c.next, inner)
        case _:
            pass


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


def _load_operations(s: Load, phase: Phase, target: Target, broadcast: bool) -> float:
    """Work of a load in vector operations an element: where its lanes lie, and guards of a window's border."""
    cost = 0.0
    if s.out.axes and not broadcast:
        cost += _access_operations(s, s.out, phase, target)
    if s.pad is not None:
        cost += GUARD_OPERATIONS / target.lanes()
    return cost


def _access_operations(s: Load | Store, t: Tile, phase: Phase, target: Target) -> float:
    """What an element costs beside its bytes, by how the lanes lie in memory."""
    if not t.axes:
        return 0.0
    lane = t.axes[-1]
    stride = linear_stride(s.buffer, s.index, lane.name)
    if _is_gathered(s.index, lane, phase) or (stride is None and _parts_lanes(s.index, lane, target)):
        return GATHER_S * target.rates.vector_ops_per_s
    if not isinstance(stride, int):
        return 0.0 if stride is None else STRIDED_OPERATIONS
    if abs(stride) <= 1:
        return ACCESS_OPERATIONS * (1.0 / lane_fill(t, target) - 1.0) if stride else 0.0
    if abs(stride) <= NEAR:
        return 2.0 * abs(stride) / target.lanes(s.buffer.dtype.bytes)
    return STRIDED_OPERATIONS if isinstance(s, Load) else TURNED_OPERATIONS


def _parts_lanes(index: tuple[Index, ...], lane: Axis, target: Target) -> bool:
    """Do a quotient and a remainder change inside a vector? Not where their divisor is of whole vectors."""
    divided = [t for i in index for t, _ in i.terms if isinstance(t, (Quotient, Remainder))]
    return any(
        lane.name in t.numerator.axes and not (isinstance(t.divisor, int) and t.divisor % target.lanes() == 0)
        for t in divided
    )  # fmt: skip


def _is_gathered(index: tuple[Index, ...], lane: Axis, phase: Phase) -> bool:
    """Does an index that the lanes have one by one say where they lie?"""
    named = set(gathers(index))
    return bool(named) and any(
        lane in t.axes for s in statements(phase.body) for t in made(s) if t.name in named
    )  # fmt: skip


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
