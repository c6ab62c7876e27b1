"""LipLT: Lipschitz constants of a network's layers and margins, from above, by telescoping.

The Jacobian of z_I is `W_1 D_1 W_2 D_2 ⋯ W_I`, each `D_k = diag(σ′(z_k))` within `c_k ± s_k`, the
centre and half the width of the range of σ′. Put c_{I−1} for D_{I−1}, then c_{I−2} for D_{I−2}, and
so on: at j this changes the product by `(Jacobian of z_j) (D_j − c_j) c_{j+1} ⋯ c_{I−1} W_{j+1} ⋯
W_I`, and in the end no D is left. So ℓ_I, a Lipschitz constant of x ↦ z_I, may be

    ℓ_I = Π_{k<I} |c_k| ‖W_1 ⋯ W_I‖ + Σ_{j<I} s_j Π_{j<k<I} |c_k| ‖W_{j+1} ⋯ W_I‖ ℓ_j,

or `‖W_I‖ g_{I−1} ℓ_{I−1}`, `g = sup |σ′|`, if that is less. In the place of W_I may stand those
columns of the last map that make a margin. Lip(a_I) = g_I ℓ_I. Where units differ
(`network/unitwise.py`), c_k and s_j are diagonal and stay inside the norms: units that carry have
c = 1 and s = 0, and lose nothing.

**Rounding.** A product `V = W_j ⋯ W_I` is formed with a bound e of its distance to the real one, in
norm: `e ← γ_N ‖W‖_F ‖V‖_F + ‖ΔW‖ (‖V‖_F + e) + ‖W‖_F e`, and underflow, as a map W is put before V.

Reference: Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin
maximization and improved Lipschitz regularization" (2023).
"""

from __future__ import annotations

import functools
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

# What norms and Lipschitz constants are taken for at least, so that their products do not underflow
# on their way.
LEAST_NORM = 1e-160

# What several methods ask of one network.
_known: weakref.WeakKeyDictionary[Network, list[float]] = weakref.WeakKeyDictionary()


class UnitNorms(NamedTuple):
    """Norms of a product `V = W_{j+1} c_{j+1} ⋯ W_I`, where units of the activation j differ.

    Attributes:
        whole: ‖V‖.
        spread: ‖s_j V‖.
    """

    whole: Any
    spread: Any


def telescoped(
    activations: Sequence[Activation], norms: Iterable[Any], before: Sequence[Any]
) -> tuple[Any, Any]:
    """Two bounds of ℓ_I, up to rounding: by telescoping, and `‖W_I‖ g_{I−1} ℓ_{I−1}`.

    Args:
        activations: the I − 1 before W_I; more do not count.
        norms: ‖W_I‖, ‖W_{I−1} W_I‖, …, ‖W_1 ⋯ W_I‖: numbers, arrays of those of several W_I, or
            tensors. `UnitNorms` of what is behind an activation whose units differ, with its
            centre between the maps that follow.
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
    for activation, lipschitz in reversed(list(zip(activations, before, strict=False))):
        if isinstance(norm, UnitNorms):
            total = total + factor * norm.spread * lipschitz
        else:
            total = total + activation.spread * factor * norm * lipschitz
            factor *= abs(activation.centre)
            if factor == 0.0:  # as behind |·|: nothing is left of the products that follow
                return total, product_of_norms
        norm = next(norms)
    return total + factor * norm, product_of_norms


def pre_activation_lipschitz(network: Network, count: int | None = None) -> list[float]:
    """ℓ_1, …, ℓ_{L−1}, or the first `count`: Lipschitz constants, from above, of x ↦ z_1, z_2, ….

    Of a network that is asked about again, they are known.
    """
    count = network.depth - 1 if count is None else count
    found = list(_known.get(network, ()))  # one's own: threads may ask about one network at a time
    for terms in range(len(found) + 1, count + 1):
        products = products_behind(network.differentials[:terms], network.activations)
        norms = norms_of(products, lambda product: max(product.norm, LEAST_NORM))
        # fmin prefers the number where only one is one.
        bound = np.fmin(*telescoped(network.activations, norms, found))
        found.append(max(up(float(bound), 8 * terms), LEAST_NORM))
    _known[network] = found
    return found[:count]


def lipschitz_bounds(network: Network, count: int | None = None) -> list[float]:
    """Lipschitz constants, from above, of x ↦ a_1, …, a_{L−1}, of a network of any depth; or of
    the first `count`."""
    pairs = zip(network.activations, pre_activation_lipschitz(network, count), strict=False)
    return [max(up(activation.steepest * bound), LEAST_NORM) for activation, bound in pairs]


class KernelProduct:
    """The product of affine maps one after the other, without their biases.

    Attributes:
        kernel: as computed; None where it is too large, and only its norm is known.
        kernel_error: bound of its distance to the real one, in norm.
        norm: bound of the real one's norm.

    Args:
        kernel, kernel_error: as above.
        norm: where it is known, as of a large one.
    """

    kernel: Any

    def __init__(self, kernel: np.ndarray | None, kernel_error: float, norm: float | None = None):
        self.kernel, self.kernel_error, self._norm = kernel, kernel_error, norm

    @property
    def is_sparse(self) -> bool:
        """Whether only the norm is known."""
        return self.kernel is None

    @property
    def fan_in(self) -> int:
        """Rows of the product."""
        return self.kernel.shape[0]

    @property
    def fan_out(self) -> int:
        """Columns of the product."""
        return self.kernel.shape[1]

    @functools.cached_property
    def norm(self) -> float:
        """See the class."""
        if self._norm is not None:
            return self._norm
        finite = np.isfinite(self.kernel).all()
        return up(spectral_norm_bound(self.kernel) + self.kernel_error) if finite else np.inf

    @functools.cached_property
    def gram(self) -> Gram:
        """WᵀW; see `Affine`."""
        return Gram(self.kernel)

    def after(self, affine: Affine) -> KernelProduct:
        """`W V`."""
        if self.kernel is None or affine.fan_in * self.kernel.shape[1] > DENSE_UP_TO:
            return KernelProduct(None, np.inf, up(affine.norm * max(self.norm, LEAST_NORM)))
        return KernelProduct(*product_after(affine, self.kernel, self.kernel_error))

    def weighted(self, rows: np.ndarray) -> KernelProduct:
        """`diag(rows) V`."""
        if self.kernel is None:
            return KernelProduct(None, np.inf, up(float(np.abs(rows).max()) * self.norm))
        return KernelProduct(*rows_weighted(rows, self.kernel, self.kernel_error))


def products_behind(
    affines: Sequence[Affine], activations: Sequence[Activation]
) -> Iterator[tuple[KernelProduct, KernelProduct | None]]:
    """`V = W_{j+1} ⋯ W_I` for j = I − 1, …, 0, centres between where units differ; and s_j V there.

    Args:
        affines: W_1, …, W_I.
        activations: the I − 1 between; more do not count.
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
    """Returns what `telescoped` takes, by any norm of the products of `products_behind`."""
    for whole, spread in products:
        yield norm(whole) if spread is None else UnitNorms(norm(whole), norm(spread))


def centre_and_spread(activation: UnitWise) -> tuple[np.ndarray, np.ndarray]:
    """c and s of each unit with `|σ′ − c| ≤ s`; the spread rounded up, and 0 where it is exact."""
    centre, spread = np.asarray(activation.centre), np.asarray(activation.spread)
    return centre, np.where(spread > 0.0, up(spread + 2.0 * UNIT * np.abs(centre)), 0.0)


def rows_weighted(rows: np.ndarray, product: np.ndarray, error: Any) -> tuple[np.ndarray, Any]:
    """`diag(rows) V` as computed, and how far that is off; see `product_after`."""
    size, largest = _size(product, error), float(np.abs(rows).max())
    error = largest * (error + 2.0 * UNIT * size) + 4.0 * TINY * product.size
    return rows[:, None] * product, up(error, 8)


def product_after(affine: Affine, product: np.ndarray, error: Any) -> tuple[np.ndarray, Any]:
    """`W V` as computed, and how far that is from the real product, in norm.

    Args:
        affine: W.
        product: V, as computed.
        error: how far V is off: a number, in norm; or that of each column, and so is the answer.
    """
    size = affine.frobenius
    columns = _size(product, error)
    rounding = gamma(affine.fan_out + 4) * size * columns
    carried = affine.kernel_error * (columns + error) + size * error
    terms = float(affine.fan_out) * affine.fan_in * product.shape[1]
    underflow = 4.0 * TINY * terms * (1.0 + size + columns)
    return affine.kernel @ product, up(rounding + carried + underflow, 8)


def _size(product: np.ndarray, error: Any) -> Any:
    """Norms of the columns, where the error is that of each; else of all."""
    return norm_bound(product, axis=0) if np.ndim(error) else norm_bound(product)
