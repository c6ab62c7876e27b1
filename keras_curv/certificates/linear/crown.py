"""CROWN: linear bounds of a network on an l2 ball, and the certificate that they give.

**Bounds.** On the ball `‖δ‖ ≤ R` around x, let every pre-activation z_k lie in a proved interval,
with lines below and above σ_k there (`relaxation.py`). A linear function of a layer then has a
lower bound that is linear in the layer before: with s and t slope and intercept of the lower line
where Λ > 0 and of the upper line where Λ < 0, and `Ω = Λ ∘ s`,

    Λ a_k + c  ≥  Ω z_k + (Λ t + c)  =  (Ω W_kᵀ) a_{k−1} + (Λ t + Ω b_k + c),

and at the input the minimum over the ball is `Λ x + c − R ‖Λ‖₂`. The intervals are found the same
way, layer after layer, by passes back to the input; those of the first layer are exact. Later
layers and the margins are also bounded by the box of the layer before (`interval_bounds.py`), and
the better bound is kept: for a bounded σ, lines become loose as the ball grows, and the box stays
bounded.

**Large layers.** The work of a pass back for each unit grows with the square of the width; in
convolutions the pass goes through the few units that each unit sees (`receptive_fields.py`). From
the layer on where even this is too much work (`plan.py`), intervals come from the box of the layer
before and from its movement: `z_k(x) ± R Lip(a_{k−1}) ‖w_j‖`, by LipLT. A margin's pass may then
stop at any z_k on its way, with the least value in the box of z_k, or in the ball of radius
`R Lip(z_k)` around z_k(x).

**Curvature.** A linear function of the first hidden layer is a smooth network of two layers, for
which curvature often proves more than lines (`first_layer.py`). Units of the second layer, and the
linear functions of the first layer that passes back reach, are bounded by both.

**Second pass.** For given intervals, the best lines are not those close to σ at the midpoints, but
those close to σ where the bound takes its minimum: a saddle point. So a margin is bounded twice,
and the better bound is kept: with lines close at the midpoints, then with lines close at the
pre-activations of `x − R Λ/‖Λ‖`, the worst point of the first pass. On random networks further
passes added less than a sixth of the second pass's gain.

**Rounding.** The computed Λ̃ and c̃ are taken as exact; the rounding of each step is charged. Let
`A_k ≥ |a_k|` and `Q_k = |W_k|ᵀ A_{k−1} + |b_k| ≥ |z_k|`, entrywise on the whole ball. The error of
`fl(Λ̃ ∘ s)` is u |Ω̃|, multiplied by z_k; that of `fl(Ω̃ W_kᵀ)` is γ_N |Ω̃||W_k|ᵀ, multiplied by
a_{k−1}; that of the sums in c̃ is γ_{N+8} of their magnitudes. With N entries in z_k and by
Cauchy–Schwarz, a step costs at most

    γ_{N+16} (3 ‖Ω̃‖ ‖Q_k‖ + ‖Λ̃‖ ‖t‖ + |c̃|) + ‖Ω̃‖ (‖ΔW_k‖ ‖A_{k−1}‖ + ‖Δb_k‖) + underflow,

ΔW and Δb the folding errors. At the input, with D entries, `γ_{D+16} (‖Λ̃‖ (‖x‖ + R) + |c̃|)`.
If Λ is not needed, a pass may end at a smaller first layer: the minimum of `Ω z_1 + c` over the
ball is `Ω z_1(x) + c − R ‖W_1 Ωᵀ‖₂`, a product with W_1ᵀW_1; an error ζ of z_1(x) costs `‖Ω‖ ζ`.

Reference: Zhang, Weng, Chen, Hsieh & Daniel, "Efficient neural network robustness certification
with general activation functions" (2018), theorem 3.2 and corollary 3.3 with p = 2.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.certificates.interval_bounds import require_value_range
from keras_curv.certificates.linear.ball_search import BallBoundCertificate, steepest_fall
from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.bounds.relaxation import POINTS, relaxation, require_relaxation
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.certificates.question import Question, WeakestPoint
from keras_curv.curvature.sketch import sketch
from keras_curv.network.network import Network
from keras_curv.numerics.intervals import Interval, outward
from keras_curv.numerics.rounding import FLOAT32_TINY, FLOAT32_UNIT
from keras_curv.threats.norms import L2, Norm

_SHARE = 0.8  # of a unit's movement in a ball by its slope at the centre
_ROUNDED = 1e-6  # relative rounding of each term in float32


class LinearBoundCertificate(BallBoundCertificate):
    """A certificate: the largest ball on which CROWN's bounds on the margins are positive.

    Attributes:
        relaxation: the lines around an activation; a subclass may use other sound lines.
        refined: whether boxes and a second pass tighten the bounds, and large layers are bounded
            forward; False for published methods, which do not include these.

    Args:
        network: a network with relu, or with activations whose second derivative is bounded except
            at known kinks.
        served_error: bounds on the error of served margins.
        norm: the norm of the balls.

    Raises:
        InputError: names an activation without a rule.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> certificate = LinearBoundCertificate(network)
        >>> radius = certificate.prove(Question.of([[3.0, 1.0]], [0], [[1]])).radius
        >>> float(radius[0, 0]) <= 2.0**0.5 <= 1.002 * float(radius[0, 0])
        True
    """

    name, turn, dear = "crown", 5, True
    relaxation = staticmethod(relaxation)
    refined = True

    def __init__(self, network: Network, served_error: ServedError = no_error, *, norm: Norm = L2):
        require_rules(network)
        self.plan = (
            Plan.of(network) if self.refined else Plan(tuple(range(network.depth - 1)), [], [])
        )
        self._first = FirstLayer.of(network) if self.refined else None
        products = np.cumsum(np.multiply(network.sizes[:-1], network.sizes[1:]), dtype=np.float64)
        # From the second hidden layer on, both ends of each unit take a shorter backward pass.
        passed = [index for index in self.plan.back if index]
        cost = sum(2.0 * network.sizes[index + 1] * products[index - 1] for index in passed)
        cost += sum(field.work for layer in self.plan.fields for field in layer)
        if self._first is not None:  # curvature of the second layer's units, at two points per ball
            cost += 4.0 * network.sizes[2] * network.sizes[1] ** 2
        cost /= network.multiplications
        height = _height(network, self.plan)
        options = {"steepest": steepest_fall(network), "cost": cost, "height": height}
        super().__init__(network, served_error, norm=norm, **options)

    def ceiling(self, question: Question, weakest: WeakestPoint) -> np.ndarray:
        """Returns an upper limit of its radii, as in `Method`, by the best lines at one point.

        A line below σ on an interval is also below the chord of σ, and a line above σ above it. So
        on `B(x, R)` no bound exceeds `Σ_j w_j⁺ min(σ, chord)(z_j) + w_j⁻ max(σ, chord)(z_j) + c` at
        any point, for example the sphere's point toward the weakest point; nor does a box. This is
        a limit for two layers.

        For deeper networks it is an estimate from the units' steepness at x: first by these chords
        in the last hidden layer, then by the bound itself.
        """
        x, label, radius = question.x, question.label, question.goal.aim
        rival = question.weakest(weakest.column)
        sparse = any(affine.is_sparse for affine in self.network.affines)
        if self.network.depth < 2 or self.network.limits is not None or sparse:
            return np.full(len(x), np.inf)
        with np.errstate(all="ignore"):
            margin_map = self.network.margin_map(tf.constant(x), label, rival[:, None])
            w, constant = (part.numpy()[:, 0] for part in margin_map)
            if self.network.depth == 2:
                start = x.astype(np.float32)
                constant = constant + self._lost(x, radius, w)
                reach = [radius[:, None] * self.network.differentials[0].column_norms]
                pre = [part.numpy() for part in self.network.forward(tf.constant(start))[0]]
            else:
                start, known = x, sketch(self.network, x)
                reach = [_SHARE * radius[:, None] * steep for steep in known.steepness]
                pre = known.pre
            toward = weakest.point - x
            length = np.linalg.norm(toward, axis=1, keepdims=True)
            farther = (x + toward * (radius[:, None] / length)).astype(start.dtype)
            moved = self.network.forward(tf.constant(farther))[0][-1].numpy() - pre[-1]
            far = reach[-1].astype(start.dtype)
            hopeless = self._lowered(w, pre[-1], far, moved) + constant < 0.0
            rest = np.flatnonzero(~hopeless)
            if self.network.depth > 2 and len(rest):
                layers = zip(pre, reach, strict=True)
                ends = [outward(z[rest], far[rest]) for z, far in layers]
                args = x[rest], label[rest], rival[rest], radius[rest]
                hopeless[rest] = self._supposing(ends, *args) <= 0.0
        return np.where(hopeless, radius, np.inf)

    def _lost(self, x: np.ndarray, radius: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Bounds the loss of `_lowered` by float32 pre-activations of two layers, `(n,)`; where
        large terms cancel, this may be all of it."""
        first, activation, size = self.network.affines[0], self.network.activations[0], np.abs(w)
        far = np.linalg.norm(x, axis=1) + radius
        z = far * (size @ first.column_norms) + size @ np.abs(first.bias)
        flushed = FLOAT32_TINY * (1.0 + far) * size.sum(axis=1)
        at_zero = size @ np.abs(activation.value(tf.zeros((1, first.fan_out), tf.float64))[0])
        steps = 8.0 * (first.fan_in + 16)
        lost = activation.steepest * steps * (FLOAT32_UNIT * z + flushed)
        return lost + 64.0 * FLOAT32_UNIT * at_zero

    def _lowered(
        self, w: np.ndarray, z: np.ndarray, reach: np.ndarray, to: np.ndarray
    ) -> np.ndarray:
        """Bounds w times any lines of the last hidden layer at `z + to` from above, `(n,)`."""
        value = self.network.activations[-1].value
        low, high, there = (value(tf.constant(z + d)).numpy() for d in (-reach, reach, to))
        share = np.clip((to + reach) / np.maximum(2.0 * reach, FLOAT32_TINY), 0.0, 1.0)
        chord = low + (high - low) * share
        terms = w * np.where(w < 0.0, np.maximum(there, chord), np.minimum(there, chord))
        return terms.sum(axis=1) + _ROUNDED * np.abs(terms).sum(axis=1)

    def _supposing(
        self,
        intervals: list[Interval],
        x: np.ndarray,
        label: np.ndarray,
        rival: np.ndarray,
        radius: np.ndarray,
    ) -> np.ndarray:
        """Returns the bounds on margins that follow from supposed intervals of hidden layers."""
        balls = self.balls_of(self.centres_of(x), radius)
        balls.suppose(intervals)
        return self._margins(balls, label, rival[:, None], np.ones((len(x), 1), bool))[:, 0]

    def centres_of(self, x: np.ndarray) -> Centres:
        """See `BallBoundCertificate`."""
        return Centres(self.network, x, self._first)

    def balls_of(self, centres: Centres, radius: np.ndarray) -> Balls:
        """Returns the balls around these centres, without intervals as yet."""
        return Balls(self.network, self.plan, centres, radius, self.relaxation, self._norm)

    def centred_bounds(
        self,
        centres: Centres,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """See `BallBoundCertificate`."""
        balls = self.balls_of(centres, radius)
        balls.bound_layers(boxes=self.refined)
        return self._margins(balls, label, rivals, asked)

    def _margins(
        self, balls: Balls, label: np.ndarray, rivals: np.ndarray, asked: np.ndarray
    ) -> np.ndarray:
        """Returns `centred_bounds` for balls whose layers are bounded."""
        value, rows, constants, error, direction = balls.margins(label, rivals, asked)
        if not self.refined:
            return value
        # A rival gets its second pass only when its bound is the smallest.
        waiting = np.ones(value.shape, bool)
        pairs: tuple[np.ndarray, ...] = (np.arange(len(value)), value.argmin(axis=1))
        while len(pairs[0]):
            again = balls.close_to(pairs[0], direction[pairs])
            args = (array[pairs][:, None] for array in (rows, constants, error))
            value[pairs] = np.maximum(value[pairs], again.minimum(*args, each=True)[0][:, 0])
            waiting[pairs] = False
            counts = np.where(waiting, np.inf, value).min(axis=1, keepdims=True)
            pairs = np.nonzero(waiting & (value < counts))
        return value


def _height(network: Network, plan: Plan) -> int:
    """Returns the vectors of an example in memory: a row for each unit of a layer, or a grid."""
    return max([POINTS, *(network.sizes[index + 1] for index in plan.back if index)])


def require_rules(network: Network) -> None:
    """Refuses activations without lines or without a range of values, by an InputError."""
    for activation in network.activations:
        require_relaxation(activation)
        require_value_range(activation)
