"""The best of several methods is at least each of them, and says which one it was."""

import numpy as np
import pytest

from keras_curv.certificates.auto import METHODS, BestOf, choose_method
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL, Status
from keras_curv.certificates.method import Method
from keras_curv.errors import InputError
from keras_curv.network.network import Network

X = np.array([[3.0, 1.0, 0.0], [1.0, 2.5, 0.0], [0.0, 0.0, 4.0], [1.0, 1.0, 0.0]])


@pytest.fixture
def network():
    return Network.from_weights([np.eye(3)], [np.zeros(3)], ())


class Fixed(Method):
    """Proves radii that were written down."""

    def __init__(self, name, network, radii, distance=None):
        self.name, self.network, self._radii, self._distance = name, network, radii, distance
        self.asked = []

    def prove(self, question):
        rows = [int(np.argmax((X == row).all(axis=1))) for row in question.x]
        self.asked.append(rows)
        distance = None if self._distance is None else self._distance[rows]
        gradients = np.full(len(rows), 2)
        return question.answer(self.name, self._radii[rows], gradients, distance=distance)


def test_largest_for_each_rival_then_smallest_over_rivals(network):
    first = Fixed("first", network, np.array([[1.0, 4.0], [2.0, 1.0], [0.0, 0.0], [9.0, 9.0]]))
    second = Fixed("second", network, np.array([[3.0, 2.0], [1.0, 0.5], [0.0, 5.0], [9.0, 9.0]]))
    result = BestOf([first, second]).certify(X)
    assert result.radius.tolist() == [3.0, 1.0, 0.0, 0.0]
    assert result.method.tolist() == ["second", "first", "", ""]
    assert result.nearest_rival.tolist() == [1, 2, 0, -1]
    assert result.status.tolist() == [
        Status.CERTIFIED,
        Status.CERTIFIED,
        Status.UNPROVED,
        Status.TIED,
    ]
    assert result.gradient_evaluations.tolist() == [4, 4, 4, 0]


def test_an_exact_radius_needs_no_other_method(network):
    radii = np.array([[1.0, 4.0], [2.0, 1.0], [1.0, 1.0], [9.0, 9.0]])
    distance = np.array([[1.0005, np.inf], [np.inf, 1.1], [np.inf, np.inf], [9.0, 9.0]])
    first = Fixed("first", network, radii, distance)
    second = Fixed("second", network, 2.0 * radii)
    result = BestOf([first, second]).certify(X)
    assert second.asked == [[1, 2]]
    assert result.radius.tolist() == [1.0, 2.0, 2.0, 0.0]
    assert result.primal_equals_dual.tolist()[:3] == [True, True, False]


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((5, 8, 9, 3), ["tanh", "softplus"]),
        ((5, 12, 4), ["relu"]),
        ((5, 8, 9, 3), ["relu", "relu"]),
    ],
)
def test_auto_is_at_least_each_method(rng, random_network, sizes, names):
    network = random_network(rng, sizes, names)
    x = rng.standard_normal((12, sizes[0]))
    best = choose_method("auto", network, tolerance=0.0)
    result = best.certify(x, tolerance=0.0)
    assert len(best.methods) >= 1
    for method in best.methods:
        alone = method.certify(x, tolerance=0.0)
        # Where the radius is exact, nothing is left to win but the gap that counts as exact.
        gap = np.where(result.primal_equals_dual, PRIMAL_EQUALS_DUAL, 1e-9)
        if method.name == "coupled":  # of a dozen units, what its ascent finds depends on its path
            assert result.radius.mean() > 0.97 * alone.radius.mean()
            gap = 0.15
        assert np.all(result.radius >= alone.radius * (1.0 - gap)), method.name
    assert set(result.method) <= {"", *METHODS}


def test_what_is_known_costs_nothing_where_no_input_changes_the_class(rng):
    kernels = [rng.standard_normal(shape) for shape in ((4, 6), (6, 5), (5, 3))]
    biases = [rng.standard_normal(6), rng.standard_normal(5), np.array([0.0, 9.0, 20.0])]
    network = Network.from_weights(kernels, biases, "tanh")
    x = rng.standard_normal((40, 4))
    crown = choose_method("crown", network)
    alone = crown.certify(x)
    assert np.mean(alone.radius > 1e99) > 0.8
    result = BestOf([choose_method("lipschitz", network), crown]).certify(x)
    assert np.all(result.radius >= alone.radius)


def test_unknown_methods_are_refused(network):
    with pytest.raises(InputError, match="auto, .*crc.* Received: 'crx'"):
        choose_method("crx", network)


@pytest.mark.parametrize(
    "sizes",
    [(4, 6, 3), (4, 6, 5, 5, 3)],
)
def test_relu_is_certified_by_what_has_a_theory_for_it(rng, random_network, sizes):
    network = random_network(rng, sizes, ("relu",) * (len(sizes) - 2))
    best = choose_method("auto", network)
    assert {method.name for method in best.methods} == {"lipschitz", "coupled"}
    result = best.certify(rng.standard_normal((10, 4)))
    assert np.mean(result.radius > 0.0) > 0.8
    with pytest.raises(InputError, match="'relu' is not differentiable"):
        choose_method("crc", network)


def test_an_affine_network_has_exact_radii(network):
    result = choose_method("auto", network).certify(X[:3])
    np.testing.assert_allclose(result.radius, np.array([2.0, 1.5, 4.0]) / 2.0**0.5, rtol=1e-6)


@pytest.mark.parametrize(("depth", "more"), [(40, {"crown", "crc_local"}), (41, set())])
def test_auto_leaves_out_what_takes_minutes_of_a_deep_network(depth, more):
    """Their work for an example grows with the square of the depth; asked by name they are made."""
    network = Network.from_weights([np.eye(2)] * depth, [np.zeros(2)] * depth, "tanh")
    best = choose_method("auto", network)
    assert {one.name for one in best.methods} == {"lipschitz", "crc"} | more
    assert choose_method("crown", network).name == "crown"
