"""Two-layer ReLU networks: a quadratic lower bound on the margin, and its distance to zero.

On the ball `‖δ‖ ≤ ρ` every pre-activation `z_i = z⁰_i + W_i·δ` has a range `[d, u]`. Where
`d < 0 < u` the unit is unstable, and its ReLU lies between two parabolas `k₂z² + k₁z + k₀`:

    upper, |d| ≤ u:   (−d z² + (u² + d²) z − u²d) / (u − d)²
    upper, |d| ≥ u:   u (z − d)² / (u − d)²
    lower:            z if u ≥ 2|d|,   0 if |d| ≥ 2u,   z (z − d) / (u − d) otherwise.

Stable units are 0 or z. With the lower parabola where `w_i = W₂[i, y] − W₂[i, t] > 0`, else the
upper one,

    f(x0 + δ) ≥ Q(δ) = q + b·δ + ½ δᵀPδ,     P = U diag(2 w ∘ k₂) Uᵀ, U the unstable columns of W₁.

Q has curvature at least m = λ_min(P), so the minorant of `dual.py` applies to it at any δ̂, and
`f > 0` for `‖δ‖ < min(r, ρ)`. At the best δ̂, r is the exact distance to `Q ≤ 0` (S-lemma).

Estimates (`s_lemma.py`) choose ρ and δ̂. Proofs come last: mostly one eigenvalue bound for an
example with all its rivals. Differences from the paper are in docs/mathematics.md, section 24.

Reference: Singla & Feizi (2020), appendix on quadratic bounds for two-layer ReLU networks; Zhang
et al., "Efficient neural network robustness certification with general activation functions"
(2018), for the parabolas.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.linear.s_lemma import Distances, Quadratic
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question
from keras_curv.errors import InputError
from keras_curv.network.network import Network, require_dense
from keras_curv.numerics import krylov
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.rounding import (
    CURVATURE_FLOOR,
    ROUNDING_SLACK,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    up,
)
from keras_curv.numerics.spectral import smallest_eigenvalue_bound
from keras_curv.threats.box import box_reach

SEARCH = 24  # radii ρ that are tried, with estimates
LEADERS = 4  # rivals for which ρ is searched, one after the other
CLOSED = 1.0002  # high over low at which a bracket is closed
_ENOUGH = 0.999  # of ρ: a rival with a proved radius beyond this gets no further proof
_GROWN = (1.1, 1.03, 1.25)  # factors of ρ for further balls where inputs have limits


def parabolas(low: np.ndarray, high: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Returns `k₂, k₁, k₀` with `k₂z² + k₁z + k₀ ≤ max(z, 0)` on `[low, high]`; `≥` if not `below`.

    No step cancels, so each coefficient has a relative error of at most γ₈.

    Args:
        low, high: arrays of one shape, `low ≤ high`.
        below: bool, the same shape.

    Returns:
        The three coefficients, stacked in front; k₂ ≥ 0.

    Example:
        >>> parabolas(np.array([-1.0]), np.array([1.0]), np.array([False]))[:, 0]
        array([0.25, 0.5 , 0.25])
    """
    width = high - low
    off = (high <= 0.0) | (below & (-low >= 2.0 * high))
    on = (low >= 0.0) | (below & (high >= -2.0 * low))
    case = [off, on, below, -low <= high]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # of stable units
        t, s = high / width, -low / width
        square = np.select(case, [0.0, 0.0, 1.0 / width, s / width], t / width)
        slope = np.select(case, [0.0, 1.0, s, t * t + s * s], 2.0 * s * t)
        constant = np.select(case, [0.0, 0.0, 0.0, -low * t * t], high * s * s)
    return np.stack([square, slope, constant])


class QuadraticCertificate(Method):
    """Certificates of a two-layer ReLU network by quadratic bounds; see the module docstring.

    Args:
        network: affine, ReLU, affine.
        served_error: bounds on the error of served margins.

    Raises:
        InputError: the network is not of two layers, or its activation is not ReLU.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "relu")
        >>> certificate = QuadraticCertificate(network)
        >>> radius = certificate.prove(Question.of([[3.0, 1.0]], [0], [[1]])).radius
        >>> 1.36 < radius.item() < 2**0.5                 # the boundary is at √2
        True
    """

    name, turn = "quadratic", 4

    def __init__(self, network: Network, served_error: ServedError = no_error):
        names = [activation.name for activation in network.activations]
        if names != ["relu"]:
            raise InputError(
                "the quadratic certificate is for two layers with relu between them. Received: "
                f"{network.depth} layers, activations {', '.join(names) or 'none'}"
            )
        require_dense(network, self.name)
        self.network = network
        self.served_error = served_error
        self._read, self._last = network.affines
        self._first = network.differentials[0]
        self._rows = self._first.column_norms  # ‖W_i‖
        self.distances = Distances(self._first)

    def prove(self, question: Question) -> Proof:
        """Proves radii as in `Method`, with one ρ for each example, independent of known radii.

        r need not decrease in ρ: with a known radius the search might end at another, worse ρ.
        """
        x, label, rivals = question[:3]
        point = np.full((*rivals.shape, x.shape[1]), np.nan) if question.witness else None

        def prove(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            places = None if point is None else point[rows]
            return self._radii(x[rows], label[rows], rivals[rows], places)

        radius, gradients = np.zeros(rivals.shape), np.zeros(len(x), np.int64)
        entries = 16 * rivals.shape[1] * max(self.network.sizes)  # a Krylov space, and more
        for rows, (found, used) in in_batches(prove, len(x), entries):
            radius[rows], gradients[rows] = found, used
        return question.answer(self.name, radius, gradients, point=point)

    def _radii(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, places: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns radii `(n, rivals)` and gradients `(n,)`.

        Args:
            places: written where Q's gradient proves them, `(n, rivals, dim)`; None keeps none.
        """
        best, gradients = np.zeros(rivals.shape), np.zeros(len(x), np.int64)
        with np.errstate(all="ignore"):  # overflow proves nothing
            rho = self._search(x, label, rivals, gradients)
            for smaller, shared in ((False, True), (False, False), (True, False)):
                if smaller:  # the estimate of λ_min may have been too optimistic
                    reached = best.min(axis=1)
                    rho = np.where(reached < _ENOUGH * rho, (reached + rho) / 2.0, 0.0)
                best = self._prove(x, label, rivals, best, rho, shared, gradients, places)
            # Estimates ignore limits.
            for grown in _GROWN if self.network.limits is not None else ():
                rho = grown * best.min(axis=1)
                best = self._prove(x, label, rivals, best, rho, True, gradients, places)
        return best, gradients

    def quadratics(
        self, x: np.ndarray, label: np.ndarray, rival: np.ndarray, rho: np.ndarray
    ) -> Quadratic:
        """Returns Q for each row: below the margin by at least the served error for `‖δ‖ ≤ ρ`.

        Args:
            x: `(rows, dim)`, float64.
            label, rival: `(rows,)`, integers.
            rho: `(rows,)`, at least 0.
        """
        first, last = self._read, self._last
        z = x @ first.kernel + first.bias
        reach = up(rho[:, None] * self._rows) + SLOPE_FLOOR  # no width is too small to divide by
        low, high = np.nextafter(z - reach, -np.inf), np.nextafter(z + reach, np.inf)
        margin_map = self.network.margin_map(tf.constant(x), label, rival[:, None])
        w, c = (part.numpy()[:, 0] for part in margin_map)
        square, slope, constant = parabolas(low, high, w > 0.0)
        value = c + np.sum(w * ((square * z + slope) * z + constant), axis=1)
        linear = (w * (2.0 * square * z + slope)) @ self._first.kernel.T

        # Rounding of the parabolas anywhere in the ball, of w ∘ k₂ and of the sums.
        size, furthest = np.abs(w), np.maximum(-low, high)
        extent = (4.0 * square * furthest + slope) * furthest + np.abs(constant)
        error = gamma(w.shape[1] + 64) * (np.sum(size * extent, axis=1) + np.abs(c))
        bend = size * (2.0 * square * np.abs(z) + slope)
        linear_error = gamma(w.shape[1] + 16) * first.magnitude_norm * norm_bound(bend, axis=1)
        # ReLU is 1-Lipschitz: errors of pre-activations and of stored weights cost this much.
        w_norm, x_norm = norm_bound(w, axis=1), norm_bound(x, axis=1)
        pre_error = (
            gamma(first.fan_in + 8) * (first.magnitude_norm * x_norm + first.bias_norm)
            + first.kernel_error * (x_norm + rho)
            + first.bias_error
            + 8.0 * TINY * first.kernel.size * (1.0 + first.magnitude_norm + x_norm)
        )
        hidden = first.norm * (x_norm + rho) + first.bias_norm + first.bias_error
        error += w_norm * pre_error + (2.0 * UNIT * w_norm + 2.0 * last.kernel_error) * hidden
        error += 2.0 * last.bias_error
        served = self.served_error(x, label, rival[:, None], rho[:, None])[:, 0]
        # Underflow of a coefficient, w k₂ or w k₁, is multiplied by the largest |z| of its unit.
        lost = 16.0 * TINY * (1.0 + w_norm)
        error += lost * np.sum((1.0 + furthest) ** 2, axis=1)
        linear_error += lost * first.magnitude_norm * norm_bound(1.0 + furthest, axis=1)
        # 1e-6 covers the roundings of these bounds; the floors, underflow elsewhere.
        error = (error + served) * ROUNDING_SLACK + SLOPE_FLOOR * w.shape[1] * (1.0 + w_norm)
        linear_error = linear_error * ROUNDING_SLACK + SLOPE_FLOOR
        return Quadratic(value, linear, 2.0 * w * square, error, linear_error)

    def _search(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, gradients: np.ndarray
    ) -> np.ndarray:
        """Returns the ρ of each example with the largest estimate of `min(r(ρ), ρ)`, r the least
        radius of its rivals, `(n,)`.

        The search is for one rival at a time; if another rival has a smaller r at the ρ found, the
        search goes on for that one. It begins with the rival whose tangent at x is the first to
        reach 0: that is Q at ρ = 0, where no unit is at its kink.
        """
        rho, some = np.zeros(len(x)), np.arange(len(x))
        found = self.network.evaluate(tf.constant(x), label, rivals)
        served = self.served_error(x, label, rivals, np.zeros(rivals.shape))
        tangents = np.maximum(found.margin.numpy() - served, 0.0)
        tangents = tangents / np.linalg.norm(found.gradient, axis=-1)
        gradients += rivals.shape[1]
        radius, open_ = tangents, np.ones(len(x), bool)
        for _ in range(LEADERS):
            least, leader = radius.min(axis=1), radius.argmin(axis=1)[:, None]
            some, least, leader = some[open_], least[open_], leader[open_]
            if not len(some):
                break
            rival, tangent = (
                np.take_along_axis(part[some], leader, 1) for part in (rivals, tangents)
            )
            args = x[some], label[some], rival, rho[some], least, tangent[:, 0]
            rho[some], tried = self._crossing(*args)
            radius, used = self._estimates(x[some], label[some], rivals[some], rho[some])
            gradients[some] += tried + used
            open_ = radius.min(axis=1) * CLOSED < rho[some]
        return rho

    def _crossing(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rival: np.ndarray,
        rho: np.ndarray,
        radius: np.ndarray,
        tangent: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns ρ where the estimate r(ρ) of one rival `(n, 1)` is equal to ρ, `(n,)`, from given
        r(ρ) and r(0); and gradients.

        If r is decreasing, any ρ and its r(ρ) bracket the crossing. Each step tries the crossing of
        the secant of r, or else the middle of the bracket.
        """
        # Within this radius every unit reaches its kink; one step must not go beyond it.
        kinks = np.abs(x @ self._read.kernel + self._read.bias) / self._rows
        limit = np.max(kinks, axis=1, initial=0.0, where=self._rows > 0.0)
        limit = np.where(limit > 0.0, limit, 1.0)
        then, there, gradients = np.zeros(len(x)), tangent, np.zeros(len(x), np.int64)
        low, high, width = np.minimum(radius, rho), np.maximum(radius, rho), np.inf
        for _ in range(SEARCH):
            open_ = high > CLOSED * low
            some = np.flatnonzero(open_)
            if not len(some):
                break
            crossing = (then * radius - there * rho) / (then - there - rho + radius)
            secant = (low < crossing) & (crossing < high) & (2.0 * (high - low) <= width)
            following = np.where(secant, crossing, (low + high) / 2.0)
            following = np.minimum(following, np.maximum(limit, 4.0 * rho))
            then, there, width = rho, radius, high - low
            rho = np.where(open_, following, low)
            radius = rho.copy()
            found, used = self._estimates(x[some], label[some], rival[some], rho[some])
            radius[some] = found[:, 0]
            gradients[some] += used
            low = np.maximum(low, np.minimum(radius, rho))
            high = np.minimum(high, np.maximum(radius, rho))
        return low, gradients

    def _estimates(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, rho: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimates r(ρ) of each rival, `(n, rivals)`, in Krylov spaces; and gradients, `(n,)`."""
        rows = np.repeat(np.arange(len(x)), rivals.shape[1])
        quadratic = self.quadratics(x[rows], label[rows], rivals.reshape(-1), rho[rows])
        radius = self.distances.radii(quadratic).reshape(rivals.shape)
        used = np.where(rho > 0.0, krylov.dimension(quadratic.linear), 1)
        return radius, rivals.shape[1] * used

    def _prove(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        best: np.ndarray,
        rho: np.ndarray,
        shared: bool,
        gradients: np.ndarray,
        places: np.ndarray | None,
    ) -> np.ndarray:
        """Returns the best radii, after proofs of at most ρ where they are below ρ.

        With `shared` an example has one κ for all its rivals, from the smallest diagonals: as
        long as η ≤ 1/κ is not active, a larger κ costs nothing.
        """
        rows, columns = np.nonzero(best < _ENOUGH * rho[:, None])
        if not len(rows):
            return best
        quadratic = self.quadratics(x[rows], label[rows], rivals[rows, columns], rho[rows])
        groups = rows if shared else np.arange(len(rows))
        kappa = np.empty(len(rows))
        for group in np.unique(groups):
            members = groups == group
            kappa[members] = self.curvature_bound(quadratic.diagonal[members].min(axis=0))
        displacement = self.distances.nearest(quadratic, kappa)
        radius = self.radius_at(quadratic, kappa, displacement, x[rows])
        proved = best.copy()
        proved[rows, columns] = np.fmax(proved[rows, columns], np.minimum(radius, rho[rows]))
        if places is not None:
            larger = proved[rows, columns] > best[rows, columns]
            some = rows[larger], columns[larger]
            places[some] = x[some[0]] + displacement[larger]
        np.add.at(gradients, rows, krylov.dimension(quadratic.linear) + 1)
        return proved

    def curvature_bound(self, diagonal: np.ndarray) -> float:
        """Returns a proved κ ≥ −λ_min(P)."""
        if not np.isfinite(diagonal).all():
            return np.inf
        return CURVATURE_FLOOR - smallest_eigenvalue_bound(self._first.kernel, diagonal)

    def radius_at(
        self, quadratic: Quadratic, kappa: np.ndarray, d: np.ndarray, x: np.ndarray
    ) -> np.ndarray:
        """Returns the root of Q's minorant at any displacement d, rounding charged, `(rows,)`.

        With g = b + Pd, the intercept `Q(d) − g·d − (κ/2)‖d‖²` is `q − ½ dᵀPd − (κ/2)‖d‖²`; κ‖d‖²
        is multiplied factor by factor, as ‖d‖² may underflow where κ‖d‖² does not.
        """
        first = self._first
        distance = norm_bound(d, axis=1)
        through = d @ first.kernel
        bent = quadratic.diagonal * through
        steepest = quadratic.linear + bent @ first.kernel.T + kappa[:, None] * d
        intercept = quadratic.constant - 0.5 * (
            np.sum(bent * through, axis=1) + kappa * distance * distance
        )
        passed = norm_bound(through, axis=1)
        largest = np.abs(quadratic.diagonal).max(axis=1)
        unit = gamma(max(first.kernel.shape) + 64)
        # The underflow of each entry of `through`, operands included.
        tiny = 8.0 * TINY * first.kernel.size
        through_error = unit * first.magnitude_norm * distance + SLOPE_FLOOR
        through_error += tiny * (1.0 + first.magnitude_norm + distance)
        intercept_error = (
            quadratic.constant_error
            + largest * (passed + through_error) * (through_error + unit * passed)
            + unit * (np.abs(quadratic.constant) + kappa * distance * distance)
            + tiny * (1.0 + passed + through_error) ** 2
            + tiny * (1.0 + kappa) * (1.0 + distance)
        )
        slope_error = (
            quadratic.linear_error
            + largest * first.norm * through_error
            + unit * largest * first.magnitude_norm * passed
            + unit * (norm_bound(quadratic.linear, axis=1) + kappa * distance)
            + tiny * (1.0 + first.magnitude_norm) * (1.0 + passed + through_error)
            + tiny * (1.0 + kappa)
        )
        if self.network.limits is not None:  # entries at a limit do not move
            limit, _ = box_reach(self.network, x).along(tf.constant(-steepest))
            steepest = np.where(limit.numpy() > 0.0, steepest, 0.0)
        slope = norm_bound(steepest, axis=1)
        minorant = dual.Minorant(
            tf.constant(intercept - intercept_error * ROUNDING_SLACK),
            tf.constant((slope + slope_error * ROUNDING_SLACK) * (1.0 + gamma(32))),
            tf.constant(kappa),
        )
        return dual.certified_radius(minorant).numpy() * (1.0 - gamma(32))
