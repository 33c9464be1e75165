"""Region -> tile program: walk the structures from the stores back to the loads, at one tile.

    lower(region.subgraph(graph), "conv_relu")  -> LoweredRegion(program, arguments) or a Refusal

A value is asked for *at* an index (one `Index` a dimension, over the program's axes) and answers with a scalar
expression or a tile (`walk`). An operator inside the region answers by asking its operands at its composed index
maps, so transposes, reshapes, slices and broadcasts leave no trace but an index; a value from outside answers with a
load. A reduction opens an axis (or shares one that the program has already, so that a row is read once); a
contraction opens a loop with a dot (`nests`). Nothing here looks at an operator's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim, dims_text, product
from opfuse.ir.graph import Graph, user_names
from opfuse.ir.index import Index
from opfuse.ir.scalar import Scalar
from opfuse.tile.axes import merge_axes, order_axes
from opfuse.tile.expand import expand_composites
from opfuse.tile.nests import Nests
from opfuse.tile.online import OnlineNests, may_hold_softmax_product
from opfuse.tile.program import Phase, Program, Store, Tile
from opfuse.tile.scan import ScanLowering, scans
from opfuse.tile.splits import root_parts
from opfuse.tile.walk import Refused


@dataclass(frozen=True)
class LoweredRegion:
    program: Program
    arguments: Mapping[str, str]  # buffer name -> value of the graph


def lower(region: Graph, name: str) -> LoweredRegion | Refusal:
    """The tile program of a region's subgraph, or why there is none."""
    graph = expand_composites(region)
    if isinstance(graph, Refusal):
        return graph
    return _lowered(region, ScanLowering(graph) if scans(graph) else _Lowering(graph), name)


def lower_online(region: Graph, name: str) -> LoweredRegion | Refusal:
    """Another program of the region: where a softmax meets a product, no row of scores is whole (see `online`)."""
    graph = expand_composites(region)
    if isinstance(graph, Refusal):
        return graph
    if scans(graph) or not may_hold_softmax_product(graph):
        return Refusal("no-softmax", "no product of the region reads a softmax")
    lowering = _OnlineLowering(graph)
    lowered = _lowered(region, lowering, name)
    return lowered if lowering.found else lowering.refusal


def _lowered(region: Graph, lowering: _Lowering | ScanLowering, name: str) -> LoweredRegion | Refusal:
    try:
        lowering.run()
    except Refused as refused:
        return refused.refusal
    origin = user_names(region.nodes.values())
    program = Program(name, tuple(lowering.buffers.values()), (lowering.phase(),), origin)
    program = order_axes(merge_axes(program))
    made = {lowering.graph.outputs[public]: value for public, value in region.outputs.items()}
    return LoweredRegion(program, {b.name: made.get(value, value) for value, b in lowering.buffers.items()})


class _Lowering(Nests):
    """The whole region: its root output is the grid, its other outputs are stored on the way."""

    def run(self) -> None:
        values = list(dict.fromkeys(self.graph.outputs.values()))
        position = {v: k for k, n in enumerate(self.graph.nodes.values()) for v in n.outputs}
        if any(v not in position for v in values):
            raise Refused("output-is-input", "an output of the region is one of its inputs")
        values.sort(key=lambda v: position[v])
        root = self.root_value(values)
        index = self.root_index(root)
        stores = [(root, index, self.at(root, index))]
        for value in reversed([v for v in values if v != root]):
            stores.append(self.other_output(value, root, index))
        for k, (value, at, result) in enumerate(stores):
            out = self.output_buffer(f"y{k}", value)
            names = frozenset(n for i in at for n in i.axes)
            tile = result if isinstance(result, Tile) else self.map("out", result, names)
            self.scopes[0].statements.append(Store(tile, out, at))

    def root_value(self, values: list[str]) -> str:
        """The output whose points are the grid: the last one of the largest rank and size."""
        def size(v: str) -> tuple[int, int]:
            shape = self.graph.types[v].shape
            count = 1
            for d in shape:
                count *= d if isinstance(d, int) else 64
            return (count, len(shape))

        largest = max(size(v) for v in values)
        return [v for v in values if size(v) == largest][-1]

    def root_index(self, value: str) -> tuple[Index, ...]:
        """An axis for each dimension, or several where what is read upstream parts it (groups, reshapes, repeats)."""
        index = []
        for d, parts in enumerate(root_parts(self.graph, value)):
            at = Index()
            for k, extent in enumerate(parts):
                if extent != 1:
                    a = self.fresh_axis(f"i{d}" if k == len(parts) - 1 else f"{'gho'[k]}{d}", extent)
                    self.root.append(a)
                    at = at + a.index * product(parts[k + 1 :])
            index.append(at)
        return tuple(index)

    def other_output(
        self, value: str, root: str, root_index: tuple[Index, ...]
    ) -> tuple[str, tuple[Index, ...], Scalar]:
        """A second output: made on the way, at an index that covers it exactly, or over the root's own axes."""
        shape = self.graph.types[value].shape
        for key, result in self.scopes[0].memo.items():
            if isinstance(key, tuple) and key[0] == value and self.covers(key[1], shape):
                return value, key[1], result
        if len(shape) == len(root_index) and all(
            (i == Index()) if d == 1 else self.index_extent(i) == d for i, d in zip(root_index, shape, strict=True)
        ):
            return value, root_index, self.at(value, root_index)
        raise Refused("outputs-differ", "two outputs of the region do not share one iteration space",
                      first=f"[{dims_text(self.graph.types[root].shape)}]", second=f"[{dims_text(shape)}]")  # fmt: skip

    def covers(self, index: tuple[Index, ...], shape: tuple[Dim, ...]) -> bool:
        """Each dimension is walked by axes of its own, whole."""
        names = [n for i in index for n in i.axes]
        return len(set(names)) == len(names) and all(
            (d == 1 and i == Index()) or self.index_extent(i) == d for i, d in zip(index, shape, strict=True)
        )

    def phase(self) -> Phase:
        grid = tuple(a for a in self.root if a.name not in self.whole)
        return Phase(grid, tuple(self.scopes[0].statements))


class _OnlineLowering(OnlineNests, _Lowering):
    """The same walk, with online softmax."""
