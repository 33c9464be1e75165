"""Long sums: the error does not grow with the length, whichever loops make them; short ones have the code they had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opfuse.codegen.llvm.long_sums import LongSums
from opfuse.codegen.llvm.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.scalar import apply
from opfuse.target import host
from opfuse.tile.choose import choose_cpu
from opfuse.tile.program import Program
from opfuse.tile.schedule import Schedule
from opfuse.tile.summation import CLOSING, DOT_BLOCK, SUM_BLOCK, block_of
from tests.codegen.native import Native, aligned, target_of
from tests.codegen.test_llvm_math import ISAS
from tests.tile.notation import axes, buffer, kernel, out, relu, weight

Extent = int | str
ROUNDOFF = 2.0**-24


def row_sums(rows: Extent, columns: Extent) -> Program:
    r, n = axes(r=rows, n=columns)
    k = kernel("rows", [r, n], (r,))
    k.store(k.reduce("sum", k.load(buffer("A", rows, columns), r, n), n), out("Y", rows), r)
    return k.program()


def column_sums(rows: Extent, columns: Extent) -> Program:
    r, n = axes(r=rows, n=columns)
    k = kernel("columns", [r, n], (n,))
    k.store(k.reduce("sum", k.load(buffer("A", rows, columns), r, n), r), out("Y", columns), n)
    return k.program()


def plane_sums(rows: Extent, columns: Extent) -> Program:
    """Y[0] = sum over both axes; the largest element stands beside it, in the same loops."""
    o, r, n = axes(o=1, r=rows, n=columns)
    k = kernel("planes", [o, r, n], (o,))
    a = k.load(buffer("A", 1, rows, columns), o, r, n)
    total, top = k.reduce("sum", a, r, n), k.reduce("max", a, r, n)
    k.store(total, out("Y", 1), o)
    k.store(top, out("M", 1), o)
    return k.program()


def product(rows: Extent, depth: Extent, columns: Extent) -> Program:
    m, n, kk = axes(m=rows, n=columns, k=depth)
    k = kernel("product", [m, n, kk], (m, n))
    with k.loop(kk, (0.0, (m, n))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", rows, depth), m, kk), k.load(weight("W", depth, columns), kk, n), kk))
    k.store(acc, out("Y", rows, columns), m, n)
    return k.program()


def folded_product(rows: int, depth: int, columns: int) -> Program:
    """Y[n] = sum over the rows of relu(A W): both sums are long."""
    r, n, kk = axes(r=rows, n=columns, k=depth)
    k = kernel("fold", [r, n, kk], (n,))
    with k.loop(kk, (0.0, (r, n))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", rows, depth), r, kk), k.load(weight("W", depth, columns), kk, n), kk))
    k.store(k.reduce("sum", k.map(relu(acc)), r), out("Y", columns), n)
    return k.program()


def taps_of_products(taps: int, depth: int, columns: int, unroll: bool) -> tuple[Program, Schedule]:
    """Y[m, n] = sum over p and k of A[m + p, k] W[p, k, n], as a convolution: the loop over taps outside."""
    m, n, p, kk = axes(m=5, n=columns, p=taps, k=depth)
    k = kernel("taps", [m, n, p, kk], (m, n), points=(p,))
    a, w = buffer("A", 5 + taps, depth), weight("W", taps, depth, columns)
    with k.loop(p, (0.0, (m, n))) as (outer,):
        with k.loop(kk, outer) as (inner,):
            k.next(k.dot(inner, k.load(a, m.index + p.index, kk), k.load(w, p, kk, n), kk))
        k.next(inner)
    k.store(outer, out("Y", 5, columns), m, n)
    schedule = Schedule({"m": 5, "n": 32, "k": 4}, register=(3, 2), unroll=("p",) if unroll else ())
    return k.program(), schedule


def sliding_sums(window: int, count: int) -> Program:
    n, w = axes(n=count, w=window)
    k = kernel("window", [n, w], (n,), points=(w,))
    with k.loop(w, (0.0, (n,))) as (acc,):
        k.next(k.map(apply("add", acc, k.load(buffer("A", count + window), n.index + w.index))))
    k.store(acc, out("Y", count), n)
    return k.program()


def equal(*shape: int) -> np.ndarray:
    """Each addition rounds the same way as the one before."""
    return np.full(shape, 0.1, np.float32)


def alternating(*shape: int) -> np.ndarray:
    signs = np.where(np.arange(int(np.prod(shape))) % 2 == 0, 1, -1).reshape(shape)
    return (signs * np.random.default_rng(1).uniform(0.9, 1.1, shape)).astype(np.float32)


def huge_and_tiny(*shape: int) -> np.ndarray:
    """Ones that are lost in a chain that begins with 2^25."""
    made = np.ones(shape, np.float32)
    made[(0,) * len(shape)] = 2.0**25
    return made


DATA = [equal, alternating, huge_and_tiny]
Data = Callable[..., np.ndarray]


def run(program: Program, isa: str, arrays: dict[str, np.ndarray], sizes: dict[str, int] | None = None,
        schedule: Schedule | None = None) -> None:  # fmt: skip
    target = target_of(isa)
    for name, a in arrays.items():
        arrays[name] = aligned(a)
    Native(program, schedule or choose_cpu(program, target), target).run(arrays, sizes or {})


def assert_close(got: np.ndarray, want: np.ndarray, size: np.ndarray, block: int) -> None:
    worst = np.max(np.abs(got - want) / (ROUNDOFF * size))
    assert worst <= block + CLOSING, f"{worst:.0f} roundoffs of the sum of absolute values"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "run-time"])
def test_rows_and_columns(data: Data, symbolic: bool, isa: str) -> None:
    for make, rows, columns, over in (
        (row_sums, 2, 300_007, 1),
        (row_sums, 3, 65536, 1),
        (column_sums, 50_021, 5, 0),
        (column_sums, 8192, 40, 0),
    ):
        a = data(rows, columns)
        given, sizes = (("R", "C"), {"R": rows, "C": columns}) if symbolic else ((rows, columns), {})
        arrays = {"A": a, "Y": np.zeros(rows if over else columns, np.float32)}
        schedule = Schedule({"r": 1, "n": columns} if over else {"n": 64})
        run(make(*given), isa, arrays, sizes, schedule)
        wide = a.astype(np.float64)
        assert_close(arrays["Y"], wide.sum(over), np.abs(wide).sum(over), SUM_BLOCK)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("rows", "columns"), [(3, 100_003), (100_003, 3), (1009, 1013), (512, 512)])
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "run-time"])
def test_two_axes_with_a_maximum_beside(data: Data, rows: int, columns: int, symbolic: bool) -> None:
    a = data(1, rows, columns)
    given, sizes = (("R", "C"), {"R": rows, "C": columns}) if symbolic else ((rows, columns), {})
    arrays = {"A": a, "Y": np.zeros(1, np.float32), "M": np.zeros(1, np.float32)}
    run(plane_sums(*given), "avx2", arrays, sizes)
    wide = a.astype(np.float64)
    assert_close(arrays["Y"], wide.sum(), np.abs(wide).sum(), SUM_BLOCK)
    assert arrays["M"][0] == a.max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "run-time"])
def test_products(data: Data, symbolic: bool, isa: str) -> None:
    for rows, depth, columns in ((3, 100_000, 20), (1, 50_021, 33)):
        a, w = data(rows, depth), np.ones((depth, columns), np.float32)
        given, sizes = ("K", {"K": depth}) if symbolic else (depth, {})
        arrays = {"A": a, "W": w, "Y": np.zeros((rows, columns), np.float32)}
        run(product(rows, given, columns), isa, arrays, sizes, Schedule({"m": 4, "n": 32, "k": 4}, register=(4, 2)))
        wide = a.astype(np.float64)
        assert_close(arrays["Y"], wide @ w, np.abs(wide) @ w, DOT_BLOCK)


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize(("taps", "depth"), [(3, 6000), (7, 1500), (40, 130), (9, 700)])
def test_taps_of_products(taps: int, depth: int, unroll: bool) -> None:
    """Whether the loop over k is the long one, or the one over taps around it, also where that is written out."""
    a, w = equal(5 + taps, depth), np.ones((taps, depth, 20), np.float32)
    program, schedule = taps_of_products(taps, depth, 20, unroll)
    arrays = {"A": a, "W": w, "Y": np.zeros((5, 20), np.float32)}
    run(program, host().isa, arrays, None, schedule)
    want = np.full((5, 20), taps * depth * float(np.float32(0.1)))
    assert_close(arrays["Y"], want, want, DOT_BLOCK)


def test_a_long_sum_of_long_products() -> None:
    a, w = equal(700, 5000), np.ones((5000, 20), np.float32)
    arrays = {"A": a, "W": w, "Y": np.zeros(20, np.float32)}
    run(folded_product(700, 5000, 20), host().isa, arrays, None, Schedule({"k": 4}))
    want = a.astype(np.float64).sum() * np.ones(20)
    assert_close(arrays["Y"], want, want, SUM_BLOCK + DOT_BLOCK)


def test_sliding_windows() -> None:
    a = equal(20_000 + 33)
    arrays = {"A": a, "Y": np.zeros(33, np.float32)}
    run(sliding_sums(20_000, 33), host().isa, arrays)
    want = np.full(33, 20_000 * float(np.float32(0.1)))
    assert_close(arrays["Y"], want, want, DOT_BLOCK)


def test_doubles_are_cut_too() -> None:
    target = host()
    for length, cut in ((1000, False), (1_000_000, True)):
        printed = print_program(row_sums(1, length), Schedule({"n": length}), target, "k")
        assert not isinstance(printed, Refusal)
        assert ("fcmp olt" in printed[0].text) == cut  # of the last step: is the kept sum finite


@pytest.mark.parametrize("isa", ISAS)
def test_infinities_and_nan_come_through(isa: str) -> None:
    a = np.ones((5, 200_000), np.float32)
    a[1, 70_000], a[2, 5], a[2, 150_000], a[3, 199_999] = np.inf, np.inf, -np.inf, np.nan
    a[4] = 3e38  # overflows on the way
    arrays = {"A": a, "Y": np.zeros(5, np.float32)}
    run(row_sums(5, 200_000), isa, arrays, None, Schedule({"r": 1}))
    np.testing.assert_array_equal(arrays["Y"], np.float32([200_000, np.inf, np.nan, np.nan, np.inf]))


def test_any_cut_of_the_tiles_gives_the_same_bits() -> None:
    a = np.random.default_rng(0).standard_normal((8, 70_000)).astype(np.float32)
    made = []
    for splits in ((), (0.5,), (0.25, 0.7)):
        arrays = {"A": aligned(a), "Y": np.zeros(8, np.float32)}
        Native(row_sums(8, 70_000), Schedule({"r": 1}), host()).run(arrays, {}, splits)
        made.append(arrays["Y"])
    assert all((m.view(np.int32) == made[0].view(np.int32)).all() for m in made)


@pytest.mark.parametrize(
    "program",
    [row_sums(8, 16_000), column_sums(256, 768), product(64, 4096, 256), plane_sums(16, 1000)],
    ids=["rows", "columns", "product", "planes"],
)
def test_usual_lengths_have_the_code_of_plain_loops(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("avx512")
    schedule = choose_cpu(program, target)
    printed = print_program(program, schedule, target, "k")
    monkeypatch.setattr(LongSums, "blocks_of", lambda *_: {})
    plain = print_program(program, schedule, target, "k")
    assert not isinstance(printed, Refusal) and not isinstance(plain, Refusal)
    assert printed[0].text == plain[0].text


def test_blocks_leave_no_rest_where_a_divisor_is_near() -> None:
    assert [block_of(n, 1024) for n in (4096, 6272, 5000, 1_000_003)] == [1024, 896, 1000, 1024]
    assert block_of(3, 2) == 1
