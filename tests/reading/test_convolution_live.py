"""Convolutions are trained as what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from convolutions import SEEDS, architecture, oracle

from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.trainable.trainable_network import LiveNetwork


@pytest.mark.parametrize("seed", SEEDS)
def test_a_live_network_is_the_one_that_is_read(seed, read):
    model, x, served = read(seed)
    live = LiveNetwork(model).now()
    assert live.sizes == served.network.sizes
    assert live.activations == served.network.activations
    kernels, biases = live.weights(tf.float32)
    for affine, kernel, bias in zip(served.network.affines, kernels, biases, strict=True):
        # float32: about twenty roundings of sums of up to a hundred terms.
        np.testing.assert_allclose(kernel, affine.kernel, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(bias, affine.bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS[:6:2])
def test_live_gradients_are_those_of_the_definition(seed, read):
    """Central differences of the float64 oracle, along random directions of all variables."""
    model, x, _ = read(seed)
    rng = np.random.default_rng(seed)
    variables = model.trainable_variables
    weights = rng.standard_normal((len(x), 3))
    with tf.GradientTape() as tape:
        logits = LiveNetwork(model).now().logits(x.reshape(len(x), -1))
        value = tf.reduce_sum(logits * np.float32(weights))
    gradients = tape.gradient(value, variables)
    kept = [variable.numpy() for variable in variables]
    for variable, gradient, before in zip(variables, gradients, kept, strict=True):
        direction = np.sign(rng.standard_normal(before.shape)).astype(np.float32)
        step, values = np.float32(2.0**-10), []
        for sign in (1, -1):
            variable.assign(before + sign * step * direction)
            moved = np.float64(variable.numpy())
            values.append((np.sum(oracle(model, x) * weights), moved))
        variable.assign(before)
        expected = values[0][0] - values[1][0]
        got = np.sum(np.float64(gradient) * (values[0][1] - values[1][1]))
        scale = np.sum(np.abs(gradient)) * 2 * step
        assert abs(got - expected) <= 2e-3 * scale + 1e-7  # third derivatives, float32


@pytest.mark.parametrize("seed", SEEDS[:6:2])
def test_convolving_is_multiplying_by_the_matrix(seed, read):
    """Products, their transposes, and the second derivatives that training takes of them."""
    model, _, served = read(seed)
    rng = np.random.default_rng(seed)
    tape = tf.GradientTape(persistent=True)
    with tape:
        live = LiveNetwork(model).now()
        pairs = zip(live.products(tf.float32), live.weights(tf.float32)[0], strict=False)
        cases = []
        for product, kernel in pairs:
            a = tf.constant(rng.standard_normal((2, 3, kernel.shape[0])), tf.float32)
            t = tf.constant(rng.standard_normal((2, 3, kernel.shape[1])), tf.float32)
            cases += [
                (product.forward(a), tf.einsum("nri,io->nro", a, kernel)),
                (product.backward(t), tf.einsum("nro,io->nri", t, kernel)),
            ]
        sums = [[tf.reduce_sum(tf.sin(part)) for part in case] for case in cases]
    assert len(cases) == 2 * (served.network.depth - 1)
    for case, (ours, theirs) in zip(cases, sums, strict=True):
        # float32: about ten roundings of sums of up to a hundred terms.
        np.testing.assert_allclose(*case, rtol=1e-5, atol=1e-5)
        for variable in model.trainable_variables:
            # A bias is in no product.
            none = tf.zeros_like(variable.value)
            gradients = [tape.gradient(total, variable.value) for total in (ours, theirs)]
            gradients = [none if gradient is None else gradient for gradient in gradients]
            np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-3)


def test_a_step_of_robust_training():
    model, x = architecture(3)
    before = model.get_weights()
    trained = CRTModel(model, 0.3, 0.01)
    trained.compile("adam", run_eagerly=True)
    history = trained.fit(x, np.arange(4) % 3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    changed = zip(before, model.get_weights(), model.weights, strict=True)
    assert all(np.any(a != b) for a, b, weight in changed if "kernel" in weight.path)
