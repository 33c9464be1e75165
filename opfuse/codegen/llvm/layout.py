"""How a buffer lies in memory, and what an index map means for a vector along one axis.

contiguity(load W[k, n], n, schedule)  -> "unit"      lanes along n read neighbours, forward or backward (packed or not)
contiguity(load W[k, n], k, schedule)  -> "strided"
contiguity(load W[k, n], m, schedule)  -> "same"      all lanes read one element
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.index import AxisTerm, Gathered, Quotient, Remainder
from opfuse.ir.structure import Axis
from opfuse.tile.program import Buffer, Load, Store, Tile
from opfuse.tile.schedule import Packing, Schedule

Contiguity = Literal["same", "unit", "strided"]


class Unsupported(Exception):
    """Carries a refusal out of the planner or the printer to their public functions, which return it."""

    def __init__(self, code: str, text: str, **facts: object) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text, facts)


@dataclass(frozen=True)
class PackedLayout:
    """[extent / panel][the other axes, in order][panel] of a weight: element strides, and that of a whole panel."""

    axis: int
    panel: int
    strides: tuple[int, ...]  # of the other axes; 1 at `axis`
    panel_stride: int


def packed_layout(buffer: Buffer, packing: Packing) -> PackedLayout:
    shape = buffer.shape
    strides, size = [1] * len(shape), packing.panel
    for d in reversed(range(len(shape))):
        extent = shape[d]
        if d == packing.axis:
            continue
        if not isinstance(extent, int):
            raise Unsupported(
                "symbolic-pack", f"weight {buffer.name} is packed but has a run-time extent", buffer=buffer.name
            )
        strides[d] = size
        size *= extent
    return PackedLayout(packing.axis, packing.panel, tuple(strides), size)


def layout_strides(buffer: Buffer, pack: Mapping[str, Packing]) -> tuple[Dim, ...]:
    """Element strides of the dimensions; 1 for the packed one."""
    if buffer.name in pack:
        return packed_layout(buffer, pack[buffer.name]).strides
    return buffer.element_strides


def contiguity(
    access: Load | Store, axis: Axis, schedule: Schedule, definitions: Mapping[str, Tile] | None = None
) -> Contiguity:
    strides = layout_strides(access.buffer, schedule.pack)
    total: Dim = 0
    touched = False
    for index, stride in zip(access.index, strides, strict=True):
        for term, c in index.terms:
            match term:
                case AxisTerm(name) if name == axis.name:
                    total, touched = total + c * stride, True
                case Remainder(numerator, _) if axis.name in numerator.axes:
                    total, touched = total + c * stride * numerator.coefficient(axis.name), True
                case Quotient(numerator, _) if axis.name in numerator.axes:
                    touched = True
                case Gathered(source) if definitions and isinstance(source, str) and axis in definitions[source].axes:
                    return "strided"
                case _:
                    pass
    if not touched:
        return "same"
    return "unit" if total in (1, -1) else "strided"
