"""Operators that ONNX defines by others, branches of a known condition, and inputs that shapes depend on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, defs, helper

from opfuse.errors import UnsupportedOperators
from opfuse.frontends.onnx import definitions, imports, load, supported
from opfuse.ir.evaluate import evaluate

F, I64 = TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)


def model(
    nodes: Sequence[NodeProto], inputs: dict[str, tuple[int, Sequence[int]]], outputs: dict[str, int],
    opset: int = 18, domain: str = "",
) -> ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture
def without_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink has a row of its own; these tests want the definition that ONNX gives it."""
    find = imports.find
    monkeypatch.setattr(imports, "find", lambda d, op, version: None if op == "Shrink" else find(d, op, version))


def shrink(x: np.ndarray, bias: float, lambd: float) -> np.ndarray:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype)


def test_a_function_takes_attributes_and_defaults(without_shrink: None) -> None:
    nodes = [
        helper.make_node("Shrink", ["x"], ["a"], name="one", bias=0.25, lambd=0.75),
        helper.make_node("Shrink", ["a"], ["y"], name="two"),  # bias 0, lambd 0.5
    ]
    graph = load(model(nodes, {"x": (F, (4, 6))}, {"y": F}))
    assert {n.origin for n in graph.nodes.values()} == {("one",), ("two",)}, "reports name the user's nodes"
    right = shrink(shrink(X, 0.25, 0.75), 0.0, 0.5)
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], right)


def test_two_functions_of_one_name_are_apart(without_shrink: None) -> None:
    nodes = [
        helper.make_node("Shrink", ["x"], ["a"], name="same", bias=0.25, lambd=0.75),
        helper.make_node("Shrink", ["x"], ["b"], name="same", bias=0.5, lambd=0.1),
        helper.make_node("Sub", ["a", "b"], ["y"], name="gap"),
    ]
    made = evaluate(load(model(nodes, {"x": (F, (4, 6))}, {"y": F})), {"x": X})["y"]
    np.testing.assert_array_equal(made, shrink(X, 0.25, 0.75) - shrink(X, 0.5, 0.1))


@pytest.mark.parametrize("reads_both", [True, False])
def test_a_body_that_depends_on_attributes_types_and_outputs(reads_both: bool) -> None:
    """SoftmaxCrossEntropyLoss: -log softmax(x) at the labels, averaged with weights; a label is ignored."""
    labels, weights = np.array([1, 5, 0, 3]), np.array([1, 2, 0.5, 1, 1, 4], np.float32)
    node = helper.make_node(
        "SoftmaxCrossEntropyLoss", ["x", "t", "w"], ["y", "p"] if reads_both else ["y"], ignore_index=0, name="loss"
    )
    outputs = {"y": F, **({"p": F} if reads_both else {})}
    inputs = {"x": (F, (4, 6)), "t": (I64, (4,)), "w": (F, (6,))}
    made = evaluate(load(model([node], inputs, outputs)), {"x": X, "t": labels, "w": weights})
    wide = X.astype(np.float64)
    log = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    kept = [0, 1, 3]
    right = -(log[kept, labels[kept]] * weights[labels[kept]]).sum() / weights[labels[kept]].sum()
    np.testing.assert_allclose(made["y"], right, rtol=16 * 2.0**-24)
    if reads_both:
        np.testing.assert_allclose(made["p"], log, rtol=16 * 2.0**-24)


def test_what_a_body_lacks_is_told_with_the_name_of_the_node() -> None:
    node = helper.make_node("Bernoulli", ["x"], ["y"], name="coin")
    with pytest.raises(UnsupportedOperators) as caught:
        load(model([node], {"x": (F, (4, 6))}, {"y": F}))
    assert [(e.node, e.op) for e in caught.value.entries] == [("coin", "RandomUniformLike-1")]


def test_definitions_that_can_be_followed_are_listed() -> None:
    """Bernoulli draws numbers; Elu has a row; a loss is defined by another that is defined itself."""
    found = {o.op: o for o in definitions()}
    assert {"HannWindow", "SoftmaxCrossEntropyLoss", "Attention", "SwiGLU"} <= set(found)
    assert not {"Bernoulli", "LinearAttention", "SequenceMap", "Elu"} & set(found)
    assert found["HannWindow"].opsets == ((17, defs.onnx_opset_version()),)
    assert {"iota", "cos"} <= set(found["HannWindow"].emits)
    assert not set(found) & {o.op for o in supported()}


# ---- branches --------------------------------------------------------------------------------------------------------
def conditional(condition: str) -> list[NodeProto]:
    """y = x + 1 where the condition holds, else x itself; both branches read the outer x and use the name `t`."""
    one = helper.make_tensor("one", F, (), [1.0])
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["t"])], "then", [], [helper.make_tensor_value_info("t", F, None)], [one]
    )
    other = helper.make_graph([], "else", [], [helper.make_tensor_value_info("x", F, None)])
    return [helper.make_node("If", [condition], ["y"], name="branch", then_branch=then, else_branch=other)]


@pytest.mark.parametrize(("extent", "added"), [(4, 1.0), (5, 0.0)])
def test_a_branch_whose_condition_follows_from_shapes(extent: int, added: float) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Constant", [], ["four"], value_ints=[4]),
        helper.make_node("Equal", ["s", "four"], ["c"]),
        *conditional("c"),
    ]
    x = np.ones((extent, 6), np.float32)
    graph = load(model(nodes, {"x": (F, (extent, 6))}, {"y": F}))
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], x + np.float32(added))


def test_an_unknown_condition_is_declined() -> None:
    with pytest.raises(UnsupportedOperators, match="its condition is not known"):
        load(model(conditional("c"), {"x": (F, (4, 6)), "c": (TensorProto.BOOL, ())}, {"y": F}))


# ---- inputs that shapes depend on ------------------------------------------------------------------------------------
def test_the_error_names_the_inputs_whose_numbers_are_needed() -> None:
    nodes = [
        helper.make_node("Abs", ["start"], ["positive"]),
        helper.make_node("Concat", ["positive", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="move"),
    ]
    inputs = {"x": (F, (4, 6)), "start": (I64, (1,)), "rest": (I64, (1,))}
    with pytest.raises(UnsupportedOperators) as caught:
        load(model(nodes, inputs, {"y": F}))
    assert [(e.node, e.needs) for e in caught.value.entries] == [("move", ("start", "rest"))]
