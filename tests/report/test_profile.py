"""Profiles: floors, shares, bounds and ranks of made-up kernels on a described machine; and one real model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import opfuse
from opfuse import cli
from opfuse.fuse.cost import LEAST_START_S
from opfuse.plan.plan import Host, KernelInfo, Native, Plan
from opfuse.report.profile import profile
from opfuse.target import Rates, Target
from tests.test_docs import write_model

RATES = Rates(10e9, 20e9, 40e9, 100e9, 10e9, 1e-6, 2e-6, "made up")
TARGET = Target("machine", "cpu", "avx2", 32, 16, 32 << 10, 1 << 20, 16 << 20, 2, RATES)  # two threads


def kernel(name: str, size: int, flops: int, **facts: float) -> KernelInfo:
    return KernelInfo("", name, (f"/model/encoder/{name}",), "cpu", 1e-5, size, flops, 0, facts=dict(facts))


STREAM = kernel("stream", 1_000_000, 1000, dram_bytes=1_000_000)  # 100 us of memory
PRODUCT = kernel("product", 4000, 20_000_000, l2_bytes=4000, dot_s=1.0)  # 100 us at two times 100 GFLOP/s
ELEMENTS = kernel("elements", 4000, 2_000_000, l2_bytes=4000)  # 100 us at two times 10 Gop/s
TINY = kernel("tiny", 64, 16, l2_bytes=64)
PYTHON = kernel("python", 64, 16)


@dataclass
class Model:
    """A compiled model of which only times are known."""

    kernels: tuple[KernelInfo, ...]
    times: tuple[float, ...]
    hosts: tuple[int, ...] = ()

    @property
    def plan(self) -> Plan:
        segments = (Native(()), *(Host(n, (), ()) for n in self.hosts))
        return Plan((), (), (), segments, self.kernels, (), 0, 0, 0, 2, facts={"model": "made.onnx"})

    @property
    def target(self) -> Target:
        return TARGET

    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        return []

    def profile(self, arrays: Sequence[Any], seconds: float = 0.2) -> tuple[float, ...]:
        return self.times


MADE = Model((STREAM, PRODUCT, ELEMENTS, TINY, PYTHON), (200e-6, 125e-6, 400e-6, 3e-6, 50e-6), hosts=(4,))


def test_bounds_and_shares_of_the_ceiling_that_binds() -> None:
    stream, product, elements, tiny, python = profile(MADE, [], seconds=0.01).after.kernels
    assert [k.bound for k in (stream, product, elements, tiny, python)] == [
        "memory", "compute", "compute", "latency", "host",
    ]  # fmt: skip
    assert stream.share == pytest.approx(0.5) and stream.compute_share < 0.01
    assert product.share == pytest.approx(0.8) and product.flops_per_s == pytest.approx(160e9)
    assert elements.share == pytest.approx(0.25) and elements.memory_share < 0.01
    assert stream.bytes_per_s == pytest.approx(5e9)


def test_ranks_go_by_what_there_is_to_gain() -> None:
    """Not by time: the second slowest has 100 us to gain, the slowest 300, and a start is never gained back."""
    report = profile(MADE, [], seconds=0.01)
    assert [k.name for k in report.to_fix()] == ["elements", "stream", "python", "product", "tiny"]
    gains = [k.gain_s for k in report.to_fix()]
    assert gains == pytest.approx([300e-6, 100e-6, 50e-6, 25e-6, 2e-6], rel=0.01)
    assert RATES.start_s > LEAST_START_S


def test_bytes_without_levels_count_where_they_fit() -> None:
    """64 bytes fit L2: 80 GB/s of two threads; 8 MB fit L3: 40 GB/s; 64 MB lie in memory."""
    kernels = tuple(kernel("k", n, 0) for n in (80_000, 8_000_000, 64_000_000))
    shares = [k.memory_share for k in profile(Model(kernels, (1.0, 1.0, 1.0)), [], seconds=0.01).after.kernels]
    assert shares == pytest.approx([1e-6, 200e-6, 6.4e-3])


def test_a_ceiling_that_a_kernel_breaks_is_raised_for_all() -> None:
    """The product reaches 800 GFLOP/s where two times 100 were calibrated, the stream 20 GB/s of 10."""
    fast = Model((STREAM, PRODUCT, TINY), (50e-6, 25e-6, 1e-9))
    slow = Model((STREAM, PRODUCT, TINY), (100e-6, 100e-6, 1e-9))
    for model, before in ((fast, slow), (slow, fast)):
        report = profile(model, [], before=before, seconds=0.01)
        assert report.before is not None
        assert report.rates.flops_per_s == pytest.approx(400e9) and report.rates.dram_bytes_per_s == pytest.approx(20e9)
        assert report.raised == {"flops_per_s": 100e9, "dram_bytes_per_s": 10e9}
        sides = (report.after, report.before) if model is fast else (report.before, report.after)
        assert [k.share for k in sides[0].kernels[:2]] == pytest.approx([1.0, 1.0])
        assert [k.share for k in sides[1].kernels[:2]] == pytest.approx([0.5, 0.25])
        assert all(k.share <= 1 for s in sides for k in s.kernels), "what is too short to be timed raises nothing"
        assert report.to_json()["ceilings"]["raised_from"] == report.raised
        text = " ".join(report.text(80).split())
        assert "faster than the calibrated" in text and "opfuse doctor --calibrate" in text
    assert "faster than" not in profile(MADE, [], seconds=0.01).text(80)


def test_weighed_operations_are_the_floor_and_flops_are_what_is_shown() -> None:
    weighed = kernel("gelu", 4000, 100_000, l2_bytes=4000, operations=2_000_000)
    (k,) = profile(Model((weighed,), (200e-6,)), [], seconds=0.01).after.kernels
    assert k.compute_share == pytest.approx(0.5) and k.flops_per_s == pytest.approx(0.5e9)


@pytest.mark.parametrize(("channels", "out", "group", "kernel_size"), [(8, 12, 4, 3), (6, 6, 6, 5), (4, 8, 1, 1)])
def test_the_operations_of_a_padded_convolution(
    channels: int, out: int, group: int, kernel_size: int, tmp_path: Path
) -> None:
    """Two for each weight that an element of the result sees, those over its pads too; layouts cost none."""
    k, half = kernel_size, kernel_size // 2
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        conv (float[2, {channels}, 9, 7] x) => (float[2, {out}, 5, 4] y) {{
            y = Conv <group = {group}, strides = [2, 2], pads = [{half}, {half}, {half}, {half}]> (x, w) }}""")
    weights = np.ones((out, channels // group, k, k), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    for fusions in ((), "all"):
        exe = opfuse.compile(model, threads=1, calibrate=False, cache=tmp_path, disable_fusions=fusions)
        assert sum(e.flops for e in exe.explain().kernels) == 2 * (2 * out * 5 * 4) * (channels // group * k * k)


def test_a_kernel_that_takes_no_time_divides_by_nothing() -> None:
    (k,) = profile(Model((TINY,), (0.0,)), [], seconds=0.01).after.kernels
    assert (k.share, k.bytes_per_s, k.flops_per_s, k.gain_s) == (0.0, 0.0, 0.0, 0.0)


def test_json_has_both_sides() -> None:
    before = Model((STREAM, PRODUCT, replace(ELEMENTS, name="other")), (1e-4, 2e-4, 4e-4))
    data = json.loads(json.dumps(profile(MADE, [], before=before, seconds=0.01).to_json()))
    assert data["schema"] == 1 and data["model"] == "made.onnx" and data["threads"] == 2
    assert data["ceilings"]["flops_per_s"] == 100e9 and data["ceilings"]["source"] == "made up"
    assert data["after"]["kernels_s"] == pytest.approx(778e-6) and data["before"]["kernels_s"] == pytest.approx(700e-6)
    assert len(data["after"]["kernels"]) == 5 and data["after"]["bytes"] == sum(k.bytes for k in MADE.kernels)
    fields = {"id", "name", "nodes", "measured_s", "bytes", "flops", "bytes_per_s", "flops_per_s", "bound", "rank"}
    assert all(fields <= set(k) for k in data["before"]["kernels"])
    assert profile(MADE, [], seconds=0.01).to_json()["before"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits(width: int) -> None:
    before = Model((STREAM, PRODUCT), (1e-4, 2e-4))
    text = profile(MADE, [], before=before, seconds=0.01).text(width)
    assert all(len(line) <= width for line in text.splitlines()), text
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "2", "elements"] in [line[:3] for line in lines], "the first to mend, its number, its name"
    assert ["kernels", "5", "2", "0.40x"] in lines
    assert "made up" in text
    assert ("Node names start with /model/encoder/" in text) == (width == 120), "names stand where there is room"


def test_text_of_a_compiled_file_says_what_is_missing() -> None:
    text = profile(MADE, [], seconds=0.01).text(80)
    assert "builds nothing anew" in text and "unfused  " not in text


def test_a_real_model(tmp_path: Path) -> None:
    """Fused and unfused are measured; the file that it is saved to has one side only."""
    write_model(tmp_path / "model.onnx")
    exe = opfuse.compile(tmp_path / "model.onnx", threads=1, calibrate=False, cache=tmp_path)
    report = exe.profile(seconds=0.05)
    assert report.before is not None
    assert [len(s.kernels) for s in (report.after, report.before)] == [1, 2]
    for side in (report.after, report.before):
        assert side.call_s > 0 and all(k.measured_s > 0 for k in side.kernels)
        assert side.bytes == sum(k.bytes for k in side.kernels)
    (fused,) = report.after.kernels
    assert fused.flops >= 2 * 2 * 8 * 4 and fused.bytes == 4 * (2 * 8 + 8 * 4 + 2 * 4) and fused.bound == "latency"

    exe.save(tmp_path / "model.opf")
    loaded = opfuse.load(tmp_path / "model.opf").profile(seconds=0.05)
    assert loaded.before is None and [k.id for k in loaded.after.kernels] == [fused.id]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    write_model(tmp_path / "model.onnx")
    monkeypatch.setitem(vars(opfuse), "compile", partial(opfuse.compile, calibrate=False, cache=tmp_path))
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    line = ["profile", str(tmp_path / "model.onnx"), "--threads", "1", "--seconds", "0.1"]
    line += ["--json"] if as_json else ["--input", f"x={tmp_path / 'x.npy'}"]
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    if as_json:
        data = json.loads(text)
        assert [len(data[side]["kernels"]) for side in ("after", "before")] == [1, 2]
    else:
        assert "what to mend first" in text and "matmul_relu" in text
