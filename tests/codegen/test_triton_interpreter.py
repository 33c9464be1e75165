"""Every region, and every scalar function on every type, in Triton's interpreter against float64 references."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 2  # of the regions, side by side
MISSING = [m for m in ("torch", "triton") if importlib.util.find_spec(m) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton_runner", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> tuple[list[str], int]:
    """The faults, and how many cases ran."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-2000:]
    lines = [json.loads(line) for line in out.splitlines()]
    return [line for line in lines if isinstance(line, str)], lines[-1]["cases"]


def test_regions() -> None:
    running = [start("regions", str(shard), str(SHARDS)) for shard in range(SHARDS)]
    results = [finish(process) for process in running]
    assert [fault for faults, _ in results for fault in faults] == []
    assert sum(cases for _, cases in results) > 100


def test_scalar_functions() -> None:
    faults, cases = finish(start("functions", "0", "1"))
    assert faults == []
    assert cases > 200
