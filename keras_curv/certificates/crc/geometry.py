"""The interface of the sets in which an attacker can move, for the search and the proof of `crc`.

The sets themselves are in `geometries.py`. Graphs, which all networks share, use class methods.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.proved_radius import Charged, proved_radius
from keras_curv.network.network import Network
from keras_curv.threats.confined import Reach


class Start(NamedTuple):
    """Where the searches of n examples begin."""

    value: tf.Tensor  # u0, `(n, dim)`, float64
    room: Reach  # how far its entries can go; without limits, a stand-in that nobody asks
    displaced: np.ndarray  # what a radius at u0 loses as one at the example, `(n,)`


class Place(NamedTuple):
    """Where searches are, m rows: f and its gradient at moves from u0, κ, and limits of moves."""

    margin: tf.Tensor  # f, less the served error, `(m,)`
    gradient: tf.Tensor  # gradient, displacement: `(m, dim)`
    displacement: tf.Tensor
    curvature: tf.Tensor  # κ, `(m,)`
    room: Reach  # of these rows

    def rows(self, index: tf.Tensor) -> Place:
        """Returns these rows."""
        margin, gradient, moved, curvature = (tf.gather(part, index) for part in self[:4])
        return Place(margin, gradient, moved, curvature, self.room.rows(index))

    @property
    def model(self) -> tf.Tensor:
        """The linear model of f at u0; at a move e it is `model + g·e`."""
        return self.margin - dual.dot(self.gradient, self.displacement)


class Geometry(abc.ABC):
    """The set of changes that an attacker may make, and how to search it.

    Attributes:
        network: f, whose margins are searched.
        price: the most that moving any entry by 1 costs.
        tolerance, max_steps: relative gap and gradients at which a search stops, as a rule.
    """

    price = 1.0
    tolerance: float
    max_steps: int

    def __init__(self, network: Network):
        self.network = network

    @abc.abstractmethod
    def start(self, x: np.ndarray) -> Start:
        """Returns where to begin, of examples `(n, dim)`."""

    def input_at(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Returns the inputs next to x, of the whole network, that come to these points."""
        return point

    @staticmethod
    @abc.abstractmethod
    def served_up_to(proved: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Returns radii up to which a served error is asked for at first, `(n, rivals)`.

        Args:
            proved: by one gradient at u0.
            most: that any gradient could prove.
        """

    @classmethod
    @abc.abstractmethod
    def first(
        cls, found: Charged, curvature: tf.Tensor, taken_off: tf.Tensor, room: Reach
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns radii that gradients at u0 prove, and brackets from above, `(n, rivals)`.

        Args:
            found: the gradients.
            curvature: κ, `(n, rivals)`.
            taken_off: bounds on the served error of each margin, `(n, rivals)`.
            room: of n rows.
        """

    @classmethod
    @abc.abstractmethod
    def step(
        cls, found: Charged, place: Place, taken_off: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns radii that gradients prove, and brackets from above, `(m,)`.

        Args:
            found: one gradient for each row.
            place: where it was taken.
            taken_off: bounds on the served errors, `(m,)`.
        """

    @classmethod
    def in_ball(cls, found: Charged, place: Place, taken_off: tf.Tensor) -> tf.Tensor:
        """Returns radii that gradients prove with a curvature that holds in a ball, `(m,)`.

        Arguments are as of `step`; the places are inside the ball.
        """
        columns = tf.expand_dims(place.curvature, 1), tf.expand_dims(taken_off, 1)
        return tf.squeeze(proved_radius(found, place.displacement, *columns), 1)

    @classmethod
    @abc.abstractmethod
    def advance(cls, iterate: dual.Iterate, origin: tf.Tensor, place: Place) -> dual.Iterate:
        """Returns the iterates after these, of searches that began at `origin`, `(m, dim)`."""

    @classmethod
    @abc.abstractmethod
    def beyond(cls, place: Place, radius: tf.Tensor) -> tf.Tensor:
        """Returns moves just beyond the radius `(m,)`, where f may be below 0, `(m, dim)`."""

    @classmethod
    def length(cls, displacement: tf.Tensor, room: Reach) -> tf.Tensor:
        """Returns the least norm of a change that makes these moves, `(m,)`."""
        return dual.norm(displacement)

    @classmethod
    def rows(cls, room: Reach, index: tf.Tensor) -> Reach:
        """Returns the limits of these rows, as far as they are asked for."""
        return room.rows(index)
