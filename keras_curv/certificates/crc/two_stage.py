"""Two stages: curvature behind a Lipschitz constant.

The network is cut in two, `f = g ∘ φ`: a trunk φ, which may have kinks, and a head g without any.
With `‖φ(x) − φ(x′)‖ ≤ L ‖x − x′‖` every input at a distance below ρ has features within `Lρ` of
`u = φ(x0)`, so a radius R that curvature proves for g around u is one of `R/L` for f around x0:
theorem 1 in the space of the features. Of all that is known of φ only L counts, so this is for
trunks that are trained to keep lengths; of others the products of norms are too large.

**Rounding.** Features are computed as û, `‖û − u‖ ≤ E`, and the head is certified around û, where
its own rounding is charged. So `ρ = (R − E)/L`, L rounded up.

Reference: Singla, Singla & Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100"
(2022), who certify a curved last layer so; docs/mathematics.md, section 29.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question, WeakestPoint
from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import as_graph
from keras_curv.numerics.rounding import activation_errors, gamma, up


class TwoStageCertificate(Method):
    """Radius `(R − E)/L`: R of the head by curvature, L of the trunk.

    Args:
        network: with kinks, and a smooth activation behind the last of them.
        served_error: refused, as there is no guarantee float32.

    Attributes:
        trunk_depth: the maps of the trunk, up to the last kink.
        lipschitz: L, a proved bound.

    Raises:
        InputError: it has no such activations, or there is no bound of either part.

    Example:
        >>> network = Network.from_weights([np.eye(2)] * 3, [np.zeros(2)] * 3, ["relu", "softplus"])
        >>> certificate = TwoStageCertificate(network)
        >>> round(certificate.lipschitz, 6), certificate.head.depth
        (1.0, 2)
        >>> certificate.prove(Question.of([[3.0, 1.0]], [0], [[1]])).radius.round(3)
        array([[1.414]])
    """

    name, turn = "two_stage", 3

    def __init__(self, network: Network, served_error: ServedError = no_error):
        if served_error is not no_error:
            raise InputError("two_stage has no guarantee float32; use lipschitz, or real")
        if network.direct is not None:
            raise InputError(
                "two_stage is for properties of classes; numbers of an example take part in these "
                "margins: use lipschitz or crown"
            )
        kinks = [i + 1 for i, sigma in enumerate(network.activations) if not sigma.smooth]
        self.trunk_depth = depth = kinks[-1] if kinks else 0
        if not 0 < depth < len(network.activations):
            names = ", ".join(sigma.name for sigma in network.activations) or "none"
            raise InputError(
                "two_stage is for activations with kinks, and smooth ones behind the last of them. "
                f"Received: {names}; use {'lipschitz or crown' if depth else 'crc'}"
            )
        self.network = network
        self.lipschitz = lipschitz_bounds(network, depth)[-1]
        if not np.isfinite(self.lipschitz):
            raise InputError("two_stage: the trunk's Lipschitz constant is infinite, or overflows")
        head = Network(network.affines[depth:], network.activations[depth:])
        self.curved = CurvatureCertificate(head)
        self._norms = network.layer_norms[:depth]

    @property
    def head(self) -> Network:
        """g, a network of the features."""
        return self.curved.network

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        features, error = (part.numpy() for part in self.features(tf.constant(question.x)))
        nothing, goal = np.zeros(question.rivals.shape), question.goal.opened()
        # A head that has decided has no more to spare than a millionth for E.
        decide = [up(self.lipschitz * radius * (1.0 + 1e-6)) for radius in goal.decide]
        if np.any(error > 1e-6 * self.lipschitz * min(goal.decide, default=np.inf)):
            decide = []
        goal = goal._replace(decide=tuple(map(float, decide)))
        found = self.curved.prove(question._replace(x=features, known=nothing, goal=goal))
        with np.errstate(all="ignore"):  # NaN proves nothing, nor does more than all numbers
            radius = (found.radius - error[:, None]) / self.lipschitz * (1.0 - gamma(8))
        most = np.where(np.isinf(found.radius), np.inf, np.finfo(np.float64).max)
        radius = np.where(radius > 0.0, np.minimum(radius, most), 0.0)
        weakest = self._weakest(question, radius)
        args = self.name, radius, found.gradients + 1
        return question.answer(*args, weakest=weakest, point=found.point)

    def _weakest(self, question: Question, radius: np.ndarray) -> WeakestPoint:
        """Goes as far as the weakest rival's margin holds, to where it falls the fastest."""
        column = radius.argmin(axis=1)
        pairs = question.label, question.weakest(column)
        classes = (tf.constant(part, tf.int32) for part in pairs)
        step = tf.constant(radius[np.arange(len(radius)), column])
        found = self._downhill(tf.constant(question.x), *classes, step)
        return WeakestPoint(column, *(part.numpy() for part in found))

    @functools.cached_property
    def _downhill(self) -> Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        """A point that far down the margin's gradient, `(n, dim)`, the margin there and at x."""

        def downhill(
            x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor, step: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            start, gradient = self.network.margin_and_gradient(x, label, rival)
            steepness = tf.norm(gradient, axis=1, keepdims=True)
            point = x - step[:, None] * tf.math.divide_no_nan(gradient, steepness)
            return point, self.network.margin(point, label, rival), start

        rows = tf.TensorSpec((None, self.network.dim), tf.float64)
        each = tf.TensorSpec((None,), tf.int32)
        signature = [rows, each, each, tf.TensorSpec((None,), tf.float64)]
        return as_graph(downhill, signature)

    @functools.cached_property
    def features(self) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """û, `(n, features)`, and E, `(n,)`."""

        def features(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = self.network.hidden(x)[: self.trunk_depth + 1]  # a graph leaves out the rest
            return found[-1], activation_errors(self._norms, found)[-1]

        signature = [tf.TensorSpec((None, self.network.dim), tf.float64)]
        return as_graph(features, signature)
