"""Loop and Scan written out, against ONNX Runtime; and what is said where their steps cannot be counted."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, checker, helper, parser

from opfuse.errors import UnsupportedOperators
from opfuse.frontends.onnx import load
from opfuse.frontends.onnx.loops import LONGEST
from opfuse.ir.evaluate import evaluate
from tests.frontends.small_models import assert_close, runtime_answers

X = np.random.default_rng(5).standard_normal((5, 3)).astype(np.float32)


def model(text: str) -> ModelProto:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    checker.check_model(made)
    return made


def check(made: ModelProto, feeds: dict[str, np.ndarray], terms: int = 5) -> None:
    graph, expected = load(made), runtime_answers(made, feeds)
    actual = evaluate(graph, feeds)
    assert list(actual) == list(expected)
    for name, right in expected.items():
        assert graph.types[graph.outputs[name]].static_shape == right.shape
        assert_close(actual[name], right, terms)


SCAN = """
    g (float[3] s, float[5, 3] x, float[3, 5] z) => (float[3] last, float[P, Q] y) {
        last, y = Scan <num_scan_inputs = 2, WAYS
            body = b (float[3] a, float[3] e, float[3] f) => (float[3] c, float[3] o) {
                t = Mul (e, f)
                c = Add (a, t)
                o = Sub (c, s)
            }> (s, x, z)
    }"""


@pytest.mark.parametrize("ways", [
    "scan_input_axes = [0, 1],",
    "scan_input_axes = [0, -1], scan_input_directions = [1, 0],",
    "scan_input_axes = [0, 1], scan_output_axes = [1],",
    "scan_input_axes = [0, 1], scan_output_directions = [1], scan_input_directions = [1, 1],",
])  # fmt: skip
def test_scan(ways: str) -> None:
    """The body reads a value from outside, too."""
    check(model(SCAN.replace("WAYS", ways)), {"s": X[0], "x": X, "z": X[::-1].T.copy()})


LOOP = """
    g (float[3] x) => (float[3] last, float[P, 3] y) <int64 n = {STEPS}, bool goes = {1}> {
        last, y = Loop <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e, float[3] o) {
            f = Cast <to = 1> (i)
            e = Add (a, f)
            o = Mul (e, x)
            d = CONDITION
        }> (n, goes, x)
    }"""


@pytest.mark.parametrize(("steps", "condition"), [
    (4, "Identity (c)"),
    (1, "Identity (c)"),
    (9, "Less (i, three)"),
])  # fmt: skip
def test_loop(steps: int, condition: str) -> None:
    text = LOOP.replace("STEPS", str(steps)).replace("CONDITION", condition)
    text = text.replace("bool goes = {1}", "bool goes = {1}, int64 three = {3}")
    check(model(text), {"x": X[0]})


def test_steps_inside_of_steps() -> None:
    text = """
    g (float[3] x) => (float[3] last) <int64 n = {3}, bool goes = {1}> {
        last = Loop <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e) {
            d = Identity (c)
            e = Loop <body = h (int64 j, bool k, float[3] p) => (bool l, float[3] q) {
                l = Identity (k)
                w = Cast <to = 1> (i)
                q = Add (p, w)
            }> (i, goes, a)
        }> (n, goes, x)
    }"""
    check(model(text), {"x": X[0]})


def refusal(made: ModelProto) -> UnsupportedOperators:
    with pytest.raises(UnsupportedOperators) as raised:
        load(made)
    return raised.value


def test_a_condition_that_depends_on_data_is_told_with_what_would_help() -> None:
    text = LOOP.replace("STEPS", "4").replace("CONDITION", "Less (t, u)")
    text = text.replace("d = Less", "t = ReduceMax <keepdims = 0> (e)\n u = ReduceSum <keepdims = 0> (x)\n d = Less")
    error = refusal(model(text))
    assert "its condition depends on data" in str(error) and error.entries[0].needs == ("x",)


def test_too_many_steps_and_open_lengths_are_told() -> None:
    many = LOOP.replace("STEPS", str(LONGEST + 1)).replace("CONDITION", "Identity (c)")
    assert f"more than {LONGEST} steps" in str(refusal(model(many)))
    most = LOOP.replace("STEPS", str(LONGEST)).replace("CONDITION", "Identity (c)")
    check(model(most), {"x": X[0]}, terms=LONGEST)
    open_ = model(SCAN.replace("WAYS", "scan_input_axes = [0, 1],").replace("float[5, 3] x", "float[T, 3] x")
                  .replace("float[3, 5] z", "float[3, T] z"))  # fmt: skip
    assert refusal(open_).by_shapes
    load(open_, {"x": (5, 3), "z": (3, 5)})


def test_no_steps() -> None:
    """The states pass; results of no known shape are declined."""
    text = LOOP.replace("STEPS", "0").replace("CONDITION", "Identity (c)")
    assert "it has no steps" in str(refusal(model(text)))
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["a"], ["e"])], "b",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in
         (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("a", TensorProto.FLOAT, [3]))],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in
         (("d", TensorProto.BOOL, []), ("e", TensorProto.FLOAT, [3]))],
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy")
    n = helper.make_tensor("n", TensorProto.INT64, [], [0])
    graph = helper.make_graph([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], "g", [x], [y], [n])
    check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": X[0]})
