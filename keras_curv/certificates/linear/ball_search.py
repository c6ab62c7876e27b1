"""Certificates from lower bounds on the margins on balls: the largest ball that they prove."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question
from keras_curv.network.network import Network
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.bracket import FIRST, largest_radius
from keras_curv.threats.norms import L2, Norm, moving

_JUST_ABOVE = 1.002  # so that a radius that is rounded is still one of those to decide


class BallBoundCertificate(Method):
    """A search for the largest ball on which bounds on the margins are positive.

    A radius counts because the bounds of that one ball prove it, whatever the search does. Each
    example has one search, against the rivals that are not known to be farther.

    Args:
        network: the network to certify.
        served_error: bounds on the error of served margins.
        norm: of the balls.
        steepest: an estimate of the steepest fall of the bounds with the l2 radius, which only
            guides the search.
        start: see `largest_radius`.
        cost: the cost of a bound without its margins, in gradients.
        height: vectors of the widest hidden layer in memory for an example at a time, besides one
            vector of any layer for each rival.
    """

    def __init__(
        self,
        network: Network,
        served_error: ServedError = no_error,
        *,
        norm: Norm = L2,
        steepest: float,
        start: float = FIRST,
        cost: float = 0.0,
        height: int = 1,
    ):
        self.network = network
        self.served_error, self._norm = served_error, norm
        self._steepest, self.cost, self._height = steepest, cost, height
        self._start = start

    def centres_of(self, x: np.ndarray) -> Any:
        """Returns the data of examples for `centred_bounds`, which `[rows]` restricts to some."""
        return x

    @abc.abstractmethod
    def centred_bounds(
        self,
        centres: Any,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """Returns `margin_bounds` for the examples of `centres_of`; for a pair that is not `asked`
        the value may be anything that is not smaller than the others."""

    def margin_bounds(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Bounds `z_label − z_rival` from below on `‖δ‖ ≤ radius`, `(n, k)`, rounding charged.

        Only the smallest bound of each example is as tight as the method allows.

        Args:
            x, label, rivals: as in a `Question`.
            radius: `(n,)`, not negative.

        Returns:
            The bounds; −∞ where anything overflows.
        """
        asked = np.ones(rivals.shape, bool)

        def bound(rows: slice) -> np.ndarray:
            args = self.centres_of(x[rows]), label[rows], rivals[rows], radius[rows], asked[rows]
            return self.centred_bounds(*args)

        with np.errstate(all="ignore"):
            found = in_batches(bound, len(x), self._entries(rivals))
            return np.concatenate([bounds for _, bounds in found])

    def prove(self, question: Question) -> Proof:
        """Proves the question's radii by a search for each example, as in `Method`."""
        radius, gradients = np.zeros(len(question.x)), np.zeros(len(question.x), np.int64)
        slopes: dict[tuple[int, int], np.ndarray] = {}

        def search(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            part = question.take(rows)
            centres = self.centres_of(part.x)
            found = self._search(part, centres)
            if question.witness:
                kept = self._witness(part, centres)
                slopes.update({(rows.start + i, j): some for (i, j), some in kept.items()})
            return found

        with np.errstate(all="ignore"):  # overflow proves nothing
            entries = self._entries(question.rivals)
            for rows, (proved, used) in in_batches(search, len(question.x), entries):
                radius[rows], gradients[rows] = proved, used
        each = np.broadcast_to(radius[:, None], question.rivals.shape)
        return question.answer(self.name, each, gradients, slopes=slopes)

    def _entries(self, rivals: np.ndarray) -> int:
        """Returns how many numbers an example takes in memory at a time."""
        sizes = self.network.sizes
        return max(self._height * max(sizes[1:]), rivals.shape[1] * max(sizes))

    def _search(self, question: Question, centres: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns radii `(n,)` against all rivals that are not known to be farther, and the
        gradients used."""
        return self._largest(question, centres)

    def _witness(self, question: Question, centres: Any) -> dict[tuple[int, int], np.ndarray]:
        """Returns the slopes of `Proof` with which a search around these centres ended."""
        return {}

    def _largest(
        self, question: Question, centres: Any, guess: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the largest radii with positive bounds, `(n,)`, and the gradients used; where
        radii are to be decided, just above the largest of these.

        Args:
            question: the question.
            centres: of its examples.
            guess: radii to try first, `(n,)`; None: by the slopes at the centres.
        """
        x, label, rivals, known, goal = question[:5]
        cost = np.zeros(len(x))
        bound = self._bound(centres, question, cost)
        if goal.decide:
            proved = _largest_of(np.sort(goal.decide), bound, known.min(axis=1), goal.ceiling)
            return proved, np.ceil(cost).astype(np.int64)
        evaluation = self.network.evaluate(tf.constant(x), tf.constant(label), tf.constant(rivals))
        cost += rivals.shape[1]
        margin = evaluation.margin.numpy()
        steepness = self._norm.dual(evaluation.gradient.numpy())
        nearest = margin.min(axis=1)
        if guess is None:
            guess = (margin / steepness).min(axis=1)
        floor = nearest / self._norm.length(np.full(len(x), self._steepest), moving(self.network))
        args = bound, nearest, known.min(axis=1), guess, floor
        proved = largest_radius(*args, aim=goal.aim, gap=goal.gap, start=self._start)
        return proved, np.ceil(cost).astype(np.int64)

    def _bound(
        self, centres: Any, question: Question, cost: np.ndarray
    ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Returns the function of examples and radii whose values, where positive, prove them.

        It adds what it costs to `cost`, `(n,)`.
        """
        x, label, rivals, known = question[:4]

        def bound(rows: np.ndarray, radius: np.ndarray) -> np.ndarray:
            asked = known[rows] < radius[:, None]
            most = max(1, asked.sum(axis=1).max())
            order = np.argsort(known[rows], axis=1, kind="stable")[:, :most]
            cost[rows] += self.cost + most
            args = x[rows], label[rows], np.take_along_axis(rivals[rows], order, axis=1)
            asked = np.take_along_axis(asked, order, axis=1)
            served = self.served_error(*args, np.repeat(radius[:, None], most, axis=1))
            value = self.centred_bounds(centres[rows], *args[1:], radius, asked) - served
            value = np.where(np.isnan(value), -np.inf, value)
            return np.where(asked, value, np.inf).min(axis=1)

        return bound


def _largest_of(
    radii: np.ndarray,
    bound: Callable[[np.ndarray, np.ndarray], np.ndarray],
    known: np.ndarray,
    ceiling: np.ndarray,
) -> np.ndarray:
    """Returns, for each example, just above the largest of some radii with a positive bound there.

    Args:
        radii: rising.
        bound: as for `largest_radius`.
        known: radii that are proved already, `(n,)`.
        ceiling: radii beyond which none can be proved, `(n,)`.
    """
    proved, tried = known.astype(np.float64), _JUST_ABOVE * radii
    least = np.searchsorted(tried, known, side="right")  # of those that may be next
    most = np.searchsorted(radii, ceiling, side="right")
    while True:
        rows = np.flatnonzero(least < most)
        if not len(rows):
            return proved
        middle = (least[rows] + most[rows]) // 2
        positive = bound(rows, tried[middle]) > 0.0
        proved[rows] = np.where(positive, tried[middle], proved[rows])
        least[rows] = np.where(positive, middle + 1, least[rows])
        most[rows] = np.where(positive, most[rows], middle)


def steepest_fall(network: Network) -> float:
    """Estimates from above how steeply bounds by layers fall: a product of norms and slopes."""
    norms = [affine.frobenius for affine in network.affines]
    slopes = [activation.steepest for activation in network.activations]
    with np.errstate(over="ignore"):
        return float(np.prod([*norms, *slopes]))
