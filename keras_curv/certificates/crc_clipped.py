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
from keras_curv.certificates.method import PairCertificates, ServedError, Sighting, no_error
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

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        decide: Sequence[float] = (),
    ):
        split = split_clip(network)
        if split is None:
            raise InputError("the network does not begin with a clip of its input")
        self.clip, behind = split
        super().__init__(behind, served_error, decide=decide)
        self.behind, self.network = behind, network
        search = ClippedSearch(behind, tolerance=_TOLERANCE, max_steps=_STEPS, decide=self.decide)
        self._search = search.compiled(network.dim)

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """See `CurvatureCertificate`."""
        search_up_to = np.zeros(len(x)) if search_up_to is None else search_up_to
        label, rivals = np.asarray(label), np.asarray(rivals)
        kappa = self._kappa[label[:, None], rivals]
        start = clipped(self.clip, tf.constant(x, tf.float64))
        reach = np.full(kappa.shape, np.inf)
        if self.served_error is not no_error:
            reach = self._reach_behind(start.value, label, rivals, kappa)
        found = self._search(
            start.value,
            tf.convert_to_tensor(label, tf.int32),
            tf.convert_to_tensor(rivals, tf.int32),
            tf.convert_to_tensor(kappa, tf.float64),
            tf.convert_to_tensor(self.served_error(x, label, rivals, reach), tf.float64),
            tf.convert_to_tensor(search_up_to, tf.float64),
            start.reach,
        )
        displaced = start.displaced.numpy()[:, None]
        radius = found.radius.numpy()
        radius = np.maximum(np.where(displaced > 0.0, (radius - displaced) * _INWARD, radius), 0.0)
        column, point, left, margin = (part for part in found.sighting)
        point = self.clip.nearest(point, tf.constant(x, tf.float64))
        return PairCertificates(
            np.minimum(radius, reach),
            found.evaluations.numpy(),
            found.distance.numpy(),
            sighting=Sighting(*(part.numpy() for part in (column, point, left, margin))),
        )

    def _reach_behind(
        self, start: tf.Tensor, label: np.ndarray, rivals: np.ndarray, kappa: np.ndarray
    ) -> np.ndarray:
        """Radii within which a served error is worth knowing: no λ proves more than a margin."""
        margin = self.behind.evaluate(start, tf.constant(label), tf.constant(rivals)).margin
        with np.errstate(divide="ignore", invalid="ignore"):
            bracket = np.sqrt(2.0 * np.maximum(margin.numpy(), 0.0) / kappa)
        return np.nan_to_num(bracket * self.clip.cost.max(), nan=0.0, posinf=np.inf)

    def radius_at(
        self, x0: tf.Tensor, point: tf.Tensor, label: tf.Tensor, rival: tf.Tensor
    ) -> tf.Tensor:
        """Refused: a point behind the clip has no radius of its own."""
        raise InputError("a network that clips its input is certified by its search alone")
