"""The texts of runtime and entry: well-formed for every machine, and naming no symbol beyond the short list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from llvmlite import binding as llvm

from opfuse.codegen.llvm.context import BASES, LINE, Slots, counter_bytes
from opfuse.codegen.llvm.entry import entry_functions, live_steps, segment_text
from opfuse.codegen.llvm.threads import SYMBOLS, runtime_text
from opfuse.plan.plan import Place, Step
from tests.runtime.chains import random_chain


@pytest.mark.parametrize("linux", [True, False])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_the_runtime_is_well_formed_and_names_known_symbols_only(machine: str, linux: bool) -> None:
    module = llvm.parse_assembly(runtime_text(machine, linux))
    module.verify()
    foreign = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    assert foreign <= set(SYMBOLS)
    public = {f.name for f in module.functions if not f.is_declaration and f.linkage == llvm.Linkage.external}
    assert public == {"opfuse_drive", "opfuse_stop", "opfuse_workers", "opfuse_worker", "opfuse_clock"}
    assert ("202" in runtime_text(machine, linux)) == (machine == "x86_64" and linux)


@dataclass(frozen=True)
class Given:
    """As much of a step as the entry reads."""

    function: str
    arguments: tuple[Place, ...]
    integers: tuple[int, ...]
    tiles: int
    chunk: int = 1
    barrier: bool = False

    @property
    def solo(self) -> bool:
        return self.tiles <= self.chunk


def test_an_adapter_turns_places_into_addresses() -> None:
    arguments = (Place("arena", 128), Place("arena", 0), Place("output", 64, 1), Place("weights", 256))
    text = segment_text("opfuse_run_0", [Given("k", arguments, (7, 9), 5)], Slots(inputs=2, outputs=2, hosts=0))
    adapter, table = text.split("@opfuse_run_0_table")[:2]
    assert adapter.count("load ptr") == 3  # the arena's base once
    arena, second_output = BASES, BASES + 8 * (2 + 2 + 1)
    assert f"ptr %context, i64 {second_output}" in adapter and f"ptr %context, i64 {arena}" in adapter
    assert (
        "call void @k(ptr %p0, ptr %base128, ptr %p2, ptr %p3, i64 7, i64 9, ptr %scratch, i64 %begin, i64 %end)"
        in adapter
    )
    assert "i64 5, i64 1, i64 0, i64 0" in table
    llvm.parse_assembly("declare void @k(ptr, ptr, ptr, ptr, i64, i64, ptr, i64, i64)\n" + text).verify()


def test_steps_without_tiles_are_left_out_and_their_barrier_stays() -> None:
    steps = [Given("k", (), (), 2), Given("k", (), (), 0, barrier=True), Given("k", (), (), 1)]
    text = segment_text("run", steps, Slots(0, 0, 0))
    assert text.count("call void @k(") == 2 and live_steps(steps) == [0, 2]
    assert "[2 x { ptr, i64, i64, i64, i64 }]" in text
    assert (
        "ptr @run_step_0, i64 2, i64 1, i64 0, i64 1" in text and "ptr @run_step_2, i64 1, i64 1, i64 1, i64 0" in text
    )


def test_too_many_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        segment_text("run", [Given("k", (), (), 1 << 31)], Slots(0, 0, 0))


def test_all_segments_of_a_plan() -> None:
    chain = random_chain(np.random.default_rng(2), 20, host=True)
    plan, _ = chain.plan(2)
    symbols = [s.symbol for s in plan.segments if hasattr(s, "symbol")]
    texts = entry_functions(plan)
    assert len(symbols) > 1 and len(set(symbols)) == len(symbols) == len(texts)
    steps = [s for segment in plan.segments for s in getattr(segment, "steps", ())]
    assert all(isinstance(s, Step) for s in steps)
    assert sum(t.count("define internal") for t in texts) == len(steps)


def test_counters() -> None:
    assert counter_bytes(10, 1) == 0 and counter_bytes(10, 4) == 10 * 5 * LINE
