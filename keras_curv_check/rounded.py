"""Vectors in float64 with bounds of what they are off by, for layers too wide for balls.

A computed `a W + b` is off by at most

    γ_{n+2} (‖a‖ ‖W_j‖ + |b_j|) + ‖off‖ ‖W_j‖ + ‖ΔW‖ ‖a‖ + ‖Δb‖,

W_j the column and n the roundings of a sum, by Cauchy and Schwarz. σ and σ′ carry on what a number
is off by, times their own steepest slopes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from flint import arb

from keras_curv_check.activations import Sigma
from keras_curv_check.balls import floats
from keras_curv_check.balls import up as above
from keras_curv_check.blocks import Blocks
from keras_curv_check.rounding import UNIT, gamma, norms, up

_PIECE = 512  # of a long sum


@dataclasses.dataclass(frozen=True, eq=False)
class Rounded:
    """A vector in float64, with bounds of what it is off by; a row of balls.

    Attributes:
        middle: as computed, `(N,)`.
        off: bounds what each entry is off by, `(N,)`.
        far: bounds the l2 norm of that.
    """

    middle: np.ndarray
    off: np.ndarray
    far: float

    @classmethod
    def of(cls, vector: Sequence[arb]) -> Rounded:
        """Returns the vector with these balls inside."""
        middle, off = floats(vector)
        return cls(middle, off, float(norms(off)))

    def __iter__(self) -> Iterator[arb]:
        known = np.isfinite(self.middle) & np.isfinite(self.off)
        both = np.where(known, self.middle, 0.0), np.where(known, self.off, np.inf)
        return map(arb, *(part.tolist() for part in both))

    def times(self, other: Rounded) -> Rounded:
        """Returns the products, entry by entry."""
        middle, size = self.middle * other.middle, abs(self.middle)
        own = self.off * (abs(other.middle) + other.off) + UNIT * abs(middle)
        far = size.max() * other.far + norms(up(own, 4))
        return Rounded(middle, up(size * other.off + own, 8), float(up(far, 8)))

    def through(
        self, kernel: np.ndarray | Blocks, columns: np.ndarray, bias: np.ndarray, errors: Sequence
    ) -> Rounded:
        """Returns the product with a matrix, the norms of whose columns are given, plus a bias.

        Args:
            kernel, columns, bias: W, bounds of `‖W_j‖`, and b.
            errors: bounds of ‖ΔW‖ and ‖Δb‖.
        """
        size = norms(abs(self.middle) + self.off)
        product, terms = _product(self.middle, kernel)
        share = gamma(terms + 2)
        off = up((share * size + self.far) * columns + share * abs(bias), 8)
        folded = up(errors[0] * size + errors[1], 4)
        return Rounded(product + bias, up(off + folded), float(up(norms(off) + folded)))

    def derivative(self, order: int, sigma: Sigma) -> Rounded:
        """Returns σ, or σ′ of a smooth σ, of each entry."""
        if sigma.polynomials is None:
            return Rounded.of([sigma.value_and_first(ball)[order] for ball in self])
        z = self.middle
        piece = sum((z > kink for kink in sigma.kinks), np.zeros(z.shape, int))
        c0, c1, c2 = np.array(sigma.polynomials)[piece].T
        terms = (c1, 2.0 * c2 * z) if order else (c0, c1 * z, c2 * z * z)
        ends = (sigma.slopes, sigma.bends)[order]
        assert ends is not None
        steep, rounded = max(above(abs(end)) for end in ends), gamma(8) * sum(map(abs, terms))
        far = steep * self.far + norms(rounded)
        off = up(steep * self.off + rounded, 8)
        return Rounded(sum(terms, np.zeros(z.shape)), off, float(up(far, 8)))


def _product(a: np.ndarray, kernel: np.ndarray | Blocks) -> tuple[np.ndarray, int]:
    """Returns `a W`, and a bound of the roundings of each sum, which is made of shorter ones."""
    if isinstance(kernel, Blocks):
        return a @ kernel, kernel.terms
    parts = [slice(start, start + _PIECE) for start in range(0, len(a), _PIECE)]
    return np.sum([a[some] @ kernel[some] for some in parts], axis=0), _PIECE + len(parts)
