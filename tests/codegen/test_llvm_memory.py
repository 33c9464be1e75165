"""Vectors to and from memory: the last lanes of a row, rows read backwards, and what lies outside."""

from __future__ import annotations

import numpy as np
import pytest

import opfuse
from opfuse import pipeline
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options


def text_of(g: Graph) -> str:
    printed = pipeline.lower(g, Options(threads=1, calibrate=False)).printed
    return "\n".join(p.text for phases in printed.values() for p in phases)


def biased(columns: int, dtype: DType) -> Graph:
    g = Graph("g")
    x = g.add_input("x", TensorType(dtype, (9, columns)))
    bias = g.add_constant(np.arange(columns).astype(dtype.numpy))
    g.set_outputs({"y": g.emit("add", [x, bias])})
    return g


def reversed_rows(columns: int, dtype: DType = DType.F32) -> Graph:
    g = Graph("g")
    x = g.add_input("x", TensorType(dtype, (3, columns)))
    turned = g.emit("slice", [x], {"starts": (0, columns - 1), "stops": (3, -1), "steps": (1, -1)})
    g.set_outputs({"y": g.emit("add", [turned, x])})
    return g


@pytest.mark.parametrize("columns", range(1, 34))
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.I8, DType.F16])
def test_every_number_of_last_lanes(columns: int, dtype: DType) -> None:
    g = biased(columns, dtype)
    x = np.random.default_rng(0).integers(-9, 9, (9, columns)).astype(dtype.numpy)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=x)["y"]
    assert np.array_equal(got, x + np.arange(columns).astype(dtype.numpy))


def test_the_last_lanes_are_stored_whole() -> None:
    """A masked store would make the next row's load wait where the kernel runs in place."""
    for columns in (2, 8, 24, 31):
        assert "masked.store" not in text_of(biased(columns, DType.F32))


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 31, 64, 100])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.I8, DType.F16])
def test_rows_backwards(columns: int, dtype: DType) -> None:
    g = reversed_rows(columns, dtype)
    x = np.random.default_rng(0).integers(-9, 9, (3, columns)).astype(dtype.numpy)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=x)["y"]
    assert np.array_equal(got, x[:, ::-1] + x)


def test_rows_backwards_are_no_gather() -> None:
    assert "masked.gather" not in text_of(reversed_rows(64))


@pytest.mark.parametrize("columns", [3, 18, 40])
@pytest.mark.parametrize("mode", ["reflect", "edge", "constant"])
def test_padding_along_the_lanes(columns: int, mode: str) -> None:
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (3, columns)))
    g.set_outputs({"y": g.emit("pad", [x], {"pads": (0, 2, 0, 1), "mode": mode, "value": 0.5})})
    feed = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=feed)["y"]
    assert np.array_equal(got, evaluate(g, {"x": feed}, "native")["y"])


@pytest.mark.parametrize("columns", [1, 5, 15, 16, 17, 33, 50])
@pytest.mark.parametrize("step", [2, 3, 4, 5, -2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I8, DType.F16])
def test_every_few_elements(columns: int, step: int, dtype: DType) -> None:
    """Whole vectors are read for the lanes of one, but never behind the last element."""
    g = Graph("g")
    x = g.add_input("x", TensorType(dtype, (3, columns)))
    first, stop = (0, columns) if step > 0 else (columns - 1, -1)
    picked = g.emit("slice", [x], {"starts": (0, first), "stops": (3, stop), "steps": (1, step)})
    g.set_outputs({"y": g.emit("add", [picked, picked])})
    feed = np.random.default_rng(0).integers(-9, 9, (3, columns)).astype(dtype.numpy)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=feed)["y"]
    assert np.array_equal(got, feed[:, ::step] * 2)


@pytest.mark.parametrize("columns", [1, 7, 16, 23, 40])
@pytest.mark.parametrize("times", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I8, DType.F16])
def test_every_element_several_times(columns: int, times: int, dtype: DType) -> None:
    """Stores at every second place leave those between alone, which other rows or other threads write."""
    g = Graph("g")
    x = g.add_input("x", TensorType(dtype, (3, columns)))
    g.set_outputs({"y": g.emit("repeat", [g.emit("neg", [x])], {"repeats": (2, times)})})
    feed = np.random.default_rng(0).integers(-9, 9, (3, columns)).astype(dtype.numpy)
    got = opfuse.compile(g.copy(), threads=1, calibrate=False)(x=feed)["y"]
    assert np.array_equal(got, np.repeat(np.repeat(-feed, 2, 0), times, 1))


def test_near_elements_are_no_gather_and_no_scatter() -> None:
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (3, 100)))
    picked = g.emit("slice", [x], {"starts": (0, 0), "stops": (3, 100), "steps": (1, 2)})
    g.set_outputs({"y": g.emit("repeat", [picked], {"repeats": (1, 2)})})
    text = text_of(g)
    assert "gather" not in text and "scatter" not in text


def test_the_only_tile_of_a_grid_begins_at_a_known_place() -> None:
    """Ten columns, a panel of sixteen: no lane can be in another panel."""
    g = Graph("g")
    x = g.add_input("x", TensorType(DType.F32, (1, 64)))
    w = g.add_constant(np.ones((64, 10), np.float32))
    g.set_outputs({"y": g.emit("matmul", [x, w])})
    assert "masked.gather" not in text_of(g)
