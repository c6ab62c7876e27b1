"""No point inside of a local radius changes the sign."""

import numpy as np
import pytest
import tensorflow as tf
from local_networks import in_balls

from keras_curv.certificates.certificate import choose_rivals
from keras_curv.certificates.crc import crc_local
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.question import Question
from keras_curv.curvature.local import LocalCurvature
from keras_curv.errors import InputError
from keras_curv.network.network import Network

# A wide first layer and narrow ones, of two layers, three and four.
SOME = [
    ((5, 7, 3), ("tanh",)),
    ((9, 5, 7, 3), ("tanh", "softplus")),
    ((6, 5, 8, 4, 3), ("tanh", "softplus", "sigmoid")),
]


@pytest.fixture(params=SOME, ids=lambda c: f"{c[0]} {' '.join(c[1])}")
def network(request, rng, random_network):
    return random_network(rng, *request.param, 1.5)


def _attacked(network, rng, x, radius, label, rival, error=0.0):
    """The smallest margin that projected gradient descent finds within the radius, `(P,)`."""
    worst = np.full(len(x), np.inf)
    for start in range(2):
        point = x if start == 0 else in_balls(rng, x, radius, 1)[0]
        for step in np.geomspace(1.0, 0.01, 15):
            margin, gradient = network.margin_and_gradient(
                tf.constant(point), label, tf.constant(rival)
            )
            worst = np.minimum(worst, margin)
            slope = np.linalg.norm(gradient, axis=1, keepdims=True)
            away = point - step * radius[:, None] * gradient / slope - x
            length = np.linalg.norm(away, axis=1, keepdims=True)
            point = x + away * np.minimum(1.0, radius[:, None] * (1.0 - 1e-9) / length)
        worst = np.minimum(worst, network.margin(tf.constant(point), label, tf.constant(rival)))
    return worst


def _predicted(network, rng, count=12):
    x = rng.standard_normal((count, network.dim))
    logits = network.logits(x).numpy()
    label = logits.argmax(axis=1)
    return x, label, choose_rivals(logits, label, "all", np.arange(count))


def test_no_margin_vanishes_within_the_radius(network, rng):
    x, label, rivals = _predicted(network, rng)
    known = np.zeros(rivals.shape)
    radius, gradients, *_ = LocalCurvatureCertificate(network).prove(
        Question.of(x, label, rivals, known)
    )
    assert radius.shape == rivals.shape and gradients.dtype == np.int64 and np.all(gradients > 0)
    smallest = radius.min(axis=1)
    assert np.all(smallest > 0.0) and np.isfinite(radius).all()
    of = np.repeat(np.arange(len(x)), rivals.shape[1])
    worst = _attacked(network, rng, x[of], radius.ravel(), label[of], rivals.ravel())
    assert np.all(worst > 0.0)


def test_far_rivals_need_no_bound_of_their_own(rng, random_network, monkeypatch):
    """And nothing is lost by what is proved of several together."""
    network = random_network(rng, (4, 9, 8, 7), ("tanh", "softplus"), 1.5)
    x, label, rivals = _predicted(network, rng)
    bound, asked = LocalCurvature.bound, []

    def counted(self, anchor, radius, of, *pair):
        asked[-1] += len(of)
        return bound(self, anchor, radius, of, *pair)

    monkeypatch.setattr(LocalCurvature, "bound", counted)
    found = []
    for few in (crc_local.FEW, rivals.shape[1]):
        monkeypatch.setattr(crc_local, "FEW", few)
        asked.append(0)
        result = LocalCurvatureCertificate(network).prove(Question.of(x, label, rivals))
        found.append(result.radius.min(axis=1))
    assert 0 < asked[0] < asked[1]
    np.testing.assert_array_equal(*found)


def test_larger_than_the_global_certificate(network, rng):
    x, label, rivals = _predicted(network, rng)
    known = CurvatureCertificate(network).prove(Question.of(x, label, rivals)).radius
    radius, *_ = LocalCurvatureCertificate(network).prove(Question.of(x, label, rivals, known))
    assert np.all(radius >= known)
    assert radius.min(axis=1).mean() > 1.01 * known.min(axis=1).mean()


def test_alone_it_is_not_below_the_global_certificate(rng, random_network):
    """On a large ball the anchored bound may be the worse one, where a network hardly bends."""
    network = random_network(rng, (5, 9, 7, 3), ("tanh", "softplus"), 0.5)
    question = Question.of(*_predicted(network, rng))
    everywhere = CurvatureCertificate(network).prove(question).radius
    certificate = LocalCurvatureCertificate(network)
    assert np.all(certificate.prove(question).radius >= everywhere)
    certificate.__dict__["everywhere"] = None
    alone = certificate.prove(question).radius
    assert np.any(alone.min(axis=1) < everywhere.min(axis=1))  # or this test could not fail


def test_examples_do_not_depend_on_their_batch(rng, random_network, monkeypatch):
    network = random_network(rng, (9, 5, 7, 3), ("tanh", "softplus"), 1.5)
    x, label, rivals = _predicted(network, rng, 5)
    known = np.zeros(rivals.shape)
    together, *_ = LocalCurvatureCertificate(network).prove(Question.of(x, label, rivals, known))
    monkeypatch.setattr("keras_curv.certificates.crc.crc_local.NUMBERS_AT_ONCE", 1)
    alone, *_ = LocalCurvatureCertificate(network).prove(Question.of(x, label, rivals, known))
    np.testing.assert_allclose(alone, together, rtol=1e-3)  # Lanczos starts differ


def test_an_affine_network_is_refused(rng, random_network):
    with pytest.raises(InputError, match="needs a hidden layer"):
        LocalCurvatureCertificate(random_network(rng, (3, 4), ()))


@pytest.mark.parametrize("size", [1e160, 1.7e308])
def test_an_absurd_input_does_not_stop_the_others(size, rng):
    """What overflows on its way may be anywhere: the whole line, and no interval without ends."""
    kernels = [rng.standard_normal(shape) for shape in ((3, 4), (4, 4), (4, 3))]
    network = Network.from_weights(kernels, [np.zeros(4), np.zeros(4), np.zeros(3)], "softplus")
    x = np.array([[0.3, -0.2, 0.1], [size, -size, size]])
    alone, both = (LocalCurvatureCertificate(network).certify(part) for part in (x[:1], x))
    assert both.radius[0] == pytest.approx(alone.radius[0], rel=1e-6) and both.radius[0] > 0.0
    assert both.radius[1] >= 0.0
