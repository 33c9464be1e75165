"""What the CPU generator refuses, with which code; and what a footprint counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opfuse.codegen.llvm.printer import legal, print_program
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import Target, described, host
from opfuse.tile.program import Halo, Program
from opfuse.tile.schedule import Footprint, Packing, Schedule
from tests.tile.notation import axes, buffer, kernel, out, weight
from tests.tile.regions import named
from tests.tile.regions_matrix import linear_gelu, mlp

CPU = host()


def code(program: Program, schedule: Schedule = Schedule(), target: Target = CPU) -> str:  # noqa: B008
    answer, printed = legal(program, schedule, target), print_program(program, schedule, target, "f")
    assert isinstance(answer, Refusal) == isinstance(printed, Refusal)
    assert isinstance(answer, Refusal), answer
    assert answer.text
    return answer.code


def test_a_gpu_is_no_cpu() -> None:
    assert code(linear_gelu(64, 64), target=described("h200")) == "not-a-cpu"


def test_repeated_phases() -> None:
    assert code(named("recurrence").program) == "repeat"


def test_halos() -> None:
    r, n = axes(r="R", n=8)
    k = kernel("copy", [r, n], (r,))
    x = replace(buffer("X", "R", 8), halo=Halo((0, 1), (0, 1), 0.0))
    k.store(k.load(x, r, n), out("Y", "R", 8), r, n)
    assert code(k.program()) == "halo"


def test_half_precision_without_conversions() -> None:
    r, n = axes(r="R", n=8)
    k = kernel("copy", [r, n], (r,))
    k.store(k.load(buffer("X", "R", 8, dtype=DType.F16), r, n), out("Y", "R", 8, dtype=DType.F16), r, n)
    assert code(k.program(), target=host(isa="plain")) == "half-precision"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(pack={"W": Packing(1, CPU.lanes() + 1)}), "panel"),
        (Schedule(pack={"A": Packing(1, CPU.lanes())}), "pack-buffer"),
        (Schedule(register=(0, 4)), "schedule"),
        (Schedule(tile={"m": 0}), "schedule"),
    ],
)
def test_schedules_that_make_no_sense(schedule: Schedule, expected: str) -> None:
    assert code(linear_gelu(64, 64), schedule) == expected


def test_a_kept_tile_of_unknown_size() -> None:
    assert code(mlp(64, 64, 64), Schedule({"f": 64})) == "symbolic-scratch"


def test_a_footprint_counts_registers_scratch_and_tiles() -> None:
    m, n, kk = axes(m=100, n=100, k=64)
    k = kernel("product", [m, n, kk], (m, n))
    with k.loop(kk, (0.0, (m, n))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", 100, 64), m, kk), k.load(weight("W", 64, 100), kk, n), kk))
    k.store(acc, out("Y", 100, 100), m, n)
    schedule = Schedule({"m": 48, "n": 2 * CPU.lanes(), "k": 4}, register=(6, 2))
    footprint = legal(k.program(), schedule, CPU)
    assert isinstance(footprint, Footprint)
    assert footprint.registers == 6 * 2 + 2 + 1
    assert footprint.scratch_bytes == 0
    assert footprint.tiles == 3 * -(-100 // (2 * CPU.lanes()))
    assert footprint.code_bytes > 0
