"""Points found across the boundary are close, and contradict no certificate."""

import numpy as np
import pytest

from keras_curv.attacks.closest import closest_points
from keras_curv.certificates.auto import choose_method
from keras_curv.network.network import Network


def test_the_closest_point_of_a_linear_network(rng):
    kernel, bias = rng.standard_normal((6, 4)), rng.standard_normal(4)
    network = Network.from_weights([kernel], [bias], "softplus")
    x = rng.standard_normal((20, 6))
    logits = x @ kernel + bias
    label = logits.argmax(axis=1)
    slope = np.linalg.norm(kernel[:, label].T[:, :, None] - kernel, axis=1)
    with np.errstate(invalid="ignore"):
        exact = np.nanmin((logits.max(axis=1, keepdims=True) - logits) / slope, axis=1)
    found = closest_points(network, x, label, np.zeros(20))
    assert np.all(found.prediction != label)
    assert np.all(found.distance >= exact * (1 - 1e-9))
    assert np.all(found.distance <= exact * 1.01)
    np.testing.assert_allclose(np.linalg.norm(found.point - x, axis=1), found.distance, rtol=1e-9)


@pytest.mark.parametrize(("activation", "method"), [("softplus", "crc"), ("relu", "crown")])
def test_points_found_contradict_no_certificate(activation, method, rng):
    sizes = (6, 9, 3)
    kernels = [rng.standard_normal(s) / np.sqrt(s[0]) for s in zip(sizes, sizes[1:], strict=False)]
    biases = [0.3 * rng.standard_normal(size) for size in sizes[1:]]
    network = Network.from_weights(kernels, biases, activation)
    x = rng.standard_normal((30, 6))
    label = network.logits(x).numpy().argmax(axis=1)
    result = choose_method(method, network).certify(x, label, rivals="all")
    found = closest_points(network, x, label, result.radius)
    reached = np.isfinite(found.distance)
    assert reached.mean() > 0.5 and np.all(found.prediction[reached] != label[reached])
    assert np.all(found.distance >= result.radius)
    assert np.median(found.distance[reached] / result.radius[reached]) < 1.5


def test_no_point_where_the_prediction_cannot_change():
    network = Network.from_weights([np.zeros((2, 2))], [np.array([1.0, 0.0])], "softplus")
    found = closest_points(network, np.ones((3, 2)), np.zeros(3, int), np.zeros(3))
    assert np.all(np.isinf(found.distance)) and np.all(found.point == 1.0)
