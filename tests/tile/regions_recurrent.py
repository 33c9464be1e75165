"""Regions that carry a state along time and use it in the next step's product: LSTM, GRU, and states that cross."""

from __future__ import annotations

import numpy as np

from opfuse.ir.dims import symbol
from opfuse.ir.index import Index
from opfuse.ir.scalar import Scalar
from opfuse.tile.program import Program, Tile
from opfuse.tile.schedule import Packing, Schedule
from tests.tile.case import Array, Case
from tests.tile.notation import add, axes, buffer, fn, kernel, mul, out, sub, weight

STEPS = ({"T": 0, "B": 2}, {"T": 1, "B": 1}, {"T": 4, "B": 3}, {"T": 3, "B": 9})


def sigmoid(x: Scalar) -> Scalar:
    return fn("sigmoid", x)


def np_sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def lstm(size: int) -> Program:
    """From the last step to the first; the outputs stand where the inputs stood, the states come last."""
    t, b, j, kk = every = axes(t="T", b="B", j=size, k=size)
    k = kernel("lstm", every, (b,), (t,))
    X, R = buffer("X", "T", "B", 4 * size), weight("R", 4, size, size)
    at = Index(t.index.terms, 0) * -1 + (symbol("T") - 1)
    with k.loop(t, k.load(buffer("H", "B", size), b, j), k.load(buffer("C", "B", size), b, j)) as (h, c):
        rows = k.rename(h, j, kk)
        i, o, f, g = (
            k.dot(k.load(X, at, b, j.index + n * size), rows, k.load(R, Index((), n), kk, j), kk) for n in range(4)
        )
        cell = k.map(add(mul(sigmoid(f), c), mul(sigmoid(i), fn("tanh", g))))
        state = k.map(mul(sigmoid(o), fn("tanh", cell)))
        k.store(state, out("Y", "T", "B", size), at, b, j)
        k.next(state, cell)
    k.store(h, out("YH", "B", size), b, j)
    k.store(c, out("YC", "B", size), b, j)
    return k.program()


def np_lstm(X: Array, H: Array, C: Array, R: Array) -> dict[str, Array]:
    y = np.zeros((*X.shape[:2], H.shape[1]))
    for t in reversed(range(len(X))):
        i, o, f, g = np.split(X[t] + np.concatenate([H @ r for r in R], 1), 4, 1)
        C = np_sigmoid(f) * C + np_sigmoid(i) * np.tanh(g)
        y[t] = H = np_sigmoid(o) * np.tanh(C)
    return {"Y": y, "YH": H, "YC": C}


def gru(size: int) -> Program:
    """The reset state goes into a product of its own: two products, one after the other, in every step."""
    t, b, j, kk = every = axes(t="T", b="B", j=size, k=size)
    k = kernel("gru", every, (b,), (t,))
    X, R = buffer("X", "T", "B", 3 * size), weight("R", 3, size, size)

    def product(n: int, rows: Tile) -> Tile:
        start = k.load(X, t, b, j.index + n * size)
        return k.dot(start, rows, k.load(R, Index((), n), kk, j), kk)

    with k.loop(t, (0.0, (b, j))) as (h,):
        rows = k.rename(h, j, kk)
        z, r = k.map(sigmoid(product(0, rows))), k.map(sigmoid(product(1, rows)))
        new = product(2, k.rename(k.map(mul(r, h)), j, kk))
        k.next(add(mul(sub(1.0, z), fn("tanh", new)), mul(z, h)))
    k.store(h, out("YH", "B", size), b, j)
    return k.program()


def np_gru(X: Array, R: Array) -> dict[str, Array]:
    h = np.zeros((X.shape[1], R.shape[1]))
    for x in X:
        xz, xr, xn = np.split(x, 3, 1)
        z, r = np_sigmoid(xz + h @ R[0]), np_sigmoid(xr + h @ R[1])
        h = (1 - z) * np.tanh(xn + (r * h) @ R[2]) + z * h
    return {"YH": h}


def crossing(size: int) -> Program:
    """Two states, each needing all of the other's old value."""
    t, b, j, kk = every = axes(t=3, b="B", j=size, k=size)
    k = kernel("crossing", every, (b,), (t,))
    R = weight("R", 2, size, size)
    with k.loop(t, k.load(buffer("P", "B", size), b, j), k.load(buffer("Q", "B", size), b, j)) as (p, q):
        across = [(q, k.rename(p, j, kk), 0), (p, k.rename(q, j, kk), 1)]
        k.next(*(fn("tanh", k.dot(s, rows, k.load(R, Index((), n), kk, j), kk)) for s, rows, n in across))
    k.store(p, out("Y", "B", size), b, j)
    k.store(q, out("Z", "B", size), b, j)
    return k.program()


def np_crossing(P: Array, Q: Array, R: Array) -> dict[str, Array]:
    for _ in range(3):
        P, Q = np.tanh(Q + P @ R[0]), np.tanh(P + Q @ R[1])
    return {"Y": P, "Z": Q}


def cases() -> list[Case]:
    wide = Schedule({"b": 4}, register=(3, 2), pack={"R": Packing(2, 32)})
    cpu, gpu = (Schedule({"b": 1}, register=(1, 4)), Schedule({"b": 6}), wide), (Schedule({"b": 4}), Schedule({"b": 1}))
    made = [Case(f"LSTM backwards H={n}", lstm(n), np_lstm, STEPS, cpu, gpu) for n in (5, 33)]
    made += [Case(f"GRU H={n}", gru(n), np_gru, STEPS, cpu, gpu) for n in (7, 40)]
    made.append(Case("states that cross", crossing(19), np_crossing, ({"B": 1}, {"B": 5}), cpu, gpu))
    return made
