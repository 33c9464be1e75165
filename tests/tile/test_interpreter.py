"""The interpreter of tile programs against references written directly in NumPy, for every region.

Both are float64, so they agree to float64's own rounding; cutting the axes must not change what a program means.
"""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.tile.check import check
from tests.tile.case import Case
from tests.tile.reference_interpreter import run
from tests.tile.regions import CASES, FUNCTION_CASES

ROUNDING = 1e-12  # float64: a few thousand roundings of 1e-16


def disagreements(case: Case, sizes: dict[str, int], tile: dict[str, int] | None = None) -> list[str]:
    arrays = case.arrays(sizes)
    got, want = run(case.program, arrays, tile), case.want(arrays)
    found = []
    for name, w in want.items():
        g = got[name]
        if g.shape != w.shape:
            found.append(f"{name} has shape {g.shape}, wanted {w.shape}")
        elif name in case.rounded:
            if (np.abs(g - w) > 0.5 + ROUNDING).any():
                found.append(f"{name} is not the nearest integer")
        elif not np.allclose(g, w, rtol=ROUNDING, atol=ROUNDING * max(1.0, _scale(w)), equal_nan=True):
            found.append(f"{name} differs")
    return found


def _scale(w: np.ndarray) -> float:
    finite = np.abs(w[np.isfinite(w)]) if w.dtype.kind == "f" else np.zeros(0)
    return float(finite.max(initial=0.0))


@pytest.mark.parametrize("case", [*CASES, *FUNCTION_CASES], ids=str)
def test_interpreter_agrees_with_reference(case: Case) -> None:
    check(case.program)
    for sizes in case.sizes:
        assert disagreements(case, dict(sizes)) == [], sizes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning_does_not_depend_on_tiles(case: Case) -> None:
    sizes = dict(case.sizes[-1])
    names = {a.name for phase in case.program.flat_phases() for a in phase.grid}
    loops = {"k", "j", "c", "n", "f"}
    for step in (3, 8):
        assert disagreements(case, sizes, dict.fromkeys(names | loops, step)) == [], step


def test_poisoned_outputs_are_seen() -> None:
    """What a program never writes stays poisoned, and faults() says so."""
    case = CASES[0]
    arrays = case.arrays(case.sizes[-1])
    assert case.faults(arrays, case.want(arrays))
