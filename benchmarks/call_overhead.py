"""What a call costs when there is next to nothing to compute: one Relu on eight floats.

    python benchmarks/call_overhead.py                  # exe(x=...), exe.run([...]), and ONNX Runtime beside them

Microseconds a call, at 1 and 2 threads: the least and the median of blocks of 2000 calls in this process, then opfuse
and ONNX Runtime each in a process of its own (see `opfuse.report.bench`).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import opfuse
from opfuse.report.bench import bench

CALLS, BLOCKS = 2000, 15


def one_operator() -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "one", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Least and median over blocks."""
    blocks = []
    for _ in range(BLOCKS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        blocks.append((time.perf_counter() - started) / CALLS * 1e6)
    return min(blocks), statistics.median(blocks)


def main() -> int:
    model, x = one_operator(), np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    for threads in (1, 2):
        exe = opfuse.compile(model, threads=threads)
        np.testing.assert_array_equal(exe(x=x)["y"], np.maximum(x, 0))
        for name, call in (("exe(x=x)", lambda exe=exe: exe(x=x)), ("exe.run([x])", lambda exe=exe: exe.run([x]))):
            least, median = microseconds(call)
            print(f"{name:<13} {threads} thread(s)  least {least:5.1f} us, median {median:5.1f} us")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "relu.onnx"
        onnx.save(model, str(path))
        print()
        for threads in (1, 2):
            print(bench(path, {"x": x}, ("opfuse", "onnxruntime"), threads=threads, seconds=2).text(), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
