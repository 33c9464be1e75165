"""A reduction over the rows of a product: several rows are made at once in registers and reduced there."""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.codegen.llvm.passes import Pass
from opfuse.codegen.llvm.printer import plan_passes
from opfuse.target import host
from opfuse.tile.program import Program
from opfuse.tile.schedule import Schedule
from tests.codegen.native import run
from tests.tile.notation import axes, buffer, kernel, out, relu, weight

SCHEDULES = (
    Schedule({"k": 4}),
    Schedule({"n": 24, "k": 4}, register=(3, 2)),
    Schedule({"n": 16}, register=(14, 2)),
    Schedule(register=(1, 1)),
)


def fold(combine: str, rows: int | str, columns: int = 40, depth: int = 19) -> Program:
    """Y[n] = reduce over r of relu(A W)[r, n]."""
    r, n, kk = axes(r=rows, n=columns, k=depth)
    k = kernel("fold", [r, n, kk], (n,))
    with k.loop(kk, (0.0, (r, n))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", rows, depth), r, kk), k.load(weight("W", depth, columns), kk, n), kk))
    k.store(k.reduce(combine, k.map(relu(acc)), r), out("Y", columns), n)
    return k.program()


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 17, 33])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_folds(combine: str, rows: int, schedule: Schedule) -> None:
    rng = np.random.default_rng(rows)
    a, w = rng.standard_normal((rows, 19)).astype(np.float32), rng.standard_normal((19, 40)).astype(np.float32)
    wide = np.maximum(a.astype(np.float64) @ w.astype(np.float64), 0)
    want = {"sum": np.sum, "max": np.max, "min": np.min}[combine](wide, axis=0)
    for program, sizes in ((fold(combine, rows), {}), (fold(combine, "R"), {"R": rows})):
        arrays = {"A": a.copy(), "W": w.copy(), "Y": np.full(40, np.nan, np.float32)}
        run(program, schedule, host(), arrays, sizes, (0.5,))
        allowed = 4 * np.sqrt(19 + rows) * 2.0**-24 * (np.abs(a) @ np.abs(w)).sum(0 if combine == "sum" else None)
        assert (np.abs(arrays["Y"] - want) <= allowed).all()


def test_nan_comes_through() -> None:
    a, w = np.ones((9, 19), np.float32), np.ones((19, 40), np.float32)
    a[7, 3] = np.nan
    arrays = {"A": a, "W": w, "Y": np.zeros(40, np.float32)}
    run(fold("max", 9), SCHEDULES[0], host(), arrays, {})
    assert np.isnan(arrays["Y"]).all()


def test_the_plan_says_so() -> None:
    plans = plan_passes(fold("max", "R"), SCHEDULES[0], host())
    assert isinstance(plans, tuple)
    (step,) = plans[0].steps
    assert isinstance(step, Pass) and step.folded is not None
    assert step.folded.name == "r" and step.register[0] == 5
    assert "folding r" in plans[0].text()
