"""Index expressions as integer arithmetic in formulas: what a mask or an iota needs.

    index_scalar(axis("q") * 2 + 1, ...)   -> add(mul(@q, 2), 1)
"""

from __future__ import annotations

from opfuse.ir.index import AxisTerm, Index, Quotient, Remainder
from opfuse.ir.scalar import Position, Scalar, apply, const
from opfuse.ir.types import DType


class Unplaceable(Exception):
    """An index that no integer formula can give: it holds a gathered value or a factor that is not a number."""


def index_scalar(i: Index) -> Scalar:
    """An index as 64-bit integer arithmetic on positions; Unplaceable where a factor is symbolic or gathered."""
    if not isinstance(i.const, int):
        raise Unplaceable(f"position {i} needs a run-time number in a formula")
    total: Scalar | None = const(i.const, DType.I64) if i.const != 0 else None
    for t, c in i.terms:
        if not isinstance(c, int):
            raise Unplaceable(f"position {i} needs a run-time number in a formula")
        match t:
            case AxisTerm(name):
                term: Scalar = Position(name)
            case Quotient(n, d) | Remainder(n, d) if isinstance(d, int):
                function = "floordiv" if isinstance(t, Quotient) else "mod"
                term = apply(function, index_scalar(n), const(d, DType.I64))
            case _:
                raise Unplaceable(f"position {i} cannot be computed from axes alone")
        term = term if c == 1 else apply("mul", term, const(c, DType.I64))
        total = term if total is None else apply("add", total, term)
    return total if total is not None else const(0, DType.I64)
