"""NaN, infinities and -0.0 through whole regions; outputs on the memory of inputs."""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.target import host
from opfuse.tile.program import Load, Phase, Program, Store, statements
from tests.codegen.native import compiled
from tests.tile.case import Case
from tests.tile.regions import CASES, FUNCTION_CASES

BEST = host().isa
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_special_values(case: Case) -> None:
    given = next((b for b in case.program.buffers if b.role == "in" and b.dtype.is_float), None)
    if given is None or case.rounded:
        pytest.skip("no float input, or integers made from NaN")
    native, sizes = compiled(case.program, case.cpu[0], BEST, ("repeat",)), case.sizes[-1]
    for value in SPECIAL:
        arrays = case.arrays(sizes)
        array = arrays[given.name]
        places = list(np.ndindex(array.shape))
        if len(places) < 3:
            return
        for at in (places[5 % len(places)], places[len(places) // 2]):
            array[at] = value
        want = case.want(arrays)
        native.run(arrays, sizes)
        assert case.faults(arrays, want) == [], f"with {value}"


def in_place(program: Program) -> list[tuple[str, str]]:
    """(input, output) that a planner may put on one memory: same shape, only read at the point that is written."""
    if len(program.phases) != 1 or not isinstance(program.phases[0], Phase):
        return []
    every = list(statements(program.phases[0].body))
    found = []
    for s in (s for s in every if isinstance(s, Store)):
        for b in program.buffers:
            loads = [x for x in every if isinstance(x, Load) and x.buffer == b]
            alike = (b.dtype, b.shape, b.strides) == (s.buffer.dtype, s.buffer.shape, s.buffer.strides)
            if b.role == "in" and alike and loads and all(x.index == s.index and x.pad is None for x in loads):
                found.append((b.name, s.buffer.name))
    return found


SHARED = [(case, pair) for case in (*CASES, *FUNCTION_CASES[::10]) for pair in in_place(case.program)]


@pytest.mark.parametrize(("case", "pair"), SHARED, ids=lambda x: str(x))
def test_an_output_on_the_memory_of_an_input(case: Case, pair: tuple[str, str]) -> None:
    sizes = case.sizes[-1]
    arrays = case.arrays(sizes)
    want = case.want(arrays)
    arrays[pair[1]] = arrays[pair[0]]
    compiled(case.program, case.cpu[0], BEST, ("repeat",)).run(arrays, sizes, splits=(0.4,))
    assert case.faults(arrays, want) == []


def test_in_place_regions_are_found() -> None:
    assert len(SHARED) > 20
