"""Siblings: groups that read one value and nothing of each other, of equal shapes and of others, in one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import opfuse
from opfuse.fuse.provider import TileKernel
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.pipeline import lower
from opfuse.tile.beside import lower_beside, pieces
from opfuse.tile.check import check
from opfuse.tile.lower import LoweredRegion
from opfuse.tile.program import Beside

RNG = np.random.default_rng(3)
CONV = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "layout": "NHWC"}


def constant(g: Graph, *shape: int) -> str:
    return g.add_constant((RNG.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32))


def main_and_shortcut() -> Graph:
    """The head of a residual block: a 3 x 3 convolution of 24 channels with relu, a 1 x 1 of 80 without."""
    g = Graph("block")
    x = g.add_input("x", TensorType(DType.F32, (1, 7, 9, 16)))
    main = g.emit("conv", [x, constant(g, 3, 3, 16, 24), constant(g, 24)], {**CONV, "pads": (1, 1, 1, 1)})
    shortcut = g.emit("conv", [x, constant(g, 1, 1, 16, 80), None], {**CONV, "pads": (0, 0, 0, 0)})
    g.set_outputs({"main": g.emit("relu", [main]), "shortcut": shortcut})
    return g


def strided_shortcut() -> Graph:
    """The shortcut skips every other row and column: another grid, nothing to take turns along."""
    g = Graph("block")
    x = g.add_input("x", TensorType(DType.F32, (2, 8, 8, 8)))
    strided = {**CONV, "strides": (2, 2), "pads": (0, 0, 0, 0)}
    main = g.emit("conv", [x, constant(g, 1, 1, 8, 12), None], {**CONV, "pads": (0, 0, 0, 0)})
    g.set_outputs({"main": main, "shortcut": g.emit("conv", [x, constant(g, 1, 1, 8, 40), None], strided)})
    return g


def grouped_queries() -> Graph:
    """Q of eight heads, K and V of two: three widths from one input, with biases."""
    g = Graph("qkv")
    x = g.add_input("x", TensorType(DType.F32, (5, 64)))
    for name, columns in (("q", 64), ("k", 16), ("v", 16)):
        product = g.emit("matmul", [x, constant(g, 64, columns)])
        g.outputs[name] = g.emit("add", [product, constant(g, columns)])
    return g


def statistics() -> Graph:
    """A sum along rows, a maximum along columns, and the values themselves."""
    g = Graph("statistics")
    x = g.add_input("x", TensorType(DType.F32, (33, 17)))
    rows = g.emit("reduce_sum", [x], {"axes": (1,), "keepdims": False})
    columns = g.emit("reduce_max", [x], {"axes": (0,), "keepdims": False})
    g.set_outputs({"rows": rows, "columns": columns, "values": g.emit("exp", [x])})
    return g


GRAPHS = (main_and_shortcut, strided_shortcut, grouped_queries, statistics)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("build", GRAPHS)
def test_siblings_of_any_shape_are_one_kernel_and_right(build: Callable[[], Graph], threads: int) -> None:
    g = build()
    assert len(lower(g.copy(), Options(threads=threads, calibrate=False)).kernels) == 1
    feeds = {i: RNG.standard_normal(g.types[i].static_shape).astype(np.float32) for i in g.inputs}
    want = evaluate(g, feeds, "f64", g.outputs.values())
    for fusions in ((), "all"):
        got = opfuse.compile(g.copy(), threads=threads, calibrate=False, disable_fusions=fusions, debug=True)(feeds)
        for name, value in g.outputs.items():
            np.testing.assert_allclose(got[name], want[value], rtol=1e-5, atol=1e-5, err_msg=f"{name} {fusions}")


@pytest.mark.parametrize("build", GRAPHS)
def test_each_piece_keeps_its_own_phase(build: Callable[[], Graph]) -> None:
    g = build()
    found = lower_beside(g, "siblings")
    assert isinstance(found, LoweredRegion)
    check(found.program)
    (part,) = found.program.phases
    assert isinstance(part, Beside) and len(part.phases) == len(pieces(g)) == len(g.outputs)
    assert set(found.arguments.values()) == {*g.inputs, *g.constants, *g.outputs.values()}


def test_what_is_read_in_the_same_way_is_one_argument() -> None:
    found = lower_beside(grouped_queries(), "qkv")
    assert isinstance(found, LoweredRegion)
    assert [b.name for b in found.program.buffers if b.role == "in"] == ["x0"]


def test_a_region_in_one_piece_has_no_such_program() -> None:
    g = Graph("chain")
    x = g.add_input("x", TensorType(DType.F32, (4, 4)))
    g.set_outputs({"y": g.emit("exp", [g.emit("neg", [x])])})
    found = lower_beside(g, "chain")
    assert not isinstance(found, LoweredRegion) and found.code == "one-piece"


def test_the_end_of_a_residual_block_is_one_kernel_of_two_convolutions() -> None:
    """relu(conv(h) + shortcut(x)): the sums of both stand behind one element, one after the other."""
    g = Graph("block")
    h, x = (g.add_input(n, TensorType(DType.F32, (1, 28, 28, c))) for n, c in (("h", 64), ("x", 128)))
    main, shortcut = (
        g.emit("conv", [v, constant(g, 1, 1, c, 256), constant(g, 256)], {**CONV, "pads": (0, 0, 0, 0)})
        for v, c in ((h, 64), (x, 128))
    )
    g.set_outputs({"y": g.emit("relu", [g.emit("add", [main, shortcut])])})
    (kernel,) = lower(g.copy(), Options(threads=1, calibrate=False)).kernels
    assert isinstance(kernel, TileKernel) and max(kernel.schedule.tile.values()) > 100, "rows are cut for both sums"
    feeds = {i: RNG.standard_normal(g.types[i].static_shape).astype(np.float32) for i in g.inputs}
    want = evaluate(g, feeds, "f64", g.outputs.values())
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(feeds)
    np.testing.assert_allclose(got["y"], want[g.outputs["y"]], rtol=1e-5, atol=1e-5)
