"""Files and models that are broken: one clear error each, with the guilty file or node in it, and a stable code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from opfuse.errors import InputError, ModelError, UnsupportedOperators
from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from tests.frontends.small_models import Arrays, small

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def code_of(model: object, code: str, *words: str) -> str:
    with pytest.raises(ModelError) as caught:
        load(model)  # type: ignore[arg-type]
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def model(body: str, outputs: str = "y", feeds: Arrays | None = None, opset: int = 13, **more: Arrays) -> ModelProto:
    return small(opset, {"x": X} if feeds is None else feeds, body, outputs.split(), **more)  # type: ignore[arg-type]


# ---- files ---------------------------------------------------------------------------------------------------------
def test_missing_empty_foreign_and_truncated_files(tmp_path: Path) -> None:
    code_of(tmp_path / "none.onnx", "no-file", "none.onnx")
    code_of(tmp_path, "unreadable")
    (tmp_path / "empty.onnx").write_bytes(b"")
    code_of(tmp_path / "empty.onnx", "empty-file", "empty.onnx")
    (tmp_path / "text.onnx").write_text("<html>404</html>")
    code_of(tmp_path / "text.onnx", "not-onnx", "text.onnx")
    code_of(b"", "empty-file")
    code_of(ModelProto(), "not-onnx")
    with pytest.raises(TypeError, match="int"):
        load(7)  # type: ignore[arg-type]


def test_no_prefix_of_a_file_crashes() -> None:
    proto = model("y = Conv (x, w)", feeds={"x": np.zeros((1, 2, 5, 5), np.float32)},
                  constants={"w": np.ones((3, 2, 3, 3), np.float32)})  # fmt: skip
    data = proto.SerializeToString()
    graph_end = len(data) - sum(o.ByteSize() + 2 for o in proto.opset_import)  # versions stand behind the graph
    for length in range(len(data)):
        try:
            load(data[:length])
        except (ModelError, UnsupportedOperators):
            continue
        assert length >= graph_end


def test_no_flipped_byte_crashes() -> None:
    """A damaged file is refused, or is another valid model; nothing else escapes."""
    data = bytearray(
        model(
            "t = MatMul (x, w) y = Softmax <axis = 1> (t)", constants={"w": np.ones((3, 4), np.float32)}
        ).SerializeToString()
    )
    for k in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[k] ^= flip
            try:
                load(bytes(damaged))
            except (ModelError, UnsupportedOperators):
                continue


def test_versions() -> None:
    good = model("y = Relu (x)")
    for field in ("opset", "ir"):
        changed = ModelProto()
        changed.CopyFrom(good)
        if field == "opset":
            changed.opset_import[0].version = 99
        else:
            changed.ir_version = 99
        code_of(changed, "too-new")
    good.opset_import.append(helper.make_opsetid("ai.onnx", 12))
    code_of(good, "bad-opset")


def old(opset: int, body: str) -> ModelProto:
    head = f'<ir_version: 3, opset_import: ["" : {opset}]>'
    return parser.parse_model(f"{head} g (float[3,3,2] x, float[3] w) => (float[3,3,2] y) {{ {body} }}")


def test_opsets_before_the_first_are_converted() -> None:
    """Slopes were by channel then, and broadcasts from a given axis; what the converter does not know is told."""
    x = np.arange(-9, 9, dtype=np.float32).reshape(3, 3, 2)
    w = np.array([0.5, 2.0, 4.0], np.float32)
    feeds = {"x": x, "w": w}
    slopes = evaluate(load(old(6, "t = Neg (x) y = PRelu (t, w)")), feeds)["y"]
    np.testing.assert_array_equal(slopes, np.where(x > 0, -x * w[:, None], -x))
    sums = evaluate(load(old(6, "y = Add <broadcast = 1, axis = 0> (x, w)")), feeds)["y"]
    np.testing.assert_array_equal(sums, x + w[:, None, None])
    unversioned = old(1, "y = Relu (x)")
    unversioned.ir_version = 2
    del unversioned.opset_import[:]
    np.testing.assert_array_equal(evaluate(load(unversioned), feeds)["y"], np.maximum(x, 0))
    code_of(old(1, "y = Tile (x, w, w)"), "too-old", "opset 1", "No Adapter")


# ---- graphs --------------------------------------------------------------------------------------------------------
def test_names_that_do_not_fit() -> None:
    code_of(model("y = Relu (z)"), "undefined-value", "'z'", "'y'")
    code_of(model("t = Relu (x)"), "undefined-value", "'y'")
    code_of(model("y = Relu (x) y = Exp (x)"), "duplicate-value", "'y'")
    code_of(model("x = Relu (x)", "x"), "duplicate-value", "'x'")
    code_of(model("y = Relu (x)", ""), "no-outputs")


def test_cycle_is_named() -> None:
    broken = model("a = Add (x, b) b = Relu (a) y = Exp (b)")
    for node, name in zip(broken.graph.node, ("first", "second", "third"), strict=True):
        node.name = name
    text = code_of(broken, "cycle", "first", "second")
    assert "third ->" not in text


def test_nodes_may_stand_in_any_order() -> None:
    shuffled = model("y = Exp (b) b = Neg (a) a = Abs (x)")
    np.testing.assert_allclose(evaluate(load(shuffled), {"x": X})["y"], np.exp(-X), rtol=1e-6)


def test_dead_nodes_do_not_matter() -> None:
    graph = load(model("z = LSTM (x, x, x) y = Relu (x)"))
    assert [n.op for n in graph.nodes.values()] == ["relu"]


def test_ill_typed_nodes() -> None:
    mixed = {"x": X, "i": np.array([1, 2, 3])}
    code_of(model("y = Add (x, i)", feeds=mixed), "ill-typed", "'i'", "'y'")
    code_of(model("y = Sqrt (i)", feeds=mixed), "ill-typed", "tensor(int64)")
    code_of(model("y = Add (x, c)", constants={"c": np.zeros(2, np.float32)}), "ill-typed", "do not broadcast")
    code_of(model("y = MatMul (x, c)", constants={"c": np.zeros((2, 2), np.float32)}), "ill-typed", "inner dimensions")
    code_of(model("y = Reshape (x, s)", constants={"s": np.array([4, -1])}), "ill-typed", "do not divide")
    code_of(model("y = Transpose <perm = [0, 0]> (x)"), "ill-typed")
    declared = model("y = Relu (x)")
    declared.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, [2, 3]))
    code_of(declared, "ill-typed", "'y'", "tensor(int64)")


def test_nodes_against_their_schema() -> None:
    code_of(model("y = Relu (x, x)"), "bad-node", "'y'")
    code_of(model("y = Relu <slope = 1.0> (x)"), "bad-node", "slope")
    code_of(model("y = Concat (x, x)"), "bad-node", "axis")
    code_of(model("y = Softmax <axis = 5> (x)"), "bad-node", "axis 5")
    code_of(model("y = Squeeze (x, a)", constants={"a": np.array([1])}), "bad-node", "size 3")
    code_of(model("y = ReduceSum (x, a)", constants={"a": np.array([1, -1])}), "bad-node", "repeat")
    code_of(model("y = Pad (x, p)", constants={"p": np.array([1, 2])}), "bad-node", "2 pads")
    code_of(model("y, z = Split <axis = 1> (x)", "y z"), "bad-node", "equal parts")


def test_inputs_without_rank_or_of_other_kinds() -> None:
    unranked = model("y = Relu (x)")
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    code_of(unranked, "no-rank", "'x'")
    text = model("y = Identity (x)")
    text.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UnsupportedOperators, match="string"):
        load(text)


def test_initialiser_of_another_length() -> None:
    broken = model("y = Add (x, c)", constants={"c": np.zeros(3, np.float32)})
    broken.graph.initializer[0].raw_data = b"\0" * 8
    code_of(broken, "bad-tensor", "'c'")


# ---- external data -------------------------------------------------------------------------------------------------
def external(tmp_path: Path, name: str = "model.onnx") -> Path:
    proto = model("y = MatMul (x, w)", constants={"w": np.arange(12, dtype=np.float32).reshape(3, 4)})
    onnx.save(proto, tmp_path / name, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return tmp_path / name


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    right = X @ np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(evaluate(load(path), {"x": X})["y"], right)
    code_of(path.read_bytes(), "no-folder", "weights.bin", "by its path")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 10)
    code_of(path, "external-data-truncated", "weights.bin")
    (tmp_path / "weights.bin").unlink()
    code_of(path, "external-data-missing", "weights.bin", "'w'")


def test_external_data_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 48)
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner)
    proto = onnx.load(path, load_external_data=False)
    for location in ("../secret.bin", str(tmp_path / "secret.bin")):
        proto.graph.initializer[0].external_data[0].value = location
        path.write_bytes(proto.SerializeToString())
        code_of(path, "external-data-outside", "secret.bin")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "uint16", "float64", "int64"])
def test_external_data_of_every_type(tmp_path: Path, dtype: str) -> None:
    element = {"bfloat16": TensorProto.BFLOAT16}.get(dtype) or helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    array = np.array([[1, 0, 2]]).astype(helper.tensor_dtype_to_np_dtype(element))
    graph = parser.parse_graph("g () => () { y = Identity (w) }")
    graph.initializer.append(numpy_helper.from_array(array, "w"))
    graph.output.append(helper.make_tensor_value_info("y", element, [1, 3]))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)]), tmp_path / "m.onnx",
              save_as_external_data=True, location="w.bin", size_threshold=0)  # fmt: skip
    (found,) = evaluate(load(tmp_path / "m.onnx"), {}).values()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


# ---- what is not supported -----------------------------------------------------------------------------------------
def test_all_unsupported_operators_in_one_error() -> None:
    body = """a = RandomNormalLike (m) b = Add (a, a) y = Multinomial (x)
              z = MaxPool <kernel_shape = [2], auto_pad = "VALID"> (i) w = Pad <mode = "wrap"> (x, p)"""
    broken = small(
        19,
        {"x": X, "m": X, "i": np.zeros((1, 1, 4), np.float32)},
        body,
        ["b", "y", "z", "w"],
        constants={"p": np.full(4, 9)},
    )
    for node, name in zip(broken.graph.node, ("like", "add", "draw", "pool", "pad"), strict=True):
        node.name = name
    with pytest.raises(UnsupportedOperators) as caught:
        load(broken)
    found = [(e.node, e.op) for e in caught.value.entries]
    assert found == [("like", "RandomNormalLike-1"), ("draw", "Multinomial-7"), ("pad", "Pad-19")]
    assert "go round 2 elements more than once" in str(caught.value)


def test_operators_inside_subgraphs_are_listed() -> None:
    branch = (
        "then_branch = a () => (float[2, 3] p) { p = Bernoulli (x) }, "
        "else_branch = b () => (float[2, 3] q) { q = Relu (x) }"
    )
    with pytest.raises(UnsupportedOperators) as caught:
        load(small(13, {"x": X, "c": np.array(True)}, f"y = If (c) <{branch}>"))
    assert [e.node for e in caught.value.entries] == ["y", "y/p"]


def test_numbers_that_depend_on_data() -> None:
    feeds = {"x": X, "s": np.array([3, 2])}
    with pytest.raises(UnsupportedOperators, match="'s' holds numbers that depend on data"):
        load(small(13, feeds, "y = Reshape (x, s)"))


def test_functions_are_inlined() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "my": 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = my.twice_relu (x) }
        <domain: "my", opset_import: ["": 17]>
        twice_relu (a) => (b) { t = Relu (a) b = Add (t, t) }""")
    np.testing.assert_array_equal(evaluate(load(proto), {"x": -X})["y"], np.maximum(-X, 0) * 2)


# ---- shapes given --------------------------------------------------------------------------------------------------
def test_given_shapes() -> None:
    symbolic = small(13, {"x": X}, "y = Relu (x)", symbolic=True)
    assert load(symbolic, {"x": (4, 5)}).types["y"].static_shape == (4, 5)
    assert load(symbolic).symbols == ("x_0", "x_1")
    for shapes, code in (({"z": (1,)}, "no-input"), ({"x": (1,)}, "bad-shape")):
        with pytest.raises(InputError) as caught:
            load(symbolic, shapes)
        assert caught.value.code == code
    with pytest.raises(InputError, match="does not fit"):
        load(small(13, {"x": X}, "y = Relu (x)"), {"x": (2, 4)})


def test_the_model_passed_in_is_not_changed() -> None:
    proto = model("y = Add (x, c)", constants={"c": np.zeros(3, np.float32)})
    before = proto.SerializeToString()
    load(proto)
    assert proto.SerializeToString() == before
