"""Inverse and hyperbolic functions, which are formulas over the scalar table, over all binades of their ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opfuse.ir.types import DType
from tests.codegen.test_activation_accuracy import formula_of
from tests.codegen.test_llvm_math import ISAS, WIDE, Range, arguments, evaluate_formula, ulps

UNIT = ((-1.0, 1.0), (-1.0, 1.0))
INSIDE = ((-0.99999994, 0.99999994), (-1 + 2.0**-53, 1 - 2.0**-53))
ALL = ((-3e38, 3e38), (-1e308, 1e308))
GROWING = ((-89.4, 89.4), (-710.4, 710.4))

# operator -> (reference in wider arithmetic, range of f32 and of f64 arguments, ulps)
FORMULAS: dict[str, tuple[Callable[[Any], Any], tuple[Range, Range], float]] = {
    "asin": (np.arcsin, UNIT, 4.0),
    "acos": (np.arccos, UNIT, 4.0),
    "atan": (np.arctan, ALL, 4.0),
    "sinh": (np.sinh, GROWING, 4.0),
    "cosh": (np.cosh, GROWING, 4.0),
    "asinh": (np.arcsinh, ALL, 2.0),
    "acosh": (np.arccosh, ((1.0, 3e38), (1.0, 1e308)), 2.0),
    "atanh": (np.arctanh, INSIDE, 2.0),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_errors_are_relative_over_all_binades(name: str, dtype: DType, isa: str) -> None:
    reference, ranges, bound = FORMULAS[name]
    x = arguments(ranges[dtype is DType.F64], dtype)
    with np.errstate(all="ignore"):
        want = reference(x.astype(WIDE))
    got = evaluate_formula(isa, formula_of(name, dtype), x)
    assert ulps(got, want) <= bound
    if name not in ("acos", "cosh", "acosh"):
        np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))
