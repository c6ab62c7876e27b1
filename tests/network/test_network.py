"""Logits, gradients and Hessians against plain numpy and automatic differentiation."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import get
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

CASES = [
    ((4, 3), ()),
    ((4, 6, 3), ("softplus",)),
    ((4, 6, 3), ("sigmoid",)),
    ((3, 7, 5, 4), ("tanh", "softplus")),
    ((3, 7, 5, 4), ("softplus", "tanh")),
    ((4, 2, 6, 5, 3), ("sigmoid", "tanh", "softplus")),
    ((4, 2, 6, 5, 3), ("softplus", "softplus", "sigmoid")),
]
TF_ACTIVATIONS = {"softplus": tf.nn.softplus, "sigmoid": tf.nn.sigmoid, "tanh": tf.nn.tanh}


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case[0])) + " ".join(case[1]))
def case(request, rng, random_network):
    sizes, names = request.param
    network = random_network(rng, sizes, names)
    x = tf.constant(2.0 * rng.standard_normal((5, sizes[0])))
    label = tf.constant(rng.integers(0, sizes[-1], 5))
    rival = (label + 1 + rng.integers(0, sizes[-1] - 1, 5)) % sizes[-1]
    return network, x, label, rival


def _taped_margin(network, x, label, rival):
    a = x
    for affine, activation in zip(network.affines, (*network.activations, None), strict=True):
        a = tf.matmul(a, affine.kernel) + affine.bias
        a = TF_ACTIVATIONS[activation.name](a) if activation else a
    return tf.gather(a, label, batch_dims=1) - tf.gather(a, rival, batch_dims=1)


def test_logits_and_margins(case, plain_logits):
    network, x, label, rival = case
    expected = plain_logits(network, x.numpy())
    # 1e-12: a few hundred roundings of numbers of order one to ten.
    np.testing.assert_allclose(network.logits(x), expected, rtol=1e-12, atol=1e-12)
    rows = np.arange(5)
    margin = expected[rows, label] - expected[rows, rival]
    np.testing.assert_allclose(network.margin(x, label, rival), margin, atol=1e-11)
    single = network.logits(tf.cast(x, tf.float32))
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4)  # float32 rounding


def test_gradients(case):
    network, x, label, rival = case
    with tf.GradientTape() as tape:
        tape.watch(x)
        margin = _taped_margin(network, x, label, rival)
    expected = tape.gradient(margin, x)
    value, gradient = network.margin_and_gradient(x, label, rival)
    np.testing.assert_allclose(value, margin, atol=1e-11)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-12)  # rounding only


def test_all_rivals_at_once(case):
    network, x, label, _ = case
    others = (label[:, None] + tf.range(1, network.classes, dtype=label.dtype)) % network.classes
    together = network.evaluate(x, label, others)
    for column in range(network.classes - 1):
        margin, gradient = network.margin_and_gradient(x, label, others[:, column])
        np.testing.assert_allclose(together.margin[:, column], margin, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(together.gradient[:, column], gradient, atol=1e-13)
    assert [a.shape[-1] for a in together.activations] == [a.fan_in for a in network.affines]
    assert [v.shape[-1] for v in together.cotangents] == [
        a.fan_in for a in reversed(network.affines)
    ]


def test_hessians(case):
    network, x, label, rival = case
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            margin = _taped_margin(network, x, label, rival)
        gradient = inner.gradient(margin, x)
    hessian = network.hessian(x, label, rival)
    if network.depth == 1:
        assert not np.any(hessian)
    else:
        expected = outer.batch_jacobian(gradient, x, experimental_use_pfor=False)
        np.testing.assert_allclose(hessian, expected, rtol=1e-10, atol=1e-11)  # rounding only
        assert np.abs(expected).max() > 1e-3


def test_runner_up_excludes_by_index(random_network, rng):
    network = random_network(rng, (3, 4), ())
    logits = tf.constant([[5.0, 5.0, 1.0, 0.0], [5.0, 5.0, 1.0, 0.0], [7.0, 1.0, 2.0, 2.0]])
    label = tf.constant([0, 1, 0])
    assert network.runner_up(logits, label).numpy().tolist() == [1, 0, 2]
    very_low = tf.constant([[0.0, -3e38, -2e38, -3e38]])
    assert network.runner_up(very_low, tf.constant([0])).numpy().tolist() == [2]
    all_equal = tf.zeros((4, 4))
    chosen = network.runner_up(all_equal, tf.range(4)).numpy()
    assert np.all(chosen != np.arange(4))


@pytest.mark.parametrize(
    ("kernel", "bias"),
    [
        (np.ones((2, 3)), np.ones(2)),
        (np.ones((2, 3)), np.ones((1, 3))),
        (np.ones((2, 3, 1)), np.ones(3)),
        (np.ones(3), np.ones(3)),
        (np.ones((0, 3)), np.ones(3)),
        (np.ones((3, 0)), np.ones(0)),
    ],
)
def test_shapes_of_an_affine_map(kernel, bias):
    with pytest.raises(InputError, match="kernel"):
        Affine(kernel, bias)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(bad):
    for kernel, bias in [([[1.0, bad]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0, bad])]:
        with pytest.raises(InputError, match="NaN or infinite"):
            Affine(np.array(kernel), np.array(bias))
    for errors in [(bad, 0.0), (0.0, bad)]:
        with pytest.raises(InputError, match="NaN or infinite"):
            Affine(np.ones((2, 2)), np.ones(2), *errors)


def test_sizes_must_chain():
    affine = [Affine(np.ones((2, 3)), np.ones(3)), Affine(np.ones((4, 2)), np.ones(2))]
    with pytest.raises(InputError, match="3 outputs.*4 inputs"):
        Network(affine, [get("tanh")])
    with pytest.raises(InputError, match="one activation between"):
        Network(affine, [])
    with pytest.raises(InputError, match="one activation between"):
        Network([], [])
    with pytest.raises(InputError, match="two logits"):
        Network([Affine(np.ones((2, 1)), np.ones(1))], [])
    with pytest.raises(InputError, match="'hard_shrink'"):
        Network.from_weights(
            [np.ones((2, 3)), np.ones((3, 2))], [np.ones(3), np.ones(2)], "hard_shrink"
        )
