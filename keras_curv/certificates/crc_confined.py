"""CRC against an attacker who is confined to a box.

At x0 inside, he is no stronger than one who may do anything to a classifier that clips its input to
that box first, where x0 stays as it is: `clipped_search.py` without dead zones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_curv.certificates.clipped_search import ClippedSearch
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.method import PairCertificates, ServedError, no_error
from keras_curv.certificates.rival_search import LIMITED
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import compiled
from keras_curv.threats.box import box_reach

_TOLERANCE = 3e-3  # relative gap of a search; the dual is flat at its solution
_STEPS = 16


class ConfinedCurvatureCertificate(CurvatureCertificate):
    """Certifies inputs of a network with limits; see `CurvatureCertificate`.

    No certificate is below that of the same network without limits.

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

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        decide: Sequence[float] = (),
    ):
        super().__init__(network, served_error, decide=decide)
        settings = _TOLERANCE, _STEPS, self.decide
        self._limited = compiled(ClippedSearch, network, *settings, signature=LIMITED)

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """See `CurvatureCertificate`; adversarial points are inside the box."""
        label, rivals = np.asarray(label), np.asarray(rivals)
        start = tf.constant(x, tf.float64)
        search_up_to = np.zeros(len(x)) if search_up_to is None else search_up_to
        reach = self._reach_by_margin(self.network, 1.0, start, label, rivals)
        limits = box_reach(self.network, start)
        found = self._searched(self._limited, start, x, label, rivals, reach, search_up_to, limits)
        radius, gradients = found.radius, found.gradient_evaluations
        radius, gradients = self._not_below_plain(x, label, rivals, radius, gradients)
        return found._replace(radius=radius, gradient_evaluations=gradients)

    def _not_below_plain(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        gradients: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Searches the nearest rival of each example without limits too, until it stays nearest.

        Then its radius, and so the smallest, is not below what all rivals come to without limits.
        """
        radius, gradients, known = radius.copy(), gradients.copy(), np.zeros(radius.shape, bool)
        while True:
            nearest = radius.argmin(axis=1)
            rows = np.flatnonzero(~known[np.arange(len(x)), nearest])
            if not len(rows):
                return radius, gradients
            cells = rows, nearest[rows]
            plain = super().certify_pairs(x[rows], label[rows], rivals[cells][:, None])
            radius[cells] = np.maximum(radius[cells], plain.radius[:, 0])
            gradients[rows] += plain.gradient_evaluations
            known[cells] = True
