"""The generalized cross-entropy is what its paper says, and trains within a wrapper."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_training import build, data

from keras_curv import GeneralizedCrossEntropy, InputError
from keras_curv.training.recipe import Recipe

LABEL = tf.constant([0, 2, 1, 2])


def logits_of(rng):
    return tf.constant(3.0 * rng.standard_normal((4, 3)), tf.float32)


@pytest.mark.parametrize("q", [1e-3, 0.3, 1.0])
def test_formula_and_gradient(rng, q):
    logits = logits_of(rng)
    probability = tf.nn.softmax(logits).numpy()[range(4), LABEL]
    loss = GeneralizedCrossEntropy(q, reduction="none")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        value = loss(LABEL, logits)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(LABEL, logits)
    np.testing.assert_allclose(value, (1.0 - probability.astype(float) ** q) / q, rtol=1e-3)
    expected = probability[:, None] ** q * tape.gradient(entropy, logits).numpy()
    np.testing.assert_allclose(tape.gradient(value, logits), expected, rtol=1e-4, atol=1e-7)


def test_without_q_it_is_cross_entropy(rng):
    logits = logits_of(rng)
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(
        GeneralizedCrossEntropy(0.0)(LABEL, logits), plain(LABEL, logits), rtol=1e-5
    )


def test_a_lost_example_has_a_finite_loss_and_gradient():
    logits = tf.Variable([[0.0, 1e4, -1e9]])
    with tf.GradientTape() as tape:
        value = GeneralizedCrossEntropy(0.5)(tf.constant([0]), logits)
    assert float(value) == 2.0
    assert np.all(np.abs(tape.gradient(value, logits)) < 1e-6)


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_q_out_of_range_is_refused(q):
    with pytest.raises(InputError, match="q must be from 0 to 1. Received"):
        GeneralizedCrossEntropy(q)


@pytest.mark.parametrize("jit", [False, True])
def test_q_may_change_between_steps(jit):
    x, y = data()

    def weights(*schedule):
        model = build("certified", keras.optimizers.SGD(0.1))
        model.compile(keras.optimizers.SGD(0.1), GeneralizedCrossEntropy(0.0), jit_compile=jit)
        for q in schedule:
            model.loss.q.assign(q)
            model.fit(x, y, batch_size=20, shuffle=False, verbose=0)
        return np.concatenate([np.ravel(weight) for weight in model.base.get_weights()])

    assert np.abs(weights(0.0, 0.9) - weights(0.0, 0.0)).max() > 1e-4


def test_it_is_saved_with_a_model(tmp_path):
    x, y = data()
    model = build("certified")
    model.compile("sgd", GeneralizedCrossEntropy(0.25))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert float(again.loss.q) == 0.25
    loss, *_ = again.evaluate(x, y, verbose=0)
    assert loss == pytest.approx(model.evaluate(x, y, verbose=0)[0], rel=1e-6)


def test_in_a_recipe_it_rises_with_the_radius():
    recipe = Recipe(gce=0.4, epochs=20, ramp=0.5)
    assert [recipe.q(epoch) for epoch in (0, 5, 10, 19)] == [0.0, 0.2, 0.4, 0.4]
    assert Recipe(gce=0.4, ramp=0.0).q(0) == 0.0
    with pytest.raises(InputError, match="gce is for the loss certified, crt"):
        Recipe(loss="plain", gce=0.4)
    with pytest.raises(InputError, match="gce must be from 0 to 1"):
        Recipe(gce=1.4)
