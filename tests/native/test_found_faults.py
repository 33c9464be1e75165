"""Graphs that once gave a wrong answer or broke the compiler, boiled down; found by random graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.target import ISAS, host
from tests.native.random_graphs import check_answers, random_feeds

F32, F64 = DType.F32, DType.F64
Build = Callable[[Graph], str]
MACHINES = ISAS[ISAS.index(host().isa) :]


def given(g: Graph, name: str, shape: tuple[int, ...], dtype: DType = F32) -> str:
    return g.add_input(name, TensorType(dtype, shape))


def normal(g: Graph, shape: tuple[int, ...], dtype: DType = F32) -> str:
    return g.add_constant(np.random.default_rng(len(g.types)).standard_normal(shape).astype(dtype.numpy))


def gathered_along_the_sum(g: Graph) -> str:
    """The row numbers of an operand change from step to step of the sum."""
    indices = g.add_constant(np.array([[5, 3, 0], [2, 7, 4]]))
    x = g.emit("gather", [given(g, "x", (66, 8)), indices], {"axis": 1})
    return g.emit("matmul", [x, given(g, "w", (3, 8))])


def gathered_on_both_sides(g: Graph) -> str:
    x = g.emit("gather", [given(g, "x", (64,)), g.add_constant(np.arange(528).reshape(16, 33) * 7 % 64)], {"axis": 0})
    return g.emit("matmul", [x, g.emit("transpose", [x], {"perm": (1, 0)})])


def counting_down_under_a_pad(g: Graph) -> str:
    """An index with a negative factor leaves the buffer below."""
    x = g.emit("floor", [g.emit("pad", [given(g, "x", (2, 33))], {"pads": (1, 1, 0, 2), "value": 2.0})])
    return g.emit("slice", [x], {"starts": (2, 0), "stops": (-1, 36), "steps": (-1, 1)})


def one_element_under_a_pad(g: Graph) -> str:
    """The norm's epsilon is read through the border of the convolution."""
    vectors = [g.add_constant(np.linspace(0.5, 1.5, 8, dtype=np.float32)) for _ in range(4)]
    x = g.emit("batch_norm", [given(g, "x", (17, 8, 2)), *vectors], {"epsilon": 1e-3})
    window = {"strides": (1,), "dilations": (1,), "pads": (1, 0), "group": 4}
    return g.emit("conv", [x, given(g, "w", (4, 2, 1)), normal(g, (4,))], window)


def padded_number(g: Graph) -> str:
    one = g.emit("pad", [normal(g, (1, 1))], {"pads": (1, 2, 0, 1), "value": 5.0})
    return g.emit("add", [one, given(g, "x", (2, 4))])


def names_that_count_on(g: Graph) -> str:
    """An expansion makes fresh names before a node that has such a name already."""
    x = given(g, "x", (3, 8))
    y = g.emit("layer_norm", [x], {"axis": 1, "epsilon": 1e-3})
    for k in range(1, 30):
        y = g.emit("mul", [y, x], name=f"mul_{k}") if k % 2 else g.emit("relu", [y], name=f"reduce_mean_{k}")
    return y


def widths_from_pass_to_pass(g: Graph) -> str:
    """A sum of doubles goes from a pass of 16 lanes into one of 8."""
    x = g.emit("pad", [given(g, "x", (264, 2), F64)], {"pads": (1, 0, 2, 0), "value": 0.0})
    y = g.emit("matmul", [x, normal(g, (2, 5), F64)])
    g.set_outputs({"padded": x, "product": y})
    return g.emit("rms_norm", [y], {"axis": 0, "epsilon": 1e-3})


def nothing_to_multiply(g: Graph) -> str:
    m = g.emit("matmul", [given(g, "x", (1, 3, 0, 8)), given(g, "w", (8, 3))])
    m = g.emit("reshape", [m], {"shape": (3, 0, 3)})
    return g.emit("matmul", [m, g.emit("transpose", [m], {"perm": (0, 2, 1)})])


def nothing_to_sum(g: Graph) -> str:
    return g.emit("softmax", [g.emit("matmul", [given(g, "x", (4, 0)), given(g, "w", (0, 7))])], {"axis": 1})


def no_columns(g: Graph) -> str:
    return g.emit("layer_norm", [g.emit("relu", [given(g, "x", (0, 4))])], {"axis": 1, "epsilon": 1e-3})


def no_rows_with_a_border(g: Graph) -> str:
    return g.emit("pad", [g.emit("relu", [given(g, "x", (0, 5))])], {"pads": (0, 1, 0, 2), "mode": "edge"})


def scores_of_a_broadcast(g: Graph) -> str:
    """A product without columns of its own: both sides are one broadcast row."""
    x = g.emit("expand", [g.emit("trilu", [given(g, "x", (1, 5))], {"k": 1})], {"shape": (2, 3, 5)})
    return g.emit("matmul", [x, g.emit("transpose", [x], {"perm": (0, 2, 1)})])


def two_views_between(g: Graph) -> str:
    """Two reshapes of one sum meet again in a product."""
    s = g.emit("reduce_sum", [g.emit("relu", [given(g, "x", (7, 7, 2))])], {"axes": (1,)})
    a, b = (g.emit("reshape", [s], {"shape": shape}) for shape in ((1, 7, 1, 2), (1, 7, 2, 1)))
    return g.emit("matmul", [a, b])


def scale_in_half_precision(g: Graph) -> str:
    """A scale folded into weights would round every one of them."""
    window = {"strides": (2,), "dilations": (2,), "pads": (0, 1)}
    x = g.emit("conv", [given(g, "x", (17, 17, 33), DType.BF16), normal(g, (33, 17, 1), DType.BF16)], window)
    return g.emit("mul", [g.add_constant(np.array(0.19, DType.BF16.numpy)), x])


GRAPHS: tuple[Build, ...] = (
    gathered_along_the_sum, gathered_on_both_sides, counting_down_under_a_pad, one_element_under_a_pad, padded_number,
    names_that_count_on, widths_from_pass_to_pass, nothing_to_multiply, nothing_to_sum, no_columns,
    no_rows_with_a_border, scores_of_a_broadcast, two_views_between, scale_in_half_precision,
)  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def check(g: Graph, made: str, cache: Path, **options: Any) -> None:
    g.set_outputs({**g.outputs, "y": made})
    feeds = random_feeds(g, 0)
    answers = []
    for apart in ((), ("all",)):
        exe = opfuse.compile(g.copy(), calibrate=False, cache=cache, disable_fusions=apart, **options)
        assert not [d for d in exe.model.ledger if d.kind == "host"]
        answers.append(exe(feeds))
    check_answers(g, feeds, *answers)


@pytest.mark.parametrize("isa", MACHINES)
@pytest.mark.parametrize("build", GRAPHS, ids=lambda b: b.__name__)
def test_once_wrong(build: Build, isa: str, cache: Path) -> None:
    g = Graph(build.__name__)
    check(g, build(g), cache, threads=2, isa=isa)


# ---- operands that are broadcast along the sum -----------------------------------------------------------------------
SIDES: dict[str, Callable[[Graph, str, tuple[int, int]], str]] = {
    "whole": lambda g, name, shape: given(g, name, shape),
    "made": lambda g, name, shape: g.emit("relu", [given(g, name, shape)]),
    "read along": lambda g, name, shape: g.emit("expand", [given(g, name, thin(shape))], {"shape": shape}),
    "made along": lambda g, name, shape: g.emit(
        "expand", [g.emit("relu", [given(g, name, thin(shape))])], {"shape": shape}
    ),
    "one number": lambda g, name, shape: g.emit(
        "expand", [g.emit("reduce_sum", [given(g, name, (3, 9))], {"axes": (0, 1)})], {"shape": shape}
    ),
}


def thin(shape: tuple[int, int]) -> tuple[int, int]:
    """1 along the summed dimension, which has 7 elements."""
    return (1 if shape[0] == 7 else shape[0], 1 if shape[1] == 7 else shape[1])


@pytest.mark.parametrize(("left", "right"), list(itertools.product(SIDES, SIDES)))
def test_broadcast_along_the_sum(left: str, right: str, cache: Path) -> None:
    g = Graph("product")
    a, b = SIDES[left](g, "a", (5, 7)), SIDES[right](g, "b", (7, 20))
    check(g, g.emit("matmul", [a, b]), cache, threads=1)
