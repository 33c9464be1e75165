"""Other versions of a program written in float32: tensor-core precision, or 16-bit storage with float32 arithmetic.

with_precision(program, "tf32")       # every dot
with_storage(program, DType.BF16)     # buffers and operands of dots are bf16, the rest is f32
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from opfuse.ir.scalar import cast, const
from opfuse.ir.types import DType
from opfuse.tile.program import (
    Buffer,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Repeat,
    Statement,
    Store,
    Tile,
    read,
    statements,
)


def with_precision(program: Program, precision: str) -> Program:
    def change(s: Statement) -> list[Statement]:
        return [replace(s, precision=precision)] if isinstance(s, Dot) else [s]

    return rewritten(program, lambda phase: change)


def with_storage(program: Program, dtype: DType) -> Program:
    """Every f32 buffer but scratch holds `dtype`; the casts stand in the program."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, dtype=dtype) if b.dtype is DType.F32 and b.role != "scratch" else b

    def rewriter(phase: Phase) -> Callable[[Statement], list[Statement]]:
        flat = list(statements(phase.body))
        narrow: dict[str, Tile] = {}
        wanted = {t.name for s in flat for t in read(s) if not isinstance(s, Dot)} | {
            s.acc.name for s in flat if isinstance(s, Dot)
        }

        def operand(t: Tile) -> tuple[Tile, list[Statement]]:
            if t.name in narrow or t.dtype is not DType.F32:
                return narrow.get(t.name, t), []
            narrow[t.name] = Tile(f"{t.name}_16", t.axes, dtype)
            return narrow[t.name], [Map(narrow[t.name], cast(t, dtype))]

        def change(s: Statement) -> list[Statement]:
            match s:
                case Load() if buffer(s.buffer) != s.buffer:
                    made = narrow[s.out.name] = Tile(f"{s.out.name}_16", s.out.axes, dtype)
                    pad = None if s.pad is None else const(s.pad.value, dtype)
                    wide: list[Statement] = [Map(s.out, cast(made, DType.F32))] if s.out.name in wanted else []
                    return [Load(made, buffer(s.buffer), s.index, pad), *wide]
                case Store() if buffer(s.buffer) != s.buffer:
                    made, casts = operand(s.tile)
                    return [*casts, Store(made, buffer(s.buffer), s.index)]
                case Dot():
                    (a, first), (b, second) = operand(s.a), operand(s.b)
                    return [*first, *second, replace(s, a=a, b=b)]
            return [s]

        return change

    made = rewritten(program, rewriter)
    return replace(made, buffers=tuple(buffer(b) for b in program.buffers))


def rewritten(program: Program, rewriter: Callable[[Phase], Callable[[Statement], list[Statement]]]) -> Program:
    """The program with every statement that is no loop replaced by what the phase's rewriter gives for it."""

    def phase(p: Phase) -> Phase:
        change = rewriter(p)

        def body(old: Iterable[Statement]) -> tuple[Statement, ...]:
            new: list[Statement] = []
            for s in old:
                new += [replace(s, body=body(s.body))] if isinstance(s, Loop) else change(s)
            return tuple(new)

        return Phase(p.grid, body(p.body))

    parts = [Repeat(p.axis, tuple(map(phase, p.phases))) if isinstance(p, Repeat) else phase(p) for p in program.phases]
    return replace(program, phases=tuple(parts))
