"""Curvature for an l1 budget: along changes of bounded l1 norm.

The signed bound gives `∇²f ≽ −Σ_I B_Iᵀ diag(d_I) B_I` with d_I ≥ 0. The quadratic form of this sum
is convex, so on `‖e‖₁ ≤ ρ` it is largest at a vertex ±ρe_i. So

    e·∇²f e ≥ −κ₁ ‖e‖₁²,    κ₁ = max_i (W_1 diag(d_1) W_1ᵀ)_ii + Σ_{I>1} ‖W_I √d_I‖² Lip_I²,

with Lip_I = `max_i ‖W_1[i, :]‖` times the Lipschitz constant of a_{I−1} in z_1, as every row of the
first Jacobian is a row of W_1, weighted. κ₁ is at most κ, and with many inputs far below it.
"""

from __future__ import annotations

import numpy as np

from keras_curv.curvature.bounds import CurvatureBounds
from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.curvature.signed import congruence_bound, negative_diagonals, underflow
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import scaled_back, up


def vertex_curvature(network: Network, bounds: CurvatureBounds) -> np.ndarray:
    """Returns `κ₁ ≥ 0` with `e·∇²(z_y − z_t) e ≥ −κ₁ ‖e‖₁²` everywhere, `(classes, classes)`.

    Args:
        network: a network of any depth with smooth activations.
        bounds: its l2 curvature bounds, which hold for κ₁ as well.

    Example:
        >>> from keras_curv.curvature.bounds import curvature_bounds
        >>> kernels = [np.ones((4, 1)), np.array([[1.0, 0.0]])]
        >>> network = Network.from_weights(kernels, [np.zeros(1), np.zeros(2)], "softplus")
        >>> bounds = curvature_bounds(network)
        >>> print(bounds.lower[1, 0].round(9), vertex_curvature(network, bounds)[1, 0].round(9))
        -1.0 0.25
    """
    kappa = np.maximum(-bounds.lower, 0.0)
    first = network.differentials[0]
    if network.depth == 1 or first.is_sparse:
        return kappa
    y, t = np.nonzero(~np.eye(network.classes, dtype=bool))
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.zeros(len(y))
        steepest = up(first.row_norms.max() + first.kernel_error)
        steepest = up(network.activations[0].steepest * steepest)
        behind = Network(network.affines[1:], network.activations[1:])
        outer = [1.0, *lipschitz_bounds(behind)]
        for index, diagonals in enumerate(negative_diagonals(network, y, t)):
            if index == 0:
                found += _largest_entry(first, diagonals)
                continue
            affine, reach = network.affines[index], up(steepest * outer[index - 1])
            for pair, diagonal in enumerate(diagonals):
                value = congruence_bound(affine, diagonal, sparse_by_norm=True)
                size = np.sqrt(value + underflow(affine)) * reach
                found[pair] += up(size**2, 8)
    result = np.zeros_like(kappa)
    result[y, t] = up(found, network.depth + 2)
    return np.fmin(result, kappa)


def _largest_entry(affine: Affine, diagonals: np.ndarray) -> np.ndarray:
    """Bounds `max_i (W diag(d) Wᵀ)_ii` from above, d ≥ 0 `(P, out)`, for all W within the error."""
    # Powers of two scale without rounding, and keep squares away from over- and underflow.
    largest = np.abs(affine.kernel).max(initial=0.0), diagonals.max(initial=0.0)
    powers = [int(np.frexp(number)[1]) for number in largest]
    kernel, scaled = np.ldexp(affine.kernel, -powers[0]), np.ldexp(diagonals, -powers[1])
    entries = np.max((kernel * kernel) @ scaled.T, axis=0)
    entries = up(entries + affine.fan_out * 2.0**-1020, affine.fan_out + 8)
    power = 2 * powers[0] + powers[1]
    entries = np.sqrt(np.array([scaled_back(float(entry), power) for entry in entries]))
    entries = up(entries + np.sqrt(underflow(affine)))
    more = np.sqrt(diagonals.max(axis=1)) * affine.kernel_error
    return up((entries + more) ** 2, 8)
