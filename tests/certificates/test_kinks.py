"""Examples at which units are at their kinks: radii that hold, and are not lost."""

import numpy as np
import pytest

from keras_curv.certificates.auto import choose_method
from keras_curv.network.network import Network

POINTS = [[0, 0], [0.5, 0.5], [0.25, 0.5], [1, 1], [0.5, -0.5], [-1, -1]]


def distance(network, x):
    """To the nearest of many points of circles at which the class is another."""
    angle = np.linspace(0.0, 2.0 * np.pi, 3601)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    label = network.logits(x[None]).numpy().argmax()
    for radius in np.geomspace(1e-2, 8.0, 400):
        if np.any(network.logits(x + radius * circle).numpy().argmax(axis=1) != label):
            return radius
    return np.inf


@pytest.mark.parametrize("method", ["quadratic", "coupled", "crown", "auto"])
@pytest.mark.parametrize("bias", [0.25, -0.25, 0.9])
def test_radii_at_kinks(method, bias):
    """relu(x1 − x2) − relu(2 x1 − x2) + bias against 0."""
    kernels = [np.array([[1.0, 2.0], [-1.0, -1.0]]), np.array([[1.0, 0.0], [-1.0, 0.0]])]
    network = Network.from_weights(kernels, [np.zeros(2), np.array([bias, 0.0])], "relu")
    x = np.array(POINTS, float)
    found = choose_method(method, network).certify(x).radius
    true = np.array([distance(network, row) for row in x])
    assert np.all(found <= true) and np.all(found >= 0.2 * true)
    if method == "quadratic" and bias == -0.25:
        assert found[-1] == pytest.approx(2.0**0.5 / 8.0, rel=1e-3)
