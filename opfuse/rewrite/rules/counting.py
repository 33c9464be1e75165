"""The first few of a row by counting what stands before each: no sort, and loops that fuse.

    top_k(x [n]; k)   -> rank = how many stand before each element; the element whose rank is 0, 1, ... k - 1

Every pair of a row is compared, which pays for short rows only (a router's choice of experts): longer ones are sorted
on the host.
"""

from __future__ import annotations

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.ops.reduction import lowest
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, any_node
from opfuse.rewrite.rule import Case, Rule, declared, rule

LONGEST_ROW = 128  # elements of a row that are all compared with each other; NumPy sorts as fast at 256


def _first(shape: tuple[int, ...], dtype: DType = DType.F32, fires: bool = True, **attrs: object) -> Case:
    def build(g: Graph) -> list[str]:
        g.emit("top_k", [g.add_input("x", TensorType(dtype, shape))], attrs, name="first")
        return list(g.nodes["first"].outputs)

    return Case(build=build, fires=fires)


@rule("exact", any_node(("top_k",)), cases=(
    _first((3, 9), k=4, axis=1), _first((8, 2), DType.I32, k=8, axis=0, largest=False), _first((2, 6, 3), k=1, axis=1),
    _first((5,), DType.F16, k=2, axis=0), _first((2, LONGEST_ROW + 1), k=2, axis=1, fires=False),
))  # fmt: skip
def rank_by_counting(m: Match, to: Draft) -> tuple[str, ...] | Refusal:
    """top_k(x) -> rank = count of what stands before; max(where(rank == 0 ... k - 1, x, -inf)), and so its places"""
    (x,), axis, k = m.root.reads, m.root.attrs["axis"], m.root.attrs["k"]
    given = to.type(x)
    n, rank = given.shape[axis], given.rank
    if not isinstance(n, int) or not 0 < n <= LONGEST_ROW or not isinstance(k, int):
        return Refusal("long", f"rows of {n} elements are sorted: up to {LONGEST_ROW} are compared", {"elements": n})
    to_last = (*(d for d in range(rank) if d != axis), axis)
    rows = to.transpose(x, to_last)
    outer = to.shape(rows)[:-1]
    one, other = to.reshape(rows, (*outer, n, 1)), to.reshape(rows, (*outer, 1, n))
    places = to.constant(np.arange(n))
    ahead = _stands_before(to, one, other, given.dtype, m.root.attrs["largest"])
    earlier = to.constant(np.arange(n)[None, :] < np.arange(n)[:, None])
    ahead = to.emit("or", ahead, to.emit("and", _equals(to, one, other, given.dtype), earlier))
    ranks = to.emit("reduce_sum", to.emit("cast", ahead, to=DType.I32), axes=(len(outer) + 1,), keepdims=False)
    hit = to.emit("equal", to.reshape(ranks, (*outer, 1, n)), to.constant(np.arange(k, dtype=np.int32).reshape(k, 1)))
    least = to.constant(np.asarray(-np.inf if given.dtype.is_float else lowest(given.dtype.numpy))
                        .astype(given.dtype.numpy))  # fmt: skip
    values = to.emit("reduce_max", to.emit("where", hit, other, least), axes=(len(outer) + 1,), keepdims=False)
    chosen = to.emit("where", hit, places, to.constant(np.array(0)))
    indices = to.emit("reduce_max", chosen, axes=(len(outer) + 1,), keepdims=False)
    back = tuple(int(d) for d in np.argsort(to_last))
    return to.transpose(values, back), to.transpose(indices, back)


def _stands_before(to: Draft, one: str, other: str, dtype: DType, largest: bool) -> str:
    """Whether the other is strictly first; a NaN is larger than any number."""
    ahead = to.emit("greater" if largest else "less", other, one)
    if not dtype.is_float:
        return ahead
    nan, other_nan = to.emit("isnan", one), to.emit("isnan", other)
    first, second = (other_nan, nan) if largest else (nan, other_nan)
    return to.emit("or", ahead, to.emit("and", first, to.emit("not", second)))


def _equals(to: Draft, one: str, other: str, dtype: DType) -> str:
    same = to.emit("equal", other, one)
    if not dtype.is_float:
        return same
    return to.emit("or", same, to.emit("and", to.emit("isnan", one), to.emit("isnan", other)))


RULES: tuple[Rule, ...] = declared(globals())
