"""Narrower instruction sets than the machine has: 8 lanes without the masks of AVX-512, 4 lanes of plain LLVM."""

from __future__ import annotations

import pytest

from opfuse.target import host
from tests.codegen.native import compiled
from tests.tile.case import Case
from tests.tile.regions import CASES, FUNCTION_CASES


@pytest.mark.parametrize("isa", [i for i in ("avx2", "plain") if i != host().isa])
@pytest.mark.parametrize("case", (*CASES[::2], *FUNCTION_CASES[::3]), ids=str)
def test_narrower_instruction_sets(case: Case, isa: str) -> None:
    native, sizes = compiled(case.program, case.cpu[-1], isa, ("repeat",)), case.sizes[0]
    arrays = case.arrays(sizes)
    want = case.want(arrays)
    native.run(arrays, sizes, splits=(0.6,))
    assert case.faults(arrays, want) == []
