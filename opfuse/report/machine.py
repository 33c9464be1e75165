"""The machine as the engine sees it: instruction set, caches, and the rates that costs are predicted from.

    machine_rows(host(threads=2))     # [("instruction set", "avx512"), ..., ("DRAM bandwidth", "19.2 GB/s"), ...]
    machine_json(host(threads=2))
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from opfuse.report.render import count, plural, seconds, size, table
from opfuse.target import Target


def machine_rows(target: Target) -> list[tuple[str, str]]:
    """Labels and values for people, in the order in which they matter."""
    r = target.rates
    return [
        ("instruction set", f"{target.isa}, {target.vector_bytes * 8}-bit vectors, {target.registers} registers"),
        ("generated for", f"{target.llvm_cpu or 'generic'}, {plural(target.units, 'thread')}"),
        ("caches", f"L1 {size(target.l1_bytes)}, L2 {size(target.l2_bytes)}, L3 {size(target.l3_bytes)}"),
        ("DRAM bandwidth", f"{size(int(r.dram_bytes_per_s))}/s, all threads"),
        ("L3 bandwidth", f"{size(int(r.l3_bytes_per_s))}/s a thread"),
        ("L2 bandwidth", f"{size(int(r.l2_bytes_per_s))}/s a thread"),
        ("matrix rate", f"{count(int(r.flops_per_s))}FLOP/s a thread, fp32"),
        ("element rate", f"{count(int(r.vector_ops_per_s))}op/s a thread, fp32"),
        ("a kernel's start", seconds(r.start_s)),
        ("a call", seconds(r.call_s)),
        ("rates are", r.source),
    ]


def machine_json(target: Target) -> dict[str, Any]:
    return {"schema": 1, **{k: v for k, v in asdict(target).items() if k != "facts"}}


def machine_parts(target: Target) -> list[RenderableType]:
    return [table(("the machine", ""), machine_rows(target))]
