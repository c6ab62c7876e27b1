"""Activations with kinks: values, slopes, ranges and lines, by samples and exact arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from exact_activations import KINKED as EXACT

from keras_curv.certificates.interval_bounds import value_range
from keras_curv.certificates.linear.bounds.relaxation import relaxation
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.numerics.rounding import ACTIVATION_ULPS, TINY, UNIT

mpmath.mp.dps = 50


def _value(entry, z):
    return entry.value(tf.constant(z, tf.float64)).numpy()


def _intervals(rng, entry, count=200):
    centre = rng.standard_normal(count) * 10.0 ** rng.uniform(-3, 1.5, count)
    half = 10.0 ** rng.uniform(-17, 1.5, count)
    half[::10] = 0.0
    for place, kink in enumerate(entry.kinks):
        centre[1 + 2 * place :: 10] = kink + half[1 + 2 * place :: 10]
        centre[2 + 2 * place :: 10] = kink - half[2 + 2 * place :: 10]
    return centre - half, centre + half


@pytest.mark.parametrize("name", EXACT)
def test_values_are_rounded_as_is_charged(name):
    entry = activations.get(name)
    half = np.concatenate([np.logspace(-300, 2.8, 300), np.linspace(0.0, 8.0, 801)])
    z = np.concatenate([half, -half, np.nextafter([3.0, 1.0, 6.0], 0.0), [-np.nextafter(3.0, 0)]])
    for at, value in zip(z, _value(entry, z), strict=True):
        exact = EXACT[name](mpmath.mpf(float(at)))
        allowed = ACTIVATION_ULPS * UNIT * (abs(exact) + entry.value_floor) + 1024.0 * TINY
        assert abs(mpmath.mpf(float(value)) - exact) <= allowed


@pytest.mark.parametrize("name", EXACT)
def test_slopes_and_their_ranges_are_those_of_differences(name, rng):
    entry = activations.get(name)
    assert not entry.smooth and np.isfinite(entry.slope)
    low, high = _intervals(rng, entry)
    bottom, top = entry.first_range_on(low, high)
    z = low + (high - low) * np.linspace(0.0, 1.0, 401)[:, None]
    z = np.clip(z, low, high)
    values = _value(entry, z)
    size = np.abs(values).max(axis=0) + np.abs(z).max(axis=0)
    rise, run = np.diff(values, axis=0), np.diff(z, axis=0)
    assert np.all(rise <= top * run + 1e-14 * size)
    assert np.all(rise >= bottom * run - 1e-14 * size)
    least, most = entry.first_range
    whole = np.linspace(-12.0, 12.0, 9001)
    slopes = np.diff(_value(entry, whole)) / np.diff(whole)
    # The grid has 375 points for each unit, and σ″ is at most 1.8.
    assert slopes.min() == pytest.approx(least, abs=4e-3)
    assert slopes.max() == pytest.approx(most, abs=4e-3)
    inside = np.min(np.abs(whole[:, None] - np.array(entry.kinks)), axis=1) > 4e-3
    middle, step = whole[inside], 1e-5
    first = entry.first(tf.constant(middle)).numpy()
    quotient = (_value(entry, middle + step) - _value(entry, middle - step)) / (2.0 * step)
    np.testing.assert_allclose(first, quotient, atol=1e-9)
    ends = (entry.first(tf.constant(middle + s)).numpy() for s in (step, -step))
    second = (next(ends) - next(ends)) / (2.0 * step)
    np.testing.assert_allclose(entry.second(tf.constant(middle)).numpy(), second, atol=1e-9)
    bends = entry.piece_range_on(middle - step, middle + step)
    assert np.all(bends[0] <= second + 1e-9) and np.all(second <= bends[1] + 1e-9)


@pytest.mark.parametrize("name", EXACT)
def test_ranges_of_values_hold_and_are_attained(name, rng):
    entry = activations.get(name)
    low, high = _intervals(rng, entry)
    least, most = (end.numpy() for end in value_range(entry, tf.constant(low), tf.constant(high)))
    values = _value(
        entry, np.clip(low + (high - low) * np.linspace(0, 1, 2001)[:, None], low, high)
    )
    slack = 1e-14 * (1.0 + np.abs(values).max(axis=0))
    assert np.all(values >= least - slack) and np.all(values <= most + slack)
    off = entry.slope * (high - low) / 2000.0 + slack
    assert np.all(values.min(axis=0) <= least + off) and np.all(values.max(axis=0) >= most - off)


def test_leaky_relu_by_hand():
    low, high = np.array([-1.0, -3.0, 0.5]), np.array([3.0, 1.0, 2.0])
    lines = relaxation(activations.get("leaky_relu(0.5)"), low, high)
    np.testing.assert_allclose(lines.lower_slope, [1.0, 0.5, 1.0], rtol=1e-14)
    np.testing.assert_allclose(lines.lower_intercept, 0.0, atol=1e-12)
    np.testing.assert_allclose(lines.upper_slope, [0.875, 0.625, 1.0], rtol=1e-14)
    np.testing.assert_allclose(lines.upper_intercept, [0.375, 0.375, 0.0], atol=1e-13)


def test_relu6_by_hand():
    relu6 = activations.get("relu6")
    lines = relaxation(relu6, np.array([4.0, 4.0]), np.array([7.0, 12.0]))
    np.testing.assert_allclose(lines.lower_slope, [2.0 / 3.0, 0.25], rtol=1e-14)  # chords
    np.testing.assert_allclose(lines.lower_intercept, [4.0 / 3.0, 3.0], rtol=1e-13)
    np.testing.assert_allclose(lines.upper_slope, [1.0, 0.0], atol=1e-14)
    np.testing.assert_allclose(lines.upper_intercept, [0.0, 6.0], atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        *("leaky_relu(inf)", "leaky_relu(nan)", "leaky_relu(1e-310)", "leaky_relu(-1e-310)"),
        *("capped_relu(0.0)", "capped_relu(-1.0)", "clip(1.0,1.0)", "clip(-inf,1.0)"),
    ],
)
def test_parameters_that_make_no_activation_are_refused(name):
    with pytest.raises(InputError, match="must be"):
        activations.get(name)


@pytest.mark.parametrize(
    "name", ["leaky_relu()", "leaky_relu(x)", "tanh(1.0)", "clip(1.0)", "leaky_relu(1.0"]
)
def test_names_without_an_activation_are_refused(name):
    with pytest.raises(InputError, match="no bounds for activation"):
        activations.get(name)


def test_each_parameter_has_a_name_of_its_own():
    slopes = [0.3, float(np.float32(0.3)), np.nextafter(0.3, 1.0)]
    names = [activations.get(f"leaky_relu({float(slope)!r})").name for slope in slopes]
    assert len(set(names)) == 3
    z = tf.constant([-1.0], tf.float64)
    assert [-activations.get(name).value(z).numpy()[0] for name in names] == slopes


@pytest.mark.parametrize("order", ["first_range_on", "piece_range_on"])
def test_a_slope_that_is_flushed_is_not_taken_for_none(order):
    """Of exponential, which has no largest slope to be relative to."""
    z = np.array([-736.0])
    low, high = getattr(activations.get("exponential"), order)(z, z)
    assert low <= np.exp(z) <= high and np.exp(z) > 0.0
