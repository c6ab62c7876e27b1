"""`check` sees whatever was not read as it is served."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import export
from keras_oracle import examples
from written_net import Net

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.reading import served_model

L = keras.layers


@pytest.fixture(scope="module")
def served_net(tmp_path_factory):
    return served_model.read(Net().export(tmp_path_factory.mktemp("net")))


def _tampered(network, layer, part):
    affines = list(network.affines)
    changed = {part: getattr(affines[layer], part).copy()}
    changed[part].flat[0] *= 1.01
    affines[layer] = dataclasses.replace(affines[layer], **changed)
    return Network(affines, network.activations)


@pytest.mark.parametrize("part", ["kernel", "bias"])
@pytest.mark.parametrize("layer", [0, 1])
def test_check_sees_one_weight_wrong_by_a_hundredth(served_net, layer, part):
    wrong = dataclasses.replace(served_net, network=_tampered(served_net.network, layer, part))
    with pytest.raises(InputError, match="disagree"):
        wrong.check(examples((6,)))


CALLS = {
    "clip": lambda call, x: call(tf.clip_by_value(x, 0.0, 1.0)),
    "clip above": lambda call, x: call(tf.minimum(x, 1.0)),
    "clip below": lambda call, x: call(tf.maximum(x, 0.0)),
    "rounding": lambda call, x: call(tf.round(x * 255.0) / 255.0),
    "swapped classes": lambda call, x: call(x)[:, ::-1],
    "shifted": lambda call, x: call(x) + 1e-3,
    "not a number": lambda call, x: call(x) * np.nan,
    "infinite": lambda call, x: call(x) / 0.0,
    "a class less": lambda call, x: call(x)[:, :-1],
}


@pytest.mark.parametrize("case", CALLS)
def test_check_sees_what_was_not_read(served_net, case):
    """Real examples lie in [0, 1]: `check` must look outside of it by itself."""
    x = np.random.default_rng(2).uniform(0.05, 0.95, (4, 6)).astype(np.float32)
    served_net.check(x)
    hidden = dataclasses.replace(served_net, call=lambda x: CALLS[case](served_net.call, x))
    with pytest.raises(InputError, match="signature"):
        hidden.check(x)


@pytest.mark.parametrize("head", ["softmax", "log_softmax", "sigmoid"])
def test_saturation_hides_no_disagreement(head):
    """A softmax of logits that are far apart is the same for most wrong readings."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), L.Dense(3), L.Activation(head)])
    model.layers[0].set_weights([np.eye(4, 3, dtype=np.float32) * 1e3, np.zeros(3, np.float32)])
    served = served_model.read(model)
    x = np.array([[0.9, 0.1, 0.2, 0.3]] * 4, np.float32)
    served.check(x)
    served.check(x[:0])
    kernel = served.network.affines[0].kernel
    wrong = Network([Affine(kernel * [[1.0, 1.001, 1.0]], np.zeros(3))], [])
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served, network=wrong).check(x)


def test_examples_that_are_all_alike_hide_no_disagreement(served_net):
    """Inputs at which every order of the entries is the same are not all that is tried."""
    first, *rest = served_net.network.affines
    turned = Affine(first.kernel[::-1], first.bias)
    wrong = Network([turned, *rest], served_net.network.activations)
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served_net, network=wrong).check(np.full((3, 6), 0.5, np.float32))


def test_an_elu_without_digits_near_zero_is_no_disagreement():
    """A convolution's elu is served as exp(z) − 1 (`benchmarks/fuzz_graphs.py`, graph 1000007)."""
    keras.utils.set_random_seed(0)
    small = keras.initializers.RandomNormal(stddev=1e-7)
    layers = [L.Dense(16, "elu", kernel_initializer=small), L.Dense(3)]
    served = served_model.read(keras.Sequential([keras.Input((6,)), *layers]))
    served.check(examples((6,)))


def _far(activation, at, depth):
    """A model with pre-activations of about that size, and of very few units."""
    keras.utils.set_random_seed(0)
    first = keras.initializers.RandomNormal(stddev=at)
    dense = [L.Dense(2, activation, kernel_initializer=first)]
    dense += [L.Dense(2, activation) for _ in range(depth - 1)]
    return served_model.read(keras.Sequential([keras.Input((4,)), *dense, L.Dense(3)]))


@pytest.mark.parametrize(("at", "depth"), [(1e-4, 3), (1.0, 1), (1e2, 3), (1e4, 1), (1e6, 3)])
@pytest.mark.parametrize("activation", ["squareplus", "elu", "mish"])
def test_digits_that_an_activation_loses_are_no_disagreement(activation, at, depth):
    """Keras' squareplus is served as `(z + √(z² + 4)) / 2`, and far below 0 that is noise."""
    served = _far(activation, at, depth)
    for seed in range(5):
        served.check(np.random.default_rng(seed).standard_normal((20, 4)).astype(np.float32))


@pytest.mark.parametrize("at", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("part", ["kernel", "bias"])
def test_lost_digits_hide_no_disagreement(at, part):
    served = _far("squareplus", at, 1)
    affines, changed = list(served.network.affines), getattr(served.network.affines[1], part)
    changed = {part: changed * 1.001 if part == "kernel" else changed + 1e-2 * at}
    affines[1] = dataclasses.replace(affines[1], **changed)
    wrong = Network(affines, served.network.activations)
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served, network=wrong).check(examples((4,)))


def test_check_wants_the_right_head(served_net):
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served_net, head="softmax").check(examples((6,)))


def test_check_refuses_in_one_line(tmp_path):
    served = served_model.read(export(tmp_path / "model"))
    wrong = dataclasses.replace(served, call=lambda x: served.call(x) + 1.0)
    with pytest.raises(InputError) as caught:
        wrong.check(np.ones((2, 4), np.float32))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
