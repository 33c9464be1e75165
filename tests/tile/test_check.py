"""Well-formedness: each rule has a program that breaks just it, and the error names the statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from opfuse.ir.dims import symbol
from opfuse.ir.index import Gathered, Index, axis
from opfuse.ir.scalar import Apply, Position, apply, const
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.check import IllFormed, affine_range, check
from opfuse.tile.program import (
    Buffer,
    Carry,
    Dot,
    Load,
    Loop,
    Map,
    Phase,
    Program,
    Reduce,
    Rename,
    Repeat,
    Statement,
    Store,
    Tile,
)
from tests.tile.regions import CASES

F32 = DType.F32
m, n, k = Axis("m", symbol("M")), Axis("n", 8), Axis("k", 6)
A = Buffer("A", F32, (symbol("M"), 6))
W = Buffer("W", F32, (6, 8), "weight")
Y = Buffer("Y", F32, (symbol("M"), 8), "out")
I = Buffer("I", DType.I64, (8,))  # noqa: E741
a, w = Tile("a", (m, k)), Tile("w", (k, n))
acc, following, y = Tile("acc", (m, n)), Tile("following", (m, n)), Tile("y", (m, n))
LOAD_A, LOAD_W = Load(a, A, (m.index, k.index)), Load(w, W, (k.index, n.index))
DOT = Dot(following, acc, a, w, k)
LOOP = Loop(k, (Carry(acc, const(0, F32), following),), (LOAD_A, LOAD_W, DOT))
STORE = Store(y, Y, (m.index, n.index))
ZERO = const(0.0, F32)


def program(*body: Statement, buffers: tuple[Buffer, ...] = (A, W, I, Y), grid: tuple[Axis, ...] = (m, n)) -> Program:
    return Program("p", buffers, (Phase(grid, body),))


def linear(loop: Statement = LOOP, value: Statement | None = None, *more: Statement) -> Program:
    return program(loop, value or Map(y, acc), *more, STORE)


def test_a_well_formed_program_passes() -> None:
    check(linear())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_regions_are_well_formed(case: object) -> None:
    check(case.program)  # type: ignore[attr-defined]


def with_body(*body: Statement) -> Loop:
    return replace(LOOP, body=body)


SMALL = Tile("small", (m,))
J = Buffer("J", DType.I64, (6, 8))
INTEGERS = Tile("j", (k, n), DType.I64)
BAD: dict[str, tuple[Program, str, str]] = {
    "made twice": (linear(LOOP, Map(y, acc), Map(y, acc)), "tile y is made twice", "y[m, n] = map acc"),
    "not made before": (linear(LOOP, Map(y, Tile("ghost", (m, n)))), "ghost is not made before", "map ghost"),
    "not visible after its loop": (linear(LOOP, Map(y, following)), "following is not visible here", "map following"),
    "read with other axes": (linear(LOOP, Map(y, Tile("acc", (m,)))), "with other axes or another type", "map acc"),
    "map loses an axis": (program(LOOP, Map(SMALL, acc), Map(y, acc), STORE), "acc has axes ['n']", "small[m] = map"),
    "two extents": (linear(LOOP, Map(y, acc), Map(Tile("z", (Axis("n", 9),)), ZERO)), "axis n has two extents", ""),
    "grid and loop": (program(LOOP, Map(y, acc), STORE, grid=(m, n, k)), "['k'] are grid axes and loop axes", ""),
    "loop axis outside": (linear(LOOP, Map(y, acc), Map(Tile("z", (k,)), ZERO)), "z lists k outside its loop", "z[k]"),
    "index rank": (
        linear(with_body(replace(LOAD_A, index=(m.index,)), LOAD_W, DOT)),
        "1 indices for the 2",
        "load A[m]",
    ),
    "unlisted axis": (
        linear(with_body(replace(LOAD_A, out=Tile("a", (k,))), LOAD_W, DOT)),
        "axis m stands in an index and is cut into tiles",
        "a[k] = load A[m, k]",
    ),
    "unknown axis": (
        linear(with_body(replace(LOAD_A, index=(m.index, axis("zz"))), LOAD_W, DOT)),
        "axis zz is not an axis of the phase",
        "load A[m, zz]",
    ),
    "foreign buffer": (program(LOOP, Map(y, acc), STORE, buffers=(A, Y)), "W is not one of the program's", "load W"),
    "load type": (
        linear(with_body(replace(LOAD_A, out=Tile("a", (m, k), DType.F16)), LOAD_W, DOT)),
        "differ in type: f16 and f32",
        "a[m, k]:f16 = load",
    ),
    "pad type": (
        linear(with_body(replace(LOAD_A, pad=const(0, DType.I32)), LOAD_W, DOT)),
        "pad and buffer A differ in type",
        "pad 0:i32",
    ),
    "leaves the buffer": (
        linear(with_body(LOAD_A, replace(LOAD_W, index=(k.index + 1, n.index)), DOT)),
        "index k+1 leaves the buffer W",
        "load W[k+1, n]",
    ),
    "negative index": (
        linear(with_body(LOAD_A, replace(LOAD_W, index=(k.index, n.index * -1)), DOT)),
        "leaves the buffer W",
        "load W",
    ),
    "store to an input": (linear(LOOP, Map(y, acc), Store(y, W, (n.index, n.index))), "a store to W", "store y -> W"),
    "race": (
        linear(LOOP, Map(y, acc), Store(y, Y, (m.index, Index()))),
        "axis n does not stand in the index",
        "Y[m, 0]",
    ),
    "scatter": (
        linear(
            LOOP,
            Map(y, acc),
            Load(Tile("i", (n,), DType.I64), I, (n.index,)),
            Store(y, Y, (m.index, n.index + Index(((Gathered("i"), 1),)))),
        ),
        "a store to a gathered place",
        "store y",
    ),
    "gather of floats": (
        linear(LOOP, Map(y, acc), Load(Tile("g", (m, n)), W, (Index(((Gathered("acc"), 1),)), n.index))),
        "gathered tile acc is f32, not an integer",
        "load W[[acc], n]",
    ),
    "gather loses an axis": (
        linear(
            LOOP,
            Map(y, acc),
            Load(Tile("i", (n,), DType.I64), I, (n.index,)),
            Load(Tile("g", (m,)), A, (m.index, Index(((Gathered("i"), 1),)))),
        ),
        "gathered tile i has axes ['n']",
        "load A[m, [i]]",
    ),
    "reduce of a grid axis": (
        linear(LOOP, Map(y, acc), Reduce(Tile("s", (m,)), "sum", acc, (n,))),
        "n is a grid axis",
        "reduce sum(acc, over n)",
    ),
    "reduce over nothing": (linear(LOOP, Map(y, acc), Reduce(Tile("s", (m, n)), "sum", acc, ())), "over no axis", "s"),
    "unknown combiner": (
        linear(with_body(LOAD_A, LOAD_W, DOT, Reduce(Tile("s", (m,)), "mean", a, (k,)))),
        "no combiner 'mean'",
        "mean",
    ),
    "sum of bool": (
        linear(
            LOOP,
            Map(y, acc),
            Map(Tile("b", (n, Axis("j", 3)), DType.BOOL), const(True, DType.BOOL)),
            Reduce(Tile("s", (n,), DType.BOOL), "sum", Tile("b", (n, Axis("j", 3)), DType.BOOL), (Axis("j", 3),)),
        ),
        "sum of bool",
        "reduce sum",
    ),
    "dot over a foreign axis": (
        linear(with_body(LOAD_A, LOAD_W, replace(DOT, over=Axis("j", 3)))),
        "a does not list j",
        "dot(acc, a, w, over j)",
    ),
    "dot loses an axis": (
        linear(with_body(LOAD_A, LOAD_W, Dot(Tile("following", (m,)), acc, a, w, k))),
        "differ in axes",
        "following[m]",
    ),
    "dot of integers and floats": (
        program(
            with_body(LOAD_A, Load(INTEGERS, J, (k.index, n.index)), replace(DOT, b=INTEGERS)),
            Map(y, acc),
            STORE,
            buffers=(A, J, Y),
        ),
        "a dot of f32 and i64 into f32",
        "dot(acc, a, j, over k)",
    ),
    "unknown precision": (
        linear(with_body(LOAD_A, LOAD_W, replace(DOT, precision="fast"))),
        "no precision 'fast'",
        "fast",
    ),
    "carry type": (
        linear(replace(LOOP, carries=(Carry(acc, const(0, DType.I32), following),))),
        "acc and its value differ",
        "loop k",
    ),
    "carry axes": (linear(replace(LOOP, carries=(Carry(acc, ZERO, a),))), "differ in axes", "loop k"),
    "carry lists the loop": (
        linear(replace(LOOP, carries=(*LOOP.carries, Carry(Tile("c", (k,)), ZERO, Tile("c", (k,)))))),
        "c lists the loop's own axis",
        "loop k",
    ),
    "nested loop over the same axis": (
        linear(with_body(replace(LOOP, carries=(), body=()), *LOOP.body)),
        "inside a loop",
        "loop k",
    ),
    "bound of a whole axis": (linear(replace(LOOP, stop=axis("q"))), "bound names q", "loop k<6> to q"),
    "scalar of mixed types": (
        linear(LOOP, Map(y, Apply("add", (acc, const(1, DType.I32)), F32))),
        "add of mixed types",
        "map add",
    ),
    "function of a wrong type": (
        linear(LOOP, Map(Tile("i", (n,), DType.I64), Apply("exp", (Position("n"),), DType.I64)), Map(y, acc)),
        "exp of i64",
        "exp(@n)",
    ),
    "value of another type": (linear(LOOP, Map(y, Position("n"))), "y and its value differ in type", "map @n"),
    "nothing stored": (program(LOOP), "nothing is stored to the output Y", ""),
    "read before written": (
        linear(LOOP, Map(y, acc), Load(Tile("r", (m, n)), Y, (m.index, n.index))),
        "out buffer Y is read before",
        "load Y",
    ),
}


WHOLE, LONGER = Axis("r", 8), Axis("q", 9)
ROW, ALONG = Tile("row", (m, n)), Tile("along", (m, WHOLE))


def renamed(s: Rename, grid: tuple[Axis, ...] = (m,)) -> Program:
    return program(Map(ROW, ZERO), s, Store(ROW, Y, (m.index, n.index)), grid=grid)


@pytest.mark.parametrize(("s", "message"), [
    (Rename(ALONG, ROW, k, WHOLE), "lists no axis k"),
    (Rename(Tile("along", (m, LONGER)), ROW, n, LONGER), "lists no axis n as long as q"),
    (Rename(Tile("along", (m, n)), ROW, n, WHOLE), "must list the axes of row with r for n"),
    (Rename(Tile("along", (m, WHOLE), DType.F64), ROW, n, WHOLE), "along"),
    (Rename(ALONG, Tile("ghost", (m, n)), n, WHOLE), "ghost is not made before"),
])  # fmt: skip
def test_renames_that_have_no_meaning(s: Rename, message: str) -> None:
    with pytest.raises(IllFormed, match=message):
        check(renamed(s))


def test_a_rename_needs_whole_axes() -> None:
    check(renamed(Rename(ALONG, ROW, n, WHOLE)))
    with pytest.raises(IllFormed, match="n is cut into tiles"):
        check(renamed(Rename(ALONG, ROW, n, WHOLE), grid=(m, n)))


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str) -> None:
    bad, message, statement = BAD[name]
    with pytest.raises(IllFormed) as caught:
        check(bad)
    assert message in str(caught.value)
    assert statement in str(caught.value)
    assert (caught.value.statement is not None) == bool(statement)


def two_phases(second: Callable[[Buffer], tuple[Statement, ...]]) -> Program:
    P = Buffer("P", F32, (symbol("M"), 8), "scratch")
    first = Phase((m, n), (LOOP, Store(acc, P, (m.index, n.index))))
    return Program("p", (A, W, P, Y), (first, Phase((m, n), second(P))))


def test_scratch_goes_from_phase_to_phase() -> None:
    check(two_phases(lambda P: (Load(y, P, (m.index, n.index)), STORE)))


def test_a_phase_cannot_read_what_it_writes() -> None:
    bad = two_phases(lambda P: (Load(y, P, (m.index, n.index)), STORE, Store(y, P, (m.index, n.index))))
    with pytest.raises(IllFormed, match="P is read and written in one phase"):
        check(bad)
    check(replace(bad, phases=(Repeat(Axis("t", 3), bad.phases),)))  # type: ignore[arg-type]


def test_affine_range() -> None:
    extents = {"n": 8, "k": 6, "m": symbol("M")}
    assert affine_range(n.index * 2 - k.index + 3, extents) == (-2, 17)
    assert affine_range(m.index, extents) is None
    assert affine_range(Index((), symbol("M")), extents) is None


def test_apply_is_checked_before_the_program() -> None:
    with pytest.raises(ValueError, match="mixed types"):
        apply("add", acc, const(1, DType.I32))
