"""One launch for phases that stand side by side: a function over the tiles of all, which calls each phase's own.

    tiles of two phases, 3 outer x (2 and 1):    a0 a1 b0 | a2 a3 b1 | a4 a5 b2

Where every phase has as many tiles along its outermost grid axis, they take turns along it, so that the rows which both
read are still in the cache; otherwise one phase's tiles follow the other's. Neighbouring tiles of a phase are one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opfuse.codegen.llvm.frame import buffer_name, symbol_name
from opfuse.codegen.llvm.layout import Unsupported
from opfuse.ir.dims import Dim


@dataclass(frozen=True)
class Called:
    """A phase's function: its arguments by buffer, its tiles in all and along its outermost grid axis."""

    symbol: str
    buffers: tuple[str, ...]
    tiles: Dim
    outer: Dim


def beside_text(symbol: str, phases: Sequence[Called], buffers: Sequence[str], integers: Sequence[str]) -> str:
    """`void SYMBOL(ptr buffer..., i64 extent..., ptr scratch, i64 begin, i64 end)`, to stand behind the phases' own."""
    counts = [(known(p.tiles), known(p.outer)) for p in phases]
    turns = max(1, counts[0][1]) if len({outer for _, outer in counts}) == 1 else 1
    each = [tiles // turns for tiles, _ in counts]
    round_ = max(1, sum(each))  # nothing runs where there are no tiles; the division must stand there all the same
    given = [f"i64 %{symbol_name(s)}" for s in integers]
    head = ", ".join([*(f"ptr %{buffer_name(b)}" for b in buffers), *given, "ptr noalias %scratch"])
    lines = [
        f'define void @"{symbol}"({head}, i64 %begin, i64 %end) #0 {{', "entry:", "  br label %next", "next:",
        "  %t = phi i64 [%begin, %entry], " + ", ".join(f"[%after{k}, %run{k}]" for k in range(len(phases))),
        "  %more = icmp ult i64 %t, %end", "  br i1 %more, label %pick, label %done", "pick:",
        f"  %turn = udiv i64 %t, {round_}", f"  %place = urem i64 %t, {round_}", "  %left = sub i64 %end, %t",
        "  br label %try0",
    ]  # fmt: skip
    first = 0
    for k, (phase, n) in enumerate(zip(phases, each, strict=True)):
        arguments = ", ".join([*(f"ptr %{buffer_name(b)}" for b in phase.buffers), *given, "ptr %scratch"])
        last = k + 1 == len(phases)
        lines += [f"try{k}:"]
        lines += [f"  br label %run{k}"] if last else [
            f"  %mine{k} = icmp ult i64 %place, {first + n}",
            f"  br i1 %mine{k}, label %run{k}, label %try{k + 1}",
        ]
        lines += [
            f"run{k}:", f"  %at{k} = sub i64 %place, {first}", f"  %rest{k} = sub i64 {n}, %at{k}",
            f"  %short{k} = icmp ult i64 %left, %rest{k}",
            f"  %count{k} = select i1 %short{k}, i64 %left, i64 %rest{k}",
            f"  %base{k} = mul i64 %turn, {n}", f"  %from{k} = add i64 %base{k}, %at{k}",
            f"  %to{k} = add i64 %from{k}, %count{k}",
            f'  call void @"{phase.symbol}"({arguments}, i64 %from{k}, i64 %to{k})',
            f"  %after{k} = add i64 %t, %count{k}", "  br label %next",
        ]  # fmt: skip
        first += n
    return "\n".join([*lines, "done:", "  ret void", "}"])


def known(d: Dim) -> int:
    if isinstance(d, int):
        return d
    raise Unsupported("open-extent", f"phases beside each other need extents that are known, not {d}", extent=str(d))
