"""What a float type can hold, as Python floats.

limits(DType.F16)       -> Limits(eps=0.000977, largest=65504.0, smallest=6.1e-05)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes

from opfuse.ir.types import DType


@dataclass(frozen=True)
class Limits:
    eps: float  # of 1
    largest: float
    smallest: float  # normal number


def limits(dtype: DType) -> Limits:
    """ValueError for a type that is no float."""
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return Limits(float(info.eps), float(info.max), float(info.smallest_normal))
