"""Benchmarks against contenders that are made for the test: one that is slow, one that lies, some that fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from opfuse.report import bench as module
from opfuse.report.bench import Contender, bench, compare, difference

ROOT = str(Path(__file__).resolve().parents[2])
FAKE = """
import os, signal, sys, threading, time
import numpy as np
from opfuse.report import contender

def open_runtime():
    def open_model(model, feeds, threads, folder):
        assert open(model).read() == "a model" and threads == 2
        (x,) = feeds.values()
        {opening}
        def run():
            {running}
            return [x * 2 {wrong}]
        return run
    {importing}
    return "1.2", open_model

contender.main(open_runtime)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_text("a model")
    return path


def fake(
    tmp_path: Path, name: str, opening: str = "pass", running: str = "pass", importing: str = "pass", wrong: str = ""
) -> Contender:
    path = tmp_path / f"{name}.py"
    path.write_text(FAKE.format(opening=opening, running=running, importing=importing, wrong=wrong))
    return Contender(name, (sys.executable, "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n{path.read_text()}"))


FEEDS = {"odd:name / with.signs": np.arange(6, dtype=np.float32).reshape(2, 3)}


def test_times_ratios_and_differences(tmp_path: Path, model: Path) -> None:
    quick = fake(tmp_path, "quick", running="time.sleep(0.001)", wrong="+ 0.01")
    slow = fake(tmp_path, "slow", running="time.sleep(0.01)")
    said: list[str] = []
    report = bench(model, FEEDS, (quick, slow), threads=2, seconds=0.3, block_seconds=0.05, progress=said.append)
    timing = report.timing("quick")
    assert (timing.median_s or 0) >= 0.001 and timing.calls >= 6 * 3 and len(timing.blocks) == 6
    assert (timing.low_s or 0) <= (timing.median_s or 0) <= (timing.high_s or 0)
    comparison = report.comparison("slow")
    assert comparison is not None and comparison.low <= comparison.ratio <= comparison.high
    assert comparison.ratio > 1.2  # ten times on an idle machine
    assert report.reference == "slow" and report.timing("slow").difference == 0
    assert timing.difference == pytest.approx(0.01 / 10, rel=1e-3)
    assert timing.version == "1.2" and timing.import_s is not None and timing.compile_s is not None
    assert any("block 6 of 6" in s for s in said)
    text = report.text()
    assert "2 threads, fp32, odd:name / with.signs 2x3" in text and "quick 1.2" in text and "reference" in text
    assert max(map(len, report.text(80).splitlines())) <= 80 < max(map(len, text.splitlines()))
    data = json.loads(json.dumps(report.to_json()))
    assert data["schema"] == 1 and data["shapes"] == {"odd:name / with.signs": [2, 3]}
    assert {t["name"] for t in data["timings"]} == {"quick", "slow"}


def test_failures_are_reported_and_the_others_go_on(tmp_path: Path, model: Path) -> None:
    contenders = [
        fake(tmp_path, "good"),
        fake(tmp_path, "absent", importing="raise ImportError('no such runtime')"),
        fake(tmp_path, "refuses", opening="raise ValueError('operator Foo is not known')"),
        fake(tmp_path, "crashes", running="os.kill(os.getpid(), signal.SIGSEGV)"),
        fake(tmp_path, "leaves", opening="print('last words', file=sys.stderr); os._exit(3)"),
        fake(tmp_path, "prints", running="print('noise on the standard output')"),
    ]
    report = bench(model, FEEDS, contenders, threads=2, seconds=0.06, block_seconds=0.02)
    errors = {t.name: t.error for t in report.timings}
    assert errors["good"] == "" and errors["prints"] == ""
    assert errors["absent"] == "ImportError: no such runtime"
    assert errors["refuses"] == "ValueError: operator Foo is not known"
    assert errors["crashes"] == "ended by SIGSEGV"
    assert errors["leaves"] == "ended with exit code 3: last words"
    assert [c.against for c in report.comparisons] == ["prints"] and report.reference == "prints"
    assert "refuses: not measured: ValueError: operator Foo is not known" in report.text()
    json.dumps(report.to_json())


def test_one_that_hangs_is_ended(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_TIMEOUT", 1.0)
    report = bench(model, FEEDS, (fake(tmp_path, "hangs", opening="time.sleep(100)"),), threads=2)
    assert report.timing("hangs").error == "no answer within 1 s"
    assert report.reference == "" and not report.comparisons


def test_only_one_is_awake_and_none_is_left(tmp_path: Path, model: Path) -> None:
    """Each contender keeps a thread that spins and counts; while others run, it must stand still."""
    spin = """
        stamps = open(os.path.join(os.path.dirname(model), "stamps-" + str(os.getpid())), "w")
        def spin():
            while True:
                stamps.write(repr(time.monotonic()) + "\\n")
                stamps.flush()
                time.sleep(0.001)
        threading.Thread(target=spin, daemon=True).start()
    """
    spin = spin.strip()
    contenders = [fake(tmp_path, n, opening=spin, running="time.sleep(0.001)") for n in ("one", "two")]
    bench(model, FEEDS, contenders, threads=2, seconds=0.8, block_seconds=0.2)
    files = sorted(tmp_path.glob("stamps-*"))
    assert len(files) == 2
    for file in files:
        pid = int(file.name.removeprefix("stamps-"))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        stamps = [float(line) for line in file.read_text().splitlines()[:-1]]
        assert len(stamps) > 50
        gaps = sorted(b - a for a, b in zip(stamps, stamps[1:], strict=False))
        assert gaps[-2] > 0.2, "it ran while the other one was measured"


def test_outputs_are_compared_by_value_shape_and_nan() -> None:
    x = np.array([1.0, -4.0, np.nan, np.inf], np.float32)
    assert difference([x], [x.copy()]) == 0
    assert difference([x + np.float32(0.5)], [x]) == pytest.approx(0.125)
    assert difference([x[:3]], [x]) == float("inf")
    assert difference([x], [x, x]) == float("inf")
    assert difference([np.array([np.nan, 1.0])], [np.array([1.0, 1.0])]) == float("inf")
    assert difference([np.array([3, 7])], [np.array([3, 8])]) == pytest.approx(1 / 8)
    assert difference([np.array([True])], [np.array([True])]) == 0
    assert difference([np.zeros(0)], [np.zeros(0)]) == 0
    assert difference(None, [x]) is None


def test_ratios_are_taken_round_by_round() -> None:
    rounds = [
        {"a": {"median_s": 1.0}, "b": {"median_s": 2.0}},
        {"a": {"median_s": 10.0}, "b": {"median_s": 30.0}},  # a slow moment of the machine weighs on both
        {"a": {"median_s": 1.0}, "b": {"median_s": 2.5}},
        {"a": {"median_s": 1.0}},
    ]
    (c,) = compare(("a", "b"), rounds)
    assert (c.against, c.ratio, c.low, c.high) == ("b", 2.5, 2.0, 3.0)


def test_unknown_contender_is_named() -> None:
    with pytest.raises(ValueError, match="no contender 'tensorflow'; choose from opfuse, onnxruntime, openvino"):
        Contender.named("tensorflow")


def test_onnxruntime_against_itself(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, save

    node = helper.make_node("Relu", ["x"], ["y"])
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    graph = helper.make_graph([node], "relu", value[:1], value[1:])
    path = tmp_path / "relu.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    feeds = {"x": np.array([[-1, 2, np.nan, 4]], np.float32)}
    report = bench(path, feeds, ("onnxruntime",), seconds=0.06, block_seconds=0.02)
    timing = report.timing("onnxruntime")
    assert timing.error == "" and timing.difference == 0 and (timing.memory_bytes or 0) > 0
