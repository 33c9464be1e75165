"""Every column of the table of scalar functions has every function, for each kind of type that its row names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from opfuse.codegen.llvm.scalar_functions import COSTLY, EMITTERS
from opfuse.codegen.triton import expressions as triton
from opfuse.ir.scalar import FUNCTIONS, Function
from opfuse.report.scalar_errors import IN_FLOAT64
from tests.codegen.test_llvm_math import BOUNDS, UNFUSED
from tests.scalar_reference import OWN, REFERENCE

TRITON: Mapping[str, Mapping[str, str]] = {"f": triton.FLOAT, "i": triton.INTEGER, "b": triton.BOOL}


def test_no_column_has_more_or_less() -> None:
    columns = {"LLVM": {*EMITTERS, "cast", "bits"}, "float64": set(IN_FLOAT64), "the tests": {*REFERENCE, *OWN}}
    assert not {name: wrong for name, column in columns.items() if (wrong := column ^ set(FUNCTIONS))}


@pytest.mark.parametrize("row", [f for f in FUNCTIONS.values() if f.name not in ("cast", "bits")], ids=lambda f: f.name)
def test_triton_has_each_kind(row: Function) -> None:
    missing = [k for k in row.kinds if row.name not in TRITON[k] and row.name not in triton.INFIX]
    assert not missing, f"{row.name} of {missing}"


def test_what_rounds_more_than_once_is_measured() -> None:
    """Functions of one float that promise more than correct rounding: their errors are measured, within the promise."""
    rounded = {f.name for f in FUNCTIONS.values() if f.arity == 1 and f.ulps > 1}
    assert rounded == set(BOUNDS)
    for name, (*_, bound32, bound64) in BOUNDS.items():
        assert max(bound32, bound64, UNFUSED.get(name, 0)) <= FUNCTIONS[name].ulps


def test_what_is_priced_high_is_kept() -> None:
    assert {"exp", "pow", "mod"} <= COSTLY and not {"add", "div", "sqrt", "cast"} & COSTLY
