"""Regions around matrix products: linear layers with prologues and epilogues, split K, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfuse.ir.scalar import Position, Scalar, cast, const
from opfuse.ir.types import DType
from opfuse.tile.program import Program
from opfuse.tile.schedule import Packing, Schedule
from tests.tile.case import Array, Case
from tests.tile.notation import (
    F32,
    I64,
    NEG_INF,
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
    select,
    sub,
    weight,
)
from tests.tile.regions_rows import normalise, np_gelu, np_norm

ROWS = ({"M": 0}, {"M": 1}, {"M": 7}, {"M": 17}, {"M": 33})


def linear_gelu(
    n_size: int, k_size: int, *, transposed: bool = False, dtype: DType = F32, precision: str = "ieee"
) -> Program:
    """gelu(A @ W + Bias); with a 16-bit type the sum is made in f32 and the result rounded."""
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    A = buffer("A", k_size, "M", dtype=dtype) if transposed else buffer("A", "M", k_size, dtype=dtype)
    W, bias = weight("W", k_size, n_size, dtype=dtype), buffer("Bias", n_size, dtype=dtype)
    k = kernel("linear_gelu", every, (m, n))
    start = k.load(bias, n)
    with k.loop(kk, (cast(start, F32), (m, n))) as (acc,):
        a = k.load(A, kk, m) if transposed else k.load(A, m, kk)
        k.next(k.dot(acc, a, k.load(W, kk, n), kk, precision))
    k.store(cast(gelu(acc), dtype), out("Y", "M", n_size, dtype=dtype), m, n)
    return k.program()


def side_by_side(rows: int, n_size: int, narrow: int, k_size: int) -> Program:
    """relu(A @ W) and A @ V, of two widths, in one launch; the second's rows are cut in another way."""
    m, n, kk, r, c, j = every = axes(m=rows, n=n_size, k=k_size, r=rows, c=narrow, j=k_size)
    A = buffer("A", rows, k_size)
    k = kernel("side_by_side", every, (m, n))
    with k.loop(kk, (0.0, (m, n))) as (acc,):
        k.next(k.dot(acc, k.load(A, m, kk), k.load(weight("W", k_size, n_size), kk, n), kk))
    k.store(fn("max", acc, 0.0), out("Y", rows, n_size), m, n)
    k.phase((r, c))
    with k.loop(j, (0.0, (r, c))) as (acc,):
        k.next(k.dot(acc, k.load(A, r, j), k.load(weight("V", k_size, narrow), j, c), j))
    k.store(acc, out("Z", rows, narrow), r, c)
    return k.program(beside=True)


def np_side_by_side(A: Array, W: Array, V: Array) -> dict[str, Array]:
    return {"Y": np.maximum(A @ W, 0), "Z": A @ V}


def matrix_vector(k_size: int) -> Program:
    """A row of a matrix times one vector: a dot whose result has no columns."""
    m, kk = every = axes(m="M", k=k_size)
    k = kernel("matrix_vector", every, (m,))
    with k.loop(kk, (0.0, (m,))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", "M", k_size), m, kk), k.load(buffer("V", k_size), kk), kk))
    k.store(acc, out("Y", "M"), m)
    return k.program()


def batched(n_size: int, k_size: int) -> Program:
    """A stack of products: an axis that both operands and the result share."""
    b, m, n, kk = every = axes(b="B", m="M", n=n_size, k=k_size)
    k = kernel("batched", every, (b, m, n))
    with k.loop(kk, (0.0, (b, m, n))) as (acc,):
        x, w = k.load(buffer("A", "B", "M", k_size), b, m, kk), k.load(buffer("W", "B", k_size, n_size), b, kk, n)
        k.next(k.dot(acc, x, w, kk))
    k.store(acc, out("Y", "B", "M", n_size), b, m, n)
    return k.program()


def rotated(n_size: int, k_size: int) -> Program:
    """A stack of products, the axes of operands and result in other orders: no transpose is its own inverse."""
    b, m, n, kk = every = axes(b=3, m="M", n=n_size, k=k_size)
    k = kernel("rotated", every, (m, n, b))
    with k.loop(kk, (0.0, (m, n, b))) as (acc,):
        x, w = k.load(buffer("A", k_size, 3, "M"), kk, b, m), k.load(buffer("W", n_size, k_size, 3), n, kk, b)
        k.next(k.dot(acc, x, w, kk))
    k.store(acc, out("Y", "M", n_size, 3), m, n, b)
    return k.program()


def log_square(x: Scalar) -> Scalar:
    """-inf where x is 0, as it is beyond an extent: a sum over it is NaN unless that is kept out."""
    return fn("log", mul(x, x))


def log_vector(k_size: int) -> Program:
    m, kk = every = axes(m="M", k=k_size)
    k = kernel("log_vector", every, (m,))
    a = k.map(log_square(k.load(buffer("A", "M", k_size), m, kk)), "logs")
    k.store(k.dot(k.zeros(m), a, k.load(buffer("V", k_size), kk), kk), out("Y", "M"), m)
    return k.program()


def log_linear(n_size: int, k_size: int) -> Program:
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    k = kernel("log_linear", every, (m, n))
    a = k.map(log_square(k.load(buffer("A", "M", k_size), m, kk)), "logs")
    k.store(k.dot(k.zeros(m, n), a, k.load(buffer("W", k_size, n_size), kk, n), kk), out("Y", "M", n_size), m, n)
    return k.program()


def integer_linear(n_size: int, k_size: int) -> Program:
    """int8 times int8 into int32."""
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    k = kernel("integer_linear", every, (m, n))
    with k.loop(kk, (const(0, DType.I32), (m, n))) as (acc,):
        a, w = (
            k.load(buffer("A", "M", k_size, dtype=DType.I8), m, kk),
            k.load(weight("W", k_size, n_size, dtype=DType.I8), kk, n),
        )
        k.next(k.dot(acc, a, w, kk))
    k.store(acc, out("Y", "M", n_size, dtype=DType.I32), m, n)
    return k.program()


def qkv(n_size: int, k_size: int, scale: float = 0.05) -> Program:
    """Three products that share one load of A; one of them is quantised to int8."""
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    A, W = buffer("A", "M", k_size), [weight(f"W{t}", k_size, n_size) for t in "qkv"]
    k = kernel("qkv", every, (m, n))
    with k.loop(kk, *[(0.0, (m, n))] * 3) as accs:
        a = k.load(A, m, kk)
        k.next(*[k.dot(acc, a, k.load(w, kk, n), kk) for acc, w in zip(accs, W, strict=True)])
    steps = fn("min", fn("max", fn("rint", mul(accs[1], 1 / scale)), -128.0), 127.0)
    k.store(accs[0], out("Yq", "M", n_size), m, n)
    k.store(cast(steps, DType.I8), out("Yk", "M", n_size, dtype=DType.I8), m, n)
    k.store(accs[2], out("Yv", "M", n_size), m, n)
    return k.program()


def split_k(n_size: int, k_size: int, parts: int) -> Program:
    """Partial sums over parts of K in one phase, their sum in the next."""
    m, n, kk, s = every = axes(m="M", n=n_size, k=k_size, s=parts)
    chunk = -(-k_size // parts)
    P = buffer("P", parts, "M", n_size, role="scratch")
    k = kernel("split_k", every, (s, m, n), (s,))
    with k.loop(kk, (0.0, (m, n)), start=s.index * chunk, stop=s.index * chunk + chunk) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", "M", k_size), m, kk), k.load(weight("W", k_size, n_size), kk, n), kk))
    k.store(acc, P, s, m, n)
    k.phase((m, n), (s,))
    with k.loop(s, (k.load(buffer("Bias", n_size), n), (m, n))) as (total,):
        k.next(add(total, k.load(P, s, m, n)))
    k.store(total, out("Y", "M", n_size), m, n)
    return k.program()


def layernorm_linear(n_size: int, k_size: int) -> Program:
    """A normalisation as the prologue of a product: an operand that is made in the kernel, whole along k."""
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    k = kernel("layernorm_linear", every, (m, n))
    x = k.map(normalise(k, k.load(buffer("A", "M", k_size), m, kk), kk), "x")
    w, bias = k.load(weight("W", k_size, n_size), kk, n), k.load(buffer("Bias", n_size), n)
    k.store(k.dot(k.map(bias, "start", (m, n)), x, w, kk), out("Y", "M", n_size), m, n)
    return k.program()


def mlp(n_size: int, f_size: int, k_size: int) -> Program:
    """linear -> GELU -> linear: the hidden row never reaches memory."""
    m, n, f, kk = every = axes(m="M", n=n_size, f=f_size, k=k_size)
    k = kernel("mlp", every, (m,))
    a = k.load(buffer("A", "M", k_size), m, kk)
    with k.loop(f, (0.0, (m, n))) as (acc,):
        start = k.map(k.load(buffer("B1", f_size), f), "start", (m, f))
        hidden = k.map(gelu(k.dot(start, a, k.load(weight("W1", k_size, f_size), kk, f), kk)), "hidden")
        k.next(k.dot(acc, hidden, k.load(weight("W2", f_size, n_size), f, n), f))
    k.store(acc, out("Y", "M", n_size), m, n)
    return k.program()


def linear_layernorm(n_size: int, k_size: int) -> Program:
    """linear + residual + LayerNorm: a row of accumulators, whole along n."""
    m, n, kk = every = axes(m="M", n=n_size, k=k_size)
    k = kernel("linear_layernorm", every, (m,))
    with k.loop(kk, (0.0, (m, n))) as (acc,):
        k.next(k.dot(acc, k.load(buffer("A", "M", k_size), m, kk), k.load(weight("W", k_size, n_size), kk, n), kk))
    x = k.map(add(acc, k.load(buffer("R", "M", n_size), m, n)), "x")
    k.store(normalise(k, x, n), out("Y", "M", n_size), m, n)
    return k.program()


def attention(
    size: int, depth: int, shift: int = 0, skip: bool = True, dtype: DType = F32, precision: str = "ieee"
) -> Program:
    """Causal with an offset: query i sees keys j <= i + shift. Where it sees none (shift < 0) it gives 0."""
    h, q, j, d = every = axes(h="H", q=size, j=size, d=depth)
    Q, K, V, Y = (buffer(t, "H", size, depth, dtype=dtype, role="out" if t == "Y" else "in") for t in "QKVY")
    k = kernel("attention", every, (h, q))
    query = k.load(Q, h, q, d)
    seen = fn("le", Position("j"), add(Position("q"), const(shift, I64)))
    last = q.index + 1 + shift if skip else None
    with k.loop(j, (0.0, (h, q, d)), (0.0, (h, q)), (NEG_INF, (h, q)), stop=last) as (acc, total, top):
        key, value = k.load(K, h, j, d), k.load(V, h, j, d)
        scores = k.dot(k.zeros(h, q, j), query, key, d, precision)
        masked = k.map(select(seen, mul(scores, depth**-0.5), NEG_INF), "masked")
        top1 = k.map(fn("max", top, k.reduce("max", masked, j)), "top")
        base = k.map(finite_or_zero(top1), "base")
        shrink = k.map(exp(sub(top, base)), "shrink")
        p = k.map(exp(sub(masked, base)), "p")
        summed = k.map(add(mul(total, shrink), k.reduce("sum", p, j)), "total")
        k.next(k.dot(k.map(mul(acc, shrink), "scaled"), cast(p, dtype), value, j, precision), summed, top1)
    divisor = k.map(select(fn("eq", total, 0.0), 1.0, total), "divisor")
    k.store(cast(fn("div", acc, divisor), dtype), Y, h, q, d)
    return k.program()


def attention_row(size: int, depth: int) -> Program:
    """dot -> softmax -> dot with a whole row of scores in one tile, and an additive mask."""
    h, q, j, d = every = axes(h="H", q="S", j=size, d=depth)
    k = kernel("attention_row", every, (h, q))
    scores = k.dot(
        k.zeros(h, q, j),
        k.load(buffer("Q", "H", "S", depth), h, q, d),
        k.load(buffer("K", "H", size, depth), h, j, d),
        d,
    )
    x = k.map(add(mul(scores, depth**-0.5), k.load(buffer("Mask", size), j)), "x")
    e = k.map(exp(sub(x, k.reduce("max", x, j))), "e")
    p = k.map(fn("div", e, k.reduce("sum", e, j)), "p")
    k.store(
        k.dot(k.zeros(h, q, d), p, k.load(buffer("V", "H", size, depth), h, j, d), j),
        out("Y", "H", "S", depth),
        h,
        q,
        d,
    )
    return k.program()


# ---- references ------------------------------------------------------------------------------------------------------
def np_attention(shift: int) -> Any:
    def reference(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        s = Q @ K.transpose(0, 2, 1) / math.sqrt(Q.shape[2])
        i, j = np.indices(s.shape[1:])
        s = np.where(j <= i + shift, s, -np.inf)
        top = s.max(2, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isinf(top), 0, top))
        total = p.sum(2, keepdims=True)
        return {"Y": p @ V / np.where(total == 0, 1, total)}

    return reference


def np_attention_row(Q: Array, K: Array, V: Array, Mask: Array) -> dict[str, Array]:
    s = Q @ K.transpose(0, 2, 1) / math.sqrt(Q.shape[2]) + Mask
    e = np.exp(s - s.max(2, keepdims=True))
    return {"Y": e / e.sum(2, keepdims=True) @ V}


def np_qkv(A: Array, Wq: Array, Wk: Array, Wv: Array) -> dict[str, Array]:
    return {"Yq": A @ Wq, "Yk": np.clip(A @ Wk / 0.05, -128, 127), "Yv": A @ Wv}


def np_linear(transposed: bool) -> Any:
    def reference(A: Array, W: Array, Bias: Array) -> dict[str, Array]:
        return {"Y": np_gelu((A.T if transposed else A) @ W + Bias)}

    return reference


# ---- schedules -------------------------------------------------------------------------------------------------------
def gemm_cpu(
    register: tuple[int, int] = (6, 4), rows: int = 24, weights: tuple[str, ...] = ("W",), **more: Any
) -> Schedule:
    columns = 16 * register[1]
    return Schedule(
        {"m": rows, "n": columns, "k": 4}, register=register, pack={w: Packing(1, columns) for w in weights}, **more
    )


GEMM_GPU = (Schedule({"m": 16, "n": 16, "k": 16}, group=2), Schedule({"m": 32, "n": 64, "k": 32}))
NARROW = Schedule({"m": 6, "n": 32, "k": 4}, register=(6, 2))  # nothing packed


def cases() -> list[Case]:
    made = []
    for n, k in ((1, 1), (7, 17), (33, 64), (100, 67), (128, 32)):
        made.append(
            Case(
                f"linear + bias + GELU N={n} K={k}",
                linear_gelu(n, k),
                np_linear(False),
                ROWS,
                (gemm_cpu(), NARROW),
                GEMM_GPU,
            )
        )
    for rows, n, narrow, k in ((1, 5, 3, 4), (33, 64, 17, 20), (70, 130, 1, 33), (64, 16, 48, 1)):
        turns = [Schedule({"m": tile, "r": tile, "n": 16, "c": 16, "k": 4, "j": 4}) for tile in (6, 64)]
        uneven = Schedule.side_by_side([Schedule({"m": 8, "n": 32}), Schedule({"r": 3, "c": 16}, register=(2, 1))])
        made.append(Case(f"linear of {n} beside linear of {narrow}, {rows} rows", side_by_side(rows, n, narrow, k),
                         np_side_by_side, ({},), (*turns, uneven),
                         (Schedule({"m": 16, "n": 16, "k": 16, "r": 32, "c": 16, "j": 16}),)))  # fmt: skip
    long = (Schedule({"m": 16, "n": 16, "k": 64}), Schedule({"m": 16, "n": 32, "k": 32}))
    made.append(Case("linear of a sum in parts K=5003", linear_gelu(17, 5003), np_linear(False), ROWS[1:2],
                     (gemm_cpu(), NARROW), long))  # fmt: skip
    made.append(Case("linear K=0", linear_gelu(17, 0), np_linear(False), ROWS[:3], (gemm_cpu(),), GEMM_GPU[:1]))
    for n, k in ((33, 17), (64, 64)):
        made.append(
            Case(
                f"linear of a transposed A N={n} K={k}",
                linear_gelu(n, k, transposed=True),
                np_linear(True),
                ROWS,
                (gemm_cpu(), NARROW),
                GEMM_GPU,
            )
        )
    for dtype in (DType.F16, DType.BF16):
        made.append(
            Case(
                f"linear + GELU {dtype.value}",
                linear_gelu(33, 64, dtype=dtype),
                np_linear(False),
                ROWS[1:],
                (gemm_cpu(),),
                GEMM_GPU,
            )
        )
    made.append(
        Case(
            "linear + GELU tf32",
            linear_gelu(33, 64, precision="tf32"),
            np_linear(False),
            ROWS[1:3],
            (gemm_cpu(),),
            GEMM_GPU,
        )
    )
    made += [
        Case(
            f"matrix times vector K={k}",
            matrix_vector(k),
            lambda A, V: {"Y": A @ V},
            ROWS,
            (Schedule({"m": 16, "k": 16}),),
            (Schedule({"m": 16, "k": 32}), Schedule({"m": 1, "k": 16})),
        )
        for k in (1, 33)
    ]
    stacks = ({"B": 0, "M": 7}, {"B": 1, "M": 1}, {"B": 3, "M": 17})
    made += [
        Case(
            f"batched product N={n} K={k}",
            batched(n, k),
            lambda A, W: {"Y": A @ W},
            stacks,
            (Schedule({"b": 1, "m": 6, "n": 32, "k": 4}, register=(6, 2)),),
            (Schedule({"b": 1, "m": 16, "n": 16, "k": 16}), Schedule({"b": 2, "m": 16, "n": 16, "k": 16}, group=2)),
        )
        for n, k in ((33, 17), (16, 32))
    ]
    made += [
        Case(
            f"int8 linear N={n} K={k}",
            integer_linear(n, k),
            lambda A, W: {"Y": A.astype(np.int32) @ W.astype(np.int32)},
            ROWS,
            (gemm_cpu(),),
            (Schedule({"m": 16, "n": 16, "k": 32}), Schedule({"m": 32, "n": 32, "k": 16})),
        )
        for n, k in ((33, 17), (32, 64))
    ]
    for n, k in ((33, 17), (64, 64)):
        made.append(
            Case(
                f"Q/K/V with an int8 output N={n} K={k}",
                qkv(n, k),
                np_qkv,
                ROWS,
                (gemm_cpu((4, 2), weights=("Wq", "Wk", "Wv")),),
                GEMM_GPU,
                rounded=("Yk",),
            )
        )
    for n, k, parts in ((33, 100, 3), (64, 128, 4), (1, 7, 7)):
        made.append(
            Case(
                f"split K N={n} K={k}/{parts}",
                split_k(n, k, parts),
                lambda A, W, Bias: {"Y": A @ W + Bias},
                ROWS,
                (gemm_cpu(),),
                GEMM_GPU,
            )
        )
    for n, k in ((33, 17), (128, 64)):
        made.append(
            Case(
                f"LayerNorm -> linear N={n} K={k}",
                layernorm_linear(n, k),
                lambda A, W, Bias: {"Y": np_norm(A) @ W + Bias},
                ROWS,
                (Schedule({"m": 24, "n": 64}, pack={"W": Packing(1, 64)}),),
                (Schedule({"m": 16, "n": 32}),),
            )
        )
    for n, f, k in ((33, 90, 17), (64, 128, 32)):
        pack = {"W1": Packing(1, 64), "W2": Packing(1, 64)}
        made.append(
            Case(
                f"linear -> GELU -> linear N={n} F={f} K={k}",
                mlp(n, f, k),
                lambda A, W1, B1, W2: {"Y": np_gelu(A @ W1 + B1) @ W2},
                ROWS,
                (Schedule({"m": 24, "f": 64}, pack=pack),),
                (Schedule({"m": 16, "f": 32}),),
            )
        )
    for n, k in ((33, 17), (128, 64)):
        made.append(
            Case(
                f"linear + residual + LayerNorm N={n} K={k}",
                linear_layernorm(n, k),
                lambda A, W, R: {"Y": np_norm(A @ W + R)},
                ROWS,
                (Schedule({"m": 24, "k": 4}, pack={"W": Packing(1, 64)}),),
                (Schedule({"m": 16, "k": 16}),),
            )
        )
    stacked = (Schedule({"b": 4, "m": 16, "n": 32, "k": 16}), Schedule({"b": 2, "m": 32, "n": 16, "k": 16}))
    made.append(
        Case(
            "batched product, axes rotated",
            rotated(17, 33),
            lambda A, W: {"Y": np.einsum("kbm,nkb->mnb", A, W)},
            ROWS,
            (Schedule({"b": 1, "m": 6, "n": 16, "k": 4}),),
            stacked,
        )
    )
    tiles = (Schedule({"m": 16, "n": 16}),)
    made.append(
        Case("logarithms times vector", log_vector(17), lambda A, V: {"Y": np.log(A * A) @ V}, ROWS[1:], tiles, tiles)
    )
    made.append(
        Case(
            "logarithms times matrix", log_linear(17, 33), lambda A, W: {"Y": np.log(A * A) @ W}, ROWS[1:], tiles, tiles
        )
    )
    return made + attention_cases()


def attention_cases() -> list[Case]:
    made = []
    heads = ({"H": 0}, {"H": 1}, {"H": 2})
    cpu, gpu = (
        (Schedule({"h": 1, "q": 32, "j": 64}),),
        (Schedule({"h": 1, "q": 16, "j": 16}), Schedule({"h": 2, "q": 32, "j": 32})),
    )
    for s, d, shift, skip in (
        (33, 17, 0, True),
        (64, 32, 0, True),
        (40, 16, -20, False),
        (40, 16, -20, True),
        (17, 33, 9, True),
    ):
        name = f"attention S={s} D={d} shift={shift}{' skipping' if skip else ''}"
        made.append(Case(name, attention(s, d, shift, skip), np_attention(shift), heads, cpu, gpu))
    made.append(Case("attention f16", attention(33, 32, dtype=DType.F16), np_attention(0), heads[2:], cpu, gpu))
    rows = ({"H": 1, "S": 1}, {"H": 2, "S": 17}, {"H": 3, "S": 7})
    for s, d in ((33, 17), (7, 16), (64, 64)):
        made.append(
            Case(
                f"attention, whole row of scores S={s} D={d}",
                attention_row(s, d),
                np_attention_row,
                rows,
                (Schedule({"h": 1, "q": 16}),),
                (Schedule({"h": 1, "q": 16}), Schedule({"h": 1, "q": 1})),
            )
        )
    return made
