"""What a certificate must not depend on, on random networks: units, order, company, spelling."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.method import no_error
from keras_curv.network.network import Network

# A radius is a lower bound that a search improves until it is within a part in a thousand or so
# of the best; where the problem is the same in other numbers, the search ends a little elsewhere.
CLOSE = 5e-3
METHODS = ("crc", "crown", "lipschitz", "auto")
seeds = st.integers(0, 2**16)


def part(share):
    """So much of the profile's examples: 100 in the default one."""
    return settings(
        max_examples=max(1, round(share * settings().max_examples)),
        derandomize=True,
        phases=[Phase.generate],  # a smaller network does not say more
        suppress_health_check=list(HealthCheck),
    )


def draw(seed, activation="tanh", classes=4):
    """A random network of two or three layers, as arrays, and inputs."""
    rng = np.random.default_rng(seed)
    sizes = (3, 6, 5, classes) if seed % 2 else (4, 7, classes)
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [rng.normal(size=s) / np.sqrt(s[0]) for s in shapes]
    biases = [0.3 * rng.normal(size=s[1]) for s in shapes]
    return kernels, biases, rng.normal(size=(5, sizes[0])), rng


def certified(kernels, biases, x, method, activation="tanh"):
    network = Network.from_weights(kernels, biases, activation)
    return choose_method(method, network, no_error).certify(x)


def assert_same(ours, other, *, scale=1.0, classes=None):
    """Radii agree, times the scale; so do classes and nearest rivals, renamed."""
    names = np.arange(99) if classes is None else np.asarray(classes)
    np.testing.assert_array_equal(names[ours.prediction], other.prediction)
    np.testing.assert_allclose(ours.radius * scale, other.radius, rtol=CLOSE, atol=1e-9)
    assert (ours.radius > 0.0).any()
    examined = ours.nearest_rival >= 0
    nearest = names[ours.nearest_rival[examined]]
    np.testing.assert_array_equal(nearest, other.nearest_rival[examined])


def rotated(kernels, biases, x, rng):
    rotation, _ = np.linalg.qr(rng.normal(size=(x.shape[1],) * 2))
    return [rotation.T @ kernels[0], *kernels[1:]], biases, x @ rotation, {}


def units_permuted(kernels, biases, x, rng):
    order = rng.permutation(len(biases[0]))
    kernels = [kernels[0][:, order], kernels[1][order], *kernels[2:]]
    return kernels, [biases[0][order], *biases[1:]], x, {}


def classes_permuted(kernels, biases, x, rng):
    order = rng.permutation(len(biases[-1]))
    kernels = [*kernels[:-1], kernels[-1][:, order]]
    return kernels, [*biases[:-1], biases[-1][order]], x, {"classes": np.argsort(order)}


def input_scaled(kernels, biases, x, rng):
    scale = rng.choice([0.01, 3.0, 255.0])
    return [kernels[0] / scale, *kernels[1:]], biases, x * scale, {"scale": scale}


def logits_scaled(kernels, biases, x, rng):
    scale = rng.choice([2.0**-6, 8.0])
    kernels = [*kernels[:-1], scale * kernels[-1]]
    return kernels, [*biases[:-1], scale * biases[-1]], x, {}


CHANGES = (rotated, units_permuted, classes_permuted, input_scaled, logits_scaled)


def assert_unchanged(seed, method, changes):
    kernels, biases, x, rng = draw(seed)
    ours, expected = certified(kernels, biases, x, method), {}
    for change in changes:
        kernels, biases, x, names = change(kernels, biases, x, rng)
        expected |= names
    assert_same(ours, certified(kernels, biases, x, method), **expected)


@pytest.mark.parametrize("method", ["crown", "lipschitz"])
@part(0.1)
@given(seeds)
def test_all_changes_of_coordinates_at_once_change_nothing(method, seed):
    assert_unchanged(seed, method, CHANGES)


# Through a SavedModel


def save(path, body, kernels, biases):
    net = tf.Module()
    net.kernels = [tf.Variable(k, dtype=tf.float32) for k in kernels]
    net.biases = [tf.Variable(b, dtype=tf.float32) for b in biases]
    spec = tf.TensorSpec((None, 2, len(kernels[0]) // 2), tf.float32)
    function = tf.function(lambda x: body(x, net.kernels, net.biases))
    tf.saved_model.save(net, str(path), signatures=function.get_concrete_function(spec))
    return path


@pytest.fixture(scope="module")
def weights():
    kernels, biases, x, _ = draw(4)
    return [np.float32(k) for k in kernels], [np.float32(b) for b in biases], np.float32(x)


def _plain(x, kernels, biases):
    a = tf.reshape(x, (-1, 4))
    return tf.tanh(a @ kernels[0] + biases[0]) @ kernels[1] + biases[1]


@pytest.fixture(scope="module")
def plain(weights, tmp_path_factory):
    """The plain spelling of the network, exported once."""
    return save(tmp_path_factory.mktemp("plain") / "a", _plain, *weights[:2])


def _keras_like(x, kernels, biases):
    a = tf.reshape(x, tf.stack([tf.shape(x)[0], -1]))
    a = tf.nn.bias_add(tf.matmul(a, kernels[0]), biases[0])
    return tf.nn.bias_add(tf.matmul(tf.tanh(a), kernels[1]), biases[1])


def _batch_norm(x, kernels, biases):
    """The bias as the mean of a batch normalisation, which is the identity otherwise."""
    z = tf.reshape(tf.reshape(x, (-1, 4)) @ kernels[0], (-1, 1, 1, 7))
    one, zero = np.ones(7, np.float32), np.zeros(7, np.float32)
    z = tf.raw_ops.FusedBatchNormV3(
        x=z, scale=one, offset=zero, mean=-biases[0], variance=one, epsilon=0.0, is_training=False
    ).y
    return tf.tanh(tf.reshape(z, (-1, 7))) @ kernels[1] + biases[1]


SPELLINGS = {"as Keras": _keras_like, "batch norm": _batch_norm}


def _radii(path, x, method="crc", guarantee="real"):
    return Certifier(str(path), method=method, guarantee=guarantee).certify(x.reshape(-1, 2, 2))


@pytest.mark.parametrize("guarantee", ["real", "float32"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_how_a_graph_spells_a_function_changes_nothing(
    spelling, guarantee, weights, plain, tmp_path
):
    kernels, biases, x = weights
    ours = _radii(plain, x, guarantee=guarantee)
    other = _radii(
        save(tmp_path / "b", SPELLINGS[spelling], kernels, biases), x, guarantee=guarantee
    )
    assert_same(ours, other)


def test_a_normalisation_in_the_graph_is_a_change_of_units(weights, plain, tmp_path):
    """(x − ½) / ½ before the first layer, against inputs that are normalised already."""
    kernels, biases, x = weights

    def inside(x, kernels, biases):
        return _plain((x - 0.5) / 0.5, kernels, biases)

    ours = _radii(plain, 2.0 * x - 1.0)
    other = _radii(save(tmp_path / "b", inside, kernels, biases), x)
    assert_same(ours, other, scale=0.5)


COMPANY = [*((method, "real") for method in METHODS), ("crc", "float32"), ("crown", "float32")]


@pytest.mark.parametrize(("method", "guarantee"), COMPANY)
def test_company_and_order_change_nothing(method, guarantee, weights, plain):
    """Sums in a batch of another size may round differently: within the search's own accuracy."""
    certifier = Certifier(str(plain), method=method, guarantee=guarantee)
    x = weights[2].reshape(-1, 2, 2)
    together = certifier.certify(x)
    backwards = certifier.certify(x[::-1].copy())
    alone = certifier.certify_all(x, batch_size=1)
    assert (together.radius > 0.0).any()
    for other in (backwards.radius[::-1], alone.radius):
        np.testing.assert_allclose(other, together.radius, rtol=CLOSE, atol=1e-9)
    np.testing.assert_array_equal(alone.prediction, together.prediction)
    np.testing.assert_array_equal(backwards.nearest_rival[::-1], together.nearest_rival)
