"""LipLT: Lipschitz constants of a network's layers and margins, from above, by telescoping.

The Jacobian of z_I is `W_1 D_1 W_2 D_2 ⋯ W_I`, each `D_k = diag(σ′(z_k))` within `c_k ± s_k`, the
centre and half the width of the range of σ′. Put c_{I−1} for D_{I−1}, then c_{I−2} for D_{I−2}, and
so on: at j this changes the product by `(Jacobian of z_j) (D_j − c_j) c_{j+1} ⋯ c_{I−1} W_{j+1} ⋯
W_I`, and in the end no D is left. So ℓ_I, a Lipschitz constant of x ↦ z_I, may be

    ℓ_I = Π_{k<I} |c_k| ‖W_1 ⋯ W_I‖ + Σ_{j<I} s_j Π_{j<k<I} |c_k| ‖W_{j+1} ⋯ W_I‖ ℓ_j,

or `‖W_I‖ g_{I−1} ℓ_{I−1}`, `g = sup |σ′|`, if that is less. In the place of W_I may stand those
columns of the last map that make a margin. Lip(a_I) = g_I ℓ_I.

**Rounding.** A product `V = W_j ⋯ W_I` is formed with a bound e of its distance to the real one, in
norm: `e ← γ_N ‖W‖_F ‖V‖_F + ‖ΔW‖ (‖V‖_F + e) + ‖W‖_F e`, and underflow, as a map W is put before V.

Reference: Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin
maximization and improved Lipschitz regularization" (2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import DENSE_UP_TO
from keras_curv.numerics.rounding import TINY, gamma, norm_bound, up
from keras_curv.numerics.spectral import spectral_norm_bound

# What norms and Lipschitz constants are taken for at least, so that their products do not underflow
# on their way.
LEAST_NORM = 1e-160


def telescoped(
    activations: Sequence[Activation], norms: Iterable[Any], before: Sequence[Any]
) -> tuple[Any, Any]:
    """Two bounds of ℓ_I, up to rounding: by telescoping, and `‖W_I‖ g_{I−1} ℓ_{I−1}`.

    Args:
        activations: the I − 1 before W_I; more do not count.
        norms: ‖W_I‖, ‖W_{I−1} W_I‖, …, ‖W_1 ⋯ W_I‖: numbers, arrays of those of several W_I, or
            tensors.
        before: ℓ_1, …, ℓ_{I−1}.

    Example:
        >>> from keras_curv.network import activations
        >>> telescoped([activations.get("softplus")], [2.0, 1.0], [1.0])  # ½·1 + ½·2·1
        (1.5, 2.0)
    """
    norms = iter(norms)
    norm = next(norms)
    product_of_norms = norm * (activations[len(before) - 1].slope * before[-1]) if before else norm
    total, factor = 0.0, 1.0  # Π |c_k| over the activations inside the product
    for activation, lipschitz in reversed(list(zip(activations, before, strict=False))):
        total = total + activation.spread * factor * norm * lipschitz
        factor *= abs(activation.centre)
        norm = next(norms)
    return total + factor * norm, product_of_norms


def pre_activation_lipschitz(network: Network) -> list[float]:
    """ℓ_1, …, ℓ_{L−1}: Lipschitz constants, from above, of x ↦ z_1, …, z_{L−1}."""
    found: list[float] = []
    for terms in range(1, network.depth):
        norms = _product_norms(network.differentials[:terms])
        # fmin prefers the number where only one is one.
        bound = np.fmin(*telescoped(network.activations, norms, found))
        found.append(max(up(float(bound), 8 * terms), LEAST_NORM))
    return found


def lipschitz_bounds(network: Network) -> list[float]:
    """Lipschitz constants, from above, of x ↦ a_1, …, a_{L−1}."""
    pairs = zip(network.activations, pre_activation_lipschitz(network), strict=True)
    return [max(up(activation.slope * bound), LEAST_NORM) for activation, bound in pairs]


def _product_norms(affines: Sequence[Affine]) -> Iterator[float]:
    """‖W_I‖, ‖W_{I−1} W_I‖, …, ‖W_1 ⋯ W_I‖, from above; of a large product, that of the norms."""
    last = affines[-1]
    product, error = None if last.is_sparse else last.kernel, last.kernel_error
    norm = max(last.norm, LEAST_NORM)
    yield norm
    for affine in reversed(affines[:-1]):
        if product is None or affine.fan_in * product.shape[1] > DENSE_UP_TO:
            product, norm = None, up(affine.norm * norm)
        else:
            product, error = product_after(affine, product, error)
            finite = np.isfinite(product).all()
            norm = up(spectral_norm_bound(product) + error) if finite else np.inf
        norm = max(norm, LEAST_NORM)
        yield norm


def product_after(affine: Affine, product: np.ndarray, error: Any) -> tuple[np.ndarray, Any]:
    """`W V` as computed, and how far that is from the real product, in norm.

    Args:
        affine: W.
        product: V, as computed.
        error: how far V is off: a number, in norm; or that of each column, and so is the answer.
    """
    size = affine.frobenius
    columns = norm_bound(product, axis=0) if np.ndim(error) else norm_bound(product)
    rounding = gamma(affine.fan_out + 4) * size * columns
    carried = affine.kernel_error * (columns + error) + size * error
    terms = float(affine.fan_out) * affine.fan_in * product.shape[1]
    underflow = 4.0 * TINY * terms * (1.0 + size + columns)
    return affine.kernel @ product, up(rounding + carried + underflow, 8)
