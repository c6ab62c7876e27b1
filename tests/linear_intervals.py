"""The intervals of hidden layers that linear bounds prove on balls."""

import numpy as np
import tensorflow as tf

from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.threats.norms import NORMS


def pre_activation_bounds(network, x, radius, norm="l2", planned=None):
    """`(low, high)` of `z_1, …, z_{L−1}` wherever `‖δ‖ ≤ radius`, `(n, N_k)` each."""
    radius = np.broadcast_to(np.asarray(radius, np.float64), len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        centres = Centres(network, x, FirstLayer.of(network))
        balls = Balls(network, planned or Plan.of(network), centres, radius, norm=NORMS[norm])
        balls.bound_layers()
    return [(layer.low, layer.high) for layer in balls.layers]


def assert_inside(network, points, intervals):
    """No pre-activation leaves its interval at these points, `(count, n, dim)`."""
    a = network.hidden(tf.constant(points.reshape(-1, network.dim)))
    for (low, high), before, affine in zip(intervals, a, network.affines, strict=False):
        z = (before.numpy() @ affine.kernel + affine.bias).reshape(len(points), *low.shape)
        slack = 1e-13 * (1.0 + np.abs(z).max())  # rounding of the sampled values
        assert np.all(z >= low - slack) and np.all(z <= high + slack)
