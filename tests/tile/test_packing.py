"""Packed weights: each element lies where the layout says, and nowhere else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from opfuse.tile.packing import pack, packed_shape, unpack
from opfuse.tile.schedule import Packing


@pytest.mark.parametrize(
    ("shape", "axis", "panel"),
    [
        ((5, 7), 1, 4),
        ((5, 7), 0, 4),
        ((3, 3, 5, 10), 3, 4),
        ((8, 3, 2), 0, 16),
        ((6,), 0, 3),
        ((0, 4), 1, 4),
        ((4, 0), 1, 4),
    ],
)
def test_every_element_stands_in_its_panel(shape: tuple[int, ...], axis: int, panel: int) -> None:
    array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    packed = pack(array, Packing(axis, panel))
    assert packed.shape == packed_shape(shape, Packing(axis, panel))
    assert packed.flags.c_contiguous
    for at in itertools.product(*map(range, shape)):
        others = tuple(i for d, i in enumerate(at) if d != axis)
        assert packed[(at[axis] // panel, *others, at[axis] % panel)] == array[at]
    assert packed.sum() == array.sum()  # all else is zero
    np.testing.assert_array_equal(unpack(packed, shape, Packing(axis, panel)), array)


def test_an_axis_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="axis 2"):
        pack(np.zeros((2, 2), np.float32), Packing(2, 4))
