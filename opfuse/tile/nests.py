"""Nests of loops: what reductions, windows and contractions become in a tile program.

    mean over a row      a tile over a whole axis, and a Reduce
    pooling window       loops of single steps that carry the maximum
    matrix product       loops that carry the accumulator around a Dot; one Dot over all of k where an operand is made
                         in the region
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from opfuse.ir.graph import Node, user_name
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.ops import structure_of
from opfuse.ir.scalar import Const, Scalar, apply, const
from opfuse.ir.structure import Axis, Structure
from opfuse.ir.types import DType
from opfuse.tile.program import Carry, Dot, Loop, Map, Reduce, Tile
from opfuse.tile.walk import Refused, Scope, Values


def lowest(d: DType) -> float | int:
    """The identity of a maximum."""
    return float("-inf") if d.is_float else 0 if d is DType.BOOL else int(np.iinfo(d.numpy).min)


def highest(d: DType) -> float | int:
    """The identity of a minimum."""
    return float("inf") if d.is_float else 1 if d is DType.BOOL else int(np.iinfo(d.numpy).max)


MOST_DEPTH = 512  # of a product that is made at once: wider than heads are

IDENTITY: Mapping[str, Callable[[DType], Const]] = {
    "sum": lambda d: const(0, d),
    "prod": lambda d: const(1, d),
    "max": lambda d: const(lowest(d), d),
    "min": lambda d: const(highest(d), d),
    "and": lambda d: const(True, d),
    "or": lambda d: const(False, d),
}  # fmt: skip
COMBINE_FUNCTION = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


class Nests(Values):
    def nest(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        return self.contraction(node, s, here) if s.is_contraction else self.reduction(node, s, here)

    # ---- reductions -------------------------------------------------------------------------------------------------
    def reduction(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        kept = [a for a in s.reduce_axes if a.extent != 1]
        here = {**here, **{a.name: Index() for a in s.reduce_axes if a.extent == 1}}
        if not kept:
            return self.body(node, s, here)
        if any(self.in_window(s, a) for a in kept):
            return self.window(node, s, here, kept)
        used = frozenset(n for i in here.values() for n in i.axes)
        over: list[Axis] = []
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
        """An axis to reduce along: one of the program's of this extent that is free here, so that tiles are shared."""
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
        self.scopes.append(Scope(made))
        return made

    def close_loops(self, opened: list[Axis], carried: list[Tile], init: Scalar, last: Tile,
                    names: frozenset[str]) -> Tile:  # fmt: skip
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
                text = f"{node.op} slides a window over the other's values: joined, each is made again for every window"
                raise Refused("window-of-interior", text, node=user_name(node))
            return self.whole_dot(node, s, here, k)
        names = frozenset(n for i in here.values() for n in i.axes)
        if len(kept) == 1 and self.shallow(node, s, k):
            return self.whole_dot(node, s, here, k, shares=False)
        opened, inner = [], dict(here)
        for a in [a for a in kept if a is not k] + [k]:
            opened.append(self.open_loop(a, inner, point=a is not k))
        a_tile, b_tile = self.operand(node, s, 0, inner), self.operand(node, s, 1, inner)
        if not (isinstance(a_tile, Tile) and isinstance(b_tile, Tile)):
            raise Refused("constant-operand", f"{node.op} multiplies by a single number", node=user_name(node))
        names &= self.depends[a_tile.name] | self.depends[b_tile.name]
        carried = [self.fresh_tile("acc", names, a_tile.dtype) for _ in opened]
        last = self.fresh_tile("acc", names, a_tile.dtype)
        self.scopes[-1].statements.append(Dot(last, carried[-1], a_tile, b_tile, opened[-1]))
        return self.close_loops(opened, carried, const(0, a_tile.dtype), last, names)

    def shallow(self, node: Node, s: Structure, k: Axis) -> bool:
        """A short sum over no weights, as of scores: made at once, its operands turned round where they need it."""
        weights = [r for r in s.reads if self.graph.is_constant(node.inputs[r.operand])]
        return not weights and isinstance(k.extent, int) and k.extent <= MOST_DEPTH

    def computed(self, value: str | None) -> bool:
        """Made inside the region by more than movement."""
        node = self.graph.producer(value) if value is not None else None
        while node is not None:
            structure = structure_of(self.graph, node)
            if structure is None or not structure.is_movement:
                return True
            node = self.graph.producer(node.inputs[structure.reads[0].operand] or "")
        return False

    def light(self, value: str | None) -> bool:
        """Made in the region element by element, without a sum: as of queries and keys that are scaled."""
        node = self.graph.producer(value) if value is not None else None
        if node is None:
            return True
        structure = structure_of(self.graph, node)
        return structure is not None and not structure.reduce_axes and all(self.light(i) for i in node.reads)

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
        """The axis shares a dimension with a plain parallel axis: a window. A group's quotient beside it makes none."""
        parallel = {p.name for p in s.axes}
        return any(isinstance(t, AxisTerm) and t.name in parallel for t, _ in i.terms)

    def whole_dot(self, node: Node, s: Structure, here: Mapping[str, Index], k: Axis, shares: bool = True) -> Scalar:
        """A product with an operand made in the region: that operand is a tile that holds all of k.

        Where no operand is made here there is no tile to share, and an axis of its own keeps the order of its loads.
        """
        used = frozenset(n for i in here.values() for n in i.axes)
        shared = self.shared_axis(k, used) if shares else self.fresh_axis(k.name, k.extent)
        self.whole.add(shared.name)
        inner = {**here, k.name: shared.index}
        a_tile, b_tile = self.operand(node, s, 0, inner), self.operand(node, s, 1, inner)
        a_tile = a_tile if isinstance(a_tile, Tile) else self.map("a", a_tile, frozenset((shared.name,)))
        b_tile = b_tile if isinstance(b_tile, Tile) else self.map("b", b_tile, frozenset((shared.name,)))
        if shared.name not in self.depends[a_tile.name] | self.depends[b_tile.name]:  # both are broadcast along it
            b_tile = self.map("b", b_tile, frozenset((shared.name,)))
        names = (self.depends[a_tile.name] | self.depends[b_tile.name]) & used - {shared.name}
        shallow = self.shallow(node, s, k)
        for t, r in ((a_tile, s.reads[0]), (b_tile, s.reads[1])):
            if self.computed(node.inputs[r.operand]) and not (shallow and self.light(node.inputs[r.operand])):
                # columns that the operand does not depend on must stand in one tile, or it is made again for each
                self.whole |= names - {x.name for x in t.axes} - self.points
        zero = self.map("z", const(0, a_tile.dtype), names)
        out = self.fresh_tile("d", names, a_tile.dtype)
        self.emit(Dot(out, zero, a_tile, b_tile, shared), names)
        return out
