"""Kernels as runs: one for each printed phase, with what it reads and writes and how threads share it.

A phase reads the buffers that it loads and writes those that it stores; a printed function that is not one phase
(several that stand side by side) gets the careful answer: everything that a buffer's role allows. `Repeat` phases are
written out, with the turn's number as an integer argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from opfuse.fuse.provider import HostKernel, Kernel, TileKernel
from opfuse.ir.dims import Bindings, Dim, bind
from opfuse.plan.order import Run
from opfuse.plan.storage import Storages, buffer_bytes
from opfuse.tile.program import Load, Phase, Program, Repeat, Store, statements

MAX_CLAIMS = 64  # a thread: more claims than this balance no better and cost an atomic operation each (about 50 ns)
SOLO_SECONDS = 1.5e-6  # a kernel shorter than this gains less from threads than its barrier costs (0.4 us) and a claim


class Printed(Protocol):
    """What the plan needs of a printed phase (codegen.llvm.printer.PrintedPhase)."""

    @property
    def symbol(self) -> str: ...
    @property
    def arguments(self) -> tuple[str, ...]: ...
    @property
    def integers(self) -> tuple[str, ...]: ...
    @property
    def tiles(self) -> Dim: ...
    @property
    def scratch_bytes(self) -> int: ...


@dataclass(frozen=True)
class PlannedRun:
    """A run and what its step needs. `scratch_names`: the kernel's buffers between phases, as names in the arena."""

    run: Run
    function: str = ""
    buffers: tuple[str, ...] = ()
    integers: tuple[int, ...] = ()
    tiles: int = 0
    chunk: int = 1
    scratch_bytes: int = 0
    scratch_names: Mapping[str, str] = field(default_factory=dict)
    scratch_sizes: Mapping[str, int] = field(default_factory=dict)


def plan_runs(
    kernels: Sequence[Kernel], printed: Sequence[Sequence[Printed]], storages: Storages, threads: int,
    bindings: Bindings,
) -> list[PlannedRun]:
    """The runs of kernels in execution order (views are not among them)."""
    out = []
    for number, kernel in enumerate(kernels):
        if isinstance(kernel, HostKernel):
            reads = frozenset().union(*(storages.holds(v) for v in kernel.region.inputs))
            out.append(PlannedRun(Run(number, reads, frozenset(kernel.region.outputs), True, True)))
        elif isinstance(kernel, TileKernel):
            if not printed[number]:
                raise ValueError(f"kernel {kernel.name!r} was not printed")
            out += _kernel_runs(number, kernel, printed[number], storages, threads, bindings)
    return out


def _kernel_runs(
    number: int, kernel: TileKernel, printed: Sequence[Printed], storages: Storages, threads: int, bindings: Bindings
) -> Iterator[PlannedRun]:
    program = kernel.program
    names = {b.name: f"{number}:{kernel.name}.{b.name}" for b in program.buffers if b.name not in kernel.arguments}
    sizes = {names[b]: _number(bind(buffer_bytes(program.buffer(b)), bindings), kernel, b) for b in names}
    where = {b: frozenset((name,)) for b, name in names.items()}
    where |= {b: storages.holds(v) for b, v in kernel.arguments.items()}
    phases = list(program.flat_phases())
    for k, extra in _turns(program, len(printed), bindings):
        p = printed[k]
        reads, writes = _touched(program, phases[k] if len(phases) == len(printed) else None, p.arguments)
        if len(phases) != len(printed):  # which of them touches what lies between the phases is not known
            between = names.keys() & set(p.arguments)
            reads, writes = reads | between, writes | between
        values = {**bindings, **extra}
        tiles = _number(bind(p.tiles, values), kernel, "grid")
        chunk = chunk_of(tiles, kernel.schedule.chunk, threads, kernel.cost.seconds)
        yield PlannedRun(
            Run(number, _all(where, reads), _all(where, writes), tiles <= chunk),
            p.symbol, p.arguments, tuple(values[s] for s in p.integers), tiles, chunk, p.scratch_bytes, names, sizes,
        )  # fmt: skip


def _all(where: Mapping[str, frozenset[str]], buffers: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(where[b] for b in buffers))


def chunk_of(tiles: int, wanted: int, threads: int, seconds: float) -> int:
    """Tiles a claim: as the schedule asks, unless that makes too many claims or the kernel is too short to share."""
    if threads == 1 or 0 < seconds < SOLO_SECONDS:
        return max(tiles, 1)
    return max(wanted, -(-tiles // (threads * MAX_CLAIMS)), 1)


def _turns(program: Program, printed: int, bindings: Bindings) -> Iterator[tuple[int, dict[str, int]]]:
    """Numbers of the printed phases in the order in which they run, and the integers that a turn of `Repeat` adds."""
    if not any(isinstance(p, Repeat) for p in program.phases):
        yield from ((k, {}) for k in range(printed))
        return
    if printed != sum(1 for _ in program.flat_phases()):
        raise ValueError(f"{program.name}: {printed} printed phases for a program with repeated ones")
    first = 0
    for p in program.phases:
        if isinstance(p, Repeat):
            extent = bind(p.axis.extent, bindings)
            if not isinstance(extent, int):
                raise ValueError(f"{program.name}: the number of turns {extent} is not bound")
            yield from ((first + k, {p.axis.name: t}) for t in range(extent) for k in range(len(p.phases)))
            first += len(p.phases)
        else:
            yield first, {}
            first += 1


def _touched(program: Program, phase: Phase | None, arguments: Sequence[str]) -> tuple[set[str], set[str]]:
    """Buffers that a phase reads and writes."""
    if phase is None:
        reads = {b.name for b in program.buffers if b.name in arguments}
        return reads, {b for b in reads if program.buffer(b).role in ("out", "scratch")}
    inside = list(statements(phase.body))
    reads = {s.buffer.name for s in inside if isinstance(s, Load)}
    return reads, {s.buffer.name for s in inside if isinstance(s, Store)}


def _number(d: Dim, kernel: TileKernel, what: str) -> int:
    if not isinstance(d, int):
        raise ValueError(f"kernel {kernel.name!r}: {what} has the unbound extent {d}")
    return d
