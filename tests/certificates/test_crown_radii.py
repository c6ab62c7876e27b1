"""Radii of linear bounds: known ones, of any chunk and rival, and none of what cannot be proved."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import SIZES, draw_network, labelled, rivals_of
from linear_intervals import pre_activation_bounds

from keras_curv.certificates.linear import ball_search
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.network import Network
from keras_curv.numerics.batches import in_batches


def test_known_radii(rng):
    network = draw_network(rng, SIZES[3], "softplus")
    x = rng.standard_normal((9, 4))
    label, rivals = labelled(network, x)
    certificate = LinearBoundCertificate(network)
    free, gradients, *_ = certificate.prove(Question.of(x, label, rivals))
    known = free * np.array([[9.0, 9.0], [0.3, 0.5], [9.0, 0.5]] * 3)
    radius, fewer, *_ = certificate.prove(Question.of(x, label, rivals, known))
    assert np.all(radius >= known)
    np.testing.assert_array_equal(radius[::3], known[::3])  # nothing left to gain
    assert np.all(fewer[::3] < gradients[::3])
    # Same brackets to 0.1 %, not the same probes.
    np.testing.assert_allclose(radius[1::3], free[1::3], rtol=2e-3)
    np.testing.assert_array_equal(radius[2::3, 0], known[2::3, 0])
    assert np.all(radius[2::3, 1] >= free[2::3, 1] * 0.998)
    # A rival known to be far is not in the way of the others.
    weakest = certificate.margin_bounds(x, label, rivals, free[:, 0] * 1.01).argmin(axis=1)
    known = np.zeros((9, 2))
    known[np.arange(9), weakest] = 100.0
    radius, *_ = certificate.prove(Question.of(x, label, rivals, known))
    assert np.all(radius[np.arange(9), 1 - weakest] > free[:, 0])
    assert np.all(radius[np.arange(9), weakest] == 100.0)


def test_a_rival_known_to_be_far_does_not_cost_the_others_their_second_pass(rng):
    network = draw_network(rng, (4, 12, 9, 3), "tanh", 2.0)
    x = rng.standard_normal((20, 4))
    label, rivals = labelled(network, x)
    certificate = LinearBoundCertificate(network)
    radius = certificate.prove(Question.of(x, label, rivals))[0][:, 0]
    for k in range(2):
        alone = certificate.margin_bounds(x, label, rivals[:, [k]], radius)
        asked = np.tile(np.arange(2) == k, (20, 1))
        centres = certificate.centres_of(x)
        beside = certificate.centred_bounds(centres, label, rivals, radius, asked)
        np.testing.assert_allclose(beside[:, k], alone[:, 0], rtol=1e-9, atol=1e-12)


def test_nothing_is_proved_of_wrong_tied_or_overflowing_inputs(rng):
    network = draw_network(rng, SIZES[3], "softplus")
    x = rng.standard_normal((5, 4))
    label = network.logits(x).numpy().argmin(axis=1)
    x[0], x[1] = np.nan, 1e308
    rivals = rivals_of(network, label)
    known = rng.uniform(size=rivals.shape)
    radius, *_ = LinearBoundCertificate(network).prove(Question.of(x, label, rivals, known))
    np.testing.assert_array_equal(radius, known)
    kernels = [np.eye(2), np.ones((2, 2))]
    tied = Network.from_weights(kernels, [np.zeros(2), np.zeros(2)], "tanh")
    one = np.array([[1]])
    radius, *_ = LinearBoundCertificate(tied).prove(
        Question.of(np.ones((1, 2)), np.array([0]), one, np.zeros((1, 1)))
    )
    assert radius == 0.0


def test_chunks_do_not_change_the_result(rng, monkeypatch):
    network = draw_network(rng, SIZES[3], "sigmoid", 3.0)
    x = rng.standard_normal((7, 4))
    label, rivals = labelled(network, x)
    certificate = LinearBoundCertificate(network)
    whole = certificate.prove(Question.of(x, label, rivals))
    for entries, processors in ((600, 1), (60, 1), (600, 3)):
        monkeypatch.setattr(ball_search, "in_batches", partial(in_batches, at_once=entries))
        monkeypatch.setattr("keras_curv.numerics.batches.processors", lambda: processors)  # noqa: B023
        parts = certificate.prove(Question.of(x, label, rivals))
        np.testing.assert_allclose(parts[0], whole[0], rtol=2e-3)  # probes may differ by rounding


def test_an_empty_batch(rng):
    network = draw_network(rng, SIZES[3], "tanh")
    empty = np.zeros((0, 4)), np.zeros(0, int), np.zeros((0, 2), int), np.zeros((0, 2))
    radius, gradients, *_ = LinearBoundCertificate(network).prove(Question.of(*empty))
    assert radius.shape == (0, 2) and gradients.shape == (0,)
    assert [low.shape for low, _ in pre_activation_bounds(network, empty[0], 1.0)] == [
        (0, 9),
        (0, 5),
    ]


def test_what_is_refused(rng):
    network = draw_network(rng, SIZES[3], "tanh")
    step = Activation("step", tf.sign, None, None, (0.0, np.inf), (-np.inf, np.inf), (), ())
    with pytest.raises(InputError, match="'step'"):
        LinearBoundCertificate(Network(network.affines, [network.activations[0], step]))
