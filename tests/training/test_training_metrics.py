"""The metrics of a batch, against float64 arithmetic."""

import numpy as np
import pytest
import tensorflow as tf
from loss_oracle import (
    converge,
    curvature_of,
    dense_base,
    logits_of,
    network_of,
    random_data,
    runner_up,
    weights_of,
)

from keras_curv.attacks.crt import curvature_attack
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer


@pytest.mark.parametrize(("loss", "rivals"), [("crt", None), ("certified", 2)])
@pytest.mark.parametrize("mode", ["train", "test"])
def test_metrics_of_a_batch(loss, rivals, mode):
    base, (x, y) = dense_base(scale=1.5), random_data(40)
    radius = 0.3
    model = CRTModel(base, radius, loss=loss, rivals=rivals, attack_steps=4)
    model.compile("sgd", metrics=["accuracy"], run_eagerly=True)
    converge(model)
    weights = weights_of(base)
    run = model.train_on_batch if mode == "train" else model.test_on_batch
    metrics = run(x, y, return_dict=True)

    logits = logits_of(weights, x)
    rival = np.argsort(np.where(np.arange(3) == y[:, None], -np.inf, logits), axis=1)[:, ::-1]
    rival = rival[:, : model.rivals]
    kappa = curvature_of(weights)[y[:, None], rival]
    attack = curvature_attack(
        network_of(weights),
        tf.constant(x),
        tf.constant(y),
        tf.constant(rival),
        radius=radius,
        curvature=tf.constant(kappa, tf.float32),
        steps=4,
        tolerance=1e-3,
    )
    distance = np.linalg.norm(attack.point - x[:, None], axis=2)
    dual = attack.margin + kappa / 2.0 * np.minimum(distance**2 - radius**2, 0.0)
    clean = np.mean(logits.argmax(axis=1) == y)
    assert metrics["clean_accuracy"] == pytest.approx(clean)
    assert metrics["accuracy"] == pytest.approx(clean)
    assert 0.0 < np.mean(np.all(dual > 0.0, axis=1)) < clean
    assert metrics["certified"] == pytest.approx(np.mean(np.all(dual > 0.0, axis=1)))
    # float32; κ by power iteration.
    assert metrics["curvature"] == pytest.approx(kappa.mean(), rel=1e-4)
    assert metrics["attack_distance"] == pytest.approx(distance.mean(), rel=1e-3)
    solved = np.mean(attack.primal_equals_dual)
    assert 0.0 < solved < 1.0
    assert metrics["attack_success"] == pytest.approx(solved, abs=0.026)  # one attack in 40


def test_the_regularizer_reports_its_curvature():
    base, (x, y) = dense_base(), random_data(40)
    model = CurvatureRegularizer(base, 0.1)
    model.compile("sgd", run_eagerly=True)
    converge(model)
    weights = weights_of(base)
    expected = curvature_of(weights)[y, runner_up(logits_of(weights, x), y)].mean()
    for run in (model.test_on_batch, model.train_on_batch):
        assert run(x, y, return_dict=True)["curvature"] == pytest.approx(expected, rel=1e-4)
