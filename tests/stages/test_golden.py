"""Every stage of two small models as text: what rewriting, grouping, lowering, pass planning and planning make of them.

The machine is a described one, so that the texts are the same everywhere. OPFUSE_UPDATE_GOLDEN=1 renews them; a
change of one is meant to be read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opfuse.codegen.llvm.printer import plan_passes, print_program
from opfuse.decision import Ledger, Refusal
from opfuse.fuse.grouping import group
from opfuse.fuse.provider import TileKernel
from opfuse.ir.graph import Graph
from opfuse.ir.text import print_graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.pipeline import kernel_of, print_kernels
from opfuse.plan.build import build_plan
from opfuse.plan.text import plan_text
from opfuse.providers.cpu import CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.rewrite.engine import rewrite
from opfuse.target import DESCRIBED_CPU, Target
from opfuse.tile.text import program_text, schedule_text

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "stages"
TARGET = Target("described", "cpu", "avx512", 64, 32, 48 << 10, 2 << 20, 32 << 20, 2, DESCRIBED_CPU)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def weight(g: Graph, name: str, *shape: int) -> str:
    data = np.random.default_rng(len(name)).standard_normal(shape) / math.sqrt(math.prod(shape[1:]) or 1)
    return g.add_constant(data.astype(np.float32), name)


def small_cnn() -> Graph:
    """conv -> batch norm -> relu -> conv + shortcut -> relu -> pool -> linear -> softmax, channels first."""
    g = Graph("cnn")
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 1, "layout": "NCHW"}
    x = g.add_input("image", f32(1, 16, 14, 14))
    y = g.emit("conv", [x, weight(g, "w1", 32, 16, 3, 3)], attrs, name="conv1")
    stats = [g.add_constant(np.full(32, v, np.float32), n) for n, v in (("g", 1.5), ("b", 0.1), ("m", 0.2), ("v", 0.9))]
    y = g.emit("relu", [g.emit("batch_norm", [y, *stats], {"epsilon": 1e-5}, name="bn")], name="relu1")
    z = g.emit("conv", [y, weight(g, "w2", 32, 32, 3, 3), weight(g, "bias2", 32)], attrs, name="conv2")
    z = g.emit("relu", [g.emit("add", [z, y], name="shortcut")], name="relu2")
    p = g.emit("reduce_mean", [z], {"axes": (2, 3), "keepdims": False}, name="pool")
    q = g.emit("matmul", [p, weight(g, "w3", 32, 10)], name="fc")
    q = g.emit("add", [q, weight(g, "bias3", 10)], name="fc_bias")
    g.set_outputs({"scores": g.emit("softmax", [q], {"axis": 1}, name="softmax")})
    return g


def transformer_layer() -> Graph:
    """One post-norm layer of width 64 with two heads, as exporters write it."""
    g = Graph("layer")
    x = g.add_input("tokens", f32(2, 20, 64))

    def linear(name: str, value: str, n: int, k: int) -> str:
        product = g.emit("matmul", [value, weight(g, f"{name}.w", k, n)], name=f"{name}.matmul")
        return g.emit("add", [product, weight(g, f"{name}.b", n)], name=f"{name}.bias")

    def heads(name: str, value: str, perm: tuple[int, ...]) -> str:
        split = g.emit("reshape", [value], {"shape": (2, 20, 2, 32)}, name=f"{name}.split")
        return g.emit("transpose", [split], {"perm": perm}, name=f"{name}.heads")

    def norm(name: str, value: str) -> str:
        parts = [weight(g, f"{name}.scale", 64), weight(g, f"{name}.shift", 64)]
        return g.emit("layer_norm", [value, *parts], {"axis": 2, "epsilon": 1e-12}, name=name)

    q = heads("q", linear("q", x, 64, 64), (0, 2, 1, 3))
    k = heads("k", linear("k", x, 64, 64), (0, 2, 3, 1))
    v = heads("v", linear("v", x, 64, 64), (0, 2, 1, 3))
    s = g.emit("div", [g.emit("matmul", [q, k], name="scores"), g.scalar(32.0**0.5, DType.F32)], name="scale")
    o = g.emit("matmul", [g.emit("softmax", [s], {"axis": 3}, name="softmax"), v], name="mix")
    o = g.emit("transpose", [o], {"perm": (0, 2, 1, 3)}, name="unheads")
    o = g.emit("reshape", [o], {"shape": (2, 20, 64)}, name="join")
    y = norm("norm1", g.emit("add", [linear("out", o, 64, 64), x], name="residual1"))
    h = linear("up", y, 256, 64)
    e = g.emit("erf", [g.emit("div", [h, g.scalar(2.0**0.5, DType.F32)], name="gelu.div")], name="gelu.erf")
    a = g.emit("mul", [h, g.emit("add", [e, g.scalar(1.0, DType.F32)], name="gelu.add")], name="gelu.mul")
    a = g.emit("mul", [a, g.scalar(0.5, DType.F32)], name="gelu.half")
    g.set_outputs({"out": norm("norm2", g.emit("add", [linear("down", a, 64, 256), y], name="residual2"))})
    return g


def stages(graph: Graph) -> dict[str, str]:
    """Name of a stage -> its text."""
    ledger, options = Ledger(), Options(threads=2)
    texts = {"1-imported": print_graph(graph)}
    graph = rewrite(graph, options, ledger)
    texts["2-rewritten"] = print_graph(graph)
    providers = (CpuProvider(), ReferenceProvider())
    groups = group(graph, providers, TARGET, options, ledger)
    texts["3-decisions"] = "".join(f"{d.kind:9} {d.rule:28} {d.outcome:8} {' + '.join(d.nodes)}\n" for d in ledger)
    kernels = [kernel_of(graph, g, providers, TARGET, ledger) for g in groups]
    generated = [k for k in kernels if isinstance(k, TileKernel)]
    texts["4-programs"] = "\n".join(
        f"{program_text(k.program)}schedule {schedule_text(k.schedule)}\n" for k in generated
    )
    texts["5-passes"] = "\n".join(passes_text(k) for k in generated)
    plan, _ = build_plan(graph, kernels, print_kernels(kernels, TARGET), options, TARGET)
    texts["6-plan"] = plan_text(plan)
    return texts


def passes_text(kernel: TileKernel) -> str:
    plans = plan_passes(kernel.program, kernel.schedule, TARGET)
    assert not isinstance(plans, Refusal), plans.text
    return "".join(p.text() for p in plans)


@pytest.mark.parametrize("make", [small_cnn, transformer_layer])
def test_stages(make: Callable[[], Graph]) -> None:
    for stage, text in stages(make()).items():
        path = GOLDEN / make.__name__ / f"{stage}.txt"
        if os.environ.get("OPFUSE_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, f"{path.name} has changed; OPFUSE_UPDATE_GOLDEN=1 renews it"


def test_printed_code_is_the_same_twice() -> None:
    """Equal input, equal text: nothing depends on addresses, hashes or the time."""
    first, second = (stages(small_cnn()) for _ in range(2))
    assert first == second
    g = rewrite(small_cnn(), Options(), Ledger())
    groups = group(g, (CpuProvider(),), TARGET, Options(), Ledger())
    for x in groups:
        if x.claim is None:
            continue
        kernel = kernel_of(g, x, (CpuProvider(),), TARGET, Ledger())
        assert isinstance(kernel, TileKernel)
        assert print_program(kernel.program, kernel.schedule, TARGET, "k") == print_program(
            kernel.program, kernel.schedule, TARGET, "k"
        )
