"""Unproved estimates of the distance to `Q ≤ 0` for a quadratic Q with Q(0) > 0.

By the S-lemma half the square of the distance is `max_η min_δ ½‖δ‖² + ηQ(δ)` over 0 ≤ η ≤ 1/κ,
even if Q is not convex. The minimiser δ lies in the Krylov space of P = ∇²Q that starts at
b = ∇Q(0); a few of its dimensions are enough.

Reference: Gould, Lucidi, Roma & Toint, "Solving the trust-region subproblem using the Lanczos
method", SIAM J. Optim. 9 (1999).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_curv.network.affine import Affine
from keras_curv.numerics import krylov
from keras_curv.numerics.rounding import CURVATURE_FLOOR

_BISECTIONS = 60


class Quadratic(NamedTuple):
    """Quadratics `Q(δ) = constant + linear·δ + ½ Σ_i diagonal_i (W_i·δ)²`, one for each margin."""

    constant: np.ndarray  # `(rows,)`
    linear: np.ndarray  # `(rows, dim)`
    diagonal: np.ndarray  # `(rows, width)`, taken as exact
    constant_error: np.ndarray  # bound on the rounding of the constant and of the parabolas
    linear_error: np.ndarray  # bound on the norm of the rounding of `linear`


class Distances:
    """Estimates for quadratics of one first layer, for all rows at once.

    Args:
        first: the map with kernel W.
    """

    def __init__(self, first: Affine):
        self._kernel = first.kernel

    def radii(self, quadratic: Quadratic) -> np.ndarray:
        """Estimates the distance from 0 to Q ≤ 0, `(rows,)`."""
        return _best_multiplier(quadratic, *krylov.tridiagonal(self._space(quadratic))).radius

    def nearest(self, quadratic: Quadratic, kappa: np.ndarray) -> np.ndarray:
        """Estimates the closest point `δ̂ = −η (I + ηP)⁻¹ b`, best η ≤ 1/κ, `(rows, dim)`."""
        space = list(self._space(quadratic))
        coordinates = _best_multiplier(quadratic, *krylov.tridiagonal(space), kappa).coordinates
        vectors = zip(space, coordinates.T, strict=True)
        displacement = sum(coordinate[:, None] * v for (v, _, _), coordinate in vectors)
        return np.nan_to_num(displacement, posinf=0.0, neginf=0.0)

    def _space(self, quadratic: Quadratic) -> Iterator[tuple]:
        return krylov.basis(functools.partial(self._product, quadratic), quadratic.linear)

    def _product(self, quadratic: Quadratic, vectors: np.ndarray) -> np.ndarray:
        """Returns P v, row by row, by matrix products for all rows at once."""
        return ((vectors @ self._kernel) * quadratic.diagonal) @ self._kernel.T


class _Multiplier(NamedTuple):
    """The radius at the best η, `(rows,)`, and δ̂ in the Krylov basis, `(rows, j)`."""

    radius: np.ndarray
    coordinates: np.ndarray


def _best_multiplier(
    quadratic: Quadratic, values: np.ndarray, vectors: np.ndarray, kappa: np.ndarray | None = None
) -> _Multiplier:
    """Solves `max_η min_δ ½‖δ‖² + ηQ(δ)` over `0 ≤ η ≤ 1/κ`, half the square of the radius.

    The dual function `D(η) = ηq − (η²/2) Σ_i β_i²/(1 + ηλ_i)`, β = Vᵀb, is concave, and its
    derivative is Q at the minimising δ.
    """
    size = np.linalg.norm(quadratic.linear, axis=1)
    beta = size[:, None] * vectors[:, 0]
    q = np.maximum(quadratic.constant - quadratic.constant_error, 0.0)
    kappa = np.maximum(-values[:, 0], 0.0) if kappa is None else kappa
    low = np.zeros_like(q)
    # If P has no negative eigenvalue, η is not bounded; for P = 0 the root is at q/‖b‖².
    high = 1.0 / np.maximum(kappa, 1e-9 * size**2 / q + CURVATURE_FLOOR)
    for _ in range(_BISECTIONS):
        eta = (low + high) / 2.0
        stretch = 1.0 + eta[:, None] * values
        descent = eta * np.sum(beta**2 * (stretch + 1.0) / stretch**2, axis=1) / 2.0
        low, high = np.where(q > descent, eta, low), np.where(q > descent, high, eta)
    shrunk = beta / (1.0 + low[:, None] * values)
    dual_value = low * (q - low / 2.0 * np.sum(beta * shrunk, axis=1))
    coordinates = -low[:, None] * np.einsum("rij,rj->ri", vectors, shrunk)
    radius = np.sqrt(2.0 * np.maximum(dual_value, 0.0))
    return _Multiplier(np.nan_to_num(radius), coordinates)
