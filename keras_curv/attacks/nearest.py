"""The nearest input found at which a property fails, in any norm and under any threat.

Everything is in the coordinates of the threat's network. Balls are attacked by descents of the
margins: they grow until a point is found, then shrink to a part of its distance. Along the line to
each point the first crossing is bisected. What is found bounds the exact radius from above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.network.network import FeedForward
from keras_curv.threats.norms import Norm
from keras_curv.threats.properties.property import Property

_BALLS, _STEPS, _HALVINGS = 8, 12, 16
_TARGETS = 2  # rivals, the nearest ones by the slope
_FIRST, _GROWN = 1.2, 1.7  # of the distance by the slope, and of a ball in vain
_SHRUNK, _CLOSER = 0.9, 0.97  # of the nearest distance: after a nearer point was found, and else


class NearestPoints(NamedTuple):
    """The nearest points found; arrays of length n."""

    point: np.ndarray  # `(n, dim)`, the start where none was found
    distance: np.ndarray  # `inf` where none was found


def nearest_points(
    network: FeedForward, property: Property, norm: Norm, start: np.ndarray, label: np.ndarray
) -> NearestPoints:
    """Searches for the nearest points at which a property fails; deterministic.

    Args:
        network: of the property and the threat.
        property: which holds at the start.
        norm: of distances.
        start: `(n, dim)`, float64, within the network's limits.
        label: `(n,)`, as for `Property.read`; a prediction where there is no label.

    Returns:
        `NearestPoints`; in float64 the property fails at each point found.
    """
    search = _Search(network, property, norm, start, label)
    reference = property.read(search.before, label).reference
    for rows, rivals in property.rivals(search.before, reference):
        if len(rows) and rivals.shape[1] > property.spared:
            search.toward(rows, reference[rows], rivals)
    return NearestPoints(search.point, search.distance)


def fails(
    property: Property, before: np.ndarray, label: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Returns where more rivals are above the reference than a property spares, `(n,)`.

    Args:
        property: whose logits these are.
        before: logits of the examples, `(n, classes)`, which say the reference and its rivals.
        label: `(n,)`, as for `Property.read`.
        after: logits of the changed examples, `(n, classes)`.
    """
    reference, found = property.read(before, label).reference, np.zeros(len(after), bool)
    for rows, rivals in property.rivals(before, reference):
        own = np.take_along_axis(after[rows], reference[rows][:, None], axis=1)
        above = np.take_along_axis(after[rows], rivals, axis=1) > own
        found[rows] = above.sum(axis=1) > property.spared
    return found


class _Search:
    """The nearest points so far, and the logits at the start."""

    def __init__(
        self,
        network: FeedForward,
        property: Property,
        norm: Norm,
        start: np.ndarray,
        label: np.ndarray,
    ):
        self._network, self._property, self._norm = network, property, norm
        self._start, self._label = start, label
        self.before = self.logits(start)
        self.point, self.distance = start.copy(), np.full(len(start), np.inf)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Returns logits in float64."""
        return self._network.logits(tf.constant(x)).numpy()

    def toward(self, rows: np.ndarray, reference: np.ndarray, rivals: np.ndarray) -> None:
        """Searches from some examples toward their nearest rivals."""
        spared, args = self._property.spared, (tf.constant(self._start[rows]), reference)
        evaluation = self._network.evaluate(*args, tf.constant(rivals))
        with np.errstate(all="ignore"):
            slope = self._norm.dual(evaluation.gradient.numpy())
            estimate = np.nan_to_num(evaluation.margin.numpy() / slope, nan=np.inf)
        order = estimate.argsort(axis=1, kind="stable")
        radius = np.take_along_axis(estimate, order[:, spared : spared + 1], axis=1)[:, 0]
        if spared:
            groups = [rivals]
        else:
            nearest = np.take_along_axis(rivals, order[:, :_TARGETS], axis=1)
            groups = [nearest[:, [column]] for column in range(nearest.shape[1])]
        for group in groups:
            self._balls(rows, reference, group, _FIRST * radius)

    def _balls(
        self, rows: np.ndarray, reference: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> None:
        """Attacks balls that grow or shrink, the first of these radii."""
        improved = np.zeros(len(rows), bool)
        for _ in range(_BALLS):
            known = self.distance[rows]
            shrunk = np.where(improved, _SHRUNK, _CLOSER) * known
            radius = np.where(np.isfinite(known), np.fmin(radius, shrunk), radius)
            some = np.flatnonzero(np.isfinite(radius) & (radius > 0.0) & (radius < 1e100))
            if not len(some):
                return
            met = self._descended(rows[some], reference[some], rivals[some], radius[some])
            improved = np.zeros(len(rows), bool)
            improved[some] = self._note(rows[some], met)
            missed = np.isinf(self.distance[rows])
            radius = np.where(missed, _GROWN * radius, np.where(improved, radius, np.inf))
            radius = np.where(missed | improved, radius, _CLOSER * self.distance[rows])

    def _descended(
        self, rows: np.ndarray, reference: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns where descents in these balls end."""
        start, spared = self._start[rows], self._property.spared
        away = self.point[rows] - start
        with np.errstate(all="ignore"):
            share = np.nan_to_num(np.fmin(1.0, radius / self.distance[rows]), nan=0.0)
        x, each = start + share[:, None] * away, np.arange(len(rows))
        label = tf.constant(reference, tf.int32)
        for step in range(_STEPS):
            margins = self._network.margins(tf.constant(x), label, tf.constant(rivals))[0].numpy()
            rival = rivals[each, margins.argsort(axis=1, kind="stable")[:, spared]]
            args = tf.constant(x), label, tf.constant(rival, tf.int32)
            gradient = self._network.margin_and_gradient(*args)[1].numpy()
            length = 2.0 * radius * 0.8**step
            moved = x - length[:, None] * self._norm.support_point(gradient)
            x = start + within(self._norm, moved - start, radius)
            if self._network.limits is not None:
                x = np.clip(x, *self._network.limits)
        return x

    def _note(self, rows: np.ndarray, met: np.ndarray) -> np.ndarray:
        """Notes the first crossings on the lines to these points; returns where they are nearer."""
        start, known = self._start[rows], (self.before[rows], self._label[rows])

        def crossed_at(share: np.ndarray) -> np.ndarray:
            after = self.logits(start + share[:, None] * (met - start))
            return fails(self._property, *known, after)

        inside, outside = np.zeros(len(rows)), np.ones(len(rows))
        crossed = crossed_at(outside)
        for _ in range(_HALVINGS if crossed.any() else 0):
            middle = (inside + outside) / 2.0
            over = crossed_at(middle)
            inside, outside = np.where(over, inside, middle), np.where(over, middle, outside)
        point = start + outside[:, None] * (met - start)
        distance = np.where(crossed, self._norm.of(point - start), np.inf)
        nearer = distance < self.distance[rows]
        self.point[rows[nearer]], self.distance[rows[nearer]] = point[nearer], distance[nearer]
        return nearer


def within(norm: Norm, change: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Returns changes, `(n, dim)`, brought into the balls of these radii, about.

    Example:
        >>> from keras_curv.threats.norms import NORMS
        >>> change, radius = np.array([[3.0, 4.0]]), np.array([2.5])
        >>> [within(NORMS[name], change, radius).tolist() for name in ("l2", "linf", "l1")]
        [[[1.5, 2.0]], [[2.5, 2.5]], [[0.75, 1.75]]]
    """
    radius = radius[:, None]
    if norm.name == "linf":
        return np.clip(change, -radius, radius)
    if norm.name == "l2":
        length = np.linalg.norm(change, axis=1, keepdims=True)
        return change * np.minimum(1.0, radius / np.maximum(length, 1e-300))
    size = np.abs(change)  # l1: all entries fall by the same amount, down to 0
    falling = -np.sort(-size, axis=1)
    price = (np.cumsum(falling, axis=1) - radius) / np.arange(1, size.shape[1] + 1)
    last = np.maximum(np.sum(falling > price, axis=1, keepdims=True) - 1, 0)
    fall = np.maximum(np.take_along_axis(price, last, axis=1), 0.0)
    return np.sign(change) * np.maximum(size - fall, 0.0)
