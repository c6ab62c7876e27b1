"""Upper bounds of spectral norms, each with a proof: a Cholesky factor and its residual.

For any matrix R and any λ, `λI − G = R Rᵀ + E` gives `λ_max(G) ≤ λ + ‖E‖`, as R Rᵀ has no negative
eigenvalue. R is LAPACK's Cholesky factor in float64, which nobody need trust but for its backward
error: what G, the shift and R Rᵀ are off by is bounded by the rounding of sums of products in any
order, `|fl(Σ) − Σ| ≤ γ_n Σ|·|` (Higham 2002, section 3.1 and theorem 10.3).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, up
from keras_curv_check.files import Map
from keras_curv_check.rounding import UNIT, NotProvedError, gamma, norms
from keras_curv_check.rounding import up as raised

_SLACKS = [10.0**power for power in range(-13, -5)]  # above a guess, relative


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """A real matrix whose distance from a float64 one is at most `error` in spectral norm."""

    middle: np.ndarray
    error: arb

    @classmethod
    def of(cls, one: Map) -> Matrix:
        """Returns the kernel of a dense map."""
        return cls(one.kernel, arb(one.kernel_error))

    @property
    def frobenius(self) -> arb:
        """Bounds the Frobenius norm of `middle` from above."""
        return arb(float(norms(self.middle.ravel())))

    def times(self, other: Matrix) -> Matrix:
        """Returns the product with another matrix."""
        sizes = self.frobenius, other.frobenius
        terms = self.middle.shape[1]
        tiny = arb(2.0) ** -900 * self.middle.size * other.middle.shape[1]
        rounded = gamma(terms + 2) * sizes[0] * sizes[1] + tiny
        carried = self.error * (sizes[1] + other.error) + sizes[0] * other.error
        return Matrix(self.middle @ other.middle, arb(up(rounded + carried)))

    def scaled_rows(self, factors: np.ndarray) -> Matrix:
        """Returns `diag(factors)` times this matrix."""
        largest = float(np.abs(factors).max())
        error = largest * (self.error + gamma(2) * self.frobenius) + arb(2.0) ** -900
        return Matrix(factors[:, None] * self.middle, arb(up(error)))

    def norm(self, weights: np.ndarray | None = None) -> arb:
        """Bounds `‖V diag(√weights)‖` from above, V this matrix; without weights, ‖V‖.

        Raises:
            NotProvedError: no factorisation succeeds.
        """
        weights = np.ones(self.middle.shape[1]) if weights is None else weights
        if not np.isfinite(weights).all():
            raise NotProvedError("a bound overflows")
        roots = np.sqrt(weights) * (1.0 + 4.0 * UNIT)
        used = np.flatnonzero((weights > 0.0) & self.middle.any(axis=0))
        error = self.error * float(roots.max(initial=0.0))
        if not len(used):
            return error
        scaled = self.middle[:, used] * roots[used]
        # VᵀV has the same largest eigenvalue as V Vᵀ.
        bound = _largest_eigenvalue(scaled.T if len(scaled) > len(used) else scaled)
        return arb(up(bound.sqrt() + error))

    def largest(self, weights: np.ndarray) -> arb:
        """Bounds `λ_max(V diag(weights) Vᵀ)⁺` from above, weights of any sign.

        Raises:
            NotProvedError: no factorisation succeeds.
        """
        size = float(np.abs(weights).max(initial=0.0))
        if not size < 1e100:
            raise NotProvedError("a bound overflows")
        used = np.flatnonzero(weights)
        bound = _largest_eigenvalue(self.middle[:, used], weights[used]) if size else ZERO
        off = size * self.error * (2 * self.norm() + self.error) if self.error > 0 else ZERO
        return arb(up(bound.max(ZERO) + off))


def _largest_eigenvalue(scaled: np.ndarray, weights: np.ndarray | None = None) -> arb:
    """Bounds `λ_max(A diag(weights) Aᵀ)` from above, each entry of A off by one rounding."""
    largest = max(float(scaled.max()), -float(scaled.min()))
    sizes = np.ones(scaled.shape[1]) if weights is None else np.abs(weights)
    if not largest < 1e100:
        raise NotProvedError("a matrix has entries beyond 1e100")
    if largest <= 1e-100:  # as of curvature that is 0 but for a rounding
        return 2.0 * Matrix(scaled, ZERO).frobenius ** 2 * float(sizes.max())
    # A matrix times itself, turned round, takes half of the time.
    gram, side = (scaled if weights is None else scaled * weights) @ scaled.T, len(scaled)
    values = np.linalg.eigvalsh(gram)
    for slack in _SLACKS:
        level, shifted = float(values[-1] + slack * np.abs(values).max()), -gram
        shifted.flat[:: side + 1] += level
        try:
            factor = np.linalg.cholesky(shifted)
        except np.linalg.LinAlgError:
            continue
        return level + _rounded(scaled, sizes, shifted, factor)
    raise NotProvedError("no Cholesky factorisation succeeds")


def _rounded(scaled: np.ndarray, sizes: np.ndarray, shifted: np.ndarray, factor: np.ndarray) -> arb:
    """Bounds what the rounding of A, of A diag(weights) Aᵀ, the shift and the factor may hide.

    By `|A| diag(sizes) |A|ᵀ` and `|R| |R|ᵀ`, whose norms are at most their traces.
    """
    side, terms = scaled.shape
    squares = np.einsum("ij,ij->j", scaled, scaled) @ sizes, np.vdot(factor, factor)
    of_gram, of_factor = (arb(float(raised(one, side * (side + terms)))) for one in squares)
    of_shift = arb(2.0 * UNIT) * float(np.abs(shifted.diagonal()).max())
    tiny = arb(2.0) ** -740 * side * (side + terms)  # a product of three numbers within 1e100
    return gamma(terms + 8) * of_gram + gamma(side + 1) * of_factor + of_shift + tiny
