"""Resize by nearest neighbour: whole factors repeat elements, other factors gather at constant places.

    Resize(x [N, C, H, W], scales=[1, 1, 2, 2])   -> repeat(x, repeats=(1, 1, 2, 2))
    Resize(x [1, 1, 20], sizes=[1, 1, 6])         -> gather(x, [1, 5, 8, 11, 15, 18], axis=2)

A whole factor works for symbolic extents too. Places are exact fractions: a source of 14.5 is not 14.499999.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import Dim, floordiv

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Stretch:
    """One axis: old and new extent, and the factor that places are computed with."""

    extent: Dim
    size: Dim
    scale: Fraction | None  # None where the extent is symbolic and sizes were given

    @property
    def repeats(self) -> int | None:
        """The whole number of times that each element stands; None for other factors."""
        if self.scale is not None:
            whole = int(self.scale)
            return whole if whole == self.scale and whole >= 1 and self.extent * whole == self.size else None
        whole_dim = floordiv(self.size, self.extent)
        return whole_dim if isinstance(whole_dim, int) and whole_dim * self.extent == self.size else None


_ROUND: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _place(mode: str, x: int, extent: int, size: int, scale: Fraction) -> Fraction:
    """Where output position x lies on the input's axis: the specification's `coordinate_transformation_mode`."""
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return Fraction(0) if size == 1 else Fraction(x * (extent - 1), size - 1)
    if mode == "tf_half_pixel_for_nn":
        return (x + HALF) / scale
    if mode == "pytorch_half_pixel" and size == 1:
        return Fraction(0)
    return (x + HALF) / scale - HALF


_MODES = ("asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")


def _nearest(call: Call, x: str, axes: Sequence[Stretch], mode: str, rounding: str) -> str:
    if mode not in _MODES:
        call.unsupported(f"coordinate_transformation_mode {mode!r} is not supported")
    if rounding not in _ROUND:
        raise InvalidNode(f"its attribute 'nearest_mode' is {rounding!r}")
    # Of a whole factor s, position s*k + j lies within half an element of k, or j/s above it: all s are element k.
    repeating = (mode, rounding) == ("asymmetric", "floor") or (
        mode in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    )
    factors = [s.repeats if repeating else None for s in axes]
    if any(f is not None and f > 1 for f in factors):
        x = call.emit("repeat", [x], repeats=tuple(f or 1 for f in factors))
    for axis, (stretch, factor) in enumerate(zip(axes, factors, strict=True)):
        if factor is None and stretch.size != stretch.extent:
            x = _gather(call, x, axis, stretch, mode, rounding)
    return x


def _gather(call: Call, x: str, axis: int, s: Stretch, mode: str, rounding: str) -> str:
    if not isinstance(s.extent, int) or not isinstance(s.size, int):
        call.unsupported(f"its places along axis {axis} depend on the extent {s.extent}; give the shapes of the inputs")
    scale = s.scale if s.scale is not None else Fraction(s.size, s.extent)
    places = [_ROUND[rounding](_place(mode, k, s.extent, s.size, scale)) for k in range(s.size)]
    indices = np.clip(np.array(places, np.int64), 0, s.extent - 1)
    return call.emit("gather", [x, call.graph.add_constant(indices)], axis=axis)


def _by_scales(shape: Sequence[Dim], scales: Sequence[float]) -> list[Stretch]:
    if len(scales) != len(shape):
        raise InvalidNode(f"it has {len(scales)} scales for a tensor of rank {len(shape)}")
    out = []
    for d, number in zip(shape, scales, strict=True):
        if not 0 < number < math.inf:
            raise InvalidNode(f"the scale {number} is not a positive number")
        scale = Fraction(number)
        # ONNX Runtime multiplies in float32; in exact terms 10 * 0.7 of float32 is below 7.
        size = math.floor(np.float32(d) * np.float32(number)) if isinstance(d, int) else floordiv(
            d * scale.numerator, scale.denominator)  # fmt: skip
        out.append(Stretch(d, size, scale))
    return out


def _by_sizes(shape: Sequence[Dim], sizes: Sequence[Dim]) -> list[Stretch]:
    if len(sizes) != len(shape):
        raise InvalidNode(f"it has {len(sizes)} sizes for a tensor of rank {len(shape)}")
    return [Stretch(d, n, Fraction(n, d) if isinstance(n, int) and isinstance(d, int) and d else None)
            for d, n in zip(shape, sizes, strict=True)]  # fmt: skip


def upsample(call: Call) -> str:
    """Upsample-7 and -9, and Resize-10: scales only, places `asymmetric`, rounded down."""
    x = call.input(0)
    if call.version == 7:
        found = call.attribute("scales")
        scales = list(found.floats) if found is not None else []
    else:
        scales = call.constant(1).reshape(-1).tolist()
    if (mode := call.string_attribute("mode", "nearest")) != "nearest":
        call.unsupported(f"mode {mode!r} is not supported")
    return _named(call, x, _nearest(call, x, _by_scales(call.shape(x), scales), "asymmetric", "floor"))


def resize(call: Call) -> str:
    x = call.input(0)
    if (mode := call.string_attribute("mode", "nearest")) != "nearest":
        call.unsupported(f"mode {mode!r} is not supported")
    if call.string_attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        call.unsupported("keep_aspect_ratio_policy is not supported")
    shape = call.shape(x)
    given = call.ints_attribute("axes")
    axes = list(range(len(shape))) if given is None else [call.axis(a, len(shape)) for a in given]
    part = [shape[a] for a in axes]
    has_scales = call.has(2) and call.shape(call.input(2)) != (0,)
    stretches = _by_scales(part, call.constant(2).reshape(-1).tolist()) if has_scales else _by_sizes(part, call.dims(3))
    every = [Stretch(d, d, Fraction(1)) for d in shape]
    for axis, stretch in zip(axes, stretches, strict=True):
        every[axis] = stretch
    places = call.string_attribute("coordinate_transformation_mode", "half_pixel")
    rounding = call.string_attribute("nearest_mode", "round_prefer_floor")
    return _named(call, x, _nearest(call, x, every, places, rounding))


def _named(call: Call, x: str, y: str) -> str:
    return call.emit("identity", [x]) if x == y else y


_EMITS = ("repeat", "gather", "identity")
IMPORTS: tuple[Import, ...] = (
    Import("Upsample", (7, 9), upsample, _EMITS),
    Import("Resize", (10,), upsample, _EMITS),
    Import("Resize", (11, 13, 18, 19), resize, _EMITS),
)  # fmt: skip
