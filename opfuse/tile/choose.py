"""A good schedule for a program on a CPU, from its shape alone; tuning starts from it.

    schedule = choose_cpu(program, target)

Numbers come from measurements of generated kernels on AVX-512 in 2026: a 6 x 4-vector accumulator tile is best or equal
nearly everywhere, 14 x 2 where rows are 14 wide or columns few; a block of A and a panel of B must stay under L2; the
streaming kernels are prefetched 4 KB ahead where the machine gains from it.
"""

from __future__ import annotations

import math

from opfuse.ir.dims import Dim
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.axes import linear_stride, volume
from opfuse.tile.program import (
    Beside,
    Buffer,
    Dot,
    Load,
    Loop,
    Phase,
    Program,
    Rename,
    Statement,
    loop_axes,
    shape_axes,
    statements,
)
from opfuse.tile.schedule import Packing, Schedule

NOMINAL = 64
STREAM_ELEMENTS = 16384  # of one tile of a kernel without dots: 64 KB a buffer, inside L2 with room for others
PREFETCH_BYTES = 4096  # ahead, in streaming loads: a page of 4 KB was the best distance where prefetch pays at all
PREFETCH_PAYS = 1.15  # gain of the probe from which it is used: at 1.35 kernels gain as much, at 1.08 they lose
TURNED_DEPTH = 64  # steps of a product whose columns are turned round: squares of vectors, in L1 with their columns
KEY_BLOCK = 256  # most keys of a block: 128 to 512 were within 5 % of each other (8 heads of 64, one server, 2026)
QUERY_BLOCK = 48  # fewest queries of a block that is cut for the sake of more threads: below, turning keys round costs
SHORT_LOOP = 3  # points of a window's row that are written out
LONG_ROW = 6  # rows of the widest register tile
PANEL_PREFETCH_BYTES = 256 << 10  # weights beyond this are not found in L2 again


def size(d: Dim) -> int:
    """An extent to divide by: a nominal one where it is bound at run time, and 1 for an empty one."""
    return max(1, d) if isinstance(d, int) else NOMINAL


def choose_cpu(program: Program, target: Target) -> Schedule:
    if any(isinstance(part, Beside) for part in program.phases):
        return Schedule.side_by_side([choose_cpu(part, target) for part in program.apart()])
    phase = next(program.flat_phases())
    dots = [s for s in statements(phase.body) if isinstance(s, Dot) and s.out.axes]
    keys = key_loop(phase)
    if keys is not None:
        return _key_schedule(phase, keys, target)
    if dots:
        return _dot_schedule(program, phase, max(dots, key=lambda d: volume(d.out) * size(d.over.extent)), target)
    return _stream_schedule(program, phase, target)


# ---- without a dot ---------------------------------------------------------------------------------------------------
def _stream_schedule(program: Program, phase: Phase, target: Target) -> Schedule:
    """Tiles of about STREAM_ELEMENTS, cut from the outside in, at least four for each thread where there is work."""
    whole = math.prod(size(a.extent) for a in shape_axes(phase.body) - set(phase.grid) - loop_axes(phase.body))
    total = math.prod(size(a.extent) for a in phase.grid)
    wanted = max(1, min(STREAM_ELEMENTS // max(1, whole), -(-total // (4 * target.units))))
    tile: dict[str, int] = {}
    lane = _lane(phase)
    for a in reversed(_lane_last(phase.grid, lane)):
        n = min(size(a.extent), max(1, wanted))
        if a == lane:  # whole vectors
            n = min(size(a.extent), -(-n // target.lanes()) * target.lanes())
        tile[a.name] = n
        wanted = max(1, wanted // n)
    large = any(_bytes(b) > target.l2_bytes // 2 for b in program.buffers)
    ahead = PREFETCH_BYTES if large and target.rates.prefetch_gain > PREFETCH_PAYS else 0
    vectors = min(4, -(-size(lane.extent) // target.lanes())) if lane is not None else 4
    return Schedule(tile=tile, stream=4, register=_register(target, 3 if vectors == 3 else vectors, _live_tiles(phase)),
                    prefetch=ahead, unroll=_short_loops(phase))  # fmt: skip


def _lane(phase: Phase) -> Axis | None:
    """The axis that vectors run along in the widest tile."""
    tiles = [t for s in statements(phase.body) for t in ([s.out] if isinstance(s, Load) else []) if t.axes]
    return max(tiles, key=volume).axes[-1] if tiles else None


def _lane_last(grid: tuple[Axis, ...], lane: Axis | None) -> list[Axis]:
    return [a for a in grid if a != lane] + [a for a in grid if a == lane]


def _short_loops(phase: Phase) -> tuple[str, ...]:
    """Innermost loops of a few points are written out.

    Not those around them: one straight piece of code would read each element that windows share once and hold all of
    them, more than there are registers (a pooled 3x3 convolution in one piece took twice as long).
    """
    return tuple(
        s.axis.name
        for s in statements(phase.body)
        if isinstance(s, Loop) and isinstance(s.axis.extent, int) and s.axis.extent <= SHORT_LOOP
        and not any(isinstance(x, Loop) for x in s.body)
    )  # fmt: skip


def _bytes(b: Buffer) -> int:
    return math.prod(size(d) for d in b.shape) * b.dtype.bytes


# ---- with dots -------------------------------------------------------------------------------------------------------
def _dot_schedule(program: Program, phase: Phase, dot: Dot, target: Target) -> Schedule:
    lanes = target.lanes()
    column = dot.out.axes[-1]
    rows = [a for a in dot.out.axes[:-1] if a in dot.a.axes or a in phase.grid]
    row = _row(rows, dot)
    vectors = _vectors(size(column.extent), size(row.extent) if row else 1, target)
    register = _register(target, vectors, _live_tiles(phase))
    panel = register[1] * lanes
    turned = _turned_loops(phase)
    tile = {a.name: TURNED_DEPTH if a in turned else 4 for a in loop_axes(phase.body) if a in shape_axes(phase.body)}
    depth = max(1, _depth(phase.body))
    for a in phase.grid:
        tile[a.name] = 1
    if column in phase.grid:
        tile[column.name] = panel
    if row is not None and row in phase.grid:
        if any(isinstance(s, Rename) for s in statements(phase.body)):
            tile[row.name] = _recurrent_rows(size(row.extent), register[0], dot, target)
        else:
            tile[row.name] = _row_block(size(row.extent), depth, register[0], column, phase, panel, target)
    outer = [a for a in rows if a in phase.grid and a != row]
    if row is not None and outer and tile.get(row.name, 0) >= size(row.extent):
        _widen(outer[-1], size(row.extent), depth, tile, phase, target)
    weights = sum(_bytes(b) for b in program.buffers if b.role == "weight")
    return Schedule(
        tile=tile, order=_grid_order(phase, column, row), register=register, stream=4, pack=_packing(phase, panel),
        prefetch_panel=weights > PANEL_PREFETCH_BYTES,
    )  # fmt: skip


def _depth(body: tuple[Statement, ...], loops: frozenset[Axis] = frozenset()) -> int:
    """Terms of the sums behind an element of the result: loops in each other multiply, one after another they add."""
    total = 0
    for s in body:
        if isinstance(s, Loop):
            total += _depth(s.body, loops | {s.axis})
        elif isinstance(s, Dot):
            total += math.prod(size(a.extent) for a in loops | {s.over})
    return total


def _register(target: Target, vectors: int, live: int = 1) -> tuple[int, int]:
    """Rows of the accumulator tile that fit the registers beside its columns and a broadcast.

    `live` accumulator tiles are held at once: a pool around a convolution carries its own maximum beside the sums.
    """
    wide = target.registers >= 32
    rows = {1: 12, 2: 14, 3: 9, 4: 6}[vectors] if wide else {1: 8, 2: 6, 3: 4, 4: 3}[vectors]
    if live == 1:
        return rows, vectors
    vectors = min(vectors, 2)
    return max(1, ((28 if wide else 12) // live) // vectors), vectors


def _live_tiles(phase: Phase) -> int:
    """How many accumulator tiles nested loops hold at once: one more where a loop combines what an inner one made."""

    def live(body: tuple[Statement, ...]) -> int:
        deepest = 0
        for s in body:
            if isinstance(s, Loop) and s.carries:
                inner = live(s.body)
                handed_up = {c.tile for b in s.body if isinstance(b, Loop) for c in b.carries}
                own = any(c.next not in handed_up for c in s.carries)
                deepest = max(deepest, inner + (1 if own or not inner else 0))
        return deepest

    return max(1, live(phase.body))


def _vectors(columns: int, rows: int, target: Target) -> int:
    """Vectors of columns: four where they fill, two for rows that come in sevens, fewer where columns are few."""
    lanes = target.lanes()
    if target.registers < 32:
        return 1 if columns <= lanes else 2
    if columns <= lanes:
        return 1
    if columns <= 2 * lanes or rows % 7 == 0 and rows <= 14:
        return 2
    if columns <= 3 * lanes:
        return 3
    waste4, waste2 = -columns % (4 * lanes), -columns % (2 * lanes)
    return 2 if waste4 > waste2 and waste4 * 8 > columns else 4


def _row_block(
    rows: int, depth: int, register_rows: int, column: Axis, phase: Phase, panel: int, target: Target
) -> int:
    """Rows of a grid tile: their inputs and one weight panel stay in L2; enough tiles for the threads to share."""
    budget = max(target.l2_bytes // 2 - panel * depth * 4, target.l2_bytes // 8)
    block = max(register_rows, min(rows, budget // max(1, depth * 4)))
    if column not in phase.grid:  # all columns in one tile: they live in scratch
        block = min(block, max(register_rows, (target.l2_bytes // 8) // max(1, size(column.extent) * 4)))
    columns = -(-size(column.extent) // panel) if column in phase.grid else 1
    others = math.prod(size(a.extent) for a in phase.grid if a != column) // max(1, rows)
    while block > register_rows and -(-rows // block) * columns * max(1, others) < 4 * target.units:
        block = max(register_rows, -(-block // 2))
    lanes = target.lanes()
    if column not in phase.grid and 2 * lanes <= block < rows:  # lanes may run along rows: no vector is half empty
        return min(rows, block // lanes * lanes)
    return min(rows, -(-block // register_rows) * register_rows)


def _recurrent_rows(rows: int, register_rows: int, dot: Dot, target: Target) -> int:
    """Rows that go through all steps of time together: every step reads all weights, so a thread has one block of rows.

    The state of the block stays in L2: what a product reads of it, and what the gates make beside that.
    """
    each = -(-rows // target.units)
    room = target.l2_bytes // 4 // (4 * (size(dot.over.extent) + 4 * size(dot.out.axes[-1].extent)))
    blocks = -(-rows // max(register_rows, min(each, room)))
    return -(-rows // blocks)


def _widen(a: Axis, inner_rows: int, depth: int, tile: dict[str, int], phase: Phase, target: Target) -> None:
    """Several image rows in one grid tile, as long as their inputs stay in L2 and the threads have enough tiles."""
    budget = target.l2_bytes // 4
    n = max(1, min(size(a.extent), budget // max(1, inner_rows * min(depth, 4096) * 4)))
    others = math.prod(-(-size(b.extent) // tile.get(b.name, 1)) for b in phase.grid if b != a)
    while n > 1 and -(-size(a.extent) // n) * others < 4 * target.units:
        n = -(-n // 2)
    tile[a.name] = n


def _row(rows: list[Axis], dot: Dot) -> Axis | None:
    """The row axis of register tiles: the innermost one that is long enough, or the longest."""
    column = dot.out.axes[-1]
    of_columns = {a for t in (dot.a, dot.b) if column in t.axes for a in t.axes}
    own = [a for a in reversed(rows) if a not in of_columns] or rows[::-1]
    return next((a for a in own if size(a.extent) >= LONG_ROW), max(own, key=lambda a: size(a.extent), default=None))


def _grid_order(phase: Phase, column: Axis, row: Axis | None) -> tuple[str, ...]:
    """Rows outside, weight panels inside: the block of A stays in L2 while panels pass. Row of an image innermost."""
    inner = [a for a in (column, row) if a is not None and a in phase.grid]
    several_rows = [a for a in phase.grid if a not in inner]
    return tuple(a.name for a in (*several_rows, *([row] if row in phase.grid and not several_rows and row else []),
                                  *(a for a in inner if a != row or several_rows)))  # fmt: skip


def _packing(phase: Phase, panel: int) -> dict[str, Packing]:
    """Constants that a dot reads along its columns get panels of its register tile."""
    loads = {s.out.name: s for s in statements(phase.body) if isinstance(s, Load)}
    uses: dict[str, set[int | None]] = {}
    for s in statements(phase.body):
        if isinstance(s, Dot):
            for operand in (s.a, s.b):
                load = loads.get(operand.name)
                if load is not None and load.buffer.role == "weight" and s.out.axes:
                    uses.setdefault(load.buffer.name, set()).add(_plain_dimension(load, s.out.axes[-1]))
    dot_loads = {o.name for s in statements(phase.body) if isinstance(s, Dot) for o in (s.a, s.b)}
    for load in loads.values():
        if load.out.name not in dot_loads:
            uses.setdefault(load.buffer.name, set()).add(None)
    return {
        name: Packing(d, panel)
        for name, (d, *rest) in ((n, list(u)) for n, u in uses.items())
        if d is not None and not rest
    }


def _turned_loops(phase: Phase) -> frozenset[Axis]:
    """Loops over a dot whose columns do not lie side by side in memory: they are turned round, block by block."""
    loads = {s.out.name: s for s in statements(phase.body) if isinstance(s, Load)}
    found = set()
    for s in statements(phase.body):
        if isinstance(s, Dot) and s.out.axes:
            column = s.out.axes[-1]
            given = [loads[t.name] for t in (s.a, s.b) if t.name in loads and column in t.axes]
            strides = [linear_stride(x.buffer, x.index, column.name) for x in given if x.buffer.role != "weight"]
            if any(stride != 1 for stride in strides):
                found.add(s.over)
    return frozenset(found)


def _plain_dimension(load: Load, column: Axis) -> int | None:
    """The dimension of the buffer that the column axis walks, alone and whole."""
    for d, i in enumerate(load.index):
        if i == Index(((AxisTerm(column.name), 1),)) and load.buffer.shape[d] == column.extent:
            return d
    return None


# ---- loops over keys -------------------------------------------------------------------------------------------------
def key_loop(phase: Phase) -> Loop | None:
    """The loop of an online softmax: it carries tiles of several shapes round a dot over its own axis."""
    for s in phase.body:
        if isinstance(s, Loop) and len({c.tile.axes for c in s.carries}) > 1:
            made = {c.next.name for c in s.carries}
            if any(isinstance(b, Dot) and b.out.name in made and b.over == s.axis for b in s.body):
                return s
    return None


def _key_schedule(phase: Phase, loop: Loop, target: Target) -> Schedule:
    """A block of keys of a few register tiles, and as many queries as keep their scores in half of L2.

    Keys are turned round once for each block of queries, and the carried product is read and written once for each
    block of keys: both should be large, queries more so.
    """
    dots = [s for s in loop.body if isinstance(s, Dot)]
    product = next(d for d in dots if d.over == loop.axis)
    depth = max((size(d.over.extent) for d in dots if d.over != loop.axis), default=1)
    most = max(4 * target.lanes(), min(KEY_BLOCK, target.l2_bytes // 8 // (4 * depth)))
    block = _even(size(loop.axis.extent), most, target.lanes())
    register = _register(target, 4 if target.registers >= 32 else 2)
    tile = {a.name: 1 for a in phase.grid} | {loop.axis.name: block}
    batch = {*product.a.axes} & {*product.b.axes}
    rows = [a for a in (*product.a.axes, *product.b.axes) if a in phase.grid and a not in batch]
    if rows:
        row = max(rows, key=lambda a: size(a.extent))
        width = max(math.prod(size(a.extent) for a in c.tile.axes if a not in phase.grid) for c in loop.carries)
        room = target.l2_bytes // 2 - 4 * block * depth
        queries = max(register[0], room // (4 * (2 * block + width + 2 * target.lanes())))
        others = math.prod(size(a.extent) for a in phase.grid if a != row)
        shared = -(-size(row.extent) // -(-4 * target.units // others))  # for each thread to have work
        tile[row.name] = _even(size(row.extent), min(queries, max(QUERY_BLOCK, shared)), register[0])
    return Schedule(tile=tile, register=register)


def _even(extent: int, most: int, step: int) -> int:
    """A block of whole steps, at most `most` or one step, that cuts an extent as evenly as can be."""
    most = max(step, most // step * step)
    blocks = -(-extent // most)
    return min(extent, -(-extent // (blocks * step)) * step)
