"""The online form of a softmax that meets a matrix product: a loop over blocks of keys, and no whole row of scores.

    loop j carry m, l, o:                       m: the row's maximum so far, l: its sum, o: its product
      m1 = max(m, max over j of x);  p = exp(x - m1);  shrink = exp(m - m1)
      l = l * shrink + sum over j of p;  o = o * shrink + p v
    y = o / l

Sums are made in another order, so this form is for programs that may be reassociated. Its NaN are those of the form
with whole rows: a row of -inf alone gives 0 / 0, and NaN or inf among the scores stay in m and l.
"""

from __future__ import annotations

from collections.abc import Mapping

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node, user_name
from opfuse.ir.index import Index
from opfuse.ir.ops import structure_of
from opfuse.ir.scalar import Apply, Operand, Scalar, apply, cast, const
from opfuse.ir.structure import Axis, Structure
from opfuse.tile.nests import MOST_DEPTH, Nests
from opfuse.tile.program import Carry, Dot, Loop, Map, Reduce, Tile
from opfuse.tile.softmax_product import KEYS, KEYS_INDEX, Place, Search, SoftmaxProduct, Step, ZeroRows


def may_hold_softmax_product(graph: Graph) -> bool:
    """A quick look before the search: a product, and a maximum along an axis."""
    structures = [s for n in graph.nodes.values() if (s := structure_of(graph, n)) is not None]
    return any(s.combine == "max" for s in structures) and any(s.is_contraction for s in structures)


class OnlineNests(Nests):
    """Nests in which a product with a softmax is a loop over blocks of keys."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.refusal = Refusal("no-softmax", "no product of the region reads a softmax along its own axis")
        self.found = 0
        self.open = 0  # loops over keys around the walk

    def contraction(self, node: Node, s: Structure, here: Mapping[str, Index]) -> Scalar:
        kept = [a for a in s.reduce_axes if a.extent != 1]
        here = {**here, **{a.name: Index() for a in s.reduce_axes if a.extent == 1}}
        if len(kept) != 1 or self.dot_axis(s, here, kept) is None:
            return super().contraction(node, s, here)
        product = self.softmax_product(node, s, here, kept[0])
        if isinstance(product, SoftmaxProduct):
            self.found += 1
            return self.online(node, s, here, kept[0], product)
        if product.code != "no-softmax":
            self.refusal = product
        depth = kept[0].extent
        if self.open and isinstance(depth, int) and depth <= MOST_DEPTH:
            return self.whole_dot(node, s, here, kept[0])
        return super().contraction(node, s, here)

    def softmax_product(
        self, node: Node, s: Structure, here: Mapping[str, Index], over: Axis
    ) -> SoftmaxProduct | Refusal:
        if not isinstance(over.extent, int):
            return Refusal("symbolic-keys", f"{node.op} sums over a run-time extent", {"node": user_name(node)})
        inner = {**here, over.name: KEYS_INDEX}
        extents: dict[str, Dim] = {**self.extents, KEYS: over.extent}
        search = Search(self.graph, extents)
        answer: SoftmaxProduct | Refusal = Refusal("no-softmax", f"{node.op} reads no softmax")
        for side in (0, 1):
            read = s.reads[side]
            value = node.inputs[read.operand]
            assert value is not None
            answer = search.product_of(Place(value, search.composed(read.index, inner)), side)
            if isinstance(answer, SoftmaxProduct) or answer.code != "no-softmax":
                break
        if isinstance(answer, SoftmaxProduct) and (shown := answer.inner & set(self.graph.outputs.values())):
            return Refusal("softmax-is-output", "the weights of the softmax are read by another kernel too",
                           {"values": sorted(shown)})  # fmt: skip
        return answer

    def shared_axis(self, a: Axis, used: frozenset[str]) -> Axis:
        """Inside a loop over keys no axis of the grid is made whole for the sake of sharing."""
        return super().shared_axis(a, used | {r.name for r in self.root} if self.open else used)

    # ---- what it becomes --------------------------------------------------------------------------------------------
    def online(
        self, node: Node, s: Structure, here: Mapping[str, Index], over: Axis, product: SoftmaxProduct
    ) -> Scalar:
        inner = dict(here)
        keys = self.open_loop(over, inner, point=False)
        self.open += 1
        x = self.along(keys, self.at(product.scores.value, _at_keys(product.scores.index, keys)))
        other = self.along(keys, self.operand(node, s, 1 - product.side, inner))
        factors = [self.factor(step, keys) for step in product.steps]
        self.open -= 1
        used = frozenset(n for i in here.values() for n in i.axes)
        rows = self.depends[x.name] - {keys.name}
        names = (rows | self.depends[other.name]).union(*(self.dependence(f) for f in factors if f is not None)) & used
        self.whole |= names - rows - self.points
        top, total = self.fresh_tile("top", rows, x.dtype), self.fresh_tile("total", rows, x.dtype)
        acc = self.fresh_tile("acc", names, s.body.dtype)
        low, zero = const(float("-inf"), x.dtype), const(0, x.dtype)
        highest = self.reduced("max", x, keys, rows)
        top1 = self.in_loop("top", apply("max", top, highest), rows)
        base = self.in_loop("base", apply("select", apply("eq", top1, low), zero, top1), rows)
        shrink = self.in_loop("shrink", apply("exp", apply("sub", top, base)), rows)
        p = self.in_loop("p", apply("exp", apply("sub", x, base)), rows | {keys.name})
        summed = self.reduced("sum", p, keys, rows)
        total1 = self.in_loop("total", apply("add", apply("mul", total, shrink), summed), rows)
        weight = self.weighted(p, product.steps, factors)
        scaled = self.in_loop("scaled", apply("mul", acc, cast(shrink, acc.dtype)), names)
        acc1 = self.fresh_tile("acc", names, acc.dtype)
        pair = (weight, other) if product.side == 0 else (other, weight)
        self.scopes[-1].statements.append(Dot(acc1, scaled, *pair, keys))
        carries = (Carry(top, low, top1), Carry(total, zero, total1), Carry(acc, const(0, acc.dtype), acc1))
        body = tuple(self.scopes.pop().statements)
        self.emit(Loop(keys, carries, body), names)
        return self.quotient(acc, total, product.zeros)

    def quotient(self, acc: Tile, total: Tile, zeros: tuple[ZeroRows, ...]) -> Tile:
        """o / l, which is 0 / 0 where all scores were -inf; 0 in rows whose weights are exchanged for zeros."""
        y: Scalar = apply("div", acc, cast(total, acc.dtype))
        for rows in zeros:
            zero: Scalar
            if rows.condition is None:
                zero = apply("or", apply("eq", total, const(0, total.dtype)), apply("isnan", total))
            else:
                given = self.operand(rows.point.node, rows.point.structure, rows.condition, rows.point.here)
                zero = given if rows.value else apply("not", given)
            y = apply("select", zero, const(0, acc.dtype), y)
        return self.map("y", y)

    def factor(self, step: Step, keys: Axis) -> Scalar | None:
        """The other operand of a step between softmax and product; None for a cast."""
        point = step.point
        match point.structure.body:
            case Apply("mul" | "div", (Operand(a), Operand(b)), _):
                here = {n: i.substitute({KEYS: keys.index}) for n, i in point.here.items()}
                return self.operand(point.node, point.structure, b if step.operand == a else a, here)
            case _:
                return None

    def weighted(self, p: Tile, steps: tuple[Step, ...], factors: list[Scalar | None]) -> Tile:
        """What meets the other operand: exp(x - m) with the casts and factors of the steps in between."""
        value: Scalar = p
        for step, factor in zip(steps, factors, strict=True):
            leaves = {step.operand: value}
            if factor is not None:
                leaves[1 - step.operand] = factor
            value = self.fill(step.point.structure.body, leaves, step.point.here)
        return value if isinstance(value, Tile) else self.in_loop("w", value, self.dependence(value))

    # ---- statements of the open loop --------------------------------------------------------------------------------
    def along(self, keys: Axis, value: Scalar) -> Tile:
        """A tile that lists the keys."""
        if isinstance(value, Tile) and keys.name in self.depends[value.name]:
            return value
        return self.in_loop("x", value, self.dependence(value) | {keys.name})

    def in_loop(self, hint: str, value: Scalar, names: frozenset[str]) -> Tile:
        """A map in the body of the innermost open loop, whatever it depends on."""
        out = self.fresh_tile(hint, names, value.dtype)
        self.scopes[-1].statements.append(Map(out, value))
        return out

    def reduced(self, combine: str, tile: Tile, keys: Axis, rows: frozenset[str]) -> Tile:
        out = self.fresh_tile("s", rows, tile.dtype)
        self.scopes[-1].statements.append(Reduce(out, combine, tile, (keys,)))
        return out


def _at_keys(index: tuple[Index, ...], keys: Axis) -> tuple[Index, ...]:
    return tuple(i.substitute({KEYS: keys.index}) for i in index)
