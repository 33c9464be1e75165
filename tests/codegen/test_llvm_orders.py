"""Lanes before rows: whatever is left of both, a pass makes every element once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opfuse.codegen.llvm.printer import plan_passes
from opfuse.tile.program import Program
from opfuse.tile.schedule import Packing, Schedule
from tests.codegen.native import Native, target_of
from tests.tile.notation import axes, buffer, kernel, out, relu, weight


def linear(rows: int, columns: int, depth: int) -> Program:
    m, n, k = every = axes(m=rows, n=columns, k=depth)
    made = kernel("linear", every, (m,))
    start = made.map(made.load(buffer("B", columns), n), "start", (m, n))
    a, w = made.load(buffer("A", rows, depth), m, k), made.load(weight("W", depth, columns), k, n)
    product = made.dot(start, a, w, k)
    made.store(relu(product), out("Y", rows, columns), m, n)
    return made.program()


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(3, 65, 40), (13, 130, 33), (25, 200, 7), (16, 128, 64)])
@pytest.mark.parametrize("packed", [False, True])
def test_every_element_is_made(isa: str, rows: int, columns: int, depth: int, packed: bool) -> None:
    target = replace(target_of(isa), l1_bytes=64)
    pack = {"W": Packing(1, 2 * target.lanes())} if packed else {}
    schedule = Schedule({"m": rows}, register=(2, 2), pack=pack)
    program = linear(rows, columns, depth)
    plans = plan_passes(program, schedule, target)
    assert isinstance(plans, tuple) and (depth < rows or "lane n first" in plans[0].text())
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-4, 5, s).astype(np.float32)
              for n, s in (("A", (rows, depth)), ("W", (depth, columns)), ("B", (columns,)))}  # fmt: skip
    arrays["Y"] = np.full((rows, columns), np.nan, np.float32)
    Native(program, schedule, target).run(arrays, {}, ())
    assert np.array_equal(arrays["Y"], np.maximum(arrays["A"] @ arrays["W"] + arrays["B"], 0.0))
