"""One gradient of local CRC, in a ball on which its curvature bound holds."""

from __future__ import annotations

import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.proved_radius import (
    Charged,
    charged,
    charged_minorant,
    proved_radius,
)
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS
from keras_curv.numerics.rounding import CURVATURE_FLOOR, gamma
from keras_curv.threats.confined import Reach, plain_minorant

_ITERATE = dual.Iterate(ROWS, ROWS, ROWS, steps=CLASS)
# What a step is called with, see there; and limits.
IN_BALL = (ROWS, CLASS, CLASS, EACH, EACH, EACH, _ITERATE)
IN_LIMITED_BALL = (*IN_BALL, Reach(ROWS, ROWS, ROWS, ROWS, cost=EACH))


class BallStep:
    """Proves radii at iterates and moves these, for one network, in graph.

    Args:
        network: with smooth activations.
    """

    def __init__(self, network: Network):
        self._network, self._layers = network, network.layer_norms

    def __call__(
        self,
        x0: tf.Tensor,
        label: tf.Tensor,
        rival: tf.Tensor,
        kappa: tf.Tensor,
        radius: tf.Tensor,
        error: tf.Tensor,
        iterate: dual.Iterate,
        limits: Reach | None = None,
    ) -> tuple[tf.Tensor, dual.Iterate]:
        """Returns radii that one gradient at each iterate proves, and the iterates after.

        Args:
            x0: `(n, dim)`, float64.
            label, rival: `(n,)`, int32.
            kappa: curvature in the ball, `(n,)`.
            radius: of the ball, `(n,)`.
            error: what serving may take off the margin, `(n,)`.
            iterate: rows n.
            limits: of the entries of x0.
        """
        displacement = iterate.point - x0
        found = charged(self._layers, self._network.evaluate(iterate.point, label, rival[:, None]))
        kappa += CURVATURE_FLOOR
        args = found, displacement, kappa[:, None], error[:, None]
        proved = proved_radius(*args)[:, 0]
        if limits is not None:
            proved = tf.maximum(proved, self._confined(limits, *args))
        entries = tf.cast(tf.shape(x0)[1], tf.float64)
        inside = dual.norm(displacement) * (1.0 + gamma(entries + 8.0)) <= radius
        multiplier = dual.attack_multiplier(radius)
        margin, gradient = found.margin[:, 0], found.gradient[:, 0]
        following = dual.advance(multiplier, x0, kappa, iterate, margin, gradient)
        moved = following.point - x0
        shrink = (1.0 - 1e-9) * radius / tf.maximum(dual.norm(moved), radius)
        following = following._replace(point=x0 + shrink[:, None] * moved)
        return tf.where(inside, proved, 0.0), following

    def _confined(
        self,
        limits: Reach,
        found: Charged,
        displacement: tf.Tensor,
        kappa: tf.Tensor,
        error: tf.Tensor,
    ) -> tf.Tensor:
        """Radii of the minorant without entries that −h pushes against their limits, `(n,)`."""
        bound, slope_error = charged_minorant(found, displacement, kappa, error)
        steepness = found.gradient[:, 0] + kappa * displacement
        simple = plain_minorant(bound.intercept, steepness, bound.curvature, limits, slope_error)
        return dual.certified_radius(simple) * (1.0 - gamma(32))
