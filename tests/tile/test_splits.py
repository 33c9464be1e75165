"""Root dimensions part where what is read upstream needs it, and only there."""

from __future__ import annotations

from opfuse.ir.graph import Graph
from opfuse.ir.index import Quotient, Remainder
from opfuse.ir.types import DType, TensorType
from opfuse.tile.axes import accesses
from opfuse.tile.lower import LoweredRegion, lower
from opfuse.tile.splits import root_parts


def graph(*shape: int) -> tuple[Graph, str]:
    g = Graph("g")
    return g, g.add_input("x", TensorType(DType.F32, shape))


def test_a_dimension_that_nothing_divides_stays_whole() -> None:
    g, x = graph(6, 4)
    assert root_parts(g, g.emit("relu", [g.emit("transpose", [x], {"perm": (1, 0)})])) == ((4,), (6,))


def test_a_reshape_that_merges_parts_the_merged_dimension() -> None:
    g, x = graph(2, 6, 4, 5)
    y = g.emit("reshape", [g.emit("relu", [x])], {"shape": (2, 24, 5)})
    assert root_parts(g, y) == ((2,), (6, 4), (5,))


def test_three_dimensions_in_one() -> None:
    g, x = graph(2, 3, 4)
    assert root_parts(g, g.emit("reshape", [x], {"shape": (24,)})) == ((2, 3, 4),)


def test_upsampling_parts_by_its_factor_through_other_operators() -> None:
    g, x = graph(1, 5, 7, 3)
    up = g.emit("repeat", [x], {"repeats": (1, 2, 3, 1)})
    y = g.emit("relu", [g.emit("transpose", [up], {"perm": (0, 3, 1, 2)})])
    assert root_parts(g, y) == ((1,), (3,), (5, 2), (7, 3))


def test_groups_of_a_convolution_are_an_axis() -> None:
    g, x = graph(1, 4, 9, 9)
    w = g.add_input("w", TensorType(DType.F32, (6, 2, 3, 3)))
    y = g.emit("conv", [x, w], {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "group": 2})
    assert root_parts(g, g.emit("relu", [y])) == ((1,), (2, 3), (7,), (7,))


def test_a_divisor_that_does_not_divide_the_extent_is_left_alone() -> None:
    g, x = graph(2, 5)
    up = g.emit("repeat", [x], {"repeats": (1, 2)})
    y = g.emit("slice", [up], {"starts": (0, 0), "stops": (2, 9), "steps": (1, 1)})
    assert root_parts(g, y) == ((2,), (9,))


def test_no_quotient_is_left_in_the_program_and_parts_that_nobody_needs_merge_again() -> None:
    g, x = graph(6, 4)
    g.set_outputs({"y": g.emit("reshape", [g.emit("relu", [x])], {"shape": (24,)})})
    region = lower(g, "r")
    assert isinstance(region, LoweredRegion)
    places = [i for _, index, _ in accesses(region.program) for i in index]
    assert not any(isinstance(t, (Quotient, Remainder)) for i in places for t, _ in i.terms)
    (phase,) = region.program.flat_phases()
    assert [a.extent for a in phase.grid] == [24]
