"""Random graphs of all operators that kernels are generated for, with sizes that fill vectors and sizes that do not.

    graph = random_graph(7)          # outputs shown, inner values among them
    feeds = random_feeds(graph, 7)
    check_answers(graph, feeds, answers)   # AssertionError where an element lies outside its error bound

The bound of an element comes from running error analysis in float64 (`opfuse.report.error_bounds`), which knows
operators by their structures alone and shares nothing with lowering or code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from opfuse.ir.graph import Graph
from opfuse.ir.ops import OperatorError
from opfuse.ir.types import DType, TensorType
from opfuse.report.error_bounds import analyse, worst_case

SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 33, 64)
LARGEST = 20000  # elements of a value
F = DType.F32
UNARY = (
    "relu", "abs", "neg", "sigmoid", "tanh", "exp", "sqrt", "erf", "silu", "gelu", "gelu_tanh", "sign", "floor",
    "softplus", "hard_swish", "leaky_relu", "elu", "mish", "log", "reciprocal", "sin", "round",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")
COMPARE = ("less", "greater_equal", "equal", "not_equal")
REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_sum_square", "reduce_l2", "reduce_l1")
ATTRIBUTES = {"leaky_relu": {"alpha": 0.1}, "elu": {"alpha": 1.0}}
Step = Callable[["Maker"], str]


class Maker:
    """Grows a graph value by value. A step that does not fit the value drawn raises OperatorError and is skipped."""

    def __init__(self, seed: int, dtype: DType = F, empty: float = 0.02) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype, self.empty = dtype, empty
        self.graph = Graph(f"random {seed}")
        self.values: list[str] = []
        self.input(int(self.rng.choice((1, 2, 2, 3, 3, 4, 4, 5))))

    # ---- drawing ----------------------------------------------------------------------------------------------------
    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def among(self, options: Sequence[str]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> int:
        return 0 if self.chance(self.empty) else int(self.rng.choice(SIZES))

    def input(self, rank: int) -> str:
        shape = [self.size() for _ in range(rank)]
        while np.prod(shape) > LARGEST:
            shape[int(np.argmax(shape))] //= 2
        return self.add(self.graph.add_input(f"x{len(self.graph.inputs)}", TensorType(self.dtype, tuple(shape))))

    def add(self, value: str) -> str:
        self.values.append(value)
        return value

    def value(self, dtype: DType | None = None) -> str:
        """A value of the type; a late one more often than not."""
        wanted = self.dtype if dtype is None else dtype
        fit = [v for v in self.values if self.graph.types[v].dtype is wanted]
        if not fit:
            raise OperatorError("no such value")
        return self.among(fit[-3:]) if self.chance(0.75) else self.among(fit)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.graph.types[value].static_shape

    def numbers(self, shape: Sequence[int], scale: float = 1.0) -> str:
        """A constant, or now and then an input, of normal numbers."""
        if self.chance(0.25):
            return self.graph.add_input(f"x{len(self.graph.inputs)}", TensorType(self.dtype, tuple(shape)))
        array = (self.rng.standard_normal(shape) * scale).astype(self.dtype.numpy)
        return self.graph.add_constant(array)

    def emit(self, op: str, inputs: Sequence[str | None], attrs: Mapping[str, object] | None = None) -> str:
        return self.graph.emit(op, list(inputs), dict(attrs or {}))

    # ---- the whole --------------------------------------------------------------------------------------------------
    def make(self, steps: int) -> Graph:
        for _ in range(steps):
            saved, known = self.graph.copy(), len(self.values)
            try:
                made: str | None = STEPS[int(self.rng.integers(len(STEPS)))](self)
            except (OperatorError, ValueError):
                made = None
            if made is None or np.prod(self.shape(made), dtype=np.int64) > LARGEST:
                self.graph.restore(saved)
                del self.values[known:]
            else:
                self.add(made)
        inner = [v for v in self.values if self.graph.producer(v) is not None] or self.values
        shown = [v for v in inner if v == inner[-1] or self.chance(0.15)]
        self.graph.set_outputs({f"y{k}": v for k, v in enumerate(shown)})
        self.graph.remove_dead()
        return self.graph


def unary(m: Maker) -> str:
    op = m.among(UNARY)
    return m.emit(op, [m.value()], ATTRIBUTES.get(op))


def binary(m: Maker) -> str:
    a = m.value()
    shape = m.shape(a)
    if m.chance(0.5):
        b = m.value()
    else:
        tail = shape[int(m.rng.integers(len(shape) + 1)) :]
        b = m.numbers(tuple(d if m.chance(0.6) else 1 for d in tail))
    return m.emit(m.among(BINARY), [a, b] if m.chance(0.5) else [b, a])


def compare(m: Maker) -> str:
    a = m.value()
    return m.emit(m.among(COMPARE), [a, m.numbers(m.shape(a)[-1:]) if m.chance(0.5) else m.value()])


def logic(m: Maker) -> str:
    c = m.value(DType.BOOL)
    return m.emit("not", [c]) if m.chance(0.3) else m.emit(m.among(("and", "or", "xor")), [c, m.value(DType.BOOL)])


def select(m: Maker) -> str:
    return m.emit("where", [m.value(DType.BOOL), m.value(), m.numbers(())])


def from_bool(m: Maker) -> str:
    return m.emit("cast", [m.value(DType.BOOL)], {"to": m.dtype})


def clip(m: Maker) -> str:
    return m.emit("clip", [m.value(), m.numbers(()), m.numbers(()) if m.chance(0.5) else None])


def reduce(m: Maker) -> str:
    x = m.value()
    axes = tuple(k for k in range(len(m.shape(x))) if m.chance(0.4)) or (len(m.shape(x)) - 1,)
    return m.emit(m.among(REDUCE), [x], {"axes": axes, "keepdims": m.chance(0.6)})


def softmax(m: Maker) -> str:
    x = m.value()
    axis = len(m.shape(x)) - 1 if m.chance(0.6) else int(m.rng.integers(max(1, len(m.shape(x)))))
    return m.emit(m.among(("softmax", "softmax", "log_softmax")), [x], {"axis": axis})


def layer_norm(m: Maker) -> str:
    x = m.value()
    shape = m.shape(x)
    axis = len(shape) - 1 if m.chance(0.7) else int(m.rng.integers(max(1, len(shape))))
    op = m.among(("layer_norm", "rms_norm"))
    scale = m.numbers(shape[axis:]) if m.chance(0.7) else None
    bias = [m.numbers(shape[axis:])] if m.chance(0.5) and op == "layer_norm" and scale else []
    return m.emit(op, [x, scale, *bias] if scale else [x], {"axis": axis, "epsilon": 1e-3})


def matmul(m: Maker) -> str:
    x = m.value()
    shape = m.shape(x)
    if not shape:
        raise OperatorError("no rows")
    kind, columns = m.rng.random(), m.size()
    if kind < 0.4:
        w = m.numbers((shape[-1], columns), 0.3)
    elif kind < 0.5:
        w = m.numbers((shape[-1],), 0.3)
    elif kind < 0.75 or len(shape) < 2:
        w = m.numbers((*shape[:-2], shape[-1], columns), 0.3)
    else:  # with itself, transposed: attention's scores
        perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        w = m.emit("transpose", [x], {"perm": perm})
    return m.emit("matmul", [x, w])


def conv(m: Maker) -> str:
    x = m.value()
    shape = m.shape(x)
    if not 3 <= len(shape) <= 4:
        raise OperatorError("no image")
    layout = m.among(("NCHW", "NHWC"))
    channels, room = (shape[1], shape[2:]) if layout == "NCHW" else (shape[-1], shape[1:-1])
    kernel = tuple(int(m.rng.integers(1, min(3, max(1, d)) + 1)) for d in room)
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    group = int(m.rng.choice(divisors)) if divisors and m.chance(0.4) else 1
    each = int(m.rng.choice((1, 2, 4, 8))) if group > 1 else max(1, m.size())
    taps = (channels // group, *kernel) if layout == "NCHW" else (*kernel, channels // group)
    w = m.numbers((each * group, *taps) if layout == "NCHW" else (*taps, each * group), 0.3)
    bias = [m.numbers((each * group,))] if m.chance(0.5) else []
    attrs = {**window(m, room), "group": group, "layout": layout}
    return m.emit("conv", [x, w, *bias], attrs)


def window(m: Maker, room: Sequence[int]) -> dict[str, object]:
    n = len(room)
    strides, dilations = (tuple(int(k) for k in m.rng.choice((1, 1, 2), n)) for _ in range(2))
    return {"strides": strides, "dilations": dilations, "pads": tuple(int(k) for k in m.rng.integers(0, 2, 2 * n))}


def pool(m: Maker) -> str:
    x = m.value()
    shape = m.shape(x)
    if not 3 <= len(shape) <= 4:
        raise OperatorError("no image")
    layout, op = m.among(("NCHW", "NHWC")), m.among(("max_pool", "avg_pool"))
    room = shape[2:] if layout == "NCHW" else shape[1:-1]
    kernel = tuple(int(m.rng.integers(2, 4)) for _ in room)
    attrs = {"kernel": kernel, **window(m, room), "layout": layout, "ceil_mode": m.chance(0.3)}
    return m.emit(op, [x], {**attrs, "count_include_pad": m.chance(0.5)} if op == "avg_pool" else attrs)


def batch_norm(m: Maker) -> str:
    x = m.value()
    if len(m.shape(x)) < 2:
        raise OperatorError("no channels")
    layout = m.among(("NCHW", "NHWC"))
    channels = m.shape(x)[1] if layout == "NCHW" else m.shape(x)[-1]
    vectors = [m.graph.add_constant(m.rng.uniform(0.5, 1.5, channels).astype(m.dtype.numpy)) for _ in range(4)]
    return m.emit("batch_norm", [x, *vectors], {"epsilon": 1e-3, "layout": layout})


# ---- movement --------------------------------------------------------------------------------------------------------
def any_value(m: Maker) -> str:
    return m.value(DType.BOOL) if m.chance(0.1) else m.value()


def reshape(m: Maker) -> str:
    x = any_value(m)
    shape, whole = m.shape(x), int(np.prod(m.shape(x)))
    options: list[tuple[int, ...]] = [(whole,), (1, *shape), (*shape, 1), shape[::-1]]
    options.append(tuple(d for d in shape if d != 1))
    if len(shape) > 1:
        options += [(*shape[:-2], shape[-2] * shape[-1]), (shape[0] * shape[1], *shape[2:])]
    for d in (2, 3, 4, 8):
        if whole % d == 0 and whole:
            options += [(d, whole // d), (whole // d, d)]
        if shape and shape[-1] % d == 0:
            options.append((*shape[:-1], shape[-1] // d, d))
    return m.emit("reshape", [x], {"shape": options[int(m.rng.integers(len(options)))]})


def transpose(m: Maker) -> str:
    x = any_value(m)
    return m.emit("transpose", [x], {"perm": tuple(int(p) for p in m.rng.permutation(len(m.shape(x))))})


def part(m: Maker) -> str:
    x = any_value(m)
    starts, stops, steps = [], [], []
    for d in m.shape(x):
        if m.chance(0.5) or d < 2:
            first, last, step = 0, d, 1
        elif m.chance(0.3):
            first, last, step = d - 1, -1, -int(m.rng.integers(1, 3))
        else:
            first = int(m.rng.integers(0, d))
            last, step = int(m.rng.integers(first, d + 1)), int(m.rng.integers(1, 3))
            last = last if last > first or m.chance(0.2) else d
        starts.append(first)
        stops.append(last)
        steps.append(step)
    return m.emit("slice", [x], {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)})


def concat(m: Maker) -> str:
    x = any_value(m)
    shape = m.shape(x)
    if not shape:
        raise OperatorError("nothing to join")
    axis = int(m.rng.integers(len(shape)))
    if m.graph.types[x].dtype is DType.BOOL:
        return m.emit("concat", [x, x], {"axis": axis})
    other = m.numbers((*shape[:axis], m.size(), *shape[axis + 1 :])) if m.chance(0.5) else m.emit("relu", [x])
    parts = [x, other, x] if m.chance(0.3) else [other, x]
    return m.emit("concat", parts, {"axis": axis})


def expand(m: Maker) -> str:
    x = any_value(m)
    shape = tuple(int(m.rng.integers(1, 5)) if d == 1 else d for d in m.shape(x))
    return m.emit("expand", [x], {"shape": (int(m.rng.integers(1, 4)), *shape) if m.chance(0.4) else shape})


def pad(m: Maker) -> str:
    x = m.value()
    pads = tuple(int(k) for k in m.rng.integers(-1 if m.chance(0.2) else 0, 3, 2 * len(m.shape(x))))
    mode = m.among(("constant", "constant", "edge", "reflect"))
    value = float(m.rng.integers(3)) if mode == "constant" else 0
    return m.emit("pad", [x], {"pads": pads, "mode": mode, "value": value})


def repeated(m: Maker) -> str:
    x = any_value(m)
    return m.emit("tile", [x], {"repeats": tuple(int(m.rng.integers(1, 4)) for _ in m.shape(x))})


def gather(m: Maker) -> str:
    x = m.value()
    shape = m.shape(x)
    if 0 in shape or not shape:
        raise OperatorError("nothing to pick from")
    axis = int(m.rng.integers(len(shape)))
    places = tuple(m.size() for _ in range(int(m.rng.integers(0, 3))))
    indices = m.graph.add_constant(m.rng.integers(-shape[axis], shape[axis], places, dtype=np.int64))
    return m.emit("gather", [x, indices], {"axis": axis})


def trilu(m: Maker) -> str:
    return m.emit("trilu", [m.value()], {"k": int(m.rng.integers(-2, 3)), "upper": m.chance(0.5)})


# ---- what models are made of -----------------------------------------------------------------------------------------
def attention(m: Maker) -> str:
    """softmax(q k / c + mask) v, the heads in front or split off the last dimension."""
    x = m.value()
    if len(m.shape(x)) < 2:
        raise OperatorError("no rows")
    rows, size = m.shape(x)[-2:]
    if len(m.shape(x)) == 3 and size % 4 == 0 and size:
        x = m.emit("reshape", [x], {"shape": (*m.shape(x)[:2], 4, size // 4)})
        x = m.emit("transpose", [x], {"perm": (0, 2, 1, 3)})
        size //= 4
    q, v = (m.emit("matmul", [x, m.numbers((size, size), 0.3)]) for _ in range(2))
    batch = tuple(range(len(m.shape(x)) - 2))
    k = m.emit("transpose", [x], {"perm": (*batch, len(batch) + 1, len(batch))})
    scores = m.emit("mul", [m.emit("matmul", [q, k]), m.graph.add_constant(np.array(0.5, m.dtype.numpy))])
    if m.chance(0.5):
        scores = m.emit("add", [scores, m.numbers((rows,))])
    return m.emit("matmul", [m.emit("softmax", [scores], {"axis": len(batch) + 1}), v])


def block(m: Maker) -> str:
    """conv, norm, activation, and the input added where it fits."""
    x = m.add(conv(m))
    y = m.emit("relu", [batch_norm(m)])
    return m.emit("add", [x, y]) if m.shape(x) == m.shape(y) else y


def feed_forward(m: Maker) -> str:
    x = m.value()
    if not m.shape(x):
        raise OperatorError("no columns")
    width, inner = m.shape(x)[-1], m.size()
    y = m.emit("add", [m.emit("matmul", [x, m.numbers((width, inner), 0.3)]), m.numbers((inner,))])
    y = m.emit(m.among(("gelu", "relu", "silu")), [y])
    y = m.emit("add", [m.emit("matmul", [y, m.numbers((inner, width), 0.3)]), m.numbers((width,))])
    return m.emit("layer_norm", [m.emit("add", [x, y])], {"axis": len(m.shape(x)) - 1, "epsilon": 1e-3})


def pick(m: Maker) -> str:
    """The largest of each row, by its place."""
    x = m.value()
    shape = m.shape(x)
    if not shape or 0 in shape:
        raise OperatorError("nothing to pick from")
    axis = int(m.rng.integers(len(shape)))
    places = m.emit(m.among(("argmax", "argmin")), [x], {"axis": axis, "keepdims": True})
    return m.emit("gather_elements", [x, places], {"axis": axis})


STEPS: tuple[Step, ...] = (
    unary, unary, unary, binary, binary, binary, binary, compare, logic, select, from_bool, clip, reduce, reduce,
    softmax, layer_norm, matmul, matmul, conv, conv, pool, batch_norm, reshape, reshape, transpose, transpose, part,
    concat, expand, pad, repeated, gather, trilu, attention, block, feed_forward, pick,
)  # fmt: skip


def random_graph(seed: int, steps: int | None = None, dtype: DType = F, empty: float = 0.02) -> Graph:
    m = Maker(seed, dtype, empty)
    return m.make(int(m.rng.integers(1, 16)) if steps is None else steps)


def random_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    types = {n: graph.types[n] for n in graph.inputs}
    return {n: rng.standard_normal(t.static_shape).astype(t.dtype.numpy) for n, t in types.items()}


# ---- judging ---------------------------------------------------------------------------------------------------------
SLACK = 4.0  # fused kernels may round in another order than the operators one by one, and rewrites fold constants


def check_answers(graph: Graph, feeds: Mapping[str, np.ndarray], *answers: Mapping[str, np.ndarray]) -> None:
    with np.errstate(all="ignore"):
        values, bounds = analyse(graph, feeds, worst_case)
    for answer in answers:
        assert list(answer) == list(graph.outputs)
        for public, value in graph.outputs.items():
            type_, got = graph.types[value], answer[public]
            assert got.dtype == type_.dtype.numpy and got.shape == type_.shape, (public, got.dtype, got.shape, type_)
            check_array(public, got, values[value], bounds[value].full())


def check_array(name: str, got: np.ndarray, right: np.ndarray, bound: np.ndarray) -> None:
    judged = np.isfinite(bound)
    with np.errstate(all="ignore"):
        if got.dtype.kind in "bui":
            wrong = judged & (bound < 0.5) & (got != right)
        else:
            wide, right = got.astype(np.float64), right.astype(got.dtype).astype(np.float64)
            same = (wide == right) | (np.isnan(wide) & np.isnan(right))
            wrong = judged & ~same & ~(np.abs(wide - right) <= SLACK * bound + np.finfo(np.float32).tiny)
    if wrong.any():
        first = tuple(int(k[0]) for k in np.nonzero(wrong))
        raise AssertionError(
            f"{name}: {int(wrong.sum())} of {wrong.size} elements are wrong; at {first} {got[first]!r} stands for"
            f" {right[first]!r} within {bound[first]:.3g}"
        )
