"""Attention is one kernel where pairs of its parts would not join, or would lie in each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from opfuse.fuse.chains import chains
from opfuse.fuse.provider import TileKernel
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.pipeline import lower
from opfuse.tile.choose import key_loop
from tests.fuse.test_grouping import conv_block, f32, weight
from tests.tile.attention_graphs import MASKS, SHAPES, Sizes, attention


@pytest.mark.parametrize("kind", [*MASKS, *SHAPES])
def test_every_attention_of_long_rows_is_one_kernel_without_scores_in_memory(kind: str, tmp_path: Path) -> None:
    graph, _ = attention(kind, Sizes(700, 1500, heads=2, depth=64, width=64))
    options = Options(calibrate=False, cache=str(tmp_path))
    kernels = [k for k in lower(graph, options).kernels if isinstance(k, TileKernel)]
    loops = [k for k in kernels if any(key_loop(p) is not None for p in k.program.flat_phases())]
    assert len(loops) == 1, [k.name for k in kernels]
    stored = [b for k in kernels for b in k.program.buffers if b.role == "out" and 1500 in b.shape and 700 in b.shape]
    assert not [b for b in stored if len(b.shape) > 2], "the scores of a head are in memory"


def test_a_chain_holds_the_softmax_and_both_products() -> None:
    graph, _ = attention("zero_rows", Sizes(7, 9))
    (names,) = chains(graph, 2 * 7 * 9 * 4)
    operators = [graph.nodes[n].op for n in names]
    assert chains(graph, 2 * 7 * 9 * 4 + 1) == [], "smaller ones are left to pairs"
    assert operators.count("matmul") == 2 and {"softmax", "reduce_max", "where"} <= set(operators)


def test_layers_of_weights_are_no_chain() -> None:
    g = Graph()
    x = g.add_input("x", f32(4, 32))
    y = g.emit("softmax", [g.emit("matmul", [x, weight(g, 32, 32)])], {"axis": 1})
    g.set_outputs({"y": g.emit("matmul", [y, weight(g, 32, 8)])})
    assert chains(g, 0) == []
    g = Graph()
    g.set_outputs({"z": conv_block(g, conv_block(g, g.add_input("x", f32(1, 8, 8, 8)), 8), 8)})
    assert chains(g, 0) == []
