"""Softmax that meets a matrix product along its own axis: found by structure, whatever the operators are called.

    p = exp(x - max over j of x);   y = sum over j of (p / sum over j of p)[j] * v[j]

    Search(graph, extents).product_of(place of the first operand, side=0)    -> SoftmaxProduct or a Refusal

Between the division and the product may stand casts, factors that do not come from the softmax, and zeros in place of
whole rows or of NaN. Index maps are composed on the way; the axis that is summed over is called `KEYS` in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node, user_name
from opfuse.ir.index import Index, axis, simplify
from opfuse.ir.ops import structure_of
from opfuse.ir.scalar import Apply, Operand
from opfuse.ir.structure import Structure

KEYS = "(keys)"
KEYS_INDEX = axis(KEYS)


@dataclass(frozen=True)
class Place:
    """A value of the graph at an index over the program's axes and KEYS."""

    value: str
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Point:
    """A place whose value is computed there: by `node`, at the point `here` of its own axes."""

    place: Place
    node: Node
    structure: Structure
    here: Mapping[str, Index]


@dataclass(frozen=True)
class Step:
    """An operator between the softmax and the product, linear in `operand`, which comes from the softmax."""

    point: Point
    operand: int


@dataclass(frozen=True)
class ZeroRows:
    """Rows of which the weights are exchanged for zeros: where operand `condition` of a selection has this `value`."""

    point: Point
    condition: int | None  # None: where the weights are NaN
    value: bool = True


@dataclass(frozen=True)
class SoftmaxProduct:
    scores: Place
    side: int  # which operand of the product comes from the softmax
    steps: tuple[Step, ...]  # from the division down to the product
    zeros: tuple[ZeroRows, ...]  # in the same order
    inner: frozenset[str]  # values that the online form never makes


class Search:
    def __init__(self, graph: Graph, extents: Mapping[str, Dim]) -> None:
        self.graph, self.extents = graph, extents

    def product_of(self, start: Place, side: int) -> SoftmaxProduct | Refusal:
        """The softmax behind one operand of a product that sums over KEYS."""
        steps: list[Step] = []
        zeros: list[ZeroRows] = []
        inner: set[str] = set()
        at = start
        while True:
            inner.add(self.source(at).value)
            point = self.point(at)
            if isinstance(point, Refusal):
                return point
            match point.structure.body:
                case Apply("div", (Operand(a), Operand(b)), _) if not point.structure.reduce_axes:
                    scores = self.scores(self.read(point, a), self.read(point, b), inner)
                    if not isinstance(scores, Refusal):
                        return SoftmaxProduct(scores, side, tuple(steps[::-1]), tuple(zeros[::-1]), frozenset(inner))
                    if scores.code != "no-softmax" or KEYS in self.axes_of(self.read(point, b)):
                        return scores
                    k = a
                case Apply("mul", (Operand(a), Operand(b)), _) if not point.structure.reduce_axes:
                    k = a if self.leads_to_division(self.read(point, a)) else b
                case Apply("cast", (Operand(a, given),), to) if given.is_float and to.is_float:
                    k = a
                case Apply("select", (Operand(), Operand(), Operand()), _):
                    rows = self.zero_rows(point)
                    if isinstance(rows, Refusal):
                        return rows
                    zeros.append(rows)
                    at = self.read(point, _kept(rows))
                    continue
                case _:
                    return _refused("no-softmax", "reads no softmax along its own axis", point.node)
            steps.append(Step(point, k))
            at = self.read(point, k)

    # ---- the softmax itself -----------------------------------------------------------------------------------------
    def scores(self, top: Place, bottom: Place, inner: set[str]) -> Place | Refusal:
        """x, where top / bottom is exp(x - max of x) over its sum along KEYS."""
        e, x_minus_m = self.point(top), None
        if isinstance(e, Refusal):
            return e
        match e.structure.body:
            case Apply("exp", (Operand(k),), _) if not e.structure.reduce_axes:
                x_minus_m = self.point(self.read(e, k))
            case _:
                return _refused("no-softmax", "divides what is no exponential", e.node)
        if isinstance(x_minus_m, Refusal):
            return x_minus_m
        match x_minus_m.structure.body:
            case Apply("sub", (Operand(a), Operand(b)), _) if not x_minus_m.structure.reduce_axes:
                x, m = self.read(x_minus_m, a), self.read(x_minus_m, b)
            case _:
                return _refused("no-softmax", "is no difference to a row's maximum", x_minus_m.node)
        for reduced, combine, of in ((m, "max", x), (bottom, "sum", top)):
            refusal = self.no_reduction(reduced, combine, of)
            if refusal is not None:
                return refusal
        inner |= {p.value for q in (top, bottom, m) for p in self.chain(q)} | {x_minus_m.place.value}
        return x

    def no_reduction(self, reduced: Place, combine: str, of: Place) -> Refusal | None:
        """Why `reduced` is not the maximum, or sum, of `of` along KEYS; None where it is."""
        point = self.point(reduced)
        if isinstance(point, Refusal):
            return point
        s = point.structure
        kept = [a for a in s.reduce_axes if a.extent != 1]
        if s.combine != combine or len(kept) != 1 or KEYS in self.axes_of(reduced) or not _plain(s):
            return _refused("no-softmax", f"is no {combine} of a row", point.node)
        here = {**point.here, **{a.name: Index() for a in s.reduce_axes}, kept[0].name: KEYS_INDEX}
        read = s.reads[0]
        value = point.node.inputs[read.operand]
        assert value is not None
        place = Place(value, self.composed(read.index, here))
        if kept[0].extent != self.extents[KEYS] or self.source(place) != self.source(of):
            return _refused("other-row", f"takes the {combine} of another row than the product sums over", point.node)
        return None

    def zero_rows(self, point: Point) -> ZeroRows | Refusal:
        """What a selection does, if that is no more than zeros for whole rows, or for NaN."""
        c, *chosen = (x.index for x in _selected(point))
        for value, k in zip((True, False), chosen, strict=True):
            zero = self.graph.constants.get(self.source(self.read(point, k)).value)
            if zero is None or zero.any():
                continue
            if KEYS not in self.axes_of(self.read(point, c)):
                return ZeroRows(point, c, value)
            condition = self.point(self.read(point, c))
            if value and isinstance(condition, Point):
                match condition.structure.body:
                    case Apply("isnan", (Operand(x),), _):
                        if self.source(self.read(condition, x)) == self.source(self.read(point, chosen[1])):
                            return ZeroRows(point, None)
        return _refused("softmax-selected", "exchanges weights of the softmax one by one", point.node)

    def leads_to_division(self, place: Place) -> bool:
        """Does the factor come from a division along KEYS, through what may stand between?"""
        point = self.point(place)
        if isinstance(point, Refusal) or point.structure.reduce_axes or KEYS not in self.axes_of(place):
            return False
        match point.structure.body:
            case Apply("div", _, _):
                return True
            case Apply("cast", (Operand(a),), _):
                return self.leads_to_division(self.read(point, a))
            case Apply("mul", (Operand(a), Operand(b)), _) | Apply("select", (_, Operand(a), Operand(b)), _):
                return any(self.leads_to_division(self.read(point, k)) for k in (a, b))
            case _:
                return False

    # ---- places -----------------------------------------------------------------------------------------------------
    def point(self, place: Place) -> Point | Refusal:
        """Where a value is computed, movement left behind."""
        place = self.source(place)
        node = self.graph.producer(place.value)
        structure = structure_of(self.graph, node) if node is not None else None
        if node is None or structure is None:
            return Refusal("no-softmax", "an operand of the product comes from outside", {"value": place.value})
        here = {a.name: i for a, i in zip(structure.axes, place.index, strict=True)}
        if any(r.gathers or r.pad is not None for r in structure.reads):
            return _refused("no-softmax", "gathers or pads", node)
        return Point(place, node, structure, here)

    def read(self, point: Point, k: int) -> Place:
        read = point.structure.reads[k]
        value = point.node.inputs[read.operand]
        assert value is not None
        return Place(value, self.composed(read.index, point.here))

    def source(self, place: Place) -> Place:
        """The same elements where they were computed: transposes, reshapes and broadcasts are followed back."""
        *_, last = self.chain(place)
        return last

    def chain(self, place: Place) -> Iterator[Place]:
        while True:
            place = Place(place.value, self.composed(place.index, {}))
            yield place
            node = self.graph.producer(place.value)
            s = structure_of(self.graph, node) if node is not None else None
            if node is None or s is None or not s.is_movement:
                return
            value = node.inputs[s.reads[0].operand]
            assert value is not None
            here = {a.name: i for a, i in zip(s.axes, place.index, strict=True)}
            place = Place(value, self.composed(s.reads[0].index, here))

    def composed(self, index: tuple[Index, ...], here: Mapping[str, Index]) -> tuple[Index, ...]:
        return tuple(simplify(i.substitute(here), self.extents) for i in index)

    def axes_of(self, place: Place) -> frozenset[str]:
        return frozenset(n for i in self.source(place).index for n in i.axes)


def _plain(s: Structure) -> bool:
    """A reduction of its operand as it is."""
    return isinstance(s.body, Operand) and s.finish is None


def _selected(point: Point) -> tuple[Operand, ...]:
    assert isinstance(point.structure.body, Apply)
    return tuple(x for x in point.structure.body.args if isinstance(x, Operand))


def _kept(rows: ZeroRows) -> int:
    """The operand of a selection that is not the zeros."""
    return _selected(rows.point)[2 if rows.value else 1].index


def _refused(code: str, text: str, node: Node) -> Refusal:
    return Refusal(code, f"{node.op} {text}", {"node": user_name(node)})


__all__ = ["KEYS", "Place", "Point", "Search", "SoftmaxProduct", "Step", "ZeroRows"]
