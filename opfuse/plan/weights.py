"""The weights blob: constants in the order of their first use, each once for each way in which it is packed.

    weights = WeightsLayout(); weights.add("W", array, Packing(1, 64)); pieces, blob = weights.build()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from opfuse.plan.memory import align
from opfuse.plan.plan import Place, WeightPiece
from opfuse.tile.schedule import Packing

Pack = Callable[[np.ndarray, Packing], np.ndarray]
READ_AHEAD = 4096  # zero bytes behind the last weight, so that a wide or early load at the end stays inside


def packing_text(shape: Sequence[int], packing: Packing | None) -> str:
    if packing is None:
        return ""
    return f"axis {packing.axis} of {'x'.join(map(str, shape))} by {packing.panel}"


def aligned_bytes(n: int, alignment: int = 64) -> np.ndarray:
    """`n` uninitialised bytes that begin at a multiple of `alignment`."""
    raw = np.empty(n + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + n]


class WeightsLayout:
    """Collects constants and where they go; the bytes are written by `build`."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._places: dict[tuple[str, str], Place] = {}
        self._arrays: list[tuple[str, str, np.ndarray, int]] = []
        self._end = 0

    def add(self, name: str, array: np.ndarray, packing: Packing | None = None) -> Place:
        """The place of the constant, seen in the array's shape, under this packing; the same place when asked again."""
        key = (name, packing_text(array.shape, packing))
        if key not in self._places:
            packed = np.ascontiguousarray(array if packing is None else self._pack(array, packing))
            self._places[key] = Place("weights", self._end, 0, packed.nbytes)
            self._arrays.append((*key, packed, self._end))
            self._end = align(self._end + packed.nbytes)
        return self._places[key]

    def build(self) -> tuple[tuple[WeightPiece, ...], np.ndarray]:
        """The list of pieces and the blob, 64-byte aligned, with `READ_AHEAD` zeros at the end."""
        blob = aligned_bytes(self._end + READ_AHEAD)
        pieces = []
        at = 0
        for name, packing, array, offset in self._arrays:
            blob[at:offset] = 0
            at = offset + array.nbytes
            blob[offset:at] = array.reshape(-1).view(np.uint8)
            pieces.append(WeightPiece(name, offset, array.nbytes, packing))
        blob[at:] = 0
        return tuple(pieces), blob
