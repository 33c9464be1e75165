"""Composites become structured operators: what the lowering walks over.

    expand_composites(region.subgraph(graph))  -> Graph in which every node has a Structure, or a Refusal

LayerNormalization turns into mean, centre, mean of squares, ...; a convolution with a bias into a convolution and an
addition. Nodes keep the origin of the node that they come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import call_of, get, infer
from opfuse.ir.types import TensorType


def expand_composites(graph: Graph) -> Graph | Refusal:
    out = Graph(graph.name)
    out._counter = _last_number(graph)
    for i in graph.inputs:
        out.add_input(i, graph.types[i])
    for name, array in graph.constants.items():
        out.add_constant(array, name)
    out.structures = graph.structures
    renamed: dict[str, str] = {}
    for node in graph.nodes.values():
        inputs = tuple(renamed.get(i, i) if i is not None else None for i in node.inputs)
        current = node
        if inputs != node.inputs or not node.origin:
            current = Node(node.name, node.op, inputs, node.outputs, node.attrs, node.origin or (node.name,))
        refusal = _expand_into(out, current, renamed, graph.types)
        if refusal is not None:
            return refusal
    out.set_outputs({public: renamed.get(v, v) for public, v in graph.outputs.items()})
    out.placements = {renamed.get(v, v): p for v, p in graph.placements.items()}
    return out


def _last_number(graph: Graph) -> int:
    """The largest number at the end of a name: fresh names count on from it, so that none meets a node to come."""
    names = (*graph.nodes, *graph.types)
    return max((int(n[1]) for name in names if (n := re.search(r"_([0-9]{1,15})$", name))), default=0)


def _expand_into(
    out: Graph, node: Node, renamed: dict[str, str], known: Mapping[str, TensorType] | None = None
) -> Refusal | None:
    """Insert a structured node, or the expansion of a composite (and of composites inside it).

    `known`: types of the node's outputs, where they are.
    """
    operator = get(node.op)
    scratch = _call_graph(out, node, known)
    call = call_of(scratch, node)
    if not operator.expands(call):
        if operator.structure is None and operator.scan is None:
            return Refusal(
                "no-structure", f"{node.op} has no loops of its own: only the host can run it", {"op": node.op}
            )
        out.take(node, scratch.types)
        return None
    assert operator.expand is not None
    before = set(out.nodes)
    results = operator.expand(out, call, node.inputs)
    fresh = [n for name, n in out.nodes.items() if name not in before]
    for n in fresh:  # the expansion carries the user's names on
        out.nodes[n.name] = Node(n.name, n.op, n.inputs, n.outputs, n.attrs, node.origin)
    for old, new in zip(node.outputs, results, strict=True):
        renamed[old] = new
    if any(_expandable(out, out.nodes[n.name]) for n in fresh):
        return _expand_again(out, fresh, renamed)
    return None


def _expandable(graph: Graph, node: Node) -> bool:
    return get(node.op).expands(call_of(graph, node))


def _expand_again(out: Graph, fresh: list[Node], renamed: dict[str, str]) -> Refusal | None:
    """An expansion held composites: take its nodes out again and expand each."""
    for n in reversed(fresh):
        out.remove(out.nodes[n.name])
    inner: dict[str, str] = {}
    for n in fresh:
        inputs = tuple(inner.get(i, i) if i is not None else None for i in n.inputs)
        refusal = _expand_into(out, Node(n.name, n.op, inputs, n.outputs, n.attrs, n.origin), inner)
        if refusal is not None:
            return refusal
    for old, new in list(renamed.items()):
        renamed[old] = inner.get(new, new)
    return None


def _call_graph(out: Graph, node: Node, known: Mapping[str, TensorType] | None = None) -> Graph:
    """A graph that knows the node's types without holding it among the nodes of `out`."""
    scratch = Graph("call")
    for i in node.reads:
        scratch.types[i] = out.types[i]
    types = infer(node, out.types) if known is None else [known[v] for v in node.outputs]
    for value, type_ in zip(node.outputs, types, strict=True):
        scratch.types[value] = type_
    return scratch
