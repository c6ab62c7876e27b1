"""Entrywise interval arithmetic, up to rounding, for arrays and for tensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from keras_curv.errors import InputError
from keras_curv.numerics.rounding import UNIT, up

Interval = tuple[Any, Any]  # least and largest: numbers, arrays or tensors


def require_interval(low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns both ends as arrays of one shape; InputError unless low ≤ high everywhere."""
    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    wrong = ~(low <= high)
    if wrong.any():
        raise InputError(
            "an interval needs low ≤ high and no NaN. "
            f"Received: [{low[wrong][0]:g}, {high[wrong][0]:g}]"
        )
    return low, high


def product(a: Interval, b: Interval, library: ModuleType = np) -> Interval:
    """Returns the least and largest product of numbers in `[a[0], a[1]]` and `[b[0], b[1]]`.

    Args:
        a, b: intervals of shapes that broadcast.
        library: `np`, or `tf` for tensors.

    Example:
        >>> product((-1.0, 2.0), (3.0, 4.0))
        (np.float64(-4.0), np.float64(8.0))
    """
    least = most = a[0] * b[0]
    for other in (a[0] * b[1], a[1] * b[0], a[1] * b[1]):
        least, most = library.minimum(least, other), library.maximum(most, other)
    return least, most


def least_multiple(factor: Any, interval: Interval) -> np.ndarray:
    """Returns the least product of `factor` and a number in the interval, faster than `product`.

    Example:
        >>> least_multiple(np.array([2.0, -2.0]), (-1.0, 3.0))
        array([-2., -6.])
    """
    return np.minimum(factor * interval[0], factor * interval[1])


def image(centre: Any, half: Any, matrix: Any) -> tuple[Any, Any]:
    """Returns centre `c W` and half-widths `r |W|` of `a W` over all a with `|a − c| ≤ r`.

    They are exact for this box, as if the positive and negative parts of W were taken separately.

    Args:
        centre, half: c and r, `(n, N)`.
        matrix: W, `(N, m)`, or `(n, N, m)`, one for each example.

    Returns:
        Two arrays `(n, m)`.
    """
    return batched_product(centre, matrix), batched_product(half, abs(matrix))


def batched_product(vectors: Any, matrix: Any) -> Any:
    """Multiplies `(n, N)` with `(N, m)`, or each row with its matrix of `(n, N, m)`: `(n, m)`."""
    if len(matrix.shape) == 2:
        return vectors @ matrix
    return (vectors[:, None] @ matrix)[:, 0]


def outward(centre: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[centre − reach, centre + reach]` rounded outward; the whole line on overflow."""
    reach = up(reach + 2.0 * UNIT * np.abs(centre))
    low, high = centre - reach, centre + reach
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
