"""CRC against an attacker who is confined to a box.

At x0 inside, he is no stronger than one who may do anything to a classifier that clips its input to
that box first, where x0 stays as it is: `BoxSearch`.

What is proved without limits holds too, and no row may be below one without. The exact dual value
with limits never is; a search ends before. So the plain search is gone through as well, but where
`√(‖d‖² + 2f⁺/κ)` at some point says that no gradient proves as much without limits as was proved
with them (`dual.radius_bracket`): a plain step from where the search ended, taken in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.clipped_search import BoxSearch, bracket
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.search_state import LIMITED
from keras_curv.certificates.method import PairCertificates, ServedError, no_error
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, compiled
from keras_curv.numerics.rounding import margin_error
from keras_curv.threats.box import box_reach

_TOLERANCE = 3e-3  # relative gap of a search; the dual is flat at its solution
_STEPS = 16
_POINTS = 2  # evaluated, to look for a bracket of the plain search
_OUTWARD = 1.0 + 1e-9  # what brackets and radii round


class ConfinedCurvatureCertificate(CurvatureCertificate):
    """Certifies inputs of a network with limits; see `CurvatureCertificate`.

    No certificate is below that of the same network without limits, but by what float32 turns on
    the way of a search, some 1e-7 of it.

    Args:
        network: with limits.
        served_error, decide: as there.

    Example:
        >>> from keras_curv.network.pinned import PinnedNetwork
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
        >>> limits = np.zeros(2), np.ones(2)  # the boundary is √½ away, within the limits or not
        >>> confined = PinnedNetwork(network.affines, [], None, limits=limits)
        >>> certificate = ConfinedCurvatureCertificate(confined)
        >>> certificate.certify(np.array([[1.0, 0.0], [1.0, 0.5]])).radius.round(3)
        array([0.707, 0.354])
    """

    _kind, _signature = BoxSearch, LIMITED

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        decide: Sequence[float] = (),
    ):
        super().__init__(
            network, served_error, tolerance=_TOLERANCE, max_steps=_STEPS, decide=decide
        )
        self._plain_ceiling = compiled(
            PlainCeiling, network, signature=(ROWS, CLASS, CLASS, EACH, ROWS)
        )

    @functools.cached_property
    def _plain(self) -> CurvatureCertificate:
        """Of the same network, whose search heeds no limits."""
        args = self.network, self.served_error
        return CurvatureCertificate(*args, curvature=self.curvature, decide=self.decide)

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """See `CurvatureCertificate`; adversarial points are inside the box."""
        start = tf.constant(x, tf.float64)
        asked = self._asked(start, x, label, rivals, search_up_to)
        label, rivals = asked.label, asked.rivals
        reach = self._reach_by_margin(asked, 1.0)
        found, _ = self._searched(asked, reach, box_reach(self.network, start.numpy()))
        radius, gradients = found.radius.copy(), found.gradient_evaluations + _POINTS
        assert found.sighting is not None
        seen = rivals[np.arange(len(x)), found.sighting.column]
        ceiling = self._plain_ceiling(
            start,
            tf.constant(label, tf.int32),
            tf.constant(seen, tf.int32),
            tf.constant(self._kappa[label, seen]),
            tf.constant(found.sighting.point),
        )
        rows = np.flatnonzero(~(ceiling.numpy() * _OUTWARD <= radius.min(axis=1)))
        if len(rows):
            again = asked.take(rows)._replace(search_up_to=np.zeros(len(rows)))
            plain = self._plain.search(again)
            radius[rows] = np.maximum(radius[rows], plain.radius)
            gradients[rows] += plain.gradient_evaluations - rivals.shape[1]
        return found._replace(radius=radius, gradient_evaluations=gradients)


class PlainCeiling:
    """An upper bound on what any gradient proves without limits.

    What these round is charged to the margin.

    Args:
        network: without limits, or taken so.
    """

    def __init__(self, network: Network):
        self._network = network

    def __call__(
        self,
        x0: tf.Tensor,
        label: tf.Tensor,
        rival: tf.Tensor,
        curvature: tf.Tensor,
        point: tf.Tensor,
    ) -> tf.Tensor:
        """The bracket at a step from a point, `(n,)`; the better, the nearer it is to a solution.

        Args:
            x0: `(n, dim)`.
            label, rival: `(n,)`.
            curvature: κ, `(n,)`.
            point: from where, `(n, dim)`.
        """
        self._network.ready(tf.float32)
        start, quick, bend = (tf.cast(part, tf.float32) for part in (x0, point, curvature))
        margin, gradient = self._network.margin_and_gradient(quick, label, rival)
        eta = dual.certificate_multiplier(margin, gradient, quick - start, bend)
        moved = -tf.cast(tf.expand_dims(eta, 1) * gradient, tf.float64)
        moved = tf.where(tf.math.is_finite(moved), moved, 0.0)
        left, activations = self._network.margins(x0 + moved, label, rival[:, None])
        charge = margin_error(self._network.layer_norms, activations)
        cost = tf.reduce_sum(moved * moved, axis=1)
        return bracket(cost, tf.nn.relu(left[:, 0] + charge), curvature)
