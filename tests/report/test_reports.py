"""Reports of models that are really compiled: cold and warm, recounted, verified, with faults planted on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse import pipeline
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.plan.account import recount
from opfuse.providers.cpu import CpuProvider
from opfuse.report.explain import neighbours
from opfuse.rewrite.pattern import Var, op
from opfuse.rewrite.rule import rule
from opfuse.rewrite.rules import PASSES, Pass

ROOT = Path(__file__).resolve().parents[2]
F32 = DType.F32


def small_cnn() -> Graph:
    """Two convolutions with a residual, pooling, a linear layer with tanh: a few kernels with reasons between them."""
    generator = np.random.default_rng(11)
    g = Graph("cnn")
    g.add_input("image", TensorType(F32, (1, 8, 12, 12)))

    def weight(*shape: int) -> str:
        return g.add_constant((generator.standard_normal(shape) / 8).astype(np.float32))

    def conv(x: str, name: str) -> str:
        attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
        return g.emit("conv", [x, weight(8, 8, 3, 3), weight(8)], attrs, name=name, origin=(name,))

    a = g.emit("relu", [conv("image", "conv_a")], name="relu_a", origin=("relu_a",))
    b = g.emit("add", [conv(a, "conv_b"), a], name="add_b", origin=("add_b",))
    b = g.emit("relu", [b], name="relu_b", origin=("relu_b",))
    p = g.emit("reduce_mean", [b], {"axes": (2, 3), "keepdims": False}, name="pool", origin=("pool",))
    h = g.emit("tanh", [g.emit("matmul", [p, weight(8, 16)], name="fc1", origin=("fc1",))], origin=("tanh_1",))
    g.set_outputs({"y": g.emit("tanh", [g.emit("matmul", [h, weight(16, 4)], name="fc2", origin=("fc2",))],
                               origin=("tanh_2",))})  # fmt: skip
    return g


def verified(exe: Any, **options: Any) -> Any:
    return exe.verify(inputs=1, **options)


# ---- explain ---------------------------------------------------------------------------------------------------------
def test_cold_and_warm_explanations_are_the_same(tmp_path: Path) -> None:
    exe = opfuse.compile(small_cnn(), threads=2)
    exe.save(tmp_path / "cnn.opf")
    warm = opfuse.load(tmp_path / "cnn.opf")
    assert warm.explain().text() == exe.explain().text()
    assert json.dumps(warm.explain().to_json()) == json.dumps(exe.explain().to_json())


@pytest.mark.parametrize("disabled", [(), ("all",)])
def test_bytes_are_those_that_a_recount_from_the_plan_finds(disabled: tuple[str, ...]) -> None:
    exe = opfuse.compile(small_cnn(), threads=1, disable_fusions=disabled)
    plan, explanation = exe.model.plan, exe.explain()
    size = {v.name: v.dtype.bytes * int(np.prod(v.shape)) for v in plan.values}
    for kernel, entry in zip(plan.kernels, explanation.kernels, strict=True):
        assert entry.bytes == sum(size[v] for v in dict.fromkeys((*kernel.reads, *kernel.writes))), kernel.name
    assert explanation.bytes_moved["fused"] == sum(k.bytes for k in explanation.kernels)


def test_unfused_bytes_are_those_of_a_plan_with_a_kernel_for_each_node() -> None:
    fused = opfuse.compile(small_cnn(), threads=1)
    rules = {r.name for stage in PASSES for r in stage.rules} - {"fold_constants"}
    plan = opfuse.compile(small_cnn(), threads=1, disable_rules=rules, disable_fusions="all").model.plan
    assert all(len(k.nodes) == 1 for k in plan.kernels)
    assert fused.explain().bytes_moved["unfused"] == recount(plan)


def test_every_pair_of_neighbours_has_a_recorded_reason() -> None:
    exe = opfuse.compile(small_cnn(), threads=2)
    explanation = exe.explain()
    assert len(explanation.boundaries) == len(neighbours(exe.model.plan)) > 0
    assert not [b for b in explanation.boundaries if b.code == "unrecorded" or not b.reason]
    ids = {k.id for k in explanation.kernels}
    assert all(set(b.between) <= ids for b in explanation.boundaries)


def test_every_fusion_can_be_left_out_by_the_id_that_is_shown() -> None:
    cold = opfuse.compile(small_cnn(), threads=1).explain()
    fused = next(k for k in cold.kernels if len(k.nodes) > 1)
    without = opfuse.compile(small_cnn(), threads=1, disable_fusions=[fused.id]).explain()
    assert fused.id not in {k.id for k in without.kernels}
    assert fused.id in {d.id for d in without.decisions if d.outcome == "disabled"}


def test_an_unbound_model_says_what_it_needs() -> None:
    from opfuse.ir.dims import symbol

    g = Graph("open")
    g.add_input("x", TensorType(F32, (symbol("N"), 4)))
    g.set_outputs({"y": g.emit("relu", ["x"])})
    exe = opfuse.compile(g, threads=1)
    with pytest.raises(Exception, match="N are not bound"):
        exe.explain()
    exe(x=np.zeros((3, 4), np.float32))
    assert len(exe.explain().kernels) == 1


# ---- verify ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
def test_a_right_model_is_found_right(threads: int) -> None:
    report = verified(opfuse.compile(small_cnn(), threads=threads))
    assert report.passed, report.text()
    assert {"random 0", "large", "NaN", "infinity", "constant rows"} <= set(report.feeds)


def test_the_users_own_inputs_are_judged(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", image=generator.random((1, 8, 12, 12), np.float32))
    report = opfuse.compile(small_cnn(), threads=1).verify(data=tmp_path)
    assert report.passed and report.feeds == ("0.npz", "1.npz")


def test_a_compiled_file_is_verified_against_the_model_that_it_keeps(tmp_path: Path) -> None:
    exe = opfuse.compile(small_cnn(), threads=1)
    exe.save(tmp_path / "cnn.opf")
    warm = opfuse.load(tmp_path / "cnn.opf")
    assert warm.verify(inputs=1).passed
    warm.save(tmp_path / "again.opf")
    assert opfuse.load(tmp_path / "again.opf").verify(inputs=1).passed


def test_a_kernel_that_is_wrong_when_fused_is_found_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider compiles leaky ReLU in place of ReLU, in joined regions only."""
    claim = CpuProvider.claim

    def faulty(self: CpuProvider, graph: Graph, region: Any, target: Any) -> Any:
        if len(region.nodes) > 1:
            graph = graph.copy()
            for name in region.nodes:
                node = graph.nodes[name]
                if node.op == "relu":
                    attrs: Mapping[str, Any] = {"alpha": 0.001}
                    graph.nodes[name] = Node(name, "leaky_relu", node.inputs, node.outputs, attrs, node.origin)
        return claim(self, graph, region, target)

    monkeypatch.setattr(CpuProvider, "claim", faulty)
    exe = opfuse.compile(small_cnn(), threads=1)
    report = verified(exe)
    assert not report.passed
    wrong = [k for k in exe.explain().kernels if {"relu_a", "relu_b"} & set(k.nodes) and len(k.nodes) > 1]
    assert {g.id for g in report.guilty} == {k.id for k in wrong} and wrong
    assert all(g.kind == "region" for g in report.guilty)
    apart = opfuse.compile(small_cnn(), threads=1, disable_fusions=[k.id for k in wrong])
    assert verified(apart).passed, "what --no-fuse promises"


@rule("exact", op("tanh", Var("x")))
def forget_tanh(m: Any, to: Any) -> str:
    """tanh(x) -> x, which is wrong"""
    return str(m["x"])


def test_a_wrong_rewrite_is_found_by_name_and_application(monkeypatch: pytest.MonkeyPatch) -> None:
    original = pipeline.rewrite
    passes = (*PASSES, Pass("faulty", (forget_tanh,)))

    def faulty(graph: Graph, options: Any, ledger: Any, passes: Any = passes) -> Graph:
        return original(graph, options, ledger, passes)

    monkeypatch.setattr(pipeline, "rewrite", faulty)
    exe = opfuse.compile(small_cnn(), threads=1)
    report = verified(exe)
    assert not report.passed and not report.failed_regions, "the kernels do what the rewritten graph says"
    (guilty,) = report.guilty
    assert guilty.kind == "rewrite" and guilty.name == "forget_tanh" and guilty.nodes[0].startswith("tanh_")
    assert guilty.id in {d.id for d in exe.explain().decisions}
    options = replace(exe.options, disabled_rules=frozenset({"forget_tanh"}))
    assert pipeline.Stages().rewritten(small_cnn(), options)[0].nodes.keys() >= {"fc1"}
    assert verified(opfuse.compile(small_cnn(), threads=1, disable_rules=["forget_tanh"])).passed
