"""Evaluation of graphs against values worked out by hand, in native types and in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opfuse.errors import InputError
from opfuse.fuse.region import Region
from opfuse.ir.dims import symbol
from opfuse.ir.evaluate import EvaluationError, evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.providers.reference import ReferenceProvider
from opfuse.target import DESCRIBED_CPU, Target

F32, I64 = DType.F32, DType.I64
S = symbol("S")
CPU = Target("test", "cpu", "plain", 16, 16, 1 << 15, 1 << 20, 1 << 24, 1, DESCRIBED_CPU)


def linear() -> Graph:
    """y = relu(x @ w + b)."""
    g = Graph("linear")
    g.add_input("x", TensorType(F32, (S, 2)))
    w = g.add_constant(np.array([[1, -1], [2, 3]], np.float32), "w")
    b = g.add_constant(np.array([10, -10], np.float32), "b")
    t = g.emit("matmul", ["x", w], outputs=["product"])
    g.set_outputs({"y": g.emit("relu", [g.emit("add", [t, b], origin=("Add_1",))])})
    return g


def test_by_hand():
    y = evaluate(linear(), {"x": np.array([[1, 2], [0, 5]], np.float32)})
    np.testing.assert_array_equal(y["y"], [[15, 0], [20, 5]])
    assert list(y) == ["y"] and y["y"].dtype == np.float32


def test_values_by_name_and_nothing_more_is_computed():
    g = linear()
    g.set_outputs({**g.outputs, "bad": g.emit("gather", ["w", g.add_constant(np.array(9), "nine")], {"axis": 0})})
    x = np.array([[1, 2]], np.float32)
    made = evaluate(g, {"x": x}, values=["product", "w", "x"])
    np.testing.assert_array_equal(made["product"], [[5, 5]])
    assert made["w"] is g.constants["w"] and made["x"].shape == (1, 2)
    with pytest.raises(KeyError, match="nowhere"):
        evaluate(g, {"x": x}, values=["nowhere"])
    with pytest.raises(EvaluationError, match=r"gather.*index 9 is outside a dimension of extent 2"):
        evaluate(g, {"x": x})


def test_float64_widens_inputs_constants_and_casts():
    """In half precision 5000 * 5000 is infinite; the truth is 2.5e7."""
    g = Graph()
    g.add_input("x", TensorType(F32, (1,)))
    h = g.emit("cast", ["x"], {"to": DType.F16})
    tenth = g.add_constant(np.array([0.1], np.float16), "tenth")
    square = g.emit("mul", [h, h])
    g.set_outputs({"square": square, "tenth": g.emit("mul", [h, tenth]), "whole": g.emit("cast", [h], {"to": I64}),
                   "hundredth": g.emit("mul", [tenth, tenth]),
                   "filled": g.emit("fill", [], {"shape": (2,), "value": 0.1, "dtype": F32})})  # fmt: skip
    x = {"x": np.array([5000], np.float32)}
    native, wide = evaluate(g, x), evaluate(g, x, "f64")
    assert native["square"].dtype == np.float16 and np.isinf(native["square"])
    assert wide["square"].dtype == np.float64 and wide["square"] == 2.5e7
    assert wide["tenth"] == 5000 * float(np.float16(0.1))
    assert wide["hundredth"].dtype == np.float64 and wide["hundredth"] == float(np.float16(0.1)) ** 2
    assert wide["whole"].dtype == np.int64 and wide["filled"].dtype == np.float64 and wide["filled"][0] == 0.1


def test_float64_through_every_kind():
    """mean, softmax, convolution and a norm stay float64 (no oracle falls back to float32)."""
    g = Graph()
    g.add_input("x", TensorType(F32, (1, 2, 5, 5)))
    w = g.add_constant(np.full((3, 2, 3, 3), 0.1, np.float32), "w")
    conv = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    y = g.emit("conv", ["x", w], conv)
    y = g.emit("avg_pool", [y], {**conv, "kernel": (2, 2)})
    y = g.emit("layer_norm", [y], {"axis": 3})
    y = g.emit("gelu", [g.emit("softmax", [y], {"axis": 1})])
    g.set_outputs({"y": g.emit("reduce_mean", [y], {"axes": (2, 3)})})
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
    native, wide = evaluate(g, {"x": x})["y"], evaluate(g, {"x": x}, "f64")["y"]
    assert native.dtype == np.float32 and wide.dtype == np.float64
    np.testing.assert_allclose(native, wide, rtol=2e-5)
    assert (native.astype(np.float64) != wide).any()


def test_defaults_and_symbols():
    g = Graph()
    g.add_input("x", TensorType(F32, (S, 2)))
    g.add_input("w", TensorType(F32, (2,)), np.array([1, 1], np.float32))
    t = g.emit("add", [g.emit("mul", ["x", "w"]), "w"])
    g.set_outputs({"flat": g.emit("reshape", [t], {"shape": (S * 2,)}), "dims": g.emit("dims", [], {"values": (S, 2)})})
    x = np.array([[2, 3]], np.float32)
    np.testing.assert_array_equal(evaluate(g, {"x": x})["flat"], [3, 4])
    np.testing.assert_array_equal(evaluate(g, {"x": x, "w": np.array([10, 20], np.float32)})["flat"], [30, 80])
    np.testing.assert_array_equal(evaluate(g, {"x": np.zeros((0, 2), np.float32)})["dims"], [0, 2])


@pytest.mark.parametrize(
    ("feeds", "text"),
    [
        ({}, "input 'x'.*nothing is fed"),
        ({"x": np.zeros((1, 2), np.float32), "z": 0}, "input 'z'.*no such input"),
        ({"x": np.zeros((1, 2))}, "input 'x'.*float64"),
        ({"x": np.zeros(2, np.float32)}, "input 'x'"),
        ({"x": np.zeros((1, 3), np.float32)}, "3 where 2 is expected"),
    ],
)
def test_bad_feeds(feeds, text):
    with pytest.raises(InputError, match=text):
        evaluate(linear(), feeds)


def test_two_inputs_must_agree_on_a_symbol():
    g = Graph()
    g.add_input("a", TensorType(F32, (S * 2,)))
    g.add_input("b", TensorType(F32, (S,)))
    g.set_outputs({"y": g.emit("neg", ["a"])})
    evaluate(g, {"a": np.zeros(6, np.float32), "b": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match=r"6 where 2\*S = 8 is expected"):
        evaluate(g, {"a": np.zeros(6, np.float32), "b": np.zeros(4, np.float32)})


def test_bfloat16_rounds_at_each_node():
    """256 + 1 is 256 in bfloat16; with one more cast between, the comparison sees it."""
    g = Graph()
    for name in "ab":
        g.add_input(name, TensorType(DType.BF16, (3,)))
    s = g.emit("add", ["a", "b"])
    top = g.emit("reduce_max", [s], {"axes": (0,)})
    g.set_outputs({"top": g.emit("equal", [s, top]), "same": g.emit("equal", [g.emit("sub", [s, "a"]), "b"])})
    a = np.array([256, 257, 1], ml_dtypes.bfloat16)
    y = evaluate(g, {"a": a, "b": np.array([1, 0.5, 0.0039], ml_dtypes.bfloat16)})
    assert y["top"].tolist() == [True, True, False] and y["same"].tolist() == [False, False, False]


def test_reference_provider_runs_a_region():
    g = linear().bind({"S": 2})
    region = Region.of(g, [n for n in g.nodes if "relu" not in n])
    provider = ReferenceProvider()
    claim = provider.claim(g, region, CPU)
    kernel = provider.build(g, claim)
    assert claim.cost.flops == 2 * 2 * 2 * 2 + 4 and claim.cost.bytes == 4 * (4 + 4 + 2 + 4)
    x = np.array([[1, 2], [0, 5]], np.float32)
    given = {"x": x, **g.constants}
    (y,) = kernel.function([given[i] for i in region.inputs])
    np.testing.assert_array_equal(y, [[15, -5], [20, 5]])
    assert kernel.origin[-1] == "Add_1" and kernel.provider == "reference"
