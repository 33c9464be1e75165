"""LSTM, GRU and RNN as compiled models: as ONNX Runtime answers, natively, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.ops.gates import SIGMOID, TANH
from opfuse.ir.types import DType, TensorType
from opfuse.target import ISAS, host
from tests.frontends.recurrent_cases import Recurrence, batch_first_cases, recurrence, recurrent_cases
from tests.frontends.small_models import assert_close, runtime_answers, small

CASES = recurrent_cases()
NARROWER = [
    pytest.param(r, isa, id=f"{isa}-{k}-{r.op}")
    for isa in ISAS[ISAS.index(host().isa) + 1 :]
    for k, r in enumerate(CASES)
    if k % 5 == ISAS.index(isa)
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def model_of(r: Recurrence) -> object:
    return small(r.opsets[-1], r.feeds, r.body, tuple(r.outputs.split()), constants=r.constants)


def answers(r: Recurrence, cache: Path, threads: int = 1, isa: str | None = None) -> dict[str, np.ndarray]:
    exe = opfuse.compile(model_of(r), threads=threads, isa=isa, calibrate=False, cache=cache)
    assert [d.reason for d in exe.model.ledger if d.kind == "host"] == []
    return exe(dict(r.feeds))


@pytest.mark.parametrize("r", CASES, ids=[f"{k}-{r.op}" for k, r in enumerate(CASES)])
def test_as_onnx_runtime(r: Recurrence, cache: Path) -> None:
    expected = runtime_answers(model_of(r), r.feeds)  # type: ignore[arg-type]
    for threads in (1, 2):
        actual = answers(r, cache, threads)
        for name in r.outputs.split():
            assert_close(actual[name], expected[name], r.terms)


@pytest.mark.parametrize(("r", "isa"), NARROWER)
def test_as_onnx_runtime_on_a_narrower_cpu(r: Recurrence, isa: str, cache: Path) -> None:
    expected = runtime_answers(model_of(r), r.feeds)  # type: ignore[arg-type]
    actual = answers(r, cache, isa=isa)
    for name in r.outputs.split():
        assert_close(actual[name], expected[name], r.terms)


@pytest.mark.parametrize("r", batch_first_cases(), ids=lambda r: r.op)
def test_batch_first_is_the_other_layout_transposed(r: Recurrence, cache: Path) -> None:
    turned = {k: v if v.ndim == 1 else np.ascontiguousarray(v.swapaxes(0, 1)) for k, v in r.feeds.items()}
    plain = Recurrence(r.op, r.opsets, turned, r.constants, r.body.replace(", layout = 1", ""), r.terms)
    expected, actual = runtime_answers(model_of(plain), turned), answers(r, cache)  # type: ignore[arg-type]
    assert_close(actual["y"], np.transpose(expected["y"], (2, 0, 1, 3)), r.terms)
    for name in r.outputs.split()[1:]:
        assert_close(actual[name], expected[name].swapaxes(0, 1), r.terms)


@pytest.mark.parametrize("wanted", ["y", "yh", "yc", "y yc"])
def test_only_what_is_read_is_stored(wanted: str, cache: Path) -> None:
    """The state must be carried on where no step, or only the last, leaves the kernel."""
    r = recurrence("LSTM", sizes=(6, 2, 5, 37), direction="bidirectional")
    names = tuple(wanted.split())
    model = small(14, r.feeds, r.body, names, constants=r.constants)
    expected = runtime_answers(model, r.feeds)
    actual = opfuse.compile(model, threads=1, calibrate=False, cache=cache)(dict(r.feeds))
    for name in names:
        assert_close(actual[name], expected[name], r.terms)


def test_no_step_at_all(cache: Path) -> None:
    """A sequence of length 0: no output, and the states as they were fed."""
    r = recurrence("LSTM", sizes=(0, 2, 3, 5))
    graph = load(model_of(r))  # type: ignore[arg-type]
    expected = evaluate(graph, r.feeds)
    actual = opfuse.compile(graph, threads=1, calibrate=False, cache=cache)(dict(r.feeds))
    assert actual["y"].shape == (0, 1, 2, 5)
    np.testing.assert_array_equal(actual["yh"], expected["yh"])
    np.testing.assert_array_equal(actual["yh"], r.feeds["h"])


def test_nan_stays_in_its_row_and_in_later_steps(cache: Path) -> None:
    r = recurrence("GRU", sizes=(5, 3, 4, 18))
    x = r.feeds["x"].copy()
    x[2, 1, 0] = np.nan
    exe = opfuse.compile(model_of(r), threads=1, calibrate=False, cache=cache)
    y = exe({**r.feeds, "x": x})["y"][:, 0]
    assert np.isnan(y[2:, 1]).all() and not np.isnan(y[:2]).any() and not np.isnan(y[:, [0, 2]]).any()


@pytest.mark.parametrize("op", ["lstm", "gru", "rnn"])
def test_weights_that_are_fed(op: str, cache: Path) -> None:
    """Weights need not be constants: in double precision and in half, too."""
    gates, functions = {"lstm": (4, (SIGMOID, TANH, TANH)), "gru": (3, (SIGMOID, TANH)), "rnn": (1, (TANH,))}[op]
    rng = np.random.default_rng(3)
    for dtype, unit in ((DType.F64, 2.0**-53), (DType.F32, 2.0**-24), (DType.F16, 2.0**-11)):
        g = Graph(op)
        shapes = {"x": (4, 2, 5), "w": (1, gates * 9, 5), "r": (1, gates * 9, 9), "b": (1, gates * 18)}
        feeds = {k: (0.5 * rng.standard_normal(s)).astype(dtype.numpy) for k, s in shapes.items()}
        names = [g.add_input(k, TensorType(dtype, s)) for k, s in shapes.items()]
        g.set_outputs({"y": g.emit(op, names, {"activations": functions})})
        expected = evaluate(g, feeds, "f64")["y"]
        actual = opfuse.compile(g, threads=1, calibrate=False, cache=cache)(feeds)["y"]
        np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=8 * np.sqrt(4 * 14) * unit)


def test_switched_off_the_host_runs_it_whole(cache: Path) -> None:
    r = recurrence("GRU")
    options = {"threads": 1, "calibrate": False, "cache": cache}
    exe = opfuse.compile(model_of(r), disable_rules=("part_recurrence",), **options)  # type: ignore[arg-type]
    assert len([d for d in exe.model.ledger if d.kind == "host"]) == 1
    assert_close(exe(dict(r.feeds))["y"], answers(r, cache)["y"], r.terms)
