"""CRC, the curvature-based robustness certificate.

`rival_search.py` searches, one gradient at a time, and `proved_radius.py` turns each gradient into
a radius: in float64, so that every gradient of the search is a proof as well, but for most of the
nearest rival's, which only have to find the way.

Reference: Singla & Feizi (2020), theorem 1 and definition 1 (which certifies one rival).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.geometries import geometry_of
from keras_curv.certificates.crc.geometry import Start
from keras_curv.certificates.crc.proved_radius import Charged, charged, proved_radius
from keras_curv.certificates.crc.rival_search import RivalSearch
from keras_curv.certificates.crc.search_state import SEARCHED
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question, WeakestPoint
from keras_curv.curvature.bounds import CurvatureBounds, curvature_bounds
from keras_curv.errors import require_at_least, require_probability
from keras_curv.network.activations import require_smooth
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import CLASS, CLASSES, ROWS, compiled
from keras_curv.numerics import rounding

# A search that gets as far as the served error is known is repeated up to a larger radius: its own
# without a served error, and at most so many times that of one gradient.
_FARTHER = 12.0
_INWARD = 1.0 - 2.0**-48


class CurvatureCertificate(Method):
    """Certifies inputs of one network; computes its curvature bounds once.

    A network may have limits of its input, or begin with a clip of it: see `crc/geometries.py`. The
    bounds of curvature are then those of the network behind the clip.

    Args:
        network: what to certify.
        served_error: bounds on the error of served margins.
        tolerance: relative gap between the radius and its bracket at which a search stops; None:
            that of the geometry, as for `max_steps`.
        max_steps: gradients in float32, and again in float64, after which a search stops in any
            case; any number is sound. A second search follows if the first gets beyond the radius
            up to which the served error is known.
        curvature: bounds that hold for this network, if they are known already.

    Attributes:
        geometry: where the attacker can go.
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

    name, turn = "crc", 1

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        tolerance: float | None = None,
        max_steps: int | None = None,
        curvature: CurvatureBounds | None = None,
    ):
        self.geometry = geometry = geometry_of(network)
        behind = geometry.network
        self._tolerance = geometry.tolerance if tolerance is None else tolerance
        self._max_steps = geometry.max_steps if max_steps is None else max_steps
        require_probability(self._tolerance, "tolerance")
        require_at_least(self._max_steps, 0, "max_steps")
        require_smooth(behind.activations)
        self.network, self.served_error = network, served_error
        self._first = compiled(ChargedGradients, behind, signature=(ROWS, CLASS, CLASSES))
        self.curvature = curvature_bounds(behind) if curvature is None else curvature
        # κ = 0 says that the margin is constant; all others get a floor against underflow.
        kappa = np.maximum(-self.curvature.lower, 0.0) + rounding.CURVATURE_FLOOR
        self.constant_margins = _constant_margins(behind)
        self._kappa = np.where(self.constant_margins, 0.0, kappa)

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        start = self.geometry.start(question.x)
        pairs = (tf.constant(part, tf.int32) for part in question[1:3])
        first = self._first(start.value, *pairs)
        goal = question.goal
        wanted = np.where(goal.every_rival & np.isfinite(goal.ceiling), goal.ceiling, 0.0)
        proved, most = self.first_radii(question, first)
        reach = np.maximum(self.geometry.served_up_to(proved, most), wanted[:, None])
        reach = np.minimum(most, reach)
        found, unlimited = self._search(question, start, first, wanted, reach)
        radius, gradients = found.radius, found.gradients
        short = (radius >= reach) & (reach < most)
        rows = np.flatnonzero((short & (radius <= _smallest(radius))).any(axis=1))
        if len(rows):
            farther = np.minimum(np.minimum(most, unlimited), np.maximum(_FARTHER * proved, reach))
            reach = np.where(short, farther, reach)[rows]
            value, charged = tf.nest.map_structure(
                lambda part: tf.gather(part, rows), (start.value, first)
            )
            begun = Start(value, start.room.rows(rows), start.displaced[rows])
            again, _ = self._search(question.take(rows), begun, charged, wanted[rows], reach)
            if found.point is not None and again.point is not None:
                farther = again.radius > radius[rows]
                found.point[rows] = np.where(farther[:, :, None], again.point, found.point[rows])
            radius[rows] = np.maximum(radius[rows], again.radius)
            gradients[rows] += again.gradients - question.rivals.shape[1]
        # What is proved of an input that is off by so much is proved of x by so much less.
        displaced = start.displaced[:, None]
        radius = np.where(displaced == 0.0, radius, np.fmax((radius - displaced) * _INWARD, 0.0))
        weakest = found.weakest
        assert weakest is not None
        point = self.geometry.input_at(weakest.point, question.x)
        return question.answer(
            self.name,
            radius,
            gradients,
            distance=found.distance,
            weakest=weakest._replace(point=point),
            point=found.point,
        )

    def kappa(self, label: np.ndarray, rivals: np.ndarray) -> np.ndarray:
        """Returns κ of pairs, `(n, rivals)`, as certificates use it.

        Args:
            label: `(n,)`.
            rivals: `(n, rivals)`.
        """
        return self._kappa[label[:, None], rivals]

    def _search(
        self,
        question: Question,
        start: Start,
        first: Charged,
        wanted: np.ndarray,
        reach: np.ndarray,
    ) -> tuple[Proof, np.ndarray]:
        """Searches each pair, up to where the served error is known.

        Args:
            question: about n examples.
            start: where searches begin.
            first: the gradients there.
            wanted: radii up to which every rival is searched, `(n,)`.
            reach: radii up to which a served error is asked for, `(n, rivals)`.

        Returns:
            The proof at `start`; and its radii if the served error stayed constant beyond `reach`.
        """
        x, label, rivals = question[:3]
        decide = sorted(question.goal.decide)
        found = self.search_graph(bool(decide), question.witness)(
            start.value,
            tf.convert_to_tensor(label, tf.int32),
            tf.convert_to_tensor(rivals, tf.int32),
            tf.convert_to_tensor(self.kappa(label, rivals), tf.float64),
            tf.convert_to_tensor(self.served_error(x, label, rivals, reach), tf.float64),
            tf.convert_to_tensor(wanted, tf.float64),
            first,
            start.room,
            tf.convert_to_tensor(decide, tf.float64),
        )
        unlimited = found.radius.numpy()
        proof = (
            question._replace(known=np.zeros(rivals.shape))
            .answer(
                self.name,
                np.minimum(unlimited, reach),
                found.evaluations.numpy(),
                distance=found.distance.numpy(),
                weakest=WeakestPoint(*(part.numpy() for part in found.weakest)),
            )
            ._replace(point=np.array(found.proved_at) if question.witness else None)
        )
        return proof, unlimited

    @functools.cached_property
    def _graphs(self) -> dict[tuple[bool, bool], Callable[..., Any]]:
        return {}

    def search_graph(self, decides: bool, keeps: bool = False) -> Callable[..., Any]:
        """Returns the search, for decisions or for the largest radius; see `RivalSearch`."""
        if (decides, keeps) not in self._graphs:
            settings = type(self.geometry), self._tolerance, self._max_steps, decides, keeps
            args = RivalSearch, self.geometry.network, *settings
            self._graphs[decides, keeps] = compiled(*args, signature=SEARCHED)
        return self._graphs[decides, keeps]

    def first_radii(self, question: Question, first: Charged) -> tuple[np.ndarray, np.ndarray]:
        """Returns radii `(n, rivals)` that one gradient proves, and the most that any could; both
        are infinite under the guarantee `real`, which does not need them."""
        nowhere = np.full(question.rivals.shape, np.inf)
        if self.served_error is no_error:
            return nowhere, nowhere
        kappa = self.kappa(question.label, question.rivals)
        none = tf.zeros_like(first.margin)
        proved = proved_radius(first, None, tf.constant(kappa), none).numpy()
        most = self.geometry.price * _known(_margin_bracket(first.margin, kappa))
        # What rounding took all of says nothing of how far to look.
        return np.where(proved > 0.0, proved, most), most


class ChargedGradients:
    """Margins of examples against their rivals, gradients, and bounds of their rounding errors."""

    def __init__(self, network: Network):
        self._network = network

    def __call__(self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor) -> Charged:
        """Evaluates `(n, dim)`, `(n,)` and `(n, rivals)` in float64."""
        found = self._network.evaluate(x, label, rivals)
        return charged(self._network.layer_norms, found)


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
