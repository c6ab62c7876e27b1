"""CRC of a classifier that clips its own input, for unrestricted δ.

F = f ∘ T, T the clip. Curvature is that of f, behind the clip; what attackers lose to it is in
`threats/clipped.py`. A gradient of f at any û is turned into a radius of F by the one-dimensional
dual of `threats/confined.py`, its rounding charged like that of a plain certificate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_curv.certificates.clipped_search import ClippedSearch
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.method import PairCertificates, ServedError, no_error
from keras_curv.certificates.search_state import LIMITED
from keras_curv.errors import InputError
from keras_curv.network.clip import split_clip
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import compiled
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
        super().__init__(behind, served_error, decide=decide)
        self.behind, self.network = behind, network
        settings = _TOLERANCE, _STEPS, self.decide
        self._limited = compiled(ClippedSearch, behind, *settings, signature=LIMITED)

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """See `CurvatureCertificate`."""
        start = clipped(self.clip, tf.constant(x, tf.float64))
        limits, cost = start.reach, start.reach.cost.numpy()
        if np.all(cost == cost[0]):  # as a rule, and what is the same for all is quicker
            limits = limits._replace(cost=limits.cost[:1])
        label, rivals = np.asarray(label), np.asarray(rivals)
        search_up_to = np.zeros(len(x)) if search_up_to is None else search_up_to
        price = self.clip.cost.max()
        args = start.value, label, rivals, search_up_to
        reach = self._reach_by_margin(self.behind, price, *args)
        found, _ = self._searched(
            self._limited, start.value, x, label, rivals, reach, search_up_to, limits
        )
        assert found.sighting is not None
        # What is proved of x0′ is proved of x0 by so much less.
        displaced = start.displaced.numpy()[:, None]
        radius = np.where(displaced == 0.0, found.radius, (found.radius - displaced) * _INWARD)
        point = self.clip.nearest(tf.constant(found.sighting.point), tf.constant(x, tf.float64))
        return found._replace(
            radius=np.fmax(radius, 0.0),  # 0 for NaN
            sighting=found.sighting._replace(point=point.numpy()),
        )

    def radius_at(
        self, x0: tf.Tensor, point: tf.Tensor, label: tf.Tensor, rival: tf.Tensor
    ) -> tf.Tensor:
        """Refused: a point behind the clip has no radius of its own."""
        raise InputError("a network that clips its input is certified by its search alone")
