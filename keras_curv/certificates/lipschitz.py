"""The Lipschitz certificate: a margin that changes by at most L a unit of distance.

`Lip(z_y − z_t) ≤ L` on all of ℝᵈ gives the radius `f(x)/L` for the price of one evaluation, with
any activation of bounded slope, relu among them. L is the smaller one of two bounds.

**Product of norms**, with those columns of the last map that matter: `‖w_y − w_t‖ Lip(a_{L−1})`.

**LipLT**, the telescoped product of `curvature.lipschitz_bounds`, one layer further: with
`σ′ = c + s ε`, |ε| ≤ 1, and `w = w_y − w_t` as the last map,

    L = Π_k |c_k| ‖W_1⋯W_{L−1} w‖ + Σ_j (s_j/g_j) Π_{k>j} |c_k| ‖W_{j+1}⋯W_{L−1} w‖ Lip(a_j).

**Rounding.** The products `V = W_{j+1}⋯W_L` are formed once for all pairs, each column with a bound
e of its distance to the real one: `e ← γ_N ‖W‖_F ‖v‖ + ‖ΔW‖ (‖v‖ + e) + ‖W‖_F e`, and underflow, as
a map W is put before a column v. The margin's own rounding is `rounding.margin_error`.

Reference: Tsuzuku, Sato & Sugiyama, "Lipschitz-margin training" (2018), for constants of margins;
Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin maximization and
improved Lipschitz regularization" (2023), for LipLT.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from keras_curv.certificates.method import Method, PairCertificates, ServedError, no_error
from keras_curv.curvature.bounds import lipschitz_bounds, product_after
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import SLOPE_FLOOR, UNIT, gamma, margin_error, norm_bound, up


def margin_lipschitz_bounds(network: Network) -> np.ndarray:
    """`|f(x) − f(x′)| ≤ L[y, t] ‖x − x′‖₂` for `f = z_y − z_t` and all x, x′.

    Returns:
        `(classes, classes)`, symmetric, zero on the diagonal; infinite where it overflows.

    Raises:
        InputError: an activation's slope is unbounded.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> margin_lipschitz_bounds(network).round(6)
        array([[0.      , 1.414214],
               [1.414214, 0.      ]])
    """
    _require_rules(network)
    with np.errstate(over="ignore", invalid="ignore"):
        outer = lipschitz_bounds(network)  # Lip(a_1), …, Lip(a_{L−1})
        last = network.affines[-1]
        product, error = last.kernel, np.full(network.classes, last.kernel_error)
        distance = _column_distances(product, error)
        guard = distance * outer[-1] if outer else distance
        total, factor = np.zeros_like(distance), 1.0  # Π |c_k| over the activations inside
        hidden = zip(network.affines[:-1], network.activations, outer, strict=True)
        for affine, activation, lipschitz in reversed(list(hidden)):
            low, high = activation.first_range
            if activation.slope > 0.0:
                total += (high - low) / 2.0 / activation.slope * factor * distance * lipschitz
            factor *= abs(low + high) / 2.0
            product, error = product_after(affine, product, error)
            distance = _column_distances(product, error)
        total += factor * distance
        # fmin prefers the number where only one is one; the floor covers underflow.
        bound = up(np.fmin(total, guard), 16 * network.depth) + SLOPE_FLOOR
    bound = np.nan_to_num(np.maximum(bound, bound.T), nan=np.inf, posinf=np.inf)
    np.fill_diagonal(bound, 0.0)
    return bound


def _column_distances(product: np.ndarray, error: np.ndarray) -> np.ndarray:
    """`‖V_y − V_t‖` from above, for columns known to within their errors, `(classes, classes)`.

    None is so small that its product with a Lipschitz constant would underflow on its way.
    """
    columns = np.ascontiguousarray(product.T)
    apart = np.stack([norm_bound(columns - column, axis=1) for column in columns])
    apart = np.where(np.isfinite(product).all(), apart, np.inf)
    return up(apart + error[:, None] + error[None, :]) + SLOPE_FLOOR


class LipschitzCertificate(Method):
    """Radius `(f(x) − rounding − served error) / Lip(f)`, for every rival in one evaluation.

    Args:
        network: any activations of bounded slope.
        served_error: what serving may take off a margin.

    Raises:
        InputError: an activation's slope is unbounded.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> x, label, rivals = np.array([[3.0, 1.0]]), np.array([0]), np.array([[1]])
        >>> LipschitzCertificate(network).radii(x, label, rivals, np.zeros((1, 1))).radius.round(6)
        array([[1.414214]])
    """

    name = "lipschitz"

    def __init__(self, network: Network, served_error: ServedError = no_error):
        self.network = network
        self.served_error = served_error
        self._lipschitz = margin_lipschitz_bounds(network)

    def radii(self, x, label, rivals, known) -> PairCertificates:
        """See `Method`.

        The served error E does not fall with the radius, so its value at `r_0 = f/L` may be taken
        for all smaller ones: `r = (f − E(r_0))/L`.
        """
        found = self.radii_below(x, label, rivals, known, np.full(len(x), np.inf))
        return found._replace(gradient_evaluations=np.full(len(x), np.shape(rivals)[1], np.int64))

    def radii_below(self, x, label, rivals, known, ceiling) -> PairCertificates:
        """See `Method`; a forward pass is all that it takes."""
        x, known = np.asarray(x, np.float64), np.asarray(known, np.float64)
        label, rivals = np.asarray(label, np.int64), np.asarray(rivals, np.int64)
        margin, activations = self.network.margins(
            tf.constant(x), tf.constant(label), tf.constant(rivals)
        )
        margin = margin.numpy()
        charge = margin_error(self.network.layer_norms, activations).numpy()[:, None]
        lipschitz = self._lipschitz[label[:, None], rivals]
        with np.errstate(all="ignore"):  # what is not finite proves nothing
            margin = margin - charge - 4.0 * UNIT * np.abs(margin)
            farthest = np.where(margin > 0.0, up(margin / lipschitz), 0.0)
            served = self.served_error(x, label, rivals, farthest)
            left = margin - served - 4.0 * UNIT * (np.abs(margin) + served)
            radius = np.minimum(left / lipschitz, np.finfo(np.float64).max) * (1.0 - gamma(8))
            proved = (left > 0.0) & np.isfinite(left) & ~np.isnan(radius)
        gradients = np.zeros(len(x), np.int64)
        return PairCertificates(np.maximum(known, np.where(proved, radius, 0.0)), gradients)

    def ceiling(self, x, label, rival, radius, sighting) -> np.ndarray:
        """See `Method`: f/L, of which charges only take off."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return sighting.start / self._lipschitz[label, rival] * (1.0 + 1e-9)


def _require_rules(network: Network) -> None:
    for activation in network.activations:
        if not math.isfinite(activation.slope):
            raise InputError(
                f"activation {activation.name!r} has an unbounded slope, so no Lipschitz bound"
            )
