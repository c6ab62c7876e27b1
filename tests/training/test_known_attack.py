"""Values that a step has computed are used again, and leave its loss and gradient as they are."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from loss_oracle import dense_base, network_of, random_data, weights_of
from tensorflow.python.eager import context

from keras_curv.attacks.crt import curvature_attack
from keras_curv.numerics.known import known, materialized
from keras_curv.training.models.crt_model import CRTModel

L = keras.layers


@functools.cache
def _trained(loss, known_already, how="eager"):
    """Losses of three steps, what they changed, and an evaluation."""
    x, y = random_data(40)
    model = CRTModel(dense_base(scale=2.0), 0.5, 0.1, loss=loss)
    assert model.live.as_in_training and model.live.is_dense
    model.live.as_in_training = known_already
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=how == "eager", jit_compile=False)
    before = model.base.get_weights()
    losses = [model.train_on_batch(x, y) for _ in range(3)]
    moved = [now - then for now, then in zip(model.base.get_weights(), before, strict=True)]
    model.run_eagerly = True
    return losses, moved, model.evaluate(x, y, verbose=0)


@pytest.mark.parametrize("loss, how", [("crt", "eager"), ("certified", "graph")])
def test_a_step_is_that_of_a_pass_through_the_base(loss, how):
    """The base itself is asked where its layers behave otherwise in training."""
    found = _trained(loss, True, how), _trained(loss, False)
    for ours, theirs in zip(*map(tf.nest.flatten, found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)  # float32, three steps


@pytest.mark.parametrize("centre", [False, True])
def test_kernels_are_read_before_they_are_changed(centre):
    """Checked in the graph that runs: without a control edge one build in six did otherwise."""
    found, (x, y) = [], random_data(40)
    for run_eagerly in (False, True):
        base = keras.Sequential(
            [keras.Input((4,)), L.Dense(8, "softplus"), L.Dense(7, "softplus"), L.Dense(3)]
        )
        rng = np.random.default_rng(2)
        base.set_weights([rng.standard_normal(w.shape) / 2 for w in base.get_weights()])
        model = CRTModel(base, 0.3, centre=centre)
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False, run_eagerly=run_eagerly)
        context.enable_run_metadata()
        model.train_on_batch(x, y)
        graphs = context.export_run_metadata().function_graphs
        context.disable_run_metadata()
        found.append(base.get_weights())
        if not run_eagerly:
            step = max((g.post_optimization_graph.node for g in graphs), key=len)
            assert len(_changes(step)) >= 6  # kernels and biases
            for change in _changes(step):
                _assert_ordered(step, change)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # float32


def _changes(nodes):
    return [node for node in nodes if re.fullmatch("Assign.*VariableOp", node.op)]


def _assert_ordered(nodes, change):
    """Fails unless each reading of a variable comes before or after its change, by edges."""
    inputs = {node.name: [re.sub(r"^\^|:.*", "", name) for name in node.input] for node in nodes}

    def before(name):
        seen, ahead = set(), [name]
        while ahead:
            new = set(inputs[ahead.pop()]) - seen
            seen |= new
            ahead += new
        return seen

    earlier = before(change.name)
    for node in nodes:
        if node.op == "ReadVariableOp" and node.input[0] == change.input[0]:
            is_ordered = node.name in earlier or change.name in before(node.name)
            assert is_ordered, f"{node.name} and {change.name}"


@pytest.mark.parametrize(
    "layer", [L.Dropout(0.5), L.GaussianNoise(0.1), L.BatchNormalization()], ids=lambda a: a.name
)
def test_layers_that_train_otherwise_are_asked_themselves(layer):
    base = keras.Sequential([keras.Input((4,)), L.Dense(5, "tanh"), layer, L.Dense(3)])
    assert not CRTModel(base, 0.5).live.as_in_training


def test_regularised_activities_and_half_precision_too():
    regularised = L.Dense(5, "tanh", activity_regularizer="l2")
    base = keras.Sequential([keras.Input((4,)), regularised, L.Dense(3)])
    assert not CRTModel(base, 0.5).live.as_in_training
    half = [L.Dense(5, "tanh", dtype="mixed_bfloat16"), L.Dense(3, dtype="mixed_bfloat16")]
    assert not CRTModel(keras.Sequential([keras.Input((4,)), *half]), 0.5).live.as_in_training


@pytest.mark.parametrize("kappa", [0.0, 3.0])
def test_what_is_known_is_that_of_the_points(kappa):
    """Some attacks land higher than they began: there it is that of the example."""
    base, (x, y) = dense_base(scale=6.0), random_data(40)
    network, x = network_of(weights_of(base)), tf.constant(x, tf.float64)
    rival = tf.constant(np.stack([(y + 1) % 3, (y + 2) % 3], axis=1))
    found = curvature_attack(
        network,
        x,
        tf.constant(y),
        rival,
        radius=3.0,
        curvature=tf.fill((40, 2), tf.constant(kappa, tf.float64)),
        steps=2,
        tolerance=1e-3,
    )
    points, hidden = tf.reshape(found.point, (80, -1)), found.hidden
    stayed = np.all(found.point == x[:, None], axis=-1)
    assert 0 < stayed.sum() < stayed.size
    pre, (_, *post) = network.forward(points)
    for ours, theirs in zip([*hidden.pre, *hidden.post], [*pre, *post], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    distance = np.linalg.norm(points - np.repeat(x, 2, axis=0), axis=1)
    np.testing.assert_allclose(hidden.distance, distance, atol=1e-10)


@pytest.mark.parametrize("jit", [False, True])
def test_what_is_known_has_the_gradient_of_working_it_out(jit):
    weight = tf.Variable([[2.0, -1.0]])

    @tf.function(jit_compile=jit)
    def slope(value):
        with tf.GradientTape() as tape:
            product = known(value, tf.constant([[3.0]]) @ materialized(weight))
            loss = tf.reduce_sum(product**2)
        return loss, tape.gradient(loss, weight)

    loss, gradient = slope(tf.constant([[5.0, 1.0]]))  # not what it would come to: what is given
    assert loss == 26.0
    np.testing.assert_allclose(gradient, [[30.0, 6.0]])
