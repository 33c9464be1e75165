"""THE table of IR operators: a file a family, one entry an operator.

get("conv").infer(...)        operators()       infer(node, types)      call_of(graph, node)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from opfuse.ir.ops.definition import Call, Kind, Operator, OperatorError, Sample

if TYPE_CHECKING:
    from opfuse.ir.dims import Dim
    from opfuse.ir.graph import Graph, Node
    from opfuse.ir.scan import Scan
    from opfuse.ir.structure import Structure
    from opfuse.ir.types import TensorType

__all__ = [
    "Call",
    "Kind",
    "Operator",
    "OperatorError",
    "Sample",
    "call_of",
    "flops_of",
    "get",
    "infer",
    "operators",
    "scan_of",
    "structure_of",
]


@cache
def operators() -> Mapping[str, Operator]:
    """Every operator by name. ValueError where two families define one name."""
    from opfuse.ir.ops import (
        activation,
        bits,
        contraction,
        elementwise,
        indexing,
        movement,
        narrow,
        normalisation,
        quantisation,
        recurrent,
        recurrent_steps,
        reduction,
        resampling,
        running,
        scatter,
        trigonometric,
        window,
    )

    table: dict[str, Operator] = {}
    for family in (elementwise, trigonometric, bits, narrow, activation, reduction, contraction, window, movement,
                   indexing, scatter, normalisation, quantisation, recurrent, recurrent_steps, resampling,
                   running):  # fmt: skip
        for operator in family.OPERATORS:
            if operator.name in table:
                raise ValueError(f"operator {operator.name!r} is defined twice")
            table[operator.name] = operator
    return table


def get(name: str) -> Operator:
    """The operator; OperatorError where there is none of that name."""
    found = operators().get(name)
    if found is None:
        raise OperatorError(f"no operator {name!r}")
    return found


def infer(node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """Output types of a node; OperatorError, with the user's name of the node, where the rule refuses."""
    operator = get(node.op)
    try:
        operator.check_arity(node)
        if missing := [i for i in node.reads if i not in types]:
            raise OperatorError(f"reads {missing[0]!r}, which nothing makes before it")
        result = operator.infer(Call(node.attrs, tuple(types[i] if i is not None else None for i in node.inputs)))
    except OperatorError as error:
        raise OperatorError(f"node {(node.origin or (node.name,))[0]!r} ({node.op}): {error}") from error
    return result if isinstance(result, tuple) else (result,)


def call_of(graph: Graph, node: Node) -> Call:
    types = tuple(graph.types[i] if i is not None else None for i in node.inputs)
    return Call(node.attrs, types, tuple(graph.types[o] for o in node.outputs))


def structure_of(graph: Graph, node: Node) -> Structure | None:
    """The node's loops; None where it has none of its own: composites, calls that need expansion, host operators."""
    call = call_of(graph, node)
    types = (call.inputs, call.outputs)
    known: tuple[object, Structure | None] | None = graph.structures.get(node)
    if known is not None and known[0] == types:
        return known[1]
    operator = get(node.op)
    found = None if operator.structure is None or operator.expands(call) else operator.structure(call)
    graph.structures[node] = (types, found)
    return found


def scan_of(graph: Graph, node: Node) -> Scan | None:
    """The steps of a recurrence; None for every other operator."""
    operator = get(node.op)
    return operator.scan(call_of(graph, node)) if operator.scan is not None else None


def flops_of(graph: Graph, node: Node) -> Dim:
    """Arithmetic operations of a node, a multiply-add counted as two; movement, casts and gathers count 0.

    From the row's own count, else from the structure (each scalar function and each combination is one), else summed
    over the expansion.
    """
    from opfuse.ir.ops.count import count_flops

    return count_flops(get(node.op), call_of(graph, node))
