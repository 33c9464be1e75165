"""Attention in native kernels: one kernel of any length, against the oracle in float64 and against unfused kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opfuse.decision import Refusal
from opfuse.fuse.provider import TileKernel
from opfuse.fuse.region import Region
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.pipeline import build
from opfuse.pipeline import lower as lower_model
from opfuse.providers.cpu import CpuProvider
from opfuse.target import host
from opfuse.tile.choose import choose_cpu, key_loop
from opfuse.tile.lower import lower_online
from tests.codegen.native import Native, target_of
from tests.tile.attention_graphs import MASKS, SHAPES, Builder, Feeds, Sizes, attention


def native(graph: Graph, feeds: Feeds, isa: str = "",
           keys: int = 0) -> np.ndarray:  # fmt: skip
    """The online program run as a kernel: with the chosen schedule, or in blocks of 5 queries and some keys."""
    region = lower_online(graph, "attention")
    assert not isinstance(region, Refusal), region.text
    target = target_of(isa) if isa else host()
    schedule = choose_cpu(region.program, target)
    if keys:
        (phase,) = region.program.flat_phases()
        loop = key_loop(phase)
        assert loop is not None
        queries = {a.name: 5 for a in phase.grid}
        schedule = replace(schedule, tile={**schedule.tile, **queries, loop.axis.name: keys})
    arrays = {}
    for b in region.program.buffers:
        value, shape = region.arguments[b.name], TensorType(b.dtype, b.shape).static_shape
        if b.role == "out":
            arrays[b.name] = out = np.empty(shape, b.dtype.numpy)
        else:
            arrays[b.name] = np.ascontiguousarray(feeds.get(value, graph.constants.get(value))).reshape(shape)
    Native(region.program, schedule, target).run(arrays, {}, splits=(0.4,))
    return out


def agree(got: np.ndarray, graph: Graph, feeds: Feeds, sizes: Sizes) -> None:
    """Equal to the oracle in float64 but for roundings.

    A score has the error of a sum over the depth, exp makes it relative; a sum over n keys adds about sqrt(n) roundings
    and at most one a block. The weights sum to 1, so the values' size is the scale.
    """
    truth = np.asarray(evaluate(graph, feeds, "f64")["o"])
    given = [np.abs(feeds[n]) for n in ("ramp", "mask") if n in feeds]
    added = max((float(a[np.isfinite(a)].max(initial=0)) for a in given), default=0.0)
    scores = float(np.sqrt(sizes.depth)) * 4 + added
    unit = {DType.F16: 2.0**-11, DType.F32: 2.0**-23, DType.F64: 2.0**-52}[sizes.dtype]
    factor = float(np.abs(feeds["drop"]).max()) * 2 if "drop" in feeds else 1.0
    scale = float(np.abs(feeds["v"]).max()) * factor * (1 + ("gate" in feeds))
    bound = unit * (16 + scores + np.sqrt(sizes.keys)) * scale
    np.testing.assert_allclose(got.reshape(truth.shape), truth, rtol=unit * 4, atol=bound)


@pytest.mark.parametrize("length", [7, 64, 197, 1000, 4096])
def test_every_length_by_the_chosen_schedule(length: int) -> None:
    sizes = Sizes(min(length, 1000), length, heads=2, depth=64, width=64)
    graph, feeds = attention("nothing", sizes)
    agree(native(graph, feeds), graph, feeds, sizes)


@pytest.mark.parametrize("kind", [*MASKS, *SHAPES])
def test_every_kind_in_blocks_that_leave_rests(kind: str) -> None:
    """57 queries in blocks of 5, 83 keys in blocks of 32; another width of the values than of the keys."""
    sizes = Sizes(57, 83, depth=20, width=36)
    graph, feeds = attention(kind, sizes)
    agree(native(graph, feeds, keys=32), graph, feeds, sizes)


@pytest.mark.parametrize("kind", ["chosen", "additive", "special", "grouped_heads"])
@pytest.mark.parametrize("isa", ["avx2", "plain"])
def test_other_instruction_sets(kind: str, isa: str) -> None:
    sizes = Sizes(13, 41, depth=12, width=20)
    graph, feeds = attention(kind, sizes)
    agree(native(graph, feeds, keys=16, isa=isa), graph, feeds, sizes)


@pytest.mark.parametrize("kind", ["nothing", "chosen", "padding", "projected"])
def test_half_precision(kind: str) -> None:
    sizes = Sizes(33, 77, depth=16, width=24, dtype=DType.F16)
    graph, feeds = attention(kind, sizes)
    agree(native(graph, feeds, keys=32), graph, feeds, sizes)


@pytest.mark.parametrize("kind", ["nothing", "spikes", "special"])
def test_double_precision(kind: str) -> None:
    sizes = Sizes(17, 50, depth=16, width=24, dtype=DType.F64)
    graph, feeds = attention(kind, sizes)
    agree(native(graph, feeds, keys=16), graph, feeds, sizes)


# ---- through the pipeline --------------------------------------------------------------------------------------------
def options(folder: Path, **more: object) -> Options:
    return Options(calibrate=False, cache=str(folder), **more)  # type: ignore[arg-type]


def compiled(graph: Graph, feeds: Feeds, chosen: Options) -> np.ndarray:
    model = build(graph, chosen)
    (result,) = model.run([feeds[p.name] for p in model.plan.inputs])
    return np.asarray(result)


@pytest.mark.parametrize("length", [1, 7, 197, 1000])
def test_attention_is_one_kernel_at_every_length(length: int, tmp_path: Path) -> None:
    sizes = Sizes(length, length, heads=2, depth=32, width=32)
    graph, feeds = attention("padding", sizes)
    kernels = [k for k in lower_model(graph, options(tmp_path)).kernels if isinstance(k, TileKernel)]
    assert len(kernels) == 1, [k.name for k in kernels]
    got = compiled(graph, feeds, options(tmp_path))
    agree(got, graph, feeds, sizes)
    apart = compiled(graph, feeds, options(tmp_path, disabled_fusions=frozenset({"all"})))
    np.testing.assert_allclose(got, apart, rtol=1e-4, atol=1e-5)


def key_loops(graph: Graph, chosen: Options) -> int:
    kernels = [k for k in lower_model(graph, chosen).kernels if isinstance(k, TileKernel)]
    return sum(key_loop(phase) is not None for k in kernels for phase in k.program.flat_phases())


def test_strict_keeps_the_order_of_sums(tmp_path: Path) -> None:
    graph, feeds = attention("nothing", Sizes(300, 1000, heads=1, depth=32, width=32))
    assert key_loops(graph, options(tmp_path)) == 1
    assert key_loops(graph, options(tmp_path, strict=True)) == 0
    assert key_loops(graph, options(tmp_path, reassociate=False)) == 0


def test_rows_beyond_the_cache_are_never_in_memory(tmp_path: Path) -> None:
    """One row of scores of a block of queries would not fit; the arena holds no scores at all."""
    graph, feeds = attention("nothing", Sizes(64, 60000, heads=1, depth=16, width=16))
    model = build(graph, options(tmp_path))
    assert model.plan.arena_bytes < 60000 * 4
    assert key_loops(graph, options(tmp_path)) == 1


def test_a_refusal_says_why_no_other_program_helps() -> None:
    """Rows that do not fit, where sums must keep their order, and where the weights are changed before the product."""
    graph, _ = attention("nothing", Sizes(64, 200000, heads=1, depth=16, width=16))
    region = Region.of(graph, list(graph.nodes))
    strict = CpuProvider(reassociate=False).claim(graph, region, host())
    assert isinstance(strict, Refusal) and "switched off" in strict.facts["other_programs"][0]
    b = Builder(Sizes(64, 200000, heads=1, depth=16, width=16))
    q, k, v = b.inputs()
    graph, _ = b.done(b.g.emit("matmul", [b.g.emit("relu", [b.weights(b.scores(q, k))]), v]))
    shown = CpuProvider().claim(graph, Region.of(graph, list(graph.nodes)), host())
    assert isinstance(shown, Refusal) and "reads a softmax" in shown.facts["other_programs"][0]
