"""Theorem 4: a bound on the curvature of a network of any depth by products of norms.

The signed bound also uses signs and weights of units, and is never larger.
"""

from __future__ import annotations

import numpy as np

from keras_curv.curvature.liplt import LEAST_NORM
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import TINY, norm_bound, up


def theorem4(network: Network) -> np.ndarray:
    """Returns `K[y, t] ≥ ‖∇²(z_y − z_t)(x)‖` for every x, for a network of any depth.

        K = Σ_I h_I r_I² max_j S_j^(L,I),
        r_1 = ‖W_1‖,  r_I = g_{I−1} ‖W_I‖ r_{I−1},
        S^(L,L−1) = |w|,  S^(L,I) = g_{I+1} |W_{I+1}| S^(L,I+1).

    Returns:
        `(classes, classes)`, symmetric, zero on the diagonal.

    Reference: Singla & Feizi (2020), theorem 4, with g and h of each layer's own activation.
    """
    classes = network.classes
    total = np.zeros((classes, classes))
    if network.depth == 1:
        return total
    outer = [1.0, *lipschitz_products(network)]
    last = network.affines[-1]
    columns = last.kernel.T
    reach = np.abs(columns[:, None] - columns[None, :]) + 2.0 * last.kernel_error  # S, (C, C, N)
    for index in reversed(range(network.depth - 1)):
        activation = network.activations[index]
        largest = up(reach.max(axis=-1), 8)
        affine = network.differentials[index]
        steepness = up(affine.norm * outer[index])  # r_I
        total += up((np.sqrt(np.max(activation.bend) * largest) * steepness) ** 2, 16)
        # The folding error ΔW adds at most `‖ΔW‖ ‖S‖` to an entry.
        flat = reach.reshape(-1, affine.fan_out)
        through = flat @ affine.absolute.T
        through += up(affine.kernel_error * norm_bound(flat, axis=1))[:, None]
        through += 8.0 * TINY * affine.fan_out
        reach = up(activation.steepest * through, affine.fan_out + 8).reshape(classes, classes, -1)
    np.fill_diagonal(total, 0.0)
    return up(total, network.depth + 4)


def lipschitz_products(network: Network) -> list[float]:
    """Bounds the Lipschitz constants of x ↦ a_1, …, a_{L−1} by products of norms and slopes.

    The bounds of LipLT (`liplt.py`) are never larger.
    """
    found: list[float] = []
    for affine, activation in zip(network.differentials[:-1], network.activations, strict=True):
        found.append(up(activation.steepest * affine.norm * (found[-1] if found else 1.0)))
        found[-1] = max(found[-1], LEAST_NORM)
    return found
