"""Each step of the Lipschitz certificate, alone: nothing of it can be left out.

`benchmarks/mutants.py` leaves one out after the other and sees that a test fails.
"""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates import lipschitz
from keras_curv.certificates.question import Question
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.unitwise import IDENTITY, unit_wise

ROWS = 60
of = np.vectorize(lambda v: Fraction(float(v)), otypes=[object])


def constant(error):
    return lambda x, label, rivals, radius: np.full(rivals.shape, error)


def rising(x, label, rivals, radius):
    """Served errors of a quarter of the radius, as one that is linear in it."""
    assert np.all(radius >= 0.0)
    return 0.25 * radius


def spread(rng, served, network=None, slope=1.0):
    """Proves `(m − E)/L` of margins m that are a difference of two numbers, and nothing else."""
    x = rng.uniform(1.0, 2.0, (ROWS, 2)) * [8.0, 0.1]
    network = network or Network.from_weights([np.eye(2)], [np.zeros(2)], ())
    certificate = lipschitz.LipschitzCertificate(network, served)
    certificate.lipschitz = np.full((2, 2), slope)
    question = Question.of(x, np.zeros(ROWS, int), np.ones((ROWS, 1), int))
    return certificate.prove(question).radius[:, 0], of(x[:, 0]) - of(x[:, 1])


def exact_logits(layers, hidden):
    return tf.zeros(len(hidden[0]), tf.float64)


@pytest.mark.parametrize("share", [0.0, 0.999, 1.001])
@pytest.mark.parametrize("slope", [1.0, 3.0])
def test_a_difference_is_charged(share, slope, rng, monkeypatch):
    """Of exact logits, most of which serving takes off, or more than all."""
    monkeypatch.setattr(lipschitz, "margin_error", exact_logits)

    def served(x, label, rivals, radius):
        assert np.all(radius > 0.0)
        return share * (x[:, :1] - x[:, 1:])

    radius, margin = spread(rng, served, slope=slope)
    off = of(share * np.float64(margin)) if share else 0
    left = margin - off
    assert np.all(of(radius) * Fraction(slope) <= np.maximum(left, 0))
    assert np.all(radius > 0.0) == (share < 1.0)


def test_logits_are_charged(rng, monkeypatch):
    monkeypatch.setattr(lipschitz, "margin_error", lambda n, a: exact_logits(n, a) + 0.25)
    radius, margin = spread(rng, lipschitz.no_error)
    np.testing.assert_allclose(radius, np.maximum(np.float64(margin) - 0.25, 0.0), rtol=1e-12)


def test_serving_is_asked_as_far_as_a_radius_can_be(rng):
    radius, margin = spread(rng, rising, slope=0.125)
    np.testing.assert_array_equal(radius, 0.0)  # a quarter of 8 m is more than m
    certificate = lipschitz.LipschitzCertificate(
        Network.from_weights([np.eye(2)], [np.zeros(2)], ()), rising
    )
    assert certificate.prove(Question.of([[1.0, 3.0]], [0], [[1]])).radius == 0.0
    radius, margin = spread(rng, rising, slope=2.0)
    np.testing.assert_allclose(radius, np.float64(margin) / 2.0 * 0.875, rtol=1e-12)


@pytest.mark.parametrize("margin", [np.nan, np.inf])
def test_what_is_no_number_proves_nothing(margin, rng):
    network = Network.from_weights([np.eye(2)], [np.zeros(2)], ())
    network.margins = lambda x, y, t: (tf.constant([[margin]] * ROWS, tf.float64), [x])
    assert not np.any(spread(rng, lipschitz.no_error, network)[0])
    for off in (np.nan, np.inf, -np.inf):
        assert not np.any(spread(rng, constant(off))[0])
    assert not np.any(spread(rng, lipschitz.no_error, slope=np.nan)[0])


def test_a_radius_beyond_all_numbers_is_the_largest(rng):
    found = spread(rng, lipschitz.no_error, slope=1e-310)[0]
    assert np.all(np.isfinite(found)) and np.all(found > 1e307)


def test_columns_are_as_far_apart_as_their_errors_allow(rng):
    product, error = rng.standard_normal((4, 30)), rng.uniform(1.0, 2.0, 30)
    found = lipschitz.column_distances(1e-30 * product, error)
    assert np.all(of(found) >= of(error)[:, None] + of(error))
    found = lipschitz.column_distances(product, np.zeros(30))
    exact = [
        [sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in of(product.T)]
        for p in of(product.T)
    ]
    assert np.all(of(found) ** 2 >= exact)
    np.testing.assert_allclose(found, np.sqrt(np.float64(exact)), atol=1e-14)
    assert lipschitz.column_distances(5e-324 * np.eye(2), np.zeros(2))[0, 1] >= 1e-150
    product[0, 0] = np.inf
    assert np.all(np.isinf(lipschitz.column_distances(product, error)))


def test_margins_of_one_map_are_as_steep_as_its_columns_are_apart():
    """By hand, folding errors of both columns with them."""
    network = Network([Affine([[3.0, 0.0], [0.0, 4.0]], [0.0, 0.0], kernel_error=0.5)], [])
    found = lipschitz.margin_lipschitz_bounds(network)
    assert found[0, 0] == found[1, 1] == 0.0
    assert found[0, 1] == found[1, 0] == pytest.approx(6.0, rel=1e-12) and found[0, 1] >= 6.0


@pytest.mark.parametrize("unitwise", [False, True])
def test_margins_of_two_maps_by_hand(unitwise):
    """`3 softplus(2x)` and `3 softplus(2x) + 3·2x`: as steep as 6 and 12, from afar."""
    units = [(activations.get("softplus"), 1), (IDENTITY, 1)][: 1 + unitwise]
    last = np.outer(np.full(len(units), 3.0), [1.0, 0.0])
    maps = [Affine(np.full((1, len(units)), 2.0), np.zeros(len(units))), Affine(last, np.zeros(2))]
    found = lipschitz.margin_lipschitz_bounds(Network(maps, [unit_wise(units)]))[0, 1]
    assert 6.0 * len(units) <= found <= 6.0 * len(units) * (1.0 + 1e-12)


def test_a_sum_of_terms_is_rounded_up(rng, monkeypatch):
    """Of norms and constants that are exact, a bound of the smaller way."""
    terms = rng.uniform(1.0, 2.0, (ROWS, 2))
    network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "softplus")
    least = []
    for one, other in terms:
        pair = np.full((2, 2), one), np.full((2, 2), other)
        monkeypatch.setattr(lipschitz, "telescoped", lambda *_, pair=pair: pair)
        found = lipschitz.margin_lipschitz_bounds(network)[0, 1]
        least.append(found / min(one, other))
    assert 1.0 + 16.0 * 2.0**-53 < min(least) and max(least) < 1.0 + 1e-13
    monkeypatch.setattr(lipschitz, "telescoped", lambda *_: (np.zeros((2, 2)),) * 2)
    assert 0.0 < lipschitz.margin_lipschitz_bounds(network)[0, 1] < 1e-100
    nothing = np.full((2, 2), np.nan)
    monkeypatch.setattr(lipschitz, "telescoped", lambda *_: (nothing, nothing))
    assert lipschitz.margin_lipschitz_bounds(network)[0, 1] == np.inf
