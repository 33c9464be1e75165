"""Formulas of a model that add 1 and take it away: compiled, they keep the digits of small values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType

ONE = np.array([1], np.float32)


def softplus(g: Graph, x: str) -> str:
    return g.emit("log", [g.emit("add", [g.emit("exp", [x]), g.add_constant(ONE)])])


def log_sigmoid(g: Graph, x: str) -> str:
    return g.emit("log", [g.emit("sigmoid", [x])])


def expm1(g: Graph, x: str) -> str:
    return g.emit("sub", [g.emit("exp", [x]), g.add_constant(ONE)])


def expm1_by_addition(g: Graph, x: str) -> str:
    return g.emit("add", [g.add_constant(-ONE), g.emit("exp", [x])])


def log1p(g: Graph, x: str) -> str:
    return g.emit("log", [g.emit("add", [g.add_constant(ONE), g.emit("abs", [x])])])


def gelu(g: Graph, x: str) -> str:
    half, root = g.add_constant(ONE / 2), g.add_constant(np.sqrt(2 * ONE))
    inner = g.emit("add", [g.emit("erf", [g.emit("div", [x, root])]), g.add_constant(ONE)])
    return g.emit("mul", [g.emit("mul", [x, half]), inner])


def _gelu(x: Any) -> Any:
    from math import erfc, sqrt

    return np.array([0.5 * v * erfc(-v / sqrt(2)) for v in x])


@pytest.mark.parametrize(
    ("build", "right"),
    [
        (softplus, lambda x: np.logaddexp(x, 0)),
        (log_sigmoid, lambda x: -np.logaddexp(-x, 0)),
        (expm1, np.expm1),
        (expm1_by_addition, np.expm1),
        (log1p, lambda x: np.log1p(np.abs(x))),
        (gelu, _gelu),
    ],
)
def test_digits_are_kept(build: Callable[[Graph, str], str], right: Callable[[Any], Any]) -> None:
    x = np.concatenate([np.linspace(-12, 100, 57), [-1e-6, 1e-6, 3e-20, -3e-20]]).astype(np.float32)
    graph = Graph("formula")
    graph.set_outputs({"y": build(graph, graph.add_input("x", TensorType(DType.F32, x.shape)))})
    if build in (expm1, expm1_by_addition):
        x = np.minimum(x, 80)
    answer = opfuse.compile(graph, calibrate=False)({"x": x})["y"]
    np.testing.assert_allclose(answer, right(x.astype(np.float64)), rtol=6 * 2.0**-23, atol=2.0**-149)
