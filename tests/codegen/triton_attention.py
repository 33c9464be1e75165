"""Runs the online form of attention in Triton's interpreter (or on a GPU) and says what comes out wrong.

TRITON_INTERPRET=1 python -m tests.codegen.triton_attention nothing causal     # a line of JSON: the faults
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from opfuse.codegen.triton.choose import choose_gpu
from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.evaluate import evaluate
from opfuse.ir.types import TensorType
from opfuse.target import described
from opfuse.tile.choose import key_loop
from opfuse.tile.lower import lower_online
from opfuse.tile.schedule import Schedule
from tests.tile.attention_graphs import Sizes, attention

ROUNDING = {"lowest": 4e-3}  # scores of -1e4 are rounded to 1e-3
SIZES = Sizes(19, 41, depth=16, width=32)


def faults(kind: str, folder: Path) -> list[str]:
    from opfuse.codegen.triton.launch import load
    from tests.codegen.triton_runner import tensors_of

    graph, feeds = attention(kind, SIZES)
    region = lower_online(graph, "attention")
    if isinstance(region, Refusal):
        return [f"{kind}: {region.text}"]
    (phase,) = region.program.flat_phases()
    loop = key_loop(phase)
    assert loop is not None
    blocks = {a.name: 16 if isinstance(a.extent, int) and a.extent > 4 else 1 for a in (*phase.grid, loop.axis)}
    chosen = choose_gpu(region.program, described("h200"))
    truth = np.asarray(evaluate(graph, feeds, "f64")["o"])
    found = []
    for schedule in (Schedule(tile=blocks), chosen):
        if isinstance(schedule, Refusal):
            found.append(f"{kind}: no schedule: {schedule.text}")
            continue
        printed = print_program(region.program, schedule, described("h200"), "attention")
        if isinstance(printed, Refusal):
            found.append(f"{kind}: {printed.text} {dict(printed.facts)}")
            continue
        arrays = {}
        for b in region.program.buffers:
            value, shape = region.arguments[b.name], TensorType(b.dtype, b.shape).static_shape
            given = feeds.get(value, graph.constants.get(value))
            arrays[b.name] = np.zeros(shape, b.dtype.numpy) if given is None else np.array(given).reshape(shape)
        tensors = tensors_of(arrays, "cpu")
        load(region.program, printed, folder)(tensors, {})
        got = next(arrays[b.name] for b in region.program.buffers if b.role == "out").reshape(truth.shape)
        if not np.allclose(got, truth, rtol=1e-4, atol=ROUNDING.get(kind, 2e-5), equal_nan=True):
            found.append(f"{kind}, {dict(schedule.tile)}: apart by {np.nanmax(np.abs(got - truth))}")
    return found


def main(kinds: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([fault for kind in kinds for fault in faults(kind, Path(folder))]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
