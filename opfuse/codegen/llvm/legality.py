"""What this code generator refuses, and what a plan takes: registers, scratch, an estimate of the code's size.

Every refusal that can be seen in the program, the schedule or the target is given here, before anything is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opfuse.codegen.llvm.layout import Unsupported, packed_layout
from opfuse.codegen.llvm.passes import Pass, PassPlan, passes_of
from opfuse.codegen.llvm.scalar_functions import check_functions
from opfuse.decision import Refusal
from opfuse.ir.dims import ceildiv, product
from opfuse.ir.scalar import Scalar
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.program import (
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Repeat,
    Statement,
    Store,
    Tile,
    gathers,
    made,
    statements,
)
from opfuse.tile.schedule import Footprint, Schedule

INSTRUCTION_BYTES = 8


def check_program(program: Program, schedule: Schedule, target: Target) -> None:
    """Raises Unsupported."""
    if target.kind != "cpu":
        raise Unsupported("not-a-cpu", f"LLVM code is printed for CPUs, not for {target.name}", target=target.name)
    for p in program.phases:
        if isinstance(p, Repeat):
            raise Unsupported("repeat", f"phases repeated along {p.axis.name} are not printed yet", axis=p.axis.name)
    buffers = {b.name: b for b in program.buffers}
    for b in program.buffers:
        if b.halo is not None:
            raise Unsupported(
                "halo", f"buffer {b.name} has a halo, which this printer does not read yet", buffer=b.name
            )
        if b.dtype is DType.F16 and target.isa == "plain":
            raise Unsupported("half-precision", f"buffer {b.name} is f16, which needs the CPU's conversions",
                              buffer=b.name, isa=target.isa)  # fmt: skip
    for name, packing in schedule.pack.items():
        if name not in buffers:
            continue
        b = buffers[name]
        if b.strides is not None or b.role != "weight":
            raise Unsupported("pack-buffer", f"{name} is packed but is no weight laid out row by row", buffer=name)
        packed_layout(b, packing)
        if packing.panel % target.lanes():
            raise Unsupported("panel", f"panels of {packing.panel} do not hold whole vectors of {target.lanes()}",
                              buffer=name, panel=packing.panel, lanes=target.lanes())  # fmt: skip
    for part in schedule.beside:
        check_program(replace(program, phases=()), part, target)
    mr, nv = schedule.register
    if mr < 1 or nv < 1 or schedule.stream < 1 or any(n < 1 for n in schedule.tile.values()):
        raise Unsupported("schedule", "tiles, register tiles and streams hold at least one element",
                          register=schedule.register, stream=schedule.stream, tile=dict(schedule.tile))  # fmt: skip


def check_phase(phase: Phase, target: Target) -> None:
    """Raises Unsupported."""
    tiles: dict[str, Tile] = {t.name: t for s in statements(phase.body) for t in made(s)}
    loops = [s for s in statements(phase.body) if isinstance(s, Loop)]
    for s in statements(phase.body):
        for value in _expressions(s):
            refusal = check_functions(value)
            if isinstance(refusal, Refusal):
                raise Unsupported(refusal.code, refusal.text, **refusal.facts)
        for t in made(s):
            if t.dtype is DType.F16 and target.isa == "plain":
                raise Unsupported("half-precision", f"tile {t.name} is f16", tile=t.name, isa=target.isa)
        if isinstance(s, (Load, Store)):
            for g in gathers(s.index):
                if not tiles[g].dtype.is_integer:
                    raise Unsupported("gather-type", f"tile {g} is an index but not of integers", tile=g)
    for s in loops:
        if any(i is not None and not i.affine for i in (s.start, s.stop)):
            raise Unsupported("loop-bound", f"a bound of loop {s.axis.name} is not affine", axis=s.axis.name)


def _expressions(s: Statement) -> Iterator[Scalar]:
    if isinstance(s, Map):
        yield s.value
    if isinstance(s, Loop):
        yield from (c.init for c in s.carries)


def footprint_of(plans: tuple[PassPlan, ...], target: Target) -> Footprint:
    tiles = [product(ceildiv(a.extent, p.tile[a.name]) for a in p.grid) for p in plans]
    return Footprint(
        registers=max((_registers(p, target) for plan in plans for p in passes_of(plan.steps)), default=0),
        scratch_bytes=max((p.scratch_bytes for p in plans), default=0),
        code_bytes=sum(_code_bytes(p) for p in plans),
        tiles=min((n if isinstance(n, int) else 0 for n in tiles), default=0),
    )


def _registers(p: Pass, target: Target) -> int:
    """Accumulators, the vectors of one operand and a broadcast; a stream keeps little."""
    rows, vectors = p.register
    width = max(1, p.lanes // target.lanes())
    return (rows * vectors * width + vectors + 1) if p.dotted else vectors * width + 4


def _code_bytes(plan: PassPlan) -> int:
    """Points of the register tile, times what each of them needs, times the variants of the loops around."""
    total = 0
    for p in passes_of(plan.steps):
        points = p.register[0] * p.register[1]
        total += points * (len(plan.definitions) + 8 * len(p.sinks)) * INSTRUCTION_BYTES * (4 if p.dotted else 2)
    ragged = sum(1 for a in plan.grid if not isinstance(a.extent, int) or plan.tile[a.name] != 1)
    return total * (1 + min(ragged, 2))
