"""The search finds the last positive radius in few probes, and returns none without a probe."""

import numpy as np
import pytest

from keras_curv.numerics.bracket import COARSE, FINE, grid_below, largest_radius, on_grid


class Recorder:
    """A bound as a function of the radius, one for each example, with what was asked of it."""

    def __init__(self, function):
        self.function = function
        self.positive, self.probes = {}, {}

    def __call__(self, rows, radius):
        value = self.function(rows, radius)
        for row, at, v in zip(rows, radius, value, strict=True):
            self.probes[row] = self.probes.get(row, 0) + 1
            if v > 0.0:
                self.positive[row] = max(self.positive.get(row, 0.0), at)
        return value


ROOT = np.array([1e-6, 0.3, 1.0, 7.0, 1e9])
SHAPES = {
    "line": (lambda r: 1.0 - r, 6),
    "parabola": (lambda r: 1.0 - 0.3 * r - 0.7 * r**2, 11),
    "steep": (lambda r: 1.0 - 0.01 * r - 0.99 * r**12, 24),
    "convex": (lambda r: np.exp(-3.0 * r) - np.exp(-3.0), 16),
    "jump": (lambda r: np.where(r < 1.0, 1.0, -np.inf), 30),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [0.01, 0.7, 1.2, 30.0])
def test_roots(shape, factor):
    function, most = SHAPES[shape]
    recorder = Recorder(lambda rows, radius: function(radius / ROOT[rows]))
    zeros = np.zeros(5)
    radius = largest_radius(recorder, function(zeros), zeros, factor * ROOT, ROOT / 50.0)
    assert np.all(radius <= ROOT * (1.0 + 1e-12)) and np.all(radius >= ROOT * 0.9989)
    assert np.all([recorder.positive[row] == radius[row] for row in range(5)])
    assert max(recorder.probes.values()) <= most


@pytest.mark.parametrize("shape", [*SHAPES, "tail"])
@pytest.mark.parametrize("factor", [0.01, 0.7, 1.2, 30.0])
def test_a_coarse_search_ends_within_its_gap_in_fewer_probes(shape, factor):
    """Where little is left by the chord; but not along a tail, of which the chord tells nothing."""
    tail = (lambda r: np.exp(-9.0 * r) - np.exp(-9.0), 0)
    function, _ = {**SHAPES, "tail": tail}[shape]
    recorders = []
    for gap in (FINE, COARSE):
        recorders.append(Recorder(lambda rows, radius: function(radius / ROOT[rows])))
        args = function(np.zeros(5)), np.zeros(5), factor * ROOT, ROOT / 50.0
        radius = largest_radius(recorders[-1], *args, gap=gap)
        assert np.all(radius <= ROOT * (1.0 + 1e-12)) and np.all(
            radius >= ROOT * (1.0 - 1.1e-3 * gap)
        )
    fine, coarse = (sum(recorder.probes.values()) for recorder in recorders)
    assert coarse <= fine and (coarse < fine or shape != "line")


def test_a_search_begins_between_what_is_known_and_the_guess():
    asked = []

    def bound(rows, radius):
        asked.append(radius[0])
        return 1.0 - 0.3 * radius - 0.7 * radius**2

    one = np.ones(1)
    radius = largest_radius(bound, one, 0.25 * one, 4.0 * one, one / 9.0, gap=COARSE)
    assert asked[0] == pytest.approx(1.0, rel=1e-3) and radius[0] >= 0.9967
    assert len(asked) <= 3
    # What is not above the aim is worth nothing: one bound there ends it.
    asked.clear()
    assert largest_radius(bound, one, 0.25 * one, one, one / 9.0, aim=2.0 * one)[0] == 0.25
    assert len(asked) == 1 and asked[0] > 2.0


@pytest.mark.parametrize("known", [0.0, 0.9, 0.97])
def test_a_coarse_search_is_not_ended_by_what_is_only_known(known):
    """Two radii beyond a bend lead below what is known, of which the bound has told nothing."""
    recorder = Recorder(lambda rows, r: 1.0 - np.where(r < 1.1, r**3, 1.331 * (r / 1.1) ** 0.5))
    one = np.ones(1)
    args = one, known * one, 3.4 * one, 0.1 * one
    radius = largest_radius(recorder, *args, gap=COARSE)[0]
    assert 0.9967 <= radius <= 1.0 and recorder.probes[0] <= 9


def test_a_guess_that_is_far_off():
    recorder = Recorder(lambda rows, radius: np.where(radius < ROOT[rows], 1.0, -np.inf))
    radius = largest_radius(recorder, np.ones(5), np.zeros(5), np.full(5, np.inf), ROOT / 1e3)
    assert np.all((radius <= ROOT) & (radius >= ROOT * 0.9989))


@pytest.mark.parametrize("gap", [FINE, COARSE])
@pytest.mark.parametrize("guess", [np.inf, 1e100, 1e3])
def test_a_bound_that_is_flat_around_the_centre_is_searched_to_its_end(guess, gap):
    """As where no unit moves at x: far out it is a line through the floor."""
    recorder = Recorder(lambda rows, radius: 1.0 - np.maximum(radius - 1.0, 0.0) / 0.3)
    one = np.ones(1)
    found = largest_radius(recorder, one, 0.0 * one, guess * one, 0.3 * one, gap=gap)
    assert 1.3 * (1.0 - 1.01e-3 * gap) <= found[0] <= 1.3


def test_what_is_known_stays():
    recorder = Recorder(lambda rows, radius: 1.0 - radius)
    known = np.array([0.0, 0.5, 2.0, 0.9999])
    radius = largest_radius(recorder, np.ones(4), known, np.ones(4), np.ones(4) / 9.0)
    assert np.all(radius >= known) and radius[2] == 2.0 and recorder.probes[2] == 1
    assert np.all(radius[:2] >= 0.9989) and np.all(radius[:2] <= 1.0)


def test_what_is_known_stays_if_nothing_is_found_above_the_aim():
    one = np.ones(1)
    args = one, 1.26 * one, 0.1 * one, 0.01 * one
    assert largest_radius(lambda rows, r: 1.0 - r, *args, aim=np.inf * one)[0] == 1.26


def test_nothing_is_searched_where_nothing_can_be_found():
    def never(rows, radius):
        raise AssertionError

    margin = np.array([0.0, -1.0, np.nan, np.inf])
    assert not largest_radius(never, margin, np.zeros(4), np.ones(4), np.ones(4)).any()


@pytest.mark.parametrize("value", [-np.inf, np.nan, -1.0])
def test_nothing_proved(value):
    recorder = Recorder(lambda rows, radius: np.full(len(rows), value))
    assert largest_radius(recorder, np.ones(1), np.zeros(1), np.ones(1), np.ones(1) / 2) == 0.0


def test_a_margin_that_never_changes():
    recorder = Recorder(lambda rows, radius: np.ones(len(rows)))
    radius = largest_radius(recorder, np.ones(1), np.zeros(1), np.ones(1), np.ones(1) / 2)
    assert radius[0] > 1e60 and recorder.probes[0] < 20


def test_a_bound_that_touches_zero_is_never_asked_at_nan():
    known, guess, aim = 0.1555448199784191, 0.3571907439619477, 0.8720165570689934

    def bound(rows, radius):  # as of a ball: where no rival is in reach, infinite
        return np.where(radius > 0.0, np.maximum(1.0 - radius, 0.0) ** 2, np.inf)

    one = np.ones(1)
    radius = largest_radius(bound, one, known * one, guess * one, guess / 10.0 * one, aim=aim * one)
    assert 0.9989 <= radius[0] <= 1.0


def test_a_floor_that_is_far_too_high_costs_little():
    recorder = Recorder(lambda rows, radius: 1.0 - (radius / 40.0) ** 6)
    one = np.ones(1)
    radius = largest_radius(recorder, one, 0.0 * one, 7e11 * one, 5e9 * one)
    assert 39.95 <= radius[0] <= 40.0 and recorder.probes[0] < 40


def test_a_guess_that_is_unknown_does_not_lead_below_the_floor():
    recorder = Recorder(lambda rows, radius: 1e-250 - 2e-308 * radius)
    one = np.ones(1)
    radius = largest_radius(recorder, 1e-250 * one, 0.0 * one, np.inf * one, 5e57 * one)
    assert 0.9989 * 5e57 <= radius[0] <= 5e57 and recorder.probes[0] < 20


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [0.003, 0.4, 0.999, 1.001, 5.0])
def test_what_is_found_does_not_depend_on_what_is_known(shape, factor, rng):
    function, _ = SHAPES[shape]
    zeros, args = np.zeros(5), (factor * ROOT, ROOT / 70.0)

    def bound(rows, radius):
        return function(radius / ROOT[rows])

    alone = largest_radius(bound, function(zeros), zeros, *args)
    for _ in range(5):
        known = np.where(rng.random(5) < 0.5, 0.0, ROOT * rng.uniform(0.2, 1.0, 5))
        radius = largest_radius(bound, function(zeros), known, *args)
        np.testing.assert_array_equal(radius, np.maximum(alone, known))


def test_the_grid():
    unit = np.array([1e-90, 0.3, 7.0])
    for point in (-5000.0, -1.0, 0.0, 3.0, 901.0):
        radius = on_grid(np.full(3, point), unit)
        assert np.all(grid_below(radius, unit) == point)
        assert np.all(grid_below(np.nextafter(radius, 0.0), unit) == point - 1.0)
    assert np.all(grid_below(np.zeros(3), unit) == -np.inf)


@pytest.mark.parametrize("guess", [1e-9, 0.3, 1e12])
def test_a_bound_that_stays_positive_ends_at_the_same_last_radius(guess):
    ones, known = np.ones(6), np.array([0.0, 1e-7, 0.9, 7.0, 1e5, 1e60])
    radius = largest_radius(lambda rows, radius: ones[rows], ones, known, guess * ones, ones)
    assert np.all(radius == radius[0]) and 0.9989e100 <= radius[0] <= 1e100


@pytest.mark.parametrize("power", [1.5, 1.8, 2.2])
@pytest.mark.parametrize("floor", [1e-9, 10**-8.5])
def test_a_search_that_has_crept_up_does_not_leap(power, floor):
    """Three positive bounds in a row, each nearer to the zero: the fourth radius is just beyond."""
    asked = []

    def bound(rows, radius):
        asked.append(float(radius[0]))
        return 1.0 - (radius / 16.0 + (1.0 - 1.0 / 16.0) * radius**power)

    one = np.ones(1)
    radius = largest_radius(bound, one, 0.0 * one, 16.0 * one, floor * one)
    assert 0.999 <= radius[0] <= 1.0
    assert sum(r <= 1.0 for r in asked) >= 3 and max(asked) < 1.02
