"""The closest adversarial point that a search can find, for a few examples.

A point found bounds the distance to the decision boundary from above, as a certificate does from
below. A ball in which projected gradient descent finds an adversarial point shrinks, one in which
it finds none grows, and along the line to a point found the crossing is bisected:

    min ‖δ‖₂   s.t.   max_{t ≠ y} z_t(x + δ) − z_y(x + δ) > 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.network.clip import split_clip
from keras_curv.network.network import FeedForward, Network, likeliest_rivals
from keras_curv.network.shared_graph import CLASS, ROWS, traced
from keras_curv.numerics.batches import batches

_BALLS = 12
_CLOSE = 2e-3  # relative: between the last ball without and the closest point found
_BISECTIONS = 30  # of a line
_STEPS, _RESTARTS = 50, 3  # of the descent
_WIDER = 1.5, 2.5, 5.0, 10.0  # balls to attack, in radii of the first


class ClosestPoints(NamedTuple):
    """The closest adversarial points found; arrays of length n."""

    point: np.ndarray  # float64, `(n, dim)`; x itself where none was found
    distance: np.ndarray  # float64, `inf` where none was found
    prediction: np.ndarray  # int64, the class with the largest logit at the point, in float64


def closest_points(
    network: FeedForward, x: np.ndarray, label: np.ndarray, at_least: np.ndarray
) -> ClosestPoints:
    """Searches for the closest point with another prediction; deterministic.

    Args:
        network: of any activation.
        x: `(n, dim)`.
        label: `(n,)`, the classes predicted at x.
        at_least: `(n,)`, below which there are no such points: certified radii, or 0.

    Returns:
        `ClosestPoints`; each point found is strictly on the other side.

    Reference: Madry et al., "Towards deep learning models resistant to adversarial attacks"
    (2018), for the descent.
    """
    centre, labels = tf.constant(x, tf.float64), tf.constant(label, tf.int64)

    crossing = crossings(network)
    without = np.array(at_least, np.float64)
    with np.errstate(over="ignore"):  # an infinite radius is not searched
        radius = 1.01 * np.maximum(without, _first_order_distance(network, centre, labels))
    point, distance = centre.numpy(), np.full(len(radius), np.inf)
    for _ in range(_BALLS):
        unsettled = distance * (1.0 - _CLOSE) > without
        searchable = unsettled & np.isfinite(radius) & (radius > 0.0)
        if not searchable.any():
            break
        within = tf.constant(np.where(searchable, radius, 1.0))
        args = network, centre, labels
        _, met = pgd_attack(*args, radius=within, steps=_STEPS, restarts=_RESTARTS)
        found = [array.numpy() for array in crossing(centre, tf.cast(labels, tf.int32), met)]
        closer = searchable & (found[1] < distance)
        point = np.where(closer[:, None], found[0], point)
        distance = np.where(closer, found[1], distance)
        without = np.where(searchable & ~closer, radius, without)
        with np.errstate(over="ignore"):
            radius = np.where(np.isfinite(distance), (without + distance) / 2.0, 2.0 * radius)
    prediction = network.logits(tf.constant(point)).numpy().argmax(axis=1)
    return ClosestPoints(point, distance, prediction)


def _first_order_distance(network: FeedForward, x: tf.Tensor, label: tf.Tensor) -> np.ndarray:
    """Returns where the linear model of the nearest margin is 0; not finite if nowhere."""
    rivals = likeliest_rivals(network.logits(x), label, network.classes - 1)
    split = split_clip(network) if isinstance(network, Network) else None
    if split is not None:  # its gradient in x is 0 where the clip is flat
        x, network = split[0].value(x), split[1]
    evaluation = network.evaluate(x, label, rivals)
    slope = tf.norm(evaluation.gradient, axis=-1).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return (evaluation.margin.numpy() / slope).min(axis=1)


def widening_balls(
    radius: np.ndarray, distance: np.ndarray, entries: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields examples and radii of balls to attack, which grow until a point is found.

    Args:
        radius: of the first balls, `(n,)`; examples with one that is not positive and finite are
            left out.
        distance: of the adversarial points found, `(n, rivals)`, infinite where there is none; the
            caller writes into it.
        entries: how many numbers an attack takes for an example.
    """
    for factor in _WIDER:
        reach = factor * radius
        unmet = np.isinf(distance.min(axis=1)) & (reach > 0.0) & np.isfinite(reach)
        rows = np.flatnonzero(unmet)
        for some in (rows[part] for part in batches(len(rows), entries)):
            if len(some):
                yield some, reach[some]


def crossings(network: FeedForward) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns the function of x, labels and points that finds the first adversarial points on the
    lines between, `(n, dim)`, and their distances, `inf` if there are none."""
    return traced(_first_crossing, network, tf.float64, signature=(ROWS, CLASS, ROWS))


def _first_crossing(network: FeedForward) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:

    def crossing(x: tf.Tensor, label: tf.Tensor, point: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def adversarial(share: tf.Tensor) -> tf.Tensor:
            logits = network.logits(x + share[:, None] * (point - x))
            return tf.gather(logits, label, batch_dims=1) < tf.reduce_max(logits, axis=-1)

        def halve(inside: tf.Tensor, outside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            middle = (inside + outside) / 2.0
            over = adversarial(middle)
            return tf.where(over, inside, middle), tf.where(over, middle, outside)

        inside, outside = tf.zeros_like(x[:, 0]), tf.ones_like(x[:, 0])
        found = adversarial(outside)
        _, outside = tf.while_loop(
            lambda *_: True, halve, (inside, outside), maximum_iterations=_BISECTIONS
        )
        first = x + outside[:, None] * (point - x)
        distance = tf.where(found, tf.norm(first - x, axis=-1), tf.constant(np.inf, x.dtype))
        return first, distance

    return crossing
