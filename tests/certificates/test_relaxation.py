"""No activation leaves its two lines, down to the last digits; and no lines are much closer."""

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from exact_activations import KINKED, USUAL
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_curv.certificates.interval_bounds import Box
from keras_curv.certificates.linear.bounds.relaxation import POINTS, relaxation
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation, get

mpmath.mp.dps = 50
EXACT = USUAL | KINKED
NAMES = list(EXACT)


def test_rows_of_a_large_array_have_the_lines_that_they_have_alone(rng):
    low, at = rng.standard_normal((40, 1000)), rng.random((40, 1000))
    high = low + 3.0 * rng.random((40, 1000))
    at = low + at * (high - low)
    together = relaxation(ACTIVATIONS["sigmoid"], low, high, at)
    for row in (0, 8, 39):
        alone = relaxation(ACTIVATIONS["sigmoid"], low[row], high[row], at[row])
        for some, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(some[row], one)


def _value(entry, z):
    return entry.value(tf.constant(z, tf.float64)).numpy()


def _intervals(rng, kinks, count=400):
    centre = rng.standard_normal(count) * 10.0 ** rng.uniform(-3, 2, count)
    half = 10.0 ** rng.uniform(-17, 2, count)
    half[::10] = 0.0
    for place, kink in enumerate(kinks or (0.0,)):  # one end there
        centre[1 + 2 * place :: 10] = kink + half[1 + 2 * place :: 10]
        centre[2 + 2 * place :: 10] = kink - half[2 + 2 * place :: 10]
    return centre - half, centre + half


def _gaps(entry, lines, z):
    """How far σ is inside of its lines at the points z, `(intervals, points)`."""
    value = _value(entry, z)
    s, c, t, d = (part[:, None] for part in lines)
    return value - (s * z + c), (t * z + d) - value


@pytest.mark.parametrize("name", NAMES)
def test_the_tightest_points_are_inside_in_exact_arithmetic(name, rng):
    entry = get(name)
    low, high = _intervals(rng, entry.kinks)
    where = rng.uniform(size=low.shape)
    for at in (None, low + where * (high - low)):
        lines = relaxation(entry, low, high, at)
        z = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, 1501)
        kinks = np.broadcast_to(entry.kinks, (len(low), len(entry.kinks)))
        z = np.concatenate([z, high[:, None], low[:, None], kinks], axis=1)
        z = np.clip(z, low[:, None], high[:, None])
        below, above = _gaps(entry, lines, z)
        for gap, slope, intercept, sign in (
            (below, lines.lower_slope, lines.lower_intercept, 1),
            (above, lines.upper_slope, lines.upper_intercept, -1),
        ):
            size = 1.0 + np.abs(z).max(axis=1)
            assert np.all(gap.min(axis=1) >= -1e-12 * size)
            for row in range(0, len(low), 3):
                k, c = mpmath.mpf(float(slope[row])), mpmath.mpf(float(intercept[row]))
                for point in (z[row, gap[row].argmin()], *z[row, 1501:]):
                    point = mpmath.mpf(float(point))
                    assert sign * (EXACT[name](point) - (k * point + c)) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_close(name, rng):
    """At the chosen point, hardly worse than the best line there, which a fine hull shows."""
    entry = get(name)
    centre, half = rng.uniform(-4.0, 7.0, 60), rng.uniform(0.05, 5.0, 60)
    low, high = centre - half, centre + half
    z = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, 401)
    value = _value(entry, z)
    for share in (0.5, 0.1, 0.83):
        at = low + share * (high - low)
        lines = relaxation(entry, low, high, None if share == 0.5 else at)
        middle = int(round(share * 400))
        left, right = np.arange(middle), np.arange(middle + 1, 401)
        i, j = np.meshgrid(left, right, indexing="ij")
        weight = (j - middle) / (j - i)
        chords = value[:, i] * weight + value[:, j] * (1.0 - weight)
        top = np.maximum(chords.max(axis=(1, 2)), value[:, middle])
        bottom = np.minimum(chords.min(axis=(1, 2)), value[:, middle])
        # Linear interpolation between POINTS points: the worst loss is (width/31)² sup|σ″|/8,
        # as much again for the slope.
        loss = 2.0 * ((high - low) / (POINTS - 1)) ** 2 / 8.0
        loss *= np.exp(high) if name == "exponential" else np.minimum(entry.bend, 2.0)
        if entry.kinks:  # next to which the grid misses something
            loss += 2.0 * entry.slope * (high - low) / 400.0
        if name == "relu":
            loss = 0.0 * loss
            bottom = np.where(at > 0.0, np.minimum(at, bottom), np.minimum(0.0, bottom))
        ours = lines.upper_slope * at + lines.upper_intercept
        assert np.all(ours <= top + loss + 1e-12)
        ours = lines.lower_slope * at + lines.lower_intercept
        assert np.all(ours >= bottom - loss - 1e-12)


def test_chord_and_tangent_of_softplus():
    low, high = np.array([-1.0, 2.0]), np.array([3.0, 2.5])
    lines = relaxation(ACTIVATIONS["softplus"], low, high)
    ends = np.logaddexp(0.0, low), np.logaddexp(0.0, high)
    chord = (ends[1] - ends[0]) / (high - low)
    np.testing.assert_allclose(lines.upper_slope, chord, rtol=1e-13)
    np.testing.assert_allclose(lines.upper_intercept, ends[0] - chord * low, rtol=1e-12)
    middle = (low + high) / 2.0
    np.testing.assert_allclose(lines.lower_slope, 1.0 / (1.0 + np.exp(-middle)), atol=1e-3)


def test_relu_by_hand():
    low, high = np.array([-1.0, -3.0, -3.0, 0.5, 0.0]), np.array([3.0, 1.0, -1.0, 2.0, 0.0])
    lines = relaxation(ACTIVATIONS["relu"], low, high)
    np.testing.assert_array_equal(lines.lower_slope[:4], [1.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(lines.lower_intercept, 0.0)
    np.testing.assert_allclose(lines.upper_slope[:4], [0.75, 0.25, 0.0, 1.0])
    np.testing.assert_allclose(lines.upper_intercept, [0.75, 0.75, 0.0, 0.0, 0.0], rtol=1e-14)
    assert relaxation(ACTIVATIONS["relu"], -1.0, 3.0, -0.5).lower_slope == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_unbounded_and_huge_intervals(name):
    entry = get(name)
    ends = [-np.inf, -1e308, -1e200, -5.0, 0.0, 2.0, 5.0, 1e200, 1e308, np.inf]
    low, high = np.array([(a, b) for i, a in enumerate(ends) for b in ends[i:]]).T
    lines = relaxation(entry, low, high)
    assert np.all(np.isfinite(lines.lower_slope) & np.isfinite(lines.upper_slope))
    assert not any(np.isnan(part).any() for part in lines)
    z = np.concatenate([[-1e300, -1e150, 1e150, 1e300], np.linspace(-40.0, 40.0, 801)])
    for row, (a, b) in enumerate(zip(low, high, strict=True)):
        inside = z[(z >= a) & (z <= b)]
        row_lines = type(lines)(*(part[row : row + 1] for part in lines))
        below, above = _gaps(entry, row_lines, inside[None])
        slack = 1e-12 * np.abs(inside)
        assert not np.any(below < -slack) and not np.any(
            above < -slack
        )  # NaN, if both are infinite
        assert np.all(row_lines.lower_intercept < np.inf)
    line = relaxation(entry, -np.inf, np.inf)
    if name in ("sigmoid", "tanh", "sin"):
        assert line.upper_intercept == pytest.approx(1.0, abs=1e-13)
    if name == "sin":
        assert line.lower_intercept == pytest.approx(-1.0, abs=1e-13)
    if name in ("softplus", "sigmoid", "relu"):
        assert line.lower_intercept == pytest.approx(0.0, abs=1e-300)
    if name == "relu6" or name.startswith("capped_relu"):
        top = float(EXACT[name](mpmath.mpf(100)))
        assert line.upper_intercept == pytest.approx(top, rel=1e-13)


@pytest.mark.parametrize(("name", "least"), [("sin", -1.0), ("silu", -0.27846454), ("abs", 0.0)])
def test_no_line_is_far_below_the_least_value_on_a_wide_interval(name, least):
    """Where σ falls somewhere, and the points that it is looked at are far apart."""
    low, high = np.array([-40.0, -1e3, -1e6]), np.array([30.0, 5e3, 1e6])
    lines = relaxation(get(name), low, high)
    middle = lines.lower_slope * (low + high) / 2.0 + lines.lower_intercept
    assert np.all(middle >= least - 1e-8)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    ends=st.tuples(st.floats(-60.0, 60.0), st.floats(-60.0, 60.0)),
    at=st.floats(-60.0, 60.0),
    share=st.floats(0.0, 1.0),
)
def test_any_interval_any_point(name, ends, at, share):
    low, high = min(ends), max(ends)
    lines = relaxation(get(name), low, high, at)
    z = mpmath.mpf(min(max(low + share * (high - low), low), high))
    value = EXACT[name](z)
    slope, intercept, upper_slope, upper_intercept = (mpmath.mpf(float(part)) for part in lines)
    assert slope * z + intercept <= value <= upper_slope * z + upper_intercept


@pytest.mark.parametrize("name", ["silu", "mish"])
def test_what_an_activation_flushes_is_charged(name):
    """z σ′(z) with a factor below 2⁻¹⁰²² is computed as 0, but may be 700 times as much."""
    z = np.array([[-708.5]])
    sigma, exact = get(name), z * np.exp(z)
    assert sigma.value(tf.constant(z)).numpy() == 0.0 > exact
    for low, high in ((z, z), (z - 1e-9, z), (z, z + 1e-9)):
        lines, box = relaxation(sigma, low, high), Box.of_values(sigma, low, high)
        assert lines.lower_slope * z + lines.lower_intercept <= exact
        assert box.centre - box.half <= exact


def test_what_is_refused():
    jump = Activation("step", tf.sign, None, None, (0.0, np.inf), (-np.inf, np.inf), (), ())
    with pytest.raises(InputError, match="'step'"):
        relaxation(jump, 0.0, 1.0)
    for low, high in ((1.0, 0.0), (np.nan, 1.0), (0.0, np.nan)):
        with pytest.raises(InputError, match="low ≤ high"):
            relaxation(ACTIVATIONS["tanh"], low, high)
