"""Siblings of any shape as one kernel: each piece keeps its own phase, and the phases stand side by side in one launch.

    lower_beside(region.subgraph(graph), "conv_conv")    # a main and a shortcut convolution of 64 and 256 channels

A region falls into pieces where no value made in one is read in another; what they share comes from outside. `lower`
makes one phase of a region only where all its outputs have one iteration space; here every piece has its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder, Term
from opfuse.ir.scalar import Position
from opfuse.ir.structure import Axis
from opfuse.tile.axes import map_program
from opfuse.tile.lower import LoweredRegion, lower
from opfuse.tile.program import Beside, Buffer, Phase, Program, Tile


def pieces(region: Graph) -> list[list[str]]:
    """Names of the region's nodes, piece by piece, each in the graph's order."""
    piece_of: dict[str, int] = {}
    members: dict[int, list[str]] = {}
    for number, node in enumerate(region.nodes.values()):
        makers = (region.producer(v) for v in node.reads)
        joined = sorted({piece_of[m.name] for m in makers if m is not None})
        members[number] = [n for k in joined for n in members.pop(k)] + [node.name]
        piece_of |= dict.fromkeys(members[number], number)
    order = {name: k for k, name in enumerate(region.nodes)}
    return sorted((sorted(names, key=order.__getitem__) for names in members.values()), key=lambda m: order[m[0]])


def lower_beside(region: Graph, name: str) -> LoweredRegion | Refusal:
    """The program of a region that falls into pieces: one launch, a phase for each; or why there is none."""
    found = pieces(region)
    if len(found) < 2:
        return Refusal("one-piece", "the nodes of the region read each other")
    buffers: dict[str, Buffer] = {}
    arguments: dict[str, str] = {}
    phases: list[Phase] = []
    for number, names in enumerate(found):
        lowered = lower(piece(region, names), name)
        if isinstance(lowered, Refusal):
            return lowered
        phases.append(_taken_in(lowered, number, buffers, arguments))
    origin = tuple(dict.fromkeys(o for n in region.nodes.values() for o in (n.origin or (n.name,))))
    return LoweredRegion(Program(name, tuple(buffers.values()), (Beside(tuple(phases)),), origin), arguments)


def piece(region: Graph, names: Iterable[str]) -> Graph:
    """One piece as a graph of its own, with the outputs that the region has of it."""
    out = Graph(region.name)
    nodes = [region.nodes[n] for n in names]
    made = {v for n in nodes for v in n.outputs}
    for value in dict.fromkeys(v for n in nodes for v in n.reads if v not in made):
        if region.is_constant(value):
            out.add_constant(region.constants[value], value)
        else:
            out.add_input(value, region.types[value])
    for node in nodes:
        out.take(node, region.types)
    out.set_outputs({public: v for public, v in region.outputs.items() if v in made})
    out.placements = {v: p for v, p in region.placements.items() if v in out.types}
    out.structures = region.structures
    return out


def _taken_in(
    lowered: LoweredRegion, number: int, buffers: dict[str, Buffer], arguments: dict[str, str]
) -> Phase:
    """The piece's phase under names of its own; an input that another piece reads in the same way is one buffer."""
    renamed: dict[str, Buffer] = {}
    for b in lowered.program.buffers:
        value = lowered.arguments[b.name]
        same = [o for o in buffers.values() if arguments[o.name] == value and replace(o, name=b.name) == b]
        if b.role == "in" and same:
            renamed[b.name] = same[0]
            continue
        stem = b.name.rstrip("0123456789")
        name = f"{stem}{sum(o.startswith(stem) for o in buffers)}"
        renamed[b.name] = buffers[name] = replace(b, name=name)
        arguments[name] = value
    prefix = "abcdefghijklmnopqrstuvwxyz"[number % 26] + (str(number // 26) if number >= 26 else "")
    program = _with_prefix(lowered.program, f"{prefix}_", renamed)
    (phase,) = program.flat_phases()
    return phase


def _with_prefix(program: Program, prefix: str, buffers: dict[str, Buffer]) -> Program:
    """A copy whose axes and tiles have a prefix, on other buffers."""

    def axis(a: Axis) -> Axis:
        return Axis(prefix + a.name, a.extent)

    def tile(t: Tile) -> Tile:
        return Tile(prefix + t.name, tuple(map(axis, t.axes)), t.dtype)

    def index(i: Index) -> Index:
        return Index(tuple((term(t), c) for t, c in i.terms), i.const)

    def term(t: Term) -> Term:
        match t:
            case AxisTerm(name):
                return AxisTerm(prefix + name)
            case Quotient(n, d):
                return Quotient(index(n), d)
            case Remainder(n, d):
                return Remainder(index(n), d)
            case Gathered():
                return replace(t, source=prefix + t.source) if isinstance(t.source, str) else t

    def place(at: Position | Index) -> Position | Index:
        return Position(prefix + at.axis, at.dtype) if isinstance(at, Position) else index(at)

    return map_program(
        program, tile, lambda _, at: tuple(map(index, at)), lambda b: buffers[b.name],
        lambda axes: tuple(map(axis, axes)), place,
    )  # fmt: skip
