"""Real models: they load with symbols, the inferred types are the runtime's, and the oracle agrees with the runtime."""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from tests.frontends.small_models import real_feeds, real_model, runtime_answers

# Largest difference, as a share of the largest value of an output: what ONNX Runtime's own optimisations move (the
# catalogue's `noise`), times four, and at least 64 roundings of float32 for the depth of the networks.
FLOOR = 64 * 2.0**-24
NOISE = {
    "ppocrv4_det": 1.4e-5,
    "ppocrv4_rec": 4e-6,
    "mnist_cntk": 1.9e-7,
    "yunet_n_dynamic": 5e-6,
    "ultraface_rfb320": 1e-6,
}
MAIN_MODELS = ("mnist_cntk", "opennsfw_resnet50", "magika_v3_3", "minilm_l3_fp32", "dnsmos_p808")  # on both feeds
MODELS = (
    *MAIN_MODELS, "cnn_mnist_pytorch", "ppocr_cls",
    "ppocrv4_det", "ppocrv4_rec", "ultraface_rfb320", "yunet_n_dynamic", "dtln_2", "gpt2_past_tiny",
    "voice_commands_tiny",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_real_model(name: str) -> None:
    path = real_model(name)
    graph = load(path)
    for feeds in real_feeds(name) if name in MAIN_MODELS else real_feeds(name)[:1]:
        expected = runtime_answers(path, feeds)
        actual = evaluate(graph, feeds)
        dims = {str(d): n for i, a in feeds.items() for d, n in zip(graph.types[i].shape, a.shape, strict=True)}
        bound = graph.bind(dims)
        assert list(actual) == list(expected)
        for output, right in expected.items():
            assert bound.types[bound.outputs[output]].static_shape == right.shape
            assert actual[output].dtype == right.dtype
            largest = max(float(np.abs(right).max()), 1e-30)
            error = float(np.abs(actual[output].astype(np.float64) - right).max()) / largest
            assert error <= max(4 * NOISE.get(name, 0), FLOOR), f"{output}: {error:.2e}"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("minilm_l3_fp32", {"concat": 1, "gather": 3, "slice": 2, "cast": 2}),
        ("magika_v3_3", {"equal": 1, "cast": 1, "slice": 2}),
        ("ultraface_rfb320", {"concat": 5, "slice": 6}),
    ],
)
def test_no_shape_arithmetic_is_left(name: str, counts: dict[str, int]) -> None:
    """Of the operators that models compute shapes with, only those are left that move data."""
    graph = load(real_model(name))
    arithmetic = ("dims", "fill", "iota", "equal", "where", "concat", "gather", "slice", "cast", "reduce_prod")
    found = {op: n for op in arithmetic if (n := sum(node.op == op for node in graph.nodes.values()))}
    assert found == counts
