"""Where an attacker can go: anywhere, in a box, or behind the clip of a network's input.

`Free` allows every change; in a `Box` entries have limits; behind a `Clip`, of a network that clips
its own input, an entry beyond the clip also has a way to go before it counts.

Behind limits a search goes on from u0, which is x0 in a box and T(x0) behind a clip T, whose
curvature is that of the network behind it. An attacker in a box is no stronger than one who may do
anything to a classifier that clips to that box. A residual is the way from the best move
(`threats/confined.py`) of the present gradient to the present point, and λ that at which the linear
model of f is 0 at the best move: without limits, `x − x0 + ηg` with λ = 1/η. A gradient is turned
into a radius by the λ whose best move the present point is. It is read off the entries that move
freely, without a search; at a solution it is the same λ.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.certificates.crc.geometry import Geometry, Place, Start
from keras_curv.certificates.crc.proved_radius import Charged, charged_minorant, proved_radius
from keras_curv.certificates.crc.search_state import indices
from keras_curv.network.clip import Clip as ClipMap
from keras_curv.network.clip import split_clip
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import EACH, ROWS, as_graph
from keras_curv.numerics import rounding
from keras_curv.threats.box import box_reach
from keras_curv.threats.clipped import clipped
from keras_curv.threats.confined import (
    Move,
    Reach,
    best_move,
    confined_minorant,
    mixture,
    plain_minorant,
    present_multiplier,
)

_HALVINGS, _SECANTS = 3, 3  # for the order of λ's distance from the least one
_ORDERS = (-3.0, 0.5)  # of that distance, relative to the λ of a plain search
_SHARE = 0.05  # of the cost: where entries that move freely have less, they do not tell λ
_LEAST = 1.0 + 1e-4  # above κ/b², where S is easily computed
_NEWTON = 3  # steps to the λ of a box
_INWARD = 1.0 - rounding.gamma(64)  # the root's own rounding
_BEYOND = 2e-3  # of a move: how much farther an adversarial point is looked for


class Free(Geometry):
    """Any change is allowed: the minorant of `dual.py` itself."""

    tolerance, max_steps = 1e-4, 40

    def start(self, x: np.ndarray) -> Start:
        """See `Geometry`."""
        none = tf.zeros((len(x), 1), tf.float64)
        room = Reach(none, none, none, none, cost=tf.ones(1, tf.float64))
        return Start(tf.convert_to_tensor(x, tf.float64), room, np.zeros(len(x)))

    @staticmethod
    def served_up_to(proved: np.ndarray, most: np.ndarray) -> np.ndarray:
        """See `Geometry`."""
        return 1.5 * proved

    @classmethod
    def rows(cls, room: Reach, index: tf.Tensor) -> Reach:
        """See `Geometry`; there are no limits to gather."""
        return room

    @classmethod
    def first(
        cls, found: Charged, curvature: tf.Tensor, taken_off: tf.Tensor, room: Reach
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Geometry`."""
        margin = found.margin - taken_off
        upper = tf.where(margin > 0.0, tf.sqrt(2.0 * margin / curvature), 0.0)
        return proved_radius(found, None, curvature, taken_off), upper

    @classmethod
    def step(
        cls, found: Charged, place: Place, taken_off: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Geometry`."""
        margin, gradient, displacement, kappa, _ = place
        bracket = dual.radius_bracket(margin, gradient, displacement, kappa)
        return cls.in_ball(found, place, taken_off), bracket

    @classmethod
    def advance(cls, iterate: dual.Iterate, origin: tf.Tensor, place: Place) -> dual.Iterate:
        """See `Geometry`: the residual is `x − x0 + η g`."""
        margin, gradient, displacement, kappa, _ = place
        eta = dual.certificate_multiplier(margin, gradient, displacement, kappa)
        return dual.along(iterate, displacement + tf.expand_dims(eta, 1) * gradient)

    @classmethod
    def beyond(cls, place: Place, radius: tf.Tensor) -> tf.Tensor:
        """See `Geometry`.

        At a solution `x̂ − x0 = −η g`: where primal = dual, f vanishes just beyond r along −g.
        """
        steepness = tf.expand_dims(dual.norm(place.gradient), 1)
        direction = -tf.math.divide_no_nan(place.gradient, steepness)
        return tf.expand_dims(radius * (1.0 + 0.5 * PRIMAL_EQUALS_DUAL), 1) * direction


class _Limited(Geometry):
    """Entries have limits, and may have prices of entry."""

    _mixture: Callable[..., Move] = staticmethod(mixture)

    @staticmethod
    def served_up_to(proved: np.ndarray, most: np.ndarray) -> np.ndarray:
        """See `Geometry`: by margins, as one gradient says little of how far limits let one go."""
        return most.min(axis=1, keepdims=True, initial=np.inf)

    @classmethod
    def first(
        cls, found: Charged, curvature: tf.Tensor, taken_off: tf.Tensor, room: Reach
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Geometry`."""
        margin, shape = found.margin - taken_off, tf.shape(curvature)
        bound, slope_error = charged_minorant(found, None, curvature, taken_off)
        simple = plain_minorant(
            tf.reshape(bound.intercept, shape),
            found.gradient,
            curvature,
            room.each(lambda part: tf.expand_dims(part, 1)),
            tf.reshape(slope_error, shape),
        )
        least = curvature / room.least_cost**2
        upper = tf.where(margin > 0.0, tf.sqrt(2.0 * margin / least), 0.0)
        return dual.certified_radius(simple) * _INWARD, upper

    @classmethod
    def step(
        cls, found: Charged, place: Place, taken_off: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Geometry`."""
        kappa, room = place.curvature, place.room
        columns = tf.expand_dims(kappa, 1), tf.expand_dims(taken_off, 1)
        bound, slope_error = charged_minorant(found, place.displacement, *columns)
        steepness = place.gradient + tf.expand_dims(kappa, 1) * place.displacement
        least = _LEAST * kappa / room.least_cost**2
        multiplier = tf.maximum(cls._multiplier(place), least)
        proved = confined_minorant(bound.intercept, steepness, kappa, room, multiplier, slope_error)
        return dual.certified_radius(proved) * _INWARD, cls._bracket(place, multiplier)

    @classmethod
    def in_ball(cls, found: Charged, place: Place, taken_off: tf.Tensor) -> tf.Tensor:
        """See `Geometry`: also without entries that −h pushes against their limits."""
        kappa, room = tf.expand_dims(place.curvature, 1), place.room
        bound, slope_error = charged_minorant(
            found, place.displacement, kappa, tf.expand_dims(taken_off, 1)
        )
        steepness = place.gradient + kappa * place.displacement
        simple = plain_minorant(bound.intercept, steepness, bound.curvature, room, slope_error)
        limited = dual.certified_radius(simple) * (1.0 - rounding.gamma(32))
        return tf.maximum(super().in_ball(found, place, taken_off), limited)

    @classmethod
    def advance(cls, iterate: dual.Iterate, origin: tf.Tensor, place: Place) -> dual.Iterate:
        """See `Geometry`."""
        following = dual.along(iterate, place.displacement - cls.move(place))
        room = place.room
        point = tf.clip_by_value(following.point, origin - room.down, origin + room.up)
        return following._replace(point=point)

    @classmethod
    def beyond(cls, place: Place, radius: tf.Tensor) -> tf.Tensor:
        """See `Geometry`."""
        farther = place.displacement * (1.0 + _BEYOND)
        return tf.clip_by_value(farther, -place.room.down, place.room.up)

    @classmethod
    def length(cls, displacement: tf.Tensor, room: Reach) -> tf.Tensor:
        """See `Geometry`."""
        return tf.sqrt(room.price(displacement))

    @classmethod
    @abc.abstractmethod
    def _multiplier(cls, place: Place) -> tf.Tensor:
        """Returns λ to prove with, `(m,)`."""

    @classmethod
    @abc.abstractmethod
    def move(cls, place: Place) -> tf.Tensor:
        """Returns the best move as the linear model of f has it, `(m, dim)`."""

    @classmethod
    def _bracket(cls, place: Place, multiplier: tf.Tensor) -> tf.Tensor:
        """Returns an upper bound on the radius that any evaluation and any `λ ≥ κ/b²` prove.

        `S(λ) ≤ f(û) − κ·spread + (λ/2)·cost` for each way to mix moves to d, so that
        `r² = 2S/λ ≤ cost + 2 (f(û) − κ·spread)⁺/λ`; how it is mixed is chosen by λ.
        """
        margin, _, displacement, kappa, room = place
        mixed = cls._mixture(displacement, kappa, room, multiplier)
        remaining = tf.maximum(margin - kappa * mixed.spread, 0.0)
        least = kappa / room.least_cost**2
        upper = tf.sqrt(mixed.cost + 2.0 * tf.math.divide_no_nan(remaining, least))
        upper = tf.where((least > 0.0) | (remaining <= 0.0), upper, float("inf"))
        return tf.where(tf.math.is_nan(upper), tf.constant(float("inf"), upper.dtype), upper)


def _search_of_clip(
    gradient: tf.Tensor, curvature: tf.Tensor, falls_by: tf.Tensor, reach: Reach
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns λ of a clip and the best move for it, rows `(m,)` and `(m, dim)`.

    Args:
        gradient, curvature: of f, rows `(m, dim)` and `(m,)`, float32: where to look, no proof.
        falls_by: what the linear model is to fall by, `(m,)`.
        reach: of m rows.
    """
    wanted = tf.maximum(falls_by, 1e-30)  # where curvature takes its share, it falls less
    floor = curvature / reach.least_cost**2
    slope = tf.reduce_sum((gradient / reach.cost) ** 2, axis=-1)
    scale = tf.maximum(tf.maximum(floor, slope / wanted), 1e-30)
    scale = tf.minimum(scale, 1e30)

    def reached(order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        move = best_move(gradient, curvature, reach, floor + scale * 10.0**order)
        gain = curvature * move.spread - dual.dot(gradient, move.displacement)
        return move.displacement, tf.math.log(tf.maximum(gain, 1e-30) / wanted)

    def between(at_left: tf.Tensor, at_right: tf.Tensor, inside: float) -> tf.Tensor:
        root = at_left / tf.maximum(at_left - at_right, 1e-30)
        return tf.clip_by_value(root, inside, 1.0 - inside)

    def narrowed(
        turn: tf.Tensor, left: tf.Tensor, right: tf.Tensor, at_left: tf.Tensor, at_right: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        part = tf.where(turn < _HALVINGS, 0.5, between(at_left, at_right, 0.1))
        middle = left + part * (right - left)
        _, value = reached(middle)
        beyond = value > 0.0
        left, at_left = tf.where(beyond, middle, left), tf.where(beyond, value, at_left)
        right, at_right = tf.where(beyond, right, middle), tf.where(beyond, at_right, value)
        return turn + 1, left, right, at_left, at_right

    # A loop, and no copies of its turns: a search is traced in a third of the time.
    ends = (tf.zeros_like(floor) + order for order in _ORDERS)
    _, left, right, at_left, at_right = tf.while_loop(
        lambda turn, *_: turn < _HALVINGS + _SECANTS,
        narrowed,
        (tf.constant(0), *ends, tf.ones_like(floor), -tf.ones_like(floor)),
        parallel_iterations=1,
    )
    part = between(at_left, at_right, 0.0)
    multiplier = floor + scale * 10.0 ** (left + part * (right - left))
    # Moves jump where an entry begins to move; the best û is part of the way then.
    (before, _), (after, _) = reached(left), reached(right)
    move = before + tf.expand_dims(part, 1) * (after - before)
    return multiplier, move


# Traced once for all searches, and all places in them that ask.
_ROWS, _EACH = (tf.TensorSpec(spec.shape, tf.float32) for spec in (ROWS, EACH))
_search_of_clip_in_graph = as_graph(
    _search_of_clip, (_ROWS, _EACH, _EACH, Reach(_ROWS, _ROWS, _ROWS, _ROWS, _EACH))
)


class Clip(_Limited):
    """The network clips its own input, and the attacker may do anything.

    A radius is one at an input x0′ next to x0, which the rounded clip sends to u0 exactly; see
    `threats/clipped.py`.

    Args:
        clip: that the network begins with.
        behind: f, the network behind it.
    """

    tolerance, max_steps = 1e-3, 40  # the dual is flat at its solution

    def __init__(self, clip: ClipMap, behind: Network):
        super().__init__(behind)
        self._clip, self.price = clip, float(clip.cost.max())

    def start(self, x: np.ndarray) -> Start:
        """See `Geometry`."""
        found = clipped(self._clip, tf.constant(x, tf.float64))
        room, cost = found.reach, found.reach.cost.numpy()
        if np.all(cost == cost[0]):  # as a rule, and what is the same for all is quicker
            room = room._replace(cost=room.cost[:1])
        return Start(found.value, room, found.displaced.numpy())

    def input_at(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        """See `Geometry`."""
        return self._clip.nearest(tf.constant(point), tf.constant(x, tf.float64)).numpy()

    @classmethod
    def _multiplier(cls, place: Place) -> tf.Tensor:
        """See `_Limited`: that of the moves as they are, or else of `_best`."""
        present, free = present_multiplier(place.gradient, place.displacement, place.room)
        lacking = indices(free < _SHARE * place.room.price(place.displacement))

        def searched() -> tf.Tensor:
            found, _ = cls._best(place.rows(lacking))
            return tf.tensor_scatter_nd_update(present, tf.expand_dims(lacking, 1), found)

        return tf.cond(tf.size(lacking) > 0, searched, lambda: present)

    @classmethod
    def move(cls, place: Place) -> tf.Tensor:
        """See `_Limited`."""
        return cls._best(place)[1]

    @classmethod
    def _best(cls, place: Place) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns λ and the best move for it, rows `(m,)` and `(m, dim)`."""
        _, gradient, _, curvature, room = place
        given = (gradient, curvature, place.model, room)
        single = tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), given)
        found = _search_of_clip_in_graph(*single)
        return tuple(tf.cast(part, gradient.dtype) for part in found)


def _move_in_box(
    gradient: tf.Tensor, curvature: tf.Tensor, falls_by: tf.Tensor, limit: tf.Tensor
) -> tf.Tensor:
    """Returns the best move in a box, `(m, dim)`; float32 as of `_search_of_clip`.

    Args:
        limit: how far entries can go in the direction in which f falls, `(m, dim)`.
    """
    size, most = tf.abs(gradient), 1.0 / curvature
    square = tf.where(limit > 0.0, size * size, 0.0)
    eta, remaining, free = tf.zeros_like(falls_by), tf.nn.relu(falls_by), square
    for _ in range(_NEWTON):
        step = tf.math.divide_no_nan(remaining, tf.reduce_sum(free, axis=-1))
        eta = tf.minimum(eta + step, most)
        far = size * tf.expand_dims(eta, 1)
        move, free = tf.minimum(far, limit), tf.where(far < limit, square, 0.0)
        remaining = tf.nn.relu(falls_by - dual.dot(size, move))
    return -tf.sign(gradient) * move


_move_in_box_in_graph = as_graph(_move_in_box, (_ROWS, _EACH, _EACH, _ROWS))


class Box(_Limited):
    """The attacker stays in a box: limits without a price of entry.

    A move is `−g/λ` as far as its limits, then, and costs its length.
    """

    tolerance, max_steps = 1e-3, 24  # the dual is flat at its solution

    def start(self, x: np.ndarray) -> Start:
        """See `Geometry`."""
        room = box_reach(self.network, x)
        return Start(tf.constant(x, tf.float64), Reach(*map(tf.constant, room)), np.zeros(len(x)))

    @classmethod
    def rows(cls, room: Reach, index: tf.Tensor) -> Reach:
        """See `Geometry`; there are no dead zones to gather."""
        up, down = (tf.gather(part, index) for part in (room.up, room.down))
        none = tf.zeros((1, 1), up.dtype)
        return Reach(up, down, none, none, room.cost)

    @classmethod
    def _multiplier(cls, place: Place) -> tf.Tensor:
        """See `_Limited`."""
        return present_multiplier(place.gradient, place.displacement, place.room)[0]

    @classmethod
    def move(cls, place: Place) -> tf.Tensor:
        """See `_Limited`: `−g/λ` falls by what is concave in 1/λ, and Newton stays below."""
        limit, _ = place.room.along(-place.gradient)
        given = place.gradient, place.curvature, place.model, limit
        move = _move_in_box_in_graph(*(tf.cast(part, tf.float32) for part in given))
        return tf.cast(move, place.gradient.dtype)

    @staticmethod
    def _mixture(displacement: tf.Tensor, *_: object) -> Move:
        """Nothing is mixed where nothing has a price of entry."""
        cost = dual.dot(displacement, displacement)
        return Move(displacement, cost, tf.zeros_like(cost))


def geometry_of(network: Network) -> Geometry:
    """Returns the geometry of a network: that of its limits, or of the clip it begins with."""
    if network.limits is not None:
        return Box(network)
    split = split_clip(network)
    return Free(network) if split is None else Clip(*split)
