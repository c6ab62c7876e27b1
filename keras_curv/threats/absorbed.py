"""First maps that absorb a change of variables: `x + Bξ` becomes an affine function of ξ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import spectral_norm_bound


def is_exact(factor: np.ndarray) -> np.ndarray:
    """Returns whether products and quotients with a factor are exact, as for powers of 2."""
    return np.abs(np.frexp(factor)[0]) == 0.5


def product_in(basis: np.ndarray, kernel: Any) -> tuple[np.ndarray, float]:
    """Returns Bᵀ W and a bound on the norm of its rounding error; see `subspace`."""
    product = basis.T @ kernel
    sizes = norm_bound(basis), norm_bound(kernel)
    lost = gamma(len(basis) + 4) * sizes[0] * sizes[1]
    tiny = TINY + TINY * sizes[0] + TINY * sizes[1]
    return product, lost + 8.0 * len(basis) * math.sqrt(product.size) * tiny


def subspace(basis: np.ndarray, first: Affine, dim: int) -> Affine:
    """Puts `(ξ, x) ↦ Bξ + x` before the first map: the rows of Bᵀ W above its own.

    An entry of Bᵀ W, B being `(d, q)` and W `(d, N)`, is a sum of d products b w. Rounding costs
    at most `γ_d Σ|b||w|`, in the Frobenius norm `γ_d ‖B‖ ‖W‖`. Underflow costs, for each product,
    `τ|w|` and `τ|b|` where a factor is flushed as it is read, τ for the product and 2τ for a
    partial sum: in all `τ (Σ|w| + Σ|b| + 4d)`. Over the qN entries, with `Σ|w| ≤ √d ‖w‖₂` and as
    each column of W counts q times, and each of B N times, the norm of this is at most

        τ (√(qd) ‖W‖ + √(Nd) ‖B‖ + 4d √(qN)) ≤ 4 d √(qN) τ (1 + ‖B‖ + ‖W‖).
    """
    if len(basis) != dim:
        raise InputError(f"basis must be ({dim}, q). Received: {basis.shape}")
    product, lost = product_in(basis, first.kernel[:dim])
    error = up(first.kernel_error * (1.0 + spectral_norm_bound(basis)) + lost)
    return Affine(np.concatenate([product, first.kernel]), first.bias, error, first.bias_error)


def scaled(affine: Affine, factor: np.ndarray) -> Affine:
    """Returns the map of u, `a = factor ∘ u`, rounding charged where a factor is no power of 2.

    Underflow of a product s w costs at most `τ (|s| + |w| + 1)`, as either factor or the product
    is flushed: in the Frobenius norm, for n entries, `τ (√n (1 + max|s|) + ‖W‖)`.
    """
    most = max(1.0, float(factor.max()))
    kernel = factor[:, None] * affine.kernel
    exact = is_exact(factor)[:, None]
    lost = UNIT * norm_bound(np.where(exact, 0.0, kernel))
    if (factor != 1.0).any():
        size = math.sqrt(kernel.size)
        lost += 2.0 * (TINY * size + TINY * size * most + TINY * norm_bound(affine.kernel))
    return Affine(
        kernel,
        affine.bias,
        up(affine.kernel_error * most + lost),
        affine.bias_error,
        factor[:, None] * affine.served_kernel_error,
        affine.served_bias_error,
        affine.served_gain * most,
    )


def limits_over(
    low: np.ndarray, high: np.ndarray, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns limits divided by weights, rounded outward; infinite ones stay infinite."""
    exact = is_exact(factor)
    low, high = low / factor, high / factor
    return (
        np.where(exact | np.isinf(low), low, np.nextafter(low, -np.inf)),
        np.where(exact | np.isinf(high), high, np.nextafter(high, np.inf)),
    )
