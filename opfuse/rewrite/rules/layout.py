"""Channels-last inside: convolutions, and the pools and norms next to them, work on [N, spatial..., C].

    conv(x, w) -> transpose(conv[NHWC](transpose(x), transpose(w)))

The transposes that come with it cancel each other, move on through what does not care (`transposes`), or stay where
the model meets its own inputs and outputs, whose layout is never changed. Weights are transposed once, as constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, Maybe, Var, op
from opfuse.rewrite.rule import Case, Rule, declared, rule

x, w, b = Var("x"), Var("w"), Var("b")


def to_last(rank: int) -> tuple[int, ...]:
    """The order of axes that takes [N, C, spatial...] to [N, spatial..., C]."""
    return (0, *range(2, rank), 1)


def to_second(rank: int) -> tuple[int, ...]:
    """The way back."""
    return (0, rank - 1, *range(1, rank - 1))


def _first(attribute: object) -> bool:
    return attribute == "NCHW"


def _conv_attrs(rank: int, **changes: Any) -> dict[str, Any]:
    return {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (1,) * (2 * rank), **changes}


_W = np.linspace(-1, 1, 54, dtype=np.float32)


@rule(
    "exact",
    op("conv", x, w, Maybe(b), name="conv", layout=_first),
    cases=(
        Case(
            {"x": (2, 3, 5, 4), "w": _W.reshape(2, 3, 3, 3), "b": np.ones(2, np.float32)},
            {"conv": _conv_attrs(2, layout="NCHW")},
        ),
        Case(
            {"x": (2, 6, 5), "w": _W.reshape(6, 3, 3), "b": np.ones(6, np.float32)},
            {"conv": _conv_attrs(1, group=2, layout="NCHW")},
        ),
        Case({"x": (1, 2, 3, 3, 3), "w": (2, 2, 1, 1, 1), "b": (2,)}, {"conv": _conv_attrs(3, layout="NCHW")}),
        Case({"x": (2, 5, 4), "w": (3, 4, 2), "b": (2,)}, {"conv": _conv_attrs(1, layout="NHWC")}, fires=False),
    ),
)
def conv_to_channels_last(m: Match, to: Draft) -> str:
    """conv(x, w) -> transpose(conv[NHWC](transpose(x), transpose(w)))"""
    rank = m.result.rank
    weights = to.transpose(m["w"], (*range(2, rank), 1, 0))  # [out, in, kernel...] -> [kernel..., in, out]
    attrs = {**m.root.attrs, "layout": "NHWC"}
    out = to.emit("conv", to.transpose(m["x"], to_last(rank)), weights, m["b"] if m.has("b") else None, **attrs)
    return to.transpose(out, to_second(rank))


_transposed = op("transpose", x, name="transpose")
_POOL = {"kernel": (2, 2), "strides": (2, 1), "dilations": (1, 1), "pads": (1, 0, 0, 1), "layout": "NCHW"}
_VECTOR = np.array([1, 2, 3], np.float32)
_TURN = {"transpose": {"perm": (0, 3, 1, 2)}}


def _is_channels_last(m: Match) -> Refusal | None:
    perm = tuple(m.nodes["transpose"].attrs["perm"])
    return (
        None
        if perm == to_second(len(perm))
        else Refusal("other-order", f"perm {perm} does not bring the channels forward")
    )


@rule("exact", op(("max_pool", "avg_pool"), _transposed, name="pool", layout=_first), when=(_is_channels_last,), cases=(
    Case({"x": (1, 5, 4, 3)}, {"pool": _POOL, **_TURN}),
    Case({"x": (1, 5, 4, 3)}, {"pool": _POOL, "transpose": {"perm": (0, 1, 2, 3)}}, fires=False),
))  # fmt: skip
def pool_to_channels_last(m: Match, to: Draft) -> str:
    """pool(transpose(x)) -> transpose(pool[NHWC](x))"""
    out = to.emit(m.root.op, m["x"], of=m.root, **{**m.root.attrs, "layout": "NHWC"})
    return to.transpose(out, to_second(m.result.rank), of=m.nodes["transpose"])


_vectors = [Var(n) for n in ("scale", "bias", "mean", "var")]


@rule(
    "exact",
    op("batch_norm", _transposed, *_vectors, name="norm", layout=_first),
    when=(_is_channels_last,),
    cases=(
        Case(
            {"x": (1, 2, 4, 3), **{n: _VECTOR for n in ("scale", "bias", "mean", "var")}},
            {"norm": {"layout": "NCHW"}, **_TURN},
        ),
    ),
)
def batch_norm_to_channels_last(m: Match, to: Draft) -> str:
    """batch_norm(transpose(x)) -> transpose(batch_norm[NHWC](x))"""
    out = to.emit("batch_norm", m["x"], *m.root.inputs[1:], of=m.root, **{**m.root.attrs, "layout": "NHWC"})
    return to.transpose(out, to_second(m.result.rank), of=m.nodes["transpose"])


@rule(
    "exact",
    op("instance_norm", _transposed, *_vectors[:2], name="norm", layout=_first),
    when=(_is_channels_last,),
    cases=(Case({"x": (2, 5, 4, 3), "scale": _VECTOR, "bias": _VECTOR}, {"norm": {"layout": "NCHW"}, **_TURN}),),
)
def instance_norm_to_channels_last(m: Match, to: Draft) -> str:
    """instance_norm(transpose(x)) -> transpose(instance_norm[NHWC](x))"""
    out = to.emit("instance_norm", m["x"], *m.root.inputs[1:], of=m.root, **{**m.root.attrs, "layout": "NHWC"})
    return to.transpose(out, to_second(m.result.rank), of=m.nodes["transpose"])


RULES: tuple[Rule, ...] = declared(globals())
