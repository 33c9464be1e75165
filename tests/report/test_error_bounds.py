"""Bounds of verify: what rounding does lies within them, what a fault does lies outside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import opfuse
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.ops import Kind, Sample, operators
from opfuse.ir.types import DType, TensorType
from opfuse.report.error_bounds import analyse, worst_case
from opfuse.report.numerics import against_bounds

SAMPLES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, row in sorted(operators().items()) if not row.random
    for number in range(len(row.samples))
]  # fmt: skip


def sample_graph(name: str, sample: Sample) -> tuple[Graph, dict[str, np.ndarray]]:
    generator = np.random.default_rng(7)
    graph, feeds, inputs = Graph("sample"), {}, []
    for k, given in enumerate(sample.inputs):
        if given is None:
            inputs.append(None)
            continue
        array = generator.standard_normal(given).astype(np.float32) if isinstance(given, tuple) else np.asarray(given)
        inputs.append(graph.add_input(f"x{k}", TensorType(DType.of(array.dtype), array.shape)))
        feeds[f"x{k}"] = array
    first = graph.emit(name, inputs, sample.attrs)
    node = graph.producer(first)
    assert node is not None
    graph.set_outputs({v: v for v in node.outputs})
    return graph, feeds


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_every_operator_in_its_own_types_stays_within_its_bound(name: str, number: int) -> None:
    sample = operators()[name].samples[number]
    graph, feeds = sample_graph(name, sample)
    if not all(t.static for t in graph.types.values()):
        pytest.skip("the sample's output shape depends on its data")
    own = evaluate(graph, feeds)
    with np.errstate(all="ignore"):
        _, bounds = analyse(graph, feeds)
    for value, array in own.items():
        found = against_bounds(array, bounds[value])
        assert found.share <= 1.0, f"{value}: {found}"
        overflows = np.all(np.abs(bounds[value].value) > 6e4)  # a sample of half precision's edge
        if operators()[name].kind is not Kind.HOST and array.dtype.kind == "f" and not overflows:
            assert found.unjudged < max(1, found.elements), f"nothing of {value} is judged"


def emit(
    *steps: tuple[str, tuple[str, ...], dict[str, object]], **inputs: np.ndarray
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of steps (operator, inputs, attributes); each step's output is called like its operator."""
    graph = Graph("made")
    for name, array in inputs.items():
        graph.add_input(name, TensorType(DType.of(array.dtype), array.shape))
    names = {name: name for name in inputs}
    for op, reads, attrs in steps:
        names[op] = graph.emit(op, [names[r] for r in reads], attrs)
    graph.set_outputs({"y": names[steps[-1][0]]})
    return graph, dict(inputs)


def judged(graph: Graph, feeds: dict[str, np.ndarray], answer: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        _, bounds = analyse(graph, feeds)
    return against_bounds(answer, bounds[graph.outputs["y"]]).share


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_missing_term_of_a_sum_is_found() -> None:
    """512 products, the last one left out: the error of a lost remainder loop."""
    a, b = normal(4, 512), normal(512, 8, seed=4)
    graph, feeds = emit(("matmul", ("a", "b"), {}), a=a, b=b)
    assert judged(graph, feeds, a @ b) <= 1
    assert judged(graph, feeds, a[:, :-1] @ b[:-1]) > 10


def equal(*shape: int) -> np.ndarray:
    return np.full(shape, 0.1, np.float32)


def alternating(*shape: int) -> np.ndarray:
    return (normal(*shape) ** 2 + 1) * np.where(np.arange(shape[-1]) % 2, 1, -1).astype(np.float32)


def huge_and_tiny(*shape: int) -> np.ndarray:
    made = np.ones(shape, np.float32)
    made[..., 0] = 2.0**25
    return made


LONG = 300_000
SUMS: dict[str, tuple[str, dict[str, object]]] = {
    "sum": ("reduce_sum", {"axes": (1,), "keepdims": False}),
    "mean": ("reduce_mean", {"axes": (1,), "keepdims": False}),
    "norm": ("reduce_l2", {"axes": (1,), "keepdims": False}),
    "sum of squares": ("reduce_sum_square", {"axes": (1,), "keepdims": False}),
    "first axis": ("reduce_sum", {"axes": (0,), "keepdims": False}),
    "both axes": ("reduce_sum", {"axes": (0, 1), "keepdims": False}),
    "softmax": ("softmax", {"axis": 1}),
    "layer norm": ("layer_norm", {"axis": 1, "epsilon": 1e-5}),
    "log of sum": ("reduce_log_sum_exp", {"axes": (1,), "keepdims": False}),
    "product": ("matmul", {}),
    "product with a row": ("matmul", {}),
}


@pytest.mark.parametrize("data", [equal, alternating, huge_and_tiny])
@pytest.mark.parametrize("name", SUMS)
def test_a_long_sum_stays_within_the_bound_of_its_order(name: str, data: Callable[..., np.ndarray]) -> None:
    """The bound does not grow with the length, and native code keeps it where a chain of all terms does not."""
    op, attrs = SUMS[name]
    shape = (LONG // 3, 3) if name == "first axis" else (3, LONG // 3) if name == "both axes" else (2, LONG)
    arrays = {"x": data(*shape)}
    if op == "matmul":
        arrays["w"] = np.ones((LONG, 5 if name == "product" else 1), np.float32)
    if name in ("softmax", "layer norm", "log of sum"):
        arrays["x"] = np.log(np.abs(arrays["x"]))
    graph, feeds = emit((op, tuple(arrays), attrs), **arrays)
    answer = opfuse.compile(graph.copy(), calibrate=False, cache=None)(feeds)["y"]
    with np.errstate(all="ignore"):
        _, bounds = analyse(graph, feeds, worst_case)
    bound = bounds[graph.outputs["y"]]
    assert against_bounds(answer, bound).passed
    if op.startswith("reduce_sum") or op == "matmul":
        size = np.abs(arrays["x"].astype(np.float64) ** (2 if "square" in op else 1)).sum(attrs.get("axes", (1,)))
        assert (bound.full().reshape(size.shape + (-1,)).max(-1) <= 4200 * 2.0**-24 * size).all()


def test_a_chain_of_all_terms_is_found() -> None:
    """Added one after another, 0.1 a hundred thousand times is off by more than blocks can make it."""
    x = equal(1, 100_000)
    graph, feeds = emit(("reduce_sum", ("x",), {"axes": (1,), "keepdims": False}), x=x)
    one_by_one = np.cumsum(x, axis=1, dtype=np.float32)[:, -1]
    _, bounds = analyse(graph, feeds, worst_case)
    assert not against_bounds(one_by_one, bounds[graph.outputs["y"]]).passed
    in_blocks = np.cumsum(np.cumsum(x.reshape(-1, 250), axis=1, dtype=np.float32)[:, -1], dtype=np.float32)[-1:]
    assert against_bounds(in_blocks, bounds[graph.outputs["y"]]).passed


def test_a_matmul_in_half_precision_is_found() -> None:
    a, b = normal(4, 64), normal(64, 8, seed=4)
    graph, feeds = emit(("matmul", ("a", "b"), {}), a=a, b=b)
    halves = a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    assert judged(graph, feeds, halves) > 5


def test_a_dropped_epsilon_is_found() -> None:
    x = normal(3, 32) * np.float32(0.01)
    graph, feeds = emit(("layer_norm", ("x",), {"axis": -1 % 2, "epsilon": 1e-3}), x=x)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    assert judged(graph, feeds, (x - mean) / np.sqrt(variance + 1e-3)) <= 1
    assert judged(graph, feeds, (x - mean) / np.sqrt(variance + 1e-5)) > 100


def test_errors_pass_through_a_chain() -> None:
    """exp of a matmul: the sum's error is scaled by exp; a relative 1e-3 is far outside, float32 inside."""
    a, b = normal(4, 128) / 8, normal(128, 8, seed=4)
    graph, feeds = emit(("matmul", ("a", "b"), {}), ("exp", ("matmul",), {}), a=a, b=b)
    right = np.exp(a @ b)
    assert judged(graph, feeds, right) <= 1
    assert judged(graph, feeds, right * np.float32(1 + 1e-3)) > 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_swallowed_nan_or_infinity_is_found(bad: float) -> None:
    x = normal(40)
    x[17] = bad
    graph, feeds = emit(("relu", ("x",), {}), x=x)
    kept = np.where(x < 0, np.float32(0), x)
    assert judged(graph, feeds, kept) == 0
    swallowed = kept.copy()
    swallowed[17] = 1.0
    assert judged(graph, feeds, swallowed) == np.inf


def test_a_nan_where_there_is_none_is_found() -> None:
    x = normal(40)
    graph, feeds = emit(("relu", ("x",), {}), x=x)
    answer = np.maximum(x, 0)
    answer[3] = np.nan
    assert judged(graph, feeds, answer) == np.inf


def test_a_comparison_near_a_tie_is_not_judged_and_others_are() -> None:
    """x + y == z hangs on the rounding of the sum (where there is one); far from the tie it does not."""
    x, y = np.float32([1e8, 1.0]), np.float32([1.0, 2.0])
    z = np.float32([1e8, 5.0])
    graph, feeds = emit(("add", ("x", "y"), {}), ("less_equal", ("add", "z"), {}), x=x, y=y, z=z)
    _, bounds = analyse(graph, feeds)
    bound = bounds[graph.outputs["y"]]
    assert list(bound.full() > 0) == [True, False]
    assert against_bounds(np.array([True, True]), bound).passed
    assert against_bounds(np.array([False, True]), bound).passed
    assert not against_bounds(np.array([True, False]), bound).passed


def test_an_overflow_on_the_way_is_not_judged() -> None:
    """exp(89) is beyond float32: float64 keeps it, float32 makes an infinity; both are rounding's doing."""
    x = np.float32([1.0, 89.0])
    graph, feeds = emit(("exp", ("x",), {}), ("reciprocal", ("exp",), {}), x=x)
    _, bounds = analyse(graph, feeds)
    bound = bounds[graph.outputs["y"]]
    assert list(np.isinf(bound.full())) == [False, True]


def test_exact_operations_have_no_allowance() -> None:
    x = normal(4, 6)
    graph, feeds = emit(("transpose", ("x",), {"perm": (1, 0)}), x=x)
    assert judged(graph, feeds, x.T.copy()) == 0
    assert judged(graph, feeds, np.nextafter(x.T, np.float32(9))) == np.inf
