"""Program + Schedule -> Triton source: one kernel a phase, a line a statement.

    printed = print_program(program, schedule, target, "linear_3")
    printed.source                                   # a Python file; Triton reads it back from disk
    [(e.name, e.grid) for s in printed.stages for e in s.entries]
    printed.arguments, printed.integers              # buffer names, then run-time extents: the kernel's parameters

`legal` answers the same question without printing: what the program would take, or why it cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opfuse.codegen.triton.blocks import Blocks, Names, Places, grid_size, matrix_shaped
from opfuse.codegen.triton.expressions import (
    HEADER,
    TYPES,
    identity,
    number_text,
    prelude_of,
    reduce_text,
    typed_number,
)
from opfuse.codegen.triton.legality import legal
from opfuse.codegen.triton.long_sums import span_of
from opfuse.codegen.triton.scalars import ScalarText
from opfuse.decision import Refusal
from opfuse.ir.dims import Dim, total
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.scalar import Const, Scalar, const
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.target import Target
from opfuse.tile.program import (
    Beside,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Reduce,
    Rename,
    Repeat,
    Statement,
    Store,
    Tile,
    gathers,
    whole_axes,
)
from opfuse.tile.schedule import Schedule


@dataclass(frozen=True)
class Entry:
    """One kernel of the source. `grid` is its number of programs, over the program's symbols."""

    name: str
    grid: Dim


@dataclass(frozen=True)
class Stage:
    """Kernels run one after another; with `repeat`, all of them once for each point of the axis, which comes last."""

    entries: tuple[Entry, ...]
    repeat: Axis | None = None


@dataclass(frozen=True)
class PrintedKernel:
    """Source text and how to launch it: the pointers of `arguments`, then the values of `integers`."""

    name: str
    source: str
    stages: tuple[Stage, ...]
    arguments: tuple[str, ...]
    integers: tuple[str, ...]
    warps: int
    pipeline_stages: int


def print_program(program: Program, schedule: Schedule, target: Target, name: str) -> PrintedKernel | Refusal:
    """The program as Triton kernels called `name` (`name_0`, `name_1`, ... where there are several phases)."""
    footprint = legal(program, schedule, target)
    if isinstance(footprint, Refusal):
        return footprint
    many = sum(1 for _ in program.flat_phases()) > 1
    texts: list[str] = []
    stages: list[Stage] = []
    for part in program.phases:
        repeat = part.axis if isinstance(part, Repeat) else None
        printers = [
            _PhasePrinter(program, phase, schedule, repeat, beside=isinstance(part, Beside))
            for phase in ((part,) if isinstance(part, Phase) else part.phases)
        ]
        entries = []
        for printer in printers:
            entry = f"{name}_{len(texts)}" if many else name
            texts.append(printer.text(entry))
            entries.append(Entry(entry, grid_size(printer.phase, printer.blocks)))
        if isinstance(part, Beside):
            texts.append(beside_text(name, printers, entries))
            entries = [Entry(name, total(e.grid for e in entries))]
        stages.append(Stage(tuple(entries), repeat))
    body = "\n\n".join(texts)
    source = "\n\n".join(part for part in (HEADER + prelude_of(body), body) if part)
    return PrintedKernel(name, source, tuple(stages), tuple(b.name for b in program.buffers), program.symbols,
                         schedule.warps, schedule.stages)  # fmt: skip


def beside_text(name: str, printers: Sequence[_PhasePrinter], entries: Sequence[Entry]) -> str:
    """A kernel over the blocks of several phases, one after another, that calls each phase's own function."""
    parameters = printers[0].parameters()
    lines = ["@triton.jit", f"def {name}({', '.join(parameters)}):", "    pid = tl.program_id(0)"]
    first: Dim = 0
    for k, (printer, entry) in enumerate(zip(printers, entries, strict=True)):
        end = first + entry.grid
        test = "else" if k + 1 == len(entries) else f"{'if' if k == 0 else 'elif'} pid < {printer.dim(end)}"
        place = "pid" if k == 0 else f"pid - {printer.dim(first)}"
        lines += [f"    {test}:", f"        {entry.name}({', '.join([*parameters, place])})"]
        first = end
    return "\n".join(lines) + "\n"


class _PhasePrinter(Places):
    def __init__(
        self, program: Program, phase: Phase, schedule: Schedule, repeat: Axis | None, beside: bool = False
    ) -> None:
        super().__init__(Names(program), Blocks(phase, schedule))
        self.program, self.phase, self.schedule, self.repeat = program, phase, schedule, repeat
        self.beside = beside  # called by a kernel of several phases, which says which of its blocks this is
        self.lines: list[str] = []
        self.depth = 1
        self.limit: dict[str, str] = {}  # axis -> where its positions end, if a block may reach beyond
        self.zero_outside: set[tuple[str, str]] = set()  # (tile, axis): the tile is zero beyond the axis' end
        self.tiles: dict[str, Tile] = {}
        self.scalars = ScalarText(self, self.shaped)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    # ---- the kernel -------------------------------------------------------------------------------------------------
    def text(self, entry: str) -> str:
        for a in self.phase.grid:
            self.names("axis", a.name)
        self.grid()
        for a in sorted(whole_axes(self.phase), key=lambda a: a.name):
            self.positions(a, "0")
            if self.blocks.ragged(a):
                self.limit[a.name] = self.dim(a.extent)
        self.body(self.phase.body)
        if not self.lines:
            self.emit("pass")
        parameters = self.parameters()
        if self.beside:
            parameters.append("pid")
        decorator = "@triton.jit"
        if self.repeat is not None:  # changes with every launch: no kernel of its own for the values 1 and 16
            step = self.names("axis", self.repeat.name)
            parameters.append(step)
            decorator = f'@triton.jit(do_not_specialize=["{step}"])'
        return f"{decorator}\ndef {entry}({', '.join(parameters)}):\n" + "\n".join(self.lines) + "\n"

    def parameters(self) -> list[str]:
        names = [self.names("buffer", b.name) for b in self.program.buffers]
        return names + [self.names("symbol", s) for s in self.program.symbols]

    def grid(self) -> None:
        """Positions of the grid axes from the program's number: the first of the order changes slowest."""
        order = [a for name in self.schedule.order for a in self.phase.grid if a.name == name]
        order += [a for a in self.phase.grid if a not in order]
        counts = {a.name: self.count(a) for a in order}
        if order and not self.beside:
            self.emit("pid = tl.program_id(0)")
        at = {a.name: f"pid % {counts[a.name]}" for a in order}
        if self.schedule.group > 1 and len(order) > 1:
            at |= self.grouped(order[-2], order[-1], last=len(order) == 2)
            order, inner = order[:-2], order[-2:]
        else:
            inner = []
        for k, a in [*((-1, a) for a in inner), *reversed(list(enumerate(order)))]:
            block, first, number = self.blocks.block(a), self.first(a), "pid" if k == 0 else at[a.name]
            self.emit(
                f"{first} = {number if number.isidentifier() else f'({number})'} * {block}"
                if block > 1
                else f"{first} = {number}"
            )
            if k > 0:
                self.emit(f"pid = pid // {counts[a.name]}")
            self.positions(a, first)
            if block > 1 and self.blocks.ragged(a):
                self.limit[a.name] = self.dim(a.extent)

    def count(self, a: Axis) -> str:
        """How many blocks the axis has."""
        block = self.blocks.block(a)
        if isinstance(a.extent, int):
            return str(-(-a.extent // block))
        return f"(({self.dim(a.extent)} + {block - 1}) // {block})" if block > 1 else self.dim(a.extent)

    def grouped(self, a: Axis, b: Axis, last: bool) -> dict[str, str]:
        """Block numbers of the two innermost grid axes, walked in bands of `group` blocks of the first.

        Blocks that run at the same time then share rows of one operand and columns of the other in the L2 cache.
        """
        group = self.schedule.group
        rows, columns = (self.names("count", f"{x.name}_count") for x in (a, b))
        self.emit(f"{rows} = {self.count(a)}")
        self.emit(f"{columns} = {self.count(b)}")
        inner, start, height = (self.names("group", f"{name}") for name in ("inner", "band", "height"))
        self.emit(f"{inner} = pid" if last else f"{inner} = pid % ({rows} * {columns})")
        if not last:
            self.emit(f"pid = pid // ({rows} * {columns})")
        self.emit(f"{start} = {inner} // ({group} * {columns}) * {group}")
        self.emit(f"{height} = tl.minimum({rows} - {start}, {group})")
        self.emit(f"{inner} = {inner} % ({group} * {columns})")
        return {a.name: f"{start} + {inner} % {height}", b.name: f"{inner} // {height}"}

    def first(self, a: Axis) -> str:
        return self.names("first", f"{a.name}_0")

    def positions(self, a: Axis, first: str) -> None:
        """The axis' positions in this block: a vector, or one number (a tensor too, in the interpreter as well)."""
        block, name = self.blocks.block(a), self.names("axis", a.name)
        if block > 1:
            self.emit(
                f"{name} = tl.arange(0, {block})" if first == "0" else f"{name} = {first} + tl.arange(0, {block})"
            )
        else:
            self.emit(f"{name} = tl.full((), {first}, tl.int32)")

    # ---- statements -------------------------------------------------------------------------------------------------
    def body(self, body: Sequence[Statement]) -> None:
        for s in body:
            match s:
                case Load():
                    self.load(s)
                case Store():
                    self.store(s)
                case Map():
                    self.define(s.out, self.full(s.out, s.value))
                case Reduce():
                    self.reduce(s)
                case Dot():
                    self.dot(s)
                case Rename():
                    have = [s.new if a == s.old else a for a in self.blocks.dims(s.tile)]
                    self.define(s.out, self.ordered(self.name(s.tile), have, self.blocks.dims(s.out)))
                case Loop():
                    self.loop(s)

    def define(self, t: Tile, text: str) -> None:
        self.tiles[t.name] = t
        self.emit(f"{self.name(t)} = {text}")

    def name(self, t: Tile) -> str:
        return self.names("tile", t.name)

    def masks(self, axes: Sequence[Axis], dims: Sequence[Axis]) -> list[str]:
        return [f"({self.along(a.name, dims)} < {self.limit[a.name]})" for a in axes if a.name in self.limit]

    def gathered(self, tile: str, dims: Sequence[Axis], wide: bool) -> str:
        return self.shaped(self.tiles[tile], dims, ".to(tl.int64)" if wide else "")

    def load(self, s: Load) -> None:
        dims = self.blocks.dims(s.out)
        mask = self.masks(s.out.axes, dims)
        if s.pad is not None:
            mask = self.inside(s.buffer, s.index, dims) + mask
        pad = s.pad if s.pad is not None else Const(identity("sum", s.buffer.dtype), s.buffer.dtype)
        if not pad.value:
            self.zero_outside |= {(s.out.name, a.name) for a in s.out.axes}
        place = self.address(s.buffer, s.index, dims)
        reached = {n for i in s.index for n in i.axes} | self.gathered_axes(s.index)
        if any(a.name not in reached for a in dims):
            place = f"tl.broadcast_to({place}, {self.blocks.shape(dims)})"
        guard = f", mask={' & '.join(mask)}, other={number_text(pad.value)}" if mask else ""
        self.define(s.out, f"tl.load({place}{guard})")

    def gathered_axes(self, index: tuple[Index, ...]) -> set[str]:
        return {a.name for t in gathers(index) for a in self.tiles[t].axes}

    def store(self, s: Store) -> None:
        dims = self.blocks.dims(s.tile)
        mask = self.masks(s.tile.axes, dims)
        guard = f", mask={' & '.join(mask)}" if mask else ""
        self.emit(f"tl.store({self.address(s.buffer, s.index, dims)}, {self.name(s.tile)}{guard})")

    def shaped(self, t: Tile, dims: Sequence[Axis], suffix: str = "") -> str:
        """The tile in a block of these dimensions: its own permuted into their order, ones where it has none."""
        own = self.blocks.dims(t)
        text = self.name(t) + suffix
        order = tuple(d for d in dims if d in own)
        if order != own:
            text = f"tl.permute({text}, {tuple(own.index(d) for d in order)})"
        if not own or order == tuple(dims):
            return text
        return f"{text}[{', '.join(':' if d in own else 'None' for d in dims)}]"

    def full(self, out: Tile, value: Scalar) -> str:
        """The value over the whole block of a tile, also where no operand has all of its dimensions."""
        dims = self.blocks.dims(out)
        shape = self.blocks.shape(dims)
        if isinstance(value, Const):
            return f"tl.full({shape}, {number_text(value.value)}, {TYPES[value.dtype]})"
        text = self.scalars.text(value, dims)
        have = self.scalars.reach(value)
        if all(d.name in have for d in dims):
            return text
        return (
            f"tl.broadcast_to({text}, {shape})"
            if have & {d.name for d in dims}
            else f"tl.full({shape}, {text}, {TYPES[out.dtype]})"
        )

    def kept(self, t: Tile, axis: Axis, neutral: float | int | bool) -> str:
        """The tile with what lies beyond an axis' end replaced by the neutral value of what is done along it."""
        mask = self.masks((axis,), self.blocks.dims(t))
        if not mask or (not neutral and (t.name, axis.name) in self.zero_outside):
            return self.name(t)
        other = number_text(neutral) if t.dtype is not DType.BOOL else typed_number(Const(neutral, t.dtype))
        return f"tl.where({mask[0]}, {self.name(t)}, {other})"

    def reduce(self, s: Reduce) -> None:
        neutral = identity(s.combine, s.tile.dtype)
        dims = list(self.blocks.dims(s.tile))
        text = self.name(s.tile)
        over = [a for a in s.over if a.name in self.limit]
        for k, a in enumerate(over):
            text = (
                self.kept(s.tile, a, neutral)
                if k == 0
                else f"tl.where({self.masks((a,), dims)[0]}, {text}, {number_text(neutral)})"
            )
        for a in sorted((a for a in s.over if a in dims), key=dims.index, reverse=True):
            text = reduce_text(s.combine, text, dims.index(a), s.tile.dtype)
            dims.remove(a)
        self.define(s.out, self.ordered(text, dims, self.blocks.dims(s.out)))

    @staticmethod
    def ordered(text: str, have: Sequence[Axis], want: Sequence[Axis]) -> str:
        return text if list(have) == list(want) else f"tl.permute({text}, {tuple(list(have).index(d) for d in want)})"

    # ---- dot --------------------------------------------------------------------------------------------------------
    def dot(self, s: Dot) -> None:
        dims = self.blocks.dims(s.out)
        a, b = self.blocks.dims(s.a), self.blocks.dims(s.b)
        batch = [d for d in a if d in b and d != s.over]
        rows, columns = [d for d in a if d not in b], [d for d in b if d not in a]
        if not matrix_shaped(s, self.blocks.size):
            self.define(s.out, self.dot_by_sums(s, dims))
            return
        order = [*batch, *rows, *columns]
        group = (math.prod(self.blocks.shape(batch)),) if batch else ()
        m, n = (math.prod(self.blocks.shape(x)) for x in (rows, columns))
        k = self.blocks.block(s.over)
        left = self.matrix(s.a, s, [*batch, *rows, s.over], (*group, m, k))
        right = self.matrix(s.b, s, [*batch, s.over, *columns], (*group, k, n))
        acc = self.ordered(self.name(s.acc), self.blocks.dims(s.acc), order)
        flat = (*group, m, n) != self.blocks.shape(order)
        if flat:
            acc = f"tl.reshape({acc}, {(*group, m, n)})"
        made_in = DType.F32 if s.acc.dtype in (DType.F16, DType.BF16) else s.acc.dtype
        if made_in is not s.acc.dtype:
            acc = f"{acc}.to({TYPES[made_in]})"
        precision = f', input_precision="{s.precision}"' if s.a.dtype is DType.F32 else ""
        text = f"tl.dot({left}, {right}, {acc}{precision}, out_dtype={TYPES[made_in]})"
        if made_in is not s.acc.dtype:
            text += f".to({TYPES[s.acc.dtype]})"
        if flat:
            text = f"tl.reshape({text}, {self.blocks.shape(order)})"
        self.define(s.out, self.ordered(text, order, dims))

    def matrix(self, t: Tile, s: Dot, order: Sequence[Axis], shape: tuple[int, ...]) -> str:
        text = self.ordered(self.kept(t, s.over, identity("sum", t.dtype)), self.blocks.dims(t), order)
        if s.a.dtype is not s.b.dtype:
            text = f"{text}.to({TYPES[s.acc.dtype]})"
        return text if self.blocks.shape(order) == shape else f"tl.reshape({text}, {shape})"

    def dot_by_sums(self, s: Dot, dims: Sequence[Axis]) -> str:
        """A product without rows or columns, or of types that no matrix unit has: multiply, then add along the axis."""
        inner = [*dims, s.over] if self.blocks.block(s.over) > 1 else list(dims)
        parts = []
        for t in (s.a, s.b):
            cast = "" if t.dtype is s.acc.dtype else f".to({TYPES[s.acc.dtype]})"
            parts.append(self.shaped(t, inner, cast))
        text = f"({parts[0]} * {parts[1]})"
        mask = self.masks((s.over,), inner)
        if mask and not {(s.a.name, s.over.name), (s.b.name, s.over.name)} <= self.zero_outside:
            text = f"tl.where({mask[0]}, {text}, {number_text(identity('sum', s.acc.dtype))})"
        if len(inner) > len(dims):
            text = reduce_text("sum", text, len(dims), s.acc.dtype)
        return f"{self.shaped(s.acc, dims)} + {text}"

    # ---- loops ------------------------------------------------------------------------------------------------------
    def loop(self, s: Loop) -> None:
        a, block = s.axis, self.blocks.block(s.axis)
        for c in s.carries:
            self.define(c.tile, self.full(c.tile, c.init))
        start = "0" if s.start is None else f"tl.maximum({self.bound(s.start, False)}, 0)"
        stop = self.dim(a.extent)
        if s.stop is not None:
            last = self.names("stop", f"{a.name}_stop")
            self.emit(f"{last} = tl.minimum({self.bound(s.stop, True)}, {stop})")
            stop = last
        unrolled = a.name in self.schedule.unroll and s.start is None and s.stop is None and isinstance(a.extent, int)
        first, span, end = self.first(a), 0 if unrolled else span_of(s, block), stop
        if span:
            start, end = self.open_part(s, span, start, stop)
        self.emit(f"for {first} in {'tl.static_range' if unrolled else 'range'}({start}, {end}, {block}):")
        self.depth += 1
        self.positions(a, first)
        before = dict(self.limit)
        if block > 1 and (s.start is not None or s.stop is not None or self.blocks.ragged(a)):
            self.limit[a.name] = stop
        self.body(s.body)
        self.carry(s)
        self.limit = before
        self.depth -= 1
        if span:
            self.close_part(s.carries[0].tile)

    def open_part(self, s: Loop, span: int, start: str, stop: str) -> tuple[str, str]:
        """A loop over blocks of a long sum, each from zero; where the loop inside begins and ends."""
        acc = s.carries[0].tile
        part = self.names("first", f"{s.axis.name}_part")
        self.emit(f"{self.total(acc)} = {self.name(acc)}")
        self.emit(f"for {part} in range({start}, {stop}, {span}):")
        self.depth += 1
        self.define(acc, self.full(acc, const(0, acc.dtype)))
        return part, f"tl.minimum({part} + {span}, {stop})"

    def close_part(self, acc: Tile) -> None:
        self.emit(f"{self.total(acc)} = {self.total(acc)} + {self.name(acc)}")
        self.depth -= 1
        self.emit(f"{self.name(acc)} = {self.total(acc)}")

    def total(self, acc: Tile) -> str:
        return self.names("total", f"{acc.name}_total")

    def carry(self, s: Loop) -> None:
        """All carries change at once, so one that takes another's tile goes through a tuple."""
        names = {c.tile.name for c in s.carries}
        values = [self.shaped(c.next, self.blocks.dims(c.tile)) for c in s.carries]
        if any(c.next.name in names and c.next.name != c.tile.name for c in s.carries):
            self.emit(f"{', '.join(self.name(c.tile) for c in s.carries)} = {', '.join(values)}")
            return
        for c, value in zip(s.carries, values, strict=True):
            self.emit(f"{self.name(c.tile)} = {value}")

    def bound(self, i: Index, last: bool) -> str:
        """A loop's bound: a grid axis counts with its first position in the block, or its last."""
        parts = []
        for term, c in i.terms:
            assert isinstance(term, AxisTerm)
            a = self.blocks.axes[term.name]
            text = self.first(a)
            if last and self.blocks.block(a) > 1:
                text = f"({text} + {self.blocks.block(a) - 1})"
            parts.append(text if c == 1 else f"{text} * {self.dim(c)}")
        if i.const != 0 or not parts:
            parts.append(self.dim(i.const))
        return " + ".join(parts)


__all__ = ["Entry", "PrintedKernel", "Stage", "legal", "print_program"]
