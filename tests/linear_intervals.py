"""The intervals of hidden layers that linear bounds prove on balls."""

import numpy as np

from keras_curv.certificates.centres import Centres
from keras_curv.certificates.first_layer import FirstLayer
from keras_curv.certificates.linear_bounds import Balls
from keras_curv.certificates.plan import Plan


def pre_activation_bounds(network, x, radius):
    """`(low, high)` of `z_1, …, z_{L−1}` wherever `‖δ‖₂ ≤ radius`, `(n, N_k)` each."""
    radius = np.broadcast_to(np.asarray(radius, np.float64), len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        centres = Centres(network, x, FirstLayer.of(network))
        balls = Balls(network, Plan.of(network), centres, radius)
        balls.bound_layers()
    return [(layer.low, layer.high) for layer in balls.layers]
