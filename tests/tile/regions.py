"""The regions that every printer is tested with: programs written by hand, as a lowering would write them.

    from tests.tile.regions import CASES, FUNCTION_CASES
    for case in CASES: ...                 # see tests/tile/case.py for what a case offers

CASES are whole regions; FUNCTION_CASES are one scalar function or cast each, over every element type.
"""

from __future__ import annotations

from tests.tile import regions_matrix, regions_points, regions_recurrent, regions_rows, regions_windows
from tests.tile.case import Case

CASES: tuple[Case, ...] = (
    *regions_rows.cases(),
    *regions_matrix.cases(),
    *regions_windows.cases(),
    *regions_points.cases(),
    *regions_recurrent.cases(),
)
FUNCTION_CASES: tuple[Case, ...] = (
    *regions_points.function_cases(), *regions_points.cast_cases(), *regions_points.bits_cases(),
)  # fmt: skip


def named(text: str) -> Case:
    """The first case whose name holds the text; KeyError where none does."""
    for case in (*CASES, *FUNCTION_CASES):
        if text in case.name:
            return case
    raise KeyError(text)
