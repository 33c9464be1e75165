"""Element-wise regions and movement: every scalar function, integers and bool, reshapes, strides, recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from opfuse.ir.index import quotient, remainder
from opfuse.ir.scalar import FUNCTIONS, Position, Scalar, apply, cast, const
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Program
from opfuse.tile.schedule import Schedule
from tests.scalar_reference import REFERENCE, reinterpret
from tests.tile.case import Array, Case, normal
from tests.tile.notation import F32, I64, add, axes, buffer, fn, kernel, mul, out, relu, select, weight

LENGTHS = ({"N": 0}, {"N": 1}, {"N": 7}, {"N": 17}, {"N": 33}, {"N": 100})
FLAT = (Schedule({"n": 64}), Schedule({"n": 16}))
FLAT_GPU = (Schedule({"n": 32}), Schedule({"n": 128}))
B = DType.BOOL
NUMBERS = tuple(d for d in DType if d is not B and not d.is_narrow)


# ---- one function at a time ------------------------------------------------------------------------------------------
def one_function(name: str, dtype: DType, to: DType | None = None) -> Program:
    (n,) = every = axes(n="N")
    k = kernel(f"function_{name}", every, (n,))
    arity = FUNCTIONS[name].arity
    types = [B if name == "select" and i == 0 else dtype for i in range(arity)]
    args = [k.load(buffer(t, "N", dtype=d), n) for t, d in zip("ABC", types, strict=False)]
    value = apply(name, *args, dtype=to)
    k.store(value, out("Y", "N", dtype=value.dtype), n)
    return k.program()


def every_function(dtype: DType) -> Program:
    """All functions that a type has, with tiles and with numbers as arguments, each into an output of its own."""
    kind = "f" if dtype.is_float else "b" if dtype is B else "i"
    (n,) = every = axes(n="N")
    k = kernel(f"every_function_{dtype.value}", every, (n,))
    a, b = k.load(buffer("A", "N", dtype=dtype), n), k.load(buffer("B", "N", dtype=dtype), n)
    m = k.load(buffer("M", "N", dtype=B), n)
    three = const(3, dtype)
    values: list[Scalar] = []
    for row in FUNCTIONS.values():
        if kind not in row.kinds or (row.name == "neg" and not dtype.is_signed):
            continue
        if row.name == "bits":
            values += [apply("bits", a, dtype=to) for to in NUMBERS if to.bytes == dtype.bytes]
        elif row.name == "cast":
            values += [
                apply("cast", a, dtype=to) for to in (F32, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U8, B)
            ]
        elif row.name == "select":
            values += [apply("select", m, a, b), apply("select", m, three, b), apply("select", m, three, three)]
        elif row.arity == 1:
            values += [apply(row.name, a), apply(row.name, three)]
        else:
            values += [apply(row.name, a, b), apply(row.name, a, three), apply(row.name, three, b)]
    for number, value in enumerate(values):
        k.store(value, out(f"Y{number}", "N", dtype=value.dtype), n)
    return k.program()


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-3,
    -1e-3,
    0.02,
    0.6,
    -0.63,
    8.0,
    -8.0,
    3e4,
    np.inf,
    -np.inf,
    np.nan,
]


def values_for(name: str) -> Any:
    """Special values in every combination, then normal ones; integer divisors are never 0."""

    def fill(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
        if not b.dtype.is_float:
            x = normal(rng, b, shape)
            if b.name == "B" and name in ("div", "floordiv", "mod", "fmod"):
                return np.where(x == 0, 3, x)
            return np.abs(x) % 5 if b.name == "B" and name == "pow" else x
        x = rng.standard_normal(shape) * 4
        if name in ("floordiv", "mod", "fmod"):  # eighths: a quotient near an integer is that integer, in every type
            return np.where(np.abs(x) < 1 / 8, 0.5, np.round(x * 8) / 8)
        special = [v for v in SPECIAL if b.dtype is not DType.F16 or v != 3e4]  # its square leaves float16
        step, every = len(special), len(x) >= len(special) ** 2
        for i in range(min(len(x), step * step if every and name != "pow" else step)):
            x[i] = special[i // step if every and b.name != "A" else i % step]
        if name == "pow":
            return np.minimum(np.abs(x), 8) if b.name == "A" else np.clip(x, -3, 3)
        return x

    return fill


def function_reference(name: str) -> Any:
    own: dict[str, Any] = {
        "pow": np.power,
        "div": lambda a, b: a / b if a.dtype.kind == "f" else np.trunc(a / b).astype(a.dtype),
    }
    function = own.get(name) or REFERENCE[name]
    return lambda **arrays: {"Y": np.asarray(function(*(arrays[t] for t in "ABC" if t in arrays)))}


def function_cases() -> list[Case]:
    made = []
    for row in FUNCTIONS.values():
        if row.name in ("cast", "bits"):
            continue
        kinds = {"f": (F32, DType.F64, DType.F16), "i": (I64, DType.I32, DType.I8, DType.U8), "b": (B,)}
        for dtype in (d for kind in row.kinds for d in kinds[kind]):
            if row.name == "neg" and not dtype.is_signed:
                continue
            sizes = ({"N": 441},) if dtype is F32 else ({"N": 33},)
            if row.name in ("erf", "sin", "cos") and dtype is DType.F16:
                continue
            made.append(
                Case(
                    f"{row.name} {dtype.value}",
                    one_function(row.name, dtype),
                    function_reference(row.name),
                    sizes,
                    FLAT[:1],
                    FLAT_GPU[1:],
                    values_for(row.name),
                    small=1.0 if row.name in ("sin", "cos", "log") else 2.0**-12,
                )
            )
    return made


def cast_cases() -> list[Case]:
    made = []
    for source in (F32, DType.F16, DType.BF16, I64, DType.I32, DType.I8, DType.U8, B):
        for to in (F32, DType.F64, DType.F16, DType.BF16, I64, DType.I32, DType.I8, DType.U8, B):
            if source is to:
                continue

            def reference(A: Array, to: DType = to) -> dict[str, Array]:
                return {"Y": A != 0 if to is B else A.astype(np.float64 if to.is_float else to.numpy)}

            made.append(
                Case(
                    f"cast {source.value} to {to.value}",
                    one_function("cast", source, to),
                    reference,
                    ({"N": 33},),
                    FLAT[:1],
                    FLAT_GPU[1:],
                    whole_numbers,
                )
            )
    return made


def bits_cases() -> list[Case]:
    """Each type as another of its size; integers hold small numbers, so that no bits of a float are those of a NaN."""
    made = []
    for source in NUMBERS:
        for to in NUMBERS:
            if source is to or source.bytes != to.bytes:
                continue

            def reference(A: Array, source: DType = source, to: DType = to) -> dict[str, Array]:
                return {"Y": reinterpret(A, source.numpy, to.numpy)}

            program = one_function("bits", source, to)
            name = f"bits of {source.value} as {to.value}"
            made.append(Case(name, program, reference, ({"N": 33},), FLAT[:1], FLAT_GPU[1:], whole_numbers))
    return made


def whole_numbers(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
    """Values that every type can hold after truncation, with fractions where the type has them."""
    if b.dtype is B:
        return rng.random(shape) < 0.5
    x = rng.uniform(0, 120, shape)
    return np.round(x * 4) / 4 * (rng.random(shape) < 0.9) if b.dtype.is_float else x.astype(np.int64)


# ---- chains ----------------------------------------------------------------------------------------------------------
def chain() -> Program:
    """Several outputs of one pass: floats, integers, bool."""
    (n,) = every = axes(n="N")
    k = kernel("chain", every, (n,))
    a, b = k.load(buffer("A", "N"), n), k.load(buffer("B", "N"), n)
    i, m = k.load(buffer("I", "N", dtype=I64), n), k.load(buffer("M", "N", dtype=B), n)
    x = k.map(add(mul(a, b), cast(i, F32)), "x")
    big = k.map(fn("and", fn("gt", x, 0.5), fn("not", m)), "big")
    k.store(select(big, x, 0.0), out("X", "N"), n)
    k.store(fn("or", big, fn("eq", fn("mod", i, 3), 0)), out("Z", "N", dtype=B), n)
    k.store(fn("div", fn("sub", i, 7), 2), out("J", "N", dtype=I64), n)
    k.store(
        cast(fn("add", cast(i, DType.I8), fn("select", m, 1, cast(i, DType.I8))), DType.I8),
        out("K", "N", dtype=DType.I8),
        n,
    )
    k.store(mul(cast(Position("n"), F32), 0.5), out("P", "N"), n)
    return k.program()


def np_chain(A: Array, B: Array, I: Array, M: Array) -> dict[str, Array]:  # noqa: E741
    x = A * B + I
    big = (x > 0.5) & ~M
    bytes_ = I.astype(np.int8)
    return {
        "X": np.where(big, x, 0),
        "Z": big | (I % 3 == 0),
        "J": np.trunc((I - 7) / 2).astype(np.int64),
        "K": bytes_ + np.where(M, 1, bytes_).astype(np.int8),
        "P": np.arange(len(A)) * 0.5,
    }


def two_outputs(size: int) -> Program:
    """Row sums and a map of the same rows: outputs of different rank."""
    r, n = every = axes(r="R", n=size)
    k = kernel("two_outputs", every, (r,))
    x = k.map(relu(k.load(buffer("X", "R", size), r, n)), "x")
    k.store(k.reduce("sum", x, n), out("S", "R"), r)
    k.store(mul(x, 2.0), out("Y", "R", size), r, n)
    return k.program()


def transposed_add(rows: int, columns: int) -> Program:
    """Y = relu(X.T) + A: the load is a transpose."""
    i, j = every = axes(i=rows, j=columns)
    k = kernel("transposed_add", every, (i, j))
    x = k.load(buffer("X", columns, rows), j, i)
    k.store(add(relu(x), k.load(buffer("A", rows, columns), i, j)), out("Y", rows, columns), i, j)
    return k.program()


def reshaped(heads: int, depth: int) -> Program:
    """[S, heads * depth] read as [heads, S, depth], then read back flat through a quotient and a remainder."""
    s, f = every = axes(s="S", f=heads * depth)
    k = kernel("reshaped", every, (s, f))
    x = k.load(buffer("X", "S", heads * depth), s, f)
    head, at = quotient(f.index, depth, {"f": heads * depth}), remainder(f.index, depth, {"f": heads * depth})
    y = k.load(buffer("T", heads, "S", depth), head, s, at)
    scale = k.load(buffer("Scale", heads), head)
    k.store(add(mul(x, scale), y), out("Y", "S", heads * depth), s, f)
    return k.program()


def shuffled(groups: int, each: int) -> Program:
    """Channel shuffle: a reshape, a transpose, a reshape, all in one index."""
    total = groups * each
    r, c = every = axes(r="R", c=total)
    k = kernel("shuffled", every, (r, c))
    source = quotient(c.index, groups, {"c": total}) + remainder(c.index, groups, {"c": total}) * each
    k.store(relu(k.load(buffer("X", "R", total), r, source)), out("Y", "R", total), r, c)
    return k.program()


def padded_slice(size: int) -> Program:
    """X[:, 1::2] padded by three on both sides with 7, reversed."""
    taken = size // 2
    r, n = every = axes(r="R", n=taken + 6)
    k = kernel("padded_slice", every, (r, n))
    place = n.index * -2 + (2 * (taken + 5) - 6 + 1)
    inside = k.load(buffer("X", "R", size), r, place, pad=7.0)
    k.store(inside, out("Y", "R", taken + 6), r, n)
    return k.program()


def np_padded_slice(X: Array) -> dict[str, Array]:
    taken = X.shape[1] // 2
    return {"Y": np.pad(X[:, 1 : 2 * taken : 2], ((0, 0), (3, 3)), constant_values=7.0)[:, ::-1]}


def strided(rows: int, columns: int) -> Program:
    """Buffers with gaps between their rows, and one whose rows are its columns."""
    i, j = every = axes(i=rows, j=columns)
    k = kernel("strided", every, (i, j))
    a = k.load(buffer("A", rows, columns, strides=(columns + 5, 1)), i, j)
    b = k.load(buffer("B", rows, columns, strides=(1, rows + 2)), i, j)
    Y = Buffer("Y", F32, (rows, columns), "out", (2 * columns, 2))
    k.store(add(a, b), Y, i, j)
    return k.program()


def gather_columns(size: int, table: int) -> Program:
    """Y[r, n] = X[r, Ids[n]] + Table[Ids[n], n]: an index tile along the lanes."""
    r, n = every = axes(r="R", n=size)
    k = kernel("gather_columns", every, (r, n))
    ids = k.load(buffer("Ids", size, dtype=I64), n)
    x = k.load(buffer("X", "R", table), r, k.gather(ids), also=(ids,))
    k.store(add(x, k.load(buffer("Table", table, size), k.gather(ids), n)), out("Y", "R", size), r, n)
    return k.program()


def fibonacci(steps: int) -> Program:
    """Two carries, one of which takes the other's value: (a, b) becomes (a + b, a)."""
    n, i = every = axes(n="N", i=steps)
    k = kernel("fibonacci", every, (n,), (i,))
    first, second = k.load(buffer("A", "N"), n), k.load(buffer("B", "N"), n)
    with k.loop(i, (first, (n,)), (second, (n,))) as (a, b):
        k.next(add(a, b), a)
    k.store(a, out("Y", "N"), n)
    return k.program()


def np_fibonacci(A: Array, B: Array) -> dict[str, Array]:
    for _ in range(5):
        A, B = A + B, A
    return {"Y": A}


def recurrence(size: int, k_size: int) -> Program:
    """h[t] = tanh(X[t] @ W + h[t - 1] * U): phases in a loop; the state is the output's last row."""
    t, m, n, kk = every = axes(t="T", m="M", n=size, k=k_size)
    k = kernel("recurrence", every, (m, n), (t,))
    H = out("H", "T", "M", size)
    with k.loop(kk, (0.0, (m, n))) as (acc,):
        k.next(
            k.dot(acc, k.load(buffer("X", "T", "M", k_size), t, m, kk), k.load(weight("W", k_size, size), kk, n), kk)
        )
    before = k.load(H, t.index - 1, m, n, pad=0.0)
    k.store(fn("tanh", add(acc, mul(before, k.load(buffer("U", size), n)))), H, t, m, n)
    return k.program(repeat=t)


def np_recurrence(X: Array, U: Array, W: Array) -> dict[str, Array]:
    state, states = np.zeros((X.shape[1], W.shape[1])), []
    for x in X:
        state = np.tanh(x @ W + state * U)
        states.append(state)
    return {"H": np.array(states).reshape(len(X), X.shape[1], W.shape[1])}


def cases() -> list[Case]:
    def positive(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
        return rng.integers(0, 5, shape) if b.name == "Ids" else normal(rng, b, shape)

    plane, plane_gpu = (Schedule({"i": 4, "j": 16}),), (Schedule({"i": 8, "j": 16}), Schedule({"i": 1, "j": 64}))
    rows = tuple({"R": r} for r in (0, 1, 7, 17))
    lines, lines_gpu = (Schedule({"r": 1, "n": 16}),), (Schedule({"r": 4, "n": 16}), Schedule({"r": 1, "n": 64}))
    made: list[Case] = [Case("integer and bool chain, several outputs", chain(), np_chain, LENGTHS, FLAT, FLAT_GPU)]
    for n in (1, 17, 100):
        made.append(
            Case(
                f"two outputs of different rank N={n}",
                two_outputs(n),
                lambda X: {"S": np.maximum(X, 0).sum(1), "Y": 2 * np.maximum(X, 0)},
                rows,
                (Schedule({"r": 1}),),
                (Schedule({"r": 4}), Schedule({"r": 1})),
            )
        )
    for i, j in ((1, 1), (7, 33), (17, 0), (64, 32)):
        made.append(
            Case(
                f"transpose + ReLU + add {i}x{j}",
                transposed_add(i, j),
                lambda X, A: {"Y": np.maximum(X.T, 0) + A},
                cpu=plane,
                gpu=plane_gpu,
            )
        )
        made.append(
            Case(f"strided buffers {i}x{j}", strided(i, j), lambda A, B: {"Y": A + B}, cpu=plane, gpu=plane_gpu)
        )
    for h, d in ((4, 16), (3, 7), (1, 33)):

        def split_heads(X: Array, T: Array, Scale: Array, d: int = d) -> dict[str, Array]:
            return {"Y": X * np.repeat(Scale, d) + T.transpose(1, 0, 2).reshape(X.shape)}

        made.append(
            Case(
                f"reshape through quotients {h}x{d}",
                reshaped(h, d),
                split_heads,
                tuple({"S": s} for s in (0, 1, 7, 17)),
                (Schedule({"s": 1, "f": 16}),),
                (Schedule({"s": 4, "f": 16}), Schedule({"s": 2, "f": 64})),
            )
        )
    for g, e in ((2, 8), (3, 7)):

        def shuffle(X: Array, g: int = g, e: int = e) -> dict[str, Array]:
            return {"Y": np.maximum(X.reshape(-1, g, e).transpose(0, 2, 1).reshape(X.shape), 0)}

        made.append(
            Case(
                f"channel shuffle {g}x{e}",
                shuffled(g, e),
                shuffle,
                rows,
                (Schedule({"r": 1, "c": 16}),),
                (Schedule({"r": 4, "c": 16}),),
            )
        )
    for n in (2, 17, 64):
        made.append(Case(f"slice, pad, reverse N={n}", padded_slice(n), np_padded_slice, rows, lines, lines_gpu))
    for n in (7, 33):
        made.append(
            Case(
                f"gather along lanes N={n}",
                gather_columns(n, 5),
                lambda Ids, X, Table: {"Y": X[:, Ids] + Table[Ids, np.arange(len(Ids))]},
                rows,
                lines,
                lines_gpu,
                positive,
            )
        )
    made.append(Case("carries that change places", fibonacci(5), np_fibonacci, LENGTHS, FLAT, FLAT_GPU))
    steps = ({"T": 0, "M": 2}, {"T": 1, "M": 1}, {"T": 5, "M": 7})
    made.append(
        Case(
            "recurrence",
            recurrence(33, 17),
            np_recurrence,
            steps,
            (Schedule({"m": 6, "n": 32, "k": 4}),),
            (Schedule({"m": 16, "n": 16, "k": 16}),),
        )
    )
    return made
