"""What is known of some centres is what is known of all, and is found once."""

import numpy as np
from ball_oracle import draw_network

from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.centre_cache import Centres


def test_some_know_what_all_do(rng):
    network = draw_network(rng, (4, 9, 7, 3), "tanh")
    x, first = rng.standard_normal((6, 4)), FirstLayer.of(network)
    every, rows = Centres(network, x, first), np.array([4, 1, 5])
    some, alone = every[rows][1:], Centres(network, x[rows][1:], first)
    assert len(some) == 2
    radius = np.array([0.1, 0.4])
    for found, expected in (
        (some.z, alone.z),
        (some.errors, alone.errors),
        (some.units(radius), alone.units(radius)),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)
