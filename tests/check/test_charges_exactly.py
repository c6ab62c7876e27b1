"""Every charge of the checker's float64 steps, held against exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from flint import arb

from keras_curv_check.activations import sigma_of
from keras_curv_check.balls import ZERO, vector
from keras_curv_check.confined import Box, minorant_left
from keras_curv_check.coupling import Coupled
from keras_curv_check.curvature import before, products
from keras_curv_check.files import Map
from keras_curv_check.inputs import Inputs
from keras_curv_check.linear import Layer
from keras_curv_check.lines import Units
from keras_curv_check.network import through
from keras_curv_check.norms import Matrix
from keras_curv_check.rounding import gamma, norms, outward, up

SEEDS = range(40)
SCALES = 1e-60, 1.0, 1e60


def exact(array):
    """The same numbers as fractions."""
    return np.vectorize(Fraction, otypes=[object])(array)


def random(rng, *shape, scale=1.0):
    """Numbers of sizes that differ by up to a thousand."""
    return scale * rng.normal(size=shape) * 10.0 ** rng.uniform(-1.5, 1.5, shape)


@pytest.mark.parametrize("scale", SCALES)
def test_roundings_are_raised(scale):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        row = random(rng, 7, scale=scale)
        assert Fraction(float(norms(row))) ** 2 >= sum(part**2 for part in exact(row))
        parts = np.abs(row)
        assert Fraction(float(up(parts.sum(), 7))) >= sum(exact(parts))
        low, high = outward(row[:3], parts[3:6])
        assert np.all(exact(low) <= exact(row[:3]) - exact(parts[3:6]))
        assert np.all(exact(high) >= exact(row[:3]) + exact(parts[3:6]))
    assert Fraction(gamma(1000)) >= Fraction(1000, 2**53 - 1000)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_products_of_balls(scale, error):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        middle, kernel = random(rng, 2, 6), random(rng, 6, 3, scale=scale)
        radius = np.abs(middle) * 10.0 ** rng.uniform(-18, -3, middle.shape) * (seed % 2)
        table = [
            [arb(*pair) for pair in zip(*both, strict=True)]
            for both in zip(middle, radius, strict=True)
        ]
        found = through(table, kernel, error * scale)
        a = exact(middle) + exact(np.where(rng.normal(size=radius.shape) > 0.0, radius, -radius))
        true, size = a @ exact(kernel), np.sqrt(np.sum(middle**2, axis=1))
        for row, values, length in zip(found, true, size, strict=True):
            off = Fraction(float(length)) * Fraction(error * scale) * Fraction(1 - 1e-9)
            for ball, value in zip(row, values, strict=True):
                reach = Fraction(float(ball.rad().upper()))
                assert abs(Fraction(float(ball.mid())) - value) + off <= reach


@pytest.mark.parametrize("scale", SCALES)
def test_matrices(scale):
    """The Frobenius norm of what a product is off by is at most its error."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        one, other, factors = random(rng, 3, 5, scale=scale), random(rng, 5, 2), random(rng, 5)
        for found, true in (
            (Matrix(one, ZERO).times(Matrix(other, ZERO)), exact(one) @ exact(other)),
            (Matrix(other, ZERO).scaled_rows(factors), exact(factors)[:, None] * exact(other)),
        ):
            off = np.sum((exact(found.middle) - true) ** 2)
            assert off <= Fraction(float(found.error.upper())) ** 2
        error = scale * 1e-3
        near = Matrix(one, arb(error)).times(Matrix(other, arb(1e-4)))
        size = [float(np.linalg.norm(each, 2)) for each in (one, other)]
        assert float(near.error) >= error * size[1] + (size[0] + error) * 1e-4
        scaled = Matrix(other, arb(1e-4)).scaled_rows(factors)
        assert float(scaled.error) >= 1e-4 * np.abs(factors).max()


@pytest.mark.parametrize("scale", SCALES)
def test_spectral_norms(scale):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        v, weights = random(rng, 3, 5, scale=scale), rng.normal(size=5)
        error = scale * 1e-3 * (seed % 2)
        off = rng.normal(size=v.shape)
        off *= error / np.linalg.norm(off, 2)
        for found, root in (
            (Matrix(v, arb(error)).norm(), np.ones(5)),
            (Matrix(v, arb(error)).norm(np.abs(weights)), np.sqrt(np.abs(weights))),
        ):
            true = np.linalg.norm((v + off) * root, 2)
            assert float(found.upper()) >= true * (1.0 - 1e-15) + error * root.max() * 0.1
            assert float(found) <= true * (1.0 + 1e-9) + 2.1 * error * root.max()
        bound = Matrix(v, arb(error)).largest(weights)
        gram = (exact(v + off) * exact(weights)) @ exact(v + off).T
        assert psd(Fraction(float(bound.upper())) * exact(np.eye(3)) - gram)


def psd(matrix):
    """Whether a matrix of fractions has no negative eigenvalue, by elimination."""
    size, matrix = len(matrix), matrix.copy()
    for k in range(size):
        if matrix[k, k] < 0 or (matrix[k, k] == 0 and any(matrix[k, k + 1 :])):
            return False
        for i in range(k + 1, size) if matrix[k, k] else ():
            matrix[i] = matrix[i] - matrix[i, k] / matrix[k, k] * matrix[k]
    return True


@pytest.mark.parametrize("scale", SCALES)
def test_intervals(scale):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        low, high = np.sort(random(rng, 2, 6, scale=scale), axis=0)
        ends = np.sort(random(rng, 6, 2), axis=1)
        corners = [exact(end) * exact(side) for end in ends.T for side in (low, high)]
        least, most = products(ends, low, high)
        assert np.all(exact(least) <= np.min(corners, axis=0))
        assert np.all(exact(most) >= np.max(corners, axis=0))
        kernel, error = random(rng, 4, 6), 1e-3 * (seed % 2)
        size = float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))) * 2.0
        found = before(Map(kernel, np.zeros(6), error, 0.0), low, high, size)
        turned = exact(kernel)
        true = np.sum(np.minimum(turned * exact(low), turned * exact(high)), axis=1)
        assert np.all(exact(found[0]) <= true - Fraction(error * size * 0.49))
        true = np.sum(np.maximum(turned * exact(low), turned * exact(high)), axis=1)
        assert np.all(exact(found[1]) >= true + Fraction(error * size * 0.49))
        small = float(np.abs(low).min()) * 1e-3
        found = before(Map(kernel, np.zeros(6), 0.0, 0.0), low, high, small)
        assert np.all(found[1] <= 1.001 * small * np.linalg.norm(kernel, axis=1))


def least_of(bend, slope, level, low, high):
    """The least value of a parabola of fractions on an interval, bend > 0."""
    at = min(max(-slope / (2 * bend), low), high)
    return (bend * at + slope) * at + level


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_coupled_units(scale):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        count = 1 + seed % 4
        high, low = np.abs(random(rng, 2, count, scale=scale)) * [[1.0], [-1.0]]
        centre = low + (high - low) * rng.uniform(size=count)
        ball, whole = (float(np.abs(random(rng, 1, scale=scale))[0]) for _ in range(2))
        others = random(rng, 3, scale=scale)
        coupled = Coupled(np.arange(count), low, high, centre, ball, whole, others)
        rows, slopes = random(rng, 2, 1, count)
        multiplier, shared = np.abs(random(rng, 2, 1, 1, scale=1.0 / scale))
        found, off = coupled.least(rows, slopes, multiplier, shared)
        half = (Fraction(multiplier[0, 0]) + Fraction(shared[0, 0])) / 2
        true = -Fraction(multiplier[0, 0]) / 2 * Fraction(ball) ** 2
        for parts in zip(rows[0], slopes[0], low, high, centre, strict=True):
            row, slope, least, most, c = map(Fraction, parts)
            below = least_of(half, -slope - 2 * half * c, half * c * c, least, Fraction(0))
            above = least_of(half, row - slope - 2 * half * c, half * c * c, Fraction(0), most)
            true += min(below, above)
        assert Fraction(found[0]) - Fraction(off[0]) <= true
        assert float(true) - found[0] <= 1e-12 * (abs(found[0]) + abs(float(true)) + off[0] / 1e-15)
        turns = random(rng, 1, 3)
        added, off = coupled.turned(turns, shared)
        mu = Fraction(shared[0, 0])
        true = -sum(exact(turns[0]) * exact(others)) - sum(exact(turns[0]) ** 2) / (2 * mu)
        true -= mu * Fraction(whole) ** 2 / 2
        assert Fraction(added[0]) - Fraction(off[0]) <= true
        assert Fraction(added[0]) + Fraction(off[0]) >= true


KINKED = ["relu", "leaky_relu(0.25)", "abs", "clip(-0.5,0.75)", "identity"]


class OneInput:
    """A layer of one input a, from `ends[0]` to `ends[1]`, all units of `KINKED`."""

    def __init__(self, seed, scale, together):
        self.rng = rng = np.random.default_rng(seed)
        self.kernel, self.bias = random(rng, 1, 5), random(rng, 5, scale=scale)
        middle, reach = scale * rng.normal(), np.abs(rng.normal())
        self.bias -= middle * self.kernel[0]  # or kinks would be far away
        self.folding = 1e-3 * (seed % 2)
        self.ends, self.middle = (middle - reach, middle + reach), Fraction(middle)
        one = Map(self.kernel, self.bias, 0.0, self.folding)
        size, units = np.array([np.abs(self.ends).max()]), Units([*map(sigma_of, KINKED)])
        centre = self.z(self.middle).astype(float)
        off = np.abs(self.z(self.middle) - exact(centre)).astype(float) * 1.001 + self.folding
        self.known = Layer(one, units, size, centre, off)
        self.known.narrow_to_image(*(np.array([end]) for end in self.ends))
        self.known.slopes()
        far = max(abs(Fraction(end) - self.middle) for end in self.ends)
        self.far = float(far) * (1.0 + 1e-15)
        length = float(np.linalg.norm(self.kernel)) * (1.0 + 1e-15)
        self.known.finish(self.far, length, np.inf, together)

    def z(self, a):
        """z without folding, exactly."""
        return exact(self.kernel[0]) * Fraction(a) + exact(self.bias)

    def inputs(self):
        return [*map(Fraction, self.ends), self.middle, self.middle + Fraction(0.3 * self.far)]


def length_of(numbers):
    """The l2 norm of fractions, rounded down."""
    return float(sum(part**2 for part in numbers)) ** 0.5 * (1.0 - 1e-15)


@pytest.mark.parametrize("scale", [1.0, 1e9])
@pytest.mark.parametrize("together", [False, True])
def test_what_is_known_of_a_layer(scale, together):
    for seed in SEEDS:
        layer = OneInput(seed, scale, together)
        known, ends = layer.known, [layer.z(end) for end in layer.ends]
        off = Fraction(layer.folding) * Fraction(99, 100)
        least, most = np.min(ends, axis=0) - off, np.max(ends, axis=0) + off
        assert np.all(exact(known.low) <= least) and np.all(exact(known.high) >= most)
        assert np.all(known.high - known.low <= (most - least).astype(float) + 1e-6 * scale + 0.01)
        centre = layer.z(layer.middle)
        for a in layer.inputs():
            moved, values = layer.z(a) - centre, image(layer.z(a))
            assert np.all(exact(known.values[0]) <= values)
            assert np.all(exact(known.values[1]) >= values)
            assert np.all(exact(known.size) >= np.abs(values))
            assert known.whole >= length_of(moved)
            assert known.after >= length_of(values - image(centre))
            assert known.ball >= length_of(exact(known.root) * moved) * (1.0 - 1e-12)
            slope = np.where(moved != 0, (values - image(centre)) / np.where(moved, moved, 1), 0)
            assert np.all(exact(known.steep) * Fraction(1 + 1e-12) >= np.abs(slope))
            room = np.abs(slope - exact(known.middle)) * (moved != 0)
            assert np.all(exact(known.root) ** 2 * Fraction(1 + 1e-9) >= room)
        around = exact(known.pre) * Fraction(1)
        sizes = np.abs(exact(layer.kernel[0])) * exact(np.abs(layer.ends)).max()
        assert np.all(around >= sizes + np.abs(exact(layer.bias)))
        assert known.folding >= layer.folding


@pytest.mark.parametrize("scale", [1.0, 1e9])
@pytest.mark.parametrize("kind", ["lines", "together", "witness"])
def test_a_step_back(scale, kind):
    """Λσ(z) + c is at least what it returns of a, exactly, at both ends and between."""
    for seed in SEEDS:
        layer, given = OneInput(seed, scale, kind != "lines"), None
        rng = layer.rng
        rows, constants = random(rng, 1, 5), random(rng, 1, scale=scale)
        if kind == "witness":
            both = np.abs(random(rng, 2, 1, 1, scale=1.0 / layer.far))
            given = random(rng, 1, 5) * (rng.normal(size=5) > -0.5), random(rng, 1, 5), *both
        found, level = layer.known.step(rows, constants, given)
        against = exact(np.sign(rows[0])) * Fraction(layer.folding) / 3  # as far as folding goes
        for a in layer.inputs():
            for z in (layer.z(a), layer.z(a) - against):
                true = sum(exact(rows[0]) * image(z)) + Fraction(constants[0])
                assert true >= Fraction(found[0, 0]) * a + Fraction(level[0])


def image(z):
    """σ of each of `KINKED`, exactly."""
    relu, leaky, size, clip, same = z
    return np.array(
        [
            max(relu, 0),
            max(leaky, leaky / 4),
            abs(size),
            min(max(clip, Fraction(-1, 2)), Fraction(3, 4)),
            same,
        ],
        dtype=object,
    )


@pytest.mark.parametrize("confined", [False, True])
def test_minorants_and_linear_functions_on_what_can_be_reached(confined):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        x, radius = rng.uniform(size=3), 10.0 ** rng.uniform(-2, 1)
        room = None
        moves = rng.normal(size=(3000, 3))
        moves *= (
            radius
            * rng.uniform(size=(3000, 1)) ** 0.1
            / np.linalg.norm(moves, axis=1, keepdims=True)
        )
        if confined:
            room = Box.of({"low": [0.0], "high": [1.0]}, 3).room(vector(x))
            moves = np.clip(x + moves, 0.0, 1.0) - x
        row, moved, kappa = rng.normal(size=3), 0.2 * rng.normal(size=3), abs(rng.normal())
        away = moves - moved
        values = 0.5 + away @ row - kappa / 2.0 * np.sum(away**2, axis=1)
        args = arb(0.5), vector(row), vector(moved), arb(kappa), arb(radius), room
        found = float(minorant_left(*args))
        assert found <= values.min() + 1e-12
        if not confined:
            steepest = row + kappa * moved
            worst = -radius * steepest / np.linalg.norm(steepest) - moved
            assert found == pytest.approx(0.5 + worst @ row - kappa / 2.0 * worst @ worst)
        inputs, rows = Inputs(x, arb(radius), room), rng.normal(size=(4, 3))
        fall = -(moves @ rows.T).min(axis=0)
        assert np.all(inputs.falls(rows) >= fall - 1e-12)
        linear = [float(inputs.least(0.25, one)) for one in rows]
        assert np.all(linear <= x @ rows.T + 0.25 - fall + 1e-12)
        assert np.all(inputs.falls(rows) <= 1.35 * fall + 1e-9)
