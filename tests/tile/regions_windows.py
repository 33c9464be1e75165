"""Regions with windows, channels last: convolutions of every kind, pooling, and a convolution inside a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.ir.dims import ceildiv, floordiv, symbol
from opfuse.ir.scalar import Position, Scalar, const
from opfuse.tile.program import Program
from opfuse.tile.schedule import Packing, Schedule
from tests.tile.case import Array, Case
from tests.tile.notation import I64, NEG_INF, add, axes, buffer, fn, kernel, mul, out, relu, select, weight
from tests.tile.regions_rows import specials


@dataclass(frozen=True)
class Window:
    """kernel x kernel taps, the same stride, dilation and padding on both axes."""

    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    pad: int = 1

    def outputs(self, extent: int) -> int:
        return (extent + 2 * self.pad - self.dilation * (self.kernel - 1) - 1) // self.stride + 1


SAME = Window()


# ---- programs --------------------------------------------------------------------------------------------------------
def conv(
    height: int, width: int, c_size: int, oc_size: int, w: Window = SAME, groups: int = 1, residual: bool = True
) -> Program:
    """relu(conv(X) + Bias + R); channels a group where there are groups."""
    k_ = w.kernel
    oh_, ow_ = w.outputs(height), w.outputs(width)
    b, oh, ow, g, oc, kh, kw, c = axes(b="B", oh=oh_, ow=ow_, g=groups, oc=oc_size, kh=k_, kw=k_, c=c_size)
    every = [b, oh, ow, g, oc, kh, kw, c] if groups > 1 else [b, oh, ow, oc, kh, kw, c]
    split = (g,) if groups > 1 else ()
    channel = g.index * c_size + c.index if groups > 1 else c.index
    made = g.index * oc_size + oc.index if groups > 1 else oc.index
    X = buffer("X", "B", height, width, groups * c_size)
    Wt, Bias = weight("Wt", k_, k_, c_size, groups * oc_size), buffer("Bias", groups * oc_size)
    Y = out("Y", "B", oh_, ow_, groups * oc_size)
    k = kernel("conv", every, (b, oh, *split, oc, ow), (kh, kw))
    listed = (b, oh, ow, *split, oc)
    y, x = (o.index * w.stride + t.index * w.dilation - w.pad for o, t in ((oh, kh), (ow, kw)))
    with k.loop(kh, (k.load(Bias, made), listed)) as (outer,):
        with k.loop(kw, outer) as (middle,):
            with k.loop(c, middle) as (inner,):
                taps = k.load(X, b, y, x, channel, pad=0.0)
                k.next(k.dot(inner, taps, k.load(Wt, kh, kw, c, made), c))
            k.next(inner)
        k.next(middle)
    value: Scalar = outer
    if residual:
        value = add(value, k.load(buffer("R", "B", oh_, ow_, groups * oc_size), b, oh, ow, made))
    k.store(relu(value), Y, b, oh, ow, made)
    return k.program()


def conv_symbolic_height(width: int, c_size: int, oc_size: int) -> Program:
    """3x3, pad 1: the height and the batch are run-time extents."""
    b, oh, ow, oc, kh, kw, c = every = axes(b="B", oh="H", ow=width, oc=oc_size, kh=3, kw=3, c=c_size)
    k = kernel("conv_symbolic", every, (b, oh, oc, ow), (kh, kw))
    with k.loop(kh, (0.0, (b, oh, ow, oc))) as (outer,):
        with k.loop(kw, outer) as (middle,):
            with k.loop(c, middle) as (inner,):
                x = k.load(
                    buffer("X", "B", "H", width, c_size),
                    b,
                    oh.index + kh.index - 1,
                    ow.index + kw.index - 1,
                    c,
                    pad=0.0,
                )
                k.next(k.dot(inner, x, k.load(weight("Wt", 3, 3, c_size, oc_size), kh, kw, c, oc), c))
            k.next(inner)
        k.next(middle)
    k.store(relu(outer), out("Y", "B", "H", width, oc_size), b, oh, ow, oc)
    return k.program()


def depthwise(height: int, width: int, channels: int, w: Window = SAME) -> Program:
    oh_, ow_ = w.outputs(height), w.outputs(width)
    b, oh, ow, c, kh, kw = every = axes(b="B", oh=oh_, ow=ow_, c=channels, kh=w.kernel, kw=w.kernel)
    k = kernel("depthwise", every, (b, oh, ow, c), (kh, kw))
    y, x = (o.index * w.stride + t.index * w.dilation - w.pad for o, t in ((oh, kh), (ow, kw)))
    with k.loop(kh, (0.0, (b, oh, ow, c))) as (outer,):
        with k.loop(kw, outer) as (inner,):
            taps = k.load(buffer("X", "B", height, width, channels), b, y, x, c, pad=0.0)
            k.next(add(inner, mul(taps, k.load(weight("Wt", w.kernel, w.kernel, channels), kh, kw, c))))
        k.next(inner)
    k.store(relu(outer), out("Y", "B", oh_, ow_, channels), b, oh, ow, c)
    return k.program()


def max_pool(height: int, width: int, channels: int, w: Window) -> Program:
    oh_, ow_ = w.outputs(height), w.outputs(width)
    b, oh, ow, c, kh, kw = every = axes(b="B", oh=oh_, ow=ow_, c=channels, kh=w.kernel, kw=w.kernel)
    k = kernel("max_pool", every, (b, oh, ow, c), (kh, kw))
    y, x = (o.index * w.stride + t.index * w.dilation - w.pad for o, t in ((oh, kh), (ow, kw)))
    with k.loop(kh, (NEG_INF, (b, oh, ow, c))) as (outer,):
        with k.loop(kw, outer) as (inner,):
            k.next(fn("max", inner, k.load(buffer("X", "B", height, width, channels), b, y, x, c, pad=NEG_INF)))
        k.next(inner)
    k.store(outer, out("Y", "B", oh_, ow_, channels), b, oh, ow, c)
    return k.program()


def pool_symbolic_height(width: int, channels: int, w: Window, rounded_up: bool) -> Program:
    """The output's height is a quotient of a run-time extent, rounded down or up (ceil_mode)."""
    height = symbol("H")
    over = height + (2 * w.pad - w.dilation * (w.kernel - 1) - 1)
    oh_ = (ceildiv(over, w.stride) if rounded_up else floordiv(over, w.stride)) + 1
    b, oh, ow, c, kh, kw = every = axes(b="B", oh=oh_, ow=w.outputs(width), c=channels, kh=w.kernel, kw=w.kernel)
    k = kernel("pool_symbolic", every, (b, oh, ow, c), (kh, kw))
    y, x = (o.index * w.stride + t.index * w.dilation - w.pad for o, t in ((oh, kh), (ow, kw)))
    with k.loop(kh, (NEG_INF, (b, oh, ow, c))) as (outer,):
        with k.loop(kw, outer) as (inner,):
            k.next(fn("max", inner, k.load(buffer("X", "B", height, width, channels), b, y, x, c, pad=NEG_INF)))
        k.next(inner)
    k.store(outer, out("Y", "B", oh_, w.outputs(width), channels), b, oh, ow, c)
    return k.program()


def conv_relu_max_pool(height: int, width: int, c_size: int, oc_size: int) -> Program:
    """3x3 convolution, ReLU, 3x3 pool with stride 2: overlapping windows are made again."""
    ph_, pw_ = (height + 1) // 2, (width + 1) // 2
    b, ph, pw, oc, i, j, kh, kw, c = every = axes(b="B", ph=ph_, pw=pw_, oc=oc_size, i=3, j=3, kh=3, kw=3, c=c_size)
    k = kernel("conv_relu_max_pool", every, (b, ph, oc, pw), (i, j, kh, kw))
    listed = (b, ph, pw, oc)
    X, Wt = buffer("X", "B", height, width, c_size), weight("Wt", 3, 3, c_size, oc_size)
    bias = k.load(buffer("Bias", oc_size), oc)
    row, col = ph.index * 2 + i.index - 1, pw.index * 2 + j.index - 1
    with k.loop(i, (NEG_INF, listed)) as (best_rows,):
        with k.loop(j, best_rows) as (best,):
            with k.loop(kh, (bias, listed)) as (outer,):
                with k.loop(kw, outer) as (middle,):
                    with k.loop(c, middle) as (inner,):
                        x = k.load(X, b, row + kh.index - 1, col + kw.index - 1, c, pad=0.0)
                        k.next(k.dot(inner, x, k.load(Wt, kh, kw, c, oc), c))
                    k.next(inner)
                k.next(middle)
            inside = fn("and", within("ph", "i", height), within("pw", "j", width))
            k.next(fn("max", best, select(inside, relu(outer), NEG_INF)))
        k.next(best)
    k.store(best_rows, out("Y", "B", ph_, pw_, oc_size), b, ph, pw, oc)
    return k.program()


def within(pooled: str, tap: str, extent: int) -> Scalar:
    at = add(mul(const(2, I64), Position(pooled)), fn("sub", Position(tap), const(1, I64)))
    return fn("and", fn("le", 0, at), fn("lt", at, extent))


# ---- references ------------------------------------------------------------------------------------------------------
def taps_of(X: Array, w: Window, fill: float) -> Any:
    """(dy, dx, the input shifted to that tap) of every tap."""
    p = np.pad(X, ((0, 0), (w.pad, w.pad), (w.pad, w.pad), (0, 0)), constant_values=fill)
    oh, ow = w.outputs(X.shape[1]), w.outputs(X.shape[2])
    for dy in range(w.kernel):
        for dx in range(w.kernel):
            y, x = dy * w.dilation, dx * w.dilation
            yield dy, dx, p[:, y : y + (oh - 1) * w.stride + 1 : w.stride, x : x + (ow - 1) * w.stride + 1 : w.stride]


def np_conv(X: Array, Wt: Array, w: Window, groups: int = 1) -> Array:
    each = X.shape[3] // groups
    parts = np.split(Wt, groups, axis=3)
    return np.concatenate(
        [
            sum(x[..., g * each : (g + 1) * each] @ parts[g][dy, dx] for dy, dx, x in taps_of(X, w, 0.0))
            for g in range(groups)
        ],
        axis=3,
    )


def conv_reference(w: Window, groups: int = 1) -> Any:
    def reference(X: Array, Wt: Array, Bias: Array, R: Array | float = 0.0) -> dict[str, Array]:
        return {"Y": np.maximum(np_conv(X, Wt, w, groups) + Bias + R, 0)}

    return reference


def depthwise_reference(w: Window) -> Any:
    def reference(X: Array, Wt: Array) -> dict[str, Array]:
        return {"Y": np.maximum(sum(x * Wt[dy, dx] for dy, dx, x in taps_of(X, w, 0.0)), 0)}

    return reference


def pool_reference(w: Window) -> Any:
    return lambda X: {"Y": np.max([x for _, _, x in taps_of(X, w, -np.inf)], axis=0)}


def np_conv_pool(X: Array, Wt: Array, Bias: Array) -> dict[str, Array]:
    made = np.maximum(np_conv(X, Wt, SAME) + Bias, 0)
    return {"Y": np.max([x for _, _, x in taps_of(made, Window(3, 2), -np.inf)], axis=0)}


# ---- cases -----------------------------------------------------------------------------------------------------------
BATCHES = ({"B": 0}, {"B": 1}, {"B": 2})
PIXELS_GPU = (
    Schedule({"b": 1, "oh": 8, "ow": 8, "c": 32, "oc": 32, "g": 1}),
    Schedule({"b": 2, "oh": 2, "ow": 16, "c": 16, "oc": 16, "g": 2}),
)


def conv_schedule(width: int) -> tuple[Schedule, ...]:
    tile = {"b": 1, "oh": 1, "ow": width, "c": 4, "oc": 32, "g": 1}
    return (Schedule(tile, register=(7, 2), pack={"Wt": Packing(3, 32)}), Schedule({**tile, "ow": 5}, register=(5, 2)))


def cases() -> list[Case]:
    made = []
    gpu = (
        Schedule({"b": 1, "oh": 8, "ow": 16, "c": 16, "oc": 32}),
        Schedule({"b": 2, "oh": 2, "ow": 8, "c": 32, "oc": 64}),
    )
    for h, w, c, oc in ((14, 14, 32, 64), (9, 7, 17, 33), (1, 1, 1, 1)):
        made.append(
            Case(
                f"conv 3x3 + bias + residual + ReLU {h}x{w} {c}->{oc}",
                conv(h, w, c, oc),
                conv_reference(SAME),
                BATCHES,
                conv_schedule(w),
                gpu,
            )
        )
    for name, window in (
        ("stride 2", Window(3, 2)),
        ("dilation 2", Window(3, 1, 2, 2)),
        ("5x5 stride 3", Window(5, 3, 1, 1)),
        ("1x1", Window(1, 1, 1, 0)),
        ("1x1 stride 2", Window(1, 2, 1, 0)),
    ):
        made.append(
            Case(
                f"conv {name} 9x11 17->33",
                conv(9, 11, 17, 33, window, residual=False),
                conv_reference(window),
                BATCHES[1:],
                conv_schedule(window.outputs(11)),
                gpu,
            )
        )
    for groups, c, oc in ((2, 8, 17), (3, 1, 4), (4, 16, 16)):
        made.append(
            Case(
                f"conv groups={groups} {c}->{oc}",
                conv(7, 9, c, oc, SAME, groups),
                conv_reference(SAME, groups),
                BATCHES[1:],
                conv_schedule(9),
                PIXELS_GPU,
            )
        )
    heights = ({"B": 0, "H": 7}, {"B": 1, "H": 1}, {"B": 2, "H": 7}, {"B": 1, "H": 17})
    made.append(
        Case(
            "conv 3x3, run-time batch and height",
            conv_symbolic_height(9, 17, 33),
            lambda X, Wt: {"Y": np.maximum(np_conv(X, Wt, SAME), 0)},
            heights,
            conv_schedule(9),
            gpu,
        )
    )
    cpu = (
        Schedule({"b": 1, "oh": 1, "ow": 4, "c": 64}, unroll=("kh", "kw")),
        Schedule({"b": 1, "oh": 1, "ow": 3, "c": 16}),
    )
    for h, w, c, window in ((14, 14, 64, SAME), (9, 7, 33, SAME), (9, 7, 17, Window(3, 2)), (1, 1, 1, SAME)):
        made.append(
            Case(
                f"depthwise + ReLU {h}x{w} C={c} stride {window.stride}",
                depthwise(h, w, c, window),
                depthwise_reference(window),
                BATCHES,
                cpu,
                PIXELS_GPU,
            )
        )
    for h, w, c, window in (
        (14, 14, 64, Window(3, 2)),
        (9, 7, 33, Window(3, 2)),
        (8, 8, 7, Window(2, 2, 1, 0)),
        (7, 7, 1, Window(3, 1, 2, 1)),
    ):
        name = f"max-pool {window.kernel}x{window.kernel} stride {window.stride} {h}x{w} C={c}"
        made.append(Case(name, max_pool(h, w, c, window), pool_reference(window), BATCHES, cpu, PIXELS_GPU))
    nans = Case(
        "max-pool of NaN and infinities",
        max_pool(9, 7, 33, Window(3, 2)),
        pool_reference(Window(3, 2)),
        BATCHES[1:],
        cpu,
        PIXELS_GPU,
        specials,
    )
    made.append(nans)
    for up in (False, True):
        window = Window(3, 2)

        def pooled_rows(X: Array, up: bool = up) -> dict[str, Array]:
            bottom = 2 if up and X.shape[1] % 2 == 0 else 0  # the last window may hang over
            padded = np.pad(X, ((0, 0), (0, bottom), (0, 0), (0, 0)), constant_values=-np.inf)
            return {"Y": np.max([x for _, _, x in taps_of(padded, Window(3, 2), -np.inf)], axis=0)}

        name = f"max-pool, run-time height, rounded {'up' if up else 'down'}"
        sizes = ({"B": 1, "H": 1}, {"B": 2, "H": 7}, {"B": 1, "H": 8})
        program = pool_symbolic_height(9, 17, window, up)
        made.append(Case(name, program, pooled_rows, sizes, cpu, PIXELS_GPU))
    pooled = (Schedule({"b": 1, "ph": 8, "pw": 8, "c": 32, "oc": 64}),)
    for h, w, c, oc in ((14, 14, 16, 32), (9, 7, 17, 33)):
        made.append(
            Case(
                f"conv 3x3 + ReLU + max-pool {h}x{w}",
                conv_relu_max_pool(h, w, c, oc),
                np_conv_pool,
                BATCHES[1:],
                (Schedule({"b": 1, "ph": 1, "pw": 7, "c": 4, "oc": 32}, register=(7, 2), pack={"Wt": Packing(3, 32)}),),
                pooled,
            )
        )
    return made
