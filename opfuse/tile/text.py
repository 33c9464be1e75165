"""Readable text of tile programs and schedules: what `explain` shows and what golden tests compare.

One line a statement; a tile's axes stand behind its name where it is made, its type only where that is not f32.

    program linear(M)
      in A f32[M, 64]
      weight W f32[64, 32]
      out Y f32[M, 32]
    phase grid(m<M>, n<32>):
      loop k<64> carry acc[m, n] = 0.0 -> next:
        a[m, k] = load A[m, k]
        w[k, n] = load W[k, n]
        next[m, n] = dot(acc, a, w, over k)
      store acc -> Y[m, n]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from opfuse.ir.dims import dims_text
from opfuse.ir.index import Index
from opfuse.ir.scalar import text as scalar_text
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import (
    Buffer,
    Carry,
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
)
from opfuse.tile.schedule import Packing, Schedule

INDENT = "  "


def program_text(program: Program) -> str:
    """The whole program, ending in a newline. Equal programs give equal text (origins are left out)."""
    lines = [f"program {program.name}({', '.join(program.symbols)})"]
    lines += [INDENT + buffer_text(b) for b in program.buffers]
    for part in program.phases:
        if isinstance(part, Phase):
            lines += phase_lines(part)
        else:
            lines.append(f"repeat {part.axis}:" if isinstance(part, Repeat) else "beside:")
            lines += [INDENT + line for phase in part.phases for line in phase_lines(phase)]
    return "\n".join(lines) + "\n"


def phase_lines(phase: Phase) -> list[str]:
    return [f"phase grid({_axes(phase.grid)}):", *(INDENT + line for s in phase.body for line in statement_lines(s))]


def statement_text(statement: Statement) -> str:
    """The statement's first line: how errors name it."""
    return next(iter(statement_lines(statement)))


def statement_lines(statement: Statement) -> Iterator[str]:
    match statement:
        case Load(out, buffer, index, pad):
            yield f"{made_text(out)} = load {_at(buffer, index)}" + ("" if pad is None else f" pad {scalar_text(pad)}")
        case Store(tile, buffer, index):
            yield f"store {tile} -> {_at(buffer, index)}"
        case Map(out, value):
            yield f"{made_text(out)} = map {scalar_text(value)}"
        case Reduce(out, combine, tile, over):
            yield f"{made_text(out)} = reduce {combine}({tile}, over {', '.join(a.name for a in over)})"
        case Dot(out, acc, a, b, over, precision):
            exact = "" if precision == "ieee" else f", {precision}"
            yield f"{made_text(out)} = dot({acc}, {a}, {b}, over {over.name}{exact})"
        case Rename(out, tile, old, new):
            yield f"{made_text(out)} = {tile}, {old.name} as {new.name}"
        case Loop():
            yield _loop_head(statement)
            for inner in statement.body:
                yield from (INDENT + line for line in statement_lines(inner))


def _loop_head(loop: Loop) -> str:
    bounds = "" if loop.start is None else f" from {loop.start}"
    bounds += "" if loop.stop is None else f" to {loop.stop}"
    carries = ", ".join(map(carry_text, loop.carries))
    return f"loop {loop.axis}{bounds}{' carry ' if carries else ''}{carries}:"


def carry_text(carry: Carry) -> str:
    return f"{made_text(carry.tile)} = {scalar_text(carry.init)} -> {carry.next}"


def made_text(tile: Tile) -> str:
    """A tile where it is made: name, axes, and type where it is not f32."""
    axes = f"[{', '.join(a.name for a in tile.axes)}]" if tile.axes else ""
    return f"{tile.name}{axes}" + ("" if tile.dtype is DType.F32 else f":{tile.dtype.value}")


def buffer_text(buffer: Buffer) -> str:
    line = f"{buffer.role} {buffer.name} {buffer.dtype.value}[{dims_text(buffer.shape)}]"
    if buffer.strides is not None:
        line += f" strides ({dims_text(buffer.strides)})"
    if buffer.halo is not None:
        line += f" halo {buffer.halo.before} {buffer.halo.after} = {buffer.halo.value}"
    return line


def schedule_text(schedule: Schedule) -> str:
    """One line with what differs from the default schedule: `tile m=192 n=64; register=(6, 4); pack W axis 1 by 64`."""
    default, parts = Schedule(), []
    for f in fields(Schedule):
        value = getattr(schedule, f.name)
        if value == getattr(default, f.name):
            continue
        if f.name == "beside":
            parts += [f"({schedule_text(part)})" for part in value]
        elif f.name == "tile":
            parts.append("tile " + " ".join(f"{axis}={size}" for axis, size in sorted(value.items())))
        elif f.name == "pack":
            parts += [f"pack {name} {packing_text(p)}" for name, p in sorted(value.items())]
        elif isinstance(value, tuple) and value and isinstance(value[0], str):
            parts.append(f"{f.name} {' '.join(value)}")
        else:
            parts.append(f"{f.name}={value}")
    return "; ".join(parts) or "default"


def packing_text(packing: Packing) -> str:
    return f"axis {packing.axis} by {packing.panel}"


def _axes(axes: Iterable[Axis]) -> str:
    return ", ".join(map(str, axes))


def _at(buffer: Buffer, index: tuple[Index, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(str, index))}]"
