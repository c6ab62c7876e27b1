"""Curvature-based bounds on l∞ balls, within a box: the certificate, with cubes for balls.

Let `∇²f ≽ −κ`, d any displacement, and A and h as in `dual.py`. With `h·δ − (κ/2)‖δ‖²`, which is
concave in each entry, the minorant is lowest at an end of each: for all `−down ≤ δ ≤ up`

    f(x0 + δ) ≥ A + Σ_i min(h_i up_i − (κ/2) up_i²,  −h_i down_i − (κ/2) down_i²).

On the cube of radius R, up and down are R, or where the box ends. `F(δ) = f(x0 + δ) + (κ/2)‖δ‖²` is
convex, and the bound is the best where F is the lowest on the cube, where a projected descent ends
(Nesterov's). If d is at an end in every entry and |g_i| is at least κ|d_i|, the bound is f(x0 + d)
itself, and nobody can prove more.

**Rounding.** A and h as in `proved_radius.py`; h is off by e_h in norm, and so the sum by at most
`e_h √n R`. A sum of n terms is off by γ of their magnitudes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.proved_radius import charged, charged_minorant
from keras_curv.certificates.linear.ball_search import BallBoundCertificate, steepest_fall
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, compiled
from keras_curv.numerics import rounding
from keras_curv.numerics.rounding import TINY, gamma, norm_bound
from keras_curv.threats.box import box_reach
from keras_curv.threats.norms import LINF

_STEPS = 12  # of each descent; that of the last radius is the start of the next


class CubeCertificate(BallBoundCertificate):
    """A certificate: the largest cube on which curvature proves the margins positive.

    Args:
        certificate: of the same network, whose curvature bounds hold.
        served_error: bounds on the error of served margins, on l∞ balls.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> certificate = CubeCertificate(CurvatureCertificate(network))
        >>> radius = certificate.certify(np.array([[3.0, 1.0]])).radius.item()
        >>> 0.998 < radius <= 1.0
        True
    """

    name = CurvatureCertificate.name

    def __init__(self, certificate: CurvatureCertificate, served_error: ServedError = no_error):
        network: Network = certificate.network
        steepest = steepest_fall(network)
        super().__init__(network, served_error, norm=LINF, steepest=steepest, cost=_STEPS + 1.0)
        self._certificate = certificate
        upper, lower = certificate.curvature.upper, certificate.curvature.lower
        self._bent = np.maximum(upper, 0.0) + np.maximum(-lower, 0.0) + rounding.CURVATURE_FLOOR

    def centres_of(self, x: np.ndarray) -> Centres:
        """See `BallBoundCertificate`."""
        return Centres(self.network, x)

    def centred_bounds(
        self,
        centres: Centres,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """See `BallBoundCertificate`."""
        row, column = np.nonzero(asked)
        x, rival = centres.x[row], rivals[row, column]
        pairs = tf.constant(label[row], tf.int32), tf.constant(rival, tf.int32)
        up, down = self._room(centres.x, radius)
        up, down = up[row], down[row]
        kappa = self._certificate.kappa(label[row], rival[:, None])[:, 0]
        nothing = np.zeros(x.shape[1])
        ended = [nothing if each is None else each for each in centres.recall(row, rival)]
        start = np.clip(np.array(ended).reshape(x.shape), -down, up)
        bent = self._bent[label[row], rival]
        point = self._descend(x, *pairs, x - down, x + up, kappa, bent, x + start).numpy()
        centres.remember(row, rival, point - x)
        value = np.full(rivals.shape, np.inf)
        value[row, column] = self.bounds_at(point, x, *pairs, up, down)
        return value

    def _room(self, x: np.ndarray, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns how far each entry goes, upward and downward, `(n, dim)`; 0 if it is pinned."""
        most = np.repeat(radius[:, None], x.shape[1], axis=1)
        if self.network.pinned is not None:
            most = np.where(self.network.pinned, 0.0, most)
        if self.network.limits is None:
            return most, most
        room = box_reach(self.network, x)
        return np.minimum(most, room.up), np.minimum(most, room.down)

    @functools.cached_property
    def _descend(self) -> Callable[..., tf.Tensor]:
        signature = ROWS, CLASS, CLASS, ROWS, ROWS, EACH, EACH, ROWS
        return compiled(_Descent, self.network, signature=signature)

    def bounds_at(
        self,
        point: np.ndarray,
        x: np.ndarray,
        label: tf.Tensor,
        rival: tf.Tensor,
        up: np.ndarray,
        down: np.ndarray,
    ) -> np.ndarray:
        """Bounds margins from below, `(n,)`, by one gradient at each of any points.

        Args:
            point: x̂, `(n, dim)`.
            x: the examples, `(n, dim)`.
            label, rival: `(n,)`, integers.
            up, down: how far each entry goes, `(n, dim)`.
        """
        kappa = self._certificate.kappa(label.numpy(), rival.numpy()[:, None])[:, 0]
        evaluation = self.network.evaluate(tf.constant(point), label, rival[:, None])
        found, moved = charged(self.network.layer_norms, evaluation), point - x
        curvature, none = tf.constant(kappa[:, None]), tf.zeros((len(x), 1), tf.float64)
        bound, slope_error = charged_minorant(found, tf.constant(moved), curvature, none)
        slope = evaluation.gradient.numpy()[:, 0] + kappa[:, None] * moved
        off = slope_error.numpy() * norm_bound(np.maximum(up, down), axis=1)
        least = least_concave(slope, kappa, up, down) - rounding.up(off)
        value = bound.intercept.numpy() + least
        value = value - gamma(8) * (np.abs(bound.intercept.numpy()) + np.abs(least))
        return np.where(np.isnan(value), -np.inf, value)


def least_concave(
    slope: np.ndarray, curvature: np.ndarray, up: np.ndarray, down: np.ndarray
) -> np.ndarray:
    """Returns lower bounds on `h·δ − (κ/2)‖δ‖²` for `−down ≤ δ ≤ up`, `(n,)`, rounding charged.

    Args:
        slope: h, `(n, dim)`.
        curvature: κ, 0 or at least `CURVATURE_FLOOR`, `(n,)`.
        up, down: not negative, `(n, dim)`.

    Example:
        >>> ones = np.ones((1, 1))
        >>> least_concave(3.0 * ones, np.ones(1), ones, 2.0 * ones).round(9)  # at −2
        array([-8.])
    """
    half, terms = 0.5 * curvature[:, None], slope.shape[1]
    fall = np.maximum(half * up * up - slope * up, half * down * down + slope * down)
    far = np.maximum(up, down)
    size = np.sum(np.abs(slope) * far + half * far * far, axis=1)
    # κ up/2 only underflows where up, by which it is multiplied, is less than 1.
    return -fall.sum(axis=1) - (gamma(terms + 16) * size + 4.0 * TINY * terms)


class _Descent:
    """Where f + (κ/2)‖δ‖² is about the lowest within limits, of one pair a row."""

    def __init__(self, network: FeedForward):
        self._network = network
        network.ready(tf.float64)

    def __call__(
        self,
        x: tf.Tensor,
        label: tf.Tensor,
        rival: tf.Tensor,
        low: tf.Tensor,
        high: tf.Tensor,
        kappa: tf.Tensor,
        bent: tf.Tensor,
        start: tf.Tensor,
    ) -> tf.Tensor:
        length = tf.math.reciprocal(bent)[:, None]

        def step(
            last: tf.Tensor, point: tf.Tensor, share: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            _, gradient = self._network.margin_and_gradient(point, label, rival)
            fall = gradient + kappa[:, None] * (point - x)
            found = tf.clip_by_value(point - length * fall, low, high)
            following = 0.5 + tf.sqrt(0.25 + share * share)
            return found, found + (share - 1.0) / following * (found - last), following

        begin = start, start, tf.ones((), tf.float64)
        found = tf.while_loop(lambda *_: True, step, begin, maximum_iterations=_STEPS)
        return found[0]
