"""First maps that absorb what moves an input: `x + Bξ` as an input of its own."""

from __future__ import annotations

import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import spectral_norm_bound


def is_exact(factor: np.ndarray) -> np.ndarray:
    """Whether products with these factors, and quotients, are exact: they are powers of 2."""
    return np.abs(np.frexp(factor)[0]) == 0.5


def subspace(basis: np.ndarray, first: Affine, dim: int) -> Affine:
    """`ξ ↦ Bξ + x` before the first map: the rows of B W above its own."""
    if len(basis) != dim:
        raise InputError(f"basis must be ({dim}, q). Received: {basis.shape}")
    kernel = first.kernel[:dim]
    product = basis.T @ kernel
    size = norm_bound(basis) * norm_bound(kernel)
    lost = gamma(dim + 4) * size + 8.0 * TINY * dim * (1.0 + size)
    error = up(first.kernel_error * (1.0 + spectral_norm_bound(basis)) + lost)
    return Affine(np.concatenate([product, first.kernel]), first.bias, error, first.bias_error)


def scaled(affine: Affine, factor: np.ndarray) -> Affine:
    """The map of u, with `a = factor ∘ u`: rounding charged where a factor is no power of 2."""
    most = max(1.0, float(factor.max()))
    kernel = factor[:, None] * affine.kernel
    exact = is_exact(factor)[:, None]
    lost = (
        UNIT * norm_bound(np.where(exact, 0.0, kernel)) + TINY * kernel.size * (factor != 1.0).any()
    )
    return Affine(
        kernel,
        affine.bias,
        up(affine.kernel_error * most + lost),
        affine.bias_error,
        factor[:, None] * affine.served_kernel_error,
        affine.served_bias_error,
        affine.served_gain * most,
    )
