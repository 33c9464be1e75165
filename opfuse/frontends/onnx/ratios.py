"""Dimensions divided by numbers: shape arithmetic that goes through floats.

    Cast(S, float) -> Div by 2.0 -> Floor -> Cast to int      S -> Ratio(S, 1) -> Ratio(S, 2) -> Ratio(S//2, 1) -> S//2

Exporters write this for interpolation and floor division. Only what is exact in float32 is followed: constants with
short binary fractions (2.0, 0.5, 0.375), and a quotient by another number only into a rounding. The float32 product of
10 and 0.7 is 7, the exact one is below it, and no shape may depend on which is meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opfuse.ir.dims import Dim, SymbolicDim, ceildiv, floordiv

_LARGEST_DENOMINATOR = 1024
_LARGEST = 2**24  # float32 holds all integers up to here


@dataclass(frozen=True)
class Ratio:
    """numerator / denominator in lowest terms, denominator > 0."""

    numerator: Dim
    denominator: int

    def require_exact(self) -> None:
        """ValueError for thirds and the like, which floats round: what is computed from them is not known."""
        if self.denominator & (self.denominator - 1):
            raise ValueError(f"{self.numerator} / {self.denominator} is rounded")

    def __add__(self, other: Ratio) -> Ratio:
        self.require_exact()
        other.require_exact()
        total = self.numerator * other.denominator + other.numerator * self.denominator
        return ratio(total, self.denominator * other.denominator)

    def __neg__(self) -> Ratio:
        return Ratio(-self.numerator, self.denominator)

    def __sub__(self, other: Ratio) -> Ratio:
        return self + -other

    def __mul__(self, other: Ratio) -> Ratio:
        self.require_exact()
        other.require_exact()
        return ratio(self.numerator * other.numerator, self.denominator * other.denominator)

    def __truediv__(self, other: Ratio) -> Ratio:
        """ZeroDivisionError for 0, ValueError for a divisor that is symbolic and does not divide."""
        self.require_exact()
        other.require_exact()
        top, bottom = self.numerator * other.denominator, other.numerator * self.denominator
        if isinstance(bottom, int):
            return ratio(top, bottom)
        quotient = floordiv(top, bottom)
        if quotient * bottom != top:
            raise ValueError(f"{top} / {bottom} is no polynomial")
        return Ratio(quotient, 1)

    def floor(self) -> Ratio:
        return Ratio(floordiv(self.numerator, self.denominator), 1)

    def ceil(self) -> Ratio:
        return Ratio(ceildiv(self.numerator, self.denominator), 1)


def ratio(numerator: Dim, denominator: int) -> Ratio:
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    if denominator == 0:
        raise ZeroDivisionError("division by zero")
    factors = [c for _, c in numerator.terms] if isinstance(numerator, SymbolicDim) else [numerator]
    common = math.gcd(denominator, *factors)
    return Ratio(floordiv(numerator, common), denominator // common)


def ratios_of(array: np.ndarray) -> np.ndarray | None:
    """A small float constant as ratios; None where a number is not finite, large, or no short binary fraction."""
    out = np.empty(array.shape, object)
    for k, number in enumerate(array.reshape(-1).tolist()):
        if not math.isfinite(number) or abs(number) > _LARGEST:
            return None
        fraction = Fraction(number)
        if fraction.denominator > _LARGEST_DENOMINATOR:
            return None
        out.reshape(-1)[k] = Ratio(fraction.numerator, fraction.denominator)
    return out
