"""One gradient for each rival at x0, with which every search begins.

On its way back it is in float32, at half the price, where that leaves enough of most gradients, as
a few examples of a batch tell. Its rounding is charged as that of float64 is, by its own unit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.proved_radius import Charged, charged
from keras_curv.network.network import Network
from keras_curv.network.products import float32_keeps_digits
from keras_curv.network.shared_graph import CLASS, CLASSES, ROWS, compiled

# In float32 where its rounding costs at most so much of most of the norms of so many examples'
# gradients, and no map is wider than that.
_COST, MOST, _FEW, _WIDEST = 1 / 32, 0.75, 4, 2.0**20


class StartGradients:
    """Margins and their gradients at examples, and bounds of what rounding did to them.

    Args:
        network: whose margins they are.
        double: whether in float64 in any case.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
        >>> start = StartGradients(network)
        >>> start(tf.ones((1, 2), tf.float64), np.array([0]), np.array([[1]])).gradient.numpy()
        array([[[ 1., -1.]]])
    """

    def __init__(self, network: Network, *, double: bool = False):
        # Without a hidden layer there is no product on the way.
        self._double = double or network.depth == 1 or max(network.sizes) > _WIDEST
        self._in = {
            dtype: compiled(_Gradients, network, dtype, signature=(ROWS, CLASS, CLASSES))
            for dtype in (tf.float64, tf.float32)
        }

    def __call__(self, x: tf.Tensor, label: np.ndarray, rivals: np.ndarray) -> Charged:
        """Returns them in float64, whatever they were computed in.

        Args:
            x: `(n, dim)`, float64.
            label: `(n,)`, integers.
            rivals: `(n, rivals)`, integers, none equal to its label.
        """
        pairs = x, tf.convert_to_tensor(label, tf.int32), tf.convert_to_tensor(rivals, tf.int32)
        if not self._double and self._in[tf.float32](*(part[:_FEW] for part in pairs)).worth:
            quick = self._in[tf.float32](*pairs)
            if quick.sound:
                return quick.found
        return self._in[tf.float64](*pairs).found


class _Found(NamedTuple):
    """Gradients, whether they are charged for all that was rounded, and worth what that costs."""

    found: Charged
    sound: tf.Tensor
    worth: tf.Tensor


class _Gradients:
    """The same in a dtype on the way back, in graph."""

    def __init__(self, network: Network, dtype: tf.DType):
        self._network, self._dtype = network, dtype

    def __call__(self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor) -> _Found:
        self._network.ready(self._dtype)
        evaluation = self._network.evaluate(x, label, rivals, self._dtype)
        found = charged(self._network.layer_norms, evaluation)
        if self._dtype == tf.float64:
            return _Found(found, tf.constant(True), tf.constant(True))
        few = found.error.gradient[:_FEW], found.gradient[:_FEW]
        good = few[0] <= _COST * dual.norm(few[1])
        worth = tf.reduce_mean(tf.cast(good, tf.float64)) >= MOST
        return _Found(found, float32_keeps_digits(tf.shape(x)), worth)
