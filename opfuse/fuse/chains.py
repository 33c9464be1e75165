"""Regions that pay as a whole only: two products of activations with a reduction between, as of attention.

    for names in chains(graph, 1 << 20): ...       # scores, mask, softmax, what exchanges its weights, the last product

Grown pair by pair such a region may stop half way: the first pairs gain little, or a small kernel that two of them read
(which rows are masked) comes to lie between. So the whole is tried before any pair is, where what stands between the
products is large. A smaller one stays in the cache, and another join (of a projection) may save more.
"""

from __future__ import annotations

from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import get, structure_of

MOST_NODES = 24  # of a chain: more is no attention, and is left to pairs


def chains(graph: Graph, large: int) -> list[tuple[str, ...]]:
    """Names of the nodes of each chain, in the graph's order, of which the first product has `large` bytes or more."""
    found = []
    for node in graph.nodes.values():
        if not _is_product(graph, node):
            continue
        for value in node.reads:
            above = _above(graph, value)
            if above and len(above) < MOST_NODES:
                inside = _exclusive(graph, node, above)
                if _is_chain(graph, inside) and _most_bytes(graph, inside, node) >= large:
                    found.append(tuple(n for n in graph.nodes if n in inside))
    return found


def _is_product(graph: Graph, node: Node) -> bool:
    """A contraction of two values that are both computed."""
    s = structure_of(graph, node)
    return s is not None and s.is_contraction and not any(graph.is_constant(i) for i in node.inputs)


def _above(graph: Graph, value: str) -> dict[str, Node]:
    """What an operand is made by, up to products and what cannot be joined; too many nodes are enough to know."""
    found: dict[str, Node] = {}
    todo = [value]
    while todo and len(found) < MOST_NODES:
        node = graph.producer(todo.pop())
        if node is None or node.name in found or not _may_join(node):
            continue
        s = structure_of(graph, node)
        if s is not None and s.is_contraction:
            if _is_product(graph, node):
                found[node.name] = node
            continue
        found[node.name] = node
        todo += node.reads
    return found


def _exclusive(graph: Graph, last: Node, above: dict[str, Node]) -> dict[str, Node]:
    """Those that nothing else reads: a mask that all layers share stays outside."""
    inside = {**above, last.name: last}
    while True:
        shared = [n for n in inside.values() if n is not last and (
            graph.is_output(n.output) or any(c.name not in inside for c in graph.consumers(n.output)))]  # fmt: skip
        if not shared:
            return inside
        for n in shared:
            del inside[n.name]


def _may_join(node: Node) -> bool:
    operator = get(node.op)
    return operator.structure is not None or operator.expand is not None


def _is_chain(graph: Graph, nodes: dict[str, Node]) -> bool:
    """Two products, and something between that may reduce a row."""
    structures = [structure_of(graph, n) for n in nodes.values()]
    products = sum(s is not None and s.is_contraction for s in structures)
    return products > 1 and any(s is None or s.combine == "max" for s in structures)


def _most_bytes(graph: Graph, nodes: dict[str, Node], last: Node) -> int:
    """Bytes of the largest value between; those of run-time extents do not count."""
    types = [graph.types[n.output] for n in nodes.values() if n is not last]
    sizes = [t.elements * t.dtype.bytes for t in types if isinstance(t.elements, int)]
    return max(sizes, default=0)
