"""The online form of attention as Triton prints it, in Triton's interpreter against the oracle in float64."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tile.attention_graphs import MASKS, SHAPES

ROOT = Path(__file__).resolve().parents[2]
MISSING = [m for m in ("torch", "triton") if importlib.util.find_spec(m) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def test_every_kind_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton_attention", *MASKS, *SHAPES]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
