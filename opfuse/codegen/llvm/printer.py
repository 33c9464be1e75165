"""Tile program + Schedule + Target -> LLVM text, one function a phase.

    print_program(program, schedule, target, "k0_linear") -> (PrintedPhase(...),) or a Refusal

The function is `void SYMBOL(ptr buffer..., i64 extent..., ptr scratch, i64 begin, i64 end)`; it runs flat grid tiles
[begin, end).
Tiles are independent, so every split of [0, tiles) gives the same bits. Tiles kept between passes lie in `scratch`.

An output may be the very memory of an input that is read with the same index map: the value of a point is read before
the point is written. Only weights are declared not to alias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opfuse.codegen.llvm.beside import Called, beside_text
from opfuse.codegen.llvm.emit import Handle, Int, Integer, Value
from opfuse.codegen.llvm.frame import buffer_name, symbol_name
from opfuse.codegen.llvm.layout import Unsupported
from opfuse.codegen.llvm.legality import check_phase, check_program, footprint_of
from opfuse.codegen.llvm.passes import Once, Pass, PassPlan, Sequential, Step, passes_of
from opfuse.codegen.llvm.planning import Planner
from opfuse.codegen.llvm.rows import Rows
from opfuse.decision import Refusal
from opfuse.ir.dims import Dim, ceildiv, product, total
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.program import Beside, Program, whole_axes
from opfuse.tile.schedule import Footprint, Schedule

VERSIONS = 2  # ragged grid axes of which the last tile has code of its own


@dataclass(frozen=True)
class PrintedPhase:
    """A function as text. `arguments` and `integers` name the buffers and run-time extents that it takes, in order."""

    symbol: str
    arguments: tuple[str, ...]
    integers: tuple[str, ...]
    tiles: Dim
    scratch_bytes: int  # a thread
    text: str


def print_program(
    program: Program, schedule: Schedule, target: Target, symbol: str
) -> tuple[PrintedPhase, ...] | Refusal:  # fmt: skip
    """One printed function a phase. A Refusal says what this target or this schedule cannot do."""
    plans = plan_passes(program, schedule, target)
    if isinstance(plans, Refusal):
        return plans
    try:
        printed = [
            _print(p, program, schedule.of(k), target, _phase_symbol(symbol, k, plans)) for k, p in enumerate(plans)
        ]
    except Unsupported as found:
        return found.refusal
    out: list[PrintedPhase] = []
    for part in program.phases:
        if isinstance(part, Beside):
            count = len(part.phases)
            out.append(_beside(symbol, printed[:count], plans[:count], program))
            printed, plans = printed[count:], plans[count:]
        else:
            out.append(printed[0])
            printed, plans = printed[1:], plans[1:]
    return tuple(out)


def _beside(symbol: str, parts: Sequence[PrintedPhase], plans: Sequence[PassPlan], program: Program) -> PrintedPhase:
    """The functions of phases that stand side by side, and one that runs them all."""
    called = [
        Called(p.symbol, p.arguments, p.tiles, ceildiv(plan.grid[0].extent, plan.tile[plan.grid[0].name]))
        if plan.grid else Called(p.symbol, p.arguments, p.tiles, 1)
        for p, plan in zip(parts, plans, strict=True)
    ]  # fmt: skip
    names = tuple(b.name for b in program.buffers if any(b.name in p.arguments for p in parts))
    text = beside_text(symbol, called, names, program.symbols)
    tiles = total(p.tiles for p in parts)
    scratch = max(p.scratch_bytes for p in parts)
    return PrintedPhase(symbol, names, program.symbols, tiles, scratch, "\n".join([*(p.text for p in parts), text]))


def plan_passes(program: Program, schedule: Schedule, target: Target) -> tuple[PassPlan, ...] | Refusal:
    """The plan of each phase; `plan.text()` shows it."""
    try:
        check_program(program, schedule, target)
        plans = []
        for k, phase in enumerate(program.flat_phases()):
            check_phase(phase, target)
            name = program.name if len(list(program.flat_phases())) == 1 else f"{program.name}.{k}"
            plans.append(Planner(name, phase, schedule.of(k), target).plan())
        return tuple(plans)
    except Unsupported as found:
        return found.refusal


def legal(program: Program, schedule: Schedule, target: Target) -> Footprint | Refusal:
    """What the program takes under this schedule on this target, or why it cannot be printed."""
    plans = plan_passes(program, schedule, target)
    return plans if isinstance(plans, Refusal) else footprint_of(plans, target)


def _phase_symbol(symbol: str, k: int, plans: tuple[PassPlan, ...]) -> str:
    return symbol if len(plans) == 1 else f"{symbol}.{k}"


def _print(plan: PassPlan, program: Program, schedule: Schedule, target: Target, symbol: str) -> PrintedPhase:
    names = [b.name for b in program.buffers if b.name in {x.name for x in plan.buffers}]
    text = PhasePrinter(symbol, plan, schedule, target).function(program, names)
    tiles = product(ceildiv(a.extent, plan.tile[a.name]) for a in plan.grid)
    return PrintedPhase(symbol, tuple(names), program.symbols, tiles, plan.scratch_bytes, text)


class PhasePrinter(Rows):
    """The grid around the passes."""

    def function(self, program: Program, names: list[str]) -> str:
        alias = {b.name: " noalias" if b.role == "weight" else "" for b in program.buffers}
        arguments = [f"ptr{alias[n]} %{buffer_name(n)}" for n in names]
        arguments += [f"i64 %{symbol_name(s)}" for s in program.symbols]
        for a in whole_axes(self.plan.phase):
            self.enter(a, 0, self.dim(a.extent))
        begin, end = Int("%begin", 0), Int("%end", 0)

        def tile(t: Integer, carried: list[Value]) -> list[Value]:
            self._tile(t, begin)
            return carried

        self.e.loop(begin, end, 1, [], tile)
        return self.e.function(f'"{self.symbol}"', [*arguments, "ptr noalias %scratch", "i64 %begin", "i64 %end"])

    def _tile(self, t: Integer, begin: Int) -> None:
        """Take the flat index apart (the last axis runs fastest), then run the body at that tile."""
        number: dict[Axis, Integer] = {}
        rest = t
        for k, a in reversed(list(enumerate(self.plan.grid))):
            count = self.dim(ceildiv(a.extent, self.plan.tile[a.name]))
            number[a] = 0 if count == 1 else self.e.rem(rest, count) if k else rest
            rest = self.e.div(rest, count) if k else rest
        steps = self.plan.steps
        once = next((s for s in steps if isinstance(s, Once)), None)
        versions = self._versions()

        def open_axis(k: int) -> None:
            if once is not None and k == once.outer:
                self._once(once, t, begin, [number[a] for a in self.plan.grid[k:]])
            if k == len(self.plan.grid):
                for s in steps:
                    if s is not once:
                        self._run(s)
                return
            axis = self.plan.grid[k]
            self._open(axis, number[axis], axis in versions, lambda: open_axis(k + 1))

        open_axis(0)

    def _open(self, axis: Axis, number: Integer, versions: bool, inside: Callable[[], None]) -> None:
        """Full tiles and the last one get code of their own where the extent is known; else a run-time size."""
        tile, extent = self.plan.tile[axis.name], axis.extent
        base = self.e.mul(number, self.dim(tile))

        def at(size: Integer) -> Callable[[], None]:
            def run() -> None:
                self.enter(axis, base, size)
                inside()

            return run

        if not isinstance(tile, int):  # one tile holds all of a run-time extent
            at(self.dim(extent))()
        elif tile == 1 or isinstance(extent, int) and extent % tile == 0:
            at(tile)()
        elif isinstance(extent, int) and extent < tile:
            at(extent)()
        elif isinstance(extent, int) and versions:
            last = self.e.compare("sge", self.e.add(base, tile), extent)
            self.e.when(last, at(extent % tile), at(tile))
        else:
            at(self.e.least(tile, self.e.sub(self.dim(extent), base)))()

    def _versions(self) -> frozenset[Axis]:
        """The ragged axes that get a version for their last tile: lanes first, since a partial vector is dearest."""
        ragged = [a for a in self.plan.grid if _is_ragged(a.extent, self.plan.tile[a.name])]
        lanes = {p.lane for p in passes_of(self.plan.steps)}
        return frozenset(sorted(ragged, key=lambda a: a not in lanes)[:VERSIONS])

    def _once(self, once: Once, t: Integer, begin: Int, inner: list[Integer]) -> None:
        """Where the inner axes start anew, and at the first tile of the call."""
        anew: Handle | None = None
        for number in inner:
            zero = self.e.compare("eq", number, 0)
            anew = zero if anew is None else self.e.both(anew, zero)
        first = self.e.compare("eq", t, begin)
        needed = first if anew is None else self.e.both(first, anew, "or")

        def run() -> None:
            for s in once.body:
                self._run(s)

        self.e.when(needed, run)

    def _run(self, s: Step) -> None:
        match s:
            case Pass():
                self.run_pass(s)
            case Sequential():
                self._sequential(s)
            case Once():
                raise AssertionError("only the body of a phase has parts that run once")

    def _sequential(self, s: Sequential) -> None:
        """The whole tiles of a range get code for their full size; what is left gets its own."""
        axis = s.loop.axis
        lo, hi = self.bounds(s.loop)
        tile = self.plan.tile[axis.name]

        def run(lo: Integer, hi: Integer, step: int, size: Integer) -> None:
            def body(i: Integer, carried: list[Value]) -> list[Value]:
                self.enter(axis, i, size)
                for x in s.body:
                    self._run(x)
                return carried

            self.e.loop(lo, hi, step, [], body)

        if not isinstance(tile, int):
            self.e.when(self.e.compare("slt", lo, hi), lambda: run(lo, self.e.add(lo, 1), 1, self.e.sub(hi, lo)))
            return
        if isinstance(lo, int) and isinstance(hi, int):
            full = lo + max(hi - lo, 0) // tile * tile
            run(lo, full, tile, tile)
            if hi > full:
                run(full, full + 1, 1, hi - full)
            return
        end = self.e.add(lo, self.e.mul(self.e.div(self.e.most(self.e.sub(hi, lo), 0), tile), tile))
        run(lo, end, tile, tile)
        if tile > 1:
            run(end, hi, tile, self.e.sub(hi, end))


def _is_ragged(extent: Dim, tile: Dim) -> bool:
    """Is the last tile a partial one, of a size known now?"""
    return isinstance(extent, int) and isinstance(tile, int) and extent > tile and extent % tile != 0


__all__ = ["PhasePrinter", "PrintedPhase", "legal", "plan_passes", "print_program"]
