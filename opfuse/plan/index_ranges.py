"""Inputs of a model that are used as indices, and the range in which their elements must lie.

    index_ranges(graph) -> {"tokens": IndexRange(-30522, 30521, "Gather_12")}

Kernels keep every index inside of its dimension, so that no feed makes them read elsewhere; a feed that needs that is a
mistake of the caller, and is told as one. Only inputs are looked at that reach an index with all their elements,
unchanged (through reshapes, transposes, broadcasts and casts to wider integers); what a model computes is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.index import AxisTerm, Gathered, Index
from opfuse.ir.ops import structure_of
from opfuse.ir.scalar import Apply, Operand
from opfuse.ir.structure import Structure
from opfuse.tile.expand import expand_composites


@dataclass(frozen=True)
class IndexRange:
    """Smallest and largest index that the node (the user's name of it) takes."""

    low: int
    high: int
    node: str


def index_ranges(graph: Graph) -> dict[str, IndexRange]:
    """Input, or constant, -> the narrowest range of all its uses as indices."""
    found: dict[str, IndexRange] = {}
    for node in graph.nodes.values():
        if not any(graph.types[i].dtype.is_integer for i in node.reads):
            continue
        for value, extent in _uses(graph, node):
            source = _source(graph, value)
            if source is not None and (source not in found or extent <= found[source].high):
                found[source] = IndexRange(-extent, extent - 1, user_names([node])[0])
    return found


def _uses(graph: Graph, node: Node) -> Iterator[tuple[str, int]]:
    """(value read as an index, extent of the dimension that it points into) of one node."""
    inner = expand_composites(Region.of(graph, [node.name]).subgraph(graph))
    if isinstance(inner, Refusal):
        return  # the host's own function checks its indices
    for part in inner.nodes.values():
        structure = structure_of(inner, part)
        for read in structure.reads if structure is not None else ():
            for dimension, index in enumerate(read.index):
                operand = part.inputs[read.operand]
                assert structure is not None and operand is not None
                extent = inner.types[operand].shape[dimension]
                for term, _ in index.terms:
                    if isinstance(term, Gathered) and isinstance(term.source, int) and isinstance(extent, int):
                        value = part.inputs[structure.reads[term.source].operand]
                        source = _source(inner, value) if value is not None else None
                        if source is not None and _reads_all(structure, term.source, inner.types[value or ""].shape):
                            yield source, extent


def _source(graph: Graph, value: str) -> str | None:
    """The input or constant whose elements, all of them, are this value's; None where there is none."""
    node = graph.producer(value)
    while node is not None:
        structure = structure_of(graph, node)
        if structure is None or not _copies(structure):
            return None
        operand = node.inputs[structure.reads[0].operand]
        if operand is None:
            return None
        whole = graph.types[operand].elements == graph.types[node.output].elements
        if not whole and not _reads_all(structure, 0, graph.types[operand].shape):
            return None
        value, node = operand, graph.producer(operand)
    return value


def _copies(structure: Structure) -> bool:
    """Movement, or a cast to an integer type that holds every value."""
    if structure.is_movement:
        return True
    match structure.body:
        case Apply("cast", (Operand(0, narrow),), wide) if not structure.reduce_axes and structure.reads[0].pad is None:
            signed = wide.is_signed or not narrow.is_signed
            return narrow.is_integer and wide.is_integer and signed and wide.bytes >= narrow.bytes
        case _:
            return False


def _reads_all(structure: Structure, number: int, shape: tuple[object, ...]) -> bool:
    """Does a read walk every dimension whole, by an axis of its own?"""
    extents = {a.name: a.extent for a in (*structure.axes, *structure.reduce_axes)}
    seen: set[str] = set()
    for i, extent in zip(structure.reads[number].index, shape, strict=True):
        match i:
            case Index((), 0) if extent == 1:
                continue
            case Index(((AxisTerm(name), 1),), 0) if extents[name] == extent and name not in seen:
                seen.add(name)
            case _:
                return False
    return True
