"""A network in training under a threat: features with weights, frozen ones, limits, categories.

It is `Threat.network` with weights that still move, a network of u = x/s, s the weights by feature,
1 where they are frozen. Its first kernel is s ∘ W. Frozen features count in the forward pass alone:
no gradient moves them, and no curvature includes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.network import FeedForward
from keras_curv.threats.threat import PLAIN, Threat
from keras_curv.training.trainable.scaled_first import ScaledFirst

_ROUNDING = 2.0**-20  # of float32: of u, of limits, and of what is divided by the weights


class Threatened(ScaledFirst):
    """The network of u, float32; gradients and curvature are those of the features that can move.

    Args:
        network: of x.
        threat: without a basis, in l2.

    Raises:
        InputError: the threat is for inputs of another size, or of another kind.

    Example:
        >>> from keras_curv.network.network import Network
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "sigmoid")
        >>> seen = Threatened(network, Threat(scale=[1.0, 2.0], frozen=[0]))
        >>> u = seen.coordinates(tf.zeros((1, 2)))
        >>> seen.evaluate(u, tf.constant([0]), tf.constant([[1]])).gradient.numpy().tolist()
        [[[0.0, -0.5]]]
    """

    def __init__(self, network: FeedForward, threat: Threat):
        if threat.has_basis or threat.norm != PLAIN:
            raise InputError(
                "training takes scale, frozen, low, high and groups; a basis, whose directions are "
                f"no features, l1 and linf are for certificates. Received: {threat}"
            )
        if network.depth < 2:
            raise InputError("training under a threat needs a hidden layer. Received: none")
        factor, fixed = threat.factors(network.dim)
        factor = factor.astype(np.float32)
        super().__init__(network, factor, np.where(fixed, np.float32(0.0), factor))
        self.pinned = fixed if fixed.any() else None
        self.limits = threat.limits_of(network.dim, network.dim)
        orders = [] if threat.categories is None else threat.categories.orders(network.dim, 1)
        self._orders = np.array([*orders], np.int32)
        self._groups = () if threat.categories is None else threat.categories.groups
        self._changes = 0 if threat.categories is None else threat.categories.changes

    def coordinates(self, x: tf.Tensor) -> tf.Tensor:
        """Returns u of x, `(…, dim)`."""
        return x / self.factor

    def inputs(self, u: tf.Tensor) -> tf.Tensor:
        """Returns x of u, `(…, dim)`."""
        return u * self.factor

    def outside(self, u: tf.Tensor) -> tf.Tensor:
        """Returns whether points are outside of the threat by more than rounding, `(n,)`."""
        found = tf.reduce_any(tf.math.is_nan(u), axis=1)
        if self.limits is not None:
            for limit, side in zip(self.limits, (-1.0, 1.0), strict=True):
                end = tf.constant(limit, u.dtype)
                size = np.where(np.isfinite(limit), np.abs(limit), 0.0)
                allowed = _ROUNDING * tf.maximum(tf.abs(u), tf.constant(size, u.dtype))
                found |= tf.reduce_any(side * (u - end) > allowed, axis=1)
        for group in self._groups:
            entries = tf.gather(self.inputs(u), group, axis=1)
            ones = tf.reduce_sum(tf.cast(tf.abs(entries - 1.0) < _ROUNDING, tf.int32), axis=1)
            zeros = tf.reduce_sum(tf.cast(tf.abs(entries) < _ROUNDING, tf.int32), axis=1)
            found |= (ones != 1) | (zeros != len(group) - 1)
        return found

    def with_worst_categories(
        self, u: tf.Tensor, margins: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns each point with the categories that make its margin small, `(n, dim)`.

        Greedily, the worst change first; a point that no change makes worse stays.

        Args:
            u: `(n, dim)`.
            margins: of logits `(n, m, classes)`, `(n, m)`.
        """
        ways = len(self._orders)
        for _ in range(self._changes):
            tried = tf.concat([u[:, None], tf.gather(u, self._orders, axis=1)], axis=1)
            logits = self.logits(tf.reshape(tried, (-1, self.dim)))
            found = margins(tf.reshape(logits, (-1, 1 + ways, self.classes)))
            u = tf.gather(tried, tf.argmin(found, axis=1), axis=1, batch_dims=1)
        return u
