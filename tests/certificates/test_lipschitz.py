"""No pair of points is farther apart in margin than L says, and the radius is f/L."""

import concurrent.futures
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.lipschitz import LipschitzCertificate, margin_lipschitz_bounds
from keras_curv.certificates.question import Question
from keras_curv.curvature import liplt
from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3), 5: (3, 8, 6, 7, 5, 4)}


def _network(rng, sizes, activation, scale=1.5):
    entry = ACTIVATIONS[activation]
    maps = [
        Affine(scale * rng.standard_normal((m, n)) / np.sqrt(m), scale * rng.standard_normal(n))
        for m, n in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return Network(maps, [entry] * (len(maps) - 1))


def _against_all(network, x):
    logits = network.logits(x).numpy()
    label = logits.argmax(axis=1)
    classes = np.arange(network.classes)
    rivals = np.array([classes[classes != y] for y in label])
    return logits, label, rivals


BOUNDED = sorted(set(ACTIVATIONS) - {"exponential"})  # in their slopes


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        *zip(BOUNDED, itertools.cycle([2, 3, 5]), strict=False),
        *((name, depth) for name in ("relu", "softplus", "tanh") for depth in SIZES),
    ],
)
def test_no_gradient_is_steeper(name, depth, rng):
    for scale in (0.2, 1.5, 6.0):
        network = _network(rng, SIZES[depth], name, scale)
        bound = margin_lipschitz_bounds(network)
        x = np.concatenate([s * rng.standard_normal((300, network.dim)) for s in (0.05, 1.0, 9.0)])
        for y in range(network.classes):
            rivals = np.array([t for t in range(network.classes) if t != y])
            args = np.full(len(x), y), np.tile(rivals, (len(x), 1))
            gradient = network.evaluate(tf.constant(x), *args).gradient.numpy()
            steepest = np.linalg.norm(gradient, axis=-1).max(axis=0)
            # 1e-12: rounding of the sampled gradients
            assert np.all(steepest <= bound[y, rivals] * (1.0 + 1e-12))
        np.testing.assert_array_equal(bound, bound.T)
        assert not np.diag(bound).any()


def test_affine_networks_are_exact(rng):
    network = _network(rng, (5, 3), "tanh")
    columns = network.affines[0].kernel.T
    exact = np.linalg.norm(columns[:, None] - columns[None], axis=-1)
    np.testing.assert_allclose(margin_lipschitz_bounds(network), exact, rtol=1e-12)


def test_two_layers_by_hand(rng):
    network = _network(rng, (4, 9, 3), "relu")
    first, last = (affine.kernel for affine in network.affines)
    w = last[:, 0] - last[:, 2]
    by_liplt = 0.5 * np.linalg.norm(first @ w)  # c = s = ½, g = 1
    by_liplt += 0.5 * np.linalg.norm(w) * np.linalg.norm(first, 2)
    by_norms = np.linalg.norm(w) * np.linalg.norm(first, 2)
    assert by_liplt < by_norms
    # 1e-9: what a proved spectral norm costs at most
    assert margin_lipschitz_bounds(network)[0, 2] == pytest.approx(by_liplt, rel=1e-9)


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "relu"])
def test_never_above_the_product_of_norms(name, rng):
    network = _network(rng, SIZES[5], name)
    last = network.affines[-1].kernel.T
    product = np.linalg.norm(last[:, None] - last[None], axis=-1) * lipschitz_bounds(network)[-1]
    assert np.all(margin_lipschitz_bounds(network) <= product * (1.0 + 1e-12) + 1e-149)


def test_a_linear_regime_attains_the_bound():
    """Far to the right softplus is the identity: σ′ = 1 in every layer, and f is linear."""
    kernels = [np.array([[3.0]]), np.array([[2.0]]), np.array([[5.0, 0.0]])]
    network = Network.from_weights(kernels, [np.zeros(1), np.zeros(1), np.zeros(2)], "softplus")
    assert margin_lipschitz_bounds(network)[0, 1] == pytest.approx(30.0, rel=1e-12)
    radius, *_ = LipschitzCertificate(network).prove(
        Question.of(np.array([[100.0]]), np.array([0]), np.array([[1]]))
    )
    assert radius[0, 0] == pytest.approx(100.0, rel=1e-12)


def test_served_error_is_taken_off(rng):
    network = _network(rng, SIZES[3], "tanh")
    x = rng.standard_normal((6, network.dim))
    _, label, rivals = _against_all(network, x)
    plain, *_ = LipschitzCertificate(network).prove(Question.of(x, label, rivals))

    def grows(x, label, rivals, radius):
        assert radius.shape == rivals.shape
        return 0.01 + 0.1 * radius

    charged, *_ = LipschitzCertificate(network, grows).prove(Question.of(x, label, rivals))
    lipschitz = margin_lipschitz_bounds(network)[label[:, None], rivals]
    expected = plain - (0.01 + 0.1 * plain) / lipschitz
    np.testing.assert_allclose(charged, np.maximum(expected, 0.0), rtol=1e-9)
    endless, *_ = LipschitzCertificate(network, lambda *a: np.full((6, 2), np.inf)).prove(
        Question.of(x, label, rivals)
    )
    assert not endless.any()


@pytest.mark.parametrize("layer", range(3))
def test_folding_errors_are_charged(layer):
    """The linear regime of a chain of single units, with one weight as much larger as it may be."""
    error = 1e-2
    kernels = [np.array([[3.0]]), np.array([[2.0]]), np.array([[5.0, 0.0]])]
    # The last map's error may part its columns by √2 of it.
    gain = error * (2**0.5 if layer == 2 else 1.0)
    sizes = [3.0, 2.0, 5.0]
    sizes[layer] += gain
    maps = [Affine(k, np.zeros(k.shape[1]), error * (i == layer)) for i, k in enumerate(kernels)]
    network = Network(maps, [ACTIVATIONS["softplus"]] * 2)
    bound = margin_lipschitz_bounds(network)[0, 1]
    assert np.prod(sizes) <= bound <= 30.0 + 2.0 * (np.prod(sizes) - 30.0)


def test_the_error_of_products_is_what_folding_can_do(rng):
    network = _network(rng, SIZES[3], "tanh", 1.0)
    error = 1e-3
    maps = [Affine(a.kernel, a.bias, error, error) for a in network.affines]
    folded = Network(maps, network.activations)
    bound = margin_lipschitz_bounds(folded)
    for _ in range(20):
        maps = []
        for affine in network.affines:
            noise = rng.standard_normal(affine.kernel.shape)
            noise *= error / np.linalg.norm(noise, 2)
            maps.append(Affine(affine.kernel + noise, affine.bias))
        assert np.all(margin_lipschitz_bounds(Network(maps, network.activations)) <= bound)
    x = rng.standard_normal((5, network.dim))
    _, label, rivals = _against_all(network, x)
    known = np.zeros(rivals.shape)
    ours = LipschitzCertificate(folded).prove(Question.of(x, label, rivals, known))[0]
    assert np.all(
        ours < LipschitzCertificate(network).prove(Question.of(x, label, rivals, known))[0]
    )


@pytest.mark.parametrize("power", [-200, -60, 60, 160])
def test_extreme_weights(power, rng):
    kernels = [rng.standard_normal((4, 6)) * 10.0**power, rng.standard_normal((6, 3))]
    kernels[1] *= 10.0**power
    network = Network.from_weights(kernels, [np.zeros(6), np.zeros(3)], "tanh")
    bound = margin_lipschitz_bounds(network)
    off = ~np.eye(3, dtype=bool)
    assert np.all(bound[off] > 0.0) and not np.isnan(bound).any()
    x = rng.standard_normal((5, 4))
    _, label, rivals = _against_all(network, x)
    radius, *_ = LipschitzCertificate(network).prove(Question.of(x, label, rivals))
    assert np.all(np.isfinite(radius)) and np.all(radius >= 0.0)


@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_products_that_underflow_are_charged(name):
    """W_2 W_3 is 0 in float64, and 2.25e-322 in truth."""
    small, large = 1.5e-162, 1e150
    kernels = [[[large]], np.full((1, 100), small), np.full((100, 1), small), [[-large, 0.0]]]
    biases = [np.zeros(1), np.zeros(100), np.zeros(1), np.array([1.0, 0.0])]
    network = Network.from_weights([np.array(k) for k in kernels], biases, name)
    slopes = [large, large * 10 * small, large * 100 * small * small]
    assert np.all(lipschitz_bounds(network) >= np.array(slopes) * (1.0 - 1e-9))
    assert margin_lipschitz_bounds(network)[0, 1] >= slopes[-1] * large * (1.0 - 1e-9)
    one = np.zeros((1, 1)), np.zeros(1, int), np.ones((1, 1), int), np.zeros((1, 1))
    radius, *_ = LipschitzCertificate(network).prove(Question.of(*one))
    assert 0.0 <= radius.item() <= 1.0 / (slopes[-1] * large)


def test_unbounded_slopes_are_refused(rng):
    square = Activation("square", tf.square, None, None, (-np.inf, np.inf), (0.0, 2.0), (), ())
    maps = [Affine(np.eye(2), np.zeros(2)), Affine(np.eye(2), np.zeros(2))]
    with pytest.raises(InputError, match="'square'.* has an unbounded slope"):
        LipschitzCertificate(Network(maps, [square]))


def test_threads_that_ask_at_a_time_find_what_one_finds(monkeypatch, rng):
    """Of |·|, whose bounds take the last ℓ alone: one that is there twice goes unnoticed."""
    network = _network(rng, (4, 5, 6, 5, 3), "abs")
    alone = lipschitz_bounds(Network(network.affines, network.activations), 2)
    barrier, products_behind = threading.Barrier(2), liplt.products_behind

    def together(*args):
        barrier.wait(timeout=60.0)
        return products_behind(*args)

    monkeypatch.setattr(liplt, "products_behind", together)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: lipschitz_bounds(network, 2), range(2)))
    assert found == [alone, alone]
