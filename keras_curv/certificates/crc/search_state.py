"""The inputs, the state and the result of a search of rivals, `rival_search.py`."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.proved_radius import Charged
from keras_curv.network.shared_graph import CLASS, CLASSES, EACH, ROWS
from keras_curv.numerics.rounding import Charge
from keras_curv.threats.confined import Reach


class Batch(NamedTuple):
    """The inputs of a search: n examples, each against the same number of rivals."""

    x0: tf.Tensor  # (n, dim)
    label: tf.Tensor  # (n,)
    rivals: tf.Tensor  # (n, rivals)
    curvature: tf.Tensor  # κ, (n, rivals)
    taken_off: tf.Tensor  # bounds on the served error of each margin, (n, rivals)
    reach: tf.Tensor  # a radius that each rival is searched up to at least, (n,)
    start: Charged  # the gradients at x0
    room: Reach  # how far the entries of x0 can go, rows n
    decide: tf.Tensor  # radii to decide, rising, (k,)

    def charged(self, cells: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns κ and the served error, `(m,)`, of these examples and rivals, `(m, 2)`."""
        return tf.gather_nd(self.curvature, cells), tf.gather_nd(self.taken_off, cells)

    def begun(self, cells: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns margins and gradients of these at x0; a gradient is `(m, dim)`, and 0, which
        leads back to x0, where it left the numbers."""
        margin = tf.gather_nd(self.start.margin, cells)
        gradient = tf.gather_nd(self.start.gradient, cells)
        gradient = tf.where(tf.expand_dims(finite(gradient), 1), gradient, tf.zeros_like(gradient))
        return margin, gradient

    def in_float32(self) -> Batch:
        """Returns a batch to search without proving anything."""
        x0, curvature, taken_off = (
            tf.cast(part, tf.float32) for part in (self.x0, self.curvature, self.taken_off)
        )
        room = Reach(*(tf.cast(part, tf.float32) for part in self.room))
        return self._replace(x0=x0, curvature=curvature, taken_off=taken_off, room=room)


class SearchStep(NamedTuple):
    """One gradient for each of m rows, and what it proves; `(m,)` but for the gradient itself."""

    margin: tf.Tensor  # margin, gradient: at the iterate; the gradient is `(m, dim)`
    gradient: tf.Tensor
    radius: tf.Tensor  # that the gradient proves
    bracket: tf.Tensor  # from above

    def rows(self, index: tf.Tensor) -> SearchStep:
        """Returns these rows."""
        return SearchStep(*(tf.gather(part, index) for part in self))


class SearchState(NamedTuple):
    """How far the search has come."""

    radius: tf.Tensor  # proved, (n, rivals)
    upper: tf.Tensor  # bracket from above, (n, rivals)
    closed: tf.Tensor  # whether a rival needs no more, (n, rivals)
    distance: tf.Tensor  # of an adversarial point found, else inf, (n, rivals)
    evaluations: tf.Tensor  # gradients, (n,)
    rows: tf.Tensor  # the examples that are still searched, (m,)
    current: tf.Tensor  # their rivals that are, (m,)
    iterate: dual.Iterate  # of these searches, rows m
    nearest: tf.Tensor  # smallest bracket of the rivals that are closed, else inf, (n,)
    column: tf.Tensor  # its rival, (n,)
    point: tf.Tensor  # its last point, (n, dim)
    left: tf.Tensor  # the margin there, (n,)
    proved_at: tf.Tensor  # where radii were proved, (n, rivals, dim); empty unless they are kept


class Found(NamedTuple):
    """The result of a search."""

    radius: tf.Tensor  # proved, `(n, rivals)`
    distance: tf.Tensor  # of adversarial points that were found, else inf, `(n, rivals)`
    evaluations: tf.Tensor  # gradients used, `(n,)`
    # tensors of a `WeakestPoint`, in its order
    weakest: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
    # where each radius was proved, `(n, rivals, dim)`; empty unless they are kept
    proved_at: tf.Tensor


_GRADIENTS = tf.TensorSpec((None, None, None), tf.float64)
_START = Charged(ROWS, _GRADIENTS, Charge(ROWS, ROWS))
ROOM = Reach(ROWS, ROWS, ROWS, ROWS, cost=EACH)
# What a search is called with, in the order of `Batch`.
SEARCHED = (ROWS, CLASS, CLASSES, ROWS, ROWS, EACH, _START, ROOM, EACH)


def finite(rows: tf.Tensor) -> tf.Tensor:
    """Returns which rows have finite entries alone."""
    return tf.reduce_all(tf.math.is_finite(rows), axis=1)


def indices(mask: tf.Tensor) -> tf.Tensor:
    """Returns where a mask `(n,)` is true, int64; of a slice, a graph would be larger."""
    return tf.squeeze(tf.where(mask), 1)
