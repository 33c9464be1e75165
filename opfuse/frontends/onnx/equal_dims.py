"""Dimensions that a node needs to be equal, though the model does not say that they are.

    add(x [batch, S], m [B, S2])      the import starts anew with B = batch and S2 = S
    add(x [(H+1)//2], y [2*((H+3)//4)])   y is reshaped to x's shape, which is refused when H is known and does not fit

Models whose exporter gave one axis two names (or none) are many, and so are feature pyramids that need an extent
divisible by 32. Two dimensions that broadcast are taken to be equal unless one of them is the number 1; models where a
symbolic axis is 1 at times, and broadcasts then, are few. A feed of such shapes is refused, never computed wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opfuse.ir.dims import Dim, symbol, symbols

Shape = Sequence[Dim]


class EqualDims(Exception):
    """The node can only run where two dimensions are equal: the import starts anew with `symbol` meaning `value`."""

    def __init__(self, symbol: str, value: Dim) -> None:
        self.symbol, self.value = symbol, value
        super().__init__(f"{symbol} must be {value}")


@dataclass(frozen=True)
class Demand:
    """Axis `axis` of the node's input number `operand` must have extent `extent`."""

    operand: int
    axis: int
    extent: Dim


def demands(op: str, shapes: Sequence[Shape | None], attrs: Mapping[str, Any]) -> Iterator[Demand]:
    """Those that an IR operator makes and its inputs do not meet by the look of them. None is an input left out."""
    present = {k: s for k, s in enumerate(shapes) if s is not None}
    if op in _BROADCASTING:
        yield from _aligned(present)
    elif op == "expand":
        yield from _aligned({-1: attrs["shape"], **present})
    elif op == "matmul" and all(present.values()):
        a, b = present[0], present[1]
        inner = len(b) - 2 if len(b) > 1 else 0
        if a[-1] != b[inner]:
            yield Demand(0, len(a) - 1, b[inner])
        yield from _aligned({0: a[:-2], 1: b[:-2]})
    elif op == "concat" and len({len(s) for s in present.values()}) == 1:
        for k in (k for k in range(len(present[0])) if k != attrs["axis"]):
            column = {operand: s[k] for operand, s in present.items()}
            yield from (Demand(operand, k, d) for operand, d in _unmet(column))


def _aligned(shapes: Mapping[int, Shape]) -> Iterator[Demand]:
    """Counted from the last axis, dimensions that are not 1 must be equal."""
    for k in range(1, max(map(len, shapes.values())) + 1):
        column = {operand: s[-k] for operand, s in shapes.items() if len(s) >= k and s[-k] != 1}
        for operand, extent in _unmet(column):
            if operand >= 0:
                yield Demand(operand, len(shapes[operand]) - k, extent)


def _unmet(column: Mapping[int, Dim]) -> Iterator[tuple[int, Dim]]:
    """Members that differ from the one that the others follow: a number where there is one, else the first."""
    if not column:
        return
    leader = next((d for d in column.values() if isinstance(d, int)), next(iter(column.values())))
    yield from ((operand, leader) for operand, d in column.items() if d != leader)


def is_symbol(d: Dim) -> bool:
    """One symbol and nothing else."""
    return any(d == symbol(name) for name in symbols(d))


def require_equal(a: Dim, b: Dim) -> None:
    """Raise EqualDims where one of two different dimensions is a symbol that can take the other's meaning."""
    for one, other in ((a, b), (b, a)):
        if one != other and is_symbol(one) and (isinstance(other, int) or is_symbol(other)):
            raise EqualDims(str(one), other)


_BROADCASTING = frozenset(
    (
        *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "mod", "fmod", "and", "or", "xor", "where", "clip"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "prelu"),
    )
)
