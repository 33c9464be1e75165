"""Into which axes a region's root dimensions must part so that everything upstream is read at plain indices.

    relu(reshape(x [6, 4], [24]))      dimension 24 parts into (6, 4): x is read at [i, j], not at [i // 4, i % 4]
    conv of 8 channels in 2 groups     channels part into (2, 4): the group is an axis of its own
    upsampling by 2 from [H] to [2 H]  parts into (H, 2): both copies of an element read one place

The index maps are composed from the root up to the loads; a quotient or a remainder of a root axis by a number that
divides its extent parts that axis in two, and the search begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from opfuse.ir.dims import Dim, floordiv, mod, non_negative, product
from opfuse.ir.graph import Graph
from opfuse.ir.index import AxisTerm, Index, Quotient, Remainder, axis, simplify
from opfuse.ir.ops import structure_of
from opfuse.ir.structure import Structure

Parts = tuple[Dim, ...]  # extents of the axes of one dimension, outermost first
MOST_PARTS = 4  # of one dimension: beyond, an index stays as it is


def root_parts(graph: Graph, value: str) -> tuple[Parts, ...]:
    """For each dimension of a value the extents of the axes that walk it."""
    parts: list[Parts] = [(d,) for d in graph.types[value].shape]
    structures = {n.name: s for n in graph.nodes.values() if (s := structure_of(graph, n)) is not None}
    if not any(_divides(s) for s in structures.values()):
        return tuple(parts)
    while (found := _Search(graph, structures, parts).first(value)) is not None:
        dimension, place, divisor = found
        whole = parts[dimension]
        parts[dimension] = (*whole[:place], floordiv(whole[place], divisor), divisor, *whole[place + 1 :])
    return tuple(parts)


def _divides(s: Structure) -> bool:
    return any(isinstance(t, (Quotient, Remainder)) for r in s.reads for i in r.index for t, _ in i.terms)


class _Search:
    """One walk from the root to the loads, over axes called `dimension/place`."""

    def __init__(self, graph: Graph, structures: dict[str, Structure], parts: list[Parts]) -> None:
        self.graph, self.structures, self.parts = graph, structures, parts
        self.extents: dict[str, Dim] = {
            f"{d}/{k}": e for d, whole in enumerate(parts) for k, e in enumerate(whole)
        }  # fmt: skip
        self.places = {f"{d}/{k}": (d, k) for d, whole in enumerate(parts) for k in range(len(whole))}
        self.seen: set[tuple[str, tuple[Index, ...]]] = set()

    def first(self, value: str) -> tuple[int, int, Dim] | None:
        """(dimension, place of the axis in it, divisor) of the first quotient that parts an axis."""
        root = []
        for d, whole in enumerate(self.parts):
            at = Index()
            for k, extent in enumerate(whole):
                if extent != 1:
                    at = at + axis(f"{d}/{k}") * product(whole[k + 1 :])
            root.append(at)
        return next(self._walk(value, tuple(root)), None)

    def _walk(self, value: str, index: tuple[Index, ...]) -> Iterator[tuple[int, int, Dim]]:
        index = tuple(simplify(i, self.extents) for i in index)
        if (value, index) in self.seen:
            return
        self.seen.add((value, index))
        for i in index:
            for term, _ in i.terms:
                if isinstance(term, (Quotient, Remainder)) and (found := self._cut(term)) is not None:
                    yield found
        node = self.graph.producer(value)
        structure = self.structures.get(node.name) if node is not None else None
        if node is None or structure is None:
            return
        here = {a.name: i for a, i in zip(structure.axes, index, strict=True)}
        for a in structure.reduce_axes:
            own = f"{node.name}.{a.name}"
            self.extents[own] = a.extent
            here[a.name] = axis(own)
        for read in structure.reads:
            operand = node.inputs[read.operand]
            if operand is not None:
                yield from self._walk(operand, tuple(i.substitute(here) for i in read.index))

    def _cut(self, term: Quotient | Remainder) -> tuple[int, int, Dim] | None:
        """Where a quotient of a root axis alone parts it evenly."""
        match term.numerator.terms:
            case ((AxisTerm(name), 1),) if term.numerator.const == 0 and name in self.places:
                d, k = self.places[name]
                extent, divisor = self.extents[name], term.divisor
                even = mod(extent, divisor) == 0 and divisor != extent and non_negative(divisor - 2)
                return (d, k, divisor) if even and len(self.parts[d]) < MOST_PARTS else None
            case _:
                return None
