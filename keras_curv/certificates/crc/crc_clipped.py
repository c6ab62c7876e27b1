"""CRC of a classifier that clips its own input, for unrestricted δ.

F = f ∘ T, T the clip. Curvature is that of f, behind the clip; what attackers lose to it is in
`threats/clipped.py`. A gradient of f at any û is turned into a radius of F by the one-dimensional
dual of `threats/confined.py`, its rounding charged like that of a plain certificate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.clipped_search import ClippedSearch
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.search_state import LIMITED
from keras_curv.certificates.method import PairCertificates, ServedError, no_error
from keras_curv.errors import InputError
from keras_curv.network.clip import split_clip
from keras_curv.network.network import Network
from keras_curv.threats.clipped import clipped

_TOLERANCE = 1e-3  # relative gap of a search; the dual is flat at its solution
_STEPS = 40
_INWARD = 1.0 - 2.0**-48


class ClippedCurvatureCertificate(CurvatureCertificate):
    """Certifies inputs of a network that begins with a clip; see `CurvatureCertificate`.

    Args:
        network: with the clip as its first map and activation.
        served_error, decide: as there; what serving takes off is that of the whole network.

    Raises:
        InputError: the network has no clip, or an activation behind it is not differentiable.

    Example:
        >>> weights = [np.eye(2), np.array([[1.0, -1.0], [0.0, 0.0]])]
        >>> network = Network.from_weights(weights, [np.zeros(2)] * 2, "capped_relu(1.0)")
        >>> certificate = ClippedCurvatureCertificate(network)
        >>> certificate.certify(np.array([[0.5, 0.0], [9.0, 0.0]])).radius.round(3)
        array([0.5, 9. ])
    """

    _kind, _signature = ClippedSearch, LIMITED

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        decide: Sequence[float] = (),
    ):
        split = split_clip(network)
        if split is None:
            raise InputError(
                "the network does not begin with a clip of its input: use CurvatureCertificate"
            )
        self.clip, behind = split
        super().__init__(
            behind, served_error, tolerance=_TOLERANCE, max_steps=_STEPS, decide=decide
        )
        self.behind, self.network = behind, network

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """See `CurvatureCertificate`."""
        start = clipped(self.clip, tf.constant(x, tf.float64))
        asked = self._asked(start.value, x, label, rivals, search_up_to)
        limits, cost = start.reach, start.reach.cost.numpy()
        if np.all(cost == cost[0]):  # as a rule, and what is the same for all is quicker
            limits = limits._replace(cost=limits.cost[:1])
        reach = self._reach_by_margin(asked, self.clip.cost.max())
        found, _ = self._searched(asked, reach, limits)
        assert found.sighting is not None
        # What is proved of x0′ is proved of x0 by so much less.
        displaced = start.displaced.numpy()[:, None]
        radius = np.where(displaced == 0.0, found.radius, (found.radius - displaced) * _INWARD)
        point = self.clip.nearest(tf.constant(found.sighting.point), tf.constant(x, tf.float64))
        return found._replace(
            radius=np.fmax(radius, 0.0),  # 0 for NaN
            sighting=found.sighting._replace(point=point.numpy()),
        )
