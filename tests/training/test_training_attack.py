"""The points that training attacks, and the radius that it attacks in."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from algorithms_1_and_2 import algorithm2
from loss_oracle import converge, dense_base, logits_of, network_of, random_data, weights_of

from keras_curv.curvature.signed import signed_bound
from keras_curv.training.models.crt_model import CRTModel


class RecordedCRT(CRTModel):
    """Keeps what a step has attacked; needs `run_eagerly`."""

    def attack(self, x, y, training):
        self.seen = super().attack(x, y, training)
        return self.seen


@pytest.mark.parametrize("loss", ["crt", "certified"])
@pytest.mark.parametrize(("radius", "steps"), [(0.01, 20), (0.5, 1), (0.5, 20), (3.0, 3)])
def test_attacked_points(loss, radius, steps):
    """Without κ one long step often ends higher than it began."""
    base, (x, y) = dense_base(scale=6.0), random_data(40)
    model = RecordedCRT(base, radius, loss=loss, attack_steps=steps)
    model.compile("sgd", run_eagerly=True)
    for vectors in model.curvature.pair_vectors:
        vectors.assign(np.zeros(vectors.shape))
    weights = weights_of(base)
    model.train_on_batch(x, y)
    attacked = model.seen
    points = attacked.worst.point.numpy().reshape(40, model.rivals, 4).astype(np.float64)
    # float32 rounding of the projection.
    assert np.all(np.linalg.norm(points - x[:, None], axis=2) <= radius * (1.0 + 1e-5) + 1e-6)
    logits = logits_of(weights, x)
    ranked = np.argsort(np.where(np.arange(3) == y[:, None], -np.inf, logits), axis=1)[:, ::-1]
    np.testing.assert_array_equal(attacked.rival, ranked[:, : model.rivals])
    np.testing.assert_array_equal(attacked.label, y)
    for k in range(model.rivals):
        rows, t = np.arange(40), np.asarray(attacked.rival)[:, k]
        there = logits_of(weights, points[:, k])
        margin, at_start = there[rows, y] - there[rows, t], logits[rows, y] - logits[rows, t]
        assert np.all(margin <= at_start + 1e-4)  # float32, of margins of up to 30
        assert np.mean(margin < at_start) > 0.5


def test_the_attack_is_that_of_algorithm_2():
    base, (x, y) = dense_base(scale=0.7), random_data(20)
    radius = 0.4
    model = RecordedCRT(base, radius, loss="crt", attack_steps=60)
    model.compile("sgd", run_eagerly=True)
    converge(model)
    network = network_of(weights_of(base))
    bounds = signed_bound(network)
    model.train_on_batch(x, y)
    attacked = model.seen
    rival = np.asarray(attacked.rival)[:, 0]
    theirs = tf.function(algorithm2, autograph=False)(
        network,
        tf.constant(x, tf.float64),
        tf.constant(y),
        tf.constant(rival, tf.int64),
        radius=radius,
        lower=tf.constant(bounds.lower[y, rival]),
        upper=tf.constant(bounds.upper[y, rival]),
        outer_steps=50,
        inner_steps=1000,
        residual=1e-10,
    )
    exact = np.asarray(attacked.worst.solved)[:, 0]
    assert exact.mean() > 0.8
    # Where the dual has a gap, the stationary point inside of the ball is not unique.
    np.testing.assert_allclose(attacked.worst.point[exact], theirs.point.numpy()[exact], atol=1e-3)


@pytest.mark.parametrize("loss", ["crt", "certified"])
def test_the_radius_rises(loss):
    """A narrow ball around a nearly linear net: the attack ends on the sphere."""
    base, (x, y) = dense_base(scale=0.5), random_data(8)
    model = CRTModel(base, 0.2, loss=loss, ramp_steps=4)
    model.compile(keras.optimizers.SGD(1e-6), run_eagerly=True)
    distances = []
    for _ in range(7):
        distances.append(model.fit(x, y, verbose=0).history["attack_distance"][0])
        at_test = model.evaluate(x, y, verbose=0, return_dict=True)["attack_distance"]
        assert at_test == pytest.approx(0.2, rel=1e-4)  # the whole radius from the start
    risen = np.minimum(0.05 + 0.95 * np.arange(7) / 4, 1.0)
    np.testing.assert_allclose(distances, 0.2 * risen, rtol=1e-4)  # float32


def test_without_a_ramp_the_radius_is_whole_at_once():
    base, (x, y) = dense_base(scale=0.5), random_data(8)
    model = CRTModel(base, 0.2)
    model.compile("sgd", run_eagerly=True)
    history = model.fit(x, y, verbose=0).history
    assert history["attack_distance"][0] == pytest.approx(0.2, rel=1e-4)
