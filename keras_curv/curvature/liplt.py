"""LipLT: upper bounds on Lipschitz constants of a network's layers and margins, by telescoping.

The Jacobian of z_I is `W_1 D_1 W_2 D_2 ⋯ W_I`, each `D_k = diag(σ′(z_k))` within `c_k ± s_k`, the
centre and half the width of the range of σ′. Replace D_{I−1} by c_{I−1}, then D_{I−2} by c_{I−2},
and so on: step j changes the product by `(Jacobian of z_j) (D_j − c_j) c_{j+1} ⋯ c_{I−1} W_{j+1} ⋯
W_I`, and in the end no D is left. So ℓ_I, a Lipschitz constant of x ↦ z_I, may be

    ℓ_I = Π_{k<I} |c_k| ‖W_1 ⋯ W_I‖ + Σ_{j<I} s_j Π_{j<k<I} |c_k| ‖W_{j+1} ⋯ W_I‖ ℓ_j,

or `‖W_I‖ g_{I−1} ℓ_{I−1}`, `g = sup |σ′|`, if that is less. For a margin, the difference of two
columns of the last map replaces W_I. Lip(a_I) = g_I ℓ_I. Where units differ
(`network/unitwise.py`), c_k and s_j are diagonal and stay inside the norms: identity units have
c = 1 and s = 0, and lose nothing.

If changes of x are bounded in l1 or l∞, only `W_1 ⋯ W_I` sees that norm: ‖·‖ of it is then the norm
from there to l2, and ℓ_j are constants of the same kind.

**Rounding.** A product `V = W_j ⋯ W_I` is formed with a bound e on the norm of its error: when a
map W is put before V, `e ← γ_N ‖W‖_F ‖V‖_F + ‖ΔW‖ (‖V‖_F + e) + ‖W‖_F e`, plus underflow.

Reference: Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin
maximization and improved Lipschitz regularization" (2023).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import DENSE_UP_TO
from keras_curv.network.unitwise import UnitWise
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import Gram, spectral_norm_bound

# A least value of norms and Lipschitz constants, so that their products do not underflow.
LEAST_NORM = 1e-160

# Results by network, because several methods ask for the same ones.
_known: weakref.WeakKeyDictionary[Network, list[float]] = weakref.WeakKeyDictionary()
_WINDOW = 32  # activations


class UnitNorms(NamedTuple):
    """Norms of a product `V = W_{j+1} c_{j+1} ⋯ W_I` where units of activation j differ."""

    whole: Any  # ‖V‖
    spread: Any  # ‖s_j V‖


def telescoped(
    activations: Sequence[Activation], norms: Iterable[Any], before: Sequence[Any]
) -> tuple[Any, Any]:
    """Returns two bounds ℓ_I, up to rounding: by telescoping, and `‖W_I‖ g_{I−1} ℓ_{I−1}`.

    It telescopes through the last `_WINDOW` activations: `‖V a_j‖` with more behind it is at most
    `‖V‖ g_j ℓ_j`. The work for all layers would otherwise grow with the square of their number.

    Args:
        activations: the I − 1 before W_I; further ones are ignored.
        norms: ‖W_I‖, ‖W_{I−1} W_I‖, …, ‖W_1 ⋯ W_I‖: numbers, arrays for several W_I, or tensors.
            Behind an activation whose units differ, `UnitNorms` of the product; later products
            include the activation's centre.
        before: ℓ_1, …, ℓ_{I−1}.

    Example:
        >>> from keras_curv.network import activations
        >>> telescoped([activations.get("softplus")], [2.0, 1.0], [1.0])  # ½·1 + ½·2·1
        (1.5, 2.0)
    """
    norms = iter(norms)
    norm = next(norms)
    product_of_norms = norm.whole if isinstance(norm, UnitNorms) else norm
    if before:
        product_of_norms = product_of_norms * (activations[len(before) - 1].steepest * before[-1])
    total, factor = 0.0, 1.0  # Π |c_k| over the activations inside the product
    pairs = reversed(list(zip(activations, before, strict=False)))
    for back, (activation, lipschitz) in enumerate(pairs):
        if back == _WINDOW:
            whole = norm.whole if isinstance(norm, UnitNorms) else norm
            return total + factor * whole * (activation.steepest * lipschitz), product_of_norms
        if isinstance(norm, UnitNorms):
            total = total + factor * norm.spread * lipschitz
        else:
            total = total + activation.spread * factor * norm * lipschitz
            factor *= abs(activation.centre)
            if factor == 0.0:  # as behind |·|: all further terms are 0
                return total, product_of_norms
        norm = next(norms)
    return total + factor * norm, product_of_norms


def pre_activation_lipschitz(network: Network, count: int | None = None) -> list[float]:
    """Bounds the Lipschitz constants of x ↦ z_1, z_2, … from above: ℓ_1, …, or the first `count`.

    They are infinite behind an activation with an unbounded slope. The results of a network are
    kept.
    """
    count = network.depth - 1 if count is None else count
    found = list(_known.get(network, ()))  # a copy, as threads may share a network
    for terms in range(len(found) + 1, count + 1):
        if not all(math.isfinite(each.steepest) for each in network.activations[: terms - 1]):
            found.append(math.inf)
            continue
        products = products_behind(network.differentials[:terms], network.activations)
        norms = norms_of(products, lambda product: max(product.norm, LEAST_NORM))
        # fmin ignores a NaN.
        bound = np.fmin(*telescoped(network.activations, norms, found))
        found.append(max(up(float(bound), 8 * terms), LEAST_NORM))
    _known[network] = found
    return found[:count]


def lipschitz_bounds(network: Network, count: int | None = None) -> list[float]:
    """Bounds the Lipschitz constants of x ↦ a_1, …, a_{L−1}, or the first `count`, from above."""
    pairs = zip(network.activations, pre_activation_lipschitz(network, count), strict=False)
    return [max(up(activation.steepest * bound), LEAST_NORM) for activation, bound in pairs]


class KernelProduct:
    """The product of successive affine maps without their biases.

    Attributes:
        kernel: the computed product; None if it is too large, and only its norm is known.
        kernel_error: bound on the norm of its error.
        norm: bound on the norm of the real product.

    Args:
        kernel, kernel_error: as above.
        norm: the norm if it is known, as for a large product.
    """

    kernel: Any

    def __init__(self, kernel: np.ndarray | None, kernel_error: float, norm: float | None = None):
        self.kernel, self.kernel_error, self._norm = kernel, kernel_error, norm

    @property
    def is_sparse(self) -> bool:
        """Returns whether only the norm is known."""
        return self.kernel is None

    @property
    def fan_in(self) -> int:
        """Returns the number of rows of the product."""
        return self.kernel.shape[0]

    @property
    def fan_out(self) -> int:
        """Returns the number of columns of the product."""
        return self.kernel.shape[1]

    @functools.cached_property
    def norm(self) -> float:
        """Bounds the norm of the real product from above."""
        if self._norm is not None:
            return self._norm
        finite = np.isfinite(self.kernel).all()
        return up(spectral_norm_bound(self.kernel) + self.kernel_error) if finite else np.inf

    @functools.cached_property
    def gram(self) -> Gram:
        """Returns WᵀW, as in `Affine`."""
        return Gram(self.kernel)

    def after(self, affine: Affine) -> KernelProduct:
        """Returns `W V`."""
        if self.kernel is None or affine.fan_in * self.kernel.shape[1] > DENSE_UP_TO:
            return KernelProduct(None, np.inf, up(affine.norm * max(self.norm, LEAST_NORM)))
        return KernelProduct(*product_after(affine, self.kernel, self.kernel_error))

    def weighted(self, rows: np.ndarray) -> KernelProduct:
        """Returns `diag(rows) V`."""
        if self.kernel is None:
            return KernelProduct(None, np.inf, up(float(np.abs(rows).max()) * self.norm))
        return KernelProduct(*rows_weighted(rows, self.kernel, self.kernel_error))


def products_behind(
    affines: Sequence[Affine], activations: Sequence[Activation]
) -> Iterator[tuple[KernelProduct, KernelProduct | None]]:
    """Yields `V = W_{j+1} ⋯ W_I` for j = I − 1, …, 0, and s_j V where the units of j differ.

    V includes the centres of activations whose units differ.

    Args:
        affines: W_1, …, W_I.
        activations: the I − 1 between; further ones are ignored.
    """
    last = affines[-1]
    product = KernelProduct(None if last.is_sparse else last.kernel, last.kernel_error, last.norm)
    for affine, activation in reversed(list(zip(affines[:-1], activations, strict=False))):
        if isinstance(activation, UnitWise):
            centre, spread = centre_and_spread(activation)
            yield product, product.weighted(spread)
            product = product.weighted(centre)
        else:
            yield product, None
        product = product.after(affine)
    yield product, None


def norms_of(
    products: Iterable[tuple[KernelProduct, KernelProduct | None]],
    norm: Callable[[KernelProduct], Any],
) -> Iterator[Any]:
    """Yields the norms for `telescoped`, by any norm of the products of `products_behind`."""
    for whole, spread in products:
        yield norm(whole) if spread is None else UnitNorms(norm(whole), norm(spread))


def centre_and_spread(activation: UnitWise) -> tuple[np.ndarray, np.ndarray]:
    """Returns c and s of each unit with `|σ′ − c| ≤ s`; s is rounded up unless it is 0."""
    centre, spread = np.asarray(activation.centre), np.asarray(activation.spread)
    return centre, np.where(spread > 0.0, up(spread + 2.0 * UNIT * np.abs(centre)), 0.0)


def rows_weighted(rows: np.ndarray, product: np.ndarray, error: Any) -> tuple[np.ndarray, Any]:
    """Returns `diag(rows) V` as computed, and a bound on its error; see `product_after`."""
    size, largest = _size(product, error), float(np.abs(rows).max())
    error = largest * (error + 2.0 * UNIT * size) + 4.0 * TINY * product.size
    return rows[:, None] * product, up(error, 8)


def product_after(affine: Affine, product: np.ndarray, error: Any) -> tuple[np.ndarray, Any]:
    """Returns `W V` as computed, and a bound on the norm of its error.

    Args:
        affine: W.
        product: V, as computed.
        error: bound on the norm of the error of V, or an array of bounds for its columns; the
            result has the same form.
    """
    size = affine.frobenius
    columns = _size(product, error)
    rounding = gamma(affine.fan_out + 4) * size * columns
    carried = affine.kernel_error * (columns + error) + size * error
    terms = float(affine.fan_out) * affine.fan_in * product.shape[1]
    underflow = 4.0 * TINY * terms * (1.0 + size + columns)
    return affine.kernel @ product, up(rounding + carried + underflow, 8)


def _size(product: np.ndarray, error: Any) -> Any:
    """Bounds the norm of each column if the error is by column, else the norm of the matrix."""
    return norm_bound(product, axis=0) if np.ndim(error) else norm_bound(product)
