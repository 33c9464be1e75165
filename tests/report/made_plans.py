"""Plans and ledgers made by hand, for the tests of reports."""

from __future__ import annotations

from dataclasses import dataclass

from opfuse.decision import Decision, Ledger
from opfuse.ir.types import DType
from opfuse.plan.plan import Host, KernelInfo, Native, Plan, Port


@dataclass(frozen=True)
class Compiled:
    """As much of a compiled model as reports look at."""

    plan: Plan
    ledger: Ledger


STEM = "/model/encoder/layer.0"


def kernel(number: int, name: str, nodes: tuple[str, ...], reads: tuple[str, ...], makes: tuple[str, ...],
           provider: str = "cpu", **facts: float) -> KernelInfo:  # fmt: skip
    scale = number + 1
    return KernelInfo(f"k{number}", name, nodes, provider, 1.25e-5 * scale, 4096 * scale, 2_000_000 * scale, 0,
                      facts=dict(facts), reads=reads, writes=makes)  # fmt: skip


def small(*, host: bool = False, measured: bool = False) -> Compiled:
    """Three kernels in a row, the third reads both others; the second pair has no recorded reason."""
    facts = {"measured_s": 2e-5} if measured else {}
    kernels = (
        kernel(0, "matmul+add+gelu", (f"{STEM}/intermediate/dense/MatMul", f"{STEM}/intermediate/dense/Add",
                                      f"{STEM}/intermediate/intermediate_act_fn/Erf"), ("x", "w"), ("a",), **facts),
        kernel(1, "layer_norm", (f"{STEM}/output/LayerNorm/ReduceMean",), ("a", "g"), ("b",), **facts),
        kernel(2, "non_zero", (f"{STEM}/output/NonZero",), ("a", "b"), ("c",), "reference" if host else "cpu", **facts),
    )  # fmt: skip
    ids = [Decision("fusion", "kernel", k.nodes, "taken").id for k in kernels]
    ledger = Ledger([
        Decision("rewrite", "canonical_gelu", ("erf_1",), "taken"),
        Decision("rewrite", "fold_batch_norm", ("bn_1",), "taken"),
        Decision("rewrite", "fold_batch_norm", ("bn_2",), "taken"),
        Decision("rewrite", "fold_pad", ("pad_1",), "refused", "the pad is reflecting", "pad-mode"),
        Decision("boundary", "epilogue", (kernels[0].nodes[-1], kernels[1].nodes[0]), "refused",
                 "a row of the result is spread over 24 tiles, and the mean needs it whole", "row-not-in-tile",
                 {"between": [ids[0], ids[1]], "row_bytes": 6144, "saved_s": 1.5e-6, "added_s": 9.25e-6}),
        Decision("boundary", "prologue", (f"{STEM}/output/LayerNorm/ReduceMean", f"{STEM}/output/NonZero"), "refused",
                 "the size of the result depends on the data", "data-dependent", {"between": [ids[1], ids[2]]}),
        Decision("host", "non_zero", (f"{STEM}/output/NonZero",), "taken", "no native kernel is generated for non_zero",
                 "no-structure"),
    ])  # fmt: skip
    segments = (Native(()), Host(2, ("a", "b"), ("c",))) if host else (Native(()),)
    plan = Plan(
        inputs=(Port("x", DType.F32, (1, 8), "x"),), outputs=(Port("y", DType.F32, (1, 8), "c"),), values=(),
        segments=segments, kernels=kernels, weights=(), arena_bytes=0, weights_bytes=0, scratch_bytes=0, threads=2,
        bytes_moved={"fused": 1_234_567, "unfused": 3_456_789}, peak_memory={"fused": 24576, "unfused": 98304},
        facts={"model": "encoder.onnx", "operators": 17, "target": "x86_64-avx512"},
    )  # fmt: skip
    return Compiled(plan, ledger)
