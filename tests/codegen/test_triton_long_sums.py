"""Which loops of a GPU kernel are cut into parts; what they compute is a region's test (`linear of a sum in parts`)."""

from __future__ import annotations

import pytest

from opfuse.codegen.triton.long_sums import span_of
from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import described
from opfuse.tile.program import Loop, statements
from opfuse.tile.schedule import Schedule
from tests.tile import regions_matrix as matrix
from tests.tile.variants import with_precision


def loop_of(depth: int, dtype: DType = DType.F32, precision: str = "ieee") -> Loop:
    program = with_precision(matrix.linear_gelu(64, depth, dtype=dtype), precision)
    return next(s for phase in program.flat_phases() for s in statements(phase.body) if isinstance(s, Loop))


@pytest.mark.parametrize(
    ("depth", "dtype", "precision", "span"),
    [
        (4096, DType.F32, "ieee", 0),
        (4097, DType.F32, "ieee", 1024),
        (5000, DType.F32, "tf32", 0),
        (28672, DType.BF16, "ieee", 0),  # the longest product of large language models
        (100_000, DType.BF16, "ieee", 1024),
        (100_000, DType.F32, "tf32", 1024),
    ],
)
def test_long_products_of_floats_are_cut(depth: int, dtype: DType, precision: str, span: int) -> None:
    assert span_of(loop_of(depth, dtype, precision), 32) == span


@pytest.mark.parametrize("block", [16, 48, 4096])
def test_a_part_is_whole_blocks(block: int) -> None:
    span = span_of(loop_of(100_000), block)
    assert span % block == 0 and span >= block


def test_a_usual_length_is_one_loop() -> None:
    printed = print_program(matrix.linear_gelu(64, 4096), Schedule({"m": 64, "n": 64, "k": 32}), described("h200"), "k")
    assert not isinstance(printed, Refusal)
    assert printed.source.count("for ") == 1
