"""The online form of softmax: what it means, what it is found in, and why it is refused elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opfuse.codegen.llvm.printer import plan_passes
from opfuse.codegen.triton.choose import choose_gpu
from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.target import Target, described
from opfuse.tile.check import check
from opfuse.tile.choose import choose_cpu
from opfuse.tile.lower import LoweredRegion, lower_online
from opfuse.tile.program import Loop, made, shape_axes
from opfuse.tile.schedule import Schedule
from opfuse.tile.text import program_text, schedule_text
from tests.tile.attention_graphs import MASKS, SHAPES, Builder, Feeds, Sizes, attention
from tests.tile.reference_interpreter import run

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# Sixteen lanes, 32 registers and 2 MB of L2, whatever machine runs the test.
WIDE: Target = replace(described("h200"), name="wide", kind="cpu", isa="avx512", vector_bytes=64, registers=32,
                       l2_bytes=2 << 20, units=1)  # fmt: skip


def online(graph: Graph) -> LoweredRegion:
    region = lower_online(graph, "attention")
    assert not isinstance(region, Refusal), region.text
    check(region.program)
    return region


def interpreted(region: LoweredRegion, graph: Graph, feeds: Feeds, block: int) -> np.ndarray:
    """The program run by the interpreter of tile programs, in blocks of keys and queries."""
    (phase,) = region.program.flat_phases()
    loop = next(s for s in phase.body if isinstance(s, Loop))
    arrays = {}
    for b in region.program.buffers:
        if b.role in ("in", "weight"):
            value = region.arguments[b.name]
            array = feeds[value] if value in feeds else graph.constants[value]
            arrays[b.name] = array.reshape(TensorType(b.dtype, b.shape).static_shape)
    tile = {a.name: 3 for a in phase.grid} | {loop.axis.name: block}
    (result,) = run(region.program, arrays, tile).values()
    return np.asarray(result)


@pytest.mark.parametrize("kind", [*MASKS, *SHAPES])
@pytest.mark.parametrize(("queries", "keys", "block"), [(7, 9, 4), (5, 33, 8), (2, 7, 7)])
def test_every_form_of_attention_means_what_the_operators_say(kind: str, queries: int, keys: int, block: int) -> None:
    graph, feeds = attention(kind, Sizes(queries, keys, depth=4, width=6))
    region = online(graph)
    truth = np.asarray(evaluate(graph, feeds, "f64")["o"])
    got = interpreted(region, graph, feeds, block).reshape(truth.shape)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)
    if kind in ("chosen", "late", "special"):
        assert np.isnan(truth).any(), "the case holds rows without a key"


def test_no_row_of_scores_is_whole() -> None:
    graph, _ = attention("additive", Sizes(64, 96))
    region = online(graph)
    (phase,) = region.program.flat_phases()
    (loop,) = [s for s in phase.body if isinstance(s, Loop)]
    assert loop.axis.extent == 96 and len(loop.carries) == 3
    assert not any(loop.axis in t.axes for s in phase.body for t in made(s)), "no tile outside the loop lists the keys"
    assert [a for a in shape_axes(phase.body) if a.extent == 96] == [loop.axis], "the keys are one axis"


# ---- refusals --------------------------------------------------------------------------------------------------------
def refused(graph: Graph) -> Refusal:
    answer = lower_online(graph, "attention")
    assert isinstance(answer, Refusal)
    return answer


def test_weights_that_leave_the_region_keep_their_rows() -> None:
    b = Builder(Sizes(7, 9))
    q, k, v = b.inputs()
    p = b.weights(b.scores(q, k))
    b.g.set_outputs({"o": b.g.emit("matmul", [p, v]), "p": p})
    assert refused(b.g).code == "softmax-is-output"


@pytest.mark.parametrize("change", ["relu", "exp", "add"])
def test_what_is_not_linear_between_softmax_and_product_is_refused(change: str) -> None:
    b = Builder(Sizes(7, 9))
    q, k, v = b.inputs()
    p = b.weights(b.scores(q, k))
    p = b.g.emit(change, [p, b.number(1)] if change == "add" else [p])
    b.done(b.g.emit("matmul", [p, v]))
    assert refused(b.g).code == "no-softmax"


def test_a_choice_after_the_softmax_is_refused_where_it_is_no_zero_for_nan() -> None:
    b = Builder(Sizes(7, 9))
    q, k, v = b.inputs()
    p = b.weights(b.scores(q, k))
    seen = b.given("seen", np.ones((1, 1, 7, 9), bool))
    b.done(b.g.emit("matmul", [b.g.emit("where", [seen, b.number(0), p]), v]))
    assert refused(b.g).code == "softmax-selected"


def test_sums_of_another_axis_or_of_another_value_are_no_softmax() -> None:
    for wrong in ("axis", "value", "minimum"):
        b = Builder(Sizes(9, 9))
        q, k, v = b.inputs()
        s = b.scores(q, k)
        over = {"axes": (3,), "keepdims": True}
        top = b.g.emit("reduce_min" if wrong == "minimum" else "reduce_max", [s], over)
        e = b.g.emit("exp", [b.g.emit("sub", [s, top])])
        summed = b.g.emit("exp", [s]) if wrong == "value" else e
        total = b.g.emit("reduce_sum", [summed], {"axes": (2 if wrong == "axis" else 3,), "keepdims": True})
        b.done(b.g.emit("matmul", [b.g.emit("div", [e, total]), v]))
        assert refused(b.g).code in ("no-softmax", "other-row"), wrong


def test_softmax_in_parts_is_found_by_structure() -> None:
    """The same from its parts, spelled with a reduction that drops the axis and a reshape that brings it back."""
    b = Builder(Sizes(7, 9, depth=4))
    q, k, v = b.inputs()
    s = b.scores(q, k)
    over = {"axes": (3,), "keepdims": False}

    def column(x: str) -> str:
        return b.g.emit("reshape", [x], {"shape": (1, 2, 7, 1)})

    e = b.g.emit("exp", [b.g.emit("sub", [s, column(b.g.emit("reduce_max", [s], over))])])
    p = b.g.emit("div", [e, column(b.g.emit("reduce_sum", [e], over))])
    graph, feeds = b.done(b.g.emit("matmul", [p, v]))
    truth = np.asarray(evaluate(graph, feeds, "f64")["o"])
    got = interpreted(online(graph), graph, feeds, 4).reshape(truth.shape)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)


def test_a_softmax_without_a_product_has_no_online_form() -> None:
    g = Graph()
    g.set_outputs({"y": g.emit("softmax", [g.add_input("x", TensorType(DType.F32, (6, 33)))], {"axis": 1})})
    assert refused(g).code == "no-softmax"


# ---- text ------------------------------------------------------------------------------------------------------------
def test_text_of_a_causal_attention() -> None:
    """The program, how a CPU runs it, and what Triton gets."""
    graph, _ = attention("causal", Sizes(1000, 1000, heads=8, depth=64, width=64))
    program = online(graph).program
    schedule, gpu = choose_cpu(program, WIDE), choose_gpu(program, described("h200"))
    plans = plan_passes(program, schedule, WIDE)
    assert isinstance(plans, tuple) and isinstance(gpu, Schedule)
    printed = print_program(program, gpu, described("h200"), "attention")
    assert not isinstance(printed, Refusal), printed.text
    shown = [program_text(program), f"schedule cpu: {schedule_text(schedule)}\n", *(p.text() for p in plans)]
    compare("tile/attention_online.txt", "".join(shown) + f"schedule gpu: {schedule_text(gpu)}\n")
    compare("triton/attention_online.py.txt", printed.source)


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("OPFUSE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, f"{name} has changed; OPFUSE_UPDATE_GOLDEN=1 renews it"
