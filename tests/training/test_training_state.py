"""The state of power iteration moves once a train step, and nowhere else."""

import numpy as np
import pytest
import tensorflow as tf
from loss_oracle import dense_base, random_data

from keras_curv.attacks.crt import curvature_attack
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer


def _state(model):
    return [variable.numpy() for variable in model.curvature.variables]


@pytest.mark.parametrize(
    ("build", "run_eagerly"),
    [
        (lambda base: CurvatureRegularizer(base, 0.1), False),
        (lambda base: CRTModel(base, 0.3), True),
    ],
)
def test_state_moves_once_a_train_step_and_nowhere_else(build, run_eagerly):
    base, (x, y) = dense_base(), random_data(20)
    model = build(base)
    model.compile("adam", metrics=["accuracy"], run_eagerly=run_eagerly)
    for steps in (0, 3):
        assert model.curvature.steps.numpy() == steps
        before, weights = _state(model), base.get_weights()
        model.predict(x, verbose=0)
        model.evaluate(x, y, batch_size=8, verbose=0)
        model(x, training=True)
        model(x, training=False)
        model.test_on_batch(x, y)
        network = model.live.now()
        label = tf.constant(y, tf.int32)
        rival = network.runner_up(network.logits(tf.constant(x)), label)
        kappa = tf.gather_nd(model.curvature.estimate(network), tf.stack([label, rival], axis=1))
        curvature_attack(network, tf.constant(x), label, rival, radius=0.3, curvature=kappa)
        for now, then in zip(_state(model), before, strict=True):
            np.testing.assert_array_equal(now, then)
        for now, then in zip(base.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(now, then)
        if steps == 0:
            model.fit(x, y, batch_size=8, verbose=0, validation_data=(x, y))  # three batches
            assert any(np.any(n != t) for n, t in zip(_state(model), before, strict=True))
