"""Local CRC: the curvature certificate with curvature bounds that hold on a ball only.

A curvature bound κ that holds in `B(x0, R)` proves, through the minorant of `dual.py` at any x̂ of
that ball, the radius min(r, R). A larger ball costs a larger κ and thus a smaller r: the best R is
where the two cross. Every R proves what it proves by itself, so the search for the crossing may
use estimates: of κ (Lanczos), and of the best x̂ (the attack's dual in the ball: R can be proved if
its value stays positive). Only the last R is proved, one eigenvalue bound for every rival in reach.
It lies on the grid of `numerics/bracket.py`, or is what the next point of the grid comes to, so
that it is the same wherever the search starts.

With more than two layers a bound on a ball may be above that on all of ℝᵈ, which keeps products of
kernels together where the other moves from x0. So a deeper network is asked first for what `crc`
proves, unless that is known.

The paper iterates `R ← r(R)` instead, five times, from the global radius: r falls as R grows, so
that every other iterate lies beyond the crossing and proves no more than the R before it.

Reference: Singla & Feizi (2020), section "Results using local curvature bounds" and its appendix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.ball_step import IN_BALL, BallStep
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.geometries import geometry_of
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question, WeakestPoint
from keras_curv.curvature.ball_floor import CurvatureFloor
from keras_curv.curvature.local import Anchor, LocalCurvature
from keras_curv.curvature.sketch import CurvatureSketch
from keras_curv.errors import InputError
from keras_curv.network.activations import require_smooth
from keras_curv.network.network import Network, require_dense
from keras_curv.network.shared_graph import compiled
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.bracket import grid_below, on_grid
from keras_curv.numerics.rounding import up

NUMBERS_AT_ONCE = 2**25  # held by the anchors of a batch: 256 MiB
MAX_PROBES = 16
_SHORT = 1.002  # a proof that falls short by more is tried again
_PROOFS = 2  # eigenvalue bounds of a rival in reach alone, at most
FEW = 2  # rivals in reach that are not worth a bound of theirs together
STEPS = 10  # gradients toward each x̂, at most


class LocalCurvatureCertificate(Method):
    """Certifies inputs of one network by its curvature near them.

    A radius r proves `z_label(x + δ) > z_rival(x + δ) + E` for every δ with `‖δ‖₂ < r`, E the
    bound on the served error; in real arithmetic on the stored weights, our own rounding charged.

    Args:
        network: at least one hidden layer.
        served_error: see `method.ServedError`.

    Raises:
        InputError: the network is affine, which has no curvature; or an activation is not
            differentiable.

    Example:
        >>> kernels = [np.eye(2), 4.0 * np.eye(2)]
        >>> network = Network.from_weights(kernels, [np.zeros(2)] * 2, "sigmoid")
        >>> certificate = LocalCurvatureCertificate(network)
        >>> radius = certificate.prove(Question.of([[1.0, -1.0]], [0], [[1]])).radius
        >>> 1.3 < radius.item() < 2**0.5  # the boundary is √2 away
        True

    Reference: Singla & Feizi (2020), appendix "Computing certificate using local curvature bounds".
    """

    name, turn = "crc_local", 6
    dear_rivals = True

    def __init__(self, network: Network, served_error: ServedError = no_error):
        if network.depth < 2:
            raise InputError("local curvature needs a hidden layer. Received: an affine network")
        require_smooth(network.activations)
        require_dense(network, self.name)
        self.network = network
        self._served_error = served_error
        with np.errstate(all="ignore"):  # what overflows is infinite, or NaN
            self.local_curvature = LocalCurvature(network)
        if network.depth == 2:
            floor = CurvatureFloor(network)
            self._floors: list[Callable[..., np.ndarray]] = [floor, floor.sharper]
        else:
            self._floors = [CurvatureSketch(self.local_curvature)]
            # The Gram matrices of the Jacobians of all layers.
            grams = float(network.dim) ** 2 * sum(network.sizes[1:-1])
            self.cost = grams / network.multiplications
        self._geometry = geometry_of(network)
        self._step = compiled(BallStep, network, type(self._geometry), signature=IN_BALL)

    @functools.cached_property
    def everywhere(self) -> CurvatureCertificate | None:
        """Proves by the curvature on all of ℝᵈ, where that may be more."""
        if self.network.depth == 2:
            return None
        return CurvatureCertificate(self.network, self._served_error)

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        radius = np.where(question.known > 0.0, question.known, 0.0)
        gradients = np.zeros(len(question.x), np.int64)
        point = np.full((*radius.shape, question.x.shape[1]), np.nan) if question.witness else None
        unknown = np.flatnonzero(radius.min(axis=1) <= 0.0)
        if len(unknown) and self.everywhere is not None:
            goal = question.goal.opened()._replace(decide=())
            everywhere = self.everywhere.prove(question._replace(goal=goal).take(unknown))
            radius[unknown], gradients[unknown] = everywhere.radius, everywhere.gradients
            if point is not None:
                point[unknown] = everywhere.point
        asked = question._replace(known=radius)
        every = np.arange(len(question.x) if self.local_curvature.in_range else 0)

        def prove(rows: slice) -> tuple[np.ndarray, ...]:
            scale, usable = self._scale(*asked.take(rows)[:3])
            some = every[rows][usable & np.isfinite(radius[rows].min(axis=1))]
            if not len(some):
                return some, radius[some], gradients[some]
            places = None if point is None else point[some]
            found = self._batch(asked.take(some), scale[some - every[rows][0]], places)
            if point is not None:
                point[some] = places
            return some, *found

        size = self.local_curvature.anchor_size()
        with np.errstate(all="ignore"):
            for _, (rows, found, used) in in_batches(prove, len(every), size, NUMBERS_AT_ONCE):
                radius[rows] = np.fmax(radius[rows], found)
                gradients[rows] += used
        return question.answer(self.name, radius, gradients, point=point)

    def ceiling(self, question: Question, weakest: WeakestPoint) -> np.ndarray:
        """See `Method`: from the least curvature on the ball; of more than two layers, about that.

        A radius R needs a curvature κ that holds in `B(x, R)`, and no more than
        `√(‖x̂ − x‖² + 2 max(f(x̂), 0)/κ)` can be proved by it, for any x̂ (`dual.radius_bracket`).
        """
        x, radius, rival = question.x, question.goal.aim, question.weakest(weakest.column)
        found = np.full(len(x), np.inf)
        if self.network.limits is not None:
            return found
        far = np.sum((weakest.point - x) ** 2, axis=1)
        left = 2.0 * np.maximum(weakest.margin, 0.0)
        for floor in self._floors:
            some = np.flatnonzero(found > radius)
            if len(some):
                with np.errstate(all="ignore"):
                    kappa = floor(*(part[some] for part in (x, question.label, rival, radius)))
                    highest = np.sqrt(far[some] + left[some] / kappa) * (1.0 + 1e-9)
                found[some] = np.fmin(found[some], highest)
        return found

    def _scale(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The smallest f/‖∇f‖ of each input, and whether there is anything to prove."""
        evaluation = self.network.evaluate(tf.constant(x), label, rivals)
        margin, slope = evaluation.margin.numpy(), np.linalg.norm(evaluation.gradient, axis=-1)
        scale = np.min(margin / np.maximum(slope, 1e-300), axis=1)
        return scale, np.isfinite(scale) & (margin > 0.0).all(axis=1)

    def _batch(
        self, question: Question, scale: np.ndarray, places: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns radii `(n, rivals)` that are proved on balls, and gradients used, `(n,)`.

        Args:
            scale: about where radii are, `(n,)`.
            places: written where gradients are taken that prove them, `(n, rivals, dim)`; None
                keeps no witness.
        """
        x, label, rivals, known, goal = question[:5]
        anchor = self.local_curvature.anchor(x)
        gradients = np.full(len(x), rivals.shape[1], np.int64)
        least = known.min(axis=1)
        low = grid_below(np.maximum(least, scale / 4096.0), scale)
        ceiling, aim, gap = goal.ceiling, goal.aim, goal.gap
        in_vain = grid_below(aim, scale) + 1.0
        high = np.maximum(grid_below(2.0 * np.maximum(scale, least), scale), in_vain) + 1.0
        # First just beyond what is known, or worth a proof: few rivals are in reach, and often it
        # ends there. Where nothing is, at f/‖∇f‖: what that proves and the radius are a bracket.
        point = np.where(least > 0.0, np.maximum(low + 1.0, in_vain), 0.0)
        close = ceiling < 2.0 * least
        if close.any():
            high = np.where(close, np.maximum(grid_below(ceiling, scale), low) + 1.0, high)
            aimed = (low < in_vain) & (in_vain < high)
            middle = np.floor((low + high) / 2.0)
            point = np.where(close, np.where(aimed, in_vain, middle), point)
        beyond = np.zeros(len(x))  # what the ball of `high` proves
        seen = known.copy()  # what a larger ball proves of a rival, a smaller one need not be asked
        for _ in range(MAX_PROBES):
            rows = np.flatnonzero(high > np.maximum(low + gap, in_vain))
            if not len(rows):
                break
            radius = on_grid(point[rows], scale[rows])
            args = anchor.take(rows), x[rows], label[rows], rivals[rows], seen[rows], radius
            seen[rows], used = self.proved_at(*args, self.local_curvature.estimate)
            gradients[rows] += used
            reached = np.minimum(seen[rows], radius[:, None]).min(axis=1)
            short = rows[reached < radius]
            high[short], beyond[short] = point[short], reached[reached < radius]
            low[rows] = np.maximum(
                low[rows], np.minimum(grid_below(reached, scale[rows]), point[rows])
            )
            point = np.floor((low + high) / 2.0)
        size, result = np.maximum(on_grid(low, scale), beyond), known.copy()

        def prove(rows: np.ndarray, curvature: Callable[..., np.ndarray]) -> np.ndarray:
            args = anchor.take(rows), x[rows], label[rows], rivals[rows], result[rows], size[rows]
            at = None if places is None else places[rows]
            result[rows], used = self.proved_at(*args, curvature, at)
            gradients[rows] += used
            if places is not None:
                places[rows] = at
            return result[rows].min(axis=1)

        rows = np.flatnonzero(size > aim)
        many = rows[np.sum(known[rows] < size[rows, None], axis=1) > FEW]
        if len(many):  # most rivals are farther off than the nearest: for them less is enough
            prove(many, self.local_curvature.shared_bound)
        for _ in range(_PROOFS):
            rows = rows[result[rows].min(axis=1) < size[rows]]
            if not len(rows):
                break
            reached = prove(rows, self.local_curvature.bound)
            # A bound above the estimate proves less than the ball: the crossing is between.
            short = _SHORT * reached < size[rows]
            size[rows] = np.sqrt(np.maximum(reached, size[rows] / 2.0) * size[rows])
            rows = rows[short]
        return result, gradients

    def proved_at(
        self,
        anchor: Anchor,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        known: np.ndarray,
        radius: np.ndarray,
        curvature: Callable[..., np.ndarray],
        places: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Radii `(n, k)` that the balls of these radii prove, if the curvature holds; gradients.

        Args:
            curvature: a method of `LocalCurvature`: its bound, or its estimate.
            places: written where gradients prove more than was known, `(n, k, dim)`.
        """
        of, column = np.nonzero(known < radius[:, None])
        y, t = label[of], rivals[of, column]
        kappa = curvature(anchor, radius, of, y, t)
        error = self.served_error_at(x, label, rivals, radius)[of, column]
        best, used = np.zeros(len(of)), np.zeros(len(x), np.int64)
        rows, iterate = np.arange(len(of)), dual.start(tf.constant(x[of]))
        for _ in range(STEPS):
            near = x[of[rows]]
            start = self._geometry.start(near)
            pairs = (tf.constant(part[rows], tf.int32) for part in (y, t))
            numbers = map(tf.constant, (kappa[rows], radius[of[rows]], error[rows]))
            found, following = self._step(start.value, *pairs, *numbers, iterate, start.room)
            if places is not None:
                more = found.numpy() > np.maximum(best, known[of, column])[rows]
                at = rows[more]
                places[of[at], column[at]] = iterate.point.numpy()[more]
            best[rows] = np.fmax(best[rows], found.numpy())
            used += np.bincount(of[rows], minlength=len(x))
            going = best[rows] < radius[of[rows]]
            if not going.any():
                break
            # Selected in numpy: eager TensorFlow takes longer for that than for the gradient.
            rows = rows[going]
            iterate = dual.Iterate(*(tf.constant(part.numpy()[going]) for part in following))
        proved = np.array(known)
        proved[of, column] = np.maximum(known[of, column], np.minimum(best, radius[of]))
        return proved, used

    def served_error_at(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns bounds on the served error on balls of radii `(n,)`, rounded up."""
        each = np.broadcast_to(radius[:, None], rivals.shape)
        return up(self._served_error(x, label, rivals, each))
