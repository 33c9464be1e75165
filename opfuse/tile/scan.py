"""Recurrences -> tile programs: one phase, a grid over rows of the batch, a loop of single steps along time.

    phase grid(b):
      loop t carry h[b, j] = h0 -> next, c[b, j] = c0 -> cell:
        hk[b, k] = h, j as k
        g[b, j] = load gates[t, b, j]; w[k, j] = load r[0, k, j]; s[b, j] = dot(g, hk, w, over k)
        ...
        store next -> y[t, b, j]
      store h -> y_h[b, j]

Everything of a step comes from the operator's `Scan`; what it reads may be made in the region by operators that work
point by point. A row needs all columns of the state of the step before, so columns are whole axes.
"""

from __future__ import annotations

from opfuse.ir.graph import Graph, Node, user_name
from opfuse.ir.index import Index
from opfuse.ir.ops import scan_of, structure_of
from opfuse.ir.scalar import Operand, Scalar, walk
from opfuse.ir.scan import Carried, Product, Scan, summed_index
from opfuse.ir.structure import Access
from opfuse.tile.program import Carry, Dot, Load, Loop, Phase, Rename, Store, Tile
from opfuse.tile.walk import Refused, Scope, Values


def scans(graph: Graph) -> list[Node]:
    """The recurrences of a region."""
    return [n for n in graph.nodes.values() if scan_of(graph, n) is not None]


class ScanLowering(Values):
    """A region whose results are those of one recurrence."""

    def run(self) -> None:
        nodes = scans(self.graph)
        if len(nodes) > 1:
            raise Refused("two-recurrences", "two recurrences do not run in one kernel", nodes=[n.name for n in nodes])
        (node,) = nodes
        scan = scan_of(self.graph, node)
        assert scan is not None
        self.require_alone(node)
        _Steps(self, node, scan).run()

    def phase(self) -> Phase:
        return Phase(tuple(a for a in self.root if a.name not in self.whole), tuple(self.scopes[0].statements))

    def require_alone(self, node: Node) -> None:
        """Its results leave the region as they are, and what it reads is made point by point."""
        for value in self.graph.outputs.values():
            if value not in node.outputs:
                text = f"{value} is no result of {node.op}: it is made in a kernel of its own"
                raise Refused("after-recurrence", text, node=user_name(node))
        for other in self.graph.nodes.values():
            structure = structure_of(self.graph, other)
            if other is not node and (structure is None or structure.reduce_axes):
                raise Refused("before-recurrence", f"{other.op} sums for every step of {node.op}: it is made before",
                              node=other.name)  # fmt: skip


class _Steps:
    """The program of one scan: its values by number, as tiles or scalars, over the program's own axes."""

    def __init__(self, lowering: ScanLowering, node: Node, scan: Scan) -> None:
        self.to, self.node, self.scan = lowering, node, scan
        self.made: dict[int, Scalar] = {}
        self.renamed: dict[int, Tile] = {}
        self.here: dict[str, Index] = {}
        self.names: frozenset[str] = frozenset()  # of the axes that every value lies over
        self.inside: frozenset[str] = frozenset()  # those, and time

    def run(self) -> None:
        to, scan = self.to, self.scan
        for a in scan.axes:
            if a.extent == 1 and a is not scan.axes[-1]:
                self.here[a.name] = Index()
                continue
            axis = to.fresh_axis(a.name, a.extent)
            to.root.append(axis)
            self.here[a.name] = axis.index
        self.column = to.root[-1]
        self.summed = to.fresh_axis("k", self.column.extent)
        to.whole |= {self.column.name, self.summed.name}
        self.names = frozenset(a.name for a in to.root)
        to.scopes[0].statements.append(self.steps())
        self.store_last()

    def steps(self) -> Loop:
        """The loop along time, every value of a step made in order, results of the step stored."""
        to, scan = self.to, self.scan
        carried = {k: v for k, v in enumerate(scan.values) if isinstance(v, Carried)}
        first = {k: self.first(v) for k, v in carried.items()}
        time = to.fresh_axis(scan.time.name, scan.time.extent)
        to.loops.add(time.name)
        to.points.add(time.name)
        self.here[scan.time.name] = time.index
        self.inside = self.names | {time.name}
        for k, v in carried.items():
            self.made[k] = to.fresh_tile("state", self.inside, v.dtype)
        scope = Scope(time)
        to.scopes.append(scope)
        for k, each in enumerate(scan.values):
            if k not in self.made:
                self.made[k] = self.value(each)
        nexts = {k: self.tile(v.next) for k, v in carried.items()}
        self.store_each()
        to.scopes.pop()
        carries = tuple(Carry(self.carried(k), first[k], nexts[k]) for k in carried)
        return Loop(time, carries, tuple(scope.statements))

    def first(self, v: Carried) -> Scalar:
        if isinstance(v.init, Access):
            return self.read(v.init)
        for x in walk(v.init):
            if isinstance(x, Operand):
                self.made[x.index] = self.value(self.scan.values[x.index])
        return self.to.fill(v.init, self.made, self.here)

    def carried(self, k: int) -> Tile:
        tile = self.made[k]
        assert isinstance(tile, Tile)
        return tile

    # ---- values of a step -------------------------------------------------------------------------------------------
    def value(self, v: Access | Carried | Product | Scalar) -> Scalar:
        match v:
            case Access():
                return self.read(v)
            case Product():
                return self.product(v)
            case Carried():
                raise AssertionError("carried values are made by the loop")
            case _:
                return self.to.map("v", self.to.fill(v, self.made, self.here))

    def read(self, access: Access) -> Scalar:
        value = self.node.inputs[access.operand]
        assert value is not None
        return self.to.at(value, tuple(i.substitute(self.here) for i in access.index), access.pad)

    def product(self, p: Product) -> Tile:
        """The dot of a state, read along the summed axis, with a weight."""
        to = self.to
        weight = self.weight(p.weight)
        start = self.as_tile(to.fill(p.start, self.made, self.here))
        out = to.fresh_tile("d", self.inside, start.dtype)
        to.emit(Dot(out, start, self.as_rows(p.value), weight, self.summed), self.inside)
        return out

    def weight(self, access: Access) -> Tile:
        """The weight of a product: read anew in every step, for no registers hold it."""
        to, time = self.to, self.here[self.scan.time.name].axes
        inner = {**self.here, **dict.fromkeys(summed_index().axes, self.summed.index)}
        value = self.node.inputs[access.operand]
        assert value is not None
        index = tuple(i.substitute(inner) for i in access.index)
        names = frozenset(n for i in index for n in i.axes) | time
        if to.graph.producer(value) is None:
            buffer = to.buffer(value)
            out = to.fresh_tile("w", names, buffer.dtype)
            to.emit(Load(out, buffer, index, None), names)
            return out
        made = to.at(value, index)
        return made if isinstance(made, Tile) else to.map("w", made, names)

    def as_rows(self, k: int) -> Tile:
        """A value of the step along the summed axis in place of its columns."""
        to = self.to
        if k not in self.renamed:
            tile = self.tile(k)
            names = (self.inside - {self.column.name}) | {self.summed.name}
            out = self.renamed[k] = to.fresh_tile("rows", names, tile.dtype)
            to.emit(Rename(out, tile, self.column, self.summed), names)
        return self.renamed[k]

    def tile(self, k: int) -> Tile:
        """A value as a tile over all of the scan's axes."""
        return self.as_tile(self.made[k])

    def as_tile(self, value: Scalar) -> Tile:
        if isinstance(value, Tile) and {a.name for a in value.axes} == self.names:
            return value
        return self.to.map("v", value, self.names)

    # ---- results ----------------------------------------------------------------------------------------------------
    def store_each(self) -> None:
        for k, r in enumerate(self.scan.results):
            if not r.last:
                self.store(k, self.tile(r.value), r.index)

    def store_last(self) -> None:
        for k, r in enumerate(self.scan.results):
            if r.last:
                self.store(k, self.carried(r.value), r.index)

    def store(self, k: int, tile: Tile, index: tuple[Index, ...]) -> None:
        value = self.node.outputs[k]
        if value not in self.to.graph.outputs.values():
            return
        buffer = self.to.output_buffer(f"y{k}", value)
        at = tuple(i.substitute(self.here) for i in index)
        self.to.scopes[-1].statements.append(Store(tile, buffer, at))
