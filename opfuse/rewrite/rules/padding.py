"""Padding that a convolution or a pool can do itself.

    conv(pad(x)) -> conv(x) with larger pads

Only where the padding is what the window would see there anyway: zeros of a convolution, counted zeros of an average,
-inf of a maximum (or what no element is below, where each window has an element); on spatial axes alone, and never
negative (that cuts, and a window cannot).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
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


def _merged(m: Match, wanted: float, least: float = -math.inf) -> dict[str, Any] | Refusal:
    """The window's attributes with the pad's pads on top of its own; a value up to `least` does as well as `wanted`."""
    pad, window, rank = m.nodes["pad"], m.root, m.type("x").rank
    value = pad.attrs["value"]
    found = spatial_pads(pad, rank, rank - 1 if window.attrs["layout"] == "NHWC" else 1)
    if isinstance(found, Refusal):
        return found
    if value != wanted and not value <= least:
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


def least_element(graph: Graph, value: str, steps: int = 4) -> float:
    """What no element of a value is below (NaN aside); -inf where nothing is known."""
    node = graph.producer(value)
    if node is None or steps == 0:
        return -math.inf
    if node.op in _NOT_NEGATIVE:
        return 0.0
    if node.op == "clip" and len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        low = float(graph.constants[str(node.inputs[1])].item())
        high = graph.constants.get(str(node.inputs[2])) if len(node.inputs) > 2 and node.inputs[2] else np.array(np.inf)
        return -math.inf if high is None or math.isnan(low) else min(low, float(high.item()))
    if node.op in _KEEPS_ELEMENTS:
        return least_element(graph, str(node.inputs[0]), steps - 1)
    return -math.inf


_NOT_NEGATIVE = ("relu", "sigmoid", "abs", "exp", "softplus", "hard_sigmoid", "softmax", "reduce_l1", "reduce_l2")
_KEEPS_ELEMENTS = ("transpose", "reshape", "slice", "max_pool", "gather", "expand", "repeat")


def _each_has_an_element(m: Match) -> bool:
    """Pads on either side, the window's own too, are shorter than the window."""
    pad, window, rank = m.nodes["pad"], m.root, m.type("x").rank
    found = spatial_pads(pad, rank, rank - 1 if window.attrs["layout"] == "NHWC" else 1)
    if isinstance(found, Refusal) or any(d != 1 for d in window.attrs["dilations"]):
        return False
    sums = (a + b for a, b in zip((*found[0], *found[1]), window.attrs["pads"], strict=True))
    return all(p < k for p, k in zip(sums, (*window.attrs["kernel"], *window.attrs["kernel"]), strict=True))


def _relu_pad_pool(pads: tuple[int, ...], value: float, front: str = "relu") -> Callable[[Graph], list[str]]:
    def build(g: Graph) -> list[str]:
        front_value = g.emit(front, [g.add_input("x", TensorType(DType.F32, (1, 1, 5)))])
        padded = g.emit("pad", [front_value], {"pads": pads, "mode": "constant", "value": value})
        return [g.emit("max_pool", [padded], {**_POOL, "pads": (0, 0), "kernel": (3,), "strides": (2,)})]

    return build


@rule("exact", op("max_pool", _pad, name="pool"), tell=True, cases=(
    _case("pool", (0, 0, 1, 0, 0, 1), value=-math.inf), _case("pool", (0, 0, 1, 0, 0, 1), False, value=0.0),
    _case("pool", (0, 0, 1, 0, 0, 1), False, {"ceil_mode": True}, value=-math.inf),
    Case(build=_relu_pad_pool((0, 0, 1, 0, 0, 1), 0.0)), Case(build=_relu_pad_pool((0, 0, 2, 0, 0, 2), -1.0)),
    Case(build=_relu_pad_pool((0, 0, 1, 0, 0, 1), 0.5), fires=False),
    Case(build=_relu_pad_pool((0, 0, 3, 0, 0, 0), 0.0), fires=False),
    Case(build=_relu_pad_pool((0, 0, 1, 0, 0, 1), 0.0, "tanh"), fires=False),
))  # fmt: skip
def pad_into_max_pool(m: Match, to: Draft) -> str | Refusal:
    """max_pool(pad(x, -inf)) -> max_pool(x) with larger pads; so for a pad of 0 where no element is below 0"""
    least = least_element(m.graph, m["x"]) if _each_has_an_element(m) else -math.inf
    attrs = _merged(m, -math.inf, least)
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
