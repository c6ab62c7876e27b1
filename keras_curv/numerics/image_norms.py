"""Upper bounds on ‖W v‖ for many v by products in float32, in half the time of float64.

A bound on the norm needs only some B with `WᵀW ≼ BᵀB + ηI`, as then

    ‖W v‖² ≤ ‖B v‖² + η ‖v‖².

B is the triangle of a QR factorisation of W, rounded to float32. Its errors do not matter, because
η is found afterwards as a norm of `WᵀW − BᵀB` in float64,

    η = ‖fl(WᵀW − BᵀB)‖_F + γ_{D+N+16} (‖W‖_F² + ‖B‖_F²)        (W: D × N).

Products with B are sums of partial sums over at most `TERMS` entries each. With the rounding of v
their error is at most `γ ‖|B|‖ ‖v‖`, γ of float32 for `min(N, TERMS) + ⌈N / TERMS⌉ + 4`
roundings.

Reference: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from keras_curv.numerics.rounding import FLOAT32_UNIT, TINY, gamma, norm_bound, up
from keras_curv.numerics.spectral import Gram, spectral_norm_bound

_HEIGHT = 64  # rows of B at a time, whose nonzero part begins at the diagonal
TERMS = 256  # terms of a partial sum in float32
_ROOM = 20  # norms of v may be this many powers of two away from 1
_FLUSHED = 2.0**-55  # above what underflows of such norms, for up to 2¹⁶ rows of B


class ImageNorms:
    """Upper bounds on ‖W v‖ for many v; see above.

    Args:
        kernel: W, `(in, out)`, finite.

    Example:
        >>> norms = ImageNorms(np.array([[3.0], [4.0]]))
        >>> norms.bounds(np.array([[[2.0]]]), np.array([[2.0]])).round(3)
        array([[10.]])
    """

    def __init__(self, kernel: np.ndarray):
        gram = Gram(kernel)
        self._power = gram.power
        triangle = np.asarray(np.linalg.qr(np.ldexp(kernel, -gram.power), mode="r"), np.float32)
        factor = triangle.astype(np.float64)
        summed = float(np.trace(gram.matrix)) + norm_bound(factor) ** 2
        summed = up(summed, sum(kernel.shape))
        difference = norm_bound(gram.matrix - factor.T @ factor)
        self._excess = up(difference + gamma(sum(kernel.shape) + 16) * summed + TINY, 16)
        terms = min(kernel.shape[1], TERMS) - -kernel.shape[1] // TERMS + 4
        self._error = up(gamma(terms, FLOAT32_UNIT) * spectral_norm_bound(np.abs(factor)))
        if not keeps_digits(triangle):
            self._error = math.inf
        self._rounding = 1.0 + 0.5 * gamma(_HEIGHT + 16, FLOAT32_UNIT)  # the root of a square's
        self._parts = list(_parts(triangle))

    def bounds(self, rows: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Returns upper bounds on ‖W v‖.

        Args:
            rows: v, `(n, m, N)`.
            size: bounds on ‖v‖, `(n, m)`.

        Returns:
            `(n, m)`; infinite or NaN where anything overflows.
        """
        power = math.frexp(float(size.max(initial=0.0)))[1]
        if abs(power) > _ROOM:
            rows, size = np.ldexp(rows, -power), np.ldexp(size, -power)
        else:
            power = 0
        vectors = rows.reshape(-1, rows.shape[-1]).astype(np.float32)
        square = np.zeros(len(vectors))
        for first, *others in self._parts:
            start, part = first
            image = vectors[:, start : start + len(part)] @ part
            for start, part in others:
                image += vectors[:, start : start + len(part)] @ part
            square += np.einsum("mi,mi->m", image, image)
        image_size = np.sqrt(square).reshape(size.shape) * self._rounding + _FLUSHED
        largest = np.hypot(image_size + self._error * size, math.sqrt(self._excess) * size)
        return np.ldexp(up(largest, 16), self._power + power) + TINY


def keeps_digits(matrix: np.ndarray) -> bool:
    """Returns whether float32 products keep the digits of their factors, as this module assumes;
    they do not where a library rounds factors to bfloat16 first."""
    one = np.eye(len(matrix), dtype=np.float32)
    products = one @ matrix, (matrix.T @ one).T
    return all(np.array_equal(product, matrix) for product in products)


def _parts(triangle: np.ndarray) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Yields, for each block of rows of B, its factors: pairs of the first entry of v to multiply
    and a part of Bᵀ."""
    for top in range(0, len(triangle), _HEIGHT):
        rows = triangle[top : top + _HEIGHT]
        starts = range(top, triangle.shape[1], TERMS)
        yield [(start, np.ascontiguousarray(rows[:, start : start + TERMS].T)) for start in starts]
