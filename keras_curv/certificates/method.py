"""What every method of certification takes and returns.

A method proves radii for pairs (example, rival). From these, `Method.certify` makes certificates
of examples, in the same way for all of them.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.certificates.certificate import (
    PRIMAL_EQUALS_DUAL,
    Certificates,
    Status,
    choose_rivals,
)
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import as_graph
from keras_curv.numerics.bracket import COARSE, FINE
from keras_curv.process import certifying
from keras_curv.threats.properties.property import ARGMAX, Property


class ServedError:
    """What serving may take off a margin; this one says nothing, as in real arithmetic."""

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """A bound, wherever in the ball the server is asked; it does not fall as radii grow.

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


class Sighting(NamedTuple):
    """The point at which a search ended, of the rival that it found the weakest; one an example.

    Any point and any rival are a valid sighting: tests that exclude a method hold at each.

    Attributes:
        column: of the rival, in `rivals`, `(n,)`.
        point: `(n, dim)`.
        margin: against that rival at the point, `(n,)`.
        start: that margin at the example itself, `(n,)`.
    """

    column: np.ndarray
    point: np.ndarray
    margin: np.ndarray
    start: np.ndarray

    def take(self, rows: np.ndarray) -> Sighting:
        """Returns those of these examples only."""
        return Sighting(*(part[rows] for part in self))

    def spread(self, rows: np.ndarray, count: int) -> Sighting:
        """Spreads these over `count` examples; what the others get excludes nothing."""
        whole = []
        for part in self:
            nothing = 0 if part.dtype.kind == "i" else np.inf
            whole.append(np.full((count, *part.shape[1:]), nothing, part.dtype))
            whole[-1][rows] = part
        return Sighting(*whole)


class Prospect(NamedTuple):
    """What is expected of a method before it is asked, and how close a search must come to it.

    Attributes:
        ceiling: no radius is expected above it, `(n,)`.
        aim: no radius need be found that is not above it, `(n,)`.
        gap: that a search may leave, in points of the grid of `numerics/bracket.py`.
    """

    ceiling: np.ndarray
    aim: np.ndarray
    gap: float = COARSE

    @classmethod
    def open(cls, count: int, gap: float = FINE) -> Prospect:
        """Returns the prospect of so many examples, of which nothing is known."""
        return cls(np.full(count, np.inf), np.zeros(count), gap)

    @classmethod
    def of_each(cls, method: Method, count: int) -> Prospect | None:
        """Returns one for which a method that decides does so of each rival by itself, where the
        smallest radius is not all that counts; None: for others it needs none."""
        decide = getattr(method, "decide", ())
        return cls.open(count)._replace(ceiling=np.full(count, max(decide))) if decide else None

    def up_to(self, radius: np.ndarray | float) -> Prospect:
        """Returns the prospect in which no more than these radii counts."""
        return self._replace(ceiling=np.minimum(self.ceiling, radius))

    def take(self, rows: np.ndarray | slice) -> Prospect:
        """Returns what is expected for these examples only."""
        return Prospect(self.ceiling[rows], self.aim[rows], self.gap)


class PairCertificates(NamedTuple):
    """Radii for each example and each of its rivals.

    Attributes:
        radius: proved, `(n, rivals)`.
        gradient_evaluations: gradients of one margin, summed over the rivals, `(n,)`.
        adversarial_distance: of a point that was found to change the prediction, `(n, rivals)`;
            None, or `inf`, where none was.
        method: that proved the radius, `(n, rivals)`; None: all by this one.
        sighting: where the search ended; None if there was none.
    """

    radius: np.ndarray
    gradient_evaluations: np.ndarray
    adversarial_distance: np.ndarray | None = None
    method: np.ndarray | None = None
    sighting: Sighting | None = None


class Method(abc.ABC):
    """A way to prove radii for one network.

    Attributes:
        name: as in `--method`.
        network: what it certifies.
        dear_rivals: whether each rival costs far more than some gradients.
        cost: of a bound for one example, besides its margins, in gradients.
        gap: that its search for a ball leaves where there is no prospect, see `Prospect`.
    """

    name: str
    network: Network
    dear_rivals: bool = False
    cost: float = 0.0
    gap: float = FINE

    @abc.abstractmethod
    def radii(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        known: np.ndarray,
        prospect: Prospect | None = None,
    ) -> PairCertificates:
        """Proved radii, none below `known`.

        What counts is the smallest radius of each example; another may be far from the largest
        that the method could prove.

        Args:
            x: `(n, dim)`, float64.
            label: `(n,)`.
            rivals: `(n, rivals)`, none equal to its label.
            known: radii that are proved already, `(n, rivals)`.
            prospect: what is expected; None: anything.
        """

    def ceiling(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rival: np.ndarray,
        radius: np.ndarray,
        sighting: Sighting,
    ) -> np.ndarray:
        """Upper bound on what this method can prove, where that is above `radius`, `(n,)`.

        Cheap, and exact in what it excludes: no radius above both this and `radius` is proved.

        Args:
            x, label: as in `radii`.
            rival: `(n,)`, that of the sighting.
            radius: `(n,)`, positive.
            sighting: of each example.
        """
        return np.full(len(x), np.inf)

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
                args = x[rows[some]], logits[rows[some]], reference[some], against
                self._fill(result, rows[some], property, *args)
        return result

    def _fill(
        self,
        result: Certificates,
        rows: np.ndarray,
        property: Property,
        x: np.ndarray,
        logits: np.ndarray,
        reference: np.ndarray,
        against: np.ndarray,
    ) -> None:
        """Certifies these rows, whose property holds and which have equally many rivals."""
        if not against.shape[1]:  # nobody can do harm
            result.radius[rows], result.status[rows] = np.inf, Status.CERTIFIED
            result.method[rows] = self.name
            return
        if property.spared:
            pairs, against = sparing(self, x, reference, against, property.spared)
        else:
            pairs = self.radii(x, reference, against, np.zeros(against.shape))
        # Before any comparison, as NaN, which proves nothing, is neither less nor more.
        proved = np.where(pairs.radius > 0.0, pairs.radius, 0.0)
        # Of rivals that are equally near, as far as is proved, the likeliest.
        likely = np.take_along_axis(logits, against, axis=1)
        least = proved == proved.min(axis=1, keepdims=True)
        here = np.arange(len(rows)), np.where(least, likely, -np.inf).argmax(axis=1)
        radius = proved[here]
        result.radius[rows] = radius
        result.nearest_rival[rows] = property.decider(against[here])
        result.status[rows[radius > 0.0]] = Status.CERTIFIED
        result.gradient_evaluations[rows] = pairs.gradient_evaluations
        result.method[rows] = self.name if pairs.method is None else pairs.method[here]
        result.method[rows[radius == 0.0]] = ""
        if pairs.adversarial_distance is not None:
            distance = pairs.adversarial_distance.min(axis=1)
            result.adversarial_distance[rows] = distance
            result.primal_equals_dual[rows] = distance <= radius * (1.0 + PRIMAL_EQUALS_DUAL)


def sparing(
    method: Method, x: np.ndarray, reference: np.ndarray, rivals: np.ndarray, spared: int
) -> tuple[PairCertificates, np.ndarray]:
    """Radii against all rivals but the nearest ones, so many of which may pass the reference.

    Any that are left out prove what the others' radii prove. At first those are left out that are
    nearest by f/‖∇f‖ at x; then the farthest of them and the one whose radius is the smallest
    change places, where that one's turns out smaller.

    Returns:
        Radii of the rivals that are held, without adversarial points, as one that passes alone
        changes nothing; and these rivals, `(n, rivals − spared)`.
    """
    evaluation = method.network.evaluate(tf.constant(x), reference, rivals)
    steepness = np.linalg.norm(evaluation.gradient.numpy(), axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = np.nan_to_num(evaluation.margin.numpy() / steepness, nan=0.0)
    order = np.take_along_axis(rivals, estimate.argsort(axis=1, kind="stable"), axis=1)
    left, held = order[:, :spared], order[:, spared:]
    found = method.radii(x, reference, held, np.zeros(held.shape), Prospect.of_each(method, len(x)))
    radius, gradients = found.radius.copy(), found.gradient_evaluations + rivals.shape[1]
    proved_by = found.method if found.method is not None else np.full(radius.shape, method.name)
    for column in reversed(range(spared)):
        pairs = x, reference, left[:, column : column + 1], np.zeros((len(x), 1))
        other = method.radii(*pairs, Prospect.of_each(method, len(x)))
        gradients = gradients + other.gradient_evaluations
        worst = np.nan_to_num(radius).argmin(axis=1)
        better = np.flatnonzero(other.radius[:, 0] > radius[np.arange(len(x)), worst])
        if not len(better):
            break
        place = better, worst[better]
        held[place], radius[place] = left[better, column], other.radius[better, 0]
        args = x[better], reference[better], held[better], radius[better]
        again = method.radii(*args, Prospect.of_each(method, len(better)))
        gradients[better] += again.gradient_evaluations
        radius[better] = np.maximum(radius[better], again.radius)
        if again.method is not None:
            proved_by[better] = np.where(again.method == "", proved_by[better], again.method)
        if other.method is not None:
            proved_by[place] = other.method[better, 0]
    return PairCertificates(radius, gradients, None, proved_by), held
