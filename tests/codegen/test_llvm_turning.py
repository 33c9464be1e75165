"""Transposes in registers: squares of vectors, full and not, against NumPy; and that nothing is gathered for them."""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.codegen.llvm.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.target import Target, host
from opfuse.tile.choose import choose_cpu
from opfuse.tile.lower import LoweredRegion, lower
from opfuse.tile.schedule import Schedule
from tests.codegen.native import Native, target_of

SIZES = [(16, 16), (8, 9), (17, 33), (40, 23), (64, 50), (3, 64), (64, 3), (1, 20), (100, 8)]


def region(graph: Graph) -> LoweredRegion:
    answer = lower(graph, "turn")
    assert not isinstance(answer, Refusal), answer.text
    return answer


def run(graph: Graph, feeds: dict[str, np.ndarray], target: Target, tile: dict[str, int] | None = None) -> np.ndarray:
    lowered = region(graph)
    schedule = choose_cpu(lowered.program, target) if tile is None else Schedule(tile=tile)
    arrays = {}
    for b in lowered.program.buffers:
        shape = TensorType(b.dtype, b.shape).static_shape
        if b.role == "out":
            arrays[b.name] = out = np.full(shape, 77, b.dtype.numpy)
        else:
            arrays[b.name] = feeds[lowered.arguments[b.name]].reshape(shape)
    Native(lowered.program, schedule, target).run(arrays, {}, splits=(0.5,))
    return out


def transposed(rows: int, columns: int, dtype: DType) -> tuple[Graph, dict[str, np.ndarray]]:
    """-x of [3, rows, columns], its last two dimensions exchanged."""
    g = Graph()
    x = g.add_input("x", TensorType(dtype, (3, rows, columns)))
    g.set_outputs({"y": g.emit("transpose", [g.emit("neg", [x])], {"perm": (0, 2, 1)})})
    array = np.arange(3 * rows * columns).reshape(3, rows, columns) % 1000
    return g, {"x": array.astype(dtype.numpy)}


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.F64, DType.I8], ids=str)
def test_transposes_of_every_size(isa: str, dtype: DType) -> None:
    target = target_of(isa)
    for rows, columns in SIZES:
        graph, feeds = transposed(rows, columns, dtype)
        want = -feeds["x"].transpose(0, 2, 1)
        for tile in (None, {"i0": 1, "i1": 7, "i2": 20}, {"i0": 2, "i1": 48, "i2": 11}):
            got = run(graph, feeds, target, tile)
            assert np.array_equal(got.reshape(want.shape), want), (rows, columns, tile)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_products_with_turned_columns_of_every_size(isa: str) -> None:
    """q k^T of small integers: exact, whatever the order of sums."""
    target = target_of(isa)
    rng = np.random.default_rng(0)
    for keys, depth in SIZES:
        g = Graph()
        q, k = (g.add_input(n, TensorType(DType.F32, (2, r, depth))) for n, r in (("q", 7), ("k", keys)))
        g.set_outputs({"y": g.emit("matmul", [q, g.emit("transpose", [k], {"perm": (0, 2, 1)})])})
        feeds = {"q": rng.integers(-9, 9, (2, 7, depth)).astype(np.float32),
                 "k": rng.integers(-9, 9, (2, keys, depth)).astype(np.float32)}  # fmt: skip
        want = feeds["q"] @ feeds["k"].transpose(0, 2, 1)
        assert np.array_equal(run(g, feeds, target).reshape(want.shape), want), (keys, depth)


def test_nothing_is_gathered_or_scattered() -> None:
    graph, _ = transposed(64, 48, DType.F32)
    program = region(graph).program
    printed = print_program(program, choose_cpu(program, host()), host(), "turn")
    assert not isinstance(printed, Refusal), printed.text
    text = "".join(p.text for p in printed)
    assert "shufflevector" in text and "gather" not in text and "scatter" not in text
