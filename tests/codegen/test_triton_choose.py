"""Schedules chosen from a program's shape: legal, filling the machine, and printed and run as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opfuse.codegen.triton.choose import candidates, choose_gpu
from opfuse.codegen.triton.printer import legal, print_program
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import Rates, Target, described
from opfuse.tile.program import Halo, Program
from opfuse.tile.schedule import Footprint, Schedule
from tests.tile import regions_matrix as matrix
from tests.tile import regions_points as points
from tests.tile import regions_rows as rows
from tests.tile.case import Case
from tests.tile.regions import CASES
from tests.tile.variants import with_storage

H200 = described("h200")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_region_gets_a_schedule_that_prints(case: Case) -> None:
    found = candidates(case.program, H200)
    assert found
    for schedule in found:
        assert not isinstance(print_program(case.program, schedule, H200, "k"), Refusal)


def test_large_products_get_large_blocks_and_small_ones_fill_the_machine() -> None:
    large = choose_gpu(with_storage(points_linear(8192), DType.BF16), H200)
    assert isinstance(large, Schedule) and large.tile["m"] * large.tile["n"] == 128 * 128
    few = choose_gpu(matrix.batched(64, 64), H200)
    assert isinstance(few, Schedule)


def points_linear(n: int) -> Program:
    return matrix.linear_gelu(n, 1024)


def test_a_transpose_gets_a_block_with_both_directions() -> None:
    schedule = choose_gpu(points.transposed_add(4096, 4096), H200)
    assert isinstance(schedule, Schedule)
    assert min(schedule.tile["i"], schedule.tile["j"]) >= 32


def refused(case: Case, schedule: Schedule, target: Target = H200) -> Refusal:
    answer = legal(case.program, schedule, target)
    assert isinstance(answer, Refusal)
    printed = print_program(case.program, schedule, target, "k")
    assert isinstance(printed, Refusal) and printed.code == answer.code
    return answer


LINEAR = next(c for c in CASES if c.name.startswith("linear + bias + GELU N=128"))
ROWS = next(c for c in CASES if c.name.startswith("add + LayerNorm + GELU N=100"))


@pytest.mark.parametrize(
    ("case", "schedule", "code"),
    [
        (LINEAR, Schedule({"m": 24, "n": 32, "k": 16}), "not-a-power-of-two"),
        (LINEAR, Schedule({"n": 32, "k": 16}), "symbolic-whole"),
        (LINEAR, Schedule({"m": 32, "n": 32, "k": 16}, warps=3), "warps"),
        (LINEAR, Schedule({"m": 1024, "n": 128, "k": 32}, stages=3), "shared-memory"),
        (LINEAR, Schedule({"m": 1 << 14, "n": 128, "k": 16}), "block-too-large"),
        (LINEAR, Schedule({"m": 1024, "n": 128, "k": 16}, stages=1, warps=1), "registers"),
        (ROWS, Schedule({"r": 4, "n": 64}), "whole-axis-cut"),
    ],
)
def test_refusals_say_why(case: Case, schedule: Schedule, code: str) -> None:
    assert refused(case, schedule).code == code


def test_other_targets_and_halos_are_refused() -> None:
    cpu = Target("cpu", "cpu", "avx2", 32, 16, 1, 1, 1, 1, Rates(1, 1, 1, 1, 1, 1, 1, "none"))
    assert refused(ROWS, Schedule({"r": 4}), cpu).code == "not-a-gpu"
    program = ROWS.program
    first = replace(program.buffers[0], halo=Halo((1, 0), (1, 0), 0.0))
    haloed = replace(ROWS, program=replace(program, buffers=(first, *program.buffers[1:])))
    assert refused(haloed, Schedule({"r": 4})).code == "halo"


def test_footprint_counts_blocks() -> None:
    footprint = legal(rows.column_sum(16), Schedule({"n": 32}), H200)
    assert isinstance(footprint, Footprint) and footprint.tiles == 0  # a run-time extent
    plane = legal(points.transposed_add(64, 96), Schedule({"i": 32, "j": 32}), H200)
    assert isinstance(plane, Footprint) and plane.tiles == 6
