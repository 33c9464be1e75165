"""Counts arithmetic operations from structures, so that a table entry needs no formula for them.

matmul [M, K] x [K, N]   -> 2 M N K        relu [M, N] -> 2 M N (a comparison and a selection)
"""

from __future__ import annotations

from opfuse.ir.dims import Dim, product
from opfuse.ir.ops.definition import Call, Operator
from opfuse.ir.scalar import Apply, Scalar, walk
from opfuse.ir.structure import Structure


def count_flops(operator: Operator, call: Call) -> Dim:
    """The operator's own count, or that of its structure or expansion; 0 for host operators without a count."""
    if operator.flops is not None:
        return operator.flops(call)
    if operator.expands(call):
        return _expansion_flops(operator, call)
    return _structure_flops(operator.structure(call)) if operator.structure is not None else 0


def _structure_flops(s: Structure) -> Dim:
    points = product(a.extent for a in s.axes)
    body = _functions(s.body) + (1 if s.combine is not None else 0)
    inner = product(a.extent for a in s.reduce_axes)
    return points * inner * body + points * (_functions(s.finish) if s.finish is not None else 0)


def _functions(x: Scalar) -> int:
    return sum(isinstance(e, Apply) and e.function != "cast" for e in walk(x))


def _expansion_flops(operator: Operator, call: Call) -> Dim:
    from opfuse.ir.graph import Graph
    from opfuse.ir.ops import flops_of

    assert operator.expand is not None
    g = Graph("count")
    inputs = tuple(g.add_input(f"in{k}", t) if t is not None else None for k, t in enumerate(call.inputs))
    operator.expand(g, call, inputs)
    total: Dim = 0
    for node in g.nodes.values():
        total = total + flops_of(g, node)
    return total
