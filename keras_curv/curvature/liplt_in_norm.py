"""LipLT where changes of the input are bounded in l1 or l∞.

Of the products in `liplt.py` only `W_1 ⋯ W_I` meets the change of the input. Its norm is taken from
l1 or l∞ to l2, for a margin the dual norm of the vector `W_1 ⋯ w`; all other norms stay. As
`‖δ‖₂ ≤ ‖δ‖₁` and `‖δ‖₂ ≤ √n ‖δ‖_∞`, of n entries that move, no constant is taken above ℓ_I, in l∞
above √n ℓ_I.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_curv.curvature.liplt import (
    LEAST_NORM,
    KernelProduct,
    norms_of,
    pre_activation_lipschitz,
    products_behind,
    telescoped,
)
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import up
from keras_curv.threats.norms import L2, Norm, moving


def pre_activation_lipschitz_in(norm: Norm, network: Network, count: int) -> list[float]:
    """Bounds `‖z_I(x + δ) − z_I(x)‖₂ ≤ ℓ ‖δ‖` from above, I = 1, …, count, in this norm of δ.

    Example:
        >>> from keras_curv.threats.norms import NORMS
        >>> network = Network.from_weights([np.ones((4, 2))] * 1, [np.zeros(2)], ())
        >>> [round(pre_activation_lipschitz_in(norm, network, 1)[0], 6) for norm in NORMS.values()]
        [2.828427, 1.414214, 5.656854]
    """
    by_l2, entries = pre_activation_lipschitz(network, count), moving(network)
    if norm is L2:
        return by_l2
    found: list[float] = []
    for terms, limit in enumerate(by_l2, 1):
        limit = float(norm.length(np.array(limit), entries))
        if math.isfinite(limit):
            norms = _norms(norm, network, terms)
            limit = np.fmin(np.fmin(*telescoped(network.activations, norms, found)), limit)
        found.append(max(up(float(limit), 8 * terms), LEAST_NORM))
    return found


def _norms(norm: Norm, network: Network, terms: int) -> Iterator[Any]:
    """Yields `‖W_I‖, …, ‖W_2 ⋯ W_I‖` in l2, and `‖W_1 ⋯ W_I‖` from the norm to l2."""
    products = products_behind(network.differentials[:terms], network.activations)
    for number, pair in enumerate(products, 1):
        if number == terms:
            yield from_norm(norm, pair[0], moving(network))
        else:
            yield from norms_of([pair], lambda product: max(product.norm, LEAST_NORM))


def from_norm(norm: Norm, product: KernelProduct, entries: int) -> float:
    """Bounds the norm of a product of maps from this norm to l2, where so many entries move."""
    if product.kernel is None:
        return float(norm.length(np.array(product.norm), entries))
    if not np.isfinite(product.kernel).all():
        return math.inf
    error = norm.length(np.array(product.kernel_error), entries)
    return max(up(norm.to_l2(product.kernel) + float(error)), LEAST_NORM)
