"""Interval arithmetic, entry by entry and up to rounding, for arrays and for tensors."""

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
    """Least and largest product of a number in `[a[0], a[1]]` and one in `[b[0], b[1]]`.

    Args:
        a, b: of shapes that broadcast.
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
    """Least product of a number and one in an interval: `product` with `[factor, factor]`, sooner.

    Example:
        >>> least_multiple(np.array([2.0, -2.0]), (-1.0, 3.0))
        array([-2., -6.])
    """
    return np.minimum(factor * interval[0], factor * interval[1])


def image(centre: Any, half: Any, matrix: Any) -> tuple[Any, Any]:
    """Centre and half-widths of `a W` for all a with `|a − centre| ≤ half`: `c W` and `r |W|`.

    Exact for this box. It is the positive and the negative part of W apart, in other words.

    Args:
        centre, half: `(n, N)`.
        matrix: `(N, m)`, or `(n, N, m)`, one an example.

    Returns:
        Two arrays `(n, m)`.
    """
    return batched_product(centre, matrix), batched_product(half, abs(matrix))


def batched_product(vectors: Any, matrix: Any) -> Any:
    """`(n, N)` with `(N, m)`, or with `(n, N, m)`, each row with its example's: `(n, m)`."""
    if len(matrix.shape) == 2:
        return vectors @ matrix
    return (vectors[:, None] @ matrix)[:, 0]


def outward(centre: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[centre − reach, centre + reach]`, rounded outward; the whole line where that overflows."""
    reach = up(reach + 2.0 * UNIT * np.abs(centre))
    low, high = centre - reach, centre + reach
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
