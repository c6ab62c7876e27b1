"""The interface of methods of certification.

A method proves radii for pairs (example, rival). From these, `Method.certify` makes certificates
of examples, in the same way for all of them.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_curv.certificates.certificate import (
    PRIMAL_EQUALS_DUAL,
    Certificates,
    Status,
    choose_rivals,
)
from keras_curv.certificates.question import Proof, Question, WeakestPoint
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import as_graph
from keras_curv.process import certifying
from keras_curv.threats.properties.property import ARGMAX, Property


class ServedError:
    """Bounds on the error of served margins; this class charges none, as for real arithmetic."""

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Bounds the error of served margins in each ball; the bounds do not fall as radii grow.

        Args:
            x: `(n, dim)`.
            label: `(n,)`.
            rivals: `(n, k)`.
            radius: of the ball, `(n, k)`.

        Returns:
            `(n, k)`.
        """
        return np.zeros(np.shape(rivals))


no_error = ServedError()


# Takes indices of examples, `(n,)`, their rivals and the proof.
Noted = Callable[[np.ndarray, np.ndarray, Proof], None]


class Method(abc.ABC):
    """A way to prove radii for one network.

    Attributes:
        name: as in `--method`.
        turn: "auto" asks methods in this order, from cheap to dear.
        network: what it certifies.
        dear: whether it costs so much that "auto" attacks an example first, if no method has yet.
        dear_rivals: whether each rival costs far more than some gradients.
        cost: of a bound for one example, besides its margins, in gradients.
    """

    name: str
    turn: ClassVar[int] = 0
    network: Network
    dear: bool = False
    dear_rivals: bool = False
    cost: float = 0.0

    @abc.abstractmethod
    def prove(self, question: Question) -> Proof:
        """Returns proved radii, none below those that are known."""

    def ceiling(self, question: Question, weakest: WeakestPoint) -> np.ndarray:
        """Returns an upper bound on what this method can prove, cheaply, `(n,)`.

        It excludes without doubt: no radius above both this and the goal's aim, which is positive,
        can be proved.

        Args:
            question: what would be asked.
            weakest: a point for each example, as an earlier search left it.
        """
        return np.full(len(question.x), np.inf)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """`(n, dim)` → `(n, classes)`, float64."""
        return self._compiled_logits(tf.convert_to_tensor(x, tf.float64)).numpy()

    @functools.cached_property
    def _compiled_logits(self) -> Callable[[tf.Tensor], tf.Tensor]:
        signature = [tf.TensorSpec((None, self.network.dim), tf.float64)]
        return as_graph(self.network.logits, signature)

    @certifying
    def certify(
        self,
        x: np.ndarray,
        label: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seeds: np.ndarray | None = None,
        property: Property = ARGMAX,
        tolerance: float = 0.01,
        decide: Sequence[float] = (),
        noted: Noted | None = None,
    ) -> Certificates:
        """Certifies the predicted class of each input, or another property.

        Args:
            x: `(n, dim)`, the exact numbers that the model receives.
            label: `(n,)`, integers; an example whose prediction differs is MISCLASSIFIED and
                gets radius 0. None certifies the predicted class.
            rivals: the classes to hold against the prediction. "all" certifies the classifier;
                "runner_up" (largest other logit), "least" (smallest) and "random" (one drawn
                uniformly) are the single-rival protocols of the paper's tables and are not
                certificates of a classifier.
            seeds: `(n,)`, for "random": the draw of each example depends on its seed alone.
            property: what must not change, of a network that it made; "all" are its rivals then.
            tolerance, decide: see `SearchGoal`.
            noted: called with each proof, its witness kept; None keeps none.

        Returns:
            `Certificates`.
        """
        x = np.asarray(x, np.float64)
        logits = self.logits(x)
        count = len(x)
        finite = np.isfinite(logits).all(axis=1)
        found = property.read(logits, label)

        status = np.full(count, Status.UNPROVED, np.int64)
        status[found.wrong] = Status.MISCLASSIFIED
        status[found.tied] = Status.TIED
        status[~finite] = Status.NOT_FINITE

        result = Certificates(
            prediction=found.prediction.astype(np.int64),
            radius=np.zeros(count),
            nearest_rival=np.full(count, -1, np.int64),
            status=status,
            gradient_evaluations=np.zeros(count, np.int64),
            adversarial_distance=np.full(count, np.inf),
            primal_equals_dual=np.zeros(count, bool),
            method=np.full(count, "", "U16"),
        )
        rows = np.flatnonzero(status == Status.UNPROVED)
        reference = found.reference[rows]
        if rivals == "all":
            groups = property.rivals(logits[rows], reference)
        else:
            seeds = np.arange(count) if seeds is None else np.asarray(seeds)
            against = choose_rivals(logits[rows], reference, rivals, seeds[rows])
            groups = iter([(np.arange(len(rows)), against)])
        for some, against in groups:
            if len(some):
                pairs = x[rows[some]], reference[some], against
                question = Question.of(*pairs, tolerance=tolerance, decide=decide)
                question = question._replace(witness=noted is not None)
                self._fill(result, rows[some], property, logits[rows[some]], question, noted)
        return result

    def _fill(
        self,
        result: Certificates,
        rows: np.ndarray,
        property: Property,
        logits: np.ndarray,
        question: Question,
        noted: Noted | None,
    ) -> None:
        """Certifies these rows, whose property holds and which have equally many rivals."""
        if not question.rivals.shape[1]:  # nobody can do harm
            result.radius[rows], result.status[rows] = np.inf, Status.CERTIFIED
            result.method[rows] = self.name
            return
        if property.spared:
            against, proof = sparing(self, question, property.spared)
        else:
            against, proof = question.rivals, self.prove(question)
        if noted is not None:
            noted(rows, against, proof)
        # Before any comparison, as NaN, which proves nothing, is neither less nor more.
        proved = np.where(proof.radius > 0.0, proof.radius, 0.0)
        # Of rivals that are equally near, as far as is proved, the likeliest.
        likely = np.take_along_axis(logits, against, axis=1)
        least = proved == proved.min(axis=1, keepdims=True)
        here = np.arange(len(rows)), np.where(least, likely, -np.inf).argmax(axis=1)
        radius = proved[here]
        result.radius[rows] = radius
        result.nearest_rival[rows] = property.decider(against[here])
        result.status[rows[radius > 0.0]] = Status.CERTIFIED
        result.gradient_evaluations[rows] = proof.gradients
        result.method[rows] = np.where(radius > 0.0, proof.method[here], "")
        distance = proof.distance.min(axis=1)
        result.adversarial_distance[rows] = distance
        with np.errstate(over="ignore"):
            result.primal_equals_dual[rows] = distance <= radius * (1.0 + PRIMAL_EQUALS_DUAL)


def sparing(method: Method, question: Question, spared: int) -> tuple[np.ndarray, Proof]:
    """Proves radii against all rivals except the nearest `spared` ones, which may pass the label.

    Whichever rivals are left out, the radii of the others hold. At first those nearest by f/‖∇f‖ at
    x are left out; then the farthest of them takes the place of the rival with the smallest radius,
    as long as its own is larger.

    Returns:
        The rivals that are held, `(n, rivals − spared)`, and radii against them, without
        adversarial points: one rival that passes alone changes nothing.
    """
    evaluation = method.network.evaluate(tf.constant(question.x), question.label, question.rivals)
    steepness = np.linalg.norm(evaluation.gradient.numpy(), axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = np.nan_to_num(evaluation.margin.numpy() / steepness, nan=0.0)
    order = np.take_along_axis(question.rivals, estimate.argsort(axis=1, kind="stable"), axis=1)
    left, held = order[:, :spared], order[:, spared:]
    every = question._replace(goal=question.goal.of_each_rival())

    def prove(rows: slice | np.ndarray, rivals: np.ndarray) -> Proof:
        """Asks for some examples, against rivals of which nothing is known."""
        some = every.take(rows)
        return method.prove(some._replace(rivals=rivals, known=np.zeros(rivals.shape)))

    found = prove(slice(None), held)
    radius, method_of = found.radius.copy(), found.method.copy()
    gradients = found.gradients + question.rivals.shape[1]
    for column in reversed(range(spared)):
        other = prove(slice(None), left[:, column : column + 1])
        gradients = gradients + other.gradients
        worst = np.nan_to_num(radius).argmin(axis=1)
        better = np.flatnonzero(other.radius[:, 0] > radius[np.arange(len(radius)), worst])
        if not len(better):
            break
        place = better, worst[better]
        held[place], radius[place] = left[better, column], other.radius[better, 0]
        method_of[place] = other.method[better, 0]
        known = radius[better]
        again = method.prove(every.take(better)._replace(rivals=held[better], known=known))
        gradients[better] += again.gradients
        radius[better] = np.maximum(known, again.radius)
        method_of[better] = np.where(again.radius > known, again.method, method_of[better])
    nowhere = np.full(radius.shape, np.inf)
    return held, Proof(radius, gradients, method_of, nowhere)
