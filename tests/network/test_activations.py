"""σ, σ′, σ″ against 50 digits, and the ranges against samples."""

import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.numerics.rounding import ACTIVATION_ULPS, TINY, UNIT

mpmath.mp.dps = 50
ONE = mpmath.mpf(1)


def _logistic(z):
    return ONE / (ONE + mpmath.exp(-z))


def _logistic_first(z):
    return _logistic(z) * _logistic(-z)


def _logistic_second(z):
    return _logistic_first(z) * (_logistic(-z) - _logistic(z))


# The constants of gelu, as float32 has them.
C, K, A = (mpmath.mpf(v) for v in (0.7071067690849304, 0.7978845834732056, 0.044714998453855515))
ROOT_PI = mpmath.sqrt(mpmath.pi)


def _twice(z):
    """2u and its derivatives, where gelu is z sigmoid(2u)."""
    return 2 * K * (z + A * z**3), 2 * K * (1 + 3 * A * z * z), 12 * K * A * z


def _gate(z):
    """The first two derivatives of sigmoid(2u)."""
    u, first, second = _twice(z)
    return (
        _logistic_first(u) * first,
        _logistic_second(u) * first**2 + _logistic_first(u) * second,
    )


def _mish_gate(z):
    """The first two derivatives of tanh(softplus(z)) = 1 − 2/(1 + (1 + e^z)²)."""
    e = mpmath.exp(z)
    d = 1 + (1 + e) ** 2
    first = 4 * e * (1 + e) / d**2
    return first, first * (1 + e / (1 + e) - 4 * e * (1 + e) / d)


_ELU = (
    lambda z: z if z > 0 else mpmath.expm1(z),
    lambda z: ONE if z > 0 else mpmath.exp(z),
    lambda z: mpmath.mpf(0) if z >= 0 else mpmath.exp(z),
)
EXACT = {
    "softplus": (lambda z: mpmath.log1p(mpmath.exp(z)), _logistic, _logistic_first),
    "sigmoid": (_logistic, _logistic_first, _logistic_second),
    "tanh": (
        mpmath.tanh,
        lambda z: mpmath.sech(z) ** 2,
        lambda z: -2 * mpmath.tanh(z) * mpmath.sech(z) ** 2,
    ),
    "silu": (
        lambda z: z * _logistic(z),
        lambda z: _logistic(z) + z * _logistic_first(z),
        lambda z: 2 * _logistic_first(z) + z * _logistic_second(z),
    ),
    "gelu": (
        lambda z: z * mpmath.erfc(-C * z) / 2,
        lambda z: mpmath.erfc(-C * z) / 2 + C * z * mpmath.exp(-((C * z) ** 2)) / ROOT_PI,
        lambda z: 2 * C / ROOT_PI * (1 - (C * z) ** 2) * mpmath.exp(-((C * z) ** 2)),
    ),
    "gelu_tanh": (
        lambda z: z * _logistic(_twice(z)[0]),
        lambda z: _logistic(_twice(z)[0]) + z * _gate(z)[0],
        lambda z: 2 * _gate(z)[0] + z * _gate(z)[1],
    ),
    "mish": (
        lambda z: z * mpmath.tanh(mpmath.log1p(mpmath.exp(z))),
        lambda z: mpmath.tanh(mpmath.log1p(mpmath.exp(z))) + z * _mish_gate(z)[0],
        lambda z: 2 * _mish_gate(z)[0] + z * _mish_gate(z)[1],
    ),
    "elu": _ELU,
    "celu": _ELU,
    "softsign": (
        lambda z: z / (1 + abs(z)),
        lambda z: (1 + abs(z)) ** -2,
        lambda z: -2 * mpmath.sign(z) * (1 + abs(z)) ** -3,
    ),
    "log_sigmoid": (
        lambda z: -mpmath.log1p(mpmath.exp(-z)),
        lambda z: _logistic(-z),
        lambda z: -_logistic_first(z),
    ),
    "tanh_shrink": (
        lambda z: z - mpmath.tanh(z),
        lambda z: mpmath.tanh(z) ** 2,
        lambda z: 2 * mpmath.tanh(z) * mpmath.sech(z) ** 2,
    ),
    "squareplus": (
        lambda z: 2 / (mpmath.sqrt(z * z + 4) - z),
        lambda z: (1 + z / mpmath.sqrt(z * z + 4)) / 2,
        lambda z: 2 * (z * z + 4) ** mpmath.mpf(-1.5),
    ),
    "sin": (mpmath.sin, mpmath.cos, lambda z: -mpmath.sin(z)),
    "sparse_plus": (
        lambda z: mpmath.mpf(0) if z <= -1 else z if z >= 1 else (z + 1) ** 2 / 4,
        lambda z: mpmath.mpf(0) if z <= -1 else ONE if z >= 1 else (z + 1) / 2,
        lambda z: ONE / 2 if abs(z) < 1 else mpmath.mpf(0),
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
    deep = np.linspace(700.0, 750.0, 101)  # where exp underflows
    turns = np.pi * np.array([0.5, 1.0, 2.0, 3.0, 11.0, 1e3, 1e6, 1e15])  # where a sine cancels
    half = np.concatenate([magnitudes, fine, edges, saturating, deep, turns])
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
    # Factors below TINY may be flushed, and then be multiplied by z.
    assert np.all(error <= unit * (size + entry.value_floor) + 1024.0 * TINY)
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
    z = np.linspace(low, high, 201)
    if low < 0.0 < high:  # where σ″ may jump
        z = np.sort([*z, max(-1e-11, low), min(1e-11, high)])
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
    entry = activations.get(name)
    for index, (low, high) in enumerate([entry.first_range, entry.second_range]):
        exact = EXACT[name][1 + index]
        extrema = (entry.first_extrema, entry.second_extrema)[index]
        points = [*np.linspace(-40.0, 40.0, 1001), *extrema, -1e-9, 1e-9, -1e5, 1e5]
        values = [exact(mpmath.mpf(float(v))) for v in points]
        assert low <= min(values) and max(values) <= high
        # 1e-9: limits at ±∞ of softsign and squareplus, and σ″ next to a jump.
        assert high - max(values) <= 2e-8 and min(values) - low <= 2e-8


@pytest.mark.parametrize("name", NAMES)
def test_ranges_on_the_line_are_those_of_the_literature(name):
    s, t = 1 / (6 * math.sqrt(3)), 4 / (3 * math.sqrt(3))
    first, second = {
        "softplus": ((0, 1), (0, 0.25)),
        "sigmoid": ((0, 0.25), (-s, s)),
        "tanh": ((0, 1), (-t, t)),
        "silu": ((-0.0998393201, 1.0998393201), (-0.0369143732, 0.5)),
        "gelu": ((-0.1289041452, 1.1289041452), (-0.1079819330, 0.7978845608)),
        "gelu_tanh": ((-0.1289930687, 1.1289930687), (-0.1079135159, 0.7978845608)),
        "mish": ((-0.1125261224, 1.0884981613), (-0.0590333570, 0.6442046372)),
        "elu": ((0, 1), (0, 1)),
        "celu": ((0, 1), (0, 1)),
        "softsign": ((0, 1), (-2, 2)),
        "log_sigmoid": ((0, 1), (-0.25, 0)),
        "tanh_shrink": ((0, 1), (-t, t)),
        "squareplus": ((0, 1), (0, 0.25)),
        "sparse_plus": ((0, 1), (0, 0.5)),
        "sin": ((-1, 1), (-1, 1)),
    }[name]
    entry = activations.get(name)
    # The gelus differ in their eighth digit, see the table; others by outward rounding.
    allowed = 5e-8 if name.startswith("gelu") else 1e-10
    assert entry.first_range == pytest.approx(first, abs=allowed)
    assert entry.second_range == pytest.approx(second, abs=allowed)


class Jet:
    """Taylor coefficients up to order 4 as intervals, `[low, high]` arrays; outward by 1e-13."""

    def __init__(self, *coefficients):
        self.coefficients = coefficients

    @staticmethod
    def _product(a, b):
        ends = np.stack([x * y for x in a for y in b])
        low, high = ends.min(axis=0), ends.max(axis=0)
        return low - 1e-13 * abs(low) - 1e-300, high + 1e-13 * abs(high) + 1e-300

    @staticmethod
    def _sum(terms):
        low, high = (sum(term[i] for term in terms) for i in (0, 1))
        slack = 1e-13 * sum(np.maximum(abs(term[0]), abs(term[1])) for term in terms)
        return low - slack, high + slack

    def __add__(self, other):
        other = self._as_jet(other)
        return Jet(*map(self._sum, zip(self.coefficients, other.coefficients, strict=True)))

    def _as_jet(self, other):
        zero = 0.0 * self.coefficients[0][0]
        constant = other if isinstance(other, Jet) else [(other + zero,) * 2] + [(zero, zero)] * 4
        return constant if isinstance(other, Jet) else Jet(*constant)

    def __mul__(self, other):
        a, b = self.coefficients, self._as_jet(other).coefficients
        return Jet(
            *(self._sum([self._product(a[i], b[k - i]) for i in range(k + 1)]) for k in range(5))
        )

    def exp(self):
        a = self.coefficients
        result = [(np.exp(a[0][0]) * (1.0 - 1e-13), np.exp(a[0][1]) * (1.0 + 1e-13))]
        for k in range(1, 5):
            terms = [
                self._product((i / k * a[i][0], i / k * a[i][1]), result[k - i])
                for i in range(1, k + 1)
            ]
            result.append(self._sum(terms))
        return Jet(*result)

    def reciprocal(self):
        """Of a positive function."""
        a = self.coefficients
        inverse = (1.0 / a[0][1] * (1.0 - 1e-13), 1.0 / a[0][0] * (1.0 + 1e-13))
        result = [inverse]
        for k in range(1, 5):
            total = self._sum([self._product(a[i], result[k - i]) for i in range(1, k + 1)])
            result.append(self._product((-total[1], -total[0]), inverse))
        return Jet(*result)


def _silu_jet(z):
    return z * ((z * -1.0).exp() + 1.0).reciprocal()


def _gelu_tanh_jet(z):
    return z * (((z + z * z * z * float(A)) * (-2.0 * float(K))).exp() + 1.0).reciprocal()


def _mish_jet(z):
    e = z.exp() + 1.0
    return z * ((e * e + 1.0).reciprocal() * -2.0 + 1.0)


@pytest.mark.parametrize(
    ("name", "jet", "far"),
    [("silu", _silu_jet, 40.0), ("gelu_tanh", _gelu_tanh_jet, 9.0), ("mish", _mish_jet, 40.0)],
)
def test_there_are_no_other_extrema(name, jet, far):
    """Interval subdivision: σ″ and σ‴ have simple roots at the listed extrema, and no others.

    Beyond `far`, |σ″| and the distance of σ′ to its limit are below `100 far² e^(−far)`, or e^(−66)
    for gelu: less than 1e-14, which the outward rounding of ranges covers.
    """
    entry = activations.get(name)
    width = 1.0 / 4096.0
    low = np.arange(-far, far, width)
    zero, one = np.zeros_like(low), np.ones_like(low)
    z = Jet((low, low + width), (one, one), *[(zero, zero)] * 3)
    coefficients = jet(z).coefficients
    for order, extrema in ((2, entry.first_extrema), (3, entry.second_extrema)):
        below, above = coefficients[order]
        undecided = (below <= 0.0) & (above >= 0.0)
        next_below, next_above = coefficients[order + 1]
        simple = (next_below > 0.0) | (next_above < 0.0)
        assert np.all(simple[undecided])
        # Runs of undecided intervals: one root in each, as the next derivative has one sign there.
        starts = np.flatnonzero(undecided & ~np.roll(undecided, 1))
        assert len(starts) == len(extrema)
        exact = EXACT[name][order - 1]
        for start, at in zip(starts, sorted(extrema), strict=True):
            end = start + np.flatnonzero(~undecided[start:])[0]
            assert low[start] <= at <= low[end]
            # The derivative of σ^(order−1) changes sign at the number that is listed.
            step = mpmath.mpf(10) ** -12
            at = mpmath.mpf(at)
            middle = exact(at)
            assert (exact(at - step) - middle) * (exact(at + step) - middle) > 0


@pytest.mark.parametrize("name", NAMES)
def test_ranges_on_intervals_hold_and_are_tight(name, rng):
    centre, width = 4.0 * rng.standard_normal(10), 5.0 * rng.random(10) ** 2
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
        # A point: only the outward rounding is left; at a jump, both limits.
        jumps = (at == 0.0) & (name in ("elu", "celu", "softsign"))
        assert np.all((top - bottom <= 1e-13) | jumps)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (np.nan, 1.0), (0.0, np.nan)])
def test_an_empty_interval_is_refused(ends):
    with pytest.raises(InputError, match="low ≤ high"):
        activations.get("tanh").first_range_on([0.0, ends[0]], [1.0, ends[1]])


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(InputError, match="'hard_shrink'.*softplus"):
        activations.get("hard_shrink")


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


@pytest.mark.parametrize("name", ["softplus", "tanh", "relu"])
def test_an_interval_may_be_two_numbers(name):
    low, high = activations.get(name).first_range_on(0.0, 1.0)
    assert np.shape(low) == np.shape(high) == () and low < high
