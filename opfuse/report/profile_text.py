"""A profile as text: totals before and after fusion, then the kernels, those with the most to gain first.

    plain(parts(report, width=80), width=80)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from opfuse.report.render import common_prefix, count, names_in, plural, ratio, seconds, shorten, size, table, title

if TYPE_CHECKING:
    from opfuse.report.profile import KernelProfile, ProfileReport, Side

_NUMBERS = ("fix", "#", "time", "of call", "bytes/s", "FLOP/s", "of ceiling", "to gain")


def parts(report: ProfileReport, width: int) -> list[RenderableType]:
    """What to print, top to bottom, for a terminal of `width` columns."""
    return [*_totals(report), *_kernels(report, width), *_ceilings(report)]


def _totals(p: ProfileReport) -> list[RenderableType]:
    head = Text()
    head.append(p.model, style="bold")
    head.append(f"  ({p.target}, {plural(p.threads, 'thread')})", style="dim")
    rows = [
        _row("a call", p, lambda s: s.call_s, seconds),
        _row("sum of its kernels", p, lambda s: s.kernels_s, seconds),
        *(_row(f"  {b}-bound" if b != "host" else "  host steps", p, lambda s, b=b: s.bound_s(b), seconds)  # type: ignore[misc]
          for b in _bounds(p)),
        _row("kernels", p, lambda s: len(s.kernels), str),
        _row("bytes moved", p, lambda s: s.bytes, size),
    ]  # fmt: skip
    if p.before is None:
        note = Text("There is nothing to compare with: a compiled file builds nothing anew.", style="dim")
        return [head, Text(), table(("", "now"), [r[:2] for r in rows], right=("now",)), note]
    columns = ("", "fused", "unfused", "gain")
    return [head, Text(), table(columns, rows, right=columns[1:])]


def _bounds(p: ProfileReport) -> list[str]:
    """Kinds of bound that occur."""
    sides = [s for s in (p.after, p.before) if s is not None]
    return [b for b in ("memory", "compute", "latency", "host") if any(s.bound_s(b) > 0 for s in sides)]


def _row(label: str, p: ProfileReport, of: Callable[[Side], float], text: Callable[..., str]) -> tuple[str, ...]:
    after = of(p.after)
    if p.before is None:
        return label, text(after), "", ""
    before = of(p.before)
    return label, text(after), text(before), ratio(before, after) if before and after else "-"


def _kernels(p: ProfileReport, width: int) -> list[RenderableType]:
    """Names of nodes stand where there is room for them; narrow terminals do without FLOP/s, too (--json has all)."""
    kernels = p.to_fix()
    wanted = ["fix", "#", "kernel", "time", "of call", "bytes/s", "FLOP/s", "bound", "of ceiling", "to gain"]
    columns = wanted if width >= 100 else [c for c in wanted if c != "FLOP/s"]
    cells = [_cells(k, p, 20 if width >= 100 else 14) for k in kernels]
    rows = [[row[c] for c in columns] for row in cells]
    room = width - sum(2 + max(len(c), *(len(row[c]) for row in cells), 0) for c in columns)
    names = room >= 10
    prefix = common_prefix(n for k in kernels for n in k.nodes) if names else ""
    if names:
        columns = [*columns, "nodes"]
        for row, k in zip(rows, kernels, strict=True):
            row.append(names_in([n.removeprefix(prefix) for n in k.nodes], room))
    out: list[RenderableType] = [Text(), title("Kernels: what to mend first"), table(columns, rows, right=_NUMBERS)]
    return [*out, Text(f"Node names start with {prefix}", style="dim")] if prefix else out


def _cells(k: KernelProfile, p: ProfileReport, width: int) -> dict[str, str]:
    return {
        "fix": str(k.rank), "#": str(k.number), "kernel": shorten(k.name, width), "time": seconds(k.measured_s),
        "of call": f"{k.measured_s / p.after.kernels_s:.0%}" if p.after.kernels_s else "-",
        "bytes/s": size(int(k.bytes_per_s)), "FLOP/s": count(int(k.flops_per_s)), "bound": k.bound,
        "of ceiling": f"{k.share:.0%}", "to gain": seconds(k.gain_s),
    }  # fmt: skip


def _ceilings(p: ProfileReport) -> list[RenderableType]:
    r = p.rates
    memory = f"{size(int(r.dram_bytes_per_s))}/s of memory (all threads)"
    caches = f"{size(int(r.l3_bytes_per_s))}/s of L3 and {size(int(r.l2_bytes_per_s))}/s of L2"
    units = f"{count(int(r.flops_per_s))}FLOP/s of products and {count(int(r.vector_ops_per_s))}op/s of elements"
    out: list[RenderableType] = [
        Text(), Text(f"Ceilings: {memory}; a thread: {caches}, {units}; {r.source}.", style="dim")
    ]  # fmt: skip
    if p.raised:
        names = ", ".join(n.removesuffix("_per_s").replace("_", " ") for n in p.raised)
        text = f"Kernels were faster than the calibrated {names}: raised to what they reached."
        out.append(Text(f"{text} `opfuse doctor --calibrate` on a quiet machine measures them again.", style="dim"))
    return out
