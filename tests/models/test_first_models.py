"""The five models of the first milestone, compiled and run natively: right, explained, and as fused as promised."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.plan.plan import Native
from opfuse.runtime.executable import Executable
from tests.frontends.small_models import real_feeds, real_model, runtime_answers

MODELS = ("mnist_cntk", "opennsfw_resnet50", "magika_v3_3", "minilm_l3_fp32", "dnsmos_p808")

# Share of an output's largest value: a chain of float32 sums errs with the square root of its length times the depth of
# the network; 64 roundings cover the deepest of these, four times what ONNX Runtime's own optimisations move.
TOLERANCE = 64 * 2.0**-24


@cache
def compiled(name: str, threads: int) -> Executable:
    return opfuse.compile(real_model(name), threads=threads, calibrate=False)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_native_and_right_on_both_feeds(name: str, threads: int) -> None:
    path, exe = real_model(name), compiled(name, threads)
    for feeds in real_feeds(name):
        expected, actual = runtime_answers(path, feeds), exe(feeds)
        assert list(actual) == list(expected)
        for output, right in expected.items():
            got = actual[output]
            assert got.shape == right.shape and got.dtype == right.dtype
            error = float(np.abs(got.astype(np.float64) - right).max()) / max(float(np.abs(right).max()), 1e-30)
            assert error <= TOLERANCE, f"{output}: {error:.2e}"
    for model in exe.variants.values():
        assert all(isinstance(s, Native) for s in model.plan.segments)


@pytest.mark.parametrize("name", MODELS)
def test_answers_do_not_depend_on_the_number_of_threads(name: str) -> None:
    """Groupings may differ with the threads; kernels never split a sum by them, so rounding stays rounding."""
    feeds = real_feeds(name)[0]
    one, two = compiled(name, 1)(feeds), compiled(name, 2)(feeds)
    again = compiled(name, 2)(feeds)
    for output in one:
        np.testing.assert_array_equal(two[output], again[output])
        scale = max(float(np.abs(one[output]).max()), 1e-30)
        assert float(np.abs(one[output].astype(np.float64) - two[output]).max()) <= TOLERANCE * scale


@pytest.mark.parametrize("name", MODELS)
def test_verify_passes(name: str) -> None:
    exe = compiled(name, 2)
    exe(real_feeds(name)[0])
    report = exe.verify(inputs=1)
    assert report.passed, report.text()


@pytest.mark.parametrize("name", MODELS)
def test_explanation_is_complete_and_the_same_after_loading(name: str, tmp_path: Path) -> None:
    exe = opfuse.compile(real_model(name), threads=1, calibrate=False)
    exe(real_feeds(name)[0])
    explanation = exe.explain()
    kernels = {k.id for k in explanation.kernels}
    assert all(b.reason and b.code and set(b.between) <= kernels for b in explanation.boundaries)
    exe.save(tmp_path / "model.opf")
    warm = opfuse.load(tmp_path / "model.opf")
    assert warm.explain().to_json() == explanation.to_json()
    assert warm.explain().text(100) == explanation.text(100)
    np.testing.assert_array_equal(
        next(iter(warm(real_feeds(name)[0]).values())), next(iter(exe(real_feeds(name)[0]).values()))
    )


def test_resnet_has_few_kernels_and_moves_few_bytes() -> None:
    exe = compiled("opennsfw_resnet50", 1)
    exe(real_feeds("opennsfw_resnet50")[0])
    summary = exe.explain().to_json()
    assert len(summary["kernels"]) <= 58
    assert summary["bytes_moved"]["unfused"] >= 1.7 * summary["bytes_moved"]["fused"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("feed", [0, 1])
def test_transformer_layers_have_at_most_eight_kernels(threads: int, feed: int) -> None:
    """A kernel counts once, where it begins: one that ends the embedding may make the first projection of a layer."""
    exe = opfuse.compile(real_model("minilm_l3_fp32"), threads=threads, calibrate=False)
    exe(real_feeds("minilm_l3_fp32")[feed])
    kernels = exe.explain().to_json()["kernels"]
    layers = [f"/encoder/layer.{layer}/" for layer in range(3)]
    begins = [next((k for k, layer in enumerate(layers) if layer in node), -1)
              for node in (in_model_order(exe, kernel["nodes"])[0] for kernel in kernels)]  # fmt: skip
    for layer, mark in enumerate(layers):
        assert 0 < begins.count(layer) <= 8, kernels
        assert sum(any(mark in n for n in k["nodes"]) for k in kernels) <= 9
    assert len(kernels) <= 3 * 8 + 2


def in_model_order(exe: Executable, nodes: list[str]) -> list[str]:
    """The user's nodes of a kernel as they follow each other in the model."""
    assert exe.graph is not None
    place = {name: k for k, name in enumerate(exe.graph.nodes)}
    return sorted(nodes, key=lambda n: place.get(n, -1))
