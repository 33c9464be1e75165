"""The convolutional models of the second milestone: native, right on both feeds, verified, and as fused as promised."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import opfuse
from opfuse.plan.plan import Native
from opfuse.report.explain import explain
from opfuse.runtime.executable import Executable
from tests.frontends.small_models import real_feeds, real_model, runtime_answers

# Kernels at most, of a hundred and sixty to eight hundred nodes.
KERNELS = {
    "cnn_mnist_pytorch": 5, "ultraface_rfb320": 58, "yunet_n_dynamic": 50, "ppocr_cls": 50, "ppocrv4_det": 66,
    "ppocrv4_rec": 58,
}  # fmt: skip
# Bytes moved at least so many times fewer than unfused.
SAVINGS = {
    "cnn_mnist_pytorch": 1.05, "ultraface_rfb320": 3.0, "yunet_n_dynamic": 2.4, "ppocr_cls": 5.0, "ppocrv4_det": 4.5,
    "ppocrv4_rec": 7.0,
}  # fmt: skip

EPSILON = 2.0**-24
MOVES = {"ppocrv4_rec": 8}  # it magnifies roundings: in NumPy's float32, node by node, it is off by as much as ours


@cache
def compiled(name: str, threads: int) -> Executable:
    return opfuse.compile(real_model(name), threads=threads, calibrate=False)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, as a share of the largest value."""
    if not a.size:
        return 0.0
    return float(np.abs(a.astype(np.float64) - b).max()) / max(float(np.abs(b).max()), 1e-30)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_native_and_right_on_both_feeds(name: str, threads: int) -> None:
    """As near as 64 roundings of the largest value, or MOVES times what the peer's own optimisations move."""
    path, exe = real_model(name), compiled(name, threads)
    for feeds in real_feeds(name):
        actual = exe(feeds)
        right, plain = runtime_answers(path, feeds, optimise=True), runtime_answers(path, feeds)
        assert list(actual) == list(right)
        for output, want in right.items():
            got = actual[output]
            assert got.shape == want.shape and got.dtype == want.dtype
            allowed = 64 * EPSILON + MOVES.get(name, 4) * distance(want, plain[output])
            assert distance(got, want) <= allowed, f"{output}: {distance(got, want):.1e} of {allowed:.1e}"
    for model in exe.variants.values():
        assert all(isinstance(s, Native) for s in model.plan.segments)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_few_kernels_and_few_bytes(name: str, threads: int) -> None:
    exe = compiled(name, threads)
    exe(real_feeds(name)[0])
    summary = explain(next(iter(exe.variants.values()))).to_json()  # of the first feed, whatever ran since
    assert len(summary["kernels"]) <= KERNELS[name], len(summary["kernels"])
    saved = summary["bytes_moved"]["unfused"] / summary["bytes_moved"]["fused"]
    assert saved >= SAVINGS[name], saved


def test_no_transpose_is_left_inside_of_channels_last_models() -> None:
    """Weights and activations are channels-last; what remains stands at the model's own inputs and outputs."""
    for name in ("yunet_n_dynamic", "ppocrv4_det"):
        exe = compiled(name, 1)
        exe(real_feeds(name)[0])
        kernels = exe.explain().to_json()["kernels"]
        alone = [k["name"] for k in kernels[1:-12] if k["name"].split("_")[0] == "transpose"]
        assert not alone, alone


@pytest.mark.parametrize("name", KERNELS)
def test_verify_passes(name: str) -> None:
    exe = compiled(name, 2)
    exe(real_feeds(name)[0])
    report = exe.verify(inputs=1)
    assert report.passed, report.text()
