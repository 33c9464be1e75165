"""onnx.backend.test through `opfuse.onnx_backend`, and that module's own interface.

`not_supported.txt` names the cases that give no right answer, each with its code. It is checked both ways: a case that
is not listed must pass; one that is listed must fail, and with that code. OPFUSE_UPDATE_CONFORMANCE=1 writes the list
anew, of the cases that run (`-k asinh`), and keeps the reasons of those that give another answer on purpose (code
"differs").
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from opfuse import onnx_backend
from opfuse.errors import InputError, OptionError, UnsupportedOperators
from tests.conformance.onnx_cases import LISTED, Outcome, cases, listed, outcome

HEADER = """\
# Cases of onnx.backend.test that give no right answer here: name, code, reason; two spaces between. Sorted by name.
# Code "differs": another answer on purpose; its reason, written by hand, says why. The others are the codes of errors.
# Written by: OPFUSE_UPDATE_CONFORMANCE=1 python -m pytest tests/conformance
"""
EXPECTED = listed()


@pytest.fixture(scope="module")
def found() -> dict[str, Outcome]:
    return {}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(cases()))
def test_case(name: str, cache: Path, found: dict[str, Outcome]) -> None:
    made, known = outcome(cases()[name], cache), EXPECTED.get(name, Outcome(""))
    found[name] = known if made.code == known.code == "differs" else made
    if os.environ.get("OPFUSE_UPDATE_CONFORMANCE"):
        return
    text = f"{made} (listed: {known})" if made.code else f"it passes: take it off {LISTED.name}"
    assert made.code == known.code, text


def test_the_list_is_in_order_and_names_cases(found: dict[str, Outcome]) -> None:
    if os.environ.get("OPFUSE_UPDATE_CONFORMANCE"):
        kept = {n: o for n, o in {**listed(), **found}.items() if n in cases() and o.code}
        LISTED.write_text(HEADER + "".join(f"{n}  {o}\n" for n, o in sorted(kept.items())))
    names = list(listed())
    assert names == sorted(names) and set(names) <= set(cases())


def test_enough_pass() -> None:
    assert len(cases()) - len(listed()) >= 1900


# ---- the interface ---------------------------------------------------------------------------------------------------
OPTIONS = {"threads": 1, "calibrate": False}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def reshape_model() -> ModelProto:
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)),
    ]
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Reshape", ["n", "shape"], ["y"])]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA") and not onnx_backend.supports_device("toaster")
    with pytest.raises(OptionError, match="CUDA"):
        onnx_backend.prepare(reshape_model(), "CUDA")


def test_run_node_takes_lists_mappings_and_one_array(tmp_path: Path) -> None:
    relu, gap = helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sub", ["a", "b"], ["y"])
    (y,) = onnx_backend.run_node(relu, X - 2, cache=tmp_path, **OPTIONS)
    np.testing.assert_array_equal(y, np.maximum(X - 2, 0))
    (y,) = onnx_backend.run_node(gap, [X, X[0]], cache=tmp_path, **OPTIONS)
    np.testing.assert_array_equal(y, X - X[0])
    result = onnx_backend.run_node(gap, {"b": X, "a": X[0]}, cache=tmp_path, **OPTIONS)
    np.testing.assert_array_equal(result["y"], X[0] - X)


def test_run_node_reads_the_opset(tmp_path: Path) -> None:
    """Softmax up to opset 12 runs over all axes from 1 on."""
    node, x = helper.make_node("Softmax", ["x"], ["y"]), np.zeros((2, 3, 4), np.float32)
    (old,) = onnx_backend.run_node(node, [x], opset_version=12, cache=tmp_path, **OPTIONS)
    (new,) = onnx_backend.run_node(node, [x], cache=tmp_path, **OPTIONS)
    assert old[0, 0, 0] == np.float32(1 / 12) and new[0, 0, 0] == np.float32(1 / 4)


def test_inputs_that_shapes_depend_on_are_compiled_in_once_a_value(tmp_path: Path) -> None:
    assert onnx_backend.is_compatible(reshape_model())
    prepared = onnx_backend.prepare(reshape_model(), cache=tmp_path, **OPTIONS)
    made = []
    for shape in ([3, 2], [-1, 1], [3, 2]):
        (y,) = prepared.run([X, np.array(shape)])
        np.testing.assert_array_equal(y, -X.reshape(shape))
        made.append(prepared.executable)
    assert made[0] is made[2] is not made[1]
    with pytest.raises(InputError, match="'shape': is missing"):
        prepared.run({"x": X})
    with pytest.raises(InputError, match="1 arrays were given, the model takes 2"):
        prepared.run([X])


def test_what_cannot_be_supported_is_told_by_prepare() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 2))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Bernoulli", ["x"], ["y"], name="coin")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not onnx_backend.is_compatible(model)
    with pytest.raises(UnsupportedOperators, match="coin"):
        onnx_backend.prepare(model, **OPTIONS)
