"""verify on a pipeline whose kernels are NumPy: right models pass, planted faults are found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from opfuse.decision import Decision, Ledger
from opfuse.fuse.region import Region
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.report.bisect import verify
from opfuse.report.feeds import Feed, adversarial_feeds, feed_specs, random_feed
from opfuse.report.numerics import (
    Oracle,
    Trace,
    TracedKernel,
    against_oracle,
    allowed_error,
    scale_of,
    with_own_error,
)

Arrays = Mapping[str, np.ndarray]


def mlp() -> Graph:
    """x -> matmul -> add -> gelu -> matmul -> softmax."""
    generator = np.random.default_rng(0)
    g = Graph("mlp")
    g.add_input("x", TensorType(DType.F32, (4, 32)))
    shapes = {"w": (32, 64), "v": (64, 8), "b": (64,)}
    w, v, b = (g.add_constant(generator.standard_normal(s).astype(np.float32), n) for n, s in shapes.items())
    first = g.emit("matmul", ["x", w], name="first", origin=("dense_1",))
    biased = g.emit("add", [first, b], name="biased", origin=("bias_1",))
    active = g.emit("gelu", [biased], name="active", origin=("gelu_1",))
    second = g.emit("matmul", [active, v], name="second", origin=("dense_2",))
    g.set_outputs({"y": g.emit("softmax", [second], {"axis": 1}, name="soft", origin=("softmax_1",))})
    return g


class NumPyPipeline:
    """Kernels are groups of nodes run by the oracle; `break_kernel` and `break_rewrite` plant faults by name."""

    groups = (("first", "biased", "active"), ("second",), ("soft",))

    def __init__(self) -> None:
        self.break_kernel: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {}
        self.break_memory = False
        self.bad_rewrites: tuple[str, ...] = ()  # names of the decisions' nodes whose rewrite is wrong
        self.rewrites_asked = 0

    # ---- rewriting: rule "halve" multiplies a matmul's weights by 1 (right) or 1.01 (wrong); "tidy" does nothing
    def rewritten(self, graph: Graph, options: Options) -> tuple[Graph, Ledger]:
        self.rewrites_asked += 1
        ledger, out = Ledger(), graph.copy()
        for rule, names in (("tidy", ("active",)), ("scale", ("first", "second"))):
            for name in names:
                decision = Decision("rewrite", rule, (name,), "taken")
                if options.disabled_rules & {rule, decision.id}:
                    continue
                ledger.add(decision)
                if name in self.bad_rewrites and rule == "scale":
                    node = out.nodes[name]
                    weights = out.constants[str(node.inputs[1])] * np.float32(1.01)
                    changed = Node(node.name, node.op, (node.inputs[0], out.add_constant(weights)), node.outputs)
                    out.nodes[name] = changed
        return out, ledger

    def traced(self, graph: Graph, options: Options) -> Trace:
        graph, ledger = self.rewritten(graph, options)
        kernels = []
        for names in self.groups:
            nodes = tuple(o for n in names for o in graph.nodes[n].origin or (n,))
            whole = Decision("fusion", "kernel", nodes, "taken").id
            parts = [(n,) for n in names] if {whole, "all"} & options.disabled_fusions else [names]
            for part in parts:
                origin = tuple(o for n in part for o in graph.nodes[n].origin or (n,))
                identifier = Decision("fusion", "kernel", origin, "taken").id
                kernels.append(TracedKernel(identifier, "+".join(part), Region.of(graph, part), origin))

        def run(feed: Arrays) -> Arrays:
            values = dict(feed)
            for k in kernels:
                part = k.region.subgraph(graph)
                made = evaluate(part, {i: values[i] for i in part.inputs})
                fault = self.break_kernel.get(k.name, lambda x: x)
                values |= {v: fault(made[v]) for v in k.region.outputs}
            return values

        return Trace(graph, tuple(kernels), run, ledger)

    def compiled(self, graph: Graph, options: Options) -> Callable[[Arrays], Arrays]:
        trace = self.traced(graph, options)

        def run(feed: Arrays) -> Arrays:
            values = trace.run(feed)
            out = {name: values[value] for name, value in trace.graph.outputs.items()}
            return {k: v + np.float32(1e-6) for k, v in out.items()} if self.break_memory else out

        return run


def feeds_of(graph: Graph) -> list[Feed]:
    specs = feed_specs(graph)
    return [*(Feed(f"random {k}", random_feed(specs, k), "random") for k in range(2)), *adversarial_feeds(specs)]


@pytest.fixture
def pipeline() -> NumPyPipeline:
    return NumPyPipeline()


def test_a_right_model_passes_on_random_and_adversarial_feeds(pipeline: NumPyPipeline) -> None:
    graph = mlp()
    report = verify(pipeline, graph, Options(), feeds_of(graph), model="mlp")
    assert report.passed, report.text()
    assert len(report.regions) == 3 and len(report.outputs) == len(report.feeds) == 8
    assert "right" in report.text() and not report.guilty


def test_a_wrong_region_is_named_and_leaving_it_out_helps(pipeline: NumPyPipeline) -> None:
    """The fault sits in the fused kernel alone: its nodes run one by one are right."""
    pipeline.break_kernel = {"first+biased+active": lambda x: x * np.float32(1 + 1e-4)}
    graph = mlp()
    report = verify(pipeline, graph, Options(), feeds_of(graph))
    assert not report.passed
    (guilty,) = report.guilty
    assert guilty.kind == "region" and guilty.nodes == ("dense_1", "bias_1", "gelu_1")
    assert guilty.id == Decision("fusion", "kernel", guilty.nodes, "taken").id
    assert f"--no-fuse {guilty.id}" in guilty.way_out and "right" in guilty.way_out
    assert "WRONG" in report.text() and "first+biased+active" in report.text()


def test_a_wrong_single_kernel_is_named_though_nothing_can_be_left_out(pipeline: NumPyPipeline) -> None:
    pipeline.break_kernel = {"second": lambda x: np.where(np.arange(x.shape[-1]) == 7, np.float32(0), x)}
    report = verify(pipeline, mlp(), Options(), feeds_of(mlp())[:1])
    (guilty,) = report.guilty
    assert guilty.nodes == ("dense_2",) and "one operator" in guilty.way_out


@pytest.mark.parametrize("bad", ["first", "second"])
def test_a_wrong_rewrite_is_found_among_right_ones(pipeline: NumPyPipeline, bad: str) -> None:
    pipeline.bad_rewrites = (bad,)
    report = verify(pipeline, mlp(), Options(), feeds_of(mlp())[:2])
    assert not report.passed and not report.failed_regions
    (guilty,) = report.guilty
    assert guilty.kind == "rewrite" and guilty.name == "scale" and guilty.nodes == (bad,)
    assert guilty.id == Decision("rewrite", "scale", (bad,), "taken").id
    assert "--no-rule scale" in guilty.way_out


def test_a_wrong_rewrite_can_be_switched_off(pipeline: NumPyPipeline) -> None:
    pipeline.bad_rewrites = ("first",)
    options = replace(Options(), disabled_rules=frozenset({"scale"}))
    assert verify(pipeline, mlp(), options, feeds_of(mlp())[:2]).passed


def test_reused_memory_is_judged_by_the_run_that_keeps_everything(pipeline: NumPyPipeline) -> None:
    pipeline.break_memory = True
    report = verify(pipeline, mlp(), Options(), feeds_of(mlp())[:1])
    assert not report.repeatable and not report.passed
    assert report.guilty[-1].kind == "memory"


def test_a_swallowed_nan_fails(pipeline: NumPyPipeline) -> None:
    pipeline.break_kernel = {"soft": np.nan_to_num}
    feeds = [f for f in feeds_of(mlp()) if f.name == "NaN"]
    report = verify(pipeline, mlp(), Options(), feeds)
    assert report.failed_regions and report.failed_outputs


def test_a_fault_in_one_feed_only_is_reported_for_that_feed(pipeline: NumPyPipeline) -> None:
    pipeline.break_kernel = {"soft": np.nan_to_num}
    graph = mlp()
    report = verify(pipeline, graph, Options(), feeds_of(graph))
    assert {c.feed for c in report.failed_outputs} <= {"infinity", "NaN"} and report.failed_outputs


def test_the_json_is_complete_and_plain(pipeline: NumPyPipeline) -> None:
    pipeline.break_kernel = {"second": lambda x: x + np.float32(0.1)}
    data = json.loads(json.dumps(verify(pipeline, mlp(), Options(), feeds_of(mlp())[:1]).to_json()))
    assert data["schema"] == 1 and data["passed"] is False and data["guilty"][0]["nodes"] == ["dense_2"]
    errors = data["outputs"][0]["errors"]
    assert errors["max"] >= errors["p99"] >= errors["p50"] >= 0


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits(pipeline: NumPyPipeline, width: int) -> None:
    pipeline.break_kernel = {"second": lambda x: x + np.float32(0.1)}
    text = verify(pipeline, mlp(), Options(), feeds_of(mlp())).text(width)
    assert max(map(len, text.splitlines())) <= width


def test_three_times_the_unfused_error_is_allowed_and_no_more() -> None:
    """wide 1.0, the oracle off by 1e-5: 3e-5 and four units in the last place of 1.0."""
    assert allowed_error(np.array([1.0]), DType.F32, 1e-5) == pytest.approx(3e-5 + 4 * 2.0**-23, rel=1e-9)
    assert allowed_error(np.array([3]), DType.I64, 0.0) == 0.0, "integers are exact"


def test_a_lucky_oracle_is_not_taken_at_its_word() -> None:
    """A single number that the own types happen to hit exactly: the error of moved runs shows what rounding does."""
    g = Graph("sum")
    g.add_input("x", TensorType(DType.F32, (1, 4096)))
    weights = np.random.default_rng(5).standard_normal((4096, 1)).astype(np.float32)
    g.set_outputs({"y": g.emit("matmul", ["x", g.add_constant(weights)])})
    feed = Feed("one", random_feed(feed_specs(g)))
    wide = evaluate(g, feed.arrays, "f64")
    lucky = Oracle(wide, {"y": wide["y"].astype(np.float64)})
    assert lucky.own_error("y") == 0.0
    sampled = with_own_error(g, feed, lucky).own_error("y")
    terms = np.abs(feed.arrays["x"][0] * weights[:, 0]).sum()
    assert sampled / float(np.abs(wide["y"]).max()) > 2.0**-24 and sampled < 4 * np.sqrt(4096) * 2.0**-24 * terms


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=repr)
def test_an_output_is_judged_by_its_error_in_every_float_type(dtype: DType) -> None:
    """A wrong element is no better for being what the narrow oracle says; NaN agrees with NaN."""
    wide = np.array([1.0, 2.0, np.nan])
    narrow = np.array([1.0, 4.0, np.nan], dtype.numpy)
    assert against_oracle(narrow, narrow, wide, 0.5).max == 2.0
    assert against_oracle(wide.astype(dtype.numpy), narrow, wide, 0.5).max == 0.0
    assert scale_of(np.array([3.0, np.inf, np.nan], dtype.numpy)) == 3.0
