"""What may stand in one region, before any provider is asked: effects, and no way out and back in.

partition = Partition(graph)
join_refusal(partition, (a, b))    # Refusal("cycle", ...) or None
"""

from __future__ import annotations

from collections.abc import Iterable

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import get

MOST_NODES = 64  # lowering walks a region as deep as its longest chain, and each join lowers the whole of it again


class Partition:
    """The nodes of a graph in disjoint groups, and which group reads which: the state of a grouping in progress."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._positions = {name: k for k, name in enumerate(graph.nodes)}
        self.group_of = dict(self._positions)
        self.members = {k: [name] for k, name in enumerate(graph.nodes)}
        self.successors: dict[int, set[int]] = {k: set() for k in self.members}
        self.predecessors: dict[int, set[int]] = {k: set() for k in self.members}
        for node in graph.nodes.values():
            for value in node.reads:
                producer = graph.producer(value)
                if producer is not None:
                    self.successors[self.group_of[producer.name]].add(self.group_of[node.name])
                    self.predecessors[self.group_of[node.name]].add(self.group_of[producer.name])

    def outside_path(self, groups: Iterable[int]) -> list[int] | None:
        """Other groups on a path that leaves these and comes back: joining them would close a cycle."""
        inside = set(groups)
        stack = [(s, [s]) for g in inside for s in self.successors[g] if s not in inside]
        seen = {s for s, _ in stack}
        while stack:
            group, path = stack.pop()
            for following in self.successors[group]:
                if following in inside:
                    return path
                if following not in seen:
                    seen.add(following)
                    stack.append((following, [*path, following]))
        return None

    def merge(self, first: int, second: int) -> int:
        """Put the second group into the first; returns the first's number."""
        for name in self.members[second]:
            self.group_of[name] = first
        self.members[first] = sorted(self.members[first] + self.members.pop(second), key=self.position)
        for links, back in ((self.successors, self.predecessors), (self.predecessors, self.successors)):
            moved = links.pop(second)
            links[first] |= moved
            for other in moved - {first, second}:
                back[other].discard(second)
                back[other].add(first)
            links[first] -= {first, second}
        return first

    def position(self, name: str) -> int:
        """Place of a node in the graph's order."""
        return self._positions[name]


def join_refusal(partition: Partition, groups: Iterable[int]) -> Refusal | None:
    """Why some groups may not become one for the graph's sake; None where nothing stands against it."""
    groups = tuple(groups)
    nodes = sum(len(partition.members[group]) for group in groups)
    if nodes > MOST_NODES:
        return Refusal("large", f"a kernel of {nodes} operators: {MOST_NODES} at most are tried",
                       {"nodes": nodes, "most": MOST_NODES})  # fmt: skip
    for group in groups:
        for name in partition.members[group]:
            refusal = node_refusal(partition.graph.nodes[name])
            if refusal is not None:
                return refusal
    path = partition.outside_path(groups)
    if path is not None:
        between = [name for g in path for name in partition.members[g]]
        return Refusal("cycle", "another kernel lies between: it reads the first and is read by the second",
                       {"path": between[:8]})  # fmt: skip
    return None


def node_refusal(node: Node) -> Refusal | None:
    if get(node.op).random:
        return Refusal("random", f"{node.op} draws random numbers: the order of draws must stay", {"node": node.name})
    return None
