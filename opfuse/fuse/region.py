"""A region: a set of nodes to become one kernel, with what goes in and what comes out.

region = Region.of(graph, ["conv_3", "add_1", "relu_2"])
region.inputs, region.outputs, region.subgraph(graph)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opfuse.decision import Decision
from opfuse.ir.graph import Graph, Node, user_names


@dataclass(frozen=True)
class Region:
    """`nodes` are in topological order. `inputs` are values made outside, constants too; `outputs` are read outside."""

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @staticmethod
    def of(graph: Graph, names: Iterable[str]) -> Region:
        inside = set(names)
        nodes = [n for n in graph.nodes.values() if n.name in inside]
        made = {v for n in nodes for v in n.outputs}
        inputs = tuple(dict.fromkeys(i for n in nodes for i in n.reads if i not in made))
        outputs = tuple(
            v for n in nodes for v in n.outputs
            if graph.is_output(v) or any(c.name not in inside for c in graph.consumers(v))
        )  # fmt: skip
        return Region(tuple(n.name for n in nodes), inputs, outputs)

    def members(self, graph: Graph) -> list[Node]:
        return [graph.nodes[n] for n in self.nodes]

    def origin(self, graph: Graph) -> tuple[str, ...]:
        return user_names(self.members(graph))

    def subgraph(self, graph: Graph) -> Graph:
        """The region as a graph of its own: its inputs are graph inputs, constants stay constants."""
        out = Graph("region")
        for i in self.inputs:
            if graph.is_constant(i):
                out.add_constant(graph.constants[i], i)
            else:
                out.add_input(i, graph.types[i])
        for node in self.members(graph):
            out.take(node, graph.types)
        out.set_outputs({v: v for v in self.outputs})
        out.structures = graph.structures
        out.placements = {v: graph.placements[v] for v in (*self.inputs, *self.outputs) if v in graph.placements}
        return out


def kernel_decision(graph: Graph, names: Sequence[str]) -> Decision:
    """The decision whose id names a kernel: in `explain`, and for `--no-fuse`."""
    return Decision("fusion", "kernel", user_names(graph.nodes[n] for n in names), "taken")
