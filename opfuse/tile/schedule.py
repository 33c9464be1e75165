"""How a tile program is cut and run: data beside the program, so that tuning varies it and never touches the program.

    Schedule(tile={"m": 192, "n": 64, "k": 256}, register=(6, 4), pack={"W": Packing("n", 64)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Packing:
    """Panels of a weight: [extent / panel][all other axes, in the buffer's order][panel], zero-filled at the end."""

    axis: int  # dimension of the weight buffer that is cut into panels and becomes innermost
    panel: int  # elements


@dataclass(frozen=True)
class Schedule:
    tile: Mapping[str, int] = field(default_factory=dict)  # axis name -> how much one tile holds; missing = all of it
    order: tuple[str, ...] = ()  # grid axes, outermost first; missing = the program's order
    # CPU
    register: tuple[int, int] = (6, 4)  # rows x vectors of a dot's accumulators
    stream: int = 4  # vectors at a time where there is no dot
    pack: Mapping[str, Packing] = field(default_factory=dict)  # weight buffer -> its panels
    unroll: tuple[str, ...] = ()  # loop axes written out
    prefetch: int = 0  # bytes ahead, streaming loads
    prefetch_panel: bool = False  # the next panel of a packed weight, while this one is used
    chunk: int = 1  # grid tiles that a thread claims at a time
    beside: tuple[Schedule, ...] = ()  # one for each phase of a program whose phases stand side by side
    # GPU
    warps: int = 4
    stages: int = 2
    group: int = 1  # blocks of the last but one grid axis that run as one band, to share what they read in L2


    def of(self, phase: int) -> Schedule:
        """The schedule of a phase, by its number."""
        return self.beside[phase] if self.beside else self

    @staticmethod
    def side_by_side(parts: Sequence[Schedule]) -> Schedule:
        """Each phase keeps its own; what is packed is packed once for all."""
        pack = {buffer: packing for part in parts for buffer, packing in part.pack.items()}
        return Schedule(pack=pack, chunk=max(part.chunk for part in parts), beside=tuple(parts))


@dataclass(frozen=True)
class Footprint:
    """What a program takes under a schedule on a target."""

    registers: int = 0  # vector registers of the largest register tile
    scratch_bytes: int = 0  # a thread (CPU), or shared memory a block (GPU)
    code_bytes: int = 0  # estimate
    tiles: int = 0  # independent grid tiles of the smallest phase; 0 where it depends on a run-time extent
