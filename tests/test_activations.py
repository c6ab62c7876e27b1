"""σ, σ′, σ″ against 50 digits, and the ranges against samples."""

import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from keras_curv import activations
from keras_curv.errors import InputError
from keras_curv.rounding import ACTIVATION_ULPS, TINY, UNIT

mpmath.mp.dps = 50
ONE = mpmath.mpf(1)


def _logistic(z):
    return ONE / (ONE + mpmath.exp(-z))


def _logistic_first(z):
    return _logistic(z) * _logistic(-z)


def _logistic_second(z):
    return _logistic_first(z) * (_logistic(-z) - _logistic(z))


EXACT = {
    "softplus": (lambda z: mpmath.log1p(mpmath.exp(z)), _logistic, _logistic_first),
    "sigmoid": (_logistic, _logistic_first, _logistic_second),
    "tanh": (
        mpmath.tanh,
        lambda z: mpmath.sech(z) ** 2,
        lambda z: -2 * mpmath.tanh(z) * mpmath.sech(z) ** 2,
    ),
}
NAMES = list(activations.SMOOTH)


def _grid():
    steps = np.linspace(-45.0, 45.0, 361)
    magnitudes = np.logspace(-300, 2.9, 120)
    fine = np.logspace(-12, 1.6, 160)
    # TensorFlow's softplus changes formula near ±34.04; tanh and log1p near ±4e-4 and 1.
    edges = np.array([34.0, 34.04365, 34.0437, 34.05, 36.04, 36.05, 3.9e-4, 4.1e-4, 0.99, 1.01])
    saturating = np.linspace(15.0, 20.0, 101)  # where tanh loses most
    half = np.concatenate([magnitudes, fine, edges, saturating])
    return np.concatenate([steps, half, -half, [0.0]])


def _errors(function, exact, z):
    """|function − exact|, and |exact|, rounded from 50 digits at the very end."""
    reference = [exact(mpmath.mpf(float(entry))) for entry in z]
    error = [abs(mpmath.mpf(float(v)) - r) for v, r in zip(function, reference, strict=True)]
    return np.array(error, np.float64), np.array([abs(r) for r in reference], np.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packet", [True, False], ids=["vector", "scalar"])
def test_evaluation_error_is_the_one_that_is_charged(name, packet):
    z = _grid() if packet else _grid()[::9]
    entry = activations.get(name)

    def evaluate(function):
        if packet:
            return function(tf.constant(z, tf.float64)).numpy()
        return np.array([function(tf.constant([v], tf.float64)).numpy()[0] for v in z])

    unit = ACTIVATION_ULPS * UNIT
    error, size = _errors(evaluate(entry.value), EXACT[name][0], z)
    assert np.all(error <= unit * size + TINY)  # results below TINY may be flushed
    error, _ = _errors(evaluate(entry.first), EXACT[name][1], z)
    assert np.all(error <= unit * entry.slope)
    # σ″ enters the Hessian's ranges only, and those are widened by 64 units.
    error, _ = _errors(evaluate(entry.second), EXACT[name][2], z)
    assert np.all(error <= 64.0 * UNIT * entry.bend)


def _pairs(name):
    entry = activations.get(name)
    return [
        (entry.first, entry.first_range, entry.first_range_on, EXACT[name][1]),
        (entry.second, entry.second_range, entry.second_range_on, EXACT[name][2]),
    ]


def _extreme(exact, low, high, sign):
    """max of `sign · exact` on [low, high]: dense samples, then Brent around the best one."""
    z = np.linspace(low, high, 401)
    values = np.array([sign * float(exact(mpmath.mpf(float(v)))) for v in z])
    best = int(values.argmax())
    around = z[max(best - 1, 0)], z[min(best + 1, len(z) - 1)]
    if around[0] == around[1]:
        return values[best]
    found = scipy.optimize.minimize_scalar(
        lambda v: -sign * float(exact(mpmath.mpf(v))), bounds=around, method="bounded"
    )
    return max(values[best], -found.fun)


@pytest.mark.parametrize("name", NAMES)
def test_ranges_on_the_line_hold_and_are_attained(name):
    for _, (low, high), _, exact in _pairs(name):
        z = [mpmath.mpf(v) / 50 for v in range(-2000, 2001)]
        assert all(low <= exact(v) <= high for v in z)
        # Brent stops at 1e-5 from a stationary point: 1e-10 · σ⁗ in value. Infima at ±∞ are
        # approached to e⁻⁸⁰ on [−40, 40].
        assert high - _extreme(exact, -40.0, 40.0, 1.0) <= 1e-9
        assert -low - _extreme(exact, -40.0, 40.0, -1.0) <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_ranges_on_the_line_are_their_closed_forms(name):
    s, t = 1 / (6 * math.sqrt(3)), 4 / (3 * math.sqrt(3))
    first, second = {
        "softplus": ((0, 1), (0, 0.25)),
        "sigmoid": ((0, 0.25), (-s, s)),
        "tanh": ((0, 1), (-t, t)),
    }[name]
    entry = activations.get(name)
    # 1e-12: outward rounding is by a few units in the last place.
    assert entry.first_range == pytest.approx(first, abs=1e-12)
    assert entry.second_range == pytest.approx(second, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_ranges_on_intervals_hold_and_are_tight(name, rng):
    centre, width = 4.0 * rng.standard_normal(25), 5.0 * rng.random(25) ** 2
    low, high = centre - width, centre + width
    for function, whole, range_on, exact in _pairs(name):
        bottom, top = range_on(low, high)
        samples = np.linspace(low, high, 301)
        values = function(tf.constant(samples, tf.float64)).numpy()
        # Where the range is that of the whole line it has no slack: two units of rounding.
        unit = 4.0 * UNIT * max(map(abs, whole))
        assert np.all(values >= bottom - unit) and np.all(values <= top + unit)
        for index in range(len(low)):
            ends = float(low[index]), float(high[index])
            # 1e-9: the reference maximum is only that good (see above).
            assert top[index] - _extreme(exact, *ends, 1.0) <= 1e-9
            assert -bottom[index] - _extreme(exact, *ends, -1.0) <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_infinite_and_degenerate_intervals(name):
    for function, whole, range_on, _ in _pairs(name):
        bottom, top = range_on([-np.inf], [np.inf])
        assert (bottom[0], top[0]) == pytest.approx(whole, abs=1e-12)
        bottom, top = range_on([-np.inf, 3.0], [-3.0, np.inf])
        values = function(tf.constant([[-3.0, 3.0], [-30.0, 30.0]], tf.float64)).numpy()
        assert np.all(bottom <= values) and np.all(values <= top)
        at = np.array([-2.0, -1.3169578969248166, 0.0, 0.3, 700.0])
        bottom, top = range_on(at, at)
        values = function(tf.constant(at, tf.float64)).numpy()
        assert np.all(bottom <= values) and np.all(values <= top)
        assert np.all(top - bottom <= 1e-13)  # a point: only the outward rounding is left


@pytest.mark.parametrize("ends", [(1.0, 0.0), (np.nan, 1.0), (0.0, np.nan)])
def test_an_empty_interval_is_refused(ends):
    with pytest.raises(InputError, match="low ≤ high"):
        activations.get("tanh").first_range_on([0.0, ends[0]], [1.0, ends[1]])


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(InputError, match="'selu'.*softplus"):
        activations.get("selu")


def test_relu_is_lipschitz_but_not_smooth():
    relu = activations.get("relu")
    z = tf.constant([-np.inf, -2.0, -1e-300, 0.0, 1e-300, 3.0, np.inf], tf.float64)
    assert np.array_equal(relu.value(z), [0.0, 0.0, 0.0, 0.0, 1e-300, 3.0, np.inf])
    assert np.array_equal(relu.first(z), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert relu.slope == 1.0 and not relu.smooth and "relu" not in activations.SMOOTH
    # Both one-sided slopes at an end that is the kink itself.
    low, high = relu.first_range_on([-2.0, -1.0, 0.0, 0.0, 0.5], [-1.0, 0.0, 0.0, 1.0, np.inf])
    assert low == pytest.approx([0.0, 0.0, 0.0, 0.0, 1.0], abs=1e-13)
    assert high == pytest.approx([0.0, 1.0, 1.0, 1.0, 1.0], abs=1e-13)
    with pytest.raises(InputError, match="'relu' is not differentiable"):
        relu.second_range_on([1.0], [2.0])
    activations.require_smooth([activations.get("tanh")])
    with pytest.raises(InputError, match="'relu' is not differentiable"):
        activations.require_smooth([activations.get("tanh"), relu])
