"""Inputs that are pinned: each example is one of a network without them, with a bias of its own."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.float32 import Float32Error
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork

MOVED, PINNED = 3, 2
CASES = [
    ("lipschitz", "softplus", (9, 7, 4)),
    ("crc", "softplus", (9, 7, 4)),
    ("crc_local", "softplus", (9, 7, 4)),
    ("crown", "tanh", (9, 4)),
    ("crown", "relu", (9, 7, 4)),
    ("coupled", "relu", (9, 7, 4)),
    ("interval", "relu", (9, 7, 4)),
    ("quadratic", "relu", (9, 4)),
    ("coap", "relu", (9, 7, 4)),
    ("two_stage", ("relu", "tanh"), (9, 7, 4)),
    ("auto", "softplus", (9, 4)),
]


def parts(rng, random_network, widths, activation):
    """A network, its pinned form with mixed rows, and what picks the rows."""
    network = random_network(rng, (MOVED + PINNED, *widths), activation)
    pinned = np.zeros(MOVED + PINNED, bool)
    pinned[rng.choice(MOVED + PINNED, PINNED, replace=False)] = True
    return network, PinnedNetwork(network.affines, network.activations, pinned), pinned


def of_one_example(network, pinned, x, added=0.0):
    """The network of what moves, with what the pinned inputs of x come to in its biases."""
    kernels = [affine.kernel for affine in network.affines]
    biases = [np.array(affine.bias) for affine in network.affines]
    biases[0] = biases[0] + x[pinned] @ kernels[0][pinned]
    biases[-1] = biases[-1] + added
    names = [activation.name for activation in network.activations]
    return Network.from_weights([kernels[0][~pinned], *kernels[1:]], biases, names)


@pytest.mark.parametrize("method, activation, widths", CASES)
def test_radii_are_those_of_the_network_of_what_moves(
    method, activation, widths, rng, random_network
):
    network, pinned_network, pinned = parts(rng, random_network, widths, activation)
    x = rng.standard_normal((4, network.dim))
    found = choose_method(method, pinned_network, tolerance=0.0).certify(x, tolerance=0.0)
    assert (found.radius > 0.0).any()
    for one, radius, rival in zip(x, found.radius, found.nearest_rival, strict=True):
        alone = choose_method(method, of_one_example(network, pinned, one), tolerance=0.0)
        own = alone.certify(one[None, ~pinned], tolerance=0.0)
        # Searches of equal numbers in another order of sums end a little apart; ascent further.
        apart = 5e-2 if method == "coupled" else 1e-3
        assert radius == pytest.approx(own.radius[0], rel=apart, abs=1e-12)
        assert rival == own.nearest_rival[0]


@pytest.mark.parametrize("method, activation", [
    ("crc", "softplus"), ("crown", "relu"), ("quadratic", "relu"), ("interval", "relu"),
    ("lipschitz", "relu"), ("crc_local", "softplus"),
])  # fmt: skip
def test_numbers_of_each_example_are_added_to_its_logits(method, activation, rng, random_network):
    network = random_network(rng, (MOVED, 9, 4), activation)
    first = np.concatenate([network.affines[0].kernel, np.zeros((PINNED, 9))])
    kernels = [first, network.affines[1].kernel]
    base = Network.from_weights(kernels, [a.bias for a in network.affines], activation)
    pinned = np.arange(MOVED + PINNED) >= MOVED
    direct = np.zeros((MOVED + PINNED, 4))
    direct[MOVED, 1], direct[MOVED + 1, 2] = -1.0, 1.0
    whole = PinnedNetwork(base.affines, base.activations, pinned, direct)
    x = rng.standard_normal((4, whole.dim))
    found = choose_method(method, whole).certify(x, tolerance=0.0)
    assert (found.radius > 0.0).any()
    for one, radius in zip(x, found.radius, strict=True):
        own = of_one_example(base, pinned, one, one @ direct)
        expected = choose_method(method, own).certify(one[None, :MOVED], tolerance=0.0).radius[0]
        assert radius == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_a_gradient_and_a_hessian_leave_pinned_inputs_out(rng, random_network):
    network, pinned_network, pinned = parts(rng, random_network, (6, 5, 3), "tanh")
    x, label, rival = (
        tf.constant(rng.standard_normal((4, 5))),
        tf.constant([0, 1, 2, 0]),
        [1, 2, 0, 2],
    )
    rival = tf.constant(rival)
    _, full = network.margin_and_gradient(x, label, rival)
    _, gradient = pinned_network.margin_and_gradient(x, label, rival)
    np.testing.assert_array_equal(gradient, np.where(pinned, 0.0, full))
    hessian = pinned_network.hessian(x, label, rival).numpy()
    assert not hessian[:, pinned].any() and not hessian[:, :, pinned].any()
    moved = np.ix_(range(4), ~pinned, ~pinned)
    np.testing.assert_allclose(hessian[moved], network.hessian(x, label, rival).numpy()[moved])


def test_an_attack_leaves_pinned_inputs_alone(rng, random_network):
    _, network, pinned = parts(rng, random_network, (6, 3), "tanh")
    x = rng.standard_normal((4, 5))
    label = network.logits(x).numpy().argmax(axis=1)
    options = {"radius": 1.0, "steps": 20, "restarts": 6}
    _, point = pgd_attack(network, tf.constant(x), tf.constant(label), **options)
    np.testing.assert_array_equal(point.numpy()[:, pinned], x[:, pinned])
    assert (point.numpy()[:, ~pinned] != x[:, ~pinned]).any()


def test_serving_errors_grow_with_what_moves_only(rng, random_network):
    network, pinned_network, _ = parts(rng, random_network, (6, 5, 3), "tanh")
    x, label = rng.standard_normal((3, 5)), np.zeros(3, int)
    rivals = np.array([[1, 2]] * 3)
    anywhere = np.full(3, np.inf)
    plain = Float32Error(network).linear(x, label, rivals, anywhere)
    fewer = Float32Error(pinned_network).linear(x, label, rivals, anywhere)
    np.testing.assert_array_equal(fewer.fixed, plain.fixed)
    assert (fewer.rate < plain.rate).all()


def test_all_methods_are_among_the_cases():
    assert {method for method, *_ in CASES} == set(METHODS)


def test_something_must_move():
    network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
    with pytest.raises(InputError, match="not all"):
        PinnedNetwork(network.affines, [], np.array([True, True]))
    with pytest.raises(InputError, match=r"\(2, 2\)"):
        PinnedNetwork(network.affines, [], np.array([True, False]), np.zeros((3, 2)))


@pytest.mark.parametrize("pinned", [None, np.array([True, False])])
def test_what_is_added_comes_from_pinned_inputs_alone(pinned):
    base = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
    with pytest.raises(InputError, match="direct must be 0 but in rows of inputs that are pinned"):
        PinnedNetwork(base.affines, base.activations, pinned, np.eye(2))
