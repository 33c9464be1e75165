"""Regions over rows: normalisations, softmax, reductions, embedding rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from opfuse.ir.scalar import Position, const
from opfuse.ir.types import DType
from opfuse.tile.program import Buffer, Program
from opfuse.tile.schedule import Schedule
from tests.tile.case import Array, Case, normal
from tests.tile.notation import (
    F32,
    NEG_INF,
    Axis,
    Kernel,
    Scalar,
    Tile,
    add,
    axes,
    buffer,
    exp,
    finite_or_zero,
    fn,
    gelu,
    kernel,
    mul,
    out,
    sub,
)

EPSILON = 1e-5
ROWS = ({"R": 0}, {"R": 1}, {"R": 7}, {"R": 17}, {"R": 33})
erf: Any = np.vectorize(math.erf, otypes=[float])


def np_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + (erf(x / math.sqrt(2)) if x.size else x))


def np_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)


def normalise(k: Kernel, x: Tile, over: Axis) -> Scalar:
    """(x - mean) / sqrt(variance + epsilon) along an axis that the tile holds whole."""
    n = int(over.extent)  # type: ignore[arg-type]
    mean = k.map(mul(k.reduce("sum", x, over), 1.0 / n), "mean")
    d = k.map(sub(x, mean), "d")
    variance = k.reduce("sum", mul(d, d), over)
    return mul(d, k.map(fn("rsqrt", add(mul(variance, 1.0 / n), EPSILON)), "rstd"))


# ---- programs --------------------------------------------------------------------------------------------------------
def layernorm_gelu(size: int) -> Program:
    r, n = every = axes(r="R", n=size)
    k = kernel("layernorm_gelu", every, (r,))
    x = k.map(add(k.load(buffer("A", "R", size), r, n), k.load(buffer("B", "R", size), r, n)), "x")
    normed = normalise(k, x, n)
    g, h = k.load(buffer("G", size), n), k.load(buffer("H", size), n)
    k.store(gelu(k.map(add(mul(normed, g), h), "scaled")), out("Y", "R", size), r, n)
    return k.program()


def softmax_loops(size: int) -> Program:
    """A row too long for a tile: a loop that carries (max, sum), and a loop that writes."""
    r, n = every = axes(r="R", n=size)
    X, Y = buffer("X", "R", size), out("Y", "R", size)
    k = kernel("softmax_loops", every, (r,))
    with k.loop(n, (NEG_INF, (r,)), (0.0, (r,))) as (m, s):
        x = k.load(X, r, n)
        m1 = k.map(fn("max", m, k.reduce("max", x, n)), "m")
        base = k.map(finite_or_zero(m1), "base")
        total = k.reduce("sum", exp(sub(x, base)), n)
        k.next(m1, add(mul(s, exp(sub(m, base))), total))
    with k.loop(n):
        k.store(fn("div", exp(sub(k.load(X, r, n), m)), s), Y, r, n)
    return k.program()


def softmax_row(size: int) -> Program:
    """A row in one tile: each element is read once and its exp is made once."""
    r, n = every = axes(r="R", n=size)
    k = kernel("softmax_row", every, (r,))
    x = k.load(buffer("X", "R", size), r, n)
    base = k.map(finite_or_zero(k.reduce("max", x, n)), "base")
    e = k.map(exp(sub(x, base)), "e")
    k.store(mul(e, k.map(fn("div", 1.0, k.reduce("sum", e, n)), "inverse")), out("Y", "R", size), r, n)
    return k.program()


def row_reduction(combine: str, size: int, dtype: DType = F32) -> Program:
    r, n = every = axes(r="R", n=size)
    k = kernel(f"row_{combine}", every, (r,))
    k.store(k.reduce(combine, k.load(buffer("X", "R", size, dtype=dtype), r, n), n), out("Y", "R", dtype=dtype), r)
    return k.program()


def column_sum(rows: int) -> Program:
    """A reduction along an axis that is not the contiguous one, whole in a tile."""
    r, n = every = axes(r=rows, n="N")
    k = kernel("column_sum", every, (n,))
    k.store(k.reduce("sum", k.load(buffer("X", rows, "N"), r, n), r), out("Y", "N"), n)
    return k.program()


def two_axes_mean(height: int, width: int, channels: int) -> Program:
    """Global average pooling, NHWC: two axes at once."""
    b, y, x, c = every = axes(b="B", y=height, x=width, c=channels)
    k = kernel("two_axes_mean", every, (b, c))
    total = k.reduce("sum", k.load(buffer("X", "B", height, width, channels), b, y, x, c), y, x)
    k.store(mul(total, 1.0 / (height * width)), out("Y", "B", channels), b, c)
    return k.program()


def two_axes_of_exp(combine: str, height: int, width: int) -> Program:
    """A reduction along two ragged axes of something that is not its neutral element beyond them."""
    b, y, x, c = every = axes(b="B", y=height, x=width, c=5)
    k = kernel(f"two_axes_{combine}", every, (b, c))
    e = k.map(sub(exp(k.load(buffer("X", "B", height, width, 5), b, y, x, c)), 3.0), "e")
    k.store(k.reduce(combine, e, y, x), out("Y", "B", 5), b, c)
    return k.program()


def suffix_sum(size: int) -> Program:
    """Y[i] = sum of X[j] + 1 for j >= i: a loop that starts in the middle of an axis that its tiles divide."""
    i, j = every = axes(i=size, j=size)
    k = kernel("suffix_sum", every, (i,))
    with k.loop(j, (0.0, (i,)), start=i.index) as (total,):
        later = fn("ge", Position("j"), Position("i"))
        seen = k.map(fn("select", later, add(k.load(buffer("X", size), j), 1.0), const(0, F32)), "seen", (i, j))
        k.next(add(total, k.reduce("sum", seen, j)))
    k.store(total, out("Y", size), i)
    return k.program()


def embedding_layernorm(vocabulary: int, size: int) -> Program:
    """Rows of two tables, one by an index that counts from the end where it is negative; sum, LayerNorm."""
    r, n = every = axes(r="R", n=size)
    k = kernel("embedding_layernorm", every, (r,))
    ids = k.load(buffer("Ids", "R", dtype=DType.I64), r)
    wrapped = k.map(fn("select", fn("lt", ids, 0), add(ids, vocabulary), ids), "at")
    word = k.load(buffer("Words", vocabulary, size), k.gather(wrapped), n, also=(wrapped,))
    place = k.load(buffer("Places", 2, size), k.gather(k.load(buffer("Kind", "R", dtype=DType.I32), r)), n, also=(ids,))
    x = k.map(add(word, place), "x")
    k.store(normalise(k, x, n), out("Y", "R", size), r, n)
    return k.program()


# ---- inputs and references -------------------------------------------------------------------------------------------
def holes(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
    """Rows of which the first half is -inf, so that whole tiles of a row hold nothing else."""
    x = rng.standard_normal(shape) * 3
    x[1::2, : shape[1] // 2] = -np.inf
    return x


def specials(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
    """NaN and infinities here and there, in some rows both signs."""
    x = rng.standard_normal(shape)
    where = rng.random(shape)
    x[where < 0.02] = np.nan
    x[(where > 0.02) & (where < 0.05)] = np.inf
    x[where > 0.97] = -np.inf
    return x


def indices(vocabulary: int) -> Any:
    def fill(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
        if b.name == "Ids":
            return rng.integers(-vocabulary, vocabulary, shape)
        return rng.integers(0, 2, shape) if b.name == "Kind" else normal(rng, b, shape)

    return fill


def np_layernorm_gelu(A: Array, B: Array, G: Array, H: Array) -> dict[str, Array]:
    return {"Y": np_gelu(np_norm(A + B) * G + H)}


def np_softmax(X: Array) -> dict[str, Array]:
    e = np.exp(X - X.max(1, keepdims=True))
    return {"Y": e / e.sum(1, keepdims=True)}


def np_softmax_special(X: Array) -> dict[str, Array]:
    top = X.max(1, keepdims=True)
    e = np.exp(X - np.where(top == -np.inf, 0, top))
    return {"Y": e * (1 / e.sum(1, keepdims=True))}


def np_embedding(Ids: Array, Kind: Array, Words: Array, Places: Array) -> dict[str, Array]:
    return {"Y": np_norm(Words[Ids] + Places[Kind])}


def small(rng: np.random.Generator, b: Buffer, shape: tuple[int, ...]) -> Array:
    """Factors near one: a long product neither overflows nor vanishes."""
    return rng.uniform(0.9, 1.1, shape) if b.dtype.is_float else normal(rng, b, shape)


REDUCTIONS: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "and": np.all, "or": np.any}


def reduction_case(combine: str, size: int, dtype: DType = F32) -> Case:
    def reference(X: Array) -> dict[str, Array]:
        return {
            "Y": REDUCTIONS[combine](
                X,
                axis=1,
                **({} if combine in ("and", "or") else {"dtype": X.dtype}) if combine in ("sum", "prod") else {},
            )
        }

    rows = (Schedule({"r": 1}), Schedule({"r": 8}))
    return Case(
        f"row {combine} {dtype.value} N={size}",
        row_reduction(combine, size, dtype),
        reference,
        ROWS[1:],
        rows,
        (Schedule({"r": 4}), Schedule({"r": 1})),
        small if combine == "prod" else normal,
    )


def cases() -> list[Case]:
    one, four = Schedule({"r": 1}), Schedule({"r": 4})
    made = [
        Case(
            f"add + LayerNorm + GELU N={n}",
            layernorm_gelu(n),
            np_layernorm_gelu,
            ROWS,
            (one, Schedule({"r": 8})),
            (four, one),
        )
        for n in (1, 17, 64, 100, 768)
    ]
    for n, step in ((7, 4), (33, 16), (100, 32), (256, 64)):
        made.append(
            Case(
                f"softmax in tiles N={n}",
                softmax_loops(n),
                np_softmax,
                ROWS,
                (Schedule({"r": 1, "n": step}),),
                (Schedule({"r": 4, "n": step}), Schedule({"r": 1, "n": 16})),
                holes,
            )
        )
    for n in (1, 7, 33, 256):
        made.append(
            Case(
                f"softmax whole row N={n}",
                softmax_row(n),
                np_softmax,
                ROWS,
                (one, Schedule({"r": 8})),
                (four, one),
                holes,
            )
        )
    made += [reduction_case(c, n) for c in ("sum", "max", "min", "prod") for n in (1, 17, 100)]
    made += [reduction_case(c, 33, d) for c in ("sum", "max", "min") for d in (DType.I64, DType.I32)]
    made += [reduction_case(c, 17, DType.BOOL) for c in ("and", "or", "max", "min")]
    columns = tuple({"N": n} for n in (0, 1, 7, 17, 33, 100))
    made += [
        Case(
            f"column sum R={r}",
            column_sum(r),
            lambda X: {"Y": X.sum(0)},
            columns,
            (Schedule({"n": 64}), Schedule({"n": 16})),
            (Schedule({"n": 32}), Schedule({"n": 8})),
        )
        for r in (0, 1, 17, 33)
    ]
    made += [
        Case(
            f"mean over two axes {h}x{w}x{c}",
            two_axes_mean(h, w, c),
            lambda X: {"Y": X.mean((1, 2))},
            ({"B": 0}, {"B": 1}, {"B": 3}),
            (Schedule({"b": 1, "c": 16}),),
            (Schedule({"b": 1, "c": 16}), Schedule({"b": 2, "c": 4})),
        )
        for h, w, c in ((7, 7, 33), (1, 5, 1))
    ]
    made += [
        Case(
            f"embedding rows + add + LayerNorm N={n}",
            embedding_layernorm(v, n),
            np_embedding,
            ROWS,
            (one,),
            (four, one),
            indices(v),
        )
        for v, n in ((50, 64), (3, 17))
    ]
    for combine in ("sum", "max", "min"):

        def of_exp(X: Array, combine: str = combine) -> dict[str, Array]:
            return {"Y": REDUCTIONS[combine](np.exp(X) - 3.0, axis=(1, 2))}

        name, program = f"{combine} over two ragged axes", two_axes_of_exp(combine, 3, 5)
        sizes, tiles = ({"B": 1}, {"B": 3}), (Schedule({"b": 1, "c": 8}),)
        made.append(Case(name, program, of_exp, sizes, (Schedule({"b": 1, "c": 16}),), tiles))
    for n in (7, 32):
        name, tiles = f"suffix sum N={n}", (Schedule({"i": 8, "j": 8}), Schedule({"i": 1, "j": 16}))
        made.append(Case(name, suffix_sum(n), lambda X: {"Y": (X + 1)[::-1].cumsum()[::-1]}, cpu=tiles, gpu=tiles))
    for n in (33, 128):
        made += [
            replace(reduction_case(c, n), name=f"row {c} of NaN and infinities N={n}", fill=specials)
            for c in ("max", "min", "sum")
        ]
        made.append(
            Case(
                f"softmax of NaN and infinities N={n}",
                softmax_row(n),
                np_softmax_special,
                ROWS[1:],
                (one,),
                (four,),
                specials,
            )
        )
    return made
