"""The shipped MNIST model on real images: attacked, and held against Algorithm 1.

Needs MNIST in tfds' format where `TFDS_DATA_DIR` or tfds' own place has it.
"""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from algorithms_1_and_2 import algorithm1

from keras_curv import CurvatureCertificate, data, pgd_attack, read
from keras_curv.certificates.certificate import Status, choose_rivals
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError

pytestmark = pytest.mark.slow
MODEL = pathlib.Path(__file__).resolve().parents[2] / "saved_models" / "mnist_2x1024"


@pytest.fixture(scope="module")
def mnist():
    try:
        examples = data.load("mnist")
    except InputError as error:
        pytest.skip(str(error))
    x, y = next(examples.batches(1100, 0))
    return x.reshape(len(x), -1).astype(np.float64), y


@pytest.fixture(scope="module")
def certificate():
    return CurvatureCertificate(read(MODEL).network)


def test_a_thousand_certificates_survive_pgd(mnist, certificate):
    x, y = mnist
    result = certificate.certify(x, y)
    rows = np.flatnonzero(result.status == Status.CERTIFIED)[:1000]
    assert len(rows) == 1000

    @tf.function(autograph=False)
    def attack(images, labels, radius):
        return pgd_attack(certificate.network, images, labels, radius=radius, steps=40, restarts=2)

    images, labels = tf.constant(x[rows], tf.float32), tf.constant(y[rows], tf.int32)
    inside = tf.constant(result.radius[rows] * 0.9999, tf.float32)
    # float32 logits of this net are exact to about 1e-5.
    assert attack(images, labels, inside)[0].numpy().min() > -1e-5
    # The attack is strong enough to mean something: it breaks nearly every example whose
    # distance the certificate says is exact, just outside of the radius.
    exact = np.flatnonzero(result.primal_equals_dual[rows])
    outside = attack(
        tf.gather(images, exact),
        tf.gather(labels, exact),
        tf.constant(result.radius[rows][exact] * 1.01, tf.float32),
    )
    assert len(exact) > 100 and np.mean(outside[0].numpy() < 0) > 0.99


def test_tight_against_converged_algorithm_1(mnist, certificate):
    x = mnist[0][:20]
    logits = certificate.logits(x)
    label = logits.argmax(axis=1)
    rivals = choose_rivals(logits, label, "runner_up", np.zeros(len(x), int))
    ours = certificate.prove(Question.of(x, label, rivals)).radius[:, 0]
    bounds, rival = certificate.curvature, rivals[:, 0]
    # Far more steps than the paper's 30 × 20, in float64: its dual value is then the optimum.
    theirs = tf.function(algorithm1, autograph=False)(
        certificate.network,
        tf.constant(x),
        tf.constant(label),
        tf.constant(rival),
        lower=tf.constant(bounds.lower[label, rival]),
        upper=tf.constant(bounds.upper[label, rival]),
        outer_steps=45,
        inner_steps=400,
        residual=1e-9,
    ).dual_value.numpy()
    assert np.all(ours >= theirs * (1 - 2e-4))
    assert np.all(ours <= theirs * (1 + 1e-7))  # what 45 halvings leave of the interval of η


def test_few_gradients(mnist, certificate):
    x, y = mnist[0][:500], mnist[1][:500]
    one = certificate.certify(x, y, rivals="runner_up")
    every = certificate.certify(x, y)
    rows = one.status == Status.CERTIFIED
    assert one.gradient_evaluations[rows].mean() <= 14  # those in float32 count
    assert one.gradient_evaluations.max() <= 40
    assert every.gradient_evaluations[rows].mean() <= 30
