"""What `opfuse doctor` prints of a machine."""

from __future__ import annotations

import json
from dataclasses import replace

from opfuse.report.machine import machine_json, machine_rows
from opfuse.target import DESCRIBED_CPU, host


def test_rows_hold_the_numbers_with_units() -> None:
    rates = replace(DESCRIBED_CPU, dram_bytes_per_s=19.2e9, flops_per_s=205e9, start_s=4.1e-7, source="measured: X")
    rows = dict(machine_rows(replace(host(threads=2), rates=rates, l2_bytes=2_000_000)))
    assert rows["DRAM bandwidth"] == "19.2 GB/s, all threads"
    assert rows["matrix rate"] == "205 GFLOP/s a thread, fp32"
    assert rows["a kernel's start"] == "410 ns"
    assert "L2 2.00 MB" in rows["caches"] and rows["rates are"] == "measured: X"
    assert "2 threads" in rows["generated for"]


def test_json_is_plain_and_whole() -> None:
    data = json.loads(json.dumps(machine_json(host())))
    assert data["schema"] == 1 and data["isa"] == host().isa and data["rates"]["source"] == DESCRIBED_CPU.source
