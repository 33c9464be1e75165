"""Values that need no kernel because they lie in another's bytes: reshapes, slices, and joints made in place.

    placing.see(node)            the node becomes a view: its value lies in what it reads
    placing.join(node)           each of the node's inputs is written where the joined value lies: no copy
    placing.placement(value)     where it lies now

A reshape or a slice looks into its source. In a joint (a concatenation) it is the other way round: whoever makes a part
writes it into the whole, through the reshape between them if there is one. What lies inside the part moves with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.index import Index, flatten
from opfuse.ir.ops import structure_of
from opfuse.ir.placement import Cut, Joint, Placement, Shape, cut_of, dense, joint_of, reshaped

Found = dict[str, Placement | Refusal]


@dataclass(frozen=True)
class Part:
    """A value that is made inside a whole: `operand`, which shows its elements, begins at `start` along `axis`."""

    whole: str
    axis: int
    start: int
    operand: str


class Placing:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sources: dict[str, tuple[str, Cut | None]] = {}  # view -> its source, and the box where it is a slice
        self.parts: dict[str, Part] = {}  # value that a kernel makes -> where
        self.inside: dict[str, list[str]] = {}  # value -> those that lie directly in it
        self.bent: Counter[str] = Counter()  # value -> how many lie in it through a reshape, which may not fit there

    def shape(self, value: str) -> Shape | Refusal:
        shape = self.graph.types[value].shape
        known = tuple(d for d in shape if isinstance(d, int))
        return known if len(known) == len(shape) else Refusal("open-shape", f"the shape of {value} is not known yet")

    # ---- where a value lies -----------------------------------------------------------------------------------------
    def placement(self, value: str, found: Found | None = None) -> Placement | Refusal:
        """`found` keeps the answers of several questions. Joints lie in joints a thousand deep in some models."""
        found = {} if found is None else found
        chain: list[str] = []
        at: str | None = value
        while at is not None and at not in found:
            chain.append(at)
            at = self.outer(at)
        for v in reversed(chain):
            found[v] = self._placed(v, found)
        return found[value]

    def outer(self, value: str) -> str | None:
        """What the value lies directly in."""
        if value in self.sources:
            return self.sources[value][0]
        return self.parts[value].whole if value in self.parts else None

    def is_bent(self, value: str) -> bool:
        """It lies in the other under another shape."""
        if value in self.sources:
            return self.sources[value][1] is None
        return value in self.parts and self.parts[value].operand != value

    def _placed(self, value: str, found: Found) -> Placement | Refusal:
        """Where the value lies, given the place of what it lies in."""
        shape, outer = self.shape(value), self.outer(value)
        if isinstance(shape, Refusal):
            return shape
        if outer is None:
            return Placement(value, 0, dense(shape))
        place = found[outer]
        if isinstance(place, Refusal):
            return place
        cut = self.sources[value][1] if value in self.sources else None
        if cut is not None:
            return cut.placed(place)
        part = self.parts.get(value)
        offset = place.offset + part.start * place.strides[part.axis] if part is not None else place.offset
        shown = self.shape(part.operand if part is not None else outer)
        if isinstance(shown, Refusal):
            return shown
        strides = reshaped(shown, place.strides, shape) if self.is_bent(value) else place.strides
        return strides if isinstance(strides, Refusal) else Placement(place.root, offset, strides)

    def root(self, value: str) -> str:
        """The value whose bytes it looks into, through views only (a part is its own root)."""
        while value in self.sources:
            value = self.sources[value][0]
        return value

    # ---- deciding ---------------------------------------------------------------------------------------------------
    def see(self, node: Node) -> Refusal | None:
        """Make a reshape or a slice a view of what it reads; the reason where it cannot be."""
        structure = structure_of(self.graph, node)
        if structure is None or not structure.is_movement:
            return Refusal("not-a-view", f"{node.op} does more than move one input")
        source = node.inputs[structure.reads[0].operand]
        assert source is not None
        if is_reshape(self.graph, node):
            return self._keep({node.output: (source, None)}, {})
        cut = cut_of(structure)
        if isinstance(cut, Refusal):
            return cut
        if self.graph.is_output(node.output) or self.graph.is_constant(self.root(source)):
            return Refusal("shown", "an output of the model has bytes of its own")
        return self._keep({node.output: (source, cut)}, {})

    def joint(self, node: Node) -> Joint | Refusal:
        structure = structure_of(self.graph, node)
        return joint_of(structure) if structure is not None else Refusal("no-structure", f"{node.op} has no loops")

    def join(self, node: Node) -> Refusal | None:
        """Have every input of a joint written in place; the reason where it cannot be."""
        joint = self.joint(node)
        if isinstance(joint, Refusal):
            return joint
        parts: dict[str, Part] = {}
        whole = self.graph.types[node.output].shape
        ends = (*joint.starts[1:], whole[joint.axis])
        for part, end in zip(self._parts(node, joint), ends, strict=True):
            made = self.root(part.operand)
            if self.graph.types[part.operand].shape != (*whole[: part.axis], end - part.start, *whole[part.axis + 1 :]):
                return Refusal("part-cut", f"only some of {part.operand} is a part")
            if made in parts or made in self.parts:
                return Refusal("part-twice", f"{made} lies in another joined value already")
            if self.graph.producer(made) is None:
                return Refusal("part-given", f"{made} is an input or a constant of the model")
            if self.graph.is_output(made) or self._cut_between(part.operand):
                return Refusal("part-shown", f"{made} needs bytes of its own")
            parts[made] = part
        return self._keep({}, parts)

    @staticmethod
    def _parts(node: Node, joint: Joint) -> list[Part]:
        operands = [node.inputs[k] for k in joint.operands]
        return [
            Part(node.output, joint.axis, start, operand)
            for start, operand in zip(joint.starts, operands, strict=True) if operand is not None
        ]  # fmt: skip

    def _cut_between(self, value: str) -> bool:
        """A slice stands between a part and its maker, who makes more than the part."""
        while value in self.sources:
            value, cut = self.sources[value]
            if cut is not None:
                return True
        return False

    def _keep(self, sources: Mapping[str, tuple[str, Cut | None]], parts: Mapping[str, Part]) -> Refusal | None:
        """Take these in if everything that lies in them still can."""
        self.sources.update(sources)
        self.parts.update(parts)
        around = {v: source for v, (source, _) in sources.items()} | {v: part.whole for v, part in parts.items()}
        for value, outer in around.items():
            self.inside.setdefault(outer, []).append(value)
            self._count_bent(value, outer, 1)
        refusal = self._misfit([*around])
        if refusal is not None:
            for value, outer in around.items():
                self._count_bent(value, outer, -1)
                self.inside[outer].remove(value)
            for value in around:
                self.sources.pop(value, None)
                self.parts.pop(value, None)
        return refusal

    def _count_bent(self, value: str, outer: str, sign: int) -> None:
        count = sign * (self.bent[value] + self.is_bent(value))
        at: str | None = outer
        while count and at is not None:
            self.bent[at] += count
            at = self.outer(at)

    def _misfit(self, values: list[str]) -> Refusal | None:
        """Why one of these, or of what lies in them, cannot lie where it would. Only a reshape may not fit."""
        found: Found = {}
        while values:
            value = values.pop()
            place = self.placement(value, found)
            if isinstance(place, Refusal):
                return place
            values += [v for v in self.inside.get(value, ()) if self.bent[v] or self.is_bent(v)]
        return None

    def placements(self) -> dict[str, Placement]:
        """All values that lie in another's bytes."""
        found: Found = {}
        lying = {value: self.placement(value, found) for value in (*self.sources, *self.parts)}
        return {value: place for value, place in lying.items() if isinstance(place, Placement)}


def is_reshape(graph: Graph, node: Node) -> bool:
    """The output holds the input's elements in the same row-major order."""
    structure = structure_of(graph, node)
    if structure is None or not structure.is_movement:
        return False
    operand = node.inputs[structure.reads[0].operand]
    if operand is None or graph.types[operand].elements != graph.types[node.output].elements:
        return False
    extents = {a.name: a.extent for a in structure.axes}
    still = {a.name: Index() for a in structure.axes if a.extent == 1}
    source = flatten([i.substitute(still) for i in structure.reads[0].index], graph.types[operand].shape, extents)
    place = [a.index.substitute(still) for a in structure.axes]
    return source - flatten(place, graph.types[node.output].shape, extents) == Index()
