"""Vectors of balls: numbers that contain the real ones for certain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flint import arb, ctx

ctx.prec = 96  # bits of midpoints
ZERO = arb(0)
Vector = list[arb]


def vector(array: np.ndarray) -> Vector:
    """Returns an array of one axis as exact balls."""
    return [arb(number) for number in array.tolist()]


def dot(one: Sequence[arb], other: Sequence[arb]) -> arb:
    """Returns the product of two vectors."""
    return sum((a * b for a, b in zip(one, other, strict=True)), ZERO)


def norm(one: Sequence[arb]) -> arb:
    """Returns the l2 norm of a vector; where it may be 0, an upper bound."""
    square = dot(one, one)
    return square.sqrt() if square >= 0 else arb(up(square)).sqrt()


def within(error: arb) -> arb:
    """Returns the ball around 0 with everything whose absolute value is at most `error`."""
    return arb(0, up(error)) if not error.is_zero() else ZERO


def up(number: arb) -> float:
    """Returns a float that is certainly not below a number; infinite where there is none."""
    found = float(number.upper())
    if math.isnan(found):
        return math.inf
    return found if arb(found) >= number else math.nextafter(found, math.inf)


def ups(numbers: Sequence[arb]) -> np.ndarray:
    """Returns floats that are certainly not below these numbers."""
    return np.array([up(number) for number in numbers])


def floats(balls: Sequence[arb]) -> tuple[np.ndarray, np.ndarray]:
    """Returns floats in the middle of balls, and bounds of how far the real numbers are off."""
    middle = np.array([float(ball.mid()) for ball in balls])
    return middle, ups([abs(b - arb(m)) for b, m in zip(balls, middle.tolist(), strict=True)])


def ends_of(ends: tuple[arb, arb] | None) -> tuple[float, float]:
    """Returns an interval of floats around this one; NaN for none."""
    return (-up(-ends[0]), up(ends[1])) if ends else (math.nan, math.nan)
