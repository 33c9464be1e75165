"""Values of a region at an index: the walk from a use back to the loads, composing index maps on the way.

    values.at("relu_3", (axis("m").index, axis("n").index))     -> a tile, or a constant

Statements go into the innermost loop body that they depend on, and what is asked for twice at one index is made once.
What a structure with reduce axes becomes is the business of `nests`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node, user_name
from opfuse.ir.index import AxisTerm, Gathered, Index, axis, simplify
from opfuse.ir.ops import structure_of
from opfuse.ir.placement import is_dense
from opfuse.ir.scalar import Const, Operand, Position, Scalar, apply, cast, const, substitute, walk
from opfuse.ir.scalar import extent as extent_scalar
from opfuse.ir.structure import Axis, Structure
from opfuse.ir.types import DType
from opfuse.tile.positions import Unplaceable, index_scalar
from opfuse.tile.program import Buffer, Load, Map, Role, Statement, Tile


class Refused(Exception):
    """Carries a refusal up from inside the walk; never leaves `lower`."""

    def __init__(self, code: str, text: str, **facts: object) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text, facts)


@dataclass
class Scope:
    """A body under construction. `axis` is the loop that it belongs to; None for the outermost."""

    axis: Axis | None
    statements: list[Statement] = field(default_factory=list)
    memo: dict[object, Scalar] = field(default_factory=dict)


class Values:
    """The program under construction, and the walk. Subclasses say what nests of loops become."""

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
        self.scopes = [Scope(None)]
        self.counter = 0

    def nest(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        """The reduced value of a structure with reduce axes, before its `finish`."""
        raise NotImplementedError

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
            role: Role = "weight" if weight else "in"
            self.buffers[value] = Buffer(name, type_.dtype, type_.shape, role, self.strides(value))
        return self.buffers[value]

    def strides(self, value: str) -> tuple[int, ...] | None:
        """How a value lies that is a slice or a part of another; None where it is row-major without gaps."""
        place = self.graph.placements.get(value)
        if place is None or is_dense(self.graph.types[value].static_shape, place.strides):
            return None
        return place.strides

    def output_buffer(self, name: str, value: str) -> Buffer:
        type_ = self.graph.types[value]
        out = self.buffers[value] = Buffer(name, type_.dtype, type_.shape, "out", self.strides(value))
        return out

    # ---- scopes -----------------------------------------------------------------------------------------------------
    def scope_for(self, names: frozenset[str]) -> Scope:
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
        if array is not None and array.size == 1:
            return self.number(value, array, index, pad)
        buffer = self.buffer(value)
        names = frozenset(n for i in index for n in i.axes) | self.gathered_axes(index)
        out = self.fresh_tile("t", names, buffer.dtype)
        self.emit(Load(out, buffer, index, pad), names)
        return out

    def number(self, value: str, array: np.ndarray, index: tuple[Index, ...], pad: Const | None) -> Scalar:
        """A constant of one element; where a window leaves it, the pad value stands."""
        type_ = self.graph.types[value]
        element = const(array.reshape(-1)[0].item(), type_.dtype)
        inside = self.inside(index, type_.shape) if pad is not None else None
        return element if pad is None or inside is None else self.map("v", apply("select", inside, element, pad))

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
        if s.reduce_axes:
            return self.finish(s, here, self.nest(node, s, here))
        body = self.body(node, s, here)
        if isinstance(body, (Const, Tile)):
            return body
        return self.map("v", body)

    # ---- the formula of one structure -------------------------------------------------------------------------------
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
                          node=user_name(node))  # fmt: skip
        index = tuple(i.substitute(here, lambda t: wrapped[t]) for i in read.index)
        return self.at(value, index, read.pad)

    def gather_index(self, node: Node, s: Structure, term: Gathered, here: Mapping[str, Index],
                     extent: Dim) -> Gathered:  # fmt: skip
        """The integer tile of a gathered index; negative values count from the end."""
        assert isinstance(term.source, int)
        raw = self.operand(node, s, term.source, here)
        if not isinstance(extent, int):
            text = f"{node.op} gathers along a dimension of run-time extent"
            raise Refused("gather-symbolic", text, node=user_name(node))
        if raw.dtype is not DType.I32:  # a byte does not hold the extents
            raw = cast(raw, DType.I64)
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
                return cast(self.position(here.get(x.axis, axis(x.axis))), x.dtype)
            return None

        return substitute(formula, replace)

    def finish(self, s: Structure, here: Mapping[str, Index], reduced: Scalar) -> Scalar:
        if s.finish is None:
            return reduced
        return self.map("f", self.fill(s.finish, {0: reduced}, here))

    # ---- reads that may leave a value of the region -----------------------------------------------------------------
    def guarded(self, node: Node, s: Structure, index: tuple[Index, ...], pad: Const) -> Scalar:
        """A value of the region read through a window: inside its bounds what it is, outside the pad value.

        Its own operands are read with a pad too (any number will do), so that no load leaves its buffer.
        """
        if s.reduce_axes or any(r.gathers for r in s.reads):
            raise Refused("padded-interior", f"{node.op} is read through a padded window: it must be stored first",
                          node=user_name(node))  # fmt: skip
        here = {a.name: i for a, i in zip(s.axes, index, strict=True)}
        leaves: dict[int, Scalar] = {}
        for k in sorted({x.index for x in walk(s.body) if isinstance(x, Operand)}):
            read = s.reads[k]
            operand = node.inputs[read.operand]
            assert operand is not None
            safe = read.pad or const(0, self.graph.types[operand].dtype)
            leaves[k] = self.at(operand, tuple(i.substitute(here) for i in read.index), safe)
        inside = self.inside(index, self.graph.types[node.output].shape)
        value = self.fill(s.body, leaves, here)
        return value if inside is None else self.map("v", apply("select", inside, value, pad))

    def inside(self, index: tuple[Index, ...], shape: tuple[Dim, ...]) -> Scalar | None:
        """The condition under which an index stays inside a shape; None where it always does."""
        bounds = [b for i, d in zip(index, shape, strict=True) for b in self.bounds(i, d)]
        return functools.reduce(lambda a, b: apply("and", a, b), bounds) if bounds else None

    def bounds(self, i: Index, extent: Dim) -> list[Scalar]:
        """Conditions under which an index stays inside a dimension; none where it is a whole axis of that extent."""
        if self.index_extent(i) == extent or (not i.terms and isinstance(i.const, int) and i.const == 0):
            return []
        place = self.position(i)
        return [apply("ge", place, const(0, DType.I64)), apply("lt", place, extent_scalar(extent))]

    def position(self, i: Index) -> Scalar:
        try:
            return index_scalar(i)
        except Unplaceable as error:
            raise Refused("symbolic-position", str(error)) from error

    @staticmethod
    def keeps_bounds(s: Structure) -> bool:
        """A permutation of axes: outside of the output is outside of the input, dimension by dimension."""
        return (
            s.is_movement
            and all(len(i.terms) == 1 and i.const == 0 and i.terms[0][1] == 1 and i.affine for i in s.reads[0].index)
            and len({n for i in s.reads[0].index for n in i.axes}) == len(s.axes)
        )

    def index_extent(self, i: Index) -> Dim | None:
        """The extent of an index that walks a dimension from 0 in steps of one: an axis, or the parts of one."""
        if i.const != 0 or not i.terms:
            return None
        walked: Dim = 1
        left = dict(i.terms)
        while left:  # the axis whose neighbours are as far apart as what is walked already
            term = next((t for t, c in left.items() if c == walked and isinstance(t, AxisTerm)), None)
            if not isinstance(term, AxisTerm):
                return None
            walked = walked * self.extents[term.name]
            del left[term]
        return walked
