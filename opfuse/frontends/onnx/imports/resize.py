"""Resize: nearest neighbours, linear and cubic interpolation, with every coordinate transformation of ONNX.

    Resize(x [N, C, H, W], scales=[1, 1, 2, 2])              -> repeat(x, repeats=(1, 1, 2, 2))
    Resize(x [1, 1, 20], sizes=[1, 1, 6])                    -> gather(x, [1, 5, 8, 11, 15, 18], axis=2)
    Resize(x [N, C, 4, 4], sizes=[N, C, 7, 9], mode=linear)  -> resample(x, places, weights; axes=(3,)), then (2,)

A whole factor of nearest neighbours works for symbolic extents too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.frontends.onnx.places import (
    HALF,
    LINEAR,
    MODES,
    WHOLE,
    Border,
    Kernel,
    Stretch,
    cubic,
    outside,
    place,
    taps,
)
from opfuse.ir.dims import Dim, floordiv
from opfuse.ir.ops.resampling import MOST_TAPS
from opfuse.ir.types import DType

_ROUND: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


# ---- nearest neighbours ----------------------------------------------------------------------------------------------
def _nearest(call: Call, x: str, axes: Sequence[Stretch], mode: str, rounding: str) -> str:
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
        if factor is None and _moves(stretch, mode):
            extent, size, _ = _numbers(call, axis, stretch)
            places = [_ROUND[rounding](place(stretch, mode, k)) for k in range(size)]
            indices = np.clip(np.array(places, np.int64), 0, extent - 1)
            x = call.emit("gather", [x, call.graph.add_constant(indices)], axis=axis)
    return x


def _moves(s: Stretch, mode: str) -> bool:
    """Is the axis resized at all?"""
    return s.size != s.extent or (mode == "tf_crop_and_resize" and s.crop != WHOLE)


def _numbers(call: Call, axis: int, s: Stretch) -> tuple[int, int, Fraction]:
    if s.numbers is None:
        call.needs_shapes(f"its places along axis {axis} depend on the extent {s.extent}")
    return s.numbers


# ---- interpolation ---------------------------------------------------------------------------------------------------
def _interpolated(call: Call, x: str, axes: Sequence[Stretch], mode: str, kernel: Kernel, border: Border) -> str:
    """Axis after axis: elements of rows are gathered where the other axes are shortest."""
    kind = call.dtype(x)
    x = x if kind.is_float else call.cast(x, DType.F32)
    weights_type = DType.F64 if kind is DType.F64 else DType.F32
    moving = {d: _numbers(call, d, stretch) for d, stretch in enumerate(axes) if _moves(stretch, mode)}
    last = len(axes) - 1
    shrinking = {d for d, (extent, size, _) in moving.items() if d != last and size < extent}
    for axis in sorted(moving, key=lambda d: (d not in shrinking, d != last, d)):
        places, weights = taps(axes[axis], mode, kernel, border)
        if len(places) > MOST_TAPS:
            call.unsupported(f"axis {axis} reads {len(places)} elements for each of its own: more than {MOST_TAPS}")
        x = _resample(call, x, [(axis, places, weights.astype(weights_type.numpy))])
    return x if kind.is_float else call.cast(x, kind)


def _resample(call: Call, x: str, tables: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> str:
    constants = [call.graph.add_constant(t) for _, places, weights in tables for t in (places, weights)]
    return call.emit("resample", [x, *constants], axes=tuple(axis for axis, _, _ in tables))


def _extrapolated(call: Call, y: str, axes: Sequence[Stretch], mode: str) -> str:
    """Positions that a crop puts outside of the input get the value that the node names."""
    rank, value = len(axes), call.scalar(call.float_attribute("extrapolation_value", 0.0), y)
    for axis, stretch in enumerate(axes):
        mask = outside(stretch, mode) if stretch.numbers is not None else np.zeros(1, np.bool_)
        if mask.any():
            shape = tuple(len(mask) if d == axis else 1 for d in range(rank))
            y = call.emit("where", [call.graph.add_constant(mask.reshape(shape)), value, y])
    return y


# ---- extents ---------------------------------------------------------------------------------------------------------
def _by_scales(shape: Sequence[Dim], scales: Sequence[float]) -> list[Stretch]:
    if len(scales) != len(shape):
        raise InvalidNode(f"it has {len(scales)} scales for a tensor of rank {len(shape)}")
    out = []
    for d, number in zip(shape, scales, strict=True):
        if not 0 < number < math.inf:
            raise InvalidNode(f"the scale {number} is not a positive number")
        scale = meant(number)
        # ONNX Runtime multiplies in float32; in exact terms 10 * 0.7 of float32 is below 7.
        size = math.floor(np.float32(d) * np.float32(number)) if isinstance(d, int) else floordiv(
            d * scale.numerator, scale.denominator)  # fmt: skip
        out.append(Stretch(d, size, scale))
    return out


LARGEST_DENOMINATOR = 4096  # of factors that a model's author means: 0.6, 2.5, 160 / 225


def meant(scale: float) -> Fraction:
    """The simple fraction that float32 rounds to the scale, where there is one: 3/5 for 0.60000002384.

    The third position at 0.6 is element 5, not the 4.9999998 of the rounded factor: runtimes that compute in float32
    come to 5 as well.
    """
    simple = Fraction(scale).limit_denominator(LARGEST_DENOMINATOR)
    return simple if np.float32(simple) == np.float32(scale) else Fraction(scale)


def _by_sizes(shape: Sequence[Dim], sizes: Sequence[Dim]) -> list[Stretch]:
    if len(sizes) != len(shape):
        raise InvalidNode(f"it has {len(sizes)} sizes for a tensor of rank {len(shape)}")
    return [Stretch(d, n, Fraction(n, d) if isinstance(n, int) and isinstance(d, int) and d else None)
            for d, n in zip(shape, sizes, strict=True)]  # fmt: skip


def _by_policy(call: Call, shape: Sequence[Dim], sizes: Sequence[Dim], policy: str) -> list[Stretch]:
    """One factor for all axes: the largest that keeps within the sizes, or the smallest that reaches them."""
    if policy not in ("not_larger", "not_smaller"):
        raise InvalidNode(f"its attribute 'keep_aspect_ratio_policy' is {policy!r}")
    pairs = [(d, n) for d, n in zip(shape, sizes, strict=True) if isinstance(d, int) and isinstance(n, int) and d]
    if len(pairs) != len(shape):
        call.needs_shapes("keep_aspect_ratio_policy needs extents that are known")
    scale = (min if policy == "not_larger" else max)(Fraction(n, d) for d, n in pairs)
    return [Stretch(d, math.floor(d * scale + HALF), scale) for d, _ in pairs]


def upsample(call: Call) -> str:
    """Upsample-7 and -9, and Resize-10: scales only, places `asymmetric`, rounded down."""
    if call.version == 7:
        found = call.attribute("scales")
        scales = list(found.floats) if found is not None else []
    else:
        scales = call.constant(1).reshape(-1).tolist()
    return _resized(call, _by_scales(call.shape(call.input(0)), scales), "asymmetric", "floor")


def resize(call: Call) -> str:
    shape = call.shape(call.input(0))
    given = call.ints_attribute("axes")
    axes = list(range(len(shape))) if given is None else [call.axis(a, len(shape)) for a in given]
    part = [shape[a] for a in axes]
    policy = call.string_attribute("keep_aspect_ratio_policy", "stretch")
    if call.has(2) and call.shape(call.input(2)) != (0,):
        stretches = _by_scales(part, call.constant(2).reshape(-1).tolist())
    elif policy == "stretch":
        stretches = _by_sizes(part, call.dims(3))
    else:
        stretches = _by_policy(call, part, call.dims(3), policy)
    mode = call.string_attribute("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        crop = [meant(float(v)) for v in call.constant(1).reshape(-1)]
        if len(crop) != 2 * len(axes):
            raise InvalidNode(f"its region has {len(crop)} numbers for {len(axes)} axes")
        stretches = [replace(s, crop=(crop[k], crop[len(axes) + k])) for k, s in enumerate(stretches)]
    every = [Stretch(d, d, Fraction(1)) for d in shape]
    for axis, stretch in zip(axes, stretches, strict=True):
        every[axis] = stretch
    return _resized(call, every, mode, call.string_attribute("nearest_mode", "round_prefer_floor"))


def _resized(call: Call, axes: Sequence[Stretch], places: str, rounding: str) -> str:
    x, mode = call.input(0), call.string_attribute("mode", "nearest")
    if places not in MODES:
        call.unsupported(f"coordinate_transformation_mode {places!r} is not supported")
    border = Border(bool(call.int_attribute("exclude_outside", 0)), bool(call.int_attribute("antialias", 0)))
    if mode == "nearest":
        y = _nearest(call, x, axes, places, rounding)
    elif mode in ("linear", "bilinear"):
        y = _interpolated(call, x, axes, places, LINEAR, border)
    elif mode in ("cubic", "bicubic"):
        y = _interpolated(call, x, axes, places, cubic(call.float_attribute("cubic_coeff_a", -0.75)), border)
    else:
        raise InvalidNode(f"its attribute 'mode' is {mode!r}")
    return _named(call, x, _extrapolated(call, y, axes, places) if places == "tf_crop_and_resize" else y)


def _named(call: Call, x: str, y: str) -> str:
    return call.emit("identity", [x]) if x == y else y


_EMITS = ("repeat", "gather", "resample", "where", "cast", "identity")
IMPORTS: tuple[Import, ...] = (
    Import("Upsample", (7, 9), upsample, _EMITS),
    Import("Resize", (10,), upsample, _EMITS),
    Import("Resize", (11, 13, 18, 19), resize, _EMITS),
)  # fmt: skip
