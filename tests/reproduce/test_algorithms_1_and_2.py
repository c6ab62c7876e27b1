"""One solver behind certificate and attack, held against the paper's two algorithms."""

import numpy as np
import pytest
import tensorflow as tf
from algorithms_1_and_2 import algorithm1, algorithm2

from keras_curv import CurvatureCertificate, curvature_attack
from keras_curv.certificates.certificate import choose_rivals
from keras_curv.certificates.question import Question


@pytest.fixture(params=["softplus", "sigmoid", "tanh"])
def problem(request, rng, random_network):
    """A certificate of a network of small curvature, with inputs and their runners-up."""
    network = random_network(rng, (7, 12, 4), request.param, scale=0.8)
    certificate = CurvatureCertificate(network, tolerance=1e-6, max_steps=200)
    x = rng.standard_normal((25, 7))
    logits = certificate.logits(x)
    label = logits.argmax(axis=1)
    rival = choose_rivals(logits, label, "runner_up", np.zeros(25, int))[:, 0]
    bounds = certificate.curvature
    lower, upper = bounds.lower[label, rival], bounds.upper[label, rival]
    return certificate, x, label, rival, tf.constant(lower), tf.constant(upper)


def test_algorithm_1_converged_proves_the_same(problem):
    certificate, x, label, rival, lower, upper = problem
    ours = certificate.prove(Question.of(x, label, rival[:, None]))
    theirs = tf.function(algorithm1, autograph=False)(
        certificate.network,
        tf.constant(x),
        tf.constant(label),
        tf.constant(rival),
        lower=lower,
        upper=upper,
        outer_steps=50,
        inner_steps=1000,
        residual=1e-10,
    )
    # 2e-5: the inner loop converges slowly where η comes near 1/κ.
    np.testing.assert_allclose(ours.radius[:, 0], theirs.dual_value, rtol=2e-5)
    assert ours.gradients.mean() < theirs.gradient_evaluations.numpy().mean() / 20


def test_algorithm_2_converged_finds_the_same_point(problem):
    certificate, x, label, rival, lower, upper = problem
    pair = tf.constant(label), tf.constant(rival)
    ours = curvature_attack(
        certificate.network, tf.constant(x), *pair, radius=0.3, curvature=-lower, steps=60
    )
    theirs = tf.function(algorithm2, autograph=False)(
        certificate.network,
        tf.constant(x),
        *pair,
        radius=0.3,
        lower=lower,
        upper=upper,
        outer_steps=50,
        inner_steps=1000,
        residual=1e-10,
    )
    exact = ours.primal_equals_dual.numpy()
    assert exact.mean() > 0.8
    # Where the dual has a gap, the stationary point inside of the ball is not unique.
    np.testing.assert_allclose(ours.point[exact], theirs.point.numpy()[exact], atol=1e-4)
    np.testing.assert_allclose(ours.lower_bound[exact], theirs.dual_value.numpy()[exact], atol=1e-6)


def test_the_papers_own_budget_is_600_gradients(problem):
    certificate, x, label, rival, lower, upper = problem
    solution = tf.function(algorithm1, autograph=False)(
        certificate.network,
        tf.constant(x, tf.float32),
        tf.constant(label),
        tf.constant(rival),
        lower=tf.cast(lower, tf.float32),
        upper=tf.cast(upper, tf.float32),
        residual=0.0,
    )
    assert np.all(solution.gradient_evaluations.numpy() == 600)
