"""Models that can be imported only when their dimensions are numbers: each set of shapes is imported when it comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper, parser

import opfuse
from opfuse import onnx_backend
from opfuse.errors import InputError, UnsupportedOperators
from opfuse.runtime.executable import Executable

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BODIES = {
    "linear": """(float[N, 2, H, W] x) => (float[N, 2, P, Q] y) {
        y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, none, scales) }""",
    "cubic": """(float[N, 2, H, W] x) => (float[N, 2, H, W] y) {
        s = Shape (x)
        a = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)
        y = Resize <mode = "cubic"> (a, none, none, s) }""",
    "nearest": """(float[N, 2, H, W] x) => (float[N, 2, P, Q] y) {
        y = Resize <nearest_mode = "ceil", coordinate_transformation_mode = "asymmetric"> (x, none, scales) }""",
    "same": """(float[N, 2, H, W] x) => (float[N, 3, P, Q] y) {
        c = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)
        y = MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [2, 2], strides = [2, 2]> (c) }""",
    "if": """(float[N, 2, H, W] x) => (float[N, 2, H, W] y) {
        s = Shape (x) h = Gather (s, two) c = Greater (h, five)
        y = If (c) <then_branch = large () => (float[N, 2, H, W] a) { a = Relu (x) },
                    else_branch = small () => (float[N, 2, H, W] b) { b = Neg (x) }> }""",
    "root": """(float[N, 2, H, W] x) => (float[N, 2, P, W] y) {
        s = Shape (x) h = Slice (s, two1, three1) f = Cast <to = 1> (h) r = Sqrt (f) i = Cast <to = 7> (r)
        z = Concat <axis = 0> (zero2, zero2, zero2, i, zero1) y = Pad (x, z) }""",
    "pads": """(float[N, 2, H, W] x) => (float[N, 2, P, W] y) {
        s = Shape (x) h = Slice (s, two1, three1) m = Mod (h, five)
        z = Concat <axis = 0> (zero2, zero2, zero2, m, zero1)
        y = Pad (x, z) }""",
}  # fmt: skip
TENSORS = {
    "scales": np.array([1, 1, 1.7, 0.6], np.float32), "none": np.zeros(0, np.float32),
    "w": np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32),
    "two": np.array(2), "five": np.array(5), "two1": np.array([2]), "three1": np.array([3]),
    "zero1": np.zeros(1, np.int64), "zero2": np.zeros(2, np.int64),
}  # fmt: skip
SHAPES = ((1, 2, 9, 6), (2, 2, 5, 8))
X = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(SHAPES)]


def model(name: str) -> ModelProto:
    made = parser.parse_model(HEAD + "open" + BODIES[name])
    read = {i for n in made.graph.node for i in n.input}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in TENSORS.items() if n in read)
    return made


def compiled(name: str, tmp_path: Path, **options: object) -> Executable:
    return opfuse.compile(model(name), threads=1, calibrate=False, cache=tmp_path, **options)  # type: ignore[arg-type]


def expected(name: str, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model(name).SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("name", BODIES)
def test_each_set_of_shapes_is_right(name: str, tmp_path: Path) -> None:
    exe = compiled(name, tmp_path)
    for x in (*X, X[0]):
        np.testing.assert_allclose(exe(x=x)["y"], expected(name, x), rtol=2e-5, atol=2e-5)
        assert not exe.explain().host_steps
    assert len(exe.variants) == 2
    assert exe.verify(inputs=1).passed


def test_shapes_that_are_given_do_not_forbid_others(tmp_path: Path) -> None:
    exe = compiled("linear", tmp_path, shapes={"x": SHAPES[0]})
    assert len(exe.variants) == 1
    np.testing.assert_allclose(exe(x=X[1])["y"], expected("linear", X[1]), rtol=2e-5, atol=2e-5)


def test_a_file_keeps_the_graph_of_its_only_variant(tmp_path: Path) -> None:
    exe = compiled("linear", tmp_path, shapes={"x": SHAPES[0]})
    exe.save(tmp_path / "linear.opf")
    loaded = opfuse.load(tmp_path / "linear.opf")
    np.testing.assert_array_equal(loaded(x=X[0])["y"], exe(x=X[0])["y"])
    assert loaded.verify(inputs=1).passed
    exe(x=X[1])
    exe.save(tmp_path / "both.opf")
    np.testing.assert_array_equal(opfuse.load(tmp_path / "both.opf")(x=X[1])["y"], exe(x=X[1])["y"])


def test_what_no_shape_helps_is_refused_at_once(tmp_path: Path) -> None:
    made = model("linear")
    made.graph.node[0].input[0] = "t"
    made.graph.node.add(op_type="NonZero", input=["x"], output=["z"])
    made.graph.node.add(op_type="Cast", input=["z"], output=["t"]).attribute.add(name="to", type=2, i=1)
    with pytest.raises(UnsupportedOperators, match="NonZero"):
        opfuse.compile(made, cache=tmp_path)


def test_an_open_model_says_that_it_wants_shapes(tmp_path: Path) -> None:
    exe = compiled("linear", tmp_path)
    with pytest.raises(InputError, match="(?i)give shapes"):
        exe.explain()
    with pytest.raises(InputError, match="no such input"):
        exe(y=X[0])


def test_the_backend_takes_open_models() -> None:
    assert onnx_backend.is_compatible(model("same"))
    (y,) = onnx_backend.run_model(model("same"), [X[1]])
    np.testing.assert_allclose(y, expected("same", X[1]), rtol=2e-5, atol=2e-5)
