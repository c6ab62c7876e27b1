"""CRC, the curvature-based robustness certificate: for one pair, and for all rivals.

**What is proved.** Let ŷ be the predicted class of x0. If the certificate says `r`, then for
every δ in ℝᵈ with `‖δ‖₂ < r` and every rival t that was asked for, `z_ŷ(x0+δ) > z_t(x0+δ)`.
With `rivals="all"` the prediction therefore cannot change. This is a statement about real
arithmetic on the stored weights (guarantee level `real`): the rounding of our own float64
computation is charged, the rounding of a server that runs the model in float32 is not.

**How.** `screening.py` searches, one gradient at a time, and `proved_radius` turns each gradient
into a radius: float64 throughout, so that every gradient of the search is a proof as well. A search
in float32 needs one more gradient, in float64, to close each rival, and measured no faster for a
quarter more gradients (2 × 1024 softplus, MNIST, all rivals).

Reference: Singla & Feizi (2020), theorem 1 and definition 1 (which certifies one rival).
"""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual, rounding
from keras_curv.curvature import CurvatureBounds, curvature_bounds
from keras_curv.network import Evaluation, Network
from keras_curv.screening import PRIMAL_EQUALS_DUAL, Screening

GUARANTEE = "real"
RIVALS = ("all", "runner_up", "random", "least")


class Status(enum.IntEnum):
    """What came of one example; `text` is what the user reads."""

    CERTIFIED = 0
    MISCLASSIFIED = 1
    TIED = 2
    UNPROVED = 3
    NOT_FINITE = 4

    @property
    def text(self) -> str:
        """What the status means, in a line."""
        return _STATUS_TEXT[self]


_STATUS_TEXT = {
    Status.CERTIFIED: "the prediction cannot change within the radius",
    Status.MISCLASSIFIED: "the prediction is not the label; there is nothing to certify",
    Status.TIED: "two classes share the largest logit; the prediction is not defined",
    Status.UNPROVED: "correct, but no positive radius could be proved",
    Status.NOT_FINITE: "the logits overflow; nothing can be proved",
}


class Certificates(NamedTuple):
    """One entry for each example, arrays of length n.

    Attributes:
        prediction: int64, the class with the largest logit.
        radius: float64, `‖δ‖₂ < radius` cannot change the prediction against the rivals asked
            for; in the model's input units; 0 unless `status` is CERTIFIED.
        nearest_rival: int64, the rival with the smallest radius; −1 where none was examined.
        status: int64, values of `Status`.
        gradient_evaluations: int64, gradients of one margin, summed over the rivals.
        adversarial_distance: float64, distance of a point that was found to change the
            prediction when evaluated in float64, `inf` where the search met none; the true
            distance to the decision boundary is between `radius` and this.
        primal_equals_dual: bool, the two coincide (to 0.1 %): the radius is the exact distance.
    """

    prediction: np.ndarray
    radius: np.ndarray
    nearest_rival: np.ndarray
    status: np.ndarray
    gradient_evaluations: np.ndarray
    adversarial_distance: np.ndarray
    primal_equals_dual: np.ndarray


def around(result: Certificates, moved: np.ndarray) -> Certificates:
    """Certificates of inputs x, from those of the points certified, `moved` away from x.

    Args:
        result: of the points.
        moved: bound of each ‖x − point‖, `(n,)`; what converting x to the model's dtype did.
    """
    radius = np.maximum(result.radius - rounding.up(moved), 0.0) * (1.0 - rounding.gamma(4))
    radius = np.where(moved > 0.0, radius, result.radius)
    lost = (result.status == Status.CERTIFIED) & ~(radius > 0.0)
    distance = result.adversarial_distance + moved
    return result._replace(
        radius=radius,
        status=np.where(lost, Status.UNPROVED, result.status),
        adversarial_distance=distance,
        primal_equals_dual=result.primal_equals_dual
        & (distance <= radius * (1.0 + PRIMAL_EQUALS_DUAL)),
    )


class PairCertificates(NamedTuple):
    """Like `Certificates`, but for each example and each of its rivals, `(n, rivals)`."""

    radius: np.ndarray
    adversarial_distance: np.ndarray
    gradient_evaluations: np.ndarray  # (n,)


class CurvatureCertificate:
    """Certifies inputs of one network; computes its curvature bounds once.

    Args:
        network: what to certify.
        tolerance: relative gap between the radius and its bracket at which a search stops.
        max_steps: gradients after which a search stops in any case; any number is sound.
        curvature: bounds that hold for this network, if they are known already.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> certificate = CurvatureCertificate(network)
        >>> x = np.array([[3.0, 1.0]])
        >>> certificate.certify(x, np.array([0])).radius.round(6)   # margin 2, gradient √2
        array([1.414214])
    """

    def __init__(
        self,
        network: Network,
        *,
        tolerance: float = 1e-4,
        max_steps: int = 40,
        curvature: CurvatureBounds | None = None,
    ):
        if not 0.0 < tolerance < 1.0:
            raise ValueError(f"tolerance must be between 0 and 1. Received: {tolerance}")
        if max_steps < 0:
            raise ValueError(f"max_steps must not be negative. Received: {max_steps}")
        self.network = network
        self.tolerance = tolerance
        self.max_steps = max_steps
        self.curvature = curvature_bounds(network) if curvature is None else curvature
        # κ = 0 says that the margin is constant; all others get a floor against underflow.
        kappa = np.maximum(-self.curvature.lower, 0.0) + rounding.CURVATURE_FLOOR
        self._kappa = np.where(_constant_margins(network), 0.0, kappa)
        self._prove = functools.partial(proved_radius, layer_norms(network))
        self._logits = tf.function(
            network.logits, input_signature=[tf.TensorSpec((None, network.dim), tf.float64)]
        )
        screening = Screening(network, self._prove, tolerance=tolerance, max_steps=max_steps)
        self._search = tf.function(
            screening.__call__,
            input_signature=[
                tf.TensorSpec((None, network.dim), tf.float64),
                tf.TensorSpec((None,), tf.int32),
                tf.TensorSpec((None, None), tf.int32),
                tf.TensorSpec((None, None), tf.float64),
            ],
        )

    def logits(self, x: np.ndarray) -> np.ndarray:
        """`(n, dim)` → `(n, classes)`, float64."""
        return self._logits(tf.convert_to_tensor(x, tf.float64)).numpy()

    def certify(
        self,
        x: np.ndarray,
        label: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seeds: np.ndarray | None = None,
    ) -> Certificates:
        """Certifies the predicted class of each input.

        Args:
            x: `(n, dim)`, the exact numbers that the model receives.
            label: `(n,)`, integers; an example whose prediction differs is MISCLASSIFIED and
                gets radius 0. None certifies the predicted class.
            rivals: the classes to hold against the prediction. "all" certifies the classifier;
                "runner_up" (largest other logit), "least" (smallest) and "random" (one drawn
                uniformly) are the single-rival protocols of the paper's tables and are not
                certificates of a classifier.
            seeds: `(n,)`, for "random": the draw of each example depends on its seed alone.

        Returns:
            `Certificates`.
        """
        x = np.asarray(x, np.float64)
        logits = self.logits(x)
        count = len(x)
        prediction = logits.argmax(axis=1)
        with np.errstate(invalid="ignore"):
            ties = np.sum(logits == logits.max(axis=1, keepdims=True), axis=1) > 1
        finite = np.isfinite(logits).all(axis=1)
        wrong = np.zeros(count, bool) if label is None else prediction != np.asarray(label)

        status = np.full(count, Status.UNPROVED, np.int64)
        status[wrong] = Status.MISCLASSIFIED
        status[ties] = Status.TIED
        status[~finite] = Status.NOT_FINITE

        result = Certificates(
            prediction=prediction.astype(np.int64),
            radius=np.zeros(count),
            nearest_rival=np.full(count, -1, np.int64),
            status=status,
            gradient_evaluations=np.zeros(count, np.int64),
            adversarial_distance=np.full(count, np.inf),
            primal_equals_dual=np.zeros(count, bool),
        )
        rows = np.flatnonzero(status == Status.UNPROVED)
        if not len(rows):
            return result
        seeds = np.arange(count) if seeds is None else np.asarray(seeds)
        against = choose_rivals(logits[rows], prediction[rows], rivals, seeds[rows])
        pairs = self.certify_pairs(x[rows], prediction[rows], against)
        nearest = pairs.radius.argmin(axis=1)
        radius = pairs.radius.min(axis=1)
        distance = pairs.adversarial_distance.min(axis=1)
        result.radius[rows] = radius
        result.nearest_rival[rows] = np.take_along_axis(against, nearest[:, None], axis=1)[:, 0]
        result.status[rows[radius > 0.0]] = Status.CERTIFIED
        result.gradient_evaluations[rows] = pairs.gradient_evaluations
        result.adversarial_distance[rows] = distance
        result.primal_equals_dual[rows] = distance <= radius * (1.0 + PRIMAL_EQUALS_DUAL)
        return result

    def certify_pairs(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray
    ) -> PairCertificates:
        """A valid radius for each (label, rival) pair, `(n, rivals)`.

        Every entry is proved; an entry that is not the smallest of its row may be far from the
        largest provable one, as its search stops once it cannot be the smallest.

        Args:
            x: `(n, dim)`.
            label: `(n,)`.
            rivals: `(n, rivals)`, none equal to its label.
        """
        kappa = self._kappa[np.asarray(label)[:, None], rivals]
        radius, distance, evaluations = self._search(
            tf.convert_to_tensor(x, tf.float64),
            tf.convert_to_tensor(label, tf.int32),
            tf.convert_to_tensor(rivals, tf.int32),
            tf.convert_to_tensor(kappa, tf.float64),
        )
        return PairCertificates(radius.numpy(), distance.numpy(), evaluations.numpy())

    def radius_at(
        self, x0: tf.Tensor, point: tf.Tensor, label: tf.Tensor, rival: tf.Tensor
    ) -> tf.Tensor:
        """The proved radius of x0 from one gradient at any `point` whatever, `(n,)`, float64.

        Sound for every point, good or bad: what the search does at each of its points, by hand.
        """
        label, rival = tf.cast(label, tf.int32), tf.cast(rival, tf.int32)
        kappa = tf.gather_nd(tf.constant(self._kappa, tf.float64), tf.stack([label, rival], axis=1))
        x0, point = tf.cast(x0, tf.float64), tf.cast(point, tf.float64)
        evaluation = self.network.evaluate(point, label, rival[:, None])
        return self._prove(evaluation, point - x0, kappa[:, None])[:, 0]


def layer_norms(network: Network) -> list[rounding.LayerNorms]:
    """What the rounding charge needs of every affine map of the network."""
    activations = (*network.activations, None)
    return [a.norms(s) for a, s in zip(network.affines, activations, strict=True)]


def proved_radius(
    layers: list[rounding.LayerNorms],
    evaluation: Evaluation,
    displacement: tf.Tensor,
    curvature: tf.Tensor,
) -> tf.Tensor:
    """Radii `(n, rivals)` from float64 evaluations at `x0 + displacement`, rounding charged.

    A⁻ = A − e_f − e_g ‖d‖ − γ (|f| + ‖g‖‖d‖ + κ‖d‖²),   h⁺ = h + e_g + γ (‖g‖ + κ‖d‖)

    A curvature that holds in `B(x0, R)` only needs `‖displacement‖ ≤ R`, and proves min(r, R).

    Args:
        layers: `layer_norms` of the network.
        evaluation: at `x0 + displacement`, n points against as many rivals.
        displacement: `(n, dim)`.
        curvature: κ, `(n, rivals)`.
    """
    charge = rounding.margin_charge(layers, evaluation.activations, evaluation.cotangents)
    rivals = tf.shape(curvature)[1]
    margin = tf.reshape(evaluation.margin, [-1])
    gradient = tf.reshape(evaluation.gradient, (-1, layers[0].fan_in))
    kappa = tf.reshape(curvature, [-1])
    margin_error = tf.reshape(charge.margin, [-1])
    gradient_error = tf.reshape(charge.gradient, [-1])
    displacement = tf.repeat(displacement, rivals, axis=0)

    bound = dual.minorant(margin, gradient, displacement, kappa)
    distance = tf.norm(displacement, axis=-1)
    steepness = tf.norm(gradient, axis=-1)
    unit = rounding.gamma(layers[0].fan_in + 10)
    intercept_error = (
        margin_error
        + gradient_error * distance
        + unit * (tf.abs(margin) + steepness * distance + kappa * distance * distance)
    ) * (1.0 + 1e-9)
    slope_error = gradient_error + unit * (steepness + kappa * distance)
    slope_error = tf.where(kappa > 0.0, slope_error + rounding.SLOPE_FLOOR, 0.0)
    charged = dual.Minorant(
        bound.intercept - intercept_error,
        (bound.slope + slope_error) * (1.0 + rounding.gamma(8)),
        bound.curvature,
    )
    radius = dual.certified_radius(charged) * (1.0 - rounding.gamma(32))
    return tf.reshape(radius, (-1, rivals))


def _constant_margins(network: Network) -> np.ndarray:
    """Which pairs have a margin that no input can change, `(classes, classes)`."""
    exact = [affine for affine in network.affines if not affine.kernel_error]
    if any(not np.any(affine.kernel) for affine in exact):
        return np.ones((network.classes, network.classes), bool)
    last = network.affines[-1]
    columns = last.kernel.T
    same = np.array([np.all(columns == column, axis=1) for column in columns])
    return same & (last.kernel_error == 0.0)


def choose_rivals(
    logits: np.ndarray, label: np.ndarray, rivals: str, seeds: np.ndarray
) -> np.ndarray:
    """The classes to hold against each label, `(n, 1)` or `(n, classes − 1)`, int64.

    Classes are excluded by index, never by value, so that a tied rival stays in.

    Args:
        logits: `(n, classes)`.
        label: `(n,)`.
        rivals: "all", "runner_up", "random" or "least".
        seeds: `(n,)`, non-negative; used by "random".

    Raises:
        ValueError: unknown `rivals`.
    """
    count, classes = logits.shape
    others = np.tile(np.arange(classes - 1), (count, 1))
    others += others >= label[:, None]
    if rivals == "all":
        return others
    theirs = np.take_along_axis(logits, others, axis=1)
    if rivals == "runner_up":
        column = theirs.argmax(axis=1)
    elif rivals == "least":
        column = theirs.argmin(axis=1)
    elif rivals == "random":
        column = np.array(
            [np.random.default_rng(seed).integers(classes - 1) for seed in seeds], np.int64
        )
    else:
        raise ValueError(
            f"rivals must be 'all', 'runner_up', 'random' or 'least'. Received: {rivals!r}"
        )
    return np.take_along_axis(others, column[:, None], axis=1)
