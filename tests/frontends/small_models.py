"""Small ONNX models from text, their answers from ONNX Runtime, and the places of real models.

m = small(13, {"x": x}, "y = Softmax <axis = 1> (x)")
opfuse_answers(m, {"x": x}), runtime_answers(m, {"x": x})     -> {"y": array}, {"y": array}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, parser

from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate

Arrays = Mapping[str, np.ndarray]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
TRAINING = "ai.onnx.preview.training"
MODEL_FOLDERS = (SHARED / "files", Path.home() / ".cache" / "opfuse-models")


def small(
    opset: int, inputs: Arrays, body: str, outputs: Sequence[str] = ("y",), *, symbolic: bool = False,
    constants: Arrays | None = None, ir_version: int = 8,
) -> ModelProto:  # fmt: skip
    """A model whose nodes are `body`. With `symbolic` each dimension but 1 is a symbol of its own."""
    graph = parser.parse_graph(f"g () => () {{ {body} }}")
    for name, array in inputs.items():
        shape = [f"{name}_{k}" if symbolic and d != 1 else d for k, d in enumerate(array.shape)]
        graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    for name, array in (constants or {}).items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs)
    for output in graph.output:
        output.ClearField("type")
    others = ("com.microsoft", "ai.onnx.ml", TRAINING)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in others)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def opfuse_answers(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    return evaluate(load(model), feeds)


def runtime_answers(model: ModelProto | Path, feeds: Arrays, optimise: bool = False) -> dict[str, np.ndarray]:
    """ONNX Runtime's answers, without its optimisations; the test is skipped where it cannot be imported."""
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def assert_close(actual: np.ndarray, expected: np.ndarray, terms: int = 1) -> None:
    """Equal type, shape and non-finite values; floats within 8 * sqrt(terms) roundings of the largest value."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if not np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_array_equal(actual, expected)
        return
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    largest = max(float(finite.max()) if finite.size else 0.0, 1e-3)
    tolerance = 8 * math.sqrt(terms) * float(np.finfo(expected.dtype).eps) * largest
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance)


def real_model(name: str) -> Path:
    """The file of a real model; the test is skipped where it lies nowhere."""
    for folder in MODEL_FOLDERS:
        if (path := folder / f"{name}.onnx").is_file():
            return path
    pytest.skip(f"{name}.onnx is in none of {', '.join(map(str, MODEL_FOLDERS))}")


def real_feeds(name: str) -> list[dict[str, np.ndarray]]:
    """Realistic feeds: one, or two of different shapes."""
    paths = [SHARED / "inputs" / f"{name}{suffix}.npz" for suffix in ("", "__b")]
    found = [dict(np.load(path)) for path in paths if path.is_file()]
    if not found:
        pytest.skip(f"there are no feeds for {name} in {SHARED / 'inputs'}")
    return found
