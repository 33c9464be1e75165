"""Attention in the forms that models have it, as graphs with feeds: masks, heads and widths of every kind.

    case = CASES["causal"];  graph, feeds = case(queries=7, keys=9)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType

Feeds = dict[str, np.ndarray]
INF = float("inf")


@dataclass
class Sizes:
    queries: int
    keys: int
    heads: int = 2
    depth: int = 16
    width: int = 16
    dtype: DType = DType.F32


class Builder:
    """A graph under construction, with a feed for each input."""

    def __init__(self, sizes: Sizes) -> None:
        self.g, self.feeds, self.z = Graph("attention"), Feeds(), sizes
        self.rng = np.random.default_rng(sizes.queries * 31 + sizes.keys)

    def given(self, name: str, array: np.ndarray) -> str:
        self.feeds[name] = array
        return self.g.add_input(name, TensorType(DType.of(array.dtype), array.shape))

    def normal(self, name: str, *shape: int, dtype: DType | None = None) -> str:
        return self.given(name, self.rng.standard_normal(shape).astype((dtype or self.z.dtype).numpy))

    def number(self, value: float) -> str:
        return self.g.scalar(value, self.z.dtype)

    def inputs(self) -> tuple[str, str, str]:
        z = self.z
        return (self.normal("q", 1, z.heads, z.queries, z.depth), self.normal("k", 1, z.heads, z.keys, z.depth),
                self.normal("v", 1, z.heads, z.keys, z.width))  # fmt: skip

    def scores(self, q: str, k: str) -> str:
        """q k^T / sqrt(depth); k is [.., keys, depth]."""
        rank = len(self.g.types[k].shape)
        perm = (*range(rank - 2), rank - 1, rank - 2)
        s = self.g.emit("matmul", [q, self.g.emit("transpose", [k], {"perm": perm})])
        return self.g.emit("mul", [s, self.number(1 / math.sqrt(self.z.depth))])

    def weights(self, scores: str) -> str:
        return self.g.emit("softmax", [scores], {"axis": len(self.g.types[scores].shape) - 1})

    def done(self, value: str) -> tuple[Graph, Feeds]:
        self.g.set_outputs({"o": value})
        return self.g, self.feeds

    def attend(self, change: Callable[[Builder, str], str]) -> tuple[Graph, Feeds]:
        """Attention with the scores changed before the softmax."""
        q, k, v = self.inputs()
        return self.done(self.g.emit("matmul", [self.weights(change(self, self.scores(q, k))), v]))


def masked(b: Builder, scores: str, seen: np.ndarray, value: float) -> str:
    """where(seen, scores, value)"""
    return b.g.emit("where", [b.given("seen", seen), scores, b.number(value)])


# ---- masks -----------------------------------------------------------------------------------------------------------
def additive(b: Builder, s: str) -> str:
    z = b.z
    return b.g.emit("add", [s, b.normal("mask", 1, z.heads, z.queries, z.keys)])


def padding(b: Builder, s: str) -> str:
    """Added, one row for all queries: -inf at the first third of the keys and at the last."""
    z = b.z
    mask = np.zeros((1, 1, 1, z.keys), z.dtype.numpy)
    mask[..., : z.keys // 3] = -INF
    mask[..., z.keys - z.keys // 5 :] = -INF
    return b.g.emit("add", [s, b.given("mask", mask)])


def lowest(b: Builder, s: str) -> str:
    """Added, finite and very low, for whole rows too: such a row is the mean of all keys as rounding has it."""
    z = b.z
    mask = np.where(b.rng.random((1, 1, z.queries, z.keys)) < 0.5, 0.0, -1e4).astype(z.dtype.numpy)
    mask[:, :, -1] = -1e4
    return b.g.emit("add", [s, b.given("mask", mask)])


def chosen(b: Builder, s: str) -> str:
    """where(random, scores, -inf); the first row sees nothing, so it is NaN."""
    seen = b.rng.random((1, 1, b.z.queries, b.z.keys)) < 0.4
    seen[:, :, 0] = False
    return masked(b, s, seen, -INF)


def causal(b: Builder, s: str) -> str:
    """where(key <= query, scores, -inf), from positions that the graph makes itself."""
    q, k = (b.g.emit("iota", [], {"extent": n, "dtype": DType.I64}) for n in (b.z.queries, b.z.keys))
    q = b.g.emit("reshape", [q], {"shape": (b.z.queries, 1)})
    return b.g.emit("where", [b.g.emit("less_equal", [k, q]), s, b.number(-INF)])


def late(b: Builder, s: str) -> str:
    """Only the last key is seen, and the first row sees nothing: running maxima stay at -inf until the end."""
    seen = np.zeros((1, 1, b.z.queries, b.z.keys), bool)
    seen[:, :, 1:, -1] = True
    return masked(b, s, seen, -INF)


def spikes(b: Builder, s: str) -> str:
    """Scores that grow from key to key by much: what was summed before is shrunk to nothing again and again."""
    ramp = np.linspace(0, 300, b.z.keys).astype(b.z.dtype.numpy).reshape(1, 1, 1, -1)
    return b.g.emit("add", [s, b.given("ramp", ramp)])


def falling(b: Builder, s: str) -> str:
    ramp = np.linspace(0, -300, b.z.keys).astype(b.z.dtype.numpy).reshape(1, 1, 1, -1)
    return b.g.emit("add", [s, b.given("ramp", ramp)])


def special(b: Builder, s: str) -> str:
    """NaN, inf and -inf among the scores of different rows."""
    z = b.z
    mask = np.zeros((1, 1, z.queries, z.keys), z.dtype.numpy)
    for row, value in enumerate((np.nan, INF, -INF)):
        mask[:, :, row::5, (row * 7) % z.keys] = value
    return b.g.emit("add", [s, b.given("mask", mask)])


def logarithm(b: Builder, s: str) -> str:
    """softmax(log x): weights in proportion to x, of which some are 0."""
    return b.g.emit("log", [b.g.emit("relu", [s])])


def nothing(b: Builder, s: str) -> str:
    return s


# ---- heads, widths, factors ------------------------------------------------------------------------------------------
def grouped_heads(b: Builder) -> tuple[Graph, Feeds]:
    """Two key heads for four query heads, repeated by an expand and a reshape."""
    z, g = b.z, b.g
    q = b.normal("q", 1, 4, z.queries, z.depth)

    def repeated(name: str, width: int) -> str:
        x = g.emit("reshape", [b.normal(name, 1, 2, z.keys, width)], {"shape": (1, 2, 1, z.keys, width)})
        return g.emit("reshape", [g.emit("expand", [x], {"shape": (1, 2, 2, z.keys, width)})],
                      {"shape": (1, 4, z.keys, width)})  # fmt: skip

    s = b.scores(q, repeated("k", z.depth))
    return b.done(g.emit("matmul", [b.weights(s), repeated("v", z.width)]))


def projected(b: Builder) -> tuple[Graph, Feeds]:
    """[1, length, heads * depth] tensors read as heads, and the result stored the same way."""
    z, g = b.z, b.g

    def heads(name: str, length: int, width: int, perm: tuple[int, ...]) -> str:
        x = g.emit("reshape", [b.normal(name, 1, length, z.heads * width)], {"shape": (1, length, z.heads, width)})
        return g.emit("transpose", [x], {"perm": perm})

    q = heads("q", z.queries, z.depth, (0, 2, 1, 3))
    s = g.emit("matmul", [q, heads("k", z.keys, z.depth, (0, 2, 3, 1))])
    o = g.emit("matmul", [b.weights(g.emit("div", [s, b.number(math.sqrt(z.depth))])),
                          heads("v", z.keys, z.width, (0, 2, 1, 3))])  # fmt: skip
    o = g.emit("transpose", [o], {"perm": (0, 2, 1, 3)})
    return b.done(g.emit("reshape", [o], {"shape": (1, z.queries, z.heads * z.width)}))


def zeros_for_nan(b: Builder) -> tuple[Graph, Feeds]:
    """where(isnan(p), 0, p): a row that sees nothing is 0."""
    q, k, v = b.inputs()
    p = b.weights(chosen(b, b.scores(q, k)))
    p = b.g.emit("where", [b.g.emit("isnan", [p]), b.number(0), p])
    return b.done(b.g.emit("matmul", [p, v]))


def zero_rows(b: Builder) -> tuple[Graph, Feeds]:
    """As ONNX's Attention has it: rows of an added mask that are -inf alone have weights of 0; and some others too."""
    z = b.z
    q, k, v = b.inputs()
    mask = np.where(b.rng.random((z.queries, z.keys)) < 0.5, -INF, 0.0).astype(z.dtype.numpy)
    mask[::3] = -INF
    m = b.given("mask", mask)
    p = b.weights(b.g.emit("add", [b.scores(q, k), m]))
    top = b.g.emit("reduce_max", [m], {"axes": (1,), "keepdims": True})
    p = b.g.emit("where", [b.g.emit("equal", [top, b.number(-INF)]), b.number(0), p])
    kept = b.given("kept", np.arange(z.queries).reshape(-1, 1) % 4 != 1)
    return b.done(b.g.emit("matmul", [b.g.emit("where", [kept, p, b.number(0)]), v]))


def factors(b: Builder) -> tuple[Graph, Feeds]:
    """The weights multiplied by a mask of their own, and divided by a number."""
    z = b.z
    q, k, v = b.inputs()
    p = b.weights(b.scores(q, k))
    p = b.g.emit("mul", [b.normal("drop", 1, 1, z.queries, z.keys), p])
    return b.done(b.g.emit("matmul", [b.g.emit("div", [p, b.number(0.9)]), v]))


def turned(b: Builder) -> tuple[Graph, Feeds]:
    """v^T p^T: the softmax is the second operand, down the columns."""
    q, k, v = b.inputs()
    s = b.g.emit("matmul", [k, b.g.emit("transpose", [q], {"perm": (0, 1, 3, 2)})])
    p = b.g.emit("softmax", [s], {"axis": 2})
    return b.done(b.g.emit("matmul", [b.g.emit("transpose", [v], {"perm": (0, 1, 3, 2)}), p]))


def gated(b: Builder) -> tuple[Graph, Feeds]:
    """An epilogue: the result through a gate and a residual."""
    z = b.z
    q, k, v = b.inputs()
    o = b.g.emit("matmul", [b.weights(b.scores(q, k)), v])
    gate = b.normal("gate", 1, z.heads, z.queries, z.width)
    return b.done(b.g.emit("add", [b.g.emit("mul", [o, b.g.emit("sigmoid", [gate])]), gate]))


MASKS: Mapping[str, Callable[[Builder, str], str]] = {
    f.__name__: f
    for f in (nothing, additive, padding, lowest, chosen, causal, late, spikes, falling, special, logarithm)
}
SHAPES: Mapping[str, Callable[[Builder], tuple[Graph, Feeds]]] = {
    f.__name__: f for f in (grouped_heads, projected, zeros_for_nan, zero_rows, factors, turned, gated)
}


def attention(kind: str, sizes: Sizes) -> tuple[Graph, Feeds]:
    builder = Builder(sizes)
    return builder.attend(MASKS[kind]) if kind in MASKS else SHAPES[kind](builder)
