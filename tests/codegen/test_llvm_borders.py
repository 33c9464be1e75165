"""Windows at a border: the panels at the ends and those between are right, and test no more than they must."""

from __future__ import annotations

import numpy as np
import pytest

import opfuse
from opfuse import pipeline
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options

TWO_COPIES = "label %T"  # what `Emit.when` calls the branch


def depthwise(height: int, width: int, kernel: int, stride: int, dilation: int, pads: tuple[int, ...]) -> Graph:
    g = Graph("g")
    rng = np.random.default_rng(0)
    x = g.add_input("x", TensorType(DType.F32, (2, height, width, 16)))
    w = g.add_constant(rng.standard_normal((kernel, kernel, 1, 16)).astype(np.float32))
    attrs = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": pads, "group": 16, "layout": "NHWC"}
    g.set_outputs({"y": g.emit("relu", [g.emit("conv", [x, w], attrs)])})
    return g


def text_of(g: Graph) -> str:
    printed = pipeline.lower(g, Options(threads=1, calibrate=False)).printed
    return "\n".join(p.text for phases in printed.values() for p in phases)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 70), (9, 25), (40, 13), (2, 1500)])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pads"),
    [(3, 1, 1, (1, 1, 1, 1)), (3, 2, 1, (0, 1, 1, 0)), (3, 1, 2, (2, 2, 2, 2)), (5, 2, 1, (2, 4, 2, 1))],
)
def test_every_place_is_right(
    height: int, width: int, kernel: int, stride: int, dilation: int, pads: tuple[int, ...]
) -> None:
    g = depthwise(height, width, kernel, stride, dilation, pads)
    x = np.random.default_rng(1).standard_normal((2, height, width, 16)).astype(np.float32)
    want = evaluate(g, {"x": x}, "f64")["y"]
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=x)["y"]
    assert np.abs(got - want).max(initial=0.0) <= kernel**2 * 2.0**-24 * max(np.abs(want).max(initial=0.0), 1.0)


def test_a_panel_asks_only_where_its_place_is_not_known() -> None:
    assert TWO_COPIES not in text_of(depthwise(12, 40, 3, 1, 1, (1, 1, 1, 1)))
    assert TWO_COPIES in text_of(depthwise(12, 1500, 3, 1, 1, (1, 1, 1, 1)))  # an image row is cut into tiles


def test_the_clear_copy_tests_rows_only() -> None:
    text = text_of(depthwise(12, 1500, 3, 1, 1, (1, 1, 1, 1)))
    clear, guarded = text.split("\nT", 1)[1].split("\nF", 1)
    taps = clear.count("@llvm.fma")
    assert taps >= 9
    assert clear.count("pad.f32") * 4 <= taps < guarded.count("pad.f32") * 4


def test_no_row_is_tested_where_the_place_is_known() -> None:
    """An image of 40 columns in panels of at most 14 rows: one exchanged pointer for each tap of a panel."""
    text = text_of(depthwise(12, 40, 3, 1, 1, (1, 1, 1, 1)))
    assert 0 < text.count("pad.f32") * 4 <= text.count("@llvm.fma")


@pytest.mark.parametrize(
    ("kernel", "stride", "pads"), [(5, 1, (2, 2, 2, 2)), (7, 1, (6, 6, 6, 6)), (5, 3, (4, 1, 0, 4))]
)
def test_wide_borders_of_short_rows(kernel: int, stride: int, pads: tuple[int, ...]) -> None:
    """Several panels at each end may lie across the border, or every panel."""
    for width in (3, 16, 33, 45):
        g = depthwise(3, width, kernel, stride, 1, pads)
        x = np.random.default_rng(1).standard_normal((2, 3, width, 16)).astype(np.float32)
        want = evaluate(g, {"x": x}, "f64")["y"]
        got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=x)["y"]
        assert np.abs(got - want).max() <= kernel**2 * 2.0**-24 * max(np.abs(want).max(), 1.0)


def test_padding_of_a_pool_is_not_zero() -> None:
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (1, 5, 30, 8)))
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "ceil_mode": False,
             "layout": "NHWC"}  # fmt: skip
    g.set_outputs({"y": g.emit("max_pool", [x], attrs)})
    feed = -1.0 - np.random.default_rng(1).random((1, 5, 30, 8)).astype(np.float32)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=feed)["y"]
    assert np.array_equal(got, evaluate(g, {"x": feed}, "native")["y"])
