"""A graph is traced once for all networks of the same activations, and is each one's own."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.float32 import Float32Error
from keras_curv.network import activations, shared_graph
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.shared_graph import compiled
from keras_curv.network.unitwise import unit_wise

ROWS = tf.TensorSpec((None, None), tf.float64)


@pytest.fixture
def forget(monkeypatch):
    """Begins without a graph; those that others share are there again afterwards."""

    def begin():
        anew = functools.lru_cache(maxsize=32)(shared_graph.shared.__wrapped__)
        monkeypatch.setattr(shared_graph, "shared", anew)

    return begin


def network(sizes, activation, seed=0):
    rng = np.random.default_rng(seed)
    kernels = [rng.normal(size=pair) for pair in zip(sizes[:-1], sizes[1:], strict=True)]
    return Network.from_weights(kernels, [rng.normal(size=n) for n in sizes[1:]], activation)


class Traced:
    """Gives logits, and counts how often it was traced."""

    count = 0

    def __init__(self, network, factor=1.0):
        self.network, self.factor = network, factor

    def __call__(self, x):
        type(self).count += 1
        return self.factor * self.network.logits(x)


@pytest.fixture
def traced():
    return type("Traced", (Traced,), {"count": 0})


def logits(traced, network, *settings):
    x = np.random.default_rng(1).normal(size=(4, network.dim))
    return x, compiled(traced, network, *settings, signature=(ROWS,))(tf.constant(x)).numpy()


def test_sizes_and_weights_are_arguments(traced):
    for sizes, seed in (((3, 5, 2), 0), ((3, 5, 2), 1), ((7, 4, 3), 2), ((3, 5, 2), 0)):
        mine = network(sizes, "tanh", seed)
        x, found = logits(traced, mine)
        np.testing.assert_array_equal(found, mine.logits(tf.constant(x)).numpy())
    assert traced.count == 1


def test_activations_with_parameters_and_by_unit_are_equal_if_their_parts_are(traced):
    def leaky(seed):
        return network((3, 5, 2), "leaky_relu(0.3)", seed)

    def mixed(seed, kinked):
        sigma = unit_wise([(activations.get("tanh"), 2), (activations.get(kinked), 3)])
        return Network(network((3, 5, 2), "tanh", seed).affines, (sigma,))

    for mine in (leaky(0), leaky(1), mixed(0, "clip(0,2)"), mixed(1, "clip(0,2)")):
        x, found = logits(traced, mine)
        np.testing.assert_array_equal(found, mine.logits(tf.constant(x)).numpy())
    assert traced.count == 2
    assert mixed(0, "clip(0,2)").activations != mixed(0, "clip(0,3)").activations


def test_activations_depth_and_settings_are_not(traced):
    for sizes, activation, settings in (
        ((3, 5, 2), "tanh", ()),
        ((3, 5, 2), "softplus", ()),
        ((3, 5, 5, 2), ["tanh", "softplus"], ()),
        ((3, 5, 5, 2), ["softplus", "tanh"], ()),
        ((3, 5, 2), "tanh", (2.0,)),
    ):
        mine = network(sizes, activation)
        x, found = logits(traced, mine, *settings)
        expected = (settings or (1.0,))[0] * mine.logits(tf.constant(x)).numpy()
        np.testing.assert_array_equal(found, expected)
    assert traced.count == 5


def test_pinned_inputs_stay_pinned(traced):
    plain = network((3, 5, 2), "tanh")
    logits(traced, plain)
    for mask in ([True, False, False], [False, True, True]):
        pinned = PinnedNetwork(plain.affines, plain.activations, np.array(mask))
        logits(traced, pinned)
    assert traced.count == 2


def test_what_is_pinned_is_an_argument():
    """Which inputs are, and what they add: margins and gradients are those of each network."""

    class Margins:
        count = 0

        def __init__(self, network):
            self.network = network

        def __call__(self, x, label, rivals):
            Margins.count += 1
            found = self.network.evaluate(x, label, rivals)
            return found.margin, found.gradient, self.network.logits(x)

    signature = (ROWS, tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None, None), tf.int32))
    for seed, sizes in ((0, (3, 5, 2)), (1, (4, 6, 3)), (2, (4, 5, 3))):
        plain, rng = network(sizes, "tanh", seed), np.random.default_rng(seed)
        pinned = np.arange(sizes[0]) == seed
        entries = rng.integers(-1, 2, (sizes[0], sizes[-1])) * pinned[:, None]
        label, rivals = np.array([0, 1], np.int32), np.array([[1], [0]], np.int32)
        args = [tf.constant(part) for part in (rng.normal(size=(2, sizes[0])), label, rivals)]
        for direct in (None, entries):
            mine = PinnedNetwork(plain.affines, plain.activations, pinned, direct)
            found = compiled(Margins, mine, signature=signature)(*args)
            expected = mine.evaluate(*args)
            np.testing.assert_array_equal(found[0], expected.margin)
            np.testing.assert_array_equal(found[1], expected.gradient)
            np.testing.assert_array_equal(found[2], mine.logits(args[0]))
            assert np.all(found[1].numpy()[..., pinned] == 0.0) and np.any(found[1])
    assert Margins.count == 2  # with what is added directly, and without


def test_norms_are_those_of_each_network():
    seen = {}

    class Norms:
        def __init__(self, network):
            self.norms = network.layer_norms

        def __call__(self, x):
            return [[tf.cast(number, tf.float64) for number in layer] for layer in self.norms]

    for seed, sizes in ((0, (3, 5, 2)), (1, (4, 6, 3))):
        mine = network(sizes, "tanh", seed)
        found = compiled(Norms, mine, signature=(ROWS,))(tf.zeros((1, sizes[0]), tf.float64))
        seen[seed] = np.array(found)
        np.testing.assert_array_equal(seen[seed], np.array(mine.layer_norms, np.float64))
    assert not np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize("method", [CurvatureCertificate, LocalCurvatureCertificate])
def test_radii_do_not_depend_on_which_network_was_first(method, forget):
    networks = [network((4, 6, 3), "sigmoid", 0), network((5, 9, 4), "sigmoid", 1)]
    points = [np.random.default_rng(2).normal(size=(6, each.dim)) for each in networks]

    def certified(*order):
        forget()
        return {i: method(networks[i]).certify(points[i]) for i in order}

    forwards, backwards = certified(0, 1), certified(1, 0)
    for i, found in forwards.items():
        assert (found.radius > 0.0).any()
        other = backwards[i]
        np.testing.assert_array_equal(other.radius, found.radius)
        np.testing.assert_array_equal(other.gradient_evaluations, found.gradient_evaluations)


def test_tensorflow_warns_of_no_graph_that_is_traced_once(monkeypatch, forget, traced):
    """It counts the tracings of a piece of code, and a user who compares does nothing wrong."""
    forget()
    said = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda *args: said.append(args))
    x = np.ones((2, 3))
    for name in ("sigmoid", "tanh", "softplus", "elu", "celu"):  # it warns of the fifth
        one = network((3, 4, 2), name)
        compiled(traced, one, signature=(ROWS,))(tf.constant(x))
        for method in ("crown", "lipschitz"):
            choose_method(method, one, Float32Error(one)).certify(x)
    assert not said
