"""The regions of tests/tile/regions.py through the LLVM printer: every schedule and size, and splits of the grid.

Outputs and scratch are poisoned, bytes around the scratch are checked, and the reference shares no code with it.
"""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.target import host
from opfuse.tile.schedule import Schedule
from tests.codegen.native import compiled
from tests.tile.case import Case
from tests.tile.regions import CASES, FUNCTION_CASES

BEST = host().isa
REFUSED = ("repeat",)
RUNS = [(case, k) for case in CASES for k in range(len(case.cpu))]


def names(run: tuple[Case, int]) -> str:
    return f"{run[0].name}-{run[1]}"


def check(case: Case, schedule: Schedule, isa: str, sizes_of: int | None = None) -> None:
    native = compiled(case.program, schedule, isa, REFUSED)
    for sizes in case.sizes[:sizes_of]:
        whole, pieces = case.arrays(sizes), case.arrays(sizes)
        native.run(whole, sizes)
        assert case.faults(whole, case.want(whole)) == []
        native.run(pieces, sizes, splits=(0.3, 0.7))
        for b in case.program.buffers:
            if b.role == "out":
                message = "a split of the tiles shows in the bits"
                np.testing.assert_array_equal(whole[b.name], pieces[b.name], err_msg=message)


@pytest.mark.parametrize("run", RUNS, ids=names)
def test_regions(run: tuple[Case, int]) -> None:
    check(run[0], run[0].cpu[run[1]], BEST)


@pytest.mark.parametrize("case", FUNCTION_CASES, ids=str)
def test_functions(case: Case) -> None:
    check(case, case.cpu[0], BEST)
