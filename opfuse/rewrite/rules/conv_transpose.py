"""Transposed convolutions become convolutions, with no zeros between the elements of the input.

    conv_transpose(x, w), strides s  ->  y = conv(x, w'), of s outputs for each channel; their places woven together

Along one axis, y[s*q + r] sums w[t] * x[i] over the taps with s*i + d*t - pad = s*q + r. For each phase r these are the
taps of one residue, and i - q is the same for all q: a small convolution for every phase ("sub-pixel convolution", Shi
et al. 2016). All phases are the output channels of one convolution over the taps that any of them reads; a phase has
zero weights at the others. A kernel of size s makes a plain matrix product.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import ceildiv
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Maybe, Var, op
from opfuse.rewrite.rule import Case, Operand, Rule, declared, rule
from opfuse.rewrite.rules.layout import to_last, to_second

x, w, b = Var("x"), Constant("w"), Constant("b")


@dataclass(frozen=True)
class Weave:
    """One axis: the convolution that makes its phases. `taps[r]` are pairs: tap of the kernel, place in the new one."""

    stride: int
    first: int  # x[q + first] is the first element that position q reads
    size: int  # elements that it reads
    taps: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def of(kernel: int, stride: int, dilation: int, pad: int) -> Weave:
        """Phase r reads x[q + (r + pad - d*t) / s] with tap t, wherever that is whole."""
        reads = [
            [(t, (r + pad - dilation * t) // stride) for t in range(kernel) if (r + pad - dilation * t) % stride == 0]
            for r in range(stride)
        ]
        offsets = [e for phase in reads for _, e in phase]
        first = min(offsets)
        taps = tuple(tuple((t, e - first) for t, e in phase) for phase in reads)
        return Weave(stride, first, max(offsets) - first + 1, taps)


def woven_weights(w: np.ndarray, group: int, axes: tuple[Weave, ...]) -> np.ndarray:
    """[C, M/group, kernel...] -> [taps..., C/group, group * phases.. * M/group].

    The phases stand before the channels of a group, so that the channels of one place are neighbours.
    """
    c, per_group = w.shape[:2]
    parts = np.moveaxis(w.reshape(group, c // group, per_group, *w.shape[2:]), (0, 1, 2), (-2, -3, -1))
    out = np.zeros((*(a.size for a in axes), c // group, group, *(a.stride for a in axes), per_group), w.dtype)
    for phase in itertools.product(*(range(a.stride) for a in axes)):
        for chosen in itertools.product(*(a.taps[r] for a, r in zip(axes, phase, strict=True))):
            taps, places = tuple(t for t, _ in chosen), tuple(e for _, e in chosen)
            at: tuple[Any, ...] = (*places, slice(None), slice(None), *phase)
            out[at] = parts[taps]
    return out.reshape(*out.shape[: len(axes) + 1], -1)


def _attrs(rank: int, **changes: Any) -> dict[str, Any]:
    zero = (0,) * rank
    defaults = {"strides": (2,) * rank, "dilations": (1,) * rank, "pads": zero * 2, "output_padding": zero, "group": 1}
    return {"conv": {**defaults, **changes}}


def _case(shape: tuple[int, ...], weight: tuple[int, ...], bias: int = 0, **changes: Any) -> Case:
    array = np.linspace(-1, 1, int(np.prod(weight)), dtype=np.float32).reshape(weight)
    given: dict[str, Operand] = {"x": shape, "w": array, "b": np.arange(bias, dtype=np.float32) if bias else None}
    return Case(given, _attrs(len(shape) - 2, **changes), spellings=2)


@rule("reassociating", op("conv_transpose", x, w, Maybe(b), name="conv"), cases=(
    _case((2, 3, 4, 5), (3, 4, 2, 2), 4),
    _case((1, 3, 4, 5), (3, 2, 3, 3), pads=(1, 1, 1, 1), output_padding=(1, 1)),
    _case((1, 3, 4, 5), (3, 2, 4, 4), 2, pads=(1, 1, 1, 1)),
    _case((1, 4, 3, 5), (4, 2, 3, 2), 4, group=2, strides=(3, 2), pads=(0, 1, 2, 0)),
    _case((2, 2, 6), (2, 3, 4), 3, strides=(3,), dilations=(2,), pads=(0, 2)),
    _case((1, 2, 5, 4), (2, 3, 3, 3), strides=(1, 1), dilations=(1, 2), pads=(1, 0, 1, 1)),
    _case((1, 2, 5), (2, 3, 1), strides=(3,), output_padding=(1,)),
    _case((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), 1),
))  # fmt: skip
def conv_transpose_to_conv(m: Match, to: Draft) -> str | Refusal:
    """conv_transpose(x, w, b) -> conv of all phases, then its channels put at their places"""
    attrs, (n, _, *spatial) = m.root.attrs, m.type("x").shape
    weights, rank, group = m.array("w"), len(spatial), attrs["group"]
    if weights.size == 0 or any(d == 0 for d in m.result.shape):
        return Refusal("empty", "there is nothing to compute")
    pads = attrs["pads"]
    axes = tuple(map(Weave.of, weights.shape[2:], attrs["strides"], attrs["dilations"], pads[:rank]))
    channels = weights.shape[1] * group
    # Positions of a phase that the output has; the last one reads up to `first + size - 1` further on.
    counts = [ceildiv(d, a.stride) for d, a in zip(m.result.shape[2:], axes, strict=True)]
    before = [-a.first for a in axes]
    after = [(q - 1) + a.first + a.size - d for q, a, d in zip(counts, axes, spatial, strict=True)]
    if not all(isinstance(p, int) for p in after):
        return Refusal("symbolic", "how far the windows reach beyond the input is not known yet")
    kernel = woven_weights(weights, group, axes)
    window = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (*before, *after), "group": group}
    bias = np.tile(m.array("b").reshape(group, 1, -1), (1, kernel.shape[-1] // channels, 1)) if m.has("b") else None
    out = to.emit("conv", to.transpose(m["x"], to_last(rank + 2)), to.constant(kernel),
                  to.constant(bias.reshape(-1)) if bias is not None else None, layout="NHWC", **window)  # fmt: skip
    if any(a.stride != 1 for a in axes):
        out = _woven(to, out, axes, group)
    whole = to.shape(out)
    result = (n, *m.result.shape[2:], channels)
    if whole != result:
        out = to.emit("slice", out, starts=(0,) * (rank + 2), stops=result, steps=(1,) * (rank + 2))
    return to.transpose(out, to_second(rank + 2))


def _weights_that_vary(g: Graph) -> list[str]:
    operands = [g.add_input(n, TensorType(DType.F32, s)) for n, s in (("x", (1, 4, 3, 5)), ("w", (4, 2, 3, 2)))]
    return [g.emit("conv_transpose", operands, _attrs(2, group=2, strides=(3, 2), pads=(0, 1, 2, 0))["conv"])]


@rule("reassociating", op("conv_transpose", x, Var("w"), Maybe(Var("b")), name="conv"), cases=(
    Case(build=_weights_that_vary), Case({"x": (1, 2, 5), "w": (2, 3, 2), "b": (3,)}, _attrs(1), spellings=1),
    _case((1, 2, 5), (2, 3, 2)),
))  # fmt: skip
def expand_conv_transpose(m: Match, to: Draft) -> tuple[str, ...] | Refusal:
    """conv_transpose(x, w) -> conv(x with zeros set between its elements, w reversed): for weights that vary"""
    return to.expansion(m.root)


def _woven(to: Draft, y: str, axes: tuple[Weave, ...], group: int) -> str:
    """[N, q.., group * (phases.. * M/group)] -> [N, (q * phase).., M]."""
    n, *places, _ = to.shape(y)
    rank = len(axes)
    each = to.shape(y)[-1] // (group * int(np.prod([a.stride for a in axes])))
    y = to.reshape(y, (n, *places, group, *(a.stride for a in axes), each))
    order = [0, *(k for d in range(rank) for k in (1 + d, 2 + rank + d)), 1 + rank, 2 + 2 * rank]
    y = to.transpose(y, order)
    return to.reshape(y, (n, *(q * a.stride for q, a in zip(places, axes, strict=True)), group * each))


RULES: tuple[Rule, ...] = declared(globals())
