"""What a plan moves and holds: the two numbers that `explain` shows before and after fusion.

`bytes_moved`: the inputs and outputs of every kernel (fused) or of every node of the graph, one by one (unfused), after
constant folding; constants count where they are read, on both sides, at the size that the model gives them; views move
nothing. What a kernel reads twice counts once.

`peak_memory`: bytes of the model's inputs, outputs and constants, and on top of them
  fused:   the arena, the threads' scratch and what host functions make;
  unfused: the largest sum of intermediates alive while one node runs, each freed after its last reader (no reuse by
           offset: what a perfect allocator would need).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import flops_of
from opfuse.plan.order import Footstep, peak_bytes
from opfuse.plan.plan import Plan, Value
from opfuse.plan.storage import static_bytes

VIEWS = frozenset({"reshape", "identity"})


def unfused_bytes(graph: Graph) -> int:
    """Bytes that the graph's nodes read and write, run one by one."""
    return sum(node_bytes(graph, n) for n in graph.nodes.values())


def node_bytes(graph: Graph, node: Node) -> int:
    if node.op in VIEWS:
        return 0
    return sum(static_bytes(graph, v) for v in (*node.reads, *node.outputs))


def region_bytes(graph: Graph, reads: Iterable[str], writes: Iterable[str]) -> int:
    return sum(static_bytes(graph, v) for v in dict.fromkeys((*reads, *writes)))


def region_flops(graph: Graph, nodes: Iterable[str]) -> int:
    """Arithmetic operations of some nodes, each done once, a multiply-add as two; 0 for what extents leave open."""
    counts = (flops_of(graph, graph.nodes[n]) for n in nodes)
    return sum(c for c in counts if isinstance(c, int))


def recount(plan: Plan) -> int:
    """Bytes moved by the fused kernels, counted again from the plan's values alone."""
    sizes = {v.name: value_bytes(v) for v in plan.values}
    return sum(sizes[v] for k in plan.kernels for v in dict.fromkeys((*k.reads, *k.writes)))


def value_bytes(value: Value) -> int:
    size = value.dtype.bytes
    for extent in value.shape:
        size *= max(extent, 0)
    return size


def standing_bytes(graph: Graph) -> int:
    """Inputs, outputs and constants: what is there with and without fusion."""
    outputs = (v for v in graph.outputs.values() if v not in graph.inputs and v not in graph.constants)
    return sum(static_bytes(graph, v) for v in (*graph.inputs, *outputs, *graph.constants))


def unfused_peak(graph: Graph) -> int:
    roots: dict[str, str] = {}
    steps = []
    for node in graph.nodes.values():
        reads = tuple(roots.get(v, v) for v in node.reads)
        if node.op in VIEWS:
            roots[node.output] = reads[0]
        else:
            steps.append(Footstep(reads, node.outputs))
    shown = {roots.get(v, v) for v in graph.outputs.values()}
    sizes = {v: static_bytes(graph, v) for s in steps for v in s.writes if v not in shown}
    return standing_bytes(graph) + peak_bytes(steps, range(len(steps)), sizes)


def fused_peak(graph: Graph, arena_bytes: int, scratch_bytes: int, threads: int, host_values: Sequence[str]) -> int:
    made = sum(static_bytes(graph, v) for v in host_values if not graph.is_output(v))
    return standing_bytes(graph) + arena_bytes + scratch_bytes * threads + made
