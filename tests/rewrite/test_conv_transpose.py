"""Transposed convolutions of many geometries, rewritten and compiled, against the oracle and natively."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import opfuse
from opfuse.decision import Ledger
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.plan.plan import Native
from opfuse.rewrite.engine import rewrite

GEOMETRIES = [
    (stride, kernel, dilation, before, after, extra)
    for stride, kernel, dilation, before, after, extra in itertools.product(
        (1, 2, 3), (1, 2, 3, 5), (1, 2), (0, 2), (0, 1), (0, 1))
    if extra < max(stride, dilation) and 3 * stride + (kernel - 1) * dilation + 1 + extra > before + after
]  # fmt: skip


def one_axis(stride: int, kernel: int, dilation: int, before: int, after: int, extra: int, group: int = 1) -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (2, 4, 4)))
    w = g.add_constant(rng.standard_normal((4, 6 // group, kernel)).astype(np.float32))
    b = g.add_constant(rng.standard_normal(6).astype(np.float32))
    attrs = {"strides": (stride,), "dilations": (dilation,), "pads": (before, after), "output_padding": (extra,)}
    g.set_outputs({"y": g.emit("conv_transpose", [x, w, b], {**attrs, "group": group})})
    return g


@pytest.mark.parametrize("group", [1, 2])
def test_every_geometry_of_one_axis(group: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    for geometry in GEOMETRIES:
        graph = one_axis(*geometry, group)
        after = rewrite(graph, Options(), Ledger())
        assert "conv_transpose" not in {n.op for n in after.nodes.values()}, geometry
        want, got = (evaluate(g, {"x": x}, "f64")["y"] for g in (graph, after))
        assert got.shape == want.shape, geometry
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=str(geometry))


@pytest.mark.parametrize("geometry", [(2, 2, 1, 0, 0, 0), (2, 4, 1, 1, 1, 0), (3, 2, 1, 0, 1, 1)])
def test_runs_natively(geometry: tuple[int, ...]) -> None:
    graph = one_axis(*geometry)
    x = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    want = evaluate(graph, {"x": x}, "f64")["y"]
    exe = opfuse.compile(graph.copy(), threads=1, calibrate=False)
    got = exe(x=x)["y"]
    assert all(isinstance(s, Native) for s in exe.model.plan.segments)
    np.testing.assert_allclose(got, want, rtol=0, atol=24 * 2.0**-24 * np.abs(want).max())
