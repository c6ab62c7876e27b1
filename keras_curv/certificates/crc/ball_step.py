"""One gradient of local CRC, in a ball on which its curvature bound holds."""

from __future__ import annotations

import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.geometry import Geometry, Place
from keras_curv.certificates.crc.proved_radius import charged
from keras_curv.certificates.crc.search_state import ROOM
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS
from keras_curv.numerics.rounding import CURVATURE_FLOOR, gamma
from keras_curv.threats.confined import Reach

_ITERATE = dual.Iterate(ROWS, ROWS, ROWS, steps=CLASS)
IN_BALL = (ROWS, CLASS, CLASS, EACH, EACH, EACH, _ITERATE, ROOM)  # what a step is called with


class BallStep:
    """Proves radii at iterates and moves these, for one network, in graph.

    Args:
        network: with smooth activations.
        geometry: where the attacker can go.
    """

    def __init__(self, network: Network, geometry: type[Geometry]):
        self._network, self._layers = network, network.layer_norms
        self._geometry = geometry

    def __call__(
        self,
        x0: tf.Tensor,
        label: tf.Tensor,
        rival: tf.Tensor,
        kappa: tf.Tensor,
        radius: tf.Tensor,
        error: tf.Tensor,
        iterate: dual.Iterate,
        room: Reach,
    ) -> tuple[tf.Tensor, dual.Iterate]:
        """Returns radii that one gradient at each iterate proves, and the iterates after.

        Args:
            x0: `(n, dim)`, float64.
            label, rival: `(n,)`, int32.
            kappa: curvature in the ball, `(n,)`.
            radius: of the ball, `(n,)`.
            error: bounds on the served error of the margin, `(n,)`.
            iterate: rows n.
            room: how far the entries of x0 can go.
        """
        displacement = iterate.point - x0
        found = charged(self._layers, self._network.evaluate(iterate.point, label, rival[:, None]))
        kappa += CURVATURE_FLOOR
        margin, gradient = tf.squeeze(found.margin, 1), tf.squeeze(found.gradient, 1)
        place = Place(margin - error, gradient, displacement, kappa, room)
        proved = self._geometry.in_ball(found, place, error)
        entries = tf.cast(tf.shape(x0)[1], tf.float64)
        inside = dual.norm(displacement) * (1.0 + gamma(entries + 8.0)) <= radius
        multiplier = dual.attack_multiplier(radius)
        following = dual.advance(multiplier, x0, kappa, iterate, margin, gradient)
        moved = following.point - x0
        shrink = (1.0 - 1e-9) * radius / tf.maximum(dual.norm(moved), radius)
        following = following._replace(point=x0 + tf.expand_dims(shrink, 1) * moved)
        return tf.where(inside, proved, 0.0), following
