"""The search of `rival_search.py` where entries have limits, and prices of entry.

It goes on behind the clip, from u0 = T(x0). A residual is the way from the best move
(`threats/confined.py`) of the present gradient to the present point, and λ that at which the
linear model of f is 0 at the best move: where there are no limits, `x − x0 + ηg` with λ = 1/η.

A gradient is turned into a radius by the λ whose best move the present point is. It is read off
the entries that move freely, without a search; at a solution it is the same λ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.proved_radius import charged_minorant
from keras_curv.certificates.crc.rival_search import RivalSearch
from keras_curv.certificates.crc.search_state import Batch, SearchStep
from keras_curv.numerics import rounding
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


class Place(NamedTuple):
    """Where searches are, m rows: f and its gradient at moves from x0, κ, and limits of moves."""

    margin: tf.Tensor
    gradient: tf.Tensor
    displacement: tf.Tensor
    curvature: tf.Tensor
    limits: Reach

    def rows(self, index: tf.Tensor) -> Place:
        """Returns these rows."""
        margin, gradient, moved, curvature = (tf.gather(part, index) for part in self[:4])
        return Place(margin, gradient, moved, curvature, self.limits.rows(index))

    @property
    def model(self) -> tf.Tensor:
        """What the linear model of f is at x0; at a move e it is `model + g·e`."""
        return self.margin - dual.dot(self.gradient, self.displacement)


class ClippedSearch(RivalSearch):
    """As `RivalSearch`, x0 being u0, with the limits of its entries; radii are those of x0.

    Args:
        network: f, behind the clip; as all others there.
    """

    _mixture: Callable[..., Move] = staticmethod(mixture)

    def _first_radii(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        margin = batch.start.margin - batch.taken_off
        shape, limits = tf.shape(batch.curvature), batch.room
        wide = limits.each(lambda part: part[:, None])
        terms = batch.start, None, batch.curvature, batch.taken_off
        bound, slope_error = charged_minorant(*terms)
        simple = plain_minorant(
            tf.reshape(bound.intercept, shape),
            batch.start.gradient,
            batch.curvature,
            wide,
            tf.reshape(slope_error, shape),
        )
        least = batch.curvature / limits.least_cost**2
        upper = tf.where(margin > 0.0, tf.sqrt(2.0 * margin / least), 0.0)
        return dual.certified_radius(simple) * _INWARD, upper

    def _step(self, batch: Batch, iterate: dual.Iterate, cells: tf.Tensor) -> SearchStep:
        found, displacement, kappa, taken_off = self._charged(batch, iterate, cells)
        limits = self._limits(batch, cells[:, 0])
        columns = kappa[:, None], taken_off[:, None]
        bound, slope_error = charged_minorant(found, displacement, *columns)
        margin, gradient = found.margin[:, 0] - taken_off, found.gradient[:, 0]
        steepness = gradient + kappa[:, None] * displacement
        multiplier = tf.maximum(
            self._multiplier(Place(margin, gradient, displacement, kappa, limits)),
            _LEAST * kappa / limits.least_cost**2,
        )
        proved = confined_minorant(
            bound.intercept, steepness, kappa, limits, multiplier, slope_error
        )
        bracket = self._bracket(margin, displacement, kappa, limits, multiplier)
        radius = dual.certified_radius(proved) * _INWARD
        return SearchStep(found.margin[:, 0], gradient, radius, bracket)

    def _advance(
        self, batch: Batch, iterate: dual.Iterate, cells: tf.Tensor, found: SearchStep
    ) -> dual.Iterate:
        origin, limits = tf.gather(batch.x0, cells[:, 0]), self._limits(batch, cells[:, 0])
        kappa, taken_off = batch.charged(cells)
        margin, displacement = found.margin - taken_off, iterate.point - origin
        move = self._move(Place(margin, found.gradient, displacement, kappa, limits))
        return _inside(dual.along(iterate, displacement - move), origin, limits)

    def _begin(self, batch: Batch, rows: tf.Tensor, current: tf.Tensor) -> dual.Iterate:
        cells = tf.stack([rows, current], axis=1)
        origin, limits = tf.gather(batch.x0, rows), self._limits(batch, rows)
        kappa, margin, gradient = batch.begun(cells)
        move = self._move(Place(margin, gradient, tf.zeros_like(origin), kappa, limits))
        return _inside(dual.along(dual.start(origin), -move), origin, limits)

    def _crossing(
        self,
        batch: Batch,
        cells: tf.Tensor,
        point: tf.Tensor,
        gradient: tf.Tensor,
        radius: tf.Tensor,
    ) -> tf.Tensor:
        origin, limits = tf.gather(batch.x0, cells[:, 0]), self._limits(batch, cells[:, 0])
        farther = (point - origin) * (1.0 + _BEYOND)
        displacement = tf.clip_by_value(farther, -limits.down, limits.up)
        label, rival = tf.gather(batch.label, cells[:, 0]), tf.gather_nd(batch.rivals, cells)
        changed = self._network.margin(origin + displacement, label, rival) <= 0.0
        distance = tf.sqrt(limits.price(displacement))
        return tf.where(changed & tf.math.is_finite(distance), distance, float("inf"))

    def _limits(self, batch: Batch, rows: tf.Tensor) -> Reach:
        """Returns the limits of these rows."""
        return batch.room.rows(rows)

    def _multiplier(self, place: Place) -> tf.Tensor:
        """Returns λ to prove with, `(m,)`: that of the moves as they are, or else of `_best`."""
        present, free = present_multiplier(place.gradient, place.displacement, place.limits)
        lacking = tf.where(free < _SHARE * place.limits.price(place.displacement))[:, 0]

        def searched() -> tf.Tensor:
            found, _ = self._best(place.rows(lacking))
            return tf.tensor_scatter_nd_update(present, lacking[:, None], found)

        return tf.cond(tf.size(lacking) > 0, searched, lambda: present)

    def _move(self, place: Place) -> tf.Tensor:
        """Returns the best move as the linear model of f has it, `(m, dim)`."""
        return self._best(place)[1]

    def _best(self, place: Place) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns λ and the best move for it, rows `(m,)` and `(m, dim)`.

        In float32: where to look, no proof.
        """
        single = tf.cast(place.gradient, tf.float32), tf.cast(place.curvature, tf.float32)
        reach = Reach(*(tf.cast(part, tf.float32) for part in place.limits))
        # What the linear model is to fall by; where curvature takes its share, it falls less.
        wanted = tf.maximum(tf.cast(place.model, tf.float32), 1e-30)
        floor = single[1] / reach.least_cost**2
        slope = tf.reduce_sum((single[0] / reach.cost) ** 2, axis=-1)
        scale = tf.maximum(tf.maximum(floor, slope / wanted), 1e-30)
        scale = tf.minimum(scale, 1e30)

        def reached(order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            move = best_move(*single, reach, floor + scale * 10.0**order)
            gain = single[1] * move.spread - dual.dot(single[0], move.displacement)
            return move.displacement, tf.math.log(tf.maximum(gain, 1e-30) / wanted)

        def between(at_left: tf.Tensor, at_right: tf.Tensor, inside: float) -> tf.Tensor:
            root = at_left / tf.maximum(at_left - at_right, 1e-30)
            return tf.clip_by_value(root, inside, 1.0 - inside)

        left, right = (tf.zeros_like(floor) + order for order in _ORDERS)
        at_left, at_right = tf.ones_like(floor), -tf.ones_like(floor)
        for turn in range(_HALVINGS + _SECANTS):
            part = 0.5 if turn < _HALVINGS else between(at_left, at_right, 0.1)
            middle = left + part * (right - left)
            _, value = reached(middle)
            beyond = value > 0.0
            left, at_left = tf.where(beyond, middle, left), tf.where(beyond, value, at_left)
            right, at_right = tf.where(beyond, right, middle), tf.where(beyond, at_right, value)
        part = between(at_left, at_right, 0.0)
        multiplier = floor + scale * 10.0 ** (left + part * (right - left))
        # Moves jump where an entry begins to move; the best û is part of the way then.
        (before, _), (after, _) = reached(left), reached(right)
        move = before + tf.expand_dims(part, 1) * (after - before)
        return tuple(tf.cast(part, place.gradient.dtype) for part in (multiplier, move))

    def _bracket(
        self,
        margin: tf.Tensor,
        displacement: tf.Tensor,
        curvature: tf.Tensor,
        limits: Reach,
        multiplier: tf.Tensor,
    ) -> tf.Tensor:
        """Upper bound on the radius that any evaluation and any `λ ≥ κ/b²` prove.

        `S(λ) ≤ f(û) − κ·spread + (λ/2)·cost` for each way to mix moves to d, so that
        `r² = 2S/λ ≤ cost + 2 (f(û) − κ·spread)⁺/λ`; how it is mixed is chosen by λ.
        """
        mixed = self._mixture(displacement, curvature, limits, multiplier)
        remaining = tf.maximum(margin - curvature * mixed.spread, 0.0)
        return bracket(mixed.cost, remaining, curvature / limits.least_cost**2)


class BoxSearch(ClippedSearch):
    """The same for a box, whose limits are all there is: no dead zones, and b = 1.

    A move is `−g/λ` as far as its limits, then, and costs its length.
    """

    def _limits(self, batch: Batch, rows: tf.Tensor) -> Reach:
        up, down = (tf.gather(part, rows) for part in (batch.room.up, batch.room.down))
        none = tf.zeros((1, 1), up.dtype)
        return Reach(up, down, none, none, batch.room.cost)

    def _multiplier(self, place: Place) -> tf.Tensor:
        return present_multiplier(place.gradient, place.displacement, place.limits)[0]

    def _move(self, place: Place) -> tf.Tensor:
        """See `ClippedSearch`: `−g/λ` falls by what is concave in 1/λ, and Newton stays below."""
        limit, _ = place.limits.along(-place.gradient)
        gradient, limit, wanted, bend = (
            tf.cast(part, tf.float32)
            for part in (place.gradient, limit, place.model, place.curvature)
        )
        size, most = tf.abs(gradient), 1.0 / bend
        square = tf.where(limit > 0.0, size * size, 0.0)
        eta, remaining, free = tf.zeros_like(wanted), tf.nn.relu(wanted), square
        for _ in range(_NEWTON):
            step = tf.math.divide_no_nan(remaining, tf.reduce_sum(free, axis=-1))
            eta = tf.minimum(eta + step, most)
            far = size * eta[:, None]
            move, free = tf.minimum(far, limit), tf.where(far < limit, square, 0.0)
            remaining = tf.nn.relu(wanted - dual.dot(size, move))
        return tf.cast(-tf.sign(gradient) * move, place.gradient.dtype)

    @staticmethod
    def _mixture(displacement: tf.Tensor, *_: object) -> Move:
        """Nothing is mixed where nothing has a price of entry."""
        cost = dual.dot(displacement, displacement)
        return Move(displacement, cost, tf.zeros_like(cost))


def _inside(iterate: dual.Iterate, origin: tf.Tensor, limits: Reach) -> dual.Iterate:
    """The iterate with its point moved between the limits."""
    point = tf.clip_by_value(iterate.point, origin - limits.down, origin + limits.up)
    return iterate._replace(point=point)


def bracket(cost: tf.Tensor, remaining: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """√(cost + 2 remaining/λ) for the least λ: no evaluation that comes to these proves more."""
    upper = tf.sqrt(cost + 2.0 * tf.math.divide_no_nan(remaining, least))
    upper = tf.where((least > 0.0) | (remaining <= 0.0), upper, float("inf"))
    return tf.where(tf.math.is_nan(upper), tf.constant(float("inf"), upper.dtype), upper)
