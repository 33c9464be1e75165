"""The native entry of a segment: a table of steps, a small adapter for each, and one function that runs them all.

    entry_functions(plan, target, options) -> texts to assemble with the printed kernels

`void opfuse_run_K(ptr context)` is segment K's function. It hands its table to the step driver (`threads.py`), whose
address stands in the context, so object code of a model names no symbol outside itself but memcpy and the like. An
adapter `step(context, scratch, begin, end)` turns places into addresses and calls the printed function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from opfuse.codegen.llvm.context import DRIVER, Slots


class PlaceLike(Protocol):
    """plan.plan.Place"""

    @property
    def area(self) -> Any: ...
    @property
    def offset(self) -> int: ...
    @property
    def index(self) -> int: ...


class StepLike(Protocol):
    """plan.plan.Step"""

    @property
    def function(self) -> str: ...
    @property
    def arguments(self) -> Sequence[PlaceLike]: ...
    @property
    def integers(self) -> Sequence[int]: ...
    @property
    def tiles(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def solo(self) -> bool: ...
    @property
    def barrier(self) -> bool: ...


class PlanLike(Protocol):
    """plan.plan.Plan"""

    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def outputs(self) -> Sequence[Any]: ...
    @property
    def segments(self) -> Sequence[Any]: ...


def slots_of(plan: PlanLike) -> Slots:
    """The bases of a plan's context."""
    hosts = sum(len(s.outputs) for s in plan.segments if not hasattr(s, "steps"))
    return Slots(len(plan.inputs), len(plan.outputs), hosts)


def entry_functions(plan: PlanLike, target: object = None, options: object = None) -> list[str]:
    """Texts of all native segments' entries."""
    slots = slots_of(plan)
    native = [s for s in plan.segments if hasattr(s, "steps")]
    return [segment_text(s.symbol, s.steps, slots) for s in native]


def segment_text(symbol: str, steps: Sequence[StepLike], slots: Slots) -> str:
    """Adapters, table and entry function of one segment. Steps without tiles do nothing and are left out."""
    texts, rows = [], []
    for number, step in enumerate(steps):
        if step.tiles >= 1 << 31:
            raise ValueError(f"{step.function}: {step.tiles} tiles; at most 2^31-1 can be counted")
        if step.tiles:
            name = f"{symbol}_step_{number}"
            texts.append(_adapter(name, step, slots))
            rows.append([name, step.tiles, step.chunk, int(step.solo), int(step.barrier)])
        elif step.barrier and rows:
            rows[-1][4] = 1
    row = "{ ptr, i64, i64, i64, i64 }"
    table = ", ".join(f"{row} {{ ptr @{n}, i64 {t}, i64 {c}, i64 {s}, i64 {b} }}" for n, t, c, s, b in rows)
    texts.append(f"@{symbol}_table = internal constant [{len(rows)} x {row}] [{table}], align 16")
    texts.append(
        f"define void @{symbol}(ptr %context) {{\n"
        f"  %at = getelementptr i8, ptr %context, i64 {DRIVER}\n"
        f"  %driver = load ptr, ptr %at\n"
        f"  call void %driver(ptr %context, ptr @{symbol}_table, i64 {len(rows)})\n"
        f"  ret void\n}}"
    )
    return "\n".join(texts)


def live_steps(steps: Sequence[StepLike]) -> list[int]:
    """Numbers of the steps that stand in the table, in its order: rows of a profile."""
    return [k for k, s in enumerate(steps) if s.tiles]


def _adapter(name: str, step: StepLike, slots: Slots) -> str:
    lines = [f"define internal void @{name}(ptr %context, ptr %scratch, i64 %begin, i64 %end) {{"]
    bases: dict[int, str] = {}
    arguments = []
    for k, place in enumerate(step.arguments):
        at = slots.offset(place.area, place.index)
        if at not in bases:
            bases[at] = f"%base{at}"
            lines.append(f"  %at{at} = getelementptr i8, ptr %context, i64 {at}")
            lines.append(f"  %base{at} = load ptr, ptr %at{at}")
        value = bases[at]
        if place.offset:
            lines.append(f"  %p{k} = getelementptr i8, ptr {value}, i64 {place.offset}")
            value = f"%p{k}"
        arguments.append(f"ptr {value}")
    arguments += [f"i64 {n}" for n in step.integers]
    arguments += ["ptr %scratch", "i64 %begin", "i64 %end"]
    lines.append(f"  call void @{step.function}({', '.join(arguments)})")
    return "\n".join([*lines, "  ret void", "}"])
