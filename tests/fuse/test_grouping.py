"""Grouping: what is joined, what is not, and that every boundary says why."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opfuse.decision import Ledger, Refusal
from opfuse.fuse.grouping import Group, group
from opfuse.fuse.joining import MARGIN
from opfuse.fuse.legality import Partition, join_refusal
from opfuse.fuse.placing import is_reshape
from opfuse.fuse.provider import Claim, Cost, HostKernel, Kernel
from opfuse.fuse.region import Region, kernel_decision
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.pipeline import kernel_of
from opfuse.providers.cpu import CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.target import DESCRIBED_CPU, Target
from opfuse.tile.program import Beside

TARGET = Target("described", "cpu", "avx512", 64, 32, 48 << 10, 2 << 20, 32 << 20, 1, DESCRIBED_CPU)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def weight(g: Graph, *shape: int) -> str:
    return g.add_constant((np.random.default_rng(0).standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32))


def grouped(g: Graph, options: Options | None = None) -> tuple[list[Group], Ledger]:
    ledger = Ledger()
    return group(g, (CpuProvider(), ReferenceProvider()), TARGET, options or Options(), ledger), ledger


def operators(g: Graph, groups: list[Group]) -> list[list[str]]:
    return [[g.nodes[n].op for n in x.region.nodes] for x in groups]


def conv_block(g: Graph, x: str, channels: int) -> str:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 1, "layout": "NHWC"}
    c = g.types[x].shape[3]
    y = g.emit("conv", [x, weight(g, 3, 3, int(c), channels), weight(g, channels)], attrs)
    return g.emit("relu", [y])


def test_epilogue_with_residual_joins_its_convolution() -> None:
    g = Graph()
    x = g.add_input("x", f32(1, 14, 14, 32))
    y = conv_block(g, x, 32)
    z = g.emit("relu", [g.emit("add", [conv_block(g, y, 32), y])])
    g.set_outputs({"z": z})
    groups, _ = grouped(g)
    assert operators(g, groups) == [["conv", "relu"], ["conv", "relu", "add", "relu"]]


def test_two_contractions_with_a_window_between_stay_apart_and_say_why() -> None:
    g = Graph()
    x = g.add_input("x", f32(1, 14, 14, 32))
    g.set_outputs({"y": conv_block(g, conv_block(g, x, 32), 32)})
    groups, ledger = grouped(g)
    assert len(groups) == 2
    (boundary,) = ledger.of("boundary")
    assert boundary.code == "window-of-interior"


def test_a_join_that_would_compute_more_than_it_saves_is_refused_with_both_numbers() -> None:
    """Layer after layer of a wide network: joined, every row block would read all weights of both again."""
    g = Graph()
    x = g.add_input("x", f32(3136, 256))
    h = g.emit("gelu", [g.emit("matmul", [x, weight(g, 256, 1024)])])
    g.set_outputs({"y": g.emit("matmul", [h, weight(g, 1024, 256)])})
    _, ledger = grouped(g)
    (boundary,) = ledger.of("boundary")
    assert boundary.code == "no-gain" and boundary.facts["joined_s"] > boundary.facts["apart_s"] * (1 - MARGIN)


def test_every_pair_of_neighbours_has_one_boundary_with_a_reason() -> None:
    g = Graph()
    x = g.add_input("x", f32(1, 14, 14, 32))
    y = conv_block(g, x, 32)
    g.set_outputs({"z": g.emit("add", [conv_block(g, conv_block(g, y, 32), 32), y])})
    groups, ledger = grouped(g)
    ids = {v: kernel_decision(g, x.region.nodes).id for x in groups for v in x.region.outputs}
    pairs = {(ids[i], kernel_decision(g, x.region.nodes).id) for x in groups for i in x.region.inputs if i in ids}
    assert pairs == {tuple(d.facts["between"]) for d in ledger.of("boundary")}
    assert all(d.reason and d.code for d in ledger.of("boundary"))


def test_reshape_of_the_same_bytes_is_a_view_and_a_transpose_is_not() -> None:
    g = Graph()
    x = g.add_input("x", f32(1, 6, 4))
    g.emit("reshape", [x], {"shape": (6, 1, 4)}, name="view")
    g.emit("transpose", [x], {"perm": (0, 2, 1)}, name="moved")
    g.emit("transpose", [x], {"perm": (1, 0, 2)}, name="ones_moved")
    assert [is_reshape(g, g.nodes[n]) for n in ("view", "ones_moved", "moved")] == [True, True, False]


def test_a_join_that_would_close_a_cycle_is_refused() -> None:
    g = Graph()
    x = g.add_input("x", f32(8, 8))
    a = g.emit("exp", [x], name="a")
    b = g.emit("softmax", [a], {"axis": 1}, name="b")
    g.set_outputs({"c": g.emit("add", [a, b], name="c")})
    p = Partition(g)
    refusal = join_refusal(p, (p.group_of["a"], p.group_of["c"]))
    assert refusal is not None and refusal.code == "cycle" and refusal.facts["path"] == ["b"]
    first = p.merge(p.group_of["a"], p.group_of["b"])
    assert join_refusal(p, (first, p.group_of["c"])) is None


def attention(g: Graph) -> None:
    q, k, v = (g.add_input(n, f32(2, 12, 20, 32)) for n in "qkv")
    s = g.emit("matmul", [q, g.emit("transpose", [k], {"perm": (0, 1, 3, 2)})])
    p = g.emit("softmax", [g.emit("mul", [s, g.scalar(0.17, DType.F32)])], {"axis": 3})
    g.set_outputs({"o": g.emit("matmul", [p, v])})


def test_attention_is_one_kernel_and_its_scores_are_no_buffer() -> None:
    g = Graph()
    attention(g)
    groups, _ = grouped(g)
    assert len(groups) == 1 and groups[0].region.outputs == (g.outputs["o"],)


def test_no_fuse_keeps_the_nodes_of_a_kernel_apart_and_nothing_else_changes_its_id() -> None:
    g = Graph()
    x = g.add_input("x", f32(1, 14, 14, 32))
    y = conv_block(g, x, 32)
    g.set_outputs({"z": conv_block(g, y, 32)})
    _, ledger = grouped(g)
    first, second = [d.id for d in ledger.of("fusion") if d.rule == "kernel"]
    groups, ledger = grouped(g, Options(disabled_fusions=frozenset({first})))
    assert operators(g, groups) == [["conv"], ["relu"], ["conv", "relu"]]
    assert second in [d.id for d in ledger.of("fusion")]
    groups, ledger = grouped(g, Options(disabled_fusions=frozenset({"all"})))
    assert all(len(x.region.nodes) == 1 for x in groups)
    assert {d.code for d in ledger.of("boundary")} == {"disabled"}


def test_an_operator_without_loops_runs_on_the_host() -> None:
    g = Graph()
    x = g.emit("relu", [g.add_input("x", f32(4, 4))])
    g.set_outputs({"y": g.emit("determinant", [x])})
    groups, _ = grouped(g)
    assert [x.claim.provider for x in groups if x.claim] == ["cpu", "reference"]


class QuickHostRelu:
    """Says that it runs a lone relu in no time, in Python."""

    name = "quick"

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        if [n.op for n in region.members(graph)] != ["relu"]:
            return Refusal("not-relu", "no relu by itself")
        return Claim(self.name, region, Cost(1e-12, 0, 0), native=False)

    def build(self, graph: Graph, claim: Claim) -> Kernel:
        return HostKernel("relu", claim.region, lambda inputs: [np.maximum(inputs[0], 0)], claim.cost, self.name, ())


def test_a_host_provider_that_is_quicker_takes_a_region_and_the_ledger_says_so() -> None:
    g = Graph()
    g.set_outputs({"y": g.emit("relu", [g.add_input("x", f32(8, 8))])})
    providers = (CpuProvider(), QuickHostRelu(), ReferenceProvider())
    ledger = Ledger()
    (only,) = group(g, providers, TARGET, Options(), ledger)
    kernel = kernel_of(g, only, providers, TARGET, ledger)
    assert isinstance(kernel, HostKernel) and kernel.provider == "quick"
    (said,) = ledger.of("host")
    assert said.code == "slower" and said.facts["generated_s"] > said.facts["chosen_s"] == 1e-12


@pytest.mark.parametrize("rows", [1, 7, 80])
def test_linear_layers_take_bias_activation_and_residual(rows: int) -> None:
    g = Graph()
    x = g.add_input("x", f32(rows, 384))
    h = g.emit("gelu", [g.emit("add", [g.emit("matmul", [x, weight(g, 384, 1536)]), weight(g, 1536)])])
    y = g.emit("add", [g.emit("add", [g.emit("matmul", [h, weight(g, 1536, 384)]), weight(g, 384)]), x])
    g.set_outputs({"y": y})
    groups, _ = grouped(g)
    assert operators(g, groups) == [["matmul", "add", "gelu"], ["matmul", "add", "add"]]


def test_siblings_that_read_one_value_become_one_kernel_with_two_outputs() -> None:
    g = Graph()
    x = g.add_input("x", f32(64, 64))
    left, right = g.emit("exp", [x]), g.emit("sqrt", [x])
    g.set_outputs({"left": left, "right": right})
    groups, ledger = grouped(g)
    assert [set(x.region.outputs) for x in groups] == [{left, right}]
    (decision,) = [d for d in ledger.of("fusion") if d.rule == "siblings"]
    assert decision.facts["joined_s"] < decision.facts["apart_s"]


def test_siblings_of_other_shapes_stand_side_by_side_in_one_launch() -> None:
    g = Graph()
    x = g.add_input("x", f32(8, 64))
    a = g.emit("matmul", [x, weight(g, 64, 32)])
    b = g.emit("matmul", [x, weight(g, 64, 48)])
    g.set_outputs({"a": a, "b": b})
    groups, _ = grouped(g)
    (kernel,) = groups
    assert kernel.claim is not None
    (part,) = kernel.claim.payload.lowered.program.phases
    assert isinstance(part, Beside) and len(part.phases) == 2


def test_a_part_that_the_host_makes_is_not_joined_in_place() -> None:
    """The concatenation is a kernel of its own, and the ledger says why."""
    g = Graph("joint")
    x = g.add_input("x", f32(64, 512))
    at = g.add_input("at", TensorType(DType.I64, (64, 512)))
    parts = [g.emit("scatter_elements", [x, at, x], {"axis": 0}), g.emit("relu", [x])]
    g.set_outputs({"y": g.emit("concat", parts, {"axis": 0})})
    _, ledger = grouped(g)
    assert "part-on-host" in [d.code for d in ledger.of("fusion")]
