"""The Lipschitz certificate: a margin that changes by at most L a unit of distance.

`Lip(z_y − z_t) ≤ L` on all of ℝᵈ gives the radius `f(x)/L` for the price of one evaluation, with
any activation of bounded slope, relu among them. L is the smaller one of two bounds:
by telescoping, and a product of norms. Changes bounded in l1 or l∞ have constants of their own,
‖∇f‖ in the dual norm, never above what L says of them (`curvature/liplt_in_norm.py`).

Both are LipLT's (`curvature/liplt.py`), one layer further than for z_{L−1}: `w = w_y − w_t`, those
columns of the last map that matter, stands in the place of the last map. The products
`W_{j+1} ⋯ W_L` are formed once for all pairs, each column with a bound of its distance to the real
one. The margin's own rounding is `rounding.margin_error`.

Reference: Tsuzuku, Sato & Sugiyama, "Lipschitz-margin training" (2018), for constants of margins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question, WeakestPoint
from keras_curv.curvature.liplt import (
    UnitNorms,
    centre_and_spread,
    product_after,
    rows_weighted,
    telescoped,
)
from keras_curv.curvature.liplt_in_norm import pre_activation_lipschitz_in
from keras_curv.network.activations import require_lipschitz
from keras_curv.network.network import Network
from keras_curv.network.unitwise import UnitWise
from keras_curv.numerics.rounding import SLOPE_FLOOR, UNIT, margin_error, norm_bound, up
from keras_curv.threats.norms import L2, Norm, moving


def margin_lipschitz_bounds(network: Network, norm: Norm = L2) -> np.ndarray:
    """`|f(x) − f(x′)| ≤ L[y, t] ‖x − x′‖` for `f = z_y − z_t` and all x, x′.

    Args:
        network: any activations of bounded slope.
        norm: of changes of the input.

    Returns:
        `(classes, classes)`, symmetric, zero on the diagonal; infinite where it overflows.

    Raises:
        InputError: an activation's slope is unbounded.

    Example:
        >>> from keras_curv.threats.norms import NORMS
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> for norm in NORMS.values():
        ...     print(norm.name, margin_lipschitz_bounds(network, norm)[0, 1].round(6))
        l2 1.414214
        l1 1.0
        linf 2.0
    """
    require_lipschitz(network.activations)
    with np.errstate(over="ignore", invalid="ignore"):
        before = pre_activation_lipschitz_in(norm, network, network.depth - 1)
        bounds = telescoped(network.activations, _pair_norms(network, norm), before)
        # fmin prefers the number where only one is one; the floor covers underflow.
        bound = up(np.fmin(*bounds), 16 * network.depth) + SLOPE_FLOOR
        if norm is not L2:
            limit = norm.length(margin_lipschitz_bounds(network), moving(network))
            bound = np.fmin(bound, limit)
    bound = np.nan_to_num(bound, nan=np.inf, posinf=np.inf)
    np.fill_diagonal(bound, 0.0)
    return bound


def _pair_norms(network: Network, norm: Norm) -> Iterator[np.ndarray | UnitNorms]:
    """`‖W_{j+1} ⋯ W_{L−1} (w_y − w_t)‖` for j = L − 1, …, 0, `(classes, classes)` each.

    The last of them is the dual norm of a change's, all others are l2.
    """
    last = network.differentials[-1]
    product, error = last.kernel, np.full(network.classes, last.kernel_error)
    pairs = zip(network.differentials[:-1], network.activations, strict=True)
    for affine, activation in reversed(list(pairs)):
        whole = column_distances(product, error)
        if isinstance(activation, UnitWise):
            centre, spread = centre_and_spread(activation)
            apart = column_distances(*rows_weighted(spread, product, error))
            yield UnitNorms(whole, apart)
            product, error = rows_weighted(centre, product, error)
        else:
            yield whole
        product, error = product_after(affine, product, error)
    if norm is L2:
        yield column_distances(product, error)
    else:
        error = norm.length(error, moving(network))
        yield column_distances(product, error, lambda rows: norm.dual(rows[None])[0])


def column_distances(
    product: np.ndarray,
    error: np.ndarray,
    size: Callable[[np.ndarray], np.ndarray] = lambda rows: norm_bound(rows, axis=1),
) -> np.ndarray:
    """`‖V_y − V_t‖` from above, for columns known to within their errors, `(classes, classes)`.

    None is so small that its product with a Lipschitz constant would underflow on its way.

    Args:
        product: V.
        error: bounds on ‖ΔV_y‖, `(classes,)`.
        size: bounds norms of the rows of `(classes, length)`.
    """
    columns = np.ascontiguousarray(product.T)
    apart = np.stack([size(columns - column) for column in columns])
    apart = np.where(np.isfinite(product).all(), apart, np.inf)
    return up(apart + (error[:, None] + error[None, :])) + SLOPE_FLOOR


class LipschitzCertificate(Method):
    """Radius `(f(x) − rounding − served error) / Lip(f)`, for every rival in one evaluation.

    Args:
        network: any activations of bounded slope.
        served_error: what serving may take off a margin.
        norm: of changes of the input, in which radii are.

    Raises:
        InputError: an activation's slope is unbounded.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> question = Question.of([[3.0, 1.0]], [0], [[1]])
        >>> LipschitzCertificate(network).prove(question).radius.round(6)
        array([[1.414214]])
    """

    name, turn = "lipschitz", 2

    def __init__(self, network: Network, served_error: ServedError = no_error, *, norm: Norm = L2):
        self.network = network
        self.served_error = served_error
        self.lipschitz = margin_lipschitz_bounds(network, norm)

    def prove(self, question: Question) -> Proof:
        """See `Method`; a forward pass is all that it takes.

        The served error E does not fall with the radius, so its value at `r_0 = f/L` may be taken
        for all smaller ones: `r = (f − E(r_0))/L`. It takes no gradient.
        """
        x, label, rivals = question[:3]
        margin, activations = self.network.margins(
            tf.constant(x), tf.constant(label), tf.constant(rivals)
        )
        margin = margin.numpy()
        charge = margin_error(self.network.layer_norms, activations).numpy()[:, None]
        lipschitz = self.lipschitz[label[:, None], rivals]
        with np.errstate(all="ignore"):  # what is not finite proves nothing
            margin = margin * (1.0 - 8.0 * UNIT) - charge  # for five roundings in all
            farthest = np.where(margin > 0.0, margin / lipschitz, 0.0)
            left = margin - self.served_error(x, label, rivals, farthest)
            radius = np.minimum(left / lipschitz, np.finfo(np.float64).max)
        radius = np.where(np.isfinite(left), radius, 0.0)
        return question.answer(self.name, radius, np.zeros(len(x), np.int64))

    def ceiling(self, question: Question, weakest: WeakestPoint) -> np.ndarray:
        """See `Method`: f/L, of which charges only take off."""
        lipschitz = self.lipschitz[question.label, question.weakest(weakest.column)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return weakest.start / lipschitz * (1.0 + 1e-9)
