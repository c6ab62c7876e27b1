"""Lines around square, reciprocal, rsqrt and sqrt, in exact arithmetic; edges of domains."""

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.interval_bounds import Box, value_range
from keras_curv.certificates.linear.bounds.relaxation import magnitude, relaxation
from keras_curv.network.activations import get

mpmath.mp.dps = 60
EXACT = {
    "square": lambda z: z * z,
    "reciprocal": lambda z: 1 / z,
    "rsqrt": lambda z: 1 / mpmath.sqrt(z),
    "sqrt": mpmath.sqrt,
}
POSITIVE = ["reciprocal", "rsqrt", "sqrt"]


def _intervals(rng, name, count=300):
    low = 10.0 ** rng.uniform(-12.0, 12.0, count)
    width = 10.0 ** rng.uniform(-16.0, 3.0, count)
    high = low * (1.0 + width)
    high[::9] = low[::9]
    if name == "square":
        low = np.where(rng.uniform(size=count) < 0.5, low, -(10.0 ** rng.uniform(-12, 12, count)))
    return low, np.maximum(low, high)


@pytest.mark.parametrize("name", EXACT)
def test_no_point_is_outside_of_its_lines(name, rng):
    low, high = _intervals(rng, name)
    where = rng.uniform(size=low.shape)
    for at in (None, low + where * (high - low)):
        lines = relaxation(get(name), low, high, at)
        assert all(np.isfinite(part).all() for part in lines)
        for row in range(len(low)):
            s, c, t, d = (mpmath.mpf(float(part[row])) for part in lines)
            ends = mpmath.mpf(float(low[row])), mpmath.mpf(float(high[row]))
            for share in (0, 1, 0.5, float(where[row]), 1e-3, 0.999):
                z = ends[0] + (ends[1] - ends[0]) * share
                value = EXACT[name](z)
                assert s * z + c <= value <= t * z + d


@pytest.mark.parametrize("name", EXACT)
def test_lines_are_tangents_and_chords(name, rng):
    low = rng.uniform(0.5, 2.0, 50)
    high = low + rng.uniform(0.1, 2.0, 50)
    at = low + rng.uniform(size=50) * (high - low)
    sigma = get(name)
    value = sigma.value(tf.constant(np.stack([low, at, high]))).numpy()
    chord = value[0] + (value[2] - value[0]) * (at - low) / (high - low)
    lines = relaxation(sigma, low, high, at)
    below = lines.lower_slope * at + lines.lower_intercept
    above = lines.upper_slope * at + lines.upper_intercept
    tangent, other = (above, below) if name == "sqrt" else (below, above)
    np.testing.assert_allclose(tangent, value[1], rtol=1e-11)
    np.testing.assert_allclose(other, chord, rtol=1e-11)


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("low", [-1.0, -1e-300, 0.0, -np.inf])
def test_nothing_is_known_where_it_may_be_undefined(name, low):
    sigma = get(name)
    ends = np.array([[low, 1.0]]), np.array([[2.0, 2.0]])
    lines = relaxation(sigma, *ends)
    assert lines.lower_intercept[0, 0] == -np.inf and lines.upper_intercept[0, 0] == np.inf
    assert np.isfinite(lines.lower_intercept[0, 1]) and np.isfinite(lines.upper_intercept[0, 1])
    with np.errstate(all="ignore"):
        assert not np.isfinite(magnitude(sigma, *ends, lines)[0, 0])
        assert not np.isfinite(Box.of_values(sigma, *ends).half[0, 0])
    for ranges in (sigma.first_range_on, sigma.piece_range_on):
        least, most = ranges(*ends)
        assert np.isinf(least[0, 0]) or np.isinf(most[0, 0])
        assert np.isfinite(least[0, 1]) and np.isfinite(most[0, 1])
    for function in (sigma.value, sigma.first, sigma.second):
        assert np.isnan(function(tf.constant([-1.0, 0.0], tf.float64)).numpy()).all()


@pytest.mark.parametrize("name", EXACT)
def test_derivatives_and_ranges(name, rng):
    sigma = get(name)
    z = 10.0 ** rng.uniform(-3.0, 3.0, 200)
    for function, order in ((sigma.first, 1), (sigma.second, 2)):
        found = function(tf.constant(z)).numpy()
        exact = [float(mpmath.diff(EXACT[name], mpmath.mpf(float(point)), order)) for point in z]
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    low, high = z, z * (1.0 + rng.uniform(size=200))
    inside = low + (high - low) * rng.uniform(size=200)
    for ranges, function in (
        (sigma.first_range_on, sigma.first),
        (sigma.piece_range_on, sigma.second),
    ):
        least, most = ranges(low, high)
        value = function(tf.constant(inside)).numpy()
        assert np.all((least <= value) & (value <= most))
    least, most = value_range(sigma, tf.constant(low), tf.constant(high))
    value = sigma.value(tf.constant(inside)).numpy()
    assert np.all((least <= value) & (value <= most))
    if name == "square":
        least, most = value_range(sigma, tf.constant([-3.0]), tf.constant([1.0]))
        assert (float(least[0]), float(most[0])) == (0.0, 9.0)
