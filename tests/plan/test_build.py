"""Whole plans of random graphs, checked from the plan's data by a memory model that shares no code with the planner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfuse.fuse.provider import TileKernel, ViewKernel
from opfuse.ir.types import DType
from opfuse.options import Options
from opfuse.plan.account import recount
from opfuse.plan.build import build_plan
from opfuse.plan.plan import Host, Native, Place, Plan, Step
from opfuse.plan.serialise import plan_from_json, plan_to_json
from opfuse.plan.weights import READ_AHEAD
from opfuse.tile.packing import unpack
from opfuse.tile.program import Buffer
from opfuse.tile.schedule import Packing, Schedule
from tests.runtime.chains import Chain, Printed, random_chain, target

graphs = st.tuples(st.integers(0, 10**6), st.integers(1, 20), st.booleans()).map(
    lambda t: random_chain(np.random.default_rng(t[0]), t[1], n=64, host=t[2])
)


def overlap(a: Place, b: Place) -> bool:
    same = (a.area, a.index) == (b.area, b.index)
    return same and a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def steps_with_epochs(plan: Plan) -> Iterator[tuple[int, Step | Host]]:
    """Steps and host calls in order with the number of barriers before them."""
    epoch = 0
    for segment in plan.segments:
        if isinstance(segment, Host):
            epoch += 1
            yield epoch, segment
            epoch += 1
            continue
        for step in segment.steps:
            yield epoch, step
            epoch += step.barrier


class Memory:
    """Which value's bytes lie where; a write destroys whatever it touches."""

    def __init__(self, plan: Plan, chain: Chain) -> None:
        self.plan, self.chain = plan, chain
        self.place = {v.name: v.place for v in plan.values}
        self.views = {k.region.outputs[0]: k.region.inputs[0] for k in chain.kernels if isinstance(k, ViewKernel)}
        self.holds: dict[str, Place] = {}
        for name, place in self.place.items():
            if self.root(name) in (*chain.graph.inputs, *chain.graph.constants):
                self.holds[self.root(name)] = place

    def root(self, value: str) -> str:
        while value in self.views:
            value = self.views[value]
        return value

    def read(self, value: str, place: Place) -> None:
        root = self.root(value)
        held = self.holds.get(root)
        assert held is not None, f"{value} is read after its bytes were reused, or before they were written"
        assert (held.area, held.offset, held.index) == (place.area, place.offset, place.index)

    def write(self, value: str, place: Place) -> None:
        for other, held in list(self.holds.items()):
            if overlap(held, place):
                del self.holds[other]
        self.holds[value] = place


@settings(max_examples=150, deadline=None)
@given(graphs, st.integers(1, 3))
def test_no_value_is_overwritten_before_its_last_reader(chain: Chain, threads: int) -> None:
    plan, _ = chain.plan(threads)
    memory = Memory(plan, chain)
    for _, step in steps_with_epochs(plan):
        if isinstance(step, Host):
            for v in step.inputs:
                memory.read(v, memory.place[v])
            for v in step.outputs:
                memory.write(v, memory.place[v])
            continue
        kernel = chain.kernels[plan.kernels[step.kernel].number]
        assert isinstance(kernel, TileKernel)
        x, y, out = step.arguments
        memory.read(kernel.arguments["x"], x)
        memory.read(kernel.arguments["y"], y)
        assert not overlap(out, y), "y is read at other points than are written"
        assert not overlap(out, x) or (out.offset == x.offset and out.bytes == x.bytes)
        memory.write(kernel.arguments["out"], out)
        assert out.offset % 64 == 0 and (out.area != "arena" or out.offset + out.bytes <= plan.arena_bytes)
    for port in plan.outputs:
        memory.read(port.value, memory.place[port.value])


@settings(max_examples=150, deadline=None)
@given(graphs, st.integers(2, 3))
def test_steps_between_two_barriers_touch_different_bytes(chain: Chain, threads: int) -> None:
    plan, _ = chain.plan(threads)
    steps = [(e, s) for e, s in steps_with_epochs(plan) if isinstance(s, Step)]
    for k, (epoch, later) in enumerate(steps):
        for other_epoch, earlier in steps[:k]:
            if epoch != other_epoch or (later.solo and earlier.solo):
                continue
            writes, all_of_earlier = later.arguments[2], earlier.arguments
            assert not any(overlap(writes, a) for a in all_of_earlier)
            assert not any(overlap(earlier.arguments[2], a) for a in later.arguments)


@settings(max_examples=50, deadline=None)
@given(graphs, st.integers(1, 2))
def test_a_plan_survives_json(chain: Chain, threads: int) -> None:
    plan, _ = chain.plan(threads)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@settings(max_examples=50, deadline=None)
@given(graphs)
def test_bytes_and_peaks_are_what_a_recount_gives(chain: Chain) -> None:
    plan, _ = chain.plan(2)
    graph = chain.graph
    size = {v: int(np.prod(t.static_shape)) * 4 for v, t in graph.types.items()}
    adds = [n for n in graph.nodes.values() if n.op == "add"]
    by_hand = sum(size[v] for n in adds for v in {*n.inputs, *n.outputs} if v is not None)
    assert plan.bytes_moved == {"fused": by_hand, "unfused": by_hand} and recount(plan) == by_hand
    assert sum(k.bytes for k in plan.kernels) == by_hand
    assert plan.peak_memory["fused"] >= sum(size[v] for v in (*graph.inputs, *graph.constants)) + plan.arena_bytes


def test_peak_memory_of_a_chain_by_hand() -> None:
    chain = Chain()
    v = chain.input("x", 64)
    for _ in range(6):
        v = chain.mix(v, v)
    chain.show(v)
    plan, _ = chain.plan(1)
    assert plan.arena_bytes == 2 * 256  # y is read from the other end: never in place
    assert plan.peak_memory == {"fused": 2 * 256 + 2 * 256 + 64, "unfused": 2 * 256 + 2 * 256}
    assert plan.bytes_moved["fused"] == 6 * 2 * 256


def test_an_output_takes_over_its_first_operand() -> None:
    chain = Chain()
    x, y = chain.input("x", 64), chain.input("y", 64)
    v = chain.mix(x, y)
    for _ in range(5):
        v = chain.mix(v, y)
    chain.show(chain.mix(v, y))
    plan, _ = chain.plan(2)
    assert plan.arena_bytes == 256


def test_independent_steps_have_no_barrier_between_them() -> None:
    chain = Chain()
    x, y = chain.input("x", 64), chain.input("y", 64)
    chain.show(chain.mix(chain.mix(x, y), chain.mix(y, x)))
    (segment,) = chain.plan(2)[0].segments
    assert isinstance(segment, Native)
    assert [s.barrier for s in segment.steps] == [False, True, True]


def test_short_kernels_run_on_the_calling_thread_without_barriers() -> None:
    chain = Chain()
    v = chain.input("x", 64)
    for _ in range(4):
        v = chain.mix(v, v, seconds=1e-7)
    chain.show(v)
    (segment,) = chain.plan(2)[0].segments
    assert isinstance(segment, Native)
    assert [(s.solo, s.barrier) for s in segment.steps] == [(True, False)] * 3 + [(True, True)]


def with_weight(chain: Chain, out: str, packing: Packing | None) -> None:
    """Give the kernel that makes `out` a weight buffer in place of y."""
    for k, kernel in enumerate(chain.kernels):
        if isinstance(kernel, TileKernel) and kernel.arguments["out"] == out:
            y = kernel.program.buffer("y")
            buffers = tuple(replace(b, role="weight") if b == y else b for b in kernel.program.buffers)
            pack = {"y": packing} if packing else {}
            program = replace(kernel.program, buffers=buffers)
            chain.kernels[k] = replace(kernel, program=program, schedule=Schedule(pack=pack))


def test_a_constant_is_packed_once_for_each_packing() -> None:
    chain = Chain()
    x, w, late = chain.input("x", 64), chain.constant(np.arange(64)), chain.constant(np.arange(64) + 100)
    outs = [chain.mix(x, w)]
    for other in (w, w, w, late):
        outs.append(chain.mix(outs[-1], other))
    chain.show(outs[-1])
    for out, packing in zip(outs, (Packing(0, 48), Packing(0, 16), Packing(0, 48), None, None), strict=True):
        with_weight(chain, out, packing)
    plan, blob = chain.plan(1)
    assert [(p.name, p.packing) for p in plan.weights] == [
        (w, "axis 0 of 64 by 48"), (w, "axis 0 of 64 by 16"), (w, ""), (late, ""),
    ]  # fmt: skip
    assert blob.__array_interface__["data"][0] % 64 == 0 and plan.weights_bytes == blob.nbytes
    steps = [s for _, s in steps_with_epochs(plan) if isinstance(s, Step)]
    assert steps[0].arguments[1] == steps[2].arguments[1] != steps[1].arguments[1]
    first = plan.weights[0]
    panels = blob[first.offset : first.offset + first.bytes].view(np.float32).reshape(2, 48)
    np.testing.assert_array_equal(unpack(panels, (64,), Packing(0, 48)), np.arange(64))
    last = plan.weights[-1]
    assert not blob[last.offset + last.bytes :].any() and blob.nbytes - last.offset - last.bytes >= READ_AHEAD


def test_a_constant_is_packed_in_the_shape_that_the_kernel_sees() -> None:
    """A lowering may drop or join dimensions of a constant: the packing's axis is one of the kernel's buffer."""
    chain = Chain()
    out = chain.mix(chain.input("x", 64), chain.constant(np.arange(64)))
    chain.show(out)
    with_weight(chain, out, Packing(1, 4))
    kernel = chain.kernels[0]
    assert isinstance(kernel, TileKernel)
    buffers = tuple(replace(b, shape=(8, 8)) if b.name == "y" else b for b in kernel.program.buffers)
    chain.kernels[0] = replace(kernel, program=replace(kernel.program, buffers=buffers))
    plan, blob = chain.plan(1)
    (piece,) = plan.weights
    panels = blob[: piece.bytes].view(np.float32).reshape(2, 8, 4)
    np.testing.assert_array_equal(panels[1, 2], [20, 21, 22, 23])


def test_a_value_that_nobody_makes_is_an_error() -> None:
    chain = Chain()
    v = chain.mix(chain.input("x", 64), "x")
    chain.show(chain.mix(v, v))
    del chain.kernels[0]
    chain.printed = {0: chain.printed[1]}
    with pytest.raises(ValueError, match="no kernel makes"):
        chain.plan(1)


def test_a_buffer_that_does_not_fit_its_value_is_an_error() -> None:
    chain = Chain()
    chain.show(chain.mix(chain.input("x", 64), "x"))
    kernel = chain.kernels[0]
    assert isinstance(kernel, TileKernel)
    wide = replace(kernel.program.buffer("x"), strides=(2,))
    program = replace(kernel.program, buffers=(wide, *kernel.program.buffers[1:]))
    chain.kernels[0] = replace(kernel, program=program)
    with pytest.raises(ValueError, match="its buffer 508"):
        chain.plan(1)


def test_scratch_between_phases_lives_in_the_arena_and_parts_the_phases() -> None:
    chain = Chain()
    x = chain.input("x", 64)
    v = chain.mix(x, x)
    chain.show(chain.mix(v, v))
    kernel = chain.kernels[0]
    assert isinstance(kernel, TileKernel)
    between = Buffer("between", DType.F32, (64,), "scratch")
    chain.kernels[0] = replace(kernel, program=replace(kernel.program, buffers=(*kernel.program.buffers, between)))
    first = Printed("one", ("x", "between"), (), 4, 0, "")
    second = Printed("two", ("between", "out"), (), 4, 128, "")
    printed = {0: (first, second), 1: chain.printed[1]}
    chain.regions()
    plan, _ = build_plan(chain.graph, chain.kernels, printed, Options(threads=2), target(2))
    (segment,) = plan.segments
    assert isinstance(segment, Native)
    assert [s.function for s in segment.steps] == ["one", "two", "mix_1"] and all(s.barrier for s in segment.steps)
    scratch, out = segment.steps[1].arguments
    assert scratch.area == "arena" and not overlap(scratch, out) and plan.scratch_bytes == 128
