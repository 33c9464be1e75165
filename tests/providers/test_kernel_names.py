"""Names of generated kernels: operators in order, attention by its name."""

from __future__ import annotations

import pytest

from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.providers.cpu import attention, kernel_name


def graph(*, softmax: str = "softmax", masked: bool = True) -> tuple[Graph, str]:
    g = Graph()
    q, k, v = (g.add_input(n, TensorType(DType.F32, (2, 8, 4))) for n in "qkv")
    s = g.emit("matmul", [g.emit("exp", [q]), g.emit("transpose", [k], {"perm": (0, 2, 1)})])
    if masked:
        s = g.emit("add", [s, g.add_input("mask", TensorType(DType.F32, (8, 8)))])
    p = g.emit(softmax, [s], {"axis": 2} if softmax == "softmax" else {})
    y = g.emit("relu", [g.emit("matmul", [p, g.emit("tanh", [v])])])
    g.set_outputs({"y": y})
    return g, y


def test_attention_stands_first_and_what_is_around_it_behind() -> None:
    g, _ = graph()
    assert kernel_name(g, Region.of(g, g.nodes)) == "attention_exp_transpose_tanh_and_1_more"
    inside = attention(g, list(g.nodes.values()))
    assert [n.op for n in g.nodes.values() if n.name in inside] == ["matmul", "add", "softmax", "matmul"]


@pytest.mark.parametrize("missing", ["softmax", "first product", "last product"])
def test_a_part_of_it_is_none(missing: str) -> None:
    g, _ = graph(softmax="tanh" if missing == "softmax" else "softmax", masked=False)
    products = [n.name for n in g.nodes.values() if n.op == "matmul"]
    left_out = {"first product": products[0], "last product": products[1]}.get(missing)
    nodes = [n for n in g.nodes if n != left_out]
    assert not attention(g, [g.nodes[n] for n in nodes])
    assert "attention" not in kernel_name(g, Region.of(g, nodes))


def test_short_names_say_all() -> None:
    g = Graph()
    x = g.add_input("x", TensorType(DType.F32, (4, 4)))
    g.set_outputs({"y": g.emit("reduce_sum", [g.emit("relu", [g.emit("matmul", [x, x])])], {"axes": (1,)})})
    assert kernel_name(g, Region.of(g, g.nodes)) == "matmul_relu_sum"
