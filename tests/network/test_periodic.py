"""Ranges of σ′ and σ″ of an activation whose extrema come again."""

import math

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.interval_bounds import value_range
from keras_curv.network import activations
from keras_curv.numerics.rounding import UNIT

SIN = activations.get("sin")
RANGES = [(SIN.first, SIN.first_range_on, 0.0), (SIN.second, SIN.second_range_on, math.pi / 2)]


def _largest(low, high, shift):
    """The largest cos(z + shift) on an interval, of 60 digits."""
    with mpmath.workdps(60):
        low, high, shift = mpmath.mpf(low), mpmath.mpf(high), mpmath.mpf(shift)
        turn = 2 * mpmath.pi
        peak = mpmath.ceil((low + shift) / turn) * turn - shift
        inside = [peak] if low <= peak <= high else []
        return float(max(mpmath.cos(z + shift) for z in [low, high, *inside]))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e3, 1e5, 1e9, 1e15, 1e300])
def test_ranges_hold_and_are_tight_wherever_they_are(scale, rng):
    """Far away, where an extremum cannot be placed, a range is that of the whole line."""
    low = scale * rng.standard_normal(200)
    high = low + np.where(rng.random(200) < 0.5, 9.0 * rng.random(200), 0.1 * rng.random(200))
    near = np.maximum(abs(low), abs(high)) < 2.0**20
    assert near.all() == (scale <= 1e5)
    for function, range_on, shift in RANGES:
        bottom, top = range_on(low, high)
        inside = np.clip(np.linspace(low, high, 301), low, high)
        values = function(tf.constant(inside, tf.float64)).numpy()
        assert np.all(values >= bottom - 4.0 * UNIT) and np.all(values <= top + 4.0 * UNIT)
        assert np.all(top[~near] == 1.0) and np.all(bottom[~near] == -1.0)
        for index in np.flatnonzero(near):
            ends = low[index], high[index]
            assert -1e-15 <= top[index] - _largest(*ends, shift) <= 1e-13
            assert -1e-15 <= -bottom[index] - _largest(*ends, shift + math.pi) <= 1e-13


@pytest.mark.parametrize("turns", [0, -7, 10**5])
def test_an_extremum_between_the_ends_counts(turns):
    at = 2.0 * math.pi * turns
    bottom, top = SIN.first_range_on([at - 1e-3], [at + 1e-3])
    assert top[0] == 1.0 and bottom[0] == pytest.approx(math.cos(1e-3), abs=1e-12)
    bottom, top = SIN.first_range_on([at - 3.2], [at - 3.1])
    assert bottom[0] == pytest.approx(-1.0, abs=1e-14) and top[0] < -0.998


@pytest.mark.parametrize("width", [2.0 * math.pi, 7.0, 1e3, np.inf])
def test_a_whole_period_has_all_of_the_range(width):
    low = np.linspace(-3.0, 3.0, 25)
    for _, range_on, _ in RANGES:
        bottom, top = range_on(low, low + width)
        assert np.all(bottom == -1.0) and np.all(top == 1.0)
    bottom, top = value_range(SIN, tf.constant(low), tf.constant(low + width))
    assert np.all(bottom.numpy() == -1.0) and np.all(top.numpy() == 1.0)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_values_are_ranged_in_a_graph_too(dtype):
    low, high = tf.constant([-1.0, 1.0, 0.0], dtype), tf.constant([0.5, 2.0, 9.0], dtype)
    found = tf.function(lambda *ends: value_range(SIN, *ends))(low, high)
    expected = np.sin([-1.0, 1.0]), np.sin([0.5, math.pi / 2])
    for end, known in zip(found, expected, strict=True):
        assert end.dtype == dtype
        np.testing.assert_allclose(end.numpy()[:2], known, rtol=1e-6)
    assert [float(end[2]) for end in found] == [-1.0, 1.0]


@pytest.mark.parametrize("ends", [(-np.inf, np.inf), (5.0, np.inf), (1e30, 1e30), (-1e300, 0.0)])
def test_values_on_an_infinite_interval_are_no_nan(ends):
    low, high = (tf.constant([end], tf.float64) for end in ends)
    assert [end.numpy().item() for end in value_range(SIN, low, high)] == [-1.0, 1.0]
