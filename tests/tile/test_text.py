"""Texts of tile programs and schedules against golden files; OPFUSE_UPDATE_GOLDEN=1 renews them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import described
from opfuse.tile.program import Buffer, Halo, Phase, Program
from opfuse.tile.schedule import Packing, Schedule
from opfuse.tile.text import buffer_text, program_text, schedule_text
from tests.tile.case import Case
from tests.tile.regions import CASES, named

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tile"
SHOWN = {
    "layernorm_gelu": "add + LayerNorm + GELU N=100",
    "softmax_loops": "softmax in tiles N=100",
    "linear_gelu": "linear + bias + GELU N=100",
    "linear_bf16": "linear + GELU bf16",
    "split_k": "split K N=33",
    "attention": "attention S=33",
    "conv": "conv 3x3 + bias + residual + ReLU 9x7",
    "embedding": "embedding rows + add + LayerNorm N=17",
    "reshaped": "reshape through quotients 3x7",
    "chain": "integer and bool chain",
    "strided": "strided buffers 7x33",
    "recurrence": "recurrence",
}


def compare(path: Path, text: str) -> None:
    if os.environ.get("OPFUSE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} has changed; OPFUSE_UPDATE_GOLDEN=1 renews it"


def both(case: Case) -> str:
    return (
        program_text(case.program)
        + "".join(f"schedule cpu: {schedule_text(s)}\n" for s in case.cpu)
        + "".join(f"schedule gpu: {schedule_text(s)}\n" for s in case.gpu)
    )


@pytest.mark.parametrize("name", SHOWN)
def test_program_text(name: str) -> None:
    compare(GOLDEN / f"{name}.txt", both(named(SHOWN[name])))


@pytest.mark.parametrize("name", SHOWN)
def test_triton_text(name: str) -> None:
    case = named(SHOWN[name])
    printed = print_program(case.program, case.gpu[0], described("h200"), name)
    assert not isinstance(printed, Refusal)
    compare(GOLDEN.parent / "triton" / f"{name}.py.txt", printed.source)


def test_different_programs_have_different_text() -> None:
    texts = [program_text(c.program) for c in CASES]
    assert len(set(texts)) == len({c.program for c in CASES})


def test_origin_is_not_part_of_the_text() -> None:
    empty = Program("p", (), (Phase((), ()),), ("conv_1",))
    assert program_text(empty) == "program p()\nphase grid():\n"


def test_schedule_text() -> None:
    assert schedule_text(Schedule()) == "default"
    assert schedule_text(Schedule({"n": 64, "m": 192}, ("n", "m"), (6, 4), pack={"W": Packing(1, 64)}, warps=8)) == (
        "tile m=192 n=64; order n m; pack W axis 1 by 64; warps=8"
    )


def test_buffer_text() -> None:
    b = Buffer("X", DType.I8, (2, 3), strides=(8, 1), halo=Halo((1, 0), (1, 0), -1.0))
    assert buffer_text(b) == "in X i8[2, 3] strides (8, 1) halo (1, 0) (1, 0) = -1.0"
