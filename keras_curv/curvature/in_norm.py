"""Curvature along changes of bounded l1 or l∞ norm.

The signed bound gives `∇²f ≽ −Σ_I B_Iᵀ diag(d_I) B_I` with d_I ≥ 0, a convex quadratic form. On a
ball it is largest at a corner: for l1 at ±ρe_i, for l∞ where all entries are ±ρ. So

    e·∇²f e ≥ −κ ‖e‖²,    κ = q(W_1 diag(d_1) W_1ᵀ) + Σ_{I>1} ‖W_I √d_I‖² Lip_I²,

with `q(Q) = max_i Q_ii` for l1, and `q(Q) ≤ Σ_ij |Q_ij| ≤ Σ_k d_k ‖w_k‖₁²` for l∞, w_k the columns
of W_1. Lip_I is a Lipschitz constant of a_{I−1} from this norm to l2 (`liplt_in_norm.py`). From l2
follow κ₁ ≤ κ₂ and κ_∞ ≤ n κ₂, of n entries that move, which may be less.
"""

from __future__ import annotations

import numpy as np

from keras_curv.curvature.bounds import CurvatureBounds
from keras_curv.curvature.liplt_in_norm import pre_activation_lipschitz_in
from keras_curv.curvature.signed import congruence_bound, negative_diagonals, underflow
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import gamma, scaled_back, up
from keras_curv.threats.norms import Norm, moving

_FEW = 64  # inputs, up to which Q is formed for l∞


def curvature_in(norm: Norm, network: Network, bounds: CurvatureBounds) -> np.ndarray:
    """Returns `κ ≥ 0` with `e·∇²(z_y − z_t) e ≥ −κ ‖e‖²` everywhere, `(classes, classes)`.

    Args:
        norm: of e; l1 or l∞.
        network: a network of any depth with smooth activations.
        bounds: its l2 curvature bounds.

    Example:
        >>> from keras_curv.curvature.bounds import curvature_bounds
        >>> from keras_curv.threats.norms import NORMS
        >>> kernels = [np.ones((4, 1)), np.array([[1.0, 0.0]])]
        >>> network = Network.from_weights(kernels, [np.zeros(1), np.zeros(2)], "softplus")
        >>> bounds = curvature_bounds(network)
        >>> for norm in NORMS.values():
        ...     print(norm.name, curvature_in(norm, network, bounds)[1, 0].round(9))
        l2 1.0
        l1 0.25
        linf 4.0
    """
    length = float(norm.length(np.ones(1), moving(network))[0])
    kappa = np.maximum(-bounds.lower, 0.0)
    kappa = up(kappa * length**2) if length > 1.0 else kappa
    first = network.differentials[0]
    if norm.name not in _FORMS or network.depth == 1 or first.is_sparse:
        return kappa
    y, t = np.nonzero(~np.eye(network.classes, dtype=bool))
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.zeros(len(y))
        before = pre_activation_lipschitz_in(norm, network, network.depth - 2)
        for index, diagonals in enumerate(negative_diagonals(network, y, t)):
            if index == 0:
                found += _largest(norm, first, diagonals, length)
                continue
            affine = network.affines[index]
            reach = up(network.activations[index - 1].steepest * before[index - 1])
            for pair, diagonal in enumerate(diagonals):
                value = congruence_bound(affine, diagonal, sparse_by_norm=True)
                size = np.sqrt(value + underflow(affine)) * reach
                found[pair] += up(size**2, 8)
    result = np.zeros_like(kappa)
    result[y, t] = up(found, network.depth + 2)
    return np.fmin(result, kappa)


def _largest(norm: Norm, affine: Affine, diagonals: np.ndarray, length: float) -> np.ndarray:
    """Bounds `e·W diag(d) Wᵀ e` on a unit ball, d ≥ 0 `(P, out)`, for all W within the error."""
    # Powers of two scale without rounding, and keep squares away from over- and underflow.
    largest = np.abs(affine.kernel).max(initial=0.0), diagonals.max(initial=0.0)
    powers = [int(np.frexp(number)[1]) for number in largest]
    kernel, scaled = np.ldexp(affine.kernel, -powers[0]), np.ldexp(diagonals, -powers[1])
    entries = _FORMS[norm.name](kernel, scaled)
    entries = up(entries + affine.kernel.size * 2.0**-1020, affine.kernel.size + 8)
    power = 2 * powers[0] + powers[1]
    entries = np.sqrt(np.array([scaled_back(float(entry), power) for entry in entries]))
    entries = up(entries + length * np.sqrt(underflow(affine)))
    more = np.sqrt(diagonals.max(axis=1)) * affine.kernel_error * length
    return up((entries + more) ** 2, 8)


def _at_vertices(kernel: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
    """Returns `max_i Q_ii`, `(P,)`, up to rounding."""
    return np.max((kernel * kernel) @ diagonals.T, axis=0)


def _at_corners(kernel: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
    """Bounds e·Qe where all entries of e are ±1, `(P,)`, up to rounding."""
    by_units = diagonals @ _column_sums(kernel) ** 2
    if len(kernel) > _FEW:
        return by_units
    form = np.array([np.abs((kernel * d) @ kernel.T).sum() for d in diagonals])
    # What rounding takes off an entry of Q is a part of `Σ_k d_k |w_ki| |w_kj|`.
    return np.minimum(by_units, form + gamma(kernel.shape[1] + 8) * up(by_units, kernel.size))


def _column_sums(kernel: np.ndarray) -> np.ndarray:
    """Bounds ‖w_k‖₁ of the columns from above, `(out,)`."""
    return up(np.abs(kernel).sum(axis=0), len(kernel) + 8)


_FORMS = {"l1": _at_vertices, "linf": _at_corners}
