"""When an output may lie on an input's bytes: each condition with a program that breaks it and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opfuse.decision import Refusal
from opfuse.ir.index import Gathered, Index, axis
from opfuse.ir.scalar import Const, apply, const
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.plan.inplace import InPlace, may_reuse
from opfuse.tile.program import Buffer, Carry, Halo, Load, Loop, Map, Phase, Program, Reduce, Statement, Store, Tile

F32, I64 = DType.F32, DType.I64
R, N, K = Axis("r", 8), Axis("n", 16), Axis("k", 4)
r, n, k = axis("r"), axis("n"), axis("k")
X, OUT = Buffer("x", F32, (8, 16)), Buffer("out", F32, (8, 16), "out")


def tile(name: str, *axes: Axis) -> Tile:
    return Tile(name, axes)


def program(*body: Statement, grid: tuple[Axis, ...] = (R,), buffers: tuple[Buffer, ...] = (X, OUT)) -> Program:
    return Program("p", buffers, (Phase(grid, body),))


A, B = tile("a", R, N), tile("b", R, N)
LOAD, MAP, STORE = Load(A, X, (r, n)), Map(B, apply("neg", A)), Store(B, OUT, (r, n))


def code(verdict: InPlace | Refusal) -> str:
    return verdict.code if isinstance(verdict, Refusal) else "yes"


def test_a_map_at_the_same_points_may() -> None:
    assert may_reuse(program(LOAD, MAP, STORE), X, OUT) == InPlace("x", "out")


def test_a_row_reduction_before_the_store_may() -> None:
    m, shifted = tile("m", R), tile("s", R, N)
    body = (LOAD, Reduce(m, "max", A, (N,)), Map(shifted, apply("sub", A, m)), Store(shifted, OUT, (r, n)))
    assert code(may_reuse(program(*body), X, OUT)) == "yes"


def test_two_loops_over_a_row_may_where_the_second_stores() -> None:
    m, total, again, y = tile("m", R), tile("t", R), tile("again", R, N), tile("y", R, N)
    first = Loop(N, (Carry(m, const(0.0, F32), total),), (LOAD, Reduce(total, "sum", A, (N,))))
    second = Loop(N, (), (Load(again, X, (r, n)), Map(y, apply("sub", again, m)), Store(y, OUT, (r, n))))
    assert code(may_reuse(program(first, second), X, OUT)) == "yes"
    assert code(may_reuse(program(second, first), X, OUT)) == "read-later"


def one(buffer: Buffer, **changes: object) -> Buffer:
    return replace(buffer, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "body", "x", "out"),
    [
        ("other-points", (Load(A, X, (r * -1 + 7, n)), MAP, STORE), X, OUT),
        ("other-points", (Load(A, X, (r, n + 1), Const(0.0, F32)), MAP, STORE), X, OUT),
        ("other-points", (Load(A, X, (r, n), Const(0.0, F32)), MAP, STORE), X, OUT),
        ("other-points", (LOAD, Load(tile("first", R), X, (r, Index())), MAP, STORE), X, OUT),
        ("stores", (LOAD, MAP, STORE, Store(A, one(OUT, name="out2"), (r, n))), X, OUT),
        ("role", (LOAD, MAP, STORE), one(X, role="weight"), OUT),
        ("layout", (LOAD, MAP, STORE), one(X, strides=(32, 1)), OUT),
        ("layout", (LOAD, MAP, STORE), one(X, halo=Halo((1, 1), (1, 1), 0.0)), OUT),
        ("layout", (LOAD, MAP, STORE), one(X, shape=(16, 8)), OUT),
        ("element-size", (LOAD, MAP, STORE), X, one(OUT, dtype=DType.F64)),
        ("revisited", (Loop(K, (), (LOAD, MAP, STORE)),), X, OUT),
    ],
)
def test_what_forbids_it(wanted: str, body: tuple[Statement, ...], x: Buffer, out: Buffer) -> None:
    assert code(may_reuse(program(*body), x, out)) == wanted


def test_a_grid_axis_that_the_index_lacks_forbids_it() -> None:
    assert code(may_reuse(program(LOAD, MAP, STORE, grid=(R, K)), X, OUT)) == "revisited"


def test_a_scattered_store_forbids_it() -> None:
    index = (Index(((Gathered("i"), 1),)), n)
    assert code(may_reuse(program(Load(A, X, index), MAP, Store(B, OUT, index)), X, OUT)) == "scattered"


def test_a_second_phase_forbids_it() -> None:
    two = Program("p", (X, OUT), (Phase((R,), (LOAD, MAP, STORE)), Phase((R,), (LOAD, MAP, STORE))))
    assert code(may_reuse(two, X, OUT)) == "phases"
