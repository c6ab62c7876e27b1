"""Searches a box for inputs whose served outputs are unsafe.

Each case is a conjunction: its margin is the largest of `a·y − c` over its conditions, and is to
become 0 or less. Descents by signs of gradients, on the network that was read, begin at centres,
corners and random points; where they end is served, and only what the model itself returns counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.network.network import Network
from keras_curv.reading.served_model import ServedModel
from keras_curv.specifications.margins import rounded_down, rounded_up
from keras_curv.specifications.vnnlib import Case, Condition

_STEPS, _STARTS = 40, 12
_CORNERS = 4  # inputs of a box whose corners are all tried
_FIRST = 0.5  # of the half-width, a step at first


class Counterexample(NamedTuple):
    """An input in the box of a case, and the outputs served for it, for which all its conditions
    hold.
    """

    x: np.ndarray  # `(dim,)`, in the model's dtype
    y: np.ndarray  # `(outputs,)`, as served


def starts_in(low: np.ndarray, high: np.ndarray, seed: int) -> np.ndarray:
    """Returns points of a box to begin at, `(m, dim)`: its centre, random ones, a few corners."""
    dim, random = len(low), np.random.default_rng(seed)
    share = random.random((_STARTS, dim))
    share[0], share[1 : _STARTS // 2] = 0.5, share[1 : _STARTS // 2].round()
    if dim <= _CORNERS:
        share = np.concatenate([share, (np.arange(2**dim)[:, None] >> np.arange(dim)) % 2])
    return np.clip(low + share * (high - low), low, high)


def descend(
    network: Network,
    conditions: Sequence[np.ndarray],
    start: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    steps: int = _STEPS,
) -> np.ndarray:
    """Returns where descents of the largest margin of each case came lowest, `(m · cases, dim)`.

    Args:
        network: whose logit 0 less logit k + 1 is the margin of condition k.
        conditions: of each case, as indices k.
        start: `(m, dim)`.
        low, high: limits, `(m, dim)`.
        steps: of each descent.
    """
    most = max(map(len, conditions))
    table = np.array([np.resize(some, most) + 1 for some in conditions])  # repeated, if fewer
    x = np.repeat(start, len(table), axis=0)
    low, high = (np.repeat(part, len(table), axis=0) for part in (low, high))
    rivals = np.tile(table, (len(start), 1))
    label, rows = tf.zeros(len(x), tf.int32), np.arange(len(x))
    best, lowest = x.copy(), np.full(len(x), np.inf)
    for step in range(steps + 1):
        margins = network.margins(tf.constant(x), label, tf.constant(rivals))[0].numpy()
        worst = margins.argmax(axis=1)
        margin = margins[rows, worst]
        better = margin < lowest
        best[better], lowest[better] = x[better], margin[better]
        if step == steps:
            return best
        rival = tf.constant(rivals[rows, worst], tf.int32)
        gradient = network.margin_and_gradient(tf.constant(x), label, rival)[1].numpy()
        length = _FIRST * 0.9**step * (high - low) / 2.0
        x = np.clip(x - length * np.sign(gradient), low, high)
    return best


def served_counterexample(
    served: ServedModel, case: Case, points: np.ndarray
) -> Counterexample | None:
    """Returns the first point that is in the box and unsafe as the model serves it, or None.

    Args:
        served: the model.
        case: the box and the conditions.
        points: `(m, dim)`, float64; they are rounded to the model's dtype within the box.
    """
    dtype = served.input_dtype.as_numpy_dtype
    x, inside = _rounded_into(points, case, dtype)
    x = x[inside]
    if not len(x):
        return None
    y = np.asarray(served.call(tf.constant(x.reshape(len(x), *served.input_shape))))
    y = y.reshape(len(x), -1)
    for row in np.flatnonzero(np.isfinite(y.astype(np.float64)).all(axis=1)):
        if all(condition.holds(y[row]) for condition in case.conditions):
            return Counterexample(x[row], y[row])
    return None


def _rounded_into(points: np.ndarray, case: Case, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points in a dtype, none rounded out of the box, and which are inside of it."""
    low = np.array([rounded_up(number) for number in case.low])
    high = np.array([rounded_down(number) for number in case.high])
    if np.issubdtype(dtype, np.integer):
        low, high, points = np.ceil(low), np.floor(high), np.rint(points)
        whole = np.clip(points, low, high)
        info = np.iinfo(dtype)
        inside = (low <= high).all() & (whole >= info.min).all(axis=1)
        inside &= (whole <= info.max).all(axis=1)
        return np.where(inside[:, None], whole, 0).astype(dtype), inside
    x = np.clip(points, low, high).astype(dtype)
    x = np.where(x.astype(np.float64) < low, np.nextafter(x, dtype(np.inf)), x)
    x = np.where(x.astype(np.float64) > high, np.nextafter(x, dtype(-np.inf)), x).astype(dtype)
    exact = x.astype(np.float64)
    return x, ((exact >= low) & (exact <= high)).all(axis=1)


def conditions_of(cases: Sequence[Case]) -> tuple[list[Condition], list[np.ndarray]]:
    """Returns the conditions of all cases, each once, and those of each case by their indices."""
    places: dict[Condition, int] = {}
    for case in cases:
        for condition in case.conditions:
            places.setdefault(condition, len(places))
    return [*places], [np.array([places[c] for c in case.conditions], int) for case in cases]
