"""Padding that a convolution or a pool can do itself.

    conv(pad(x)) -> conv(x) with larger pads

Only where the padding is what the window would see there anyway: zeros of a convolution, -inf of a maximum, counted
zeros of an average; on spatial axes alone, and never negative (that cuts, and a window cannot).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Node
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, Maybe, Var, op
from opfuse.rewrite.rule import Case, Rule, declared, rule

x, w, b = Var("x"), Var("w"), Var("b")
_pad = op("pad", x, name="pad")


def spatial_pads(node: Node, rank: int, channel: int) -> tuple[tuple[int, ...], tuple[int, ...]] | Refusal:
    """Begins and ends of the spatial axes of a constant, growing pad."""
    pads, spatial = node.attrs["pads"], [k for k in range(1, rank) if k != channel]
    if node.attrs["mode"] != "constant":
        return Refusal("pad-mode", f"the mode of {node.name} is {node.attrs['mode']}", {"mode": node.attrs["mode"]})
    if any(not isinstance(p, int) or p < 0 for p in pads):
        return Refusal("negative-pad", f"{node.name} cuts: its pads are {tuple(pads)}", {"pads": tuple(pads)})
    if any(pads[k] or pads[rank + k] for k in (0, channel)):
        return Refusal("pads-channels", f"{node.name} pads batch or channels: {tuple(pads)}", {"pads": tuple(pads)})
    return tuple(pads[k] for k in spatial), tuple(pads[rank + k] for k in spatial)


def _merged(m: Match, wanted: float) -> dict[str, Any] | Refusal:
    """The window's attributes with the pad's pads on top of its own."""
    pad, window, rank = m.nodes["pad"], m.root, m.type("x").rank
    value = pad.attrs["value"]
    found = spatial_pads(pad, rank, rank - 1 if window.attrs["layout"] == "NHWC" else 1)
    if isinstance(found, Refusal):
        return found
    if value != wanted:
        return Refusal(
            "pad-value", f"{pad.name} pads with {value}, the window sees {wanted} there", {"value": str(value)}
        )
    if window.attrs.get("ceil_mode"):
        return Refusal("ceil-mode", "with ceil_mode the last window depends on which pads are the window's own")
    own, count = window.attrs["pads"], rank - 2
    pads = tuple(a + b for a, b in zip((*found[0], *found[1]), own, strict=True))
    return {**window.attrs, "pads": pads[:count] + pads[count:]}


_W = np.ones((1, 1, 2), np.float32)
_CONV = {"strides": (1,), "dilations": (1,), "pads": (0, 1), "group": 1}
_POOL = {"kernel": (2,), "strides": (1,), "dilations": (1,), "pads": (0, 1)}


def _case(
    name: str, pads: tuple[int, ...], fires: bool = True, window: dict[str, Any] | None = None, **pad: Any
) -> Case:
    attrs = {"pad": {"pads": pads, **pad}, name: {**(_CONV if name == "conv" else _POOL), **(window or {})}}
    return Case({"x": (1, 1, 4), "w": _W, "b": None}, attrs, fires, spellings=1)


@rule(
    "exact",
    op("conv", _pad, w, Maybe(b), name="conv"),
    tell=True,
    cases=(
        Case(
            {"x": (1, 1, 4), "w": _W, "b": np.ones(1, np.float32)}, {"pad": {"pads": (0, 0, 1, 0, 0, 1)}, "conv": _CONV}
        ),
        Case(
            {"x": (1, 1, 4), "w": _W, "b": np.ones(1, np.float32)},
            {"pad": {"pads": (0, 0, 1, 0, 0, 1)}, "conv": _CONV},
            shown=("pad",),
        ),
        Case(
            {"x": (1, 3, 2), "w": np.ones((2, 2, 1), np.float32), "b": None},
            {"pad": {"pads": (0, 1, 0, 0, 0, 0)}, "conv": {**_CONV, "layout": "NHWC"}},
            spellings=1,
        ),
        _case("conv", (0, 0, -1, 0, 0, 1), False),
        _case("conv", (0, 0, 1, 0, 0, 1), False, value=5.0),
        _case("conv", (0, 0, 1, 0, 0, 1), False, mode="reflect"),
        _case("conv", (1, 0, 1, 0, 0, 1), False),
    ),
)
def pad_into_conv(m: Match, to: Draft) -> str | Refusal:
    """conv(pad(x, 0)) -> conv(x) with larger pads"""
    attrs = _merged(m, 0.0)
    return (
        attrs
        if isinstance(attrs, Refusal)
        else to.emit("conv", m["x"], m["w"], m["b"] if m.has("b") else None, **attrs)
    )


@rule("exact", op("max_pool", _pad, name="pool"), tell=True, cases=(
    _case("pool", (0, 0, 1, 0, 0, 1), value=-math.inf), _case("pool", (0, 0, 1, 0, 0, 1), False, value=0.0),
    _case("pool", (0, 0, 1, 0, 0, 1), False, {"ceil_mode": True}, value=-math.inf),
))  # fmt: skip
def pad_into_max_pool(m: Match, to: Draft) -> str | Refusal:
    """max_pool(pad(x, -inf)) -> max_pool(x) with larger pads"""
    attrs = _merged(m, -math.inf)
    return attrs if isinstance(attrs, Refusal) else to.emit("max_pool", m["x"], **attrs)


@rule("exact", op("avg_pool", _pad, name="pool"), tell=True, cases=(
    _case("pool", (0, 0, 1, 0, 0, 1), window={"count_include_pad": True}),
    _case("pool", (0, 0, 1, 0, 0, 1), False, {"count_include_pad": False}),
))  # fmt: skip
def pad_into_average_pool(m: Match, to: Draft) -> str | Refusal:
    """avg_pool(pad(x, 0)) -> avg_pool(x) with larger pads, where the average counts its pads"""
    if not m.root.attrs["count_include_pad"]:
        return Refusal("not-counted", "the average does not count its own pads, but counts those of the pad operator")
    attrs = _merged(m, 0.0)
    return attrs if isinstance(attrs, Refusal) else to.emit("avg_pool", m["x"], **attrs)


RULES: tuple[Rule, ...] = declared(globals())
