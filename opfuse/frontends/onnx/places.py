"""Where a resized axis reads: ONNX's coordinate transformations, and the taps of linear and cubic interpolation.

    place(Stretch(4, 8, Fraction(2)), "half_pixel", 3)      -> 5/4
    taps(stretch, "half_pixel", CUBIC(-0.75), Border())     -> places [4, 8] and weights [4, 8]

Places are exact fractions: a source of 14.5 is not 14.499999. Weights are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opfuse.ir.dims import Dim, floordiv

HALF = Fraction(1, 2)
WHOLE = (Fraction(0), Fraction(1))  # all of an axis
MODES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip


@dataclass(frozen=True)
class Stretch:
    """One axis: old and new extent, the factor that places are computed with, and the part that a crop takes."""

    extent: Dim
    size: Dim
    scale: Fraction | None  # None where the extent is symbolic and sizes were given
    crop: tuple[Fraction, Fraction] = WHOLE

    @property
    def repeats(self) -> int | None:
        """The whole number of times that each element stands; None for other factors."""
        if self.scale is not None:
            whole = int(self.scale)
            return whole if whole == self.scale and whole >= 1 and self.extent * whole == self.size else None
        whole_dim = floordiv(self.size, self.extent)
        return whole_dim if isinstance(whole_dim, int) and whole_dim * self.extent == self.size else None

    @property
    def numbers(self) -> tuple[int, int, Fraction] | None:
        """Extent, size and scale; None where they are not known yet."""
        if not isinstance(self.extent, int) or not isinstance(self.size, int):
            return None
        return self.extent, self.size, self.scale if self.scale is not None else Fraction(self.size, self.extent)


def place(s: Stretch, mode: str, x: int) -> Fraction:
    """Where output position x lies on the input's axis: the specification's `coordinate_transformation_mode`."""
    assert s.numbers is not None
    extent, size, scale = s.numbers
    match mode:
        case "asymmetric":
            return x / scale
        case "align_corners":
            return Fraction(0) if size == 1 else Fraction(x * (extent - 1), size - 1)
        case "tf_half_pixel_for_nn":
            return (x + HALF) / scale
        case "pytorch_half_pixel" if size == 1:
            return Fraction(0)
        case "half_pixel_symmetric":
            margin = Fraction(extent, 2) * (1 - size / (scale * extent))
            return margin + (x + HALF) / scale - HALF
        case "tf_crop_and_resize":
            start, end = s.crop
            if size == 1:
                return (start + end) * (extent - 1) / 2
            return start * (extent - 1) + x * (end - start) * Fraction(extent - 1, size - 1)
        case _:
            return (x + HALF) / scale - HALF


# ---- taps ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kernel:
    """An interpolation: the weight of an element at a distance, up to `reach` elements away."""

    reach: int
    weight: Callable[[float], float]


LINEAR = Kernel(1, lambda t: max(0.0, 1.0 - abs(t)))


def cubic(a: float) -> Kernel:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), with a free parameter a."""

    def weight(t: float) -> float:
        t = abs(t)
        if t <= 1:
            return ((a + 2) * t - (a + 3)) * t * t + 1
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a if t < 2 else 0.0

    return Kernel(2, weight)


@dataclass(frozen=True)
class Border:
    """`exclude`: places outside get no weight, the others share it. `antialias`: the kernel widens when shrinking."""

    exclude: bool = False
    antialias: bool = False


def taps(s: Stretch, mode: str, kernel: Kernel, border: Border) -> tuple[np.ndarray, np.ndarray]:
    """Places i64 and weights f64, both [taps, size]; places outside stand at the edge."""
    assert s.numbers is not None
    extent, size, scale = s.numbers
    narrow = min(float(scale), 1.0) if border.antialias else 1.0
    reach = math.ceil(kernel.reach / narrow)
    offsets = range(1 - reach, reach + 1)
    places = np.zeros((len(offsets), size), np.int64)
    weights = np.zeros((len(offsets), size))
    for x in range(size):
        at = place(s, mode, x)
        floor = math.floor(at)
        for k, o in enumerate(offsets):
            places[k, x] = floor + o
            weights[k, x] = kernel.weight(float(floor + o - at) * narrow)
    if border.exclude:
        weights[(places < 0) | (places >= extent)] = 0.0
    if border.exclude or border.antialias:
        weights /= weights.sum(axis=0)
    used = [k for k in range(len(offsets)) if np.any(weights[k])] or [0]
    return np.clip(places, 0, extent - 1)[used], weights[used]


def outside(s: Stretch, mode: str) -> np.ndarray:
    """Which positions lie outside of the input: bools [size]."""
    assert s.numbers is not None
    extent, size, _ = s.numbers
    return np.array([not 0 <= place(s, mode, x) <= extent - 1 for x in range(size)])
