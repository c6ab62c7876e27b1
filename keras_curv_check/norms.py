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

from keras_curv_check.balls import ZERO, up, ups
from keras_curv_check.files import Map
from keras_curv_check.rounding import UNIT, NotProvedError, gamma, norms

_SLACKS = [0.0, *(10.0**power for power in range(-15, -5))]  # above a guess, relative


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
        roots = ups([arb(weight).sqrt() for weight in weights.tolist()])
        used = np.flatnonzero((roots > 0.0) & self.middle.any(axis=0))
        error = self.error * float(roots.max(initial=0.0))
        if not len(used):
            return error
        part = self.middle[:, used]
        scaled = part[part.any(axis=1)] * roots[used]
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


def _largest_eigenvalue(scaled: np.ndarray, weights: np.ndarray | float = 1.0) -> arb:
    """Bounds `λ_max(A diag(weights) Aᵀ)` from above, each entry of A off by one rounding."""
    largest = float(np.abs(scaled).max())
    if not largest < 1e100:
        raise NotProvedError("a matrix has entries beyond 1e100")
    if largest <= 1e-100:  # as of curvature that is 0 but for a rounding
        return 2.0 * Matrix(scaled, ZERO).frobenius ** 2 * float(np.abs(weights).max())
    gram, side = (scaled * weights) @ scaled.T, len(scaled)
    values = np.linalg.eigvalsh(gram)
    for slack in _SLACKS:
        level = float(values[-1] + slack * np.abs(values).max())
        shifted = level * np.eye(side) - gram
        try:
            factor = np.linalg.cholesky(shifted)
        except np.linalg.LinAlgError:
            continue
        return level + _rounded(scaled * np.sqrt(np.abs(weights)), shifted, factor)
    raise NotProvedError("no Cholesky factorisation succeeds")


def _rounded(scaled: np.ndarray, shifted: np.ndarray, factor: np.ndarray) -> arb:
    """Bounds what the rounding of A, of A Aᵀ, of the shift and of the factor may hide.

    A stands for `A diag(√|weights|)`.
    """
    side, terms = scaled.shape
    squares = Matrix(scaled, ZERO).frobenius ** 2
    of_factor = gamma(side + 1) * Matrix(factor, ZERO).frobenius ** 2
    of_shift = arb(2.0 * UNIT) * float(np.abs(shifted.diagonal()).max())
    tiny = arb(2.0) ** -740 * side * (side + terms)  # a product of three numbers within 1e100
    return gamma(terms + 8) * squares + of_factor + of_shift + tiny
