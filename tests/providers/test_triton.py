"""The Triton provider on a described GPU: regions of a graph become printed kernels, or a reason why not."""

from __future__ import annotations

from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.fuse.provider import Claim, Provider, TileKernel
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.providers.triton import TritonProvider, cost
from opfuse.target import DESCRIBED_CPU, Target, described
from opfuse.tile.check import check
from opfuse.tile.choose import key_loop
from tests.tile.attention_graphs import Sizes, attention
from tests.tile.regions import named

F32 = DType.F32
PROVIDER: Provider = TritonProvider()


def linear_relu() -> Graph:
    g = Graph("m")
    g.add_input("x", TensorType(F32, (128, 64)))
    g.add_input("w", TensorType(F32, (64, 256)))
    g.set_outputs({"y": g.emit("relu", [g.emit("matmul", ["x", "w"], name="mm")], name="act")})
    return g


def test_a_region_is_claimed_and_built() -> None:
    g = linear_relu()
    region = Region.of(g, ["mm", "act"])
    claim = PROVIDER.claim(g, region, described("h200"))
    assert isinstance(claim, Claim)
    assert claim.cost.flops == 2 * 128 * 64 * 256
    assert claim.cost.bytes == 4 * (128 * 64 + 64 * 256 + 128 * 256)
    kernel = PROVIDER.build(g, claim)
    assert isinstance(kernel, TileKernel)
    assert set(kernel.arguments.values()) == {"x", "w", g.outputs["y"]}
    check(kernel.program)
    printed = print_program(kernel.program, kernel.schedule, described("h200"), kernel.name)
    assert not isinstance(printed, Refusal)
    assert "tl.dot(" in printed.source


def test_a_cpu_is_refused() -> None:
    g = linear_relu()
    cpu = Target("cpu", "cpu", "avx2", 32, 16, 1, 1, 1, 1, DESCRIBED_CPU)
    refusal = PROVIDER.claim(g, Region.of(g, ["mm"]), cpu)
    assert isinstance(refusal, Refusal) and refusal.code == "not-a-gpu"


def test_multiply_adds_count_loops_and_whole_axes() -> None:
    sizes = {
        "conv 3x3 + bias + residual + ReLU 14x14": 64 * 14 * 14 * 64 * 9 * 32,  # 64: nominal batch
        "linear -> GELU -> linear N=64": 64 * (128 * 32 + 64 * 128),
        "attention S=64": 64 * 2 * 64 * 64 * 32,
    }
    for name, products in sizes.items():
        assert cost(named(name).program, described("h200")).flops == 2 * products


def test_attention_is_claimed_in_the_online_form_unless_sums_keep_their_order() -> None:
    g, _ = attention("causal", Sizes(128, 128, depth=32, width=32))
    region = Region.of(g, list(g.nodes))
    for reassociate in (True, False):
        claim = TritonProvider(reassociate).claim(g, region, described("h200"))
        assert isinstance(claim, Claim), claim.text
        program = TritonProvider().build(g, claim).program  # type: ignore[union-attr]
        assert (key_loop(next(program.flat_phases())) is not None) == reassociate
