"""Real models with LSTMs and GRUs, compiled and run natively: right on both feeds, and the float64 check passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import opfuse
from opfuse.plan.plan import Native
from tests.frontends.small_models import real_feeds, real_model, runtime_answers

# model -> roundings of the largest value that are allowed: a state of 300 steps gathers more than one of one step.
MODELS = {"silero_vad_16k_sequence": 256, "dtln_1": 64, "aecmos_b": 64, "eeg_seizure_A": 256}
QUICK = ("silero_vad_16k_sequence", "dtln_1")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_native_and_right_on_both_feeds(name: str, threads: int, tmp_path: Path) -> None:
    path = real_model(name)
    exe = opfuse.compile(path, threads=threads, calibrate=False, cache=tmp_path)
    for feeds in real_feeds(name):
        expected, actual = runtime_answers(path, feeds), exe(feeds)
        assert list(actual) == list(expected)
        for output, right in expected.items():
            got = actual[output]
            assert got.shape == right.shape and got.dtype == right.dtype
            error = float(np.abs(got.astype(np.float64) - right).max()) / max(float(np.abs(right).max()), 1e-30)
            assert error <= MODELS[name] * 2.0**-24, f"{output}: {error:.2e}"
    for model in exe.variants.values():
        assert all(isinstance(s, Native) for s in model.plan.segments)
        assert not [d for d in model.ledger if d.kind == "host"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_at_most_half_the_kernels_of_the_model_unfused(name: str, threads: int, tmp_path: Path) -> None:
    """Unfused: the kernels of its operators one by one, which is fewer than the nodes of the file, views left out."""
    path, feeds = real_model(name), real_feeds(name)[0]
    fused, unfused = (
        opfuse.compile(path, threads=threads, calibrate=False, cache=tmp_path, disable_fusions=off)
        for off in ((), "all")
    )
    answers, plain = fused(feeds), unfused(feeds)
    for output, right in plain.items():
        scale = max(float(np.abs(right).max()), 1e-30)
        assert float(np.abs(answers[output] - right).max()) <= MODELS[name] * 2.0**-24 * scale
    kernels, alone = len(fused.explain().kernels), len(unfused.explain().kernels)
    assert 2 * kernels <= alone, (kernels, alone)
    assert 2 * kernels <= len(onnx.load(path).graph.node)


def test_both_directions_read_their_input_once(tmp_path: Path) -> None:
    """One wide product makes the input's part of all gates; the steps of each direction, time inside, are one kernel.

    The two may stand side by side in one launch.
    """
    exe = opfuse.compile(real_model("eeg_seizure_A"), threads=1, calibrate=False, cache=tmp_path)
    exe(real_feeds("eeg_seizure_A")[0])
    kernels = exe.explain().kernels
    for node in ("/lstm/LSTM", "/lstm/LSTM_1"):
        names = [k.name for k in kernels if node in k.nodes]
        assert sum("lstm_steps" in n for n in names) in (1, 2)
        assert sum("lstm_steps" not in n and "matmul_add" in n and "softmax" not in n for n in names) == 1, names


@pytest.mark.parametrize("name", QUICK)
def test_verify_passes(name: str, tmp_path: Path) -> None:
    exe = opfuse.compile(real_model(name), threads=2, calibrate=False, cache=tmp_path)
    exe(real_feeds(name)[0])
    report = exe.verify(inputs=1)
    assert report.passed, report.text()


def test_a_saved_model_carries_its_state_on(tmp_path: Path) -> None:
    """The states of one call go into the next, from an artefact too."""
    exe = opfuse.compile(real_model("dtln_1"), threads=1, calibrate=False, cache=tmp_path)
    (feeds, *_) = real_feeds("dtln_1")
    exe.save(tmp_path / "dtln.opf")
    warm, state = opfuse.load(tmp_path / "dtln.opf"), feeds["input_3"]
    for _ in range(3):
        cold_answer, warm_answer = (e({**feeds, "input_3": state}) for e in (exe, warm))
        for name, array in cold_answer.items():
            np.testing.assert_array_equal(array, warm_answer[name])
        state = cold_answer["tf_op_layer_stack_2"]
    assert not np.array_equal(state, feeds["input_3"])
