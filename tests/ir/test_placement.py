"""Strides under other shapes, boxes and joints read from structures, against NumPy's own views."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.ops import structure_of
from opfuse.ir.placement import Cut, Joint, Placement, cut_of, dense, is_dense, joint_of, reshaped
from opfuse.ir.scalar import Apply, Scalar
from opfuse.ir.types import DType, TensorType


@st.composite
def boxes(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """A box of an array, and another shape of as many elements."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    whole = np.arange(math.prod(shape)).reshape(shape)
    box = whole[tuple(slice(draw(st.integers(0, d - 1)), None, draw(st.sampled_from([1, 1, 2]))) for d in shape)]
    left, to = box.size, []
    while left > 1:
        to.append(draw(st.sampled_from([d for d in range(2, left + 1) if left % d == 0])))
        left //= to[-1]
    return box, tuple(draw(st.permutations([*to, *[1] * draw(st.integers(0, 2))])))


@given(boxes())
def test_reshaped_strides_are_numpy_s(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    box, to = case
    found = reshaped(box.shape, tuple(s // box.itemsize for s in box.strides), to)
    view = box.view()
    try:
        view.shape = to
    except AttributeError:
        assert isinstance(found, Refusal)
        return
    assert not isinstance(found, Refusal)
    walked = np.lib.stride_tricks.as_strided(box, to, [s * box.itemsize for s in found])
    assert (walked == box.reshape(to)).all()


def test_nothing_lies_anywhere() -> None:
    assert reshaped((0, 3), (3, 1), (3, 0, 5)) == (0, 5, 1)


def test_dense() -> None:
    assert dense((2, 3, 4)) == (12, 4, 1) and dense(()) == ()
    assert is_dense((2, 1, 4), (4, 99, 1)) and not is_dense((2, 4), (8, 1))


@pytest.mark.parametrize(
    ("starts", "stops", "steps", "cut"),
    [
        ((0, 2), (4, 6), (1, 1), Cut((0, 2), (1, 1))),
        ((1, 0), (4, 8), (2, 1), Cut((1, 0), (2, 1))),
        ((0, 0), (4, 8), (1, 2), None),  # neighbours lie two apart
        ((0, 7), (4, 8), (1, 1), None),  # a column
        ((3, 0), (4, 8), (1, 1), Cut((3, 0), (1, 1))),
    ],
)
def test_cuts_are_read_from_structures(
    starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...], cut: Cut | None
) -> None:
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (4, 8)))
    g.emit("slice", [x], {"starts": starts, "stops": stops, "steps": steps}, name="cut")
    structure = structure_of(g, g.nodes["cut"])
    assert structure is not None
    found = cut_of(structure)
    assert isinstance(found, Refusal) if cut is None else found == cut
    if cut is not None:
        at = cut.placed(Placement("x", 0, (8, 1)))
        a = np.arange(32).reshape(4, 8)
        want = a[tuple(map(slice, starts, stops, steps))]
        bytes_apart = [a.itemsize * s for s in at.strides]
        assert (np.lib.stride_tricks.as_strided(a.reshape(-1)[at.offset :], want.shape, bytes_apart) == want).all()


def test_what_is_no_box() -> None:
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (4, 8)))
    for name, op, attrs in [("t", "transpose", {"perm": (1, 0)}), ("r", "reshape", {"shape": (8, 4)}), ("n", "neg", {}),
                            ("b", "slice", {"starts": (3, 0), "stops": (-1, 8), "steps": (-1, 1)})]:  # fmt: skip
        g.emit(op, [x], attrs, name=name)
        structure = structure_of(g, g.nodes[name])
        assert structure is not None and isinstance(cut_of(structure), Refusal)


def test_joints_are_read_from_structures() -> None:
    g = Graph("g")
    x, y = (g.add_input(n, TensorType(DType.F32, (4, d))) for n, d in (("x", 3), ("y", 5)))
    g.emit("concat", [x, y, x], {"axis": 1}, name="joint")
    structure = structure_of(g, g.nodes["joint"])
    assert structure is not None and joint_of(structure) == Joint(1, (0, 3, 8), (0, 1, 2))
    g.emit("add", [x, x], name="sum")
    g.emit("where", [g.emit("less", [x, x]), x, x], name="where")
    for name in ("sum", "where"):
        structure = structure_of(g, g.nodes[name])
        assert structure is not None and isinstance(joint_of(structure), Refusal)


def test_a_joint_of_hundreds_is_picked_by_halves() -> None:
    g = Graph("g")
    parts = [g.add_input(f"x{k}", TensorType(DType.F32, (2, k % 4))) for k in range(700)]
    g.emit("concat", parts, {"axis": 1}, name="joint")
    structure = structure_of(g, g.nodes["joint"])
    starts = tuple(int(n) for n in np.cumsum([0, *(k % 4 for k in range(699))]))
    assert structure is not None and joint_of(structure) == Joint(1, starts, tuple(range(700)))
    assert depth(structure.body) < 24


def depth(x: Scalar) -> int:
    return 1 + max(map(depth, x.args)) if isinstance(x, Apply) else 1
