"""Packed weights: panels of one axis, laid out so that a dot reads them from front to back.

pack(w[K, N], Packing(axis=1, panel=64))  ->  array [ceil(N / 64)][K][64], zero-filled at the end
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from opfuse.tile.schedule import Packing


def packed_shape(shape: Sequence[int], packing: Packing) -> tuple[int, ...]:
    """[panels][all other axes, in order][panel]."""
    others = [n for d, n in enumerate(shape) if d != packing.axis]
    return (math.ceil(shape[packing.axis] / packing.panel), *others, packing.panel)


def pack(array: np.ndarray, packing: Packing) -> np.ndarray:
    """A contiguous copy in panels. ValueError where the axis is not one of the array's or the panel is empty."""
    if not 0 <= packing.axis < array.ndim or packing.panel < 1:
        raise ValueError(f"cannot pack axis {packing.axis} of shape {array.shape} by {packing.panel}")
    panels = math.ceil(array.shape[packing.axis] / packing.panel)
    last = np.moveaxis(array, packing.axis, -1)
    room = panels * packing.panel - last.shape[-1]
    if room:
        last = np.concatenate([last, np.zeros((*last.shape[:-1], room), array.dtype)], axis=-1)
    split = last.reshape(*last.shape[:-1], panels, packing.panel)
    return np.ascontiguousarray(np.moveaxis(split, -2, 0))


def unpack(array: np.ndarray, shape: Sequence[int], packing: Packing) -> np.ndarray:
    """The array that was packed: pack(unpack(p, shape, packing), packing) == p where the filling is zero."""
    joined = np.moveaxis(array, 0, -2)
    last = joined.reshape(*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])[..., : shape[packing.axis]]
    return np.ascontiguousarray(np.moveaxis(last, -1, packing.axis))
