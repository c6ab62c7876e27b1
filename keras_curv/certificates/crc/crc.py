"""CRC, the curvature-based robustness certificate.

`rival_search.py` searches, one gradient at a time, and `proved_radius.py` turns each gradient into
a radius: in float64, so that every gradient of the search is a proof as well, but for most of the
nearest rival's, which only have to find the way.

Reference: Singla & Feizi (2020), theorem 1 and definition 1 (which certifies one rival).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.first_gradients import StartGradients
from keras_curv.certificates.crc.proved_radius import Charged, proved_radius
from keras_curv.certificates.crc.rival_search import RivalSearch
from keras_curv.certificates.crc.search_state import SEARCHED
from keras_curv.certificates.method import (
    Method,
    PairCertificates,
    Prospect,
    ServedError,
    Sighting,
    no_error,
)
from keras_curv.curvature.bounds import CurvatureBounds, curvature_bounds
from keras_curv.errors import require_at_least, require_probability
from keras_curv.network.activations import require_smooth
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import compiled, trace_ahead
from keras_curv.numerics import rounding
from keras_curv.threats.confined import Reach

# What serving takes off is asked for up to so many times the radius that one gradient proves; where
# that turns out too short, once more, up to what the search then says, or so many times.
_REACH, _FARTHER = 1.5, 12.0


class Asked(NamedTuple):
    """What is to be searched, n examples."""

    x: np.ndarray  # as serving is given them, (n, dim)
    label: np.ndarray  # (n,)
    rivals: np.ndarray  # (n, rivals)
    search_up_to: np.ndarray  # radii, (n,)
    start: tf.Tensor  # where searches begin, (n, dim), float64
    first: Charged  # the gradients there

    def take(self, rows: np.ndarray) -> Asked:
        """Returns some of the examples."""
        numbers = (part[rows] for part in self[:4])
        return Asked(*numbers, *tf.nest.map_structure(lambda a: tf.gather(a, rows), self[4:]))


class CurvatureCertificate(Method):
    """Certifies inputs of one network; computes its curvature bounds once.

    Args:
        network: what to certify.
        served_error: what serving may take off a margin.
        tolerance: relative gap between the radius and its bracket at which a search stops.
        max_steps: gradients in float32, and again in float64, after which a search stops in any
            case; any number is sound. There are two searches where a first one is too short for
            what serving takes off.
        curvature: bounds that hold for this network, if they are known already.
        decide: radii at which alone the answer matters: a search ends once it has decided them.

    Attributes:
        curvature: its bounds.
        constant_margins: which pairs have a margin that no input can change, `(classes, classes)`.

    Raises:
        InputError: an activation is not differentiable; it is named.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> certificate = CurvatureCertificate(network)
        >>> x = np.array([[3.0, 1.0]])
        >>> certificate.certify(x, np.array([0])).radius.round(6)   # margin 2, gradient √2
        array([1.414214])
    """

    name = "crc"
    _kind: type[RivalSearch] = RivalSearch
    _signature: tuple = SEARCHED

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        tolerance: float = 1e-4,
        max_steps: int = 40,
        curvature: CurvatureBounds | None = None,
        decide: Sequence[float] = (),
    ):
        require_probability(tolerance, "tolerance")
        require_at_least(max_steps, 0, "max_steps")
        require_smooth(network.activations)
        self.network = network
        self.served_error = served_error
        self.decide = tuple(decide)
        self._start_gradients = StartGradients(network, double=not max_steps)
        settings = tolerance, max_steps, self.decide
        self._search = compiled(self._kind, network, *settings, signature=self._signature)
        trace_ahead(*self._start_gradients.graphs, self._search)
        self.curvature = curvature_bounds(network) if curvature is None else curvature
        # κ = 0 says that the margin is constant; all others get a floor against underflow.
        kappa = np.maximum(-self.curvature.lower, 0.0) + rounding.CURVATURE_FLOOR
        self.constant_margins = _constant_margins(network)
        self._kappa = np.where(self.constant_margins, 0.0, kappa)

    def radii(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        known: np.ndarray,
        prospect: Prospect | None = None,
    ) -> PairCertificates:
        """See `Method`: every rival is searched up to the ceiling, where there is one."""
        search_up_to = None
        if prospect is not None:
            search_up_to = np.where(np.isfinite(prospect.ceiling), prospect.ceiling, 0.0)
        found = self.certify_pairs(x, label, rivals, search_up_to)
        return found._replace(radius=np.maximum(found.radius, known))

    def certify_pairs(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None = None,
    ) -> PairCertificates:
        """A valid radius for each (label, rival) pair, `(n, rivals)`.

        Every entry is proved; an entry that is not the smallest of its row may be far from the
        largest provable one, as its search stops once it cannot be the smallest.

        Args:
            x: `(n, dim)`.
            label: `(n,)`.
            rivals: `(n, rivals)`, none equal to its label.
            search_up_to: radii `(n,)` up to which the search goes on even so.
        """
        start = tf.convert_to_tensor(x, tf.float64)
        return self.search(self._asked(start, x, label, rivals, search_up_to))

    def search(self, asked: Asked) -> PairCertificates:
        """Certifies what `_asked` returned, as `certify_pairs` does."""
        proved, most = self._first_radii(asked)
        reach = np.minimum(most, np.maximum(_REACH * proved, asked.search_up_to[:, None]))
        found, unlimited = self._searched(asked, reach)
        radius, gradients = found.radius, found.gradient_evaluations
        short = (radius >= reach) & (reach < most)
        rows = np.flatnonzero((short & (radius <= _smallest(radius))).any(axis=1))
        if len(rows):
            farther = np.minimum(np.minimum(most, unlimited), np.maximum(_FARTHER * proved, reach))
            reach = np.where(short, farther, reach)
            again, _ = self._searched(asked.take(rows), reach[rows])
            radius[rows] = np.maximum(radius[rows], again.radius)
            gradients[rows] += again.gradient_evaluations - asked.rivals.shape[1]
        return found._replace(radius=radius, gradient_evaluations=gradients)

    def _asked(
        self,
        start: tf.Tensor,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        search_up_to: np.ndarray | None,
    ) -> Asked:
        x, label, rivals = np.asarray(x), np.asarray(label), np.asarray(rivals)
        search_up_to = np.zeros(len(x)) if search_up_to is None else search_up_to
        first = self._start_gradients(start, label, rivals)
        return Asked(x, label, rivals, search_up_to, start, first)

    def kappa(self, label: np.ndarray, rivals: np.ndarray) -> np.ndarray:
        """κ of pairs, `(n, rivals)`, as certificates use it.

        Args:
            label: `(n,)`.
            rivals: `(n, rivals)`.
        """
        return self._kappa[label[:, None], rivals]

    def _searched(
        self, asked: Asked, reach: np.ndarray, *limits: Reach
    ) -> tuple[PairCertificates, np.ndarray]:
        """What a search finds for each pair, up to where it is known what serving takes off.

        Beside it, radii that would be proved if that did not grow from there on.

        Args:
            asked: what is to be searched.
            reach: radii up to which a served error is asked for, `(n, rivals)`.
            limits: of the entries, where the search takes them.
        """
        x, label, rivals, search_up_to, start, first = asked
        found = self._search(
            start,
            tf.convert_to_tensor(label, tf.int32),
            tf.convert_to_tensor(rivals, tf.int32),
            tf.convert_to_tensor(self.kappa(label, rivals), tf.float64),
            tf.convert_to_tensor(self.served_error(x, label, rivals, reach), tf.float64),
            tf.convert_to_tensor(search_up_to, tf.float64),
            first,
            *limits,
        )
        unlimited = found.radius.numpy()
        pairs = PairCertificates(
            np.minimum(unlimited, reach),
            found.evaluations.numpy(),
            found.distance.numpy(),
            sighting=Sighting(*(part.numpy() for part in found.sighting)),
        )
        return pairs, unlimited

    def _first_radii(self, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
        """Radii `(n, rivals)` that one gradient proves, and the most that any could; infinite
        where serving takes nothing off, which is where nobody has to know."""
        if self.served_error is no_error:
            return np.full(asked.rivals.shape, np.inf), np.full(asked.rivals.shape, np.inf)
        kappa = self.kappa(asked.label, asked.rivals)
        none = tf.zeros_like(asked.first.margin)
        proved = proved_radius(asked.first, None, tf.constant(kappa), none).numpy()
        most = _known(_margin_bracket(asked.first.margin, kappa))
        # What rounding took all of says nothing of how far to look.
        return np.where(proved > 0.0, proved, most), most

    def _reach_by_margin(self, asked: Asked, price: float) -> np.ndarray:
        """Radii `(n, rivals)` up to which a served error is asked for, where entries have limits:
        what the margin of the weakest rival could prove, whatever λ, or the search's own reach.

        Args:
            asked: what is searched.
            price: the most that moving any entry by 1 costs.
        """
        if self.served_error is no_error:
            return np.full(asked.rivals.shape, np.inf)
        kappa = self.kappa(asked.label, asked.rivals)
        most = price * _known(_margin_bracket(asked.first.margin, kappa))
        return np.minimum(most, np.maximum(_smallest(most), asked.search_up_to[:, None]))


def _margin_bracket(margin: tf.Tensor, kappa: np.ndarray) -> np.ndarray:
    """`√(2 f⁺/κ)`, `(n, rivals)`: no gradient proves more, where f is the margin at the start."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(2.0 * np.maximum(margin, 0.0) / kappa)


def _known(radius: np.ndarray) -> np.ndarray:
    """Replaces NaN by 0: it is 0/0, of a margin that is always 0."""
    return np.nan_to_num(radius, nan=0.0, posinf=np.inf)


def _smallest(radius: np.ndarray) -> np.ndarray:
    """Returns the smallest radius of each example, `(n, 1)`."""
    return radius.min(axis=1, keepdims=True, initial=np.inf)


def _constant_margins(network: Network) -> np.ndarray:
    """Which pairs have a margin that no input can change, `(classes, classes)`."""
    if any(affine.is_zero for affine in network.differentials):
        return np.ones((network.classes, network.classes), bool)
    last = network.differentials[-1]
    columns = last.kernel.T
    same = np.array([np.all(columns == column, axis=1) for column in columns])
    return same & (last.kernel_error == 0.0)
