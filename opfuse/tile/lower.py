"""Region -> tile program: walk the structures from the stores back to the loads, at one tile.

    lower(region.subgraph(graph), "conv_relu")  -> LoweredRegion(program, arguments) or a Refusal

A value is asked for *at* an index (one `Index` a dimension, over the program's axes) and answers with a scalar
expression or a tile. An operator inside the region answers by asking its operands at its composed index maps, so
transposes, reshapes, slices and broadcasts leave no trace but an index; a value from outside answers with a load. A
reduction opens an axis (or shares one that the program has already, so that a row is read once); a contraction opens a
loop with a dot. Nothing here looks at an operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder, axis, simplify
from opfuse.ir.ops import structure_of
from opfuse.ir.scalar import Const, Operand, Position, Scalar, apply, cast, const, substitute, walk
from opfuse.ir.scalar import extent as extent_scalar
from opfuse.ir.structure import Axis, Structure
from opfuse.ir.types import DType
from opfuse.tile.axes import merge_axes, order_axes
from opfuse.tile.expand import expand_composites
from opfuse.tile.program import Buffer, Carry, Dot, Load, Loop, Map, Phase, Program, Reduce, Statement, Store, Tile

IDENTITY: Mapping[str, Callable[[DType], Const]] = {
    "sum": lambda d: const(0, d),
    "prod": lambda d: const(1, d),
    "max": lambda d: const(float("-inf") if d.is_float else int(np.iinfo(d.numpy).min), d) if d is not DType.BOOL else const(False, d),
    "min": lambda d: const(float("inf") if d.is_float else int(np.iinfo(d.numpy).max), d) if d is not DType.BOOL else const(True, d),
    "and": lambda d: const(True, d),
    "or": lambda d: const(False, d),
}  # fmt: skip
COMBINE_FUNCTION = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


@dataclass(frozen=True)
class LoweredRegion:
    program: Program
    arguments: Mapping[str, str]  # buffer name -> value of the graph


class Refused(Exception):
    """Carries a refusal up from inside the walk; never leaves `lower`."""

    def __init__(self, code: str, text: str, **facts: object) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text, facts)


def lower(region: Graph, name: str) -> LoweredRegion | Refusal:
    """The tile program of a region's subgraph, or why there is none."""
    graph = expand_composites(region)
    if isinstance(graph, Refusal):
        return graph
    walk_ = _Walk(graph)
    try:
        walk_.run()
    except Refused as refused:
        return refused.refusal
    origin = user_names(region.nodes.values())
    program = Program(name, tuple(walk_.buffers.values()), (walk_.phase(),), origin)
    program = order_axes(merge_axes(program))
    made = {graph.outputs[public]: value for public, value in region.outputs.items()}
    return LoweredRegion(program, {b.name: made.get(value, value) for value, b in walk_.buffers.items()})


@dataclass
class _Scope:
    """A body under construction. `axis` is the loop that it belongs to; None for the outermost."""

    axis: Axis | None
    statements: list[Statement] = field(default_factory=list)
    memo: dict[object, Scalar] = field(default_factory=dict)


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.extents: dict[str, Dim] = {}
        self.axes: dict[str, Axis] = {}
        self.root: list[Axis] = []
        self.whole: set[str] = set()  # axes that a tile must hold whole
        self.loops: set[str] = set()
        self.points: set[str] = set()  # loop axes that go in single steps: no tile lists them
        self.depends: dict[str, frozenset[str]] = {}  # tile -> every axis that its value depends on, points too
        self.buffers: dict[str, Buffer] = {}
        self.scopes = [_Scope(None)]
        self.counter = 0

    # ---- names ------------------------------------------------------------------------------------------------------
    def fresh_axis(self, hint: str, extent: Dim) -> Axis:
        name = hint if hint not in self.axes else f"{hint}{sum(a.rstrip('0123456789') == hint for a in self.axes)}"
        while name in self.axes:
            name += "_"
        made = self.axes[name] = Axis(name, extent)
        self.extents[name] = extent
        return made

    def fresh_tile(self, hint: str, index: frozenset[str], dtype: DType) -> Tile:
        self.counter += 1
        axes = tuple(a for a in self.axes.values() if a.name in index and a.name not in self.points)
        tile = Tile(f"{hint}{self.counter}", axes, dtype)
        self.depends[tile.name] = index
        return tile

    def dependence(self, value: Scalar) -> frozenset[str]:
        """Every axis that an expression depends on."""
        names = frozenset(x.axis for x in walk(value) if isinstance(x, Position))
        return names.union(*(self.depends[x.name] for x in walk(value) if isinstance(x, Tile)))

    def buffer(self, value: str) -> Buffer:
        if value not in self.buffers:
            type_ = self.graph.types[value]
            weight = self.graph.is_constant(value)
            prefix = "w" if weight else "x"
            name = f"{prefix}{sum(b.name[0] == prefix for b in self.buffers.values())}"
            self.buffers[value] = Buffer(name, type_.dtype, type_.shape, "weight" if weight else "in")
        return self.buffers[value]

    # ---- scopes -----------------------------------------------------------------------------------------------------
    def scope_for(self, names: frozenset[str]) -> _Scope:
        """The innermost scope whose loop axis is among the names: where a statement over these axes belongs."""
        for scope in reversed(self.scopes):
            if scope.axis is None or scope.axis.name in names:
                return scope
        return self.scopes[0]

    def emit(self, statement: Statement, names: frozenset[str]) -> None:
        self.scope_for(names).statements.append(statement)

    def remembered(self, key: object) -> Scalar | None:
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        return None

    # ---- the whole region -------------------------------------------------------------------------------------------
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
            stores.append(self.other_output(value, index))
        for k, (value, at, result) in enumerate(stores):
            type_ = self.graph.types[value]
            out = Buffer(f"y{k}", type_.dtype, type_.shape, "out")
            self.buffers[value] = out
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
        """One axis for each dimension; a grouped convolution's channels are split into group and channel of the group."""
        index = []
        for d, extent in enumerate(self.graph.types[value].shape):
            groups = self.group_split(value, d)
            if extent == 1:
                index.append(Index())
            elif groups is not None:
                count, each = groups
                g, c = self.fresh_axis(f"g{d}", count), self.fresh_axis(f"i{d}", each)
                self.root += [g, c]
                index.append(g.index * each + c.index)
            else:
                a = self.fresh_axis(f"i{d}", extent)
                self.root.append(a)
                index.append(a.index)
        return tuple(index)

    def group_split(self, value: str, dimension: int) -> tuple[Dim, Dim] | None:
        """(groups, channels a group) where a contraction upstream reads through a quotient of this dimension."""
        node = self.graph.producer(value)
        while node is not None:
            structure = structure_of(self.graph, node)
            if structure is None or len(structure.axes) <= dimension:
                return None
            if structure.is_contraction:
                name = structure.axes[dimension].name
                for read in structure.reads:
                    for i in read.index:
                        for term, _ in i.terms:
                            if isinstance(term, Quotient) and term.numerator == axis(name) and structure.reduce_axes:
                                extent = structure.axes[dimension].extent
                                if term.divisor == extent:
                                    return None
                                return extent // term.divisor, term.divisor
                return None
            if structure.reduce_axes:
                return None
            same = [n for n in node.reads if self.graph.types[n].shape == self.graph.types[value].shape]
            node = next((p for n in same if (p := self.graph.producer(n)) is not None), None)
        return None

    def other_output(self, value: str, root_index: tuple[Index, ...]) -> tuple[str, tuple[Index, ...], Scalar]:
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
                      first=str(root_index), second=str(shape))  # fmt: skip

    def index_extent(self, i: Index) -> Dim | None:
        match i.terms:
            case ((AxisTerm(name), 1),) if i.const == 0:
                return self.extents[name]
            case ((AxisTerm(g), each), (AxisTerm(c), 1)) if i.const == 0 and self.extents[c] == each:
                return self.extents[g] * each
            case _:
                return None

    def covers(self, index: tuple[Index, ...], shape: tuple[Dim, ...]) -> bool:
        """Each dimension is walked by axes of its own, whole."""
        names = [n for i in index for n in i.axes]
        return len(set(names)) == len(names) and all(
            (d == 1 and i == Index()) or self.index_extent(i) == d for i, d in zip(index, shape, strict=True)
        )

    def phase(self) -> Phase:
        grid = tuple(a for a in self.root if a.name not in self.whole)
        return Phase(grid, tuple(self.scopes[0].statements))

    # ---- a value at an index ----------------------------------------------------------------------------------------
    def at(self, value: str, index: tuple[Index, ...], pad: Const | None = None) -> Scalar:
        index = tuple(simplify(i, self.extents) for i in index)
        key = (value, index, pad) if pad is not None else (value, index)
        found = self.remembered(key)
        if found is not None:
            return found
        names = frozenset(n for i in index for n in i.axes)
        node = self.graph.producer(value)
        if node is None:
            result = self.load(value, index, pad)
        else:
            structure = structure_of(self.graph, node)
            assert structure is not None
            if pad is not None and not self.keeps_bounds(structure):
                result = self.guarded(node, structure, index, pad)
            else:
                result = self.produce(node, structure, index, pad)
        self.scope_for(names | self.dependence(result)).memo[key] = result
        return result

    def load(self, value: str, index: tuple[Index, ...], pad: Const | None) -> Scalar:
        array = self.graph.constants.get(value)
        if array is not None and array.size == 1 and pad is None:
            return const(array.reshape(-1)[0].item(), self.graph.types[value].dtype)
        buffer = self.buffer(value)
        names = frozenset(n for i in index for n in i.axes) | self.gathered_axes(index)
        out = self.fresh_tile("t", names, buffer.dtype)
        self.emit(Load(out, buffer, index, pad), names)
        return out

    def gathered_axes(self, index: tuple[Index, ...]) -> frozenset[str]:
        tiles = [t.source for i in index for t, _ in i.terms if isinstance(t, Gathered)]
        return frozenset().union(*(self.depends[t] for t in tiles if isinstance(t, str)))

    def map(self, hint: str, value: Scalar, extra: frozenset[str] = frozenset()) -> Tile:
        names = self.dependence(value) | extra
        out = self.fresh_tile(hint, names, value.dtype)
        self.emit(Map(out, value), names)
        return out

    def produce(self, node: Node, s: Structure, index: tuple[Index, ...], pad: Const | None) -> Scalar:
        here = {a.name: i for a, i in zip(s.axes, index, strict=True)}
        if s.is_movement:
            operand = node.inputs[s.reads[0].operand]
            assert operand is not None
            return self.at(operand, tuple(i.substitute(here) for i in s.reads[0].index), pad)
        if s.is_contraction:
            return self.finish(s, here, self.contraction(node, s, here))
        if s.reduce_axes:
            return self.finish(s, here, self.reduction(node, s, here))
        body = self.body(node, s, here)
        if isinstance(body, (Const, Tile)):
            return body
        return self.map("v", body)

    def guarded(self, node: Node, s: Structure, index: tuple[Index, ...], pad: Const) -> Scalar:
        """A value of the region read through a window: inside its bounds what it is, outside the pad value.

        Its own operands are read with a pad too (any number will do), so that no load leaves its buffer.
        """
        if s.reduce_axes or any(r.gathers for r in s.reads):
            raise Refused("padded-interior", f"{node.op} is read through a window with padding: it must be stored first",
                          node=node.name)  # fmt: skip
        here = {a.name: i for a, i in zip(s.axes, index, strict=True)}
        leaves: dict[int, Scalar] = {}
        for k in sorted({x.index for x in walk(s.body) if isinstance(x, Operand)}):
            read = s.reads[k]
            operand = node.inputs[read.operand]
            assert operand is not None
            safe = read.pad or const(0, self.graph.types[operand].dtype)
            leaves[k] = self.at(operand, tuple(i.substitute(here) for i in read.index), safe)
        inside: Scalar | None = None
        for i, extent in zip(index, self.graph.types[node.output].shape, strict=True):
            for bound in self.bounds(i, extent):
                inside = bound if inside is None else apply("and", inside, bound)
        value = self.fill(s.body, leaves, here)
        return value if inside is None else self.map("v", apply("select", inside, value, pad))

    def bounds(self, i: Index, extent: Dim) -> list[Scalar]:
        """Conditions under which an index stays inside a dimension; none where it is a whole axis of that extent."""
        if self.index_extent(i) == extent or (not i.terms and isinstance(i.const, int) and i.const == 0):
            return []
        place = index_scalar(i, self.extents)
        return [apply("ge", place, const(0, DType.I64)), apply("lt", place, extent_scalar(extent))]

    @staticmethod
    def keeps_bounds(s: Structure) -> bool:
        """A permutation of axes: outside of the output is outside of the input, dimension by dimension."""
        return (
            s.is_movement
            and all(len(i.terms) == 1 and i.const == 0 and i.terms[0][1] == 1 and i.affine for i in s.reads[0].index)
            and len({n for i in s.reads[0].index for n in i.axes}) == len(s.axes)
        )

    def body(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        """The scalar formula of a structure with its reads and positions filled in."""
        leaves: dict[int, Scalar] = {}
        for k in sorted({x.index for x in walk(s.body) if isinstance(x, Operand)}):
            leaves[k] = self.operand(node, s, k, here)
        return self.fill(s.body, leaves, here)

    def operand(self, node: Node, s: Structure, k: int, here: Mapping[str, Index]) -> Scalar:
        read = s.reads[k]
        value = node.inputs[read.operand]
        assert value is not None
        wrapped: dict[Gathered, Gathered] = {}
        for d, i in enumerate(read.index):
            for t, _ in i.terms:
                if isinstance(t, Gathered):
                    wrapped[t] = self.gather_index(node, s, t, here, self.graph.types[value].shape[d])
        if wrapped and self.graph.producer(value) is not None:
            raise Refused("gathered-interior", f"{node.op} gathers from a value of the region: it must be stored first",
                          node=node.name)  # fmt: skip
        index = tuple(i.substitute(here, lambda t: wrapped[t]) for i in read.index)
        return self.at(value, index, read.pad)

    def gather_index(self, node: Node, s: Structure, term: Gathered, here: Mapping[str, Index], extent: Dim) -> Gathered:
        """The integer tile of a gathered index; negative values count from the end."""
        assert isinstance(term.source, int)
        raw = self.operand(node, s, term.source, here)
        if not isinstance(extent, int):
            raise Refused("gather-symbolic", f"{node.op} gathers along a dimension of run-time extent", node=node.name)
        zero, n = const(0, raw.dtype), const(extent, raw.dtype)
        value = apply("select", apply("lt", raw, zero), apply("add", raw, n), raw)
        bounded = apply("max", zero, apply("min", value, const(extent - 1, raw.dtype)))
        key = ("gather", raw, extent)
        tile = self.remembered(key)
        if tile is None:
            tile = self.map("at", bounded)
            self.scope_for(self.depends[tile.name]).memo[key] = tile
        assert isinstance(tile, Tile)
        return Gathered(tile.name)

    def fill(self, formula: Scalar, leaves: Mapping[int, Scalar], here: Mapping[str, Index]) -> Scalar:
        def replace(x: Scalar) -> Scalar | None:
            if isinstance(x, Operand):
                return leaves[x.index]
            if isinstance(x, Position):
                return cast(index_scalar(here.get(x.axis, axis(x.axis)), self.extents), x.dtype)
            return None

        return substitute(formula, replace)

    def finish(self, s: Structure, here: Mapping[str, Index], reduced: Scalar) -> Scalar:
        if s.finish is None:
            return reduced
        return self.map("f", self.fill(s.finish, {0: reduced}, here))

    # ---- reductions -------------------------------------------------------------------------------------------------
    def reduction(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        kept = [a for a in s.reduce_axes if a.extent != 1]
        here = {**here, **{a.name: Index() for a in s.reduce_axes if a.extent == 1}}
        if not kept:
            return self.body(node, s, here)
        if any(self.in_window(s, a) for a in kept):
            return self.window(node, s, here, kept)
        used = frozenset(n for i in here.values() for n in i.axes)
        over = []
        for a in kept:
            shared = self.shared_axis(a, used | {o.name for o in over})
            self.whole.add(shared.name)
            over.append(shared)
            here = {**here, a.name: shared.index}
        body = self.body(node, s, here)
        names = frozenset(a.name for a in over)
        tile = body if isinstance(body, Tile) and names <= {a.name for a in body.axes} else self.map("r", body, names)
        assert s.combine is not None
        out = self.fresh_tile("s", self.depends[tile.name] - names, tile.dtype)
        self.emit(Reduce(out, s.combine, tile, tuple(over)), self.depends[out.name])
        return out

    def shared_axis(self, a: Axis, used: frozenset[str]) -> Axis:
        """An axis of the program to reduce along: one of the same extent that is free here, so that tiles are shared."""
        for name, candidate in self.axes.items():
            if name not in used and name not in self.loops and candidate.extent == a.extent:
                return candidate
        return self.fresh_axis(a.name, a.extent)

    @staticmethod
    def in_window(s: Structure, a: Axis) -> bool:
        """The axis stands in an index together with another: a window that slides."""
        return any(a.name in i.axes and len(i.axes) > 1 for r in s.reads for i in r.index)

    def window(self, node: Node, s: Structure, here: Mapping[str, Index], kept: list[Axis]) -> Scalar:
        """Pooling and the like: a loop of single steps for each axis of the window, combining as it goes."""
        assert s.combine is not None
        dtype = s.body.dtype
        step = COMBINE_FUNCTION[s.combine]
        return self.point_loops(node, s, here, kept, IDENTITY[s.combine](dtype),
                                lambda acc, inner: apply(step, acc, self.body(node, s, inner)))  # fmt: skip

    def point_loops(self, node: Node, s: Structure, here: Mapping[str, Index], kept: list[Axis], init: Scalar,
                    combine: Callable[[Scalar, Mapping[str, Index]], Scalar]) -> Scalar:  # fmt: skip
        names = frozenset(n for i in here.values() for n in i.axes)
        inner, opened = dict(here), []
        for a in kept:
            opened.append(self.open_loop(a, inner, point=True))
        carried = [self.fresh_tile("acc", names, init.dtype) for _ in opened]
        value = combine(carried[-1], inner)
        last = self.fresh_tile("acc", names, init.dtype)
        self.scopes[-1].statements.append(Map(last, value))
        return self.close_loops(opened, carried, init, last, names)

    def open_loop(self, a: Axis, inner: dict[str, Index], point: bool) -> Axis:
        made = self.fresh_axis(a.name, a.extent)
        self.loops.add(made.name)
        if point:
            self.points.add(made.name)
        inner[a.name] = made.index
        self.scopes.append(_Scope(made))
        return made

    def close_loops(self, opened: list[Axis], carried: list[Tile], init: Scalar, last: Tile, names: frozenset[str]) -> Tile:
        """Pop the scopes of nested loops into `Loop` statements that hand one carried tile down and up again."""
        result = last
        for k in reversed(range(len(opened))):
            scope = self.scopes.pop()
            first: Scalar = init if k == 0 else carried[k - 1]
            loop = Loop(opened[k], (Carry(carried[k], first, result),), tuple(scope.statements))
            result = carried[k]
            if k > 0:
                self.scopes[-1].statements.append(loop)
            else:
                self.emit(loop, names)
        return result

    # ---- contractions -----------------------------------------------------------------------------------------------
    def contraction(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        kept = [a for a in s.reduce_axes if a.extent != 1]
        here = {**here, **{a.name: Index() for a in s.reduce_axes if a.extent == 1}}
        k = self.dot_axis(s, here, kept)
        if k is None:
            if any(self.in_window(s, a) for a in kept):
                return self.window(node, s, here, kept)
            return self.reduction(node, s, here)
        interior = [r for r in s.reads if self.computed(node.inputs[r.operand])]
        if interior:
            if len(kept) > 1:
                raise Refused("window-of-interior", f"{node.op} reads a window of a value of the region", node=node.name)
            return self.whole_dot(node, s, here, k)
        opened, inner = [], dict(here)
        names = frozenset(n for i in here.values() for n in i.axes)
        for a in [a for a in kept if a is not k] + [k]:
            opened.append(self.open_loop(a, inner, point=a is not k))
        a_tile, b_tile = self.operand(node, s, 0, inner), self.operand(node, s, 1, inner)
        if not (isinstance(a_tile, Tile) and isinstance(b_tile, Tile)):
            raise Refused("constant-operand", f"{node.op} multiplies by a single number", node=node.name)
        names &= self.depends[a_tile.name] | self.depends[b_tile.name]
        carried = [self.fresh_tile("acc", names, a_tile.dtype) for _ in opened]
        last = self.fresh_tile("acc", names, a_tile.dtype)
        self.scopes[-1].statements.append(Dot(last, carried[-1], a_tile, b_tile, opened[-1]))
        return self.close_loops(opened, carried, const(0, a_tile.dtype), last, names)

    def computed(self, value: str | None) -> bool:
        """Made inside the region by more than movement."""
        node = self.graph.producer(value) if value is not None else None
        while node is not None:
            structure = structure_of(self.graph, node)
            if structure is None or not structure.is_movement:
                return True
            node = self.graph.producer(node.inputs[structure.reads[0].operand] or "")
        return False

    def dot_axis(self, s: Structure, here: Mapping[str, Index], kept: list[Axis]) -> Axis | None:
        """The axis of a matrix product: summed, plain in both operands, with columns of its own on the second."""
        summed = {a.name for a in kept}
        first, second = (
            frozenset(n for i in r.index for m in i.axes - summed for n in self.program_axes(m, here)) for r in s.reads
        )
        if not second - first or not s.body.dtype.is_float:
            return None
        for a in reversed(kept):
            dims = [[i for i in r.index if a.name in i.axes] for r in s.reads]
            if all(len(d) == 1 for d in dims) and not any(self.slides(i, a, s) for d in dims for i in d):
                return a
        return None

    def program_axes(self, name: str, here: Mapping[str, Index]) -> frozenset[str]:
        return here[name].axes if name in here else frozenset((name,))

    @staticmethod
    def slides(i: Index, a: Axis, s: Structure) -> bool:
        """The axis shares a dimension with a plain parallel axis (a window); a group's quotient beside it is no window."""
        parallel = {p.name for p in s.axes}
        return any(isinstance(t, AxisTerm) and t.name in parallel for t, _ in i.terms)

    def whole_dot(self, node: Node, s: Structure, here: Mapping[str, Index], k: Axis) -> Scalar:
        """A product with an operand made in the region: that operand is a tile that holds all of k."""
        used = frozenset(n for i in here.values() for n in i.axes)
        shared = self.shared_axis(k, used)
        self.whole.add(shared.name)
        inner = {**here, k.name: shared.index}
        a_tile, b_tile = self.operand(node, s, 0, inner), self.operand(node, s, 1, inner)
        a_tile = a_tile if isinstance(a_tile, Tile) else self.map("a", a_tile, frozenset((shared.name,)))
        b_tile = b_tile if isinstance(b_tile, Tile) else self.map("b", b_tile, frozenset((shared.name,)))
        names = (self.depends[a_tile.name] | self.depends[b_tile.name]) & used - {shared.name}
        for t, r in ((a_tile, s.reads[0]), (b_tile, s.reads[1])):
            if self.computed(node.inputs[r.operand]):
                # columns that the operand does not depend on must stand in one tile, or it is made again for each
                self.whole |= names - {x.name for x in t.axes} - self.points
        zero = self.map("z", const(0, a_tile.dtype), names)
        out = self.fresh_tile("d", names, a_tile.dtype)
        self.emit(Dot(out, zero, a_tile, b_tile, shared), names)
        return out


def index_scalar(i: Index, extents: Mapping[str, Dim]) -> Scalar:
    """An index as integer arithmetic on positions. Symbolic factors are refused."""
    if not isinstance(i.const, int):
        raise Refused("symbolic-position", f"position {i} needs a run-time number in a formula")
    total: Scalar | None = const(i.const, DType.I64) if i.const != 0 else None
    for t, c in i.terms:
        if not isinstance(c, int):
            raise Refused("symbolic-position", f"position {i} needs a run-time number in a formula")
        match t:
            case AxisTerm(name):
                term: Scalar = Position(name)
            case Quotient(n, d) | Remainder(n, d) if isinstance(d, int):
                function = "floordiv" if isinstance(t, Quotient) else "mod"
                term = apply(function, index_scalar(n, extents), const(d, DType.I64))
            case _:
                raise Refused("symbolic-position", f"position {i} cannot be computed from axes alone")
        term = term if c == 1 else apply("mul", term, const(c, DType.I64))
        total = term if total is None else apply("add", total, term)
    return total if total is not None else const(0, DType.I64)


