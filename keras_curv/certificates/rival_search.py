"""Which rivals need how many gradients: the search behind a certificate against many rivals.

The certificate is the smallest radius over the rivals, so only those rivals matter that can still
be the smallest. One gradient at x0 gives each a valid radius and a bracket from above. The
weakest open rival is then searched, one gradient a step, until its radius reaches the smallest
bracket of all; then the next weakest. Every radius met on the way is proved, so stopping early,
or searching badly, makes the result smaller and never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.network.network import Evaluation, Network

Prove = Callable[[Evaluation, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


class _Batch(NamedTuple):
    """What a batch is searched with; n examples, each against as many rivals."""

    x0: tf.Tensor  # (n, dim)
    label: tf.Tensor  # (n,)
    rivals: tf.Tensor  # (n, rivals)
    curvature: tf.Tensor  # κ, (n, rivals)
    taken_off: tf.Tensor  # the margin, by serving, (n, rivals)
    reach: tf.Tensor  # a radius that each rival is searched up to at least, (n,)
    at_start: Evaluation  # at x0, against all rivals


class _State(NamedTuple):
    """How far the search has come."""

    radius: tf.Tensor  # proved, (n, rivals)
    upper: tf.Tensor  # bracket from above, (n, rivals)
    closed: tf.Tensor  # whether a rival needs no more, (n, rivals)
    distance: tf.Tensor  # of an adversarial point found, else inf, (n, rivals)
    evaluations: tf.Tensor  # gradients, (n,)
    current: tf.Tensor  # the rival being searched, (n,)
    iterate: dual.Iterate  # of that search, rows n
    nearest: tf.Tensor  # smallest bracket of the searches that ended, else inf, (n,)
    column: tf.Tensor  # its rival, (n,)
    point: tf.Tensor  # its last point, (n, dim)
    left: tf.Tensor  # the margin there, (n,)


class Found(NamedTuple):
    """What a search comes to.

    Attributes:
        radius: proved, `(n, rivals)`.
        distance: of adversarial points that were found, else inf, `(n, rivals)`.
        evaluations: gradients used, `(n,)`.
        sighting: tensors of a `Sighting`, in its order.
    """

    radius: tf.Tensor
    distance: tf.Tensor
    evaluations: tf.Tensor
    sighting: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


class RivalSearch:
    """The search, for one network.

    Args:
        network: whose margins are searched.
        prove: `(evaluation, displacement, curvature, taken_off)` → proved radii `(n, rivals)`.
        tolerance: relative gap at which a search stops.
        max_steps: gradients after which a search stops in any case.
    """

    def __init__(self, network: Network, prove: Prove, *, tolerance: float, max_steps: int):
        self._network = network
        self._prove = prove
        self._tolerance = tolerance
        self._max_steps = max_steps

    def __call__(
        self,
        x0: tf.Tensor,
        label: tf.Tensor,
        rivals: tf.Tensor,
        curvature: tf.Tensor,
        taken_off: tf.Tensor,
        reach: tf.Tensor,
    ) -> Found:
        """Searches a batch, in graph.

        Args:
            x0: `(n, dim)`, float64.
            label: `(n,)`, int32.
            rivals: `(n, rivals)`, int32.
            curvature: κ for each pair, `(n, rivals)`, float64.
            taken_off: what must remain of each margin, `(n, rivals)`, float64.
            reach: a radius up to which even rivals are searched that cannot be the weakest any
                more, `(n,)`, float64; 0 as a rule.
        """
        at_start = self._network.evaluate(x0, label, rivals)
        batch = _Batch(x0, label, rivals, curvature, taken_off, reach, at_start)
        (state,) = tf.while_loop(
            lambda state: tf.reduce_any(~state.closed),
            lambda state: (self._turn(batch, state),),
            (self._start(batch),),
            parallel_iterations=1,
        )
        start = tf.gather(at_start.margin, state.column, batch_dims=1)
        sighting = (state.column, state.point, state.left, start)
        return Found(state.radius, state.distance, state.evaluations, sighting)

    def _start(self, batch: _Batch) -> _State:
        count, width = tf.shape(batch.rivals)[0], tf.shape(batch.rivals)[1]
        margin = batch.at_start.margin - batch.taken_off
        radius = self._prove(
            batch.at_start, tf.zeros_like(batch.x0), batch.curvature, batch.taken_off
        )
        upper = tf.where(margin > 0.0, tf.sqrt(2.0 * margin / batch.curvature), 0.0)
        closed = (radius >= self._goal(upper, batch.reach)) | (self._max_steps == 0)
        current = _weakest(radius, closed)
        return _State(
            radius=radius,
            upper=upper,
            closed=closed,
            distance=tf.fill((count, width), tf.constant(np.inf, tf.float64)),
            evaluations=tf.fill([count], width),
            current=current,
            iterate=_begin(batch, tf.range(count), current),
            nearest=tf.fill([count], tf.constant(np.inf, tf.float64)),
            column=current,
            point=batch.x0,
            left=tf.gather(batch.at_start.margin, current, batch_dims=1),
        )

    def _turn(self, batch: _Batch, state: _State) -> _State:
        """One gradient for every example that is still open; the others take no part."""
        rows = tf.cast(tf.where(tf.reduce_any(~state.closed, axis=1))[:, 0], tf.int32)
        cells = tf.stack([rows, tf.gather(state.current, rows)], axis=1)
        margin, gradient, proved, bracket, step = self._step(batch, state, rows, cells)
        radius = tf.tensor_scatter_nd_max(state.radius, cells, proved)
        upper = tf.tensor_scatter_nd_min(state.upper, cells, bracket)

        # The current rival is done when it reaches the goal, runs out of steps, or leaves the
        # numbers; any other rival that reaches the goal cannot lower the minimum any more.
        goal = self._goal(tf.gather(upper, rows), tf.gather(batch.reach, rows))
        current = tf.gather(state.current, rows)
        finished = tf.gather_nd(radius, cells) >= tf.gather(goal, current, batch_dims=1)
        finished |= (step.steps > self._max_steps) | _not_finite(step.point)
        here = tf.range(tf.shape(radius)[1])[None, :] == cells[:, 1:]
        closing = tf.where(here, finished[:, None], tf.gather(radius, rows) >= goal)
        closed = tf.tensor_scatter_nd_update(
            state.closed, rows[:, None], tf.gather(state.closed, rows) | closing
        )

        which = tf.where(finished)[:, 0]
        ended, ended_cells = tf.gather(rows, which)[:, None], tf.gather(cells, which)
        witness = self._crossing(batch, ended_cells, tf.gather(gradient, which), radius)
        following = _weakest(tf.gather_nd(radius, ended), tf.gather_nd(closed, ended))
        fresh = _begin(batch, ended[:, 0], following)
        iterate = (
            tf.tensor_scatter_nd_update(
                tf.tensor_scatter_nd_update(old, rows[:, None], new), ended, first
            )
            for old, new, first in zip(state.iterate, step, fresh, strict=True)
        )
        reached = tf.gather_nd(upper, ended_cells)
        nearer = tf.where(reached < tf.gather(state.nearest, ended[:, 0]))[:, 0]
        place, kept = tf.gather(ended, nearer), tf.gather(which, nearer)
        return _State(
            radius=radius,
            upper=upper,
            closed=closed,
            distance=tf.tensor_scatter_nd_min(state.distance, ended_cells, witness),
            evaluations=tf.tensor_scatter_nd_add(
                state.evaluations, rows[:, None], tf.ones_like(rows)
            ),
            current=tf.tensor_scatter_nd_update(state.current, ended, following),
            iterate=dual.Iterate(*iterate),
            nearest=tf.tensor_scatter_nd_update(state.nearest, place, tf.gather(reached, nearer)),
            column=tf.tensor_scatter_nd_update(state.column, place, tf.gather(cells[:, 1], kept)),
            point=tf.tensor_scatter_nd_update(
                state.point, place, tf.gather(step.previous_point, kept)
            ),
            left=tf.tensor_scatter_nd_update(state.left, place, tf.gather(margin, kept)),
        )

    def _step(self, batch: _Batch, state: _State, rows: tf.Tensor, cells: tf.Tensor):
        """Margins and gradients at these rows' iterates, what they prove, the iterates after."""
        iterate = dual.Iterate(*(tf.gather(part, rows) for part in state.iterate))
        origin, kappa = tf.gather(batch.x0, rows), tf.gather_nd(batch.curvature, cells)
        rival = tf.gather_nd(batch.rivals, cells)[:, None]
        evaluation = self._network.evaluate(iterate.point, tf.gather(batch.label, rows), rival)
        taken_off = tf.gather_nd(batch.taken_off, cells)
        displacement = iterate.point - origin
        proved = self._prove(evaluation, displacement, kappa[:, None], taken_off[:, None])[:, 0]
        margin, gradient = evaluation.margin[:, 0] - taken_off, evaluation.gradient[:, 0]
        step = dual.advance(dual.certificate_multiplier, origin, kappa, iterate, margin, gradient)
        bracket = dual.radius_bracket(margin, gradient, displacement, kappa)
        return evaluation.margin[:, 0], gradient, proved, bracket, step

    def _crossing(self, batch: _Batch, cells, gradient, radius) -> tf.Tensor:
        """The distance of an adversarial point just beyond the radius, if there is one, else inf.

        At a solution `x̂ − x0 = −η g`: where primal = dual, f vanishes just beyond r along −g.
        """
        x0 = tf.gather(batch.x0, cells[:, 0])
        beyond = tf.gather_nd(radius, cells) * (1.0 + 0.5 * PRIMAL_EQUALS_DUAL)
        direction = -tf.math.divide_no_nan(gradient, tf.norm(gradient, axis=1, keepdims=True))
        point = x0 + beyond[:, None] * direction
        label, rival = tf.gather(batch.label, cells[:, 0]), tf.gather_nd(batch.rivals, cells)
        changed = self._network.margin(point, label, rival) <= 0.0
        distance = tf.norm(point - x0, axis=1)
        return tf.where(changed & tf.math.is_finite(distance), distance, np.inf)

    def _goal(self, upper: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
        """The radius at which a rival needs no more, `(n, rivals)`: it cannot lower the minimum,
        and either has the reach or has come to its own bracket."""
        least = (1.0 - self._tolerance) * tf.reduce_min(upper, axis=1, keepdims=True)
        return tf.minimum(tf.maximum(least, reach[:, None]), (1.0 - self._tolerance) * upper)


def _begin(batch: _Batch, rows: tf.Tensor, current: tf.Tensor) -> dual.Iterate:
    """The search of these rows against these rivals, after its evaluation at x0."""
    cells = tf.stack([rows, current], axis=1)
    origin = tf.gather(batch.x0, rows)
    return dual.advance(
        dual.certificate_multiplier,
        origin,
        tf.gather_nd(batch.curvature, cells),
        dual.start(origin),
        tf.gather_nd(batch.at_start.margin - batch.taken_off, cells),
        tf.gather_nd(batch.at_start.gradient, cells),
    )


def _weakest(radius: tf.Tensor, closed: tf.Tensor) -> tf.Tensor:
    """The open rival with the smallest radius, `(n,)`; any rival where none is open."""
    return tf.argmin(
        tf.where(closed, tf.constant(np.inf, radius.dtype), radius), axis=1, output_type=tf.int32
    )


def _not_finite(point: tf.Tensor) -> tf.Tensor:
    return ~tf.reduce_all(tf.math.is_finite(point), axis=1)
