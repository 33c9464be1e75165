"""Lowering: every operator's samples, and regions of several operators, mean the same as the oracle.

The lowered program is run by the NumPy interpreter of tile programs (which shares no code with the lowering) and
compared with the operators' oracle in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from opfuse.decision import Refusal
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.ops import Kind, Operator, Sample, operators
from opfuse.ir.types import DType, TensorType
from opfuse.tile.check import check
from opfuse.tile.lower import LoweredRegion, lower
from opfuse.tile.program import Dot, Load, Program, Reduce, statements
from tests.tile.reference_interpreter import run

Build = Callable[[Graph], None]


def lowered(graph: Graph) -> LoweredRegion:
    result = lower(graph, "region")
    assert not isinstance(result, Refusal), result.text
    check(result.program)
    return result


def agree(graph: Graph, feeds: dict[str, np.ndarray], tile: dict[str, int] | None = None) -> Program:
    """Run the lowered region and the oracle in float64: apart only by the order of sums and constants in float32."""
    region = lowered(graph)
    truth = evaluate(graph, feeds, "f64")
    arrays = {}
    for b in region.program.buffers:
        if b.role in ("in", "weight"):
            value = region.arguments[b.name]
            array = feeds[value] if value in feeds else graph.constants[value]
            arrays[b.name] = array.reshape(tuple(int(d) for d in b.shape))
    results = run(region.program, arrays, tile)
    for b in region.program.buffers:
        if b.role == "out":
            value = region.arguments[b.name]
            public = next(p for p, v in graph.outputs.items() if v == value)
            want = np.asarray(truth[public])
            got = np.asarray(results[b.name]).reshape(want.shape)
            scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=1.0)) if want.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(got, want, rtol=2.0**-23, atol=1e-12 * scale * 64)
    return region.program


def graph_of(operator: Operator, sample: Sample) -> tuple[Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    graph, feeds, names = Graph("sample"), {}, []
    for k, given in enumerate(sample.inputs):
        if given is None:
            names.append(None)
            continue
        array = rng.standard_normal(given).astype(np.float32) if isinstance(given, tuple) else np.asarray(given)
        name = graph.add_input(f"in{k}", TensorType(DType.of(array.dtype), array.shape))
        feeds[name] = array
        names.append(name)
    graph.emit(operator.name, names, sample.attrs)
    node = next(iter(graph.nodes.values()))
    graph.set_outputs({v: v for v in node.outputs})
    return graph, feeds


SAMPLES = [
    pytest.param(o, s, id=f"{o.name}-{k}")
    for o in operators().values() if o.kind in (Kind.STRUCTURED, Kind.COMPOSITE)
    for k, s in enumerate(o.samples)
]  # fmt: skip


@pytest.mark.parametrize(("operator", "sample"), SAMPLES)
def test_every_operator_means_what_its_oracle_says(operator: Operator, sample: Sample) -> None:
    graph, feeds = graph_of(operator, sample)
    if any(a.dtype == np.float16 for a in feeds.values()):
        pytest.skip("the interpreter computes halves in float64: rounding is tested with the kernels")
    agree(graph, feeds)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def data(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {i: rng.standard_normal(graph.types[i].static_shape).astype(np.float32) for i in graph.inputs}


def weight(graph: Graph, *shape: int, seed: int = 2) -> str:
    rng = np.random.default_rng(seed)
    return graph.add_constant((rng.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32))


def test_linear_with_bias_residual_and_gelu_is_one_dot_on_merged_rows() -> None:
    g = Graph()
    x, r = g.add_input("x", f32(2, 5, 12)), g.add_input("r", f32(2, 5, 20))
    y = g.emit("matmul", [x, weight(g, 12, 20)])
    y = g.emit("gelu", [g.emit("add", [g.emit("add", [y, weight(g, 20)]), r])])
    g.set_outputs({"y": y})
    program = agree(g, data(g))
    (phase,) = program.flat_phases()
    assert len(phase.grid) == 2, "batch and rows are one axis"
    assert sum(isinstance(s, Dot) for s in statements(phase.body)) == 1


def test_residual_and_layer_norm_read_a_row_once() -> None:
    g = Graph()
    a, b = g.add_input("a", f32(3, 7, 16)), g.add_input("b", f32(3, 7, 16))
    x = g.emit("add", [a, b])
    y = g.emit("layer_norm", [x, weight(g, 16), weight(g, 16)], {"axis": 2, "epsilon": 1e-5})
    g.set_outputs({"x": x, "y": g.emit("gelu", [y])})
    program = agree(g, data(g))
    loads = [s for p in program.flat_phases() for s in statements(p.body) if isinstance(s, Load)]
    assert len(loads) == 4, "two inputs, scale and shift, each once"


def test_softmax_shares_its_row_between_both_reductions() -> None:
    g = Graph()
    g.set_outputs({"y": g.emit("softmax", [g.add_input("x", f32(6, 33))], {"axis": 1})})
    program = agree(g, data(g))
    reductions = [s for p in program.flat_phases() for s in statements(p.body) if isinstance(s, Reduce)]
    assert len({s.over for s in reductions}) == 1


def test_whole_row_attention_through_head_transposes() -> None:
    """[B, S, H*D] projections are read as heads by their index maps; the result is stored as [B, S, H, D]."""
    g = Graph()
    q, k, v = (g.add_input(n, f32(2, 7, 12)) for n in "qkv")
    mask = g.add_input("mask", f32(2, 1, 1, 7))

    def heads(x: str, perm: tuple[int, ...]) -> str:
        return g.emit("transpose", [g.emit("reshape", [x], {"shape": (2, 7, 3, 4)})], {"perm": perm})

    s = g.emit("matmul", [heads(q, (0, 2, 1, 3)), heads(k, (0, 2, 3, 1))])
    s = g.emit("add", [g.emit("mul", [s, g.scalar(0.5, DType.F32)]), mask])
    o = g.emit("matmul", [g.emit("softmax", [s], {"axis": 3}), heads(v, (0, 2, 1, 3))])
    g.set_outputs({"o": g.emit("transpose", [o], {"perm": (0, 2, 1, 3)})})
    program = agree(g, data(g))
    assert sum(isinstance(s, Dot) for p in program.flat_phases() for s in statements(p.body)) == 2


@pytest.mark.parametrize("group", [1, 2, 6])
def test_convolution_with_bias_residual_and_relu_channels_last(group: int) -> None:
    g = Graph()
    x, r = g.add_input("x", f32(1, 7, 6, 6)), g.add_input("r", f32(1, 4, 3, 12))
    attrs = {"strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": group, "layout": "NHWC"}
    y = g.emit("conv", [x, weight(g, 3, 3, 6 // group, 12), weight(g, 12)], attrs)
    g.set_outputs({"y": g.emit("relu", [g.emit("add", [y, r])])})
    agree(g, data(g))


def test_pointwise_convolution_is_a_plain_matrix_product() -> None:
    g = Graph()
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1, "layout": "NHWC"}
    g.set_outputs({"y": g.emit("conv", [g.add_input("x", f32(1, 5, 4, 8)), weight(g, 1, 1, 8, 16)], attrs)})
    program = agree(g, data(g))
    assert len(next(program.flat_phases()).grid) == 2


def test_embedding_rows_are_gathered_added_and_normalised_in_one_program() -> None:
    g = Graph()
    ids = g.add_input("ids", TensorType(DType.I64, (2, 5)))
    words, places = weight(g, 11, 8), weight(g, 5, 8)
    x = g.emit("add", [g.emit("gather", [words, ids], {"axis": 0}), places])
    g.set_outputs({"y": g.emit("layer_norm", [x, weight(g, 8), weight(g, 8)], {"axis": 2, "epsilon": 1e-12})})
    agree(g, {"ids": np.array([[0, 10, -1, 3, 3], [9, -11, 2, 1, 0]])})


def test_linear_residual_layer_norm_keeps_the_row_whole() -> None:
    g = Graph()
    x, r = g.add_input("x", f32(9, 12)), g.add_input("r", f32(9, 16))
    y = g.emit("add", [g.emit("matmul", [x, weight(g, 12, 16)]), r])
    g.set_outputs({"y": g.emit("layer_norm", [y, weight(g, 16), weight(g, 16)], {"axis": 1, "epsilon": 1e-5})})
    program = agree(g, data(g))
    assert [a.extent for a in next(program.flat_phases()).grid] == [9]


def test_reduction_over_rows_keeps_lanes_on_the_last_axis() -> None:
    g = Graph()
    x = g.add_input("x", f32(4, 32, 5))
    mean = g.emit("reduce_mean", [x], {"axes": (1,), "keepdims": True})
    g.set_outputs({"y": g.emit("sub", [x, mean])})
    program = agree(g, data(g))
    reduce = next(s for p in program.flat_phases() for s in statements(p.body) if isinstance(s, Reduce))
    assert reduce.tile.axes[-1].extent == 5


POOL = {
    "kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "ceil_mode": False,
    "layout": "NHWC",
}  # fmt: skip


def test_padded_window_over_a_pointwise_value_of_the_region_guards_it() -> None:
    g = Graph()
    x = g.emit("neg", [g.add_input("x", f32(1, 4, 5, 3))])
    g.set_outputs({"y": g.emit("max_pool", [x], POOL)})
    agree(g, data(g))


def test_padded_window_over_a_reduced_value_is_refused_with_a_reason() -> None:
    g = Graph()
    x = g.emit("softmax", [g.add_input("x", f32(1, 4, 4, 3))], {"axis": 3})
    g.set_outputs({"y": g.emit("max_pool", [x], POOL)})
    result = lower(g, "region")
    assert isinstance(result, Refusal) and result.code == "padded-interior"
