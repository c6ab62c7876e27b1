"""No claim whose ball reaches beyond an adversarial point is ever proved, whatever it says."""

import numpy as np
import pytest
import tensorflow as tf
from proved_again import HEADER, random_network

from keras_curv.attacks.nearest import nearest_points
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import save_network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.threats.norms import NORMS
from keras_curv.threats.properties.property import ARGMAX
from keras_curv_check.check import PROVED, Checker
from keras_curv_check.files import Claim, Witness, read_network

METHODS = (
    *("", "lipschitz", "crc", "crc_local", "coupled", "crown", "interval", "two_stage"),
    "quadratic",
)
# Activations, and whether the attacker stays in a box.
NETWORKS = [
    (("relu",), False),
    (("relu", "relu"), True),
    (("leaky_relu", "abs"), False),
    (("relu", "tanh"), True),
    (("tanh", "gelu"), False),
    (("silu", "elu"), True),
    (("softsign", "selu"), False),
    (("sin",), False),
]


def balanced(names, x):
    """A network whose logits are 0 in the mean of some examples."""
    network = random_network((3, *[5] * len(names), 3), names, 4)
    *maps, last = network.affines
    mean = network.logits(tf.constant(x)).numpy().mean(axis=0)
    return Network([*maps, Affine(last.kernel, last.bias - mean)], network.activations)


def claims_beyond(network, x, label, points, distance, rng):
    """Claims of all methods, with random points, slopes and multipliers."""
    classes, widths = network.classes, network.sizes[1:-1]
    for one, y, near, away in zip(x, label, points, distance, strict=True):
        for method in METHODS:
            radius = float(away) * (1.0 + 1e-6)
            some = [t for t in range(classes) if rng.uniform() < 0.7]
            shares = rng.uniform(-0.5, 1.5, len(some))
            places = {t: one + s * (near - one) for t, s in zip(some, shares, strict=True)}
            parts = (
                [rng.normal(size=n) * (rng.uniform(size=n) < share) for n in widths]
                for share in (0.8, 0.5)
            )
            witness = Witness(*parts, 10.0 ** rng.uniform(-8, 4, (len(widths), 2)))
            names = [method] * classes
            yield Claim(0, int(y), radius, one, one, names, places, dict.fromkeys(some, witness))


@pytest.mark.parametrize(("names", "box"), NETWORKS, ids=str)
def test_claims_beyond_an_adversarial_point(names, box, tmp_path):
    rng = np.random.default_rng(len(names))
    x = rng.uniform(size=(3, 3))
    network = balanced(names, x)
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    limits = np.zeros(3), np.ones(3)
    held = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    near = nearest_points(held if box else network, ARGMAX, NORMS["l2"], x, label)
    met = np.isfinite(near.distance)
    save_network(network, tmp_path / "network.npz")
    in_box = {"threat": "l2 in a box", "box": {"low": [0.0], "high": [1.0]}} if box else {}
    checker = Checker(read_network(tmp_path / "network.npz"), HEADER | in_box)
    found = x[met], label[met], near.point[met], near.distance[met]
    claims = [*claims_beyond(network, *found, rng)]
    assert claims and PROVED not in {one.status for one in checker.check(claims)}
