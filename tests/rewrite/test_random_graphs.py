"""Random graphs through all rules: the same answers, nothing undone, and nothing left to do for a second run.

The graphs mix what the rules look for (constants of 0, 1 and -0.0, transposes to and from channels-last, reshapes,
expands, convolutions, norms) and show some inner values as outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opfuse.decision import Ledger
from opfuse.frontends.onnx.load import load
from opfuse.ir.check import check
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.ops import OperatorError
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.rewrite.engine import rewrite

F = DType.F32
UNARY = ("relu", "abs", "neg", "sigmoid", "tanh", "exp", "sqrt", "erf", "silu", "identity", "reciprocal")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")
REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_sum_square")
SHARED = Path(__file__).parents[3] / "shared" / "models" / "files"
Emit = Callable[["Maker", str, tuple[int, ...]], str]


class Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"random {seed}")
        self.values = [
            self.graph.add_input("x0", TensorType(F, (2, 3, 4, 4))),
            self.graph.add_input("x1", TensorType(F, (3, 4, 1))),
        ]

    def one_of(self, options: tuple[str, ...] | list[str]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def numbers(self, *bounds: int) -> tuple[int, ...]:
        return tuple(int(self.rng.integers(b)) for b in bounds)

    def constant(self, shape: tuple[int, ...]) -> str:
        numbers = np.array([0.0, 1.0, -0.0, 0.5, 2.0, 3.0, -1.0], np.float32)
        whole = numbers[self.rng.integers(7)] if self.rng.random() < 0.5 else numbers[self.rng.integers(0, 7, shape)]
        return self.graph.add_constant(np.broadcast_to(whole, shape).copy())

    def make(self) -> Graph:
        for _ in range(int(self.rng.integers(5, 28))):
            x = self.one_of(self.values[-5:])
            shape = self.graph.types[x].static_shape
            try:
                made = STEPS[int(self.rng.integers(len(STEPS)))](self, x, shape)
            except OperatorError:  # this operator does not take this shape
                continue
            if np.prod(self.graph.types[made].static_shape) < 5000:
                self.values.append(made)
        shown = [v for v in self.values[2:] if v == self.values[-1] or self.rng.random() < 0.12]
        self.graph.set_outputs({f"y{k}": v for k, v in enumerate(shown)})
        return self.graph


def unary(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    return m.graph.emit(m.one_of(UNARY), [x])


def binary(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    tail = shape[int(m.rng.integers(len(shape) + 1)) :]
    other = (
        m.one_of(m.values)
        if m.rng.random() < 0.5
        else m.constant(tuple(d if m.rng.random() < 0.5 else 1 for d in tail))
    )
    return m.graph.emit(m.one_of(BINARY), [x, other] if m.rng.random() < 0.5 else [other, x])


def transpose(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    layouts = [(0, 2, 3, 1), (0, 3, 1, 2)]
    free = tuple(int(p) for p in m.rng.permutation(len(shape)))
    return m.graph.emit("transpose", [x], {"perm": layouts[int(m.rng.integers(2))] if m.rng.random() < 0.5 else free})


def reshape(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    whole = int(np.prod(shape))
    shapes = [
        (whole,),
        (1, whole),
        (*shape, 1),
        tuple(d for d in shape if d != 1),
        (*shape[:-2], int(np.prod(shape[-2:]))),
    ]
    return m.graph.emit("reshape", [x], {"shape": shapes[int(m.rng.integers(len(shapes)))]})


def reduce(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    axes = tuple(sorted(set(m.numbers(*[max(len(shape), 1)] * 2))))
    return m.graph.emit(m.one_of(REDUCE), [x], {"axes": axes, "keepdims": bool(m.rng.random() < 0.5)})


def expand(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    return m.graph.emit("expand", [x], {"shape": tuple(3 if d == 1 and m.rng.random() < 0.5 else d for d in shape)})


def softmax(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    return m.graph.emit("softmax", [x], {"axis": int(m.rng.integers(max(len(shape), 1)))})


def conv(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    if len(shape) < 3:
        raise OperatorError("no spatial axis")
    count, spatial = int(m.rng.integers(1, 4)), len(shape) - 2
    weights = m.graph.add_constant(
        m.rng.standard_normal((count, shape[1], *(min(d, 2) for d in shape[2:]))).astype(np.float32)
    )
    bias = [m.constant((count,))] if m.rng.random() < 0.5 else []
    window = {"strides": (1,) * spatial, "dilations": (1,) * spatial, "pads": m.numbers(*[2] * (2 * spatial))}
    return m.graph.emit("conv", [x, weights, *bias], window)


def pool(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    spatial = max(len(shape) - 2, 1)
    window = {
        "kernel": (1,) * (spatial - 1) + (2,),
        "strides": (1,) * spatial,
        "dilations": (1,) * spatial,
        "pads": (0,) * (2 * spatial),
    }
    return m.graph.emit(m.one_of(("max_pool", "avg_pool")), [x], window)


def matmul(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    return m.graph.emit("matmul", [x, m.constant((shape[-1] if shape else 1, 2))])


def pad(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    if not shape:
        raise OperatorError("nothing to pad")
    return m.graph.emit("pad", [x], {"pads": m.numbers(*[2] * (2 * len(shape))), "value": float(m.rng.integers(2))})


def turn_round(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    back = {"starts": tuple(d - 1 for d in shape), "stops": (-1,) * len(shape), "steps": (-1,) * len(shape)}
    return m.graph.emit("slice", [x], back)


def norm(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    channels = shape[1] if len(shape) > 1 else 1
    vectors = [m.graph.add_constant(m.rng.random(channels).astype(np.float32)) for _ in range(4)]
    return m.graph.emit("batch_norm", [x, *vectors])


def concat(m: Maker, x: str, shape: tuple[int, ...]) -> str:
    return m.graph.emit("concat", [x, x], {"axis": int(m.rng.integers(max(len(shape), 1)))})


STEPS: tuple[Emit, ...] = (
    unary, unary, binary, binary, binary, transpose, transpose, reshape, reduce, reduce, expand, softmax, conv, pool,
    matmul, pad, turn_round, norm, concat,
)  # fmt: skip


def largest(graph: Graph, feeds: dict[str, np.ndarray]) -> float:
    values = evaluate(graph, feeds, "f64", list(graph.types))
    return max(1.0, *(float(np.max(np.abs(v[np.isfinite(v)]), initial=0)) for v in values.values()))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("strict", [False, True], ids=["all", "exact"])
@pytest.mark.parametrize("seed", range(80))
def test_random_graph(seed: int, strict: bool) -> None:
    graph, options, ledger = Maker(seed).make(), Options(strict=strict), Ledger()
    after = rewrite(graph, options, ledger)
    check(after)
    assert [d for d in ledger if d.outcome == "undone"] == []
    again = Ledger()
    rewrite(after, options, again)
    assert [d for d in again if d.outcome != "refused"] == []

    rng = np.random.default_rng(seed)
    feeds = {n: rng.standard_normal(graph.types[n].static_shape).astype(np.float32) for n in graph.inputs}
    before_values, after_values = evaluate(graph, feeds, "f64"), evaluate(after, feeds, "f64")
    # Weights were rounded to float32 once more, so differences are float32's, of the largest value on the way.
    eps = float(np.finfo(np.float32).eps) * largest(graph, feeds) * len(graph.nodes)
    for name, expected in before_values.items():
        np.testing.assert_allclose(
            after_values[name], expected, rtol=64 * float(np.finfo(np.float32).eps), atol=8 * eps
        )


@pytest.mark.skipif(not SHARED.is_dir(), reason="no folder ../shared/models/files with models")
@pytest.mark.parametrize(
    ("name", "without"), [("mnist_cntk", {"transpose"}), ("cnn_mnist_pytorch", {"transpose", "batch_norm"})]
)
def test_real_models_end_without_transposes(name: str, without: set[str]) -> None:
    graph = load(str(SHARED / f"{name}.onnx"))
    for weight in list(graph.defaults):  # nobody feeds them
        graph.inputs.remove(weight)
        graph.constants[weight] = graph.defaults.pop(weight)
    graph = graph.bind({s: 1 for s in graph.symbols})
    after = rewrite(graph, Options(), Ledger())
    assert not without & {n.op for n in after.nodes.values()}
    feeds = {n: np.random.default_rng(0).random(graph.types[n].static_shape).astype(np.float32) for n in graph.inputs}
    for output, expected in evaluate(graph, feeds, "f64").items():
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(
            evaluate(after, feeds)[output], expected, rtol=0, atol=64 * float(np.finfo(np.float32).eps) * scale
        )
