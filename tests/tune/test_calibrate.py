"""The machine's rates: measured within what any machine can do, kept whole, and never trusted where they look wrong."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from opfuse.runtime.cache import Cache
from opfuse.target import DESCRIBED_CPU, ISAS, Rates, Target, described, host
from opfuse.tune import calibrate as module
from opfuse.tune import probes
from opfuse.tune.calibrate import (
    Machine,
    aligned_zeros,
    barrier_seconds,
    calibrate,
    load_rates,
    rates_for,
    rates_key,
    store_rates,
)


def available_isas() -> list[str]:
    best = ISAS.index(host().isa)
    return list(ISAS[best:])


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(host())


@pytest.mark.parametrize("isa", available_isas())
def test_the_probes_compute_what_they_say(isa: str) -> None:
    """A probe that computes nothing measures nothing: each is compared with NumPy."""
    machine = Machine(host(isa=isa))
    shape, generator = machine.shape, np.random.default_rng(0)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64

    floats = 3 * probes.STREAM_VECTORS * shape.lanes
    x = aligned_zeros(4 * floats).view(np.float32)
    x[:] = before = generator.standard_normal(floats).astype(np.float32)
    machine._function("probe_scale", pointer, integer, integer)(x.ctypes.data, 3, 2)
    np.testing.assert_array_equal(x, before * np.float32(0.25))
    x[:] = expected = before
    machine._function("probe_chain", pointer, integer, integer)(x.ctypes.data, 3, 1)
    for _ in range(probes.CHAIN_OPERATIONS // 2):
        expected = expected * np.float32(0.5) + np.float32(0.25)
    np.testing.assert_array_equal(x, expected)

    k = 37
    a = aligned_zeros(4 * k * shape.rows).view(np.float32)
    b = aligned_zeros(4 * k * shape.columns).view(np.float32)
    c = aligned_zeros(4 * shape.rows * shape.columns).view(np.float32)
    a[:], b[:] = generator.standard_normal(a.size), generator.standard_normal(b.size)
    machine._function("probe_gemm", *[pointer] * 3, integer, integer)(a.ctypes.data, b.ctypes.data, c.ctypes.data, k, 2)
    left, right = a.reshape(k, -1).astype(np.float64), b.reshape(k, -1).astype(np.float64)
    bound = k * np.finfo(np.float32).eps * (np.abs(left).T @ np.abs(right))
    assert np.all(np.abs(c.reshape(shape.rows, -1) - left.T @ right) <= bound)


def test_measured_rates_are_those_of_a_computer() -> None:
    """Wide bounds: ten times below the slowest and above the fastest core that the instruction sets run on."""
    said: list[tuple[str, float]] = []
    rates = calibrate(host(threads=2), lambda what, share: said.append((what, share)))
    assert 1e9 < rates.flops_per_s < 1e12 and 1e9 < rates.vector_ops_per_s < 1e12
    assert 1e8 < rates.dram_bytes_per_s <= rates.l3_bytes_per_s <= rates.l2_bytes_per_s < 1e13
    assert 1e-10 < rates.start_s < 1e-3 and 1e-8 < rates.call_s < 1e-4
    assert rates.source.startswith("measured: ")
    assert [share for _, share in said] == sorted(share for _, share in said) and said[-1] == ("done", 1.0)


def test_a_barrier_waits_for_everybody_and_gives_up_when_alone(machine: Machine) -> None:
    barrier = machine._function("probe_barrier", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    alone = aligned_zeros(128)
    assert barrier(alone.ctypes.data, 1, 1000) == 0
    assert int(alone[64:72].view(np.int64)[0]) == 1000
    seconds = barrier_seconds(barrier, 2, rounds=20)
    assert seconds is None or seconds > 0
    assert barrier(aligned_zeros(128).ctypes.data, 2, 1) == 1


def test_a_gpu_is_not_measured_here() -> None:
    with pytest.raises(ValueError, match="h200 is not a CPU"):
        calibrate(described("h200"))


RATES = replace(DESCRIBED_CPU, source="measured: test")


def test_rates_are_kept_by_cpu_isa_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = host(threads=1), host(threads=2)
    folder = tmp_path / "made" / "on demand"
    store_rates(one, RATES, folder)
    assert load_rates(one, folder) == RATES
    assert load_rates(two, folder) is None
    assert load_rates(replace(one, isa="plain" if one.isa != "plain" else "avx2"), folder) is None
    monkeypatch.setattr(module, "cpu_model", lambda: "another CPU")
    assert load_rates(one, folder) is None
    monkeypatch.undo()
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert load_rates(one, folder) is None


def with_rates(**changes: object) -> str:
    return json.dumps({**asdict(RATES), **changes})


SENSELESS = {
    "empty": "", "truncated": with_rates()[:-20], "list": "[]", "null": "null", "number": "1", "missing": "{}",
    "unknown field": with_rates(extra=1.0), "zero": with_rates(flops_per_s=0.0), "nan": with_rates(call_s=float("nan")),
    "text": with_rates(start_s="1"), "negative": with_rates(dram_bytes_per_s=-1.0), "source": with_rates(source=3),
}  # fmt: skip


@pytest.mark.parametrize("kind", SENSELESS)
def test_an_entry_that_makes_no_sense_is_measured_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = host()
    Cache(tmp_path).put(module.KIND, rates_key(target), SENSELESS[kind].encode())
    assert load_rates(target, tmp_path) is None
    monkeypatch.setattr(module, "calibrate", lambda target, progress: RATES)
    assert rates_for(target, tmp_path) == RATES
    assert load_rates(target, tmp_path) == RATES, "the entry was not mended"


def test_a_damaged_file_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = host()
    store_rates(target, RATES, tmp_path)
    (path,) = (p for p in tmp_path.rglob("*") if p.is_file())
    content = path.read_bytes()
    for damaged in (content[:-1], content.replace(b"e", b"f", 1), b"", content + b" "):
        path.write_bytes(damaged)
        assert load_rates(target, tmp_path) is None
        monkeypatch.setattr(module, "calibrate", lambda target, progress: RATES)
        assert rates_for(target, tmp_path) == load_rates(target, tmp_path) == RATES


def test_measured_once_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Target] = []

    def measure(target: Target, progress: object) -> Rates:
        calls.append(target)
        return RATES

    monkeypatch.setattr(module, "calibrate", measure)
    assert rates_for(host(), tmp_path) == rates_for(host(), tmp_path) == RATES
    assert len(calls) == 1


def test_rates_are_good_though_they_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibrate", lambda target, progress: RATES)
    (tmp_path / "file").write_text("in the way")
    store_rates(host(), RATES, tmp_path / "file")
    assert load_rates(host(), tmp_path / "file") is None
    assert rates_for(host(), tmp_path / "file") == RATES
