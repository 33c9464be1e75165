"""Cases that optimisers got wrong in rewriting: folding, padding, norms, layouts, no-ops, twins; with the right values.

Every case runs three times: the graph as it came, rewritten by all rules, and rewritten by the exact rules alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from opfuse.decision import Ledger
from opfuse.frontends.onnx.load import load
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.rewrite.engine import rewrite

F = np.float32
NODE = helper.make_node


def model(nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, np.ndarray], outputs: Sequence[str],
          constants: Mapping[str, Any] | None = None, opset: int = 17,
          default: Sequence[str] = ()) -> onnx.ModelProto:  # fmt: skip
    """A model whose inputs have the shapes of the feeds. `default` names constants that are inputs too."""
    arrays = {
        k: np.asarray(v) if isinstance(v, (np.ndarray, np.generic)) else np.asarray(v, F)
        for k, v in (constants or {}).items()
    }
    described = {**feeds, **{n: arrays[n] for n in default}}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in described.items()
    ]
    outs = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
    graph = helper.make_graph(
        list(nodes), "case", inputs, outs, [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    )
    for o in graph.output:
        o.ClearField("type")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


class Run:
    """The answers of a model in three ways, which must agree, and what was done to it."""

    def __init__(self, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> None:
        self.source = load(proto)
        self.ledger = Ledger()
        self.graph: Graph = rewrite(self.source, Options(), self.ledger)
        strict = rewrite(self.source, Options(strict=True), Ledger())
        assert not [d for d in self.ledger if d.outcome == "undone"]
        self.values = evaluate(self.graph, feeds)
        for other in (evaluate(self.source, feeds), evaluate(strict, feeds)):
            assert list(other) == list(self.values)
            for name, array in other.items():
                assert array.shape == self.values[name].shape and array.dtype == self.values[name].dtype
                np.testing.assert_allclose(
                    self.values[name].astype(np.float64), array.astype(np.float64), rtol=tolerance, atol=tolerance
                )

    @property
    def operators(self) -> list[str]:
        return [n.op for n in self.graph.nodes.values()]

    def taken(self, rule: str) -> int:
        return sum(1 for d in self.ledger if d.rule == rule and d.outcome == "taken")

    def refused(self, rule: str) -> list[str]:
        return [d.code for d in self.ledger if d.rule == rule and d.outcome == "refused"]

    def shows(self, name: str, expected: Any, tolerance: float = 1e-5) -> None:
        np.testing.assert_allclose(
            self.values[name].astype(np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
        )


def batch_norm(data: str, out: str, prefix: str = "", **attrs: Any) -> onnx.NodeProto:
    return NODE("BatchNormalization", [data, *(prefix + n for n in ("scale", "shift", "mean", "var"))], [out], **attrs)


def norm_constants(
    scale: Any, shift: Any, mean: Any = None, var: Any = None, prefix: str = "", dtype: Any = F
) -> dict[str, Any]:
    scale = np.asarray(scale, dtype)
    zeros, ones = np.zeros_like(scale), np.ones_like(scale)
    return {prefix + "scale": scale, prefix + "shift": np.asarray(shift, dtype),
            prefix + "mean": zeros if mean is None else np.asarray(mean, dtype),
            prefix + "var": ones if var is None else np.asarray(var, dtype)}  # fmt: skip


# ---- A. batch norm and bias into weights -----------------------------------------------------------------------------
X_R1 = {"x": np.array([[[[1, 3]]]], F)}
W_R1 = np.array([1, 2], F).reshape(2, 1, 1, 1)


def test_r1_shared_weight_with_two_norms() -> None:
    nodes = [NODE("Conv", ["x", "w"], ["t1"]), batch_norm("t1", "y1", "a", epsilon=0.0),
             NODE("Conv", ["x", "w"], ["t2"]), batch_norm("t2", "y2", "b", epsilon=0.0)]  # fmt: skip
    constants = {
        "w": W_R1,
        **norm_constants([2, 2], [0, 0], prefix="a"),
        **norm_constants([10, 10], [1, 1], prefix="b"),
    }
    run = Run(model(nodes, X_R1, ["y1", "y2"], constants), X_R1)
    run.shows("y1", [[[[2, 6]], [[4, 12]]]])
    run.shows("y2", [[[[11, 31]], [[21, 61]]]])


def test_r1_shared_weight_on_two_inputs_is_folded_twice_and_never_written() -> None:
    feeds = {"x": X_R1["x"], "z": X_R1["x"] * 2}
    nodes = [NODE("Conv", ["x", "w"], ["t1"]), batch_norm("t1", "y1", "a", epsilon=0.0),
             NODE("Conv", ["z", "w"], ["t2"]), batch_norm("t2", "y2", "a", epsilon=0.0)]  # fmt: skip
    run = Run(model(nodes, feeds, ["y1", "y2"], {"w": W_R1, **norm_constants([2, 2], [0, 0], prefix="a")}), feeds)
    assert run.taken("fold_batch_norm") == 2 and "batch_norm" not in run.operators
    run.shows("y1", [[[[2, 6]], [[4, 12]]]])
    run.shows("y2", [[[[4, 12]], [[8, 24]]]])
    np.testing.assert_array_equal(run.source.constants["w"], W_R1)


def test_r2_conv_result_also_used_elsewhere() -> None:
    nodes = [NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "n", epsilon=0.0), NODE("Add", ["t", "n"], ["y"])]
    run = Run(model(nodes, X_R1, ["t", "y"], {"w": W_R1, **norm_constants([10, 100], [1, 2])}), X_R1)
    run.shows("t", [[[[1, 3]], [[2, 6]]]])
    run.shows("y", [[[[12, 34]], [[204, 608]]]])
    assert run.taken("fold_batch_norm") == 0 and run.refused("fold_batch_norm") == ["graph-output"]


def test_r3_grouped_transposed_convolution() -> None:
    x = {"x": np.ones((1, 4, 1, 1), F)}
    w = np.repeat(np.arange(1, 5, dtype=F), 2).reshape(4, 2, 1, 1)
    nodes = [NODE("ConvTranspose", ["x", "w"], ["t"], group=2), batch_norm("t", "y", epsilon=0.0)]
    constants = {"w": w, **norm_constants([1, 10, 100, 1000], [0.5, 0.25, 0, 0], [0, 0, 0, 1])}
    run = Run(model(nodes, x, ["y"], constants), x)
    run.shows("y", np.array([3.5, 30.25, 700, 6000]).reshape(1, 4, 1, 1))
    assert run.taken("fold_batch_norm_transposed") == 1


def test_r4_channel_axis_of_a_square_transposed_convolution() -> None:
    x = {"x": np.ones((1, 2, 1, 1), F)}
    nodes = [NODE("ConvTranspose", ["x", "w"], ["t"]), batch_norm("t", "y", epsilon=0.0)]
    run = Run(
        model(nodes, x, ["y"], {"w": np.array([1, 2, 3, 4], F).reshape(2, 2, 1, 1), **norm_constants([1, 10], [0, 0])}),
        x,
    )
    run.shows("y", np.array([4, 60]).reshape(1, 2, 1, 1))


def test_r7_a_fold_that_leaves_half_precision_is_refused() -> None:
    x = {"x": np.array([[[[1e-3, 2e-3]]]], np.float16)}
    nodes = [NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "y", epsilon=1e-3)]
    constants = {"w": np.full((1, 1, 1, 1), 10, np.float16), **norm_constants([2000], [0], [0], [0], dtype=np.float16)}
    run = Run(model(nodes, x, ["y"], constants), x, 2e-3)
    run.shows("y", np.array([632.5, 1265]).reshape(1, 1, 1, 2), 2e-3)
    assert run.refused("fold_batch_norm") == ["range"]


def test_r7_no_variance_stays_finite() -> None:
    nodes = [NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "y", epsilon=1e-2)]
    run = Run(model(nodes, X_R1, ["y"], {"w": W_R1, **norm_constants([1, 1], [0, 0], [0, 0], [0, 0])}), X_R1)
    run.shows("y", [[[[10, 30]], [[20, 60]]]])


def test_r8_weights_that_are_fed_are_not_folded() -> None:
    feeds = {**X_R1, "w": np.full((1, 1, 1, 1), 5, F)}
    nodes = [NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "y", epsilon=0.0)]
    run = Run(model(nodes, feeds, ["y"], norm_constants([2], [0])), feeds)
    run.shows("y", [[[[10, 30]]]])
    assert run.taken("fold_batch_norm") == 0


def test_r9_a_full_tensor_is_no_bias() -> None:
    x = {"x": np.ones((1, 2, 2, 2), F)}
    nodes = [NODE("Conv", ["x", "w"], ["t"], group=2), NODE("Add", ["t", "c"], ["y"])]
    run = Run(model(nodes, x, ["y"], {"w": W_R1, "c": np.arange(0, 80, 10, dtype=F).reshape(1, 2, 2, 2)}), x)
    run.shows("y", [[[[1, 11], [21, 31]], [[42, 52], [62, 72]]]])
    assert run.taken("bias_into_conv") == 0 and run.refused("bias_into_conv") == ["not-per-channel"]


# ---- B. padding and pooling ------------------------------------------------------------------------------------------
PADS = {
    "a-cuts": ([1, 2, 3, 4], [0, 0, 0, -1, 0, 0, 0, 1], {}, [5, 7, 4], 0),
    "b-value": ([1, 2], [0, 0, 0, 1, 0, 0, 0, 1], {"value": 5}, [6, 3, 7], 0),
    "c-reflect": ([1, 2, 3], [0, 0, 0, 1, 0, 0, 0, 1], {"mode": "reflect"}, [3, 3, 5, 5], 0),
    "plain": ([1, 2, 3], [0, 0, 0, 1, 0, 0, 0, 0], {}, [1, 3, 5], 1),
}


@pytest.mark.parametrize("name", PADS)
def test_r11_pad_before_a_convolution(name: str) -> None:
    row, pads, kind, expected, folded = PADS[name]
    x = {"x": np.array(row, F).reshape(1, 1, 1, -1)}
    constants = {"w": np.ones((1, 1, 1, 2), F), "pads": np.array(pads, np.int64), "v": F(kind.get("value", 0))}
    nodes = [NODE("Pad", ["x", "pads", "v"], ["p"], mode=kind.get("mode", "constant")), NODE("Conv", ["p", "w"], ["y"])]
    run = Run(model(nodes, x, ["y"], constants), x)
    run.shows("y", np.array(expected).reshape(1, 1, 1, -1))
    assert run.taken("pad_into_conv") == folded


def test_r11d_pad_and_valid_with_a_stride() -> None:
    x = {"x": np.array([1, 2, 3], F).reshape(1, 1, 1, 3)}
    constants = {"w": np.ones((1, 1, 1, 2), F), "pads": np.array([0, 0, 0, 1, 0, 0, 0, 0], np.int64)}
    nodes = [NODE("Pad", ["x", "pads"], ["p"]), NODE("Conv", ["p", "w"], ["y"], auto_pad="VALID", strides=[1, 2])]
    run = Run(model(nodes, x, ["y"], constants), x)
    run.shows("y", np.array([1, 5]).reshape(1, 1, 1, 2))


def test_r11e_pad_with_two_readers() -> None:
    x = {"x": np.array([1, 2], F).reshape(1, 1, 1, 2)}
    constants = {"w": np.ones((1, 1, 1, 2), F), "pads": np.array([0, 0, 0, 1, 0, 0, 0, 1], np.int64)}
    nodes = [NODE("Pad", ["x", "pads"], ["p"]), NODE("Conv", ["p", "w"], ["y"]), NODE("Relu", ["p"], ["z"])]
    run = Run(model(nodes, x, ["y", "z"], constants), x)
    run.shows("y", np.array([1, 3, 2]).reshape(1, 1, 1, 3))
    run.shows("z", np.array([0, 1, 2, 0]).reshape(1, 1, 1, 4))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("high", "expected"), [(None, [0, 0, 0.5, 9]), (1, [0, 0, 0.5, 1])])
def test_r12_relu_then_clip(dtype: Any, high: float | None, expected: list[float]) -> None:
    x = {"x": np.array([-3, -0.5, 0.5, 9], dtype)}
    constants = {"lo": dtype(-1)} | ({"hi": dtype(high)} if high is not None else {})
    nodes = [NODE("Relu", ["x"], ["r"]), NODE("Clip", ["r", *constants], ["y"])]
    run = Run(model(nodes, x, ["y"], constants), x)
    run.shows("y", expected)
    assert len(run.operators) == 1


@pytest.mark.parametrize(("bounds", "expected"), [((2, 6), [2, 2, 2, 2, 2]), ((0, 6), [0, 0, 0.5, 1, 1])])
def test_r12_clip_then_clip(bounds: tuple[float, float], expected: list[float]) -> None:
    x = {"x": np.array([-3, 0, 0.5, 3, 9], F)}
    nodes = [NODE("Clip", ["x", "a", "b"], ["t"]), NODE("Clip", ["t", "c", "d"], ["y"])]
    run = Run(model(nodes, x, ["y"], {"a": -1, "b": 1, "c": bounds[0], "d": bounds[1]}), x)
    run.shows("y", expected)
    assert run.operators == ["clip"]


def test_r14_bounds_out_of_order() -> None:
    x = {"x": np.array([0.25, -6, 2, 9, np.nan], F)}
    run = Run(model([NODE("Clip", ["x", "a", "b"], ["y"])], x, ["y"], {"a": 3, "b": 1}), x)
    run.shows("y", [1, 1, 1, 1, np.nan])


# ---- C. norms and activations ----------------------------------------------------------------------------------------
X_R15 = {"x": np.array([[1, 2, 4], [0, 5, 10]], F)}


def spelled_norm(x: str = "x", axes: tuple[int, ...] = (-1,)) -> list[onnx.NodeProto]:
    mean = {"axes": list(axes)}
    return [NODE("ReduceMean", [x], ["m"], **mean), NODE("Sub", [x, "m"], ["d"]), NODE("Pow", ["d", "two"], ["q"]),
            NODE("ReduceMean", ["q"], ["v"], **mean), NODE("Add", ["v", "eps"], ["e"]), NODE("Sqrt", ["e"], ["s"]),
            NODE("Div", ["d", "s"], ["n"]), NODE("Mul", ["n", "g"], ["w"]), NODE("Add", ["w", "b"], ["y"])]  # fmt: skip


def test_r15a_gamma_by_row() -> None:
    constants = {"two": 2, "eps": 1e-5, "g": [[1], [10]], "b": [[0], [1]]}
    run = Run(model(spelled_norm(), X_R15, ["y"], constants), X_R15)
    run.shows("y", [[-1.069041, -0.26726, 1.336302], [-11.247446, 1, 13.247446]])
    assert run.operators == ["layer_norm"]


def test_r15b_gamma_that_widens() -> None:
    x = {"x": np.array([[7]], F)}
    run = Run(model(spelled_norm(), x, ["y"], {"two": 2, "eps": 1e-5, "g": [2, 3], "b": [0, 1]}), x)
    run.shows("y", [[0, 1]])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_r15c_and_r17_epsilon_is_the_models_own(dtype: Any) -> None:
    x = {"x": X_R15["x"].astype(dtype)}
    nodes = [NODE("Add", ["x", "one"], ["t"]), NODE("LayerNormalization", ["t", "g", "b"], ["y"], epsilon=0.1, axis=-1)]
    constants = {
        "one": np.ones((2, 3), dtype),
        "g": np.array([[[1, 2, 3]]], dtype).reshape(3),
        "b": np.array([0, 0, 1], dtype),
    }
    run = Run(model(nodes, x, ["y"], constants), x, 1e-2 if dtype is np.float16 else 1e-5)
    run.shows("y", [[-1.036255, -0.518128, 4.885958], [-1.221087, 0, 4.663261]], 1e-2 if dtype is np.float16 else 1e-5)


def test_r17_large_epsilon_in_a_spelled_norm() -> None:
    run = Run(model(spelled_norm(), X_R15, ["y"], {"two": 2, "eps": 0.1, "g": [1, 2, 3], "b": [0, 0, 1]}), X_R15)
    x = X_R15["x"].astype(np.float64)
    d = x - x.mean(-1, keepdims=True)
    run.shows("y", d / np.sqrt((d**2).mean(-1, keepdims=True) + 0.1) * [1, 2, 3] + [0, 0, 1])
    assert run.operators == ["layer_norm"]


def test_r15d_norm_over_two_axes() -> None:
    x = {"x": np.arange(6, dtype=F).reshape(1, 2, 3) ** 2}
    constants = {"two": 2, "eps": 1e-5, "g": np.arange(1, 7, dtype=F).reshape(2, 3), "b": np.zeros((2, 3), F)}
    run = Run(model(spelled_norm(axes=(1, 2)), x, ["y"], constants), x)
    assert run.operators == ["layer_norm"]
    assert next(iter(run.graph.nodes.values())).attrs["axis"] == 1


def test_a_norm_over_inner_axes_stays() -> None:
    x = {"x": np.arange(6, dtype=F).reshape(2, 3) ** 2}
    run = Run(model(spelled_norm(axes=(0,)), x, ["y"], {"two": 2, "eps": 1e-5, "g": [1, 2, 3], "b": [0, 0, 1]}), x)
    assert "layer_norm" not in run.operators and run.refused("layer_norm") == ["inner-axes"]


X_R19 = {"x": np.array([-3, -1, 0, 1, 3], F)}
ERF = [-0.0040497, -0.1586553, 0, 0.8413447, 2.9959503]


def gelu(
    first: tuple[str, str], second: tuple[str, str], third: tuple[str, str], last: tuple[str, str], op: str = "Div"
) -> list[onnx.NodeProto]:
    return [NODE(op, list(first), ["s"]), NODE("Erf", ["s"], ["e"]), NODE("Add", list(second), ["p"]),
            NODE("Mul", list(third), ["q"]), NODE("Mul", list(last), ["y"])]  # fmt: skip


SPELLINGS = {
    "x*(1+erf)*.5": gelu(("x", "c"), ("e", "one"), ("x", "p"), ("q", "half")),
    ".5*((1+erf)*x)": gelu(("x", "c"), ("one", "e"), ("p", "x"), ("half", "q")),
    "(.5*x)*(1+erf)": gelu(("x", "c"), ("e", "one"), ("half", "x"), ("q", "p")),
    "(1+erf)*(x*.5)": gelu(("x", "c"), ("one", "e"), ("x", "half"), ("p", "q")),
    "x*(.5*(1+erf))": gelu(("x", "c"), ("one", "e"), ("half", "p"), ("x", "q")),
    "x*sqrt(1/2)": gelu(("x", "r"), ("one", "e"), ("half", "p"), ("x", "q"), "Mul"),
}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_r19_gelu_in_every_spelling(name: str, shape: tuple[int, ...]) -> None:
    numbers = {"c": 2**0.5, "r": 0.5**0.5, "one": 1, "half": 0.5}
    constants = {k: np.full(shape, v, F) for k, v in numbers.items()}
    run = Run(model(SPELLINGS[name], X_R19, ["y"], constants), X_R19)
    expected = np.array(ERF).reshape((5,) if len(shape) < 2 else (1, 5))
    run.shows("y", expected, 1e-6)
    if len(shape) < 2:  # a constant of a higher rank widens x
        assert run.operators == ["gelu"]


def test_r19_constants_in_constant_nodes_and_a_scalar_x() -> None:
    x = {"x": np.array(1, F)}
    numbers = {"c": 2**0.5, "one": 1, "half": 0.5}
    held = [NODE("Constant", [], [n], value=numpy_helper.from_array(np.array(v, F))) for n, v in numbers.items()]
    run = Run(model([*held, *SPELLINGS["x*(1+erf)*.5"]], x, ["y"]), x)
    run.shows("y", 0.8413447, 1e-6)
    assert run.operators == ["gelu"]


def test_r19_the_tanh_form_is_its_own() -> None:
    nodes = [NODE("Pow", ["x", "three"], ["c"]), NODE("Mul", ["c", "k"], ["d"]), NODE("Add", ["x", "d"], ["i"]),
             NODE("Mul", ["i", "s"], ["j"]), NODE("Tanh", ["j"], ["t"]), NODE("Add", ["t", "one"], ["p"]),
             NODE("Mul", ["x", "p"], ["q"]), NODE("Mul", ["q", "half"], ["y"])]  # fmt: skip
    run = Run(
        model(nodes, X_R19, ["y"], {"three": 3, "k": 0.044715, "s": (2 / np.pi) ** 0.5, "one": 1, "half": 0.5}), X_R19
    )
    run.shows("y", [-0.0036374, -0.158808, 0, 0.841192, 2.9963626], 1e-6)
    assert run.operators == ["gelu_tanh"]


def test_r19_the_sigmoid_form_is_neither() -> None:
    nodes = [NODE("Mul", ["x", "k"], ["m"]), NODE("Sigmoid", ["m"], ["s"]), NODE("Mul", ["x", "s"], ["y"])]
    run = Run(model(nodes, X_R19, ["y"], {"k": 1.702}), X_R19)
    run.shows("y", [-0.0180713, -0.1542042, 0, 0.8457958, 2.9819287], 1e-6)
    assert run.operators == ["mul", "sigmoid", "mul"]


@pytest.mark.parametrize(("change", "at", "expected"), [
    ({"c": 1.5}, slice(None), [-0.007017, -0.172889, 0, 0.827111, 2.992983]), ({"half": 0.6}, 3, 1.009614),
])  # fmt: skip
def test_r19_other_numbers_do_not_match(change: dict[str, float], at: Any, expected: Any) -> None:
    run = Run(model(SPELLINGS["x*(1+erf)*.5"], X_R19, ["y"], {"c": 2**0.5, "one": 1, "half": 0.5, **change}), X_R19)
    np.testing.assert_allclose(run.values["y"][at], expected, rtol=2e-6, atol=2e-6)
    assert "gelu" not in run.operators
    assert [d.rule for d in run.ledger.of("near-miss")] == ["gelu"]


def test_r19_another_factor_or_a_turned_quotient_does_not_match() -> None:
    feeds = {**X_R19, "z": np.arange(5, dtype=F)}
    numbers = {"c": 2**0.5, "one": 1, "half": 0.5}
    other = Run(model(gelu(("x", "c"), ("e", "one"), ("z", "p"), ("q", "half")), feeds, ["y"], numbers), feeds)
    assert "gelu" not in other.operators
    x = {"x": np.array([-3, -1, 1, 3], F)}
    turned = Run(model(gelu(("c", "x"), ("e", "one"), ("x", "p"), ("q", "half")), x, ["y"], numbers), x)
    assert "gelu" not in turned.operators


# ---- D. layouts, no-ops, twins ---------------------------------------------------------------------------------------
def test_r22a_a_transpose_that_keeps_the_order() -> None:
    x = {"x": np.array([[1, 2], [3, 4]], F)}
    nodes = [
        NODE("Transpose", ["x"], ["t"], perm=[0, 1]),
        NODE("MatMul", ["t", "i"], ["m"]),
        NODE("Add", ["m", "b"], ["y"]),
    ]
    run = Run(model(nodes, x, ["y"], {"i": np.eye(2, dtype=F), "b": [0, 100]}), x)
    run.shows("y", [[1, 102], [3, 104]])
    assert "transpose" not in run.operators


def test_r22b_gemm_with_a_transposed_addend_and_names_that_do_not_grow() -> None:
    x = {"x": np.array([[1, 2], [3, 4]], F)}
    nodes = [
        NODE("Mul", ["x", "ten"], ["m"]),
        NODE("Transpose", ["m"], ["t"], perm=[1, 0]),
        NODE("Gemm", ["x", "i", "t"], ["y"]),
    ]
    run = Run(model(nodes, x, ["y"], {"i": np.eye(2, dtype=F), "ten": 10}), x)
    run.shows("y", [[11, 32], [23, 44]])
    graph = run.graph
    for _ in range(3):
        graph = rewrite(graph, Options(), Ledger())
    assert list(map(str, graph.nodes.values())) == list(map(str, run.graph.nodes.values()))
    assert max(len(n) for n in (*graph.nodes, *graph.types)) < 40


def test_r22c_a_transpose_with_three_readers() -> None:
    x = {"x": np.array([[1, 2], [3, 4]], F)}
    nodes = [
        NODE("Transpose", ["x"], ["t"], perm=[1, 0]),
        NODE("MatMul", ["t", "i"], ["m"]),
        NODE("Relu", ["t"], ["r"]),
    ]
    run = Run(model(nodes, x, ["m", "r", "t"], {"i": 2 * np.eye(2, dtype=F)}), x)
    run.shows("m", [[2, 6], [4, 8]])
    run.shows("r", [[1, 3], [2, 4]])
    run.shows("t", [[1, 3], [2, 4]])
    assert run.operators.count("transpose") == 1


def test_r22d_there_and_back_around_a_bias() -> None:
    x = {"x": np.arange(4, dtype=F).reshape(1, 2, 1, 2)}
    nodes = [
        NODE("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        NODE("Add", ["t", "b"], ["a"]),
        NODE("Transpose", ["a"], ["y"], perm=[0, 3, 1, 2]),
    ]
    run = Run(model(nodes, x, ["y"], {"b": [10, 20]}), x)
    run.shows("y", np.array([[10, 11], [22, 23]]).reshape(1, 2, 1, 2))
    assert run.operators == ["add"]


def test_r24_no_ops_that_are_not() -> None:
    x = {"x": np.array([1, 2, 3], F)}
    run = Run(model([NODE("Mul", ["x", "c"], ["y"])], x, ["y"], {"c": np.ones((2, 1), F)}), x)
    run.shows("y", [[1, 2, 3], [1, 2, 3]])

    row = {"x": np.arange(5, dtype=F).reshape(1, 5)}
    nodes = [NODE("Expand", ["ten", "s"], ["e"]), NODE("Add", ["e", "x"], ["y"])]
    run = Run(model(nodes, row, ["y"], {"ten": 10, "s": np.array([4, 5], np.int64)}), row)
    run.shows("y", np.tile(np.arange(10, 15), (4, 1)))

    pair = {"x": np.array([1, 2], F)}
    run = Run(model([NODE("Add", ["x", "c"], ["y"])], pair, ["y"], {"c": np.zeros((0, 2), F)}), pair)
    assert run.values["y"].shape == (0, 2)

    zero = {"x": np.array([-0.0, 0.0, 2], F)}
    run = Run(model([NODE("Add", ["x", "c"], ["y"])], zero, ["y"], {"c": 0}), zero)
    assert not np.signbit(run.values["y"]).any()
    run = Run(
        model([NODE("Sub", ["c", "x"], ["y"]), NODE("Div", ["one", "x"], ["z"])], zero, ["y", "z"], {"c": 0, "one": 1}),
        zero,
    )
    assert not np.signbit(run.values["y"][:2]).any()
    run.shows("z", [-np.inf, np.inf, 0.5])


def test_r25a_twins_of_which_one_is_shown() -> None:
    x = {"x": np.array([0, 2, 4], F)}
    nodes = [NODE("Sqrt", ["x"], ["s"]), NODE("Unsqueeze", ["s", "one"], ["u"]), NODE("Unsqueeze", ["s", "one"], ["v"]),
             NODE("Ceil", ["v"], ["c"])]  # fmt: skip
    run = Run(model(nodes, x, ["u", "c"], {"one": np.array([1], np.int64)}), x)
    run.shows("u", [[0], [1.414214], [2]])
    run.shows("c", [[0], [2], [2]])


def test_r25b_twins_that_are_both_shown() -> None:
    x = {"x": np.array([-1, 2], F)}
    run = Run(model([NODE("Relu", ["x"], ["a"]), NODE("Relu", ["x"], ["b"])], x, ["a", "b"]), x)
    run.shows("a", [0, 2])
    run.shows("b", [0, 2])


def test_r27_an_initialiser_that_is_an_input_is_not_folded() -> None:
    feeds = {"x": np.array([2, 3], F)}
    nodes = [NODE("Mul", ["x", "w"], ["m"]), NODE("Add", ["m", "w"], ["y"])]
    proto = model(nodes, feeds, ["y"], {"w": [1, 1]}, default=["w"])
    run = Run(proto, feeds)
    run.shows("y", [3, 4])
    fed = Run(proto, {**feeds, "w": np.array([10, 20], F)})
    fed.shows("y", [30, 80])


# ---- E. algebra over the reals, integers, small tensors --------------------------------------------------------------
@pytest.mark.parametrize(("nodes", "row", "expected"), [
    ([NODE("Exp", ["x"], ["t"]), NODE("Log", ["t"], ["y"])], [89, -200], [np.inf, -np.inf]),
    ([NODE("Mul", ["x", "x"], ["t"]), NODE("Sqrt", ["t"], ["y"])], [2e19, -3], [np.inf, 3]),
    ([NODE("Mul", ["x", "zero"], ["y"])], [np.inf, np.nan, -1], [np.nan, np.nan, -0.0]),
    ([NODE("Sub", ["x", "x"], ["y"])], [np.inf, 1], [np.nan, 0]),
    ([NODE("Div", ["x", "x"], ["y"])], [0, 2], [np.nan, 1]),
    ([NODE("Add", ["x", "big"], ["t"]), NODE("Sub", ["t", "big"], ["y"])], [1, 5], [0, 8]),
])  # fmt: skip
def test_r32_algebra_that_holds_over_the_reals_only(
    nodes: list[onnx.NodeProto], row: list[float], expected: list[float]
) -> None:
    x = {"x": np.array(row, F)}
    run = Run(model(nodes, x, ["y"], {"zero": 0, "big": 1e8}), x)
    np.testing.assert_array_equal(run.values["y"], np.array(expected, F))
    np.testing.assert_array_equal(
        np.signbit(run.values["y"]),
        np.signbit(np.array(expected, F)) | np.isnan(run.values["y"]) & np.signbit(run.values["y"]),
    )


def test_r32_root_in_double_precision() -> None:
    x = {"x": np.array([3.0])}
    run = Run(
        model([NODE("Sqrt", ["x"], ["s"]), NODE("Div", ["one", "s"], ["y"])], x, ["y"], {"one": np.float64(1)}), x
    )
    assert run.values["y"][0] == 0.5773502691896258


def test_r31_nan_comes_through_bounds() -> None:
    x = {"x": np.array([np.nan, 1, -2, 0], F)}
    run = Run(model([NODE("Max", ["x", "zero"], ["m"]), NODE("Relu", ["m"], ["y"])], x, ["y"], {"zero": 0}), x)
    run.shows("y", [np.nan, 1, 0, 0])
    assert run.operators == ["relu"]


def test_r37_empty_tensors() -> None:
    x = {"x": np.zeros((2, 0), F)}
    run = Run(model([NODE("Mul", ["x", "one"], ["m"]), NODE("ReduceSum", ["m", "a"], ["y"], keepdims=0)], x, ["y"],
                    {"one": 1, "a": np.array([1], np.int64)}), x)  # fmt: skip
    run.shows("y", [0, 0])


# ---- R51: as many fusions at every opset -----------------------------------------------------------------------------
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_r51_conv_and_norm_at_every_opset(opset: int) -> None:
    nodes = [NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "n"), NODE("Relu", ["n"], ["y"])]
    run = Run(model(nodes, X_R1, ["y"], {"w": W_R1, **norm_constants([2, 2], [0, 0])}, opset), X_R1)
    assert run.taken("fold_batch_norm") == 1 and set(run.operators) <= {"conv", "relu", "reshape", "transpose"}


def test_r51_transposed_convolution_with_bias_and_norm() -> None:
    x = {"x": np.ones((1, 2, 3, 3), F)}
    nodes = [NODE("ConvTranspose", ["x", "w"], ["t"]), NODE("Add", ["t", "b"], ["u"]), batch_norm("u", "y")]
    w = np.linspace(-1, 1, 24, dtype=F).reshape(2, 3, 2, 2)
    constants = {"w": w, "b": np.arange(3, dtype=F).reshape(1, 3, 1, 1), **norm_constants([2, 1, 3], [0, 1, 2])}
    run = Run(model(nodes, x, ["y"], constants), x)
    assert set(run.operators) <= {"conv", "reshape", "transpose", "slice"}
    assert run.operators.count("conv") == 1 and run.taken("fold_batch_norm_transposed") == 1


def test_r51_norm_given_by_constant_nodes() -> None:
    held = [NODE("Constant", [], [n], value=numpy_helper.from_array(np.asarray(v)))
            for n, v in {"w": W_R1, **norm_constants([2, 2], [0, 0])}.items()]  # fmt: skip
    run = Run(model([*held, NODE("Conv", ["x", "w"], ["t"]), batch_norm("t", "y")], X_R1, ["y"]), X_R1)
    assert run.taken("fold_batch_norm") == 1


def test_r51_batched_matmul_and_add() -> None:
    x = {"x": np.linspace(-1, 1, 320, dtype=F).reshape(1, 32, 10)}
    nodes = [NODE("MatMul", ["x", "w"], ["t"]), NODE("Add", ["t", "b"], ["u"]), NODE("Mul", ["u", "half"], ["y"])]
    constants = {"w": np.linspace(-1, 1, 160, dtype=F).reshape(10, 16), "b": np.arange(16, dtype=F), "half": 0.5}
    run = Run(model(nodes, x, ["y"], constants), x)
    assert run.operators == ["matmul", "add"] and run.taken("scale_into_linear") == 1
