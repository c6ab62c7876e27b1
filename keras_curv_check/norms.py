"""Upper bounds of spectral norms, each with a proof: a Cholesky factor and its residual.

For any matrix R and any λ, `λI − G = R Rᵀ + E` gives `λ_max(G) ≤ λ + ‖E‖`, as R Rᵀ has no negative
eigenvalue. R is LAPACK's Cholesky factor in float64, which nobody need trust but for its backward
error: what G, the shift and R Rᵀ are off by is bounded by the rounding of sums of products in any
order, `|fl(Σ) − Σ| ≤ γ_n Σ|·|` (Higham 2002, section 3.1 and theorem 10.3).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, up
from keras_curv_check.blocks import Blocks, lengths
from keras_curv_check.files import Map
from keras_curv_check.rounding import UNIT, NotProvedError, gamma, norms, require_moderate
from keras_curv_check.rounding import up as raised

_SLACKS = [10.0**power for power in range(-13, -5)]  # above a guess, relative
_LARGE, _KRYLOV = 2048, 80  # a side from which Lanczos guesses, and its steps
_LARGE_SLACKS = [10.0**power for power in range(-12, 0)]
_MOST_SIDE = 2**13  # of a sparse matrix, the shorter one


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """A real matrix whose distance from a float64 one is at most `error` in spectral norm.

    Attributes:
        middle: the latter, an array or `Blocks`.
        error: see above.
    """

    middle: Any
    error: arb

    @classmethod
    def of(cls, one: Map) -> Matrix:
        """Returns the kernel of a map."""
        return cls(one.kernel, arb(one.kernel_error))

    @functools.cached_property
    def frobenius(self) -> arb:
        """Bounds the Frobenius norm of `middle` from above."""
        return arb(float(norms(self.middle.ravel())))

    def times(self, other: Matrix) -> Matrix:
        """Returns the product with another matrix."""
        sizes = self.frobenius, other.frobenius
        own = self.middle
        terms = own.T.terms if isinstance(own, Blocks) else own.shape[1]
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
        error = self.error * float(roots.max(initial=0.0))
        if isinstance(self.middle, Blocks):
            return arb(up(_of_blocks(self.middle, weights).sqrt() + error))
        used = np.flatnonzero((weights > 0.0) & self.middle.any(axis=0))
        if not len(used):
            return error
        scaled = self.middle[:, used] * roots[used]
        # VᵀV has the same largest eigenvalue as V Vᵀ.
        bound = _largest_eigenvalue(scaled.T if len(scaled) > len(used) else scaled)
        return arb(up(bound.sqrt() + error))

    def largest(self, weights: np.ndarray) -> arb:
        """Bounds `λ_max(V diag(weights) Vᵀ)⁺` from above, weights of any sign, V dense.

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
    gram = (scaled if weights is None else scaled * weights) @ scaled.T
    squares = np.einsum("ij,ij->j", scaled, scaled) @ sizes
    return _proved(gram, float(raised(squares, scaled.size)), scaled.shape[1])


def _of_blocks(kernel: Blocks, weights: np.ndarray) -> arb:
    """Bounds `λ_max(W diag(weights) Wᵀ)` from above, weights ≥ 0, of a sparse W: section 11.

    If W has fewer columns than rows, by WᵀW with the roots of the weights on both sides.
    """
    columns = lengths(kernel.T)
    squares = float(raised(weights @ columns**2, len(columns)))
    require_moderate(columns, weights, squares)
    if min(kernel.shape) > _MOST_SIDE:
        raise NotProvedError(f"there is no bound of a sparse map of {kernel.shape}")
    if squares <= 1e-200:
        return arb(squares)
    if kernel.long_rows:
        roots = np.sqrt(weights)
        gram, terms = kernel.gram(np.ones(kernel.shape[0])) * roots * roots[:, None], kernel.terms
    else:
        gram, terms = kernel.gram(weights), kernel.T.terms
    return _proved(gram, squares, terms)


def _proved(gram: np.ndarray, squares: float, terms: int) -> arb:
    """Bounds the largest eigenvalue of `A diag(weights) Aᵀ` from above.

    What rounding may hide of it, and of the factor, is within `|A| diag|weights| |A|ᵀ` and
    `|R| |R|ᵀ`, whose norms are at most their traces.

    Args:
        gram: as computed.
        squares: bounds the first trace, `Σ |weight| ‖A_i‖²`, A_i the columns.
        terms: of each sum.
    """
    side, (values, slacks) = len(gram), _values(gram)
    for slack in slacks:
        level, shifted = float(values[-1] + slack * np.abs(values).max()), -gram
        shifted.flat[:: side + 1] += level
        try:
            factor = np.linalg.cholesky(shifted)
        except np.linalg.LinAlgError:
            continue
        of_factor = gamma(side + 1) * arb(
            float(raised(float(np.vdot(factor, factor)), side * side))
        )
        of_shift = arb(2.0 * UNIT) * float(np.abs(shifted.diagonal()).max())
        tiny = arb(2.0) ** -740 * side * (side + terms)  # a product of three numbers within 1e100
        return level + gamma(terms + 8) * arb(squares) + of_factor + of_shift + tiny
    raise NotProvedError("no Cholesky factorisation succeeds")


def _values(gram: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Returns about the outer eigenvalues, ascending, and how far above to look; no bounds."""
    if len(gram) <= _LARGE:
        return np.linalg.eigvalsh(gram), _SLACKS
    basis = np.zeros((0, len(gram)))
    v = np.random.default_rng(0).standard_normal(len(gram))
    for _ in range(_KRYLOV):
        size = np.linalg.norm(v)
        for _ in range(2):
            v = v - (basis @ v) @ basis
        left = np.linalg.norm(v)
        if not left > 1e-10 * size:  # the rest is rounding
            break
        basis = np.concatenate([basis, v[None] / left])
        v = gram @ basis[-1]
    return np.linalg.eigvalsh(basis @ gram @ basis.T), _LARGE_SLACKS
