"""Random schedules of the same programs: tiles, order, register tiles, packing, unrolling. The seeds are fixed."""

from __future__ import annotations

import random

import pytest

from opfuse.target import Target
from opfuse.tile.packing import packed_shape
from opfuse.tile.program import Program, loop_axes
from opfuse.tile.schedule import Packing, Schedule
from tests.codegen.native import Native, Refused, target_of
from tests.tile.regions import CASES

SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 40, 64, 100)
REGISTERS = ((1, 4), (2, 2), (3, 3), (4, 2), (6, 4), (7, 2), (5, 1), (1, 1), (8, 1), (14, 2))
EXPECTED = {"symbolic-scratch", "repeat", "half-precision"}


def vary(rng: random.Random, program: Program, target: Target) -> Schedule:
    phases = list(program.flat_phases())
    names = sorted({a.name for p in phases for a in (*p.grid, *loop_axes(p.body))})
    register = rng.choice(REGISTERS)
    pack = {}
    for b in program.buffers:
        if b.role == "weight" and b.strides is None and b.shape and rng.random() < 0.6:
            axis = len(b.shape) - 1 if rng.random() < 0.8 else rng.randrange(len(b.shape))
            pack[b.name] = Packing(axis, target.lanes() * rng.choice((1, 2, register[1], 4)))
    order = list(dict.fromkeys(a.name for p in phases for a in p.grid))
    rng.shuffle(order)
    return Schedule(
        tile={n: rng.choice(SIZES) for n in names if rng.random() < 0.9},
        order=tuple(order) if rng.random() < 0.7 else (),
        register=register, stream=rng.choice((1, 2, 3, 4, 8)), pack=pack,
        unroll=tuple(n for n in ("kh", "kw", "c") if rng.random() < 0.3), prefetch=rng.choice((0, 0, 512)),
        prefetch_panel=rng.random() < 0.5,
    )  # fmt: skip


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("part", range(5))
def test_random_schedules(isa: str, part: int) -> None:
    target = target_of(isa)
    rng = random.Random(part)
    ran = 0
    for case in rng.sample(CASES, 20):
        schedule = vary(rng, case.program, target)
        try:
            native = Native(case.program, schedule, target)
        except Refused as refused:
            assert refused.refusal.code in EXPECTED, f"{case.name}: {refused} with {schedule}"
            continue
        sizes = rng.choice(case.sizes)
        arrays = case.arrays(sizes)
        want = case.want(arrays)
        native.run(arrays, sizes, rng.choice([(), (0.5,), (0.1, 0.35, 0.8)]))
        assert case.faults(arrays, want) == [], f"{sizes} with {schedule}"
        ran += 1
    assert ran > 10


def test_packed_shapes_hold_whole_panels() -> None:
    assert packed_shape((3, 100), Packing(1, 64)) == (2, 3, 64)
