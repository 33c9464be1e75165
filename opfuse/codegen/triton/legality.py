"""Can a program be printed under a schedule, and what would it take? Asked for many schedules, so nothing is printed.

    match legal(program, schedule, target):
        case Refusal(code="not-a-power-of-two"): ...
        case Footprint(registers, scratch_bytes): ...    # scratch_bytes: shared memory of one block of threads

Shared memory is an estimate from how Triton 3.6 stages loads: an operand of a dot that is loaded inside a loop takes
one buffer a pipeline stage (8-bit ones are also transposed, into one more), any other operand of a dot one; reductions
across warps are small beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from opfuse.codegen.triton.blocks import MAX_ELEMENTS, Blocks, grid_size, matrix_shaped
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.program import Dot, Load, Loop, Phase, Program, Statement, Tile, made, operands, read, statements
from opfuse.tile.schedule import Footprint, Schedule

THREADS = 32  # of a warp (64 on AMD's compute units: an estimate from 32 is on the safe side)
SPILL_FACTOR = 4  # times the register file: what is estimated as live above this has always spilled when compiled


def legal(program: Program, schedule: Schedule, target: Target) -> Footprint | Refusal:
    """What the program takes on the target under the schedule, or why it cannot run there."""
    if target.kind != "gpu":
        return Refusal(
            "not-a-gpu", f"Triton kernels run on GPUs; {target.name} is a {target.kind}", {"target": target.name}
        )
    for b in program.buffers:
        if b.halo is not None:
            return Refusal(
                "halo", f"buffer {b.name} keeps a halo; GPU kernels guard their reads instead", {"buffer": b.name}
            )
    if schedule.warps < 1 or schedule.warps & (schedule.warps - 1):
        return Refusal("warps", f"{schedule.warps} warps: Triton wants a power of two", {"warps": schedule.warps})
    footprint = Footprint()
    for phase in program.flat_phases():
        found = _phase(phase, schedule, target)
        if isinstance(found, Refusal):
            return found
        few = [t for t in (footprint.tiles, found.tiles) if t]
        footprint = Footprint(
            max(footprint.registers, found.registers),
            max(footprint.scratch_bytes, found.scratch_bytes),
            footprint.code_bytes + found.code_bytes,
            min(few, default=0),
        )
    return footprint


def _phase(phase: Phase, schedule: Schedule, target: Target) -> Footprint | Refusal:
    blocks = Blocks(phase, schedule)
    if blocks.refusal is not None:
        return blocks.refusal
    for t in _tiles(phase):
        elements = blocks.elements(t)
        if elements > MAX_ELEMENTS:
            text = f"tile {t.name} would hold {elements} elements; Triton allows {MAX_ELEMENTS}"
            return Refusal("block-too-large", text, {"tile": t.name, "elements": elements, "allowed": MAX_ELEMENTS})
    for s in statements(phase.body):
        if isinstance(s, Dot) and not matrix_shaped(s, blocks.size):
            elements = blocks.elements(s.out) * blocks.block(s.over)
            if elements > MAX_ELEMENTS:
                return Refusal("dot-by-sums", f"no matrix unit takes {s.out.name}, and its products are {elements}",
                               {"elements": elements, "allowed": MAX_ELEMENTS})  # fmt: skip
    shared = shared_bytes(phase, blocks, schedule.stages)
    if shared > target.l1_bytes:
        return Refusal("shared-memory", f"about {shared} bytes of shared memory; the target has {target.l1_bytes}",
                       {"bytes": shared, "allowed": target.l1_bytes})  # fmt: skip
    registers = live_words(phase, blocks) // (THREADS * schedule.warps)
    if registers > SPILL_FACTOR * target.registers:
        return Refusal("registers", f"about {registers} registers a thread; the target has {target.registers}",
                       {"registers": registers, "allowed": target.registers})  # fmt: skip
    tiles = grid_size(phase, blocks)
    return Footprint(
        registers, shared, 64 * sum(1 for _ in statements(phase.body)), tiles if isinstance(tiles, int) else 0
    )


def _tiles(phase: Phase) -> Iterator[Tile]:
    for s in statements(phase.body):
        yield from made(s)


def shared_bytes(phase: Phase, blocks: Blocks, stages: int) -> int:
    """The most that the dots of one loop (or of the straight code) hold in shared memory at a time."""
    return max(
        [
            _dots(phase.body, blocks, 1),
            *(_dots(s.body, blocks, stages) for s in statements(phase.body) if isinstance(s, Loop)),
        ]
    )


def _dots(body: tuple[Statement, ...], blocks: Blocks, stages: int) -> int:
    loaded = {s.out.name for s in body if isinstance(s, Load)}
    operand_tiles = {t for s in body if isinstance(s, Dot) and matrix_shaped(s, blocks.size) for t in (s.a, s.b)}
    staged = {t.name: stages + (t.dtype.bytes == 1) for t in operand_tiles if t.name in loaded}
    return sum(blocks.elements(t) * t.dtype.bytes * staged.get(t.name, 1) for t in operand_tiles)


def live_words(phase: Phase, blocks: Blocks) -> int:
    """The most 32-bit words of tiles alive at once; loaded operands of dots are in shared memory and not counted."""
    flat = list(statements(phase.body))
    last: dict[str, int] = {}
    for k, s in enumerate(flat):
        for t in (*read(s), *(c.next for c in (s.carries if isinstance(s, Loop) else ()))):
            last[t.name] = k
        if isinstance(s, Loop):  # a carried value lives through the whole loop
            inside = sum(1 for _ in statements(s.body))
            for c in s.carries:
                last[c.tile.name] = last[c.next.name] = k + inside
            for t in (t for c in s.carries for t in operands(c.init)):
                last[t.name] = max(last.get(t.name, k), k)
    only_dots = _fed_to_dots_only(flat, blocks)
    alive: dict[str, tuple[int, int]] = {}
    peak = 0
    for k, s in enumerate(flat):
        for t in made(s):
            if t.name not in only_dots:
                alive[t.name] = (max(last.get(t.name, k), k), blocks.elements(t) * max(1, _bytes(t.dtype) // 4))
        peak = max(peak, sum(words for _, words in alive.values()))
        alive = {name: (end, words) for name, (end, words) in alive.items() if end > k}
    return peak


def _bytes(dtype: DType) -> int:
    return max(4, dtype.bytes)


def _fed_to_dots_only(flat: list[Statement], blocks: Blocks) -> set[str]:
    loaded = {s.out.name for s in flat if isinstance(s, Load)}
    elsewhere = {
        t.name
        for s in flat
        for t in read(s)
        if not (isinstance(s, Dot) and matrix_shaped(s, blocks.size) and t != s.acc)
    }
    return loaded - elsewhere
