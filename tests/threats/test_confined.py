"""What λ proves lies below the least of the minorant over all moves that a budget allows."""

import numpy as np
import pytest
import tensorflow as tf
from confined_oracle import confined_radius

from keras_curv import dual
from keras_curv.threats.confined import (
    Reach,
    best_move,
    confined_minorant,
    plain_minorant,
    present_multiplier,
)

GRID = 61


def _case(seed, dead=True, count=40):
    """Random minorants in two dimensions: A, h, κ and a reach; some limits and κ are 0."""
    rng = np.random.default_rng(seed)
    h, kappa = rng.normal(size=(count, 2)), rng.uniform(0, 2, count) * (rng.random(count) < 0.8)
    limits = rng.uniform(0.0, 1.0, (2, count, 2)) * (rng.random((2, count, 2)) < 0.8)
    deads = rng.uniform(0.0, 0.3, (2, count, 2)) * (rng.random((2, count, 2)) < 0.5) * dead
    cost = rng.uniform(0.5, 1.5, 2)
    reach = Reach(*(tf.constant(part) for part in (*limits, *deads, cost)))
    return tf.constant(rng.uniform(0.2, 2.0, count)), tf.constant(h), tf.constant(kappa), reach


def _moves(reach):
    """Every e of a grid within the limits, with no move among them, and its cost."""
    axes = []
    for i in range(2):
        up, down = reach.up.numpy()[:, i], reach.down.numpy()[:, i]
        axes.append(np.concatenate([-np.outer(down, np.linspace(1, 0, GRID)),
                                    np.outer(up, np.linspace(0, 1, GRID))], axis=1))  # fmt: skip
    shape = (len(axes[0]), 2 * GRID, 2 * GRID)
    e = np.stack([np.broadcast_to(axes[0][:, :, None], shape),
                  np.broadcast_to(axes[1][:, None, :], shape)], axis=-1)  # fmt: skip
    dead = np.where(e > 0, reach.dead_up[:, None, None], reach.dead_down[:, None, None])
    cost = np.where(e != 0.0, (np.abs(e) * reach.cost + dead) ** 2, 0.0).sum(axis=-1)
    return e, cost


def _values(intercept, h, kappa, e):
    linear = np.einsum("ni,nabi->nab", h, e)
    return intercept[:, None, None] + linear - 0.5 * kappa[:, None, None] * (e**2).sum(axis=-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 1.3, 4.0])
def test_every_multiplier_is_sound(seed, share):
    """Below κ/b² too, where the far end of the wrong side can be the worst."""
    case = _case(seed)
    multiplier = share * case[2] / case[3].least_cost ** 2 + (0.3 if share == 4.0 else 0.0)
    e, cost = _moves(case[3])
    truth = _values(*(np.array(part) for part in case[:3]), e)
    bound = confined_minorant(*case, multiplier)
    below = (
        bound.intercept.numpy()[:, None, None] - 0.5 * np.array(multiplier)[:, None, None] * cost
    )
    assert np.all(np.isfinite(below)) and np.all(below <= truth + 1e-12)
    # Duality the wrong way round, or a minorant that proves nothing, would not be so near.
    assert np.min((truth - below).min(axis=(1, 2))) < 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_radius_is_sound_and_above_the_simple_one(seed):
    case = _case(seed)
    e, cost = _moves(case[3])
    truth = _values(*(np.array(part) for part in case[:3]), e)
    nearest = np.where(truth <= 0.0, np.sqrt(cost), np.inf).min(axis=(1, 2))
    radius = confined_radius(*case).numpy()
    assert np.all(radius <= nearest + 1e-12)
    simple = dual.certified_radius(plain_minorant(*case)).numpy()
    assert np.all(radius >= simple * (1.0 - 1e-12))
    reached = radius[np.isfinite(nearest)] / nearest[np.isfinite(nearest)]
    assert np.median(reached) > 0.8


def test_without_dead_zones_and_curvature_nothing_is_lost():
    """A linear function over ball and box: the dual is exact, up to grid and search."""
    intercept, h, kappa, reach = _case(5, dead=False)
    e, cost = _moves(reach)
    truth = _values(np.array(intercept), np.array(h), 0.0 * np.array(kappa), e)
    nearest = np.where(truth <= 0.0, np.sqrt(cost), np.inf).min(axis=(1, 2))
    radius = confined_radius(intercept, h, 0.0 * kappa, reach, evaluations=30).numpy()
    near = np.isfinite(nearest)
    assert near.sum() > 5
    np.testing.assert_array_less(nearest[near] - 0.02, radius[near])  # a step of the grid
    np.testing.assert_array_less(radius[near], nearest[near] + 1e-12)


def test_where_there_are_no_limits_the_certificate_is_the_plain_one():
    intercept, h, kappa, _ = _case(1)
    none, free = tf.zeros_like(h), tf.fill(h.shape, tf.constant(np.inf, tf.float64))
    reach = Reach(free, free, none, none, tf.ones(2, tf.float64))
    plain = dual.certified_radius(dual.Minorant(intercept, dual.norm(h), kappa)).numpy()
    found = confined_radius(intercept, h, kappa, reach).numpy()
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    # The λ of the plain radius, `κ + h/r`, gives it from below.
    multiplier = kappa + dual.norm(h) / plain
    alone = dual.certified_radius(confined_minorant(intercept, h, kappa, reach, multiplier))
    np.testing.assert_allclose(alone, plain, rtol=1e-12)


def test_an_error_of_the_slope_is_charged():
    intercept, h, kappa, reach = _case(2)
    error = tf.fill(intercept.shape, tf.constant(0.1, tf.float64))
    wrong = h + 0.1 * dual.norm(h)[:, None] ** -1 * h  # off by 0.1
    charged = confined_radius(intercept, h, kappa, reach, error, evaluations=30).numpy()
    exact = confined_radius(intercept, wrong, kappa, reach, evaluations=30).numpy()
    assert np.all(charged <= exact * (1.0 + 1e-3))


def test_rounding_is_from_below():
    """In float32, against the same in float64."""
    case = _case(3, count=2000)
    single = [tf.cast(part, tf.float32) for part in case[:3]]
    reach = Reach(*(tf.cast(part, tf.float32) for part in case[3]))
    exact = [tf.cast(part, tf.float64) for part in single]
    wide = Reach(*(tf.cast(part, tf.float64) for part in reach))
    for share in (0.7, 1.0, 1.0 + 1e-6, 1.1, 3.0):
        lam = share * single[2] / reach.least_cost**2 + 1e-3 * (share > 1)
        rough = confined_minorant(*single, reach, lam).intercept.numpy().astype(np.float64)
        fine = confined_minorant(*exact, wide, tf.cast(lam, tf.float64)).intercept.numpy()
        assert np.all(rough <= fine + 1e-13)
        if share > 1.05:
            assert np.max(fine - rough) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_the_best_move_minimises_the_convex_envelope(seed):
    """By coordinate on a fine grid, with the lower convex hull taken by brute force."""
    _, gradient, kappa, reach = _case(seed, count=20)
    multiplier = 1.2 * kappa / reach.least_cost**2 + 0.1
    move = best_move(gradient, kappa, reach, multiplier)
    for row in range(20):
        for i in range(2):
            up, down = float(reach.up[row, i]), float(reach.down[row, i])
            e = np.union1d(np.linspace(-down, up, 801), [0.0])
            dead = np.where(e > 0, reach.dead_up[row, i], reach.dead_down[row, i])
            k, lam = float(kappa[row]), float(multiplier[row])
            cost = np.where(e != 0, (np.abs(e) * float(reach.cost[i]) + dead) ** 2, 0.0)
            hull = _convex_hull(e, 0.5 * lam * cost - 0.5 * k * e**2)
            value = float(gradient[row, i]) * e + 0.5 * k * e**2 + hull
            at = float(move.displacement[row, i])
            assert -down <= at <= up
            assert np.interp(at, e, value) <= value.min() + 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_free_entries_of_a_best_move_tell_its_multiplier(seed):
    _, gradient, kappa, reach = _case(seed, count=200)
    multiplier = 1.5 * kappa / reach.least_cost**2 + 0.3
    displacement = best_move(gradient, kappa, reach, multiplier).displacement
    found, cost = (part.numpy() for part in present_multiplier(gradient, displacement, reach))
    tells = cost > 0.0
    assert 20 < tells.sum() < 150
    np.testing.assert_allclose(found[tells], multiplier[tells], rtol=1e-9)
    assert np.all(found[~tells] == 0.0)
    assert np.all(cost <= reach.price(displacement) * (1.0 + 1e-12))


def _convex_hull(e, value):
    """The largest convex function below the values, at the same places."""
    kept = []
    for point in zip(e, value, strict=True):
        while len(kept) > 1 and _turns_down(*kept[-2:], point):
            kept.pop()
        kept.append(point)
    return np.interp(e, *np.transpose(kept))


def _turns_down(first, second, third):
    (x, y), (p, q), (r, s) = first, second, third
    return (q - y) * (r - x) >= (s - y) * (p - x)


@pytest.mark.parametrize("power", [-300, -150, 0, 150, 300, 511])
def test_scales_of_the_gradient_and_of_moves_cancel(power):
    """Moves smaller by 2^power, a gradient larger by as much, prove as much; λ is 4^power."""
    intercept, h, kappa, _ = _case(4, count=400)
    up = tf.ones_like(h)
    none, one = tf.zeros_like(h), tf.ones(2, tf.float64)
    factor = 2.0**power
    multiplier = 1.5 * kappa + 1.0
    expected = confined_minorant(
        intercept, h, kappa, Reach(up, up, none, none, one), multiplier
    ).intercept
    found = confined_minorant(
        intercept,
        h * factor,
        kappa * factor * factor,
        Reach(up / factor, up / factor, none, none, one),
        multiplier * factor * factor,
    ).intercept
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_multiplier_that_overflows_does_not_forget_what_moves():
    """`A − h|e|` is 0 at A/h, as far as b A/h: λb² is ∞, and h²/(λb²) is not nothing."""
    far, none, one = (tf.constant([[x]], tf.float64) for x in (np.inf, 0.0, 1e10))
    numbers = [tf.constant([x], tf.float64) for x in (1e-8, 0.0, 1e296)]
    intercept, kappa, multiplier = numbers
    steepness = tf.constant([[1e154]], tf.float64)
    reach = Reach(far, far, none, none, one)
    bound = confined_minorant(intercept, steepness, kappa, reach, multiplier)
    assert dual.certified_radius(bound).numpy().item() <= 1e-152
