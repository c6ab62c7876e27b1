"""The lemma of units that are bounded together, in their intervals and two balls."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from keras_curv.certificates.linear.bounds.coupling import coupling_of
from keras_curv.network.activations import ACTIVATIONS, get
from keras_curv.numerics.rows import row_norms

RELU = ACTIVATIONS["relu"]


@pytest.fixture(autouse=True)
def _as_in_a_search():
    """Numbers that overflow prove nothing, and are no error."""
    with np.errstate(all="ignore"):
        yield


def draw_coupling(rng, count, width, scale=1.0):
    low, high = (
        -scale * rng.exponential(size=(count, width)),
        scale * rng.exponential(size=(count, width)),
    )
    centre = low + (high - low) * rng.uniform(size=low.shape)
    ball = 0.3 * np.linalg.norm(high - low, axis=1, keepdims=True) * rng.uniform(size=(count, 1))
    whole = ball * rng.uniform(1.0, 2.0, (count, 1))
    return coupling_of(RELU, low, high, centre, np.zeros((count, 1)), ball, whole)


def points_of(rng, coupling, count):
    """Points of intervals and ball, `(count, n, N)`; many at the ends of both."""
    shape = (count, *coupling.low.shape)
    step = rng.standard_normal(shape) * (rng.uniform(size=shape) < rng.uniform(0.1, 1.0))
    length = np.linalg.norm(step, axis=-1, keepdims=True)
    share = np.where(np.arange(count) % 2, 1.0, rng.uniform(size=count))[:, None, None]
    z = coupling.centre + step / np.maximum(length, 1e-300) * coupling.ball * share
    return np.clip(z, coupling.low, coupling.high)  # towards the centre: it stays in the ball


@pytest.mark.parametrize("chosen", ["best", "random"])
def test_the_lemma_holds_at_every_point_of_intervals_and_ball(chosen, rng):
    for _ in range(20):
        coupling = draw_coupling(rng, 3, 6)
        rows = rng.standard_normal((3, 4, 6)) * 10.0 ** rng.uniform(-2, 2, (3, 4, 1))
        multiplier = coupling.multipliers(rows)
        slopes = coupling.slopes(rows, multiplier)
        if chosen == "random":
            multiplier = multiplier * 10.0 ** rng.uniform(-4, 4, multiplier.shape)
            slopes = slopes + rng.standard_normal(slopes.shape) * np.abs(rows)
        offset, error = coupling.offset(rows, slopes, multiplier)
        z = points_of(rng, coupling, 500)
        left = np.einsum("nmi,sni->snm", rows, np.maximum(z, 0.0))
        right = np.einsum("nmi,sni->snm", slopes, z) + offset - error
        assert np.all(left >= right - 1e-13 * np.abs(left))


def test_the_offset_is_attained_without_the_ball(rng):
    """Each p_i is a value of its function, so that no larger one is right."""
    coupling = draw_coupling(rng, 2, 5)
    rows, multiplier = rng.standard_normal((2, 3, 5)), rng.uniform(0.1, 9.0, (2, 3, 1))
    slopes = rows * rng.uniform(size=rows.shape)
    least = coupling.least(rows, slopes, multiplier)
    at, value = coupling.attained(rows, slopes, multiplier, np.zeros_like(rows))
    bent = 0.5 * multiplier * (at - coupling.centre[:, None]) ** 2
    np.testing.assert_allclose(value, np.maximum(at, 0.0))
    np.testing.assert_allclose(least, rows * value - slopes * at + bent, atol=1e-12)
    assert np.all((at >= coupling.low[:, None]) & (at <= coupling.high[:, None]))


def test_slopes_and_multipliers_lose_little_at_the_centre(rng):
    coupling, rows = draw_coupling(rng, 6, 12), rng.standard_normal((6, 5, 12))

    def value(multiplier):
        slopes = coupling.slopes(rows, multiplier)
        offset, _ = coupling.offset(rows, slopes, multiplier)
        return offset + np.einsum("nmi,ni->nm", slopes, coupling.centre)

    exact = np.einsum("nmi,ni->nm", rows, np.maximum(coupling.centre, 0.0))
    chosen = coupling.multipliers(rows)
    grid = [exact - value(chosen * factor) for factor in 10.0 ** np.linspace(-2, 2, 81)]
    loss = exact - value(chosen)
    assert np.all(loss >= -1e-12) and np.all(loss <= 1.5 * np.min(grid, axis=0) + 1e-9)
    assert np.mean(loss / np.min(grid, axis=0)) < 1.05


def test_the_lemma_holds_for_both_balls_and_units_of_known_sign(rng):
    """Any G, H, λ and μ, at points of the intervals of C and of both balls, most at an end."""
    for _ in range(30):
        low, high = np.sort(rng.normal(size=(2, 3, 8)), axis=0)
        centre = low + (high - low) * rng.uniform(size=low.shape)
        ball = 0.3 * np.linalg.norm(high - low, axis=1, keepdims=True)
        whole = ball * rng.uniform(0.5, 2.0, (3, 1))
        coupling = coupling_of(RELU, low, high, centre, np.zeros((3, 1)), ball, whole)
        inside = coupling.units[:, None]
        rows, slopes, turns = rng.normal(size=(3, 3, 4, 8))
        multiplier, shared = 10.0 ** rng.uniform(-2, 2, (2, 3, 4, 1))
        scale = 10.0 ** rng.uniform(-2, 1, (3, 4, 1))
        slopes, turns = np.where(inside, slopes, 0.0), np.where(inside, 0.0, scale * turns)
        offset, error = coupling.offset(rows, slopes, multiplier, shared)
        turned, off = coupling.turned(turns, shared)
        step = rng.standard_normal((500, *low.shape)) * (rng.uniform(size=(500, 1, 8)) < 0.5)
        # Towards where H is worst, too.
        worst = (turns / np.maximum(row_norms(turns), 1e-9)[..., None]).transpose(1, 0, 2)
        step = np.concatenate([step, worst, np.where(coupling.units, step[:4], worst)])
        for part, radius in ((coupling.units, ball), (np.ones_like(coupling.units), whole)):
            length = np.linalg.norm(np.where(part, step, 0.0), axis=-1, keepdims=True)
            step = step * np.minimum(1.0, radius / np.maximum(length, 1e-300))
        z = centre + step
        z = np.where(coupling.units, np.clip(z, low, high), z)
        left = np.einsum("nmi,sni->snm", np.where(inside, rows, 0.0), np.maximum(z, 0.0))
        right = np.einsum("nmi,sni->snm", slopes + turns, z) + offset + turned - error - off
        assert np.all(left >= right - 1e-12 * (1.0 + np.abs(left) + np.abs(right)))


def test_where_both_balls_are_equal_each_multiplier_does_the_same(rng):
    coupling = draw_coupling(rng, 3, 6)
    coupling, rows = coupling._replace(whole=coupling.ball), rng.normal(size=(3, 4, 6))
    some, none = np.full((3, 4, 1), 2.0), np.full((3, 4, 1), 1e-120)
    slopes, turns = coupling.slopes(rows, some), np.zeros_like(rows)
    first, second = (
        coupling.offset(rows, slopes, *pair)[0] + coupling.turned(turns, pair[1])[0]
        for pair in ((some, none), (none, some))
    )
    np.testing.assert_allclose(first, second, rtol=1e-12)


def exact_offset(coupling, rows, slopes, multiplier, shared, n, m):
    """`Σ p − λρ²/2` of one row, of numbers that are taken as exact."""
    lam, ball = Fraction(multiplier[n, m, 0]), Fraction(coupling.ball[n, 0])
    exact, bend = -lam * ball**2 / 2, lam + Fraction(shared[n, m, 0])
    for i in np.flatnonzero(coupling.units[n]):
        numbers = rows[n, m, i], slopes[n, m, i], coupling.centre[n, i]
        row, slope, centre = map(Fraction, numbers)
        pieces = (
            (Fraction(coupling.low[n, i]), 0, slope),
            (0, Fraction(coupling.high[n, i]), slope - row),
        )
        values = []
        for low, high, steep in pieces:
            s = min(max(centre + steep / bend, low), high)
            values.append(row * max(s, 0) - slope * s + bend * (s - centre) ** 2 / 2)
        exact += min(values)
    return exact


def require_charged(coupling, rows, slopes, multiplier, shared):
    offset, error = coupling.offset(rows, slopes, multiplier, shared)
    for n, m in itertools.product(*map(range, offset.shape)):
        if np.isfinite(offset[n, m]) and np.isfinite(error[n, m]):
            exact = exact_offset(coupling, rows, slopes, multiplier, shared, n, m)
            assert Fraction(offset[n, m]) - Fraction(error[n, m]) <= exact


def require_turned(coupling, turns, shared):
    offset, error = coupling.turned(turns, shared)
    for n, m in itertools.product(*map(range, offset.shape)):
        mu, radius = Fraction(shared[n, m, 0]), Fraction(coupling.whole[n, 0])
        exact = -mu * radius**2 / 2
        for turn, centre in zip(turns[n, m], coupling.others[n], strict=True):
            exact -= Fraction(turn) * Fraction(centre) + Fraction(turn) ** 2 / (2 * mu)
        if np.isfinite(offset[n, m]) and np.isfinite(error[n, m]):
            assert Fraction(offset[n, m]) - Fraction(error[n, m]) <= exact


# Scale of z, of Λ, of G, and λ: where one part of the charge is all that there is.
ALONE = {
    "slopes": (1.0, 0.0, 1.0, 1e-30),
    "rows": (1.0, 1.0, 0.0, 1e-30),
    "the ball": (1.0, 0.0, 0.0, 1.0),
    "an underflow of products": (1e-165, 1e-160, 1e-160, 1e-30),
    "an underflow of squares": (1e-165, 0.0, 0.0, 1e200),
}


@pytest.mark.parametrize("case", ALONE)
def test_each_part_of_the_charge_of_offsets_is_needed(case, rng):
    scale, row, slope, lam = ALONE[case]
    for _ in range(30):
        coupling = draw_coupling(rng, 2, 3, scale)
        if case in ("the ball", "an underflow of squares"):
            coupling = coupling._replace(ball=1e6 * scale * rng.uniform(1.0, 2.0, (2, 1)))
        rows, slopes = row * rng.normal(size=(2, 2, 3)), slope * rng.normal(size=(2, 2, 3))
        none = np.zeros((2, 2, 1))
        require_charged(coupling, rows, slopes, lam * rng.uniform(1.0, 2.0, (2, 2, 1)), none)


@pytest.mark.parametrize(("scale", "size"), [(1.0, 1.0), (1e-165, 1e-160), (1e20, 1e-322)])
def test_the_linear_part_of_a_leaky_relu_is_charged(scale, size, rng):
    """Both parts, `a Λ` and `(1 − a) Λ`, are rounded: what z is multiplied by is not Λ."""
    for _ in range(30):
        low, high = -scale * rng.uniform(size=(2, 3)), scale * rng.uniform(size=(2, 3))
        ball, off = np.full((2, 1), scale), np.zeros((2, 1))
        coupling = coupling_of(get("leaky_relu(0.3)"), low, high, (low + high) / 2, off, ball, ball)
        rows = size * rng.normal(size=(2, 2, 3))
        alone = coupling_of(get("leaky_relu(0.3)"), low, high * [1, 1, -1], low, off, ball, ball)
        assert not alone.linear(rows)[0][..., 2].any()  # its line has it
        (straight, error), bent = coupling.linear(rows), coupling.bent(rows)
        for n, m in itertools.product(range(2), range(2)):
            for z in (coupling.low, coupling.high):
                exact = taken = Fraction(0)
                for i in range(3):
                    at, row = Fraction(z[n, i]), Fraction(rows[n, m, i])
                    exact += row * (max(at, 0) + Fraction(0.3) * min(at, 0))
                    part = Fraction(bent[n, m, i]), Fraction(straight[n, m, i])
                    taken += part[0] * max(at, 0) + part[1] * at
                assert abs(taken - exact) <= Fraction(error[n, m])


def test_what_is_known_of_the_layer_is_rounded_outward(rng):
    low, high = -rng.uniform(size=(4, 9)), rng.uniform(size=(4, 9))
    ball, whole, off = rng.uniform(size=(3, 4, 1))
    coupling = coupling_of(RELU, low, high, (low + high) / 2, off, ball, whole)
    for n in range(4):
        assert Fraction(coupling.ball[n, 0]) > Fraction(ball[n, 0]) + Fraction(off[n, 0])
        assert Fraction(coupling.whole[n, 0]) > Fraction(whole[n, 0]) + Fraction(off[n, 0])
        far = sum(Fraction(max(-a, b)) ** 2 for a, b in zip(low[n], high[n], strict=True))
        assert Fraction(coupling.far[n, 0]) ** 2 >= far
    for broken in (np.inf, np.nan):
        args = low, high, low, off, np.full((4, 1), broken), whole
        assert not coupling_of(RELU, *args).units.any()
    positive = coupling_of(RELU, high, high + 1.0, high, off, ball, whole)
    assert not positive.units.any() and np.array_equal(positive.others, high)
    assert not coupling.others.any()


# Scale of ẑ, of H, and μ, likewise.
TURNED = {
    "level": (1e8, 1.0, 1e3),
    "squares": (1e-8, 1.0, 1.0),
    "an underflow of products": (1e-165, 1e-160, 1e-3),
    "an underflow of squares": (1e-200, 1e-165, 1e-100),
    "an underflow of the ball": (1e-165, 0.0, 1e200),
}


@pytest.mark.parametrize("case", TURNED)
def test_each_part_of_the_charge_of_turned_units_is_needed(case, rng):
    scale, turn, mu = TURNED[case]
    for _ in range(30):
        low = scale * rng.uniform(0.5, 1.0, (2, 3))
        ball = np.full((2, 1), scale)
        coupling = coupling_of(RELU, low, 2.0 * low, 1.5 * low, np.zeros((2, 1)), ball, ball)
        if case == "level":
            coupling = coupling._replace(whole=1e-9 * ball)
        turns = turn * rng.normal(size=(2, 2, 3))
        require_turned(coupling, turns, mu * rng.uniform(1.0, 2.0, (2, 2, 1)))


@pytest.mark.parametrize("scale", [1e-140, 1e-12, 1.0, 1e12, 1e140])
def test_the_rounding_of_turned_units_is_charged_at_any_scale(scale, rng):
    low, high = np.sort(scale * rng.uniform(0.5, 2.0, (2, 3, 5)), axis=0)
    ball = scale * rng.uniform(size=(3, 1))
    coupling = coupling_of(RELU, low, high, (low + high) / 2, np.zeros((3, 1)), ball, ball)
    turns = rng.standard_normal((3, 2, 5)) * 10.0 ** rng.uniform(-8, 8, (3, 2, 5))
    for factor in (1e-20, 1.0, 1e20):
        require_turned(coupling, turns, np.clip(np.full((3, 2, 1), factor / scale), 1e-120, 1e120))


@pytest.mark.parametrize("scale", [1e-140, 1e-12, 1.0, 1e12, 1e140])
def test_the_rounding_of_offsets_is_charged_at_any_scale(scale, rng):
    coupling = draw_coupling(rng, 3, 5, scale)
    rows = rng.standard_normal((3, 2, 5)) * 10.0 ** rng.uniform(-8, 8, (3, 2, 5))
    for factor in (1e-20, 1.0, 1e20):
        multiplier = np.maximum(coupling.multipliers(rows) * factor, 1e-300)
        slopes = coupling.slopes(rows, multiplier)
        require_charged(coupling, rows, slopes, multiplier, np.zeros_like(multiplier))
