"""Concatenations that copy less: a joined value that is there already, and slices that lie side by side.

    concat(a, b, c)  where concat(a, b) is a value of the graph   -> concat(concat(a, b), c)      dense blocks
    concat(x[0:k], x[k:n], y)                                     -> concat(x[0:n], y)            split, branch, join

Both leave fewer parts, and parts that whoever makes them can write where the whole lies.
"""

from __future__ import annotations

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, any_node
from opfuse.rewrite.rule import Case, Rule, declared, rule


def _inputs(g: Graph, *columns: int) -> list[str]:
    return [g.add_input(f"x{k}", TensorType(DType.F32, (2, d))) for k, d in enumerate(columns)]


def _dense_block(g: Graph) -> list[str]:
    a, b, c = _inputs(g, 2, 3, 1)
    return [g.emit("exp", [g.emit("concat", [a, b], {"axis": 1})]), g.emit("concat", [a, b, c], {"axis": 1})]


def _other_axis(g: Graph) -> list[str]:
    a, b, c = _inputs(g, 2, 2, 2)
    return [g.emit("exp", [g.emit("concat", [a, b], {"axis": 0})]), g.emit("concat", [a, b, c], {"axis": 1})]


@rule("exact", any_node("concat", "concat"), cases=(
    Case(build=_dense_block),
    Case(build=_other_axis, fires=False),
))  # fmt: skip
def reuse_joined(m: Match, to: Draft) -> str | Refusal:
    """concat(a, b, c) -> concat(ab, c), where ab is concat(a, b) and there already"""
    axis, inputs = m.root.attrs["axis"], m.root.inputs
    earlier = [n for n in m.graph.consumers(str(inputs[0])) if _begins(n, m.root)]
    if not earlier:
        return Refusal("none-there", "no value joins its first parts already")
    most = max(earlier, key=lambda n: len(n.inputs))
    return to.emit("concat", most.output, *inputs[len(most.inputs) :], of=m.root, axis=axis)


def _begins(shorter: Node, longer: Node) -> bool:
    """Does one joined value hold the first parts of another?"""
    n = len(shorter.inputs)
    same = shorter.op == "concat" and shorter.attrs["axis"] == longer.attrs["axis"]
    return same and 1 < n < len(longer.inputs) and shorter.inputs == longer.inputs[:n]


# ---- slices side by side ---------------------------------------------------------------------------------------------
def _cut(g: Graph, x: str, first: int, last: int, step: int = 1) -> str:
    return g.emit("slice", [x], {"starts": (0, first), "stops": (2, last), "steps": (1, step)})


def _branches(g: Graph) -> list[str]:
    x, y = _inputs(g, 6, 3)
    return [g.emit("concat", [_cut(g, x, 0, 2), _cut(g, x, 2, 6), y, _cut(g, x, 1, 3), _cut(g, x, 3, 4)], {"axis": 1})]


def _gap(g: Graph) -> list[str]:
    x, y = _inputs(g, 6, 3)
    return [g.emit("concat", [_cut(g, x, 0, 2), _cut(g, x, 3, 6), _cut(g, y, 0, 1), _cut(g, y, 1, 3, 2)], {"axis": 1})]


@rule("exact", any_node("concat", "concat", reading="slice"), cases=(
    Case(build=_branches),
    Case(build=_gap, fires=False),
))  # fmt: skip
def join_neighbouring_slices(m: Match, to: Draft) -> str | Refusal:
    """concat(x[a:b], x[b:c]) -> x[a:c] as one part"""
    axis, parts = m.root.attrs["axis"], list(m.root.inputs)
    joined: list[str | None] = []
    cuts: list[Node | None] = []
    for part in parts:
        node = m.graph.producer(str(part))
        cut = node if node is not None and node.op == "slice" else None
        before = cuts[-1] if cuts else None
        if cut is not None and before is not None and _side_by_side(before, cut, axis):
            stops = [*before.attrs["stops"][:axis], *cut.attrs["stops"][axis:]]
            attrs = {**before.attrs, "stops": tuple(stops)}
            joined[-1] = to.emit("slice", before.inputs[0], of=(before, cut), **attrs)
            cuts[-1] = to.nodes[-1]
        else:
            joined.append(part)
            cuts.append(cut)
    if len(joined) == len(parts):
        return Refusal("apart", "no two slices of one value lie side by side")
    return joined[0] if len(joined) == 1 and joined[0] else to.emit("concat", *joined, of=m.root, axis=axis)


def _side_by_side(first: Node, second: Node, axis: int) -> bool:
    """Two boxes of one value that meet along an axis, with steps of one there."""
    a, b = ([n.attrs[k] for k in ("starts", "stops", "steps")] for n in (first, second))
    elsewhere = all(x == y for one, two in zip(a, b, strict=True)
                    for d, (x, y) in enumerate(zip(one, two, strict=True)) if d != axis)  # fmt: skip
    meet = a[1][axis] == b[0][axis] and a[2][axis] == b[2][axis] == 1
    return first.inputs[0] == second.inputs[0] and elsewhere and meet


RULES: tuple[Rule, ...] = declared(globals())
