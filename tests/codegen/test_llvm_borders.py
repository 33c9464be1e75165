"""Windows in two copies, clear of the border and at it: both right, and no guard where none is needed."""

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


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 70), (9, 25), (40, 13)])
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


def test_two_copies_only_where_windows_may_leave() -> None:
    assert TWO_COPIES in text_of(depthwise(12, 40, 3, 1, 1, (1, 1, 1, 1)))
    assert TWO_COPIES not in text_of(depthwise(12, 40, 3, 1, 1, (0, 0, 0, 0)))


def test_the_clear_copy_tests_nothing() -> None:
    text = text_of(depthwise(12, 40, 3, 1, 1, (1, 1, 1, 1)))
    clear, guarded = text.split("\nT", 1)[1].split("\nF", 1)
    assert clear.count("fadd contract") >= 9 and "pad.f32" not in clear
    assert "pad.f32" in guarded
