"""Which rivals need how many gradients: the search behind a certificate against many rivals.

The certificate is the smallest radius over the rivals, so only those rivals matter that can still
be the smallest. One gradient at x0 gives each a valid radius and a bracket
from above. The weakest open rival is then searched, one gradient a step, until its radius reaches
the smallest bracket of all; then the next weakest. Most of the first of these searches is in
float32, to find the way (`float32_search.py`). Every radius that is kept is proved, so stopping
early, or searching badly, makes the result smaller and never wrong.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.certificates.crc.float32_search import approach
from keras_curv.certificates.crc.geometry import Geometry, Place
from keras_curv.certificates.crc.proved_radius import Charged, charged
from keras_curv.certificates.crc.search_state import (
    Batch,
    Found,
    SearchState,
    SearchStep,
    finite,
    indices,
)
from keras_curv.network.network import Network
from keras_curv.threats.confined import Reach

# Relative: a radius counts as proved at another that is smaller by this, for rows are rounded down.
_DECIDED_GAP = 1e-5


class RivalSearch:
    """The search, for one network.

    Args:
        network: whose margins are searched.
        geometry: where the attacker can go.
        tolerance: relative gap at which a search stops.
        max_steps: gradients in float32, and again in float64, after which a search stops in any
            case.
        decides: whether there are radii to decide. An example is done once each of them is proved,
            or out of reach of its curvature; without any, a search goes on until its tolerance.
        keeps: whether to keep the points at which radii are proved.
    """

    def __init__(
        self,
        network: Network,
        geometry: type[Geometry],
        tolerance: float,
        max_steps: int,
        decides: bool,
        keeps: bool = False,
    ):
        self._network, self._layers = network, network.layer_norms
        self._geometry, self._decides = geometry, decides
        self._tolerance = tolerance
        self._keeps = keeps
        self._max_steps = max_steps

    def __call__(
        self,
        x0: tf.Tensor,
        label: tf.Tensor,
        rivals: tf.Tensor,
        curvature: tf.Tensor,
        taken_off: tf.Tensor,
        reach: tf.Tensor,
        start: Charged,
        room: Reach,
        decide: tf.Tensor,
    ) -> Found:
        """Searches a batch, in graph.

        Args:
            x0: where searches begin, `(n, dim)`, float64.
            label: `(n,)`, int32.
            rivals: `(n, rivals)`, int32.
            curvature: κ for each pair, `(n, rivals)`, float64.
            taken_off: bounds on the served error of each margin, `(n, rivals)`, float64.
            reach: a radius up to which even rivals are searched that cannot be the weakest any
                more, `(n,)`, float64; 0 as a rule.
            start: gradients at x0.
            room: how far the entries of x0 can go.
            decide: radii to decide, rising, `(k,)`.
        """
        self._network.ready(tf.float32)
        batch = Batch(x0, label, rivals, curvature, taken_off, reach, start, room, decide)
        (state,) = tf.while_loop(
            lambda state: tf.size(state.rows) > 0,
            lambda state: (self._turn(batch, state),),
            (self._start(batch),),
            parallel_iterations=1,
        )
        before = tf.gather(start.margin, state.column, batch_dims=1)
        weakest = (state.column, state.point, state.left, before)
        return Found(state.radius, state.distance, state.evaluations, weakest, state.proved_at)

    def _start(self, batch: Batch) -> SearchState:
        count, width = tf.shape(batch.rivals)[0], tf.shape(batch.rivals)[1]
        args = batch.start, batch.curvature, batch.taken_off, batch.room
        radius, upper = self._geometry.first(*args)
        closed = (radius >= self._goal(batch, upper, batch.reach)) | (self._max_steps == 0)
        closed |= self._decided(batch, radius, upper, batch.reach)
        known = tf.where(closed, upper, tf.constant(np.inf, tf.float64))
        column = tf.argmin(known, axis=1, output_type=tf.int32)
        rows = tf.cast(indices(~tf.reduce_all(closed, axis=1)), tf.int32)
        current = _weakest(tf.gather(radius, rows), tf.gather(closed, rows))
        iterate, bracket, gradients = self._approach(batch, rows, current, tf.gather(upper, rows))
        upper = tf.tensor_scatter_nd_min(upper, tf.stack([rows, current], axis=1), bracket)
        return SearchState(
            radius=radius,
            upper=upper,
            closed=closed,
            distance=tf.fill((count, width), tf.constant(np.inf, tf.float64)),
            evaluations=tf.tensor_scatter_nd_add(
                tf.fill([count], width), tf.expand_dims(rows, 1), gradients
            ),
            rows=rows,
            current=current,
            iterate=iterate,
            nearest=tf.reduce_min(known, axis=1),
            column=column,
            point=batch.x0,
            left=tf.gather(batch.start.margin, column, batch_dims=1),
            proved_at=tf.repeat(batch.x0[:, None, : None if self._keeps else 0], width, axis=1),
        )

    def _approach(
        self, batch: Batch, rows: tf.Tensor, current: tf.Tensor, upper: tf.Tensor
    ) -> tuple[dual.Iterate, tf.Tensor, tf.Tensor]:
        """Returns iterates of the first searches, near to where they end, brackets from above and
        the gradients in float32 that it took, both `(m,)`."""
        begun = self._begin(batch, rows, current)
        cells = tf.stack([rows, current], axis=1)
        if self._decides:  # a gradient or two decide
            return begun, tf.gather(upper, current, batch_dims=1), tf.zeros_like(rows)
        own = tf.one_hot(current, tf.shape(upper)[1], np.inf, 0.0, dtype=tf.float64)
        quick = batch.in_float32()
        return approach(
            lambda iterate, cells: self._step(quick, iterate, cells),
            lambda iterate, cells, found: self._advance(quick, iterate, cells, found),
            begun,
            tf.gather(batch.x0, rows),
            cells,
            tf.reduce_min(upper + own, axis=1),
            self._tolerance,
            self._max_steps,
        )

    def _turn(self, batch: Batch, state: SearchState) -> SearchState:
        """One gradient for every example that is still open; the others take no part."""
        rows, index, iterate = state.rows, tf.expand_dims(state.rows, 1), state.iterate
        cells = tf.stack([rows, state.current], axis=1)
        step = self._step(batch, iterate, cells)
        upper = tf.tensor_scatter_nd_min(state.upper, cells, step.bracket)
        radius = tf.tensor_scatter_nd_max(state.radius, cells, step.radius)
        proved_at = state.proved_at
        if self._keeps:
            better = indices(step.radius > tf.gather_nd(state.radius, cells))
            there = tf.gather(cells, better), tf.gather(iterate.point, better)
            proved_at = tf.tensor_scatter_nd_update(proved_at, *there)

        # The current rival is done when it reaches the goal, runs out of steps, or leaves the
        # numbers; any other rival that reaches the goal cannot lower the minimum any more.
        known = tuple(tf.gather(part, rows) for part in (radius, upper, batch.reach))
        goal, decided = self._goal(batch, *known[1:]), self._decided(batch, *known)
        finished = tf.gather_nd(radius, cells) >= tf.gather(goal, state.current, batch_dims=1)
        finished |= (iterate.steps >= self._max_steps) | ~finite(step.gradient)
        finished |= tf.gather(decided, state.current, batch_dims=1)
        here = tf.range(tf.shape(radius)[1]) == tf.expand_dims(state.current, 1)
        closing = tf.where(here, tf.expand_dims(finished, 1), decided | (known[0] >= goal))
        closed = tf.gather(state.closed, rows) | closing
        moved = state._replace(
            radius=radius,
            upper=upper,
            closed=tf.tensor_scatter_nd_update(state.closed, index, closed),
            evaluations=tf.tensor_scatter_nd_add(state.evaluations, index, tf.ones_like(rows)),
            proved_at=proved_at,
        )
        ended = self._end(batch, moved, cells, step, indices(finished))
        return self._next(batch, ended, step, closed, finished)

    def _next(
        self,
        batch: Batch,
        state: SearchState,
        step: SearchStep,
        closed: tf.Tensor,
        finished: tf.Tensor,
    ) -> SearchState:
        """Goes on with the rivals that are not finished, and begins with the next rival of those
        whose own is; leaves out the examples all of whose rivals are closed."""
        going = indices(~finished)
        others = indices(finished & ~tf.reduce_all(closed, axis=1))
        rows, begun = tf.gather(state.rows, going), tf.gather(state.rows, others)
        rival = tf.gather(state.current, going)
        other = _weakest(tf.gather(state.radius, begun), tf.gather(closed, others))
        cells = tf.stack([rows, rival], axis=1)
        following = self._advance(batch, state.iterate.rows(going), cells, step.rows(going))
        parts = zip(following, self._begin(batch, begun, other), strict=True)
        return state._replace(
            rows=tf.concat([rows, begun], axis=0),
            current=tf.concat([rival, other], axis=0),
            iterate=dual.Iterate(*(tf.concat(pair, axis=0) for pair in parts)),
        )

    def _end(
        self, batch: Batch, state: SearchState, cells: tf.Tensor, step: SearchStep, which: tf.Tensor
    ) -> SearchState:
        """Records where these searches ended."""
        cells, point = tf.gather(cells, which), tf.gather(state.iterate.point, which)
        step = step.rows(which)
        (ended, column), reached = tf.unstack(cells, axis=1), tf.gather_nd(state.upper, cells)
        # Where primal = dual, the radius has come to its bracket.
        gap = 1.0 - 2.0 * max(self._tolerance, PRIMAL_EQUALS_DUAL)
        near = gap * reached <= tf.gather_nd(state.radius, cells)
        index = indices(near)
        close, from_here = tf.gather(cells, index), tf.gather(point, index)
        witness = self._crossing(batch, close, from_here, step.rows(index), state.radius)
        kept = indices(reached < tf.gather(state.nearest, ended))
        place = tf.expand_dims(tf.gather(ended, kept), 1)
        update = tf.tensor_scatter_nd_update
        return state._replace(
            distance=tf.tensor_scatter_nd_min(state.distance, close, witness),
            nearest=update(state.nearest, place, tf.gather(reached, kept)),
            column=update(state.column, place, tf.gather(column, kept)),
            point=update(state.point, place, tf.gather(point, kept)),
            left=update(state.left, place, tf.gather(step.margin, kept)),
        )

    def _step(self, batch: Batch, iterate: dual.Iterate, cells: tf.Tensor) -> SearchStep:
        """Returns the gradients of these cells' searches, with the radii that they prove."""
        rival = tf.expand_dims(tf.gather_nd(batch.rivals, cells), 1)
        label = tf.gather(batch.label, tf.unstack(cells, axis=1)[0])
        found = charged(self._layers, self._network.evaluate(iterate.point, label, rival))
        margin, gradient = tf.squeeze(found.margin, 1), tf.squeeze(found.gradient, 1)
        place, taken_off = self._place(batch, cells, iterate.point, margin, gradient)
        return SearchStep(margin, gradient, *self._geometry.step(found, place, taken_off))

    def _advance(
        self, batch: Batch, iterate: dual.Iterate, cells: tf.Tensor, found: SearchStep
    ) -> dual.Iterate:
        """Returns the iterates after these."""
        place, _ = self._place(batch, cells, iterate.point, found.margin, found.gradient)
        return self._geometry.advance(
            iterate, tf.gather(batch.x0, tf.unstack(cells, axis=1)[0]), place
        )

    def _place(
        self,
        batch: Batch,
        cells: tf.Tensor,
        point: tf.Tensor,
        margin: tf.Tensor,
        gradient: tf.Tensor,
    ) -> tuple[Place, tf.Tensor]:
        """Returns where the searches of these cells are, and their served errors."""
        rows, _ = tf.unstack(cells, axis=1)
        kappa, taken_off = batch.charged(cells)
        moved, room = point - tf.gather(batch.x0, rows), self._geometry.rows(batch.room, rows)
        return Place(margin - taken_off, gradient, moved, kappa, room), taken_off

    def _crossing(
        self, batch: Batch, cells: tf.Tensor, point: tf.Tensor, step: SearchStep, radius: tf.Tensor
    ) -> tf.Tensor:
        """Returns the distance of an adversarial point just beyond the radius, else infinity."""
        rows, _ = tf.unstack(cells, axis=1)
        x0 = tf.gather(batch.x0, rows)
        place, _ = self._place(batch, cells, point, step.margin, step.gradient)
        beyond = x0 + self._geometry.beyond(place, tf.gather_nd(radius, cells))
        label, rival = tf.gather(batch.label, rows), tf.gather_nd(batch.rivals, cells)
        changed = self._network.margin(beyond, label, rival) <= 0.0
        distance = self._geometry.length(beyond - x0, place.room)
        return tf.where(changed & tf.math.is_finite(distance), distance, np.inf)

    def _decided(
        self, batch: Batch, radius: tf.Tensor, upper: tf.Tensor, reach: tf.Tensor
    ) -> tf.Tensor:
        """Returns which rivals need no more, as each radius that is asked for is proved of them or
        cannot be, `(n, rivals)`. Without a reach, one that cannot be proved ends the others too.
        """
        if not self._decides:
            return tf.zeros_like(radius, tf.bool)
        alone = tf.reduce_min(upper, axis=1, keepdims=True)
        upper = tf.where(tf.expand_dims(reach, 1) > 0.0, upper, alone)
        proved = tf.expand_dims(radius * (1.0 - _DECIDED_GAP), 2)
        impossible = tf.expand_dims(upper, 2) <= batch.decide
        return tf.reduce_all((proved > batch.decide) | impossible, axis=2)

    def _begin(self, batch: Batch, rows: tf.Tensor, current: tf.Tensor) -> dual.Iterate:
        """Returns the searches of these rows against these rivals, after the gradient at x0."""
        cells, origin = tf.stack([rows, current], axis=1), tf.gather(batch.x0, rows)
        margin, gradient = batch.begun(cells)
        place, _ = self._place(batch, cells, origin, margin, gradient)
        return self._geometry.advance(dual.start(origin), origin, place)

    def _goal(self, batch: Batch, upper: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
        """Returns the radius at which a rival needs no more, `(n, rivals)`: it cannot lower the
        minimum, and either has the reach or has come to its own bracket."""
        least = (1.0 - self._tolerance) * tf.reduce_min(upper, axis=1, keepdims=True)
        if self._decides:
            least = tf.minimum(least, batch.decide[-1] * (1.0 + 2.0 * _DECIDED_GAP))
        return tf.minimum(
            tf.maximum(least, tf.expand_dims(reach, 1)), (1.0 - self._tolerance) * upper
        )


def _weakest(radius: tf.Tensor, closed: tf.Tensor) -> tf.Tensor:
    """The open rival with the smallest radius, `(n,)`; any rival where none is open."""
    return tf.argmin(
        tf.where(closed, tf.constant(np.inf, radius.dtype), radius), axis=1, output_type=tf.int32
    )
