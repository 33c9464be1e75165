"""Random graphs of values that lie in one another: joints, slices, reshapes, and the idioms in which models use them.

    graph = placing_graph(7)             # several types, empty and odd extents, host operators, parts shown as outputs
    feeds = placing_feeds(graph, 7)

The steps are those of `tests.native.random_graphs`, with joints of anything (inputs, constants, the same value twice,
joints, slices, outputs of recurrences and of Python functions) and with dense blocks, split and join (C2f, CSP),
shuffled channels, U-Nets, pyramids of pools, inception, rotary embedding, attention over cut q, k and v, detectors,
caches of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from opfuse.ir.graph import Graph
from opfuse.ir.ops import OperatorError
from opfuse.ir.ops.gates import SIGMOID, TANH
from opfuse.ir.types import DType, TensorType
from tests.native import random_graphs as plain
from tests.native.random_graphs import LARGEST, Maker

SIZES = (1, 1, 3, 4, 7, 8, 16, 33)
TAME = ("relu", "tanh", "neg", "sigmoid", "abs", "leaky_relu")  # what leaves numbers as large as they are
Step = Callable[["PlacingMaker"], str]


class PlacingMaker(Maker):
    def size(self) -> int:
        return 0 if self.chance(self.empty) else int(self.rng.choice(SIZES))

    def any(self) -> str:
        """A value of any type, a late one more often than not; now and then one that is given."""
        if self.chance(0.05):
            return self.among([*self.graph.inputs, *self.graph.constants])
        return self.among(self.values[-4:]) if self.chance(0.6) else self.among(self.values)

    def floats(self, *ranks: int) -> str:
        """A value of the maker's type and one of the ranks."""
        found = [v for v in self.values if self.graph.types[v].dtype is self.dtype and len(self.shape(v)) in ranks]
        if not found:
            raise OperatorError("no such value")
        return self.among(found[-4:])

    def tame(self, x: str) -> str:
        op = self.among(TAME)
        return self.emit(op, [x], plain.ATTRIBUTES.get(op))

    def linear(self, x: str, columns: int) -> str:
        width = self.shape(x)[-1]
        array = self.rng.standard_normal((width, columns)) / np.sqrt(max(width, 1))
        return self.emit("matmul", [x, self.graph.add_constant(array.astype(self.dtype.numpy))])

    def conv(self, x: str, channels: int, kernel: int = 1, layout: str = "NCHW", group: int = 1) -> str:
        shape = self.shape(x)
        inner = (shape[1] if layout == "NCHW" else shape[-1]) // group
        taps = (kernel,) * (len(shape) - 2)
        dims = (channels, inner, *taps) if layout == "NCHW" else (*taps, inner, channels)
        array = self.rng.standard_normal(dims) / np.sqrt(max(inner * kernel ** len(taps), 1))
        weight = self.graph.add_constant(array.astype(self.dtype.numpy))
        attrs = {"strides": (1,) * len(taps), "dilations": (1,) * len(taps), "pads": (kernel // 2,) * 2 * len(taps)}
        return self.emit("conv", [x, weight], {**attrs, "group": group, "layout": layout})

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        shape = self.shape(x)
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        stops = tuple(stop if d == axis else e for d, e in enumerate(shape))
        return self.emit("slice", [x], {"starts": starts, "stops": stops, "steps": (1,) * len(shape)})

    def split(self, x: str, axis: int, parts: int) -> list[str]:
        each = -(-self.shape(x)[axis] // parts)
        stops = [min(self.shape(x)[axis], each * (k + 1)) for k in range(parts)]
        return [self.cut(x, axis, min(each * k, stops[-1]), stop) for k, stop in enumerate(stops)]

    def concat(self, parts: Sequence[str], axis: int) -> str:
        return self.emit("concat", parts, {"axis": axis})

    def reshape(self, x: str, *shape: int) -> str:
        return self.emit("reshape", [x], {"shape": shape})

    def image(self) -> tuple[str, str]:
        """An image of at least one channel and its layout."""
        x, layout = self.floats(4), self.among(("NCHW", "NHWC"))
        if 0 in self.shape(x):
            raise OperatorError("an empty image")
        return x, layout

    def make(self, steps: int) -> Graph:
        for _ in range(steps):
            saved, known = self.graph.copy(), len(self.values)
            try:
                made: str | None = STEPS[int(self.rng.integers(len(STEPS)))](self)
            except (OperatorError, ValueError, ZeroDivisionError, IndexError):
                made = None
            if made is None or np.prod(self.shape(made), dtype=np.int64) > LARGEST:
                self.graph.restore(saved)
                del self.values[known:]
            else:
                self.add(made)
        return self.shown()

    def shown(self) -> Graph:
        """The last value is shown, and some between: parts, views, joints, one of them under two names."""
        made = [v for n in self.graph.nodes.values() for v in n.outputs]
        if not made:
            made = [self.emit("neg", [self.graph.inputs[0]])]
        chosen = [v for v in made if v == made[-1] or self.chance(0.12)]
        names = {f"y{k}": v for k, v in enumerate(chosen)}
        if self.chance(0.2):
            names["again"] = self.among(chosen)
        if self.chance(0.1):
            names["given"] = self.graph.inputs[0]
        self.graph.set_outputs(names)
        self.graph.remove_dead()
        return self.graph


# ---- single steps ----------------------------------------------------------------------------------------------------
def unary(m: PlacingMaker) -> str:
    return m.tame(m.value())


def linear(m: PlacingMaker) -> str:
    return m.linear(m.floats(1, 2, 3, 4), max(1, m.size()))


def joint(m: PlacingMaker) -> str:
    """Of values that fit each other, whatever they are; some are made to fit by a product, a cut or a reshape."""
    x = m.any()
    shape, dtype = m.shape(x), m.graph.types[x].dtype
    if not shape:
        raise OperatorError("nothing to join")
    axis = int(m.rng.integers(len(shape)))
    parts = [x]
    for _ in range(int(m.rng.integers(1, 5))):
        parts.append(_fitting(m, x, axis, dtype))
    order = m.rng.permutation(len(parts))
    return m.concat([parts[k] for k in order], axis)


def _fitting(m: PlacingMaker, x: str, axis: int, dtype: DType) -> str:
    shape = m.shape(x)
    kind = int(m.rng.integers(9))
    if kind == 0:
        return x
    if kind == 1:
        return m.cut(x, axis, *sorted(int(k) for k in m.rng.integers(0, shape[axis] + 1, 2)))
    if kind == 2 and dtype is m.dtype:
        return m.numbers((*shape[:axis], m.size(), *shape[axis + 1 :]))
    if kind == 3 and dtype is m.dtype and axis == len(shape) - 1:
        return m.linear(x, m.size())
    if kind == 4:
        fit = [v for v in m.values if m.graph.types[v].dtype is dtype and len(m.shape(v)) == len(shape) and all(
            a == b for d, (a, b) in enumerate(zip(m.shape(v), shape, strict=True)) if d != axis)]  # fmt: skip
        return m.among(fit)
    if kind == 5:
        flat = m.reshape(x, int(np.prod(shape)))
        same = m.emit("not" if dtype is DType.BOOL else "neg", [flat])
        return m.reshape(same, *shape)
    if kind == 6 and dtype is m.dtype:
        return m.emit("softmax", [x], {"axis": len(shape) - 1})
    if kind == 7 and dtype is not DType.BOOL and shape[axis]:
        return m.emit("reduce_max", [x], {"axes": (axis,), "keepdims": True})
    return m.emit("not" if dtype is DType.BOOL else "neg", [x])


def cut(m: PlacingMaker) -> str:
    """A box with steps of 1, which may lie where its source does; or any slice."""
    x = m.any()
    if m.chance(0.3):
        return plain.part(m)
    axis = int(m.rng.integers(len(m.shape(x))))
    size = m.shape(x)[axis]
    return m.cut(x, axis, *sorted(int(k) for k in m.rng.integers(0, size + 1, 2)))


def halves(m: PlacingMaker) -> str:
    x = m.any()
    axis = int(m.rng.integers(len(m.shape(x))))
    left, right = m.split(x, axis, 2)
    m.add(left)
    return right


def reshape(m: PlacingMaker) -> str:
    return plain.reshape(m)


def on_host(m: PlacingMaker) -> str:
    """An operator that has no loops of its own: a Python function reads and makes values."""
    x = m.floats(1, 2, 3, 4)
    shape = m.shape(x)
    axis = int(m.rng.integers(len(shape)))
    if m.chance(0.3):
        return m.emit("cumsum", [x], {"axis": axis, "exclusive": m.chance(0.5), "reverse": m.chance(0.5)})
    if m.chance(0.3):
        k = int(m.rng.integers(0, shape[axis] + 1))
        node = m.graph.insert(m.graph.make("top_k", [x], {"k": k, "axis": axis}))
        m.add(node.outputs[1])
        return node.outputs[0]
    if 0 in shape:
        raise OperatorError("nowhere to scatter to")
    places = m.emit("argmax", [x], {"axis": axis, "keepdims": True})
    updates = m.emit("reduce_max", [x], {"axes": (axis,), "keepdims": True})
    return m.emit("scatter_elements", [x, places, updates], {"axis": axis, "reduction": "none"})


def whole_numbers(m: PlacingMaker) -> str:
    """i64 and i32 values, from floats and from shapes."""
    if m.chance(0.5):
        return m.emit("cast", [m.value()], {"to": DType.I64 if m.chance(0.7) else DType.I32})
    x = m.any()
    return m.emit("add", [x, x]) if m.graph.types[x].dtype is not DType.BOOL else m.emit("not", [x])


def other_float(m: PlacingMaker) -> str:
    x = m.value()
    narrow = m.emit("cast", [x], {"to": DType.F16 if m.dtype is not DType.F16 else DType.F32})
    m.add(narrow)
    return m.emit("cast", [narrow], {"to": m.dtype})


def select(m: PlacingMaker) -> str:
    x = m.value()
    condition = m.add(m.emit("greater", [x, m.numbers(())]))
    return m.emit("where", [condition, x, m.tame(x)])


def rows(m: PlacingMaker) -> str:
    """Rows picked by numbers that the model computes."""
    x = m.floats(1, 2, 3)
    size = m.shape(x)[0]
    if not size:
        raise OperatorError("nothing to pick from")
    places = m.emit("argmax", [x], {"axis": 0, "keepdims": False})
    return m.emit("gather", [x, places], {"axis": 0})


def recurrence(m: PlacingMaker) -> str:
    """An LSTM: its steps and its last states are parts of joints."""
    x = m.floats(3)
    time, batch, width = m.shape(x)
    hidden = int(m.rng.choice((1, 3, 8, 16)))
    both = m.chance(0.5)
    n = 1 + both

    def weights(*shape: int) -> str:
        return m.graph.add_constant((m.rng.standard_normal(shape) * 0.3).astype(m.dtype.numpy))

    gates = (SIGMOID, TANH, TANH) * n
    attrs = {"direction": "bidirectional" if both else m.among(("forward", "reverse")), "activations": gates}
    node = m.graph.insert(m.graph.make(
        "lstm", [x, weights(n, 4 * hidden, width), weights(n, 4 * hidden, hidden), weights(n, 8 * hidden)], attrs
    ))  # fmt: skip
    y, last, cell = node.outputs
    m.add(m.concat([last, cell], int(m.rng.integers(3))))
    steps = m.reshape(y, time, n * batch, hidden) if m.chance(0.3) else m.reshape(y, time, batch, n * hidden)
    return m.concat([steps, m.linear(x, hidden)], 2) if m.chance(0.6) else steps


# ---- what models are made of -----------------------------------------------------------------------------------------
def dense_block(m: PlacingMaker) -> str:
    here = m.floats(2, 3, 4)
    axis = len(m.shape(here)) - 1
    for _ in range(int(m.rng.integers(2, 5))):
        made = m.linear(m.tame(here), max(1, m.size() // 2))
        here = m.concat([here, made] if m.chance(0.7) else [made, here], axis)
        if m.chance(0.2):
            m.add(made)
    return here


def dense_images(m: PlacingMaker) -> str:
    here, layout = m.image()
    axis = 1 if layout == "NCHW" else 3
    kept = [here]
    for _ in range(3):
        kept.append(m.conv(m.tame(kept[-1]), int(m.rng.choice((3, 4, 8))), int(m.rng.choice((1, 3))), layout))
        if m.chance(0.4):
            kept = [m.concat(kept, axis)]
    return m.conv(m.concat(kept, axis), 7, 1, layout) if m.chance(0.6) else m.concat(kept, axis)


def split_and_join(m: PlacingMaker) -> str:
    """C2f and CSP: a product's halves, one of which goes on through blocks; all of them are joined."""
    x, layout = m.image()
    axis = 1 if layout == "NCHW" else 3
    each = int(m.rng.choice((3, 4, 8)))
    parts = m.split(m.tame(m.conv(x, 2 * each, 1, layout)), axis, 2)
    for _ in range(int(m.rng.integers(1, 4))):
        block = m.tame(m.conv(m.tame(m.conv(parts[-1], each, 3, layout)), each, 3, layout))
        parts.append(m.emit("add", [parts[-1], block]) if m.chance(0.5) else block)
    return m.conv(m.concat(parts, axis), each, 1, layout)


def shuffle(m: PlacingMaker) -> str:
    """ShuffleNet: half of the channels go through a branch, the halves are joined and their channels interleaved."""
    x, _ = m.image()
    n, c, h, w = m.shape(x)
    x = m.conv(x, 2 * max(1, c // 2))
    c = m.shape(x)[1]
    left, right = m.split(x, 1, 2)
    joined = m.concat([left, m.tame(m.conv(m.conv(right, c // 2, 3, group=c // 2), c // 2))], 1)
    turned = m.emit("transpose", [m.reshape(joined, n, 2, c // 2, h, w)], {"perm": (0, 2, 1, 3, 4)})
    return m.reshape(turned, n, c, h, w)


def u_net(m: PlacingMaker) -> str:
    x, _ = m.image()
    skip = m.tame(m.conv(x, int(m.rng.choice((3, 8)))))
    n, _, h, w = m.shape(skip)
    if h < 2 or w < 2:
        raise OperatorError("too small to halve")
    skip = m.cut(m.cut(skip, 2, 0, h - h % 2), 3, 0, w - w % 2)
    attrs = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0,) * 4, "layout": "NCHW"}
    down = m.tame(m.conv(m.emit("max_pool", [skip], attrs), 4, 3))
    up = m.emit("repeat", [down], {"repeats": (1, 1, 2, 2)})
    if m.chance(0.3):
        padded = m.emit("pad", [up], {"pads": (0, 0, 1, 1) * 2, "mode": "constant", "value": 0.0})
        up = m.cut(m.cut(padded, 2, 1, 1 + h - h % 2), 3, 1, 1 + w - w % 2)
    return m.conv(m.concat([up, skip] if m.chance(0.5) else [skip, up], 1), 5, 3)


def pyramid(m: PlacingMaker) -> str:
    """SPPF: a value, its pool, the pool's pool and its pool."""
    x, layout = m.image()
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "layout": layout}
    made = [m.tame(m.conv(x, int(m.rng.choice((3, 8))), 1, layout))]
    for _ in range(3):
        made.append(m.emit("max_pool", [made[-1]], attrs))
    return m.conv(m.concat(made, 1 if layout == "NCHW" else 3), 8, 1, layout)


def inception(m: PlacingMaker) -> str:
    x, layout = m.image()
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "layout": layout}
    pooled = m.emit("avg_pool", [x], {**attrs, "count_include_pad": m.chance(0.5)})
    branches = [
        m.conv(x, 3, 1, layout), m.tame(m.conv(m.conv(x, 4, 1, layout), 7, 3, layout)), m.conv(pooled, 8, 1, layout),
    ]  # fmt: skip
    return m.concat([*branches, x] if m.chance(0.3) else branches, 1 if layout == "NCHW" else 3)


def rotary(m: PlacingMaker) -> str:
    """x cos + (-x2 | x1) sin of a product's columns."""
    x = m.floats(2, 3)
    last, width = len(m.shape(x)) - 1, 2 * int(m.rng.choice((1, 4, 8)))
    x = m.linear(x, width)
    left, right = m.split(x, last, 2)
    turned = m.concat([m.emit("neg", [right]), left], last)
    cos, sin = m.numbers((m.shape(x)[-2], width)), m.numbers((m.shape(x)[-2], width))
    return m.emit("add", [m.emit("mul", [x, cos]), m.emit("mul", [turned, sin])])


def cut_attention(m: PlacingMaker) -> str:
    """q, k and v cut from one product, keys and values behind those of a cache."""
    x = m.floats(3)
    batch, length, _ = m.shape(x)
    heads, size = int(m.rng.choice((1, 2, 4))), int(m.rng.choice((1, 4, 8)))
    cuts = m.split(m.linear(x, 3 * heads * size), 2, 3)
    q, k, v = (
        m.emit("transpose", [m.reshape(c, batch, length, heads, size)], {"perm": (0, 2, 1, 3)}) for c in cuts
    )  # fmt: skip
    if m.chance(0.5):
        past = int(m.rng.choice((1, 3, 16)))
        k, v = (m.add(m.concat([m.numbers((batch, heads, past, size)), y], 2)) for y in (k, v))
    scores = m.emit("matmul", [q, m.emit("transpose", [k], {"perm": (0, 1, 3, 2)})])
    mixed = m.emit("matmul", [m.emit("softmax", [scores], {"axis": 3}), v])
    return m.reshape(m.emit("transpose", [mixed], {"perm": (0, 2, 1, 3)}), batch, length, heads * size)


def heads(m: PlacingMaker) -> str:
    """A detector: products of images of several sizes, reshaped to boxes and joined along these."""
    x, _ = m.image()
    parts = []
    for k in range(int(m.rng.integers(2, 4))):
        x = x if not k else plain_pool(m, x)
        n, _, h, w = m.shape(x)
        made = m.conv(x, 6)
        if m.chance(0.5):
            made = m.reshape(m.emit("transpose", [made], {"perm": (0, 2, 3, 1)}), n, h * w * 2, 3)
        else:
            made = m.reshape(made, n, h * w * 2, 3) if m.chance(0.5) else m.reshape(made, n, 6 * h * w // 3, 3)
        parts.append(made)
    joined = m.concat(parts, 1)
    boxes, rest = m.cut(joined, 2, 0, 2), m.cut(joined, 2, 2, 3)
    return m.concat([m.tame(boxes), m.emit("sigmoid", [rest])], 2) if m.chance(0.6) else joined


def plain_pool(m: PlacingMaker, x: str) -> str:
    attrs = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 1, 1), "layout": "NCHW"}
    return m.emit("max_pool", [x], attrs)


def siblings(m: PlacingMaker) -> str:
    """Products of one value, of different widths, some of them parts of a joint."""
    x = m.floats(2, 3)
    widths = [int(m.rng.choice(SIZES)) for _ in range(int(m.rng.integers(2, 5)))]
    made = [m.linear(x, n) for n in widths]
    made = [m.tame(v) if m.chance(0.5) else v for v in made]
    for v in made:
        m.add(v)
    return m.concat(made, len(m.shape(x)) - 1) if m.chance(0.5) else made[-1]


def _plain(step: Callable[[Maker], str]) -> Step:
    return lambda m: step(m)


STEPS: tuple[Step, ...] = (
    unary, unary, linear, joint, joint, joint, joint, cut, cut, halves, reshape, reshape, on_host, on_host, on_host,
    whole_numbers, other_float, select, rows, recurrence, dense_block, dense_images, split_and_join, shuffle, u_net,
    pyramid, inception, rotary, cut_attention, heads, siblings, siblings,
    *map(_plain, (plain.binary, plain.reduce, plain.softmax, plain.transpose, plain.expand, plain.pad, plain.gather,
                  plain.layer_norm)),
)  # fmt: skip


def placing_graph(seed: int, steps: int | None = None, dtype: DType = DType.F32, empty: float = 0.06) -> Graph:
    m = PlacingMaker(seed, dtype, empty)
    if m.chance(0.6):  # an image for the idioms that want one
        n, h, w = (int(m.rng.choice((1, 3, 7, 8))) for _ in range(3))
        c = int(m.rng.choice((1, 3, 4, 8)))
        m.add(m.graph.add_input(f"x{len(m.graph.inputs)}", TensorType(dtype, (min(n, 2), c, h, w))))
    return m.make(int(m.rng.integers(2, 14)) if steps is None else steps)


def placing_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    return plain.random_feeds(graph, seed)
