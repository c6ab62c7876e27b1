"""Each charge of a minorant, alone: where it is all that keeps the bound below the exact one.

`benchmarks/mutants.py` drops one charge after the other and sees that a test fails.
"""

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.crc.proved_radius import (
    Charged,
    charged,
    charged_minorant,
    proved_radius,
)
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import CURVATURE_FLOOR, Charge, gamma, margin_charge

ROWS, DIM = 40, 7
exactly = np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])


@pytest.fixture(autouse=True)
def _many_digits():
    with mpmath.workdps(700):  # the sum of 1e300 and 1e-320
        yield


def of_ones(rng, *shape):
    """Between 1 and 2, where every last digit counts alike."""
    return rng.uniform(1.0, 2.0, shape)


def subnormal(rng, *shape):
    return rng.uniform(0.5, 1.0, shape) * 1e-308


def beyond(rng):
    """Where f is below 0, and its slope leads back to next to nothing."""
    gradient, moved = rng.standard_normal((2, ROWS, DIM))
    product = np.sum(gradient * moved, axis=1)
    moved *= -np.sign(product)[:, None]
    return dict(margin=-np.abs(product), gradient=gradient, moved=moved)


def served(rng):
    """Where serving takes more than f, and the slope leads back to next to nothing."""
    parts = beyond(rng)
    margin = 0.1 * rng.random(ROWS)
    return parts | dict(margin=margin, off=margin - parts["margin"])


def ordinary(rng):
    gradient, moved = rng.standard_normal((2, ROWS, DIM))
    return dict(gradient=gradient, moved=moved)


# What is not 0.
CASES = {
    "beyond the boundary": beyond,
    "served beyond the boundary": served,
    "product": ordinary,
    "served margin": lambda rng: dict(margin=of_ones(rng, ROWS), off=1e-3 * rng.random(ROWS)),
    "error of the margin": lambda rng: dict(margin=[1.0], margin_error=rng.random(ROWS)),
    "error of the gradient": lambda rng: dict(
        gradient_error=of_ones(rng, ROWS), moved=of_ones(rng, ROWS, DIM)
    ),
    "square": lambda rng: dict(kappa=of_ones(rng, ROWS), moved=rng.standard_normal((ROWS, DIM))),
    "norm": lambda rng: dict(gradient=rng.standard_normal((ROWS, DIM))),
    "flushed move": lambda rng: dict(
        margin=[1e-10], gradient=[[1e300]], moved=subnormal(rng, ROWS, 1)
    ),
    "flushed gradient": lambda rng: dict(
        margin=[1e-10], gradient=subnormal(rng, ROWS, 1), moved=[[1e300]], kappa=[0.0]
    ),
    "flushed products": lambda rng: dict(
        margin=[3e-308],
        gradient=1e-154 * of_ones(rng, ROWS, 50) / 2.0,
        moved=np.full((1, 50), 1.4e-154),
        kappa=[0.0],
    ),
    "flushed bend": lambda rng: dict(kappa=[1e300], moved=subnormal(rng, ROWS, DIM)),
    "flushed slope": lambda rng: dict(gradient=subnormal(rng, ROWS, DIM)),
    "flushed square": lambda rng: dict(kappa=[1e308], moved=np.full((ROWS, DIM), 1e-308)),
}


def given(rng, case):
    """Rows of a case, against one rival each."""
    parts = CASES[case](rng)
    dim = max(np.shape(parts.get(name, [[0.0]]))[1] for name in ("gradient", "moved"))

    def rows(name, *shape, default=0.0):
        return np.broadcast_to(np.asarray(parts.get(name, default), np.float64), (ROWS, *shape))

    return dict(
        **{name: rows(name) for name in ("margin", "off", "margin_error", "gradient_error")},
        gradient=rows("gradient", dim),
        moved=rows("moved", dim),
        kappa=rows("kappa", default=CURVATURE_FLOOR),
    )


def arguments(parts, dtype=tf.float64, moves=True):
    column = {name: tf.constant(part[:, None], dtype) for name, part in parts.items()}
    error = Charge(column["margin_error"], column["gradient_error"])
    found = Charged(column["margin"], column["gradient"], error)
    return (
        found,
        tf.constant(parts["moved"], dtype) if moves else None,
        column["kappa"],
        column["off"],
    )


def exact_minorant(margin, off, margin_error, gradient_error, gradient, moved, kappa):
    """The least A and the largest h that these errors allow, to all digits."""
    bent = [kappa * d for d in moved]
    length = mpmath.sqrt(sum(d * d for d in moved))
    a = margin - off - margin_error - gradient_error * length
    a -= sum(g * d for g, d in zip(gradient, moved, strict=True))
    a -= sum(b * d for b, d in zip(bent, moved, strict=True)) / 2
    h = mpmath.sqrt(sum((g + b) ** 2 for g, b in zip(gradient, bent, strict=True)))
    return a, h + gradient_error


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_minorant_is_below_the_exact_one(case, moves, rng):
    parts = given(rng, case)
    if not moves:
        parts["moved"] = np.zeros_like(parts["moved"])
    bound, slope_error = charged_minorant(*arguments(parts, moves=moves))
    found = bound.intercept.numpy(), bound.slope.numpy(), slope_error.numpy()
    for row in range(ROWS):
        a, h = exact_minorant(*(exactly(part[row])[()] for part in parts.values()))
        intercept, slope, error = (mpmath.mpf(float(part[row])) for part in found)
        assert mpmath.isfinite(intercept) and intercept <= a
        if parts["kappa"][row] > 0.0:
            assert mpmath.isfinite(slope) and slope + error >= h
        assert bound.curvature[row] == parts["kappa"][row]


def test_an_ordinary_minorant_loses_next_to_nothing(rng):
    parts = given(rng, "product") | {"margin": of_ones(rng, ROWS), "kappa": of_ones(rng, ROWS)}
    bound, slope_error = charged_minorant(*arguments(parts))
    for row in range(ROWS):
        a, h = exact_minorant(*(exactly(part[row])[()] for part in parts.values()))
        assert abs(float(a) - float(bound.intercept[row])) < 1e-13
        assert abs(float(h) - float(bound.slope[row])) < 1e-13 > float(slope_error[row])


def test_a_long_sum_is_charged_by_its_length():
    """By as much as it may be off in the worst order, whatever it is in this one."""
    count = 2**14
    ones = tf.fill((1, 1, count), tf.constant(2.0**-7, tf.float64))  # of norm 1
    one = tf.ones((1, 1), tf.float64)
    found = Charged(2.0 * one, ones, Charge(0.0 * one, 0.0 * one))
    bound, slope_error = charged_minorant(found, ones[:, 0], one, 0.0 * one)
    assert 0.5 - float(bound.intercept[0]) >= 2.0 * gamma(float(count))
    assert float(slope_error[0]) >= gamma(count / 2.0)
    assert float(slope_error[0]) < 1e-11 and 0.5 - float(bound.intercept[0]) < 1e-11


def test_nothing_is_charged_where_nothing_is_proved(rng):
    parts = given(rng, "product") | {"margin_error": np.ones(ROWS), "kappa": np.ones(ROWS)}
    bound, slope_error = charged_minorant(*arguments(parts, tf.float32))
    assert not slope_error.numpy().any()
    product = np.sum(parts["gradient"] * parts["moved"], axis=1)
    square = np.sum(parts["moved"] ** 2, axis=1)
    np.testing.assert_allclose(bound.intercept, -product - square / 2.0, atol=1e-5)


def test_a_margin_that_cannot_change_has_no_slope(rng):
    """κ = 0 says so, and its gradient is 0."""
    parts = given(rng, "served margin") | {"kappa": np.zeros(ROWS)}
    assert np.all(np.isinf(proved_radius(*arguments(parts, moves=False))))
    parts["kappa"] = np.full(ROWS, CURVATURE_FLOOR)
    assert np.all(np.isfinite(proved_radius(*arguments(parts, moves=False))))


@pytest.mark.parametrize("kappa", [CURVATURE_FLOOR, 1.0, 1e6])
@pytest.mark.parametrize("error", [0.0, 3.0])
def test_a_radius_is_no_more_than_the_root(kappa, error, rng):
    """Of the charged minorant, whose own numbers are exact."""
    parts = given(rng, "product") | {"kappa": np.full(ROWS, kappa)}
    parts["margin"] = 1e2 + 10.0 * kappa + rng.random(ROWS)
    parts["gradient_error"] = error * of_ones(rng, ROWS)
    bound, slope_error = charged_minorant(*arguments(parts))
    found = proved_radius(*arguments(parts)).numpy()
    assert found.shape == (ROWS, 1)
    bound = bound.intercept, bound.slope, slope_error, bound.curvature
    for row, radius in enumerate(found[:, 0]):
        a, h, more, bend = (exactly(part[row])[()] for part in bound)
        root = 2 * a / (h + more + mpmath.sqrt((h + more) ** 2 + 2 * bend * a))
        assert 0 < radius <= root < radius * (1.0 + 1e-13)


def test_an_evaluation_is_charged_in_float64_alone(rng, random_network):
    network = random_network(rng, (3, 5, 2), ("tanh",))
    label, rivals = tf.zeros(4, tf.int32), tf.ones((4, 1), tf.int32)
    x = tf.constant(rng.standard_normal((4, 3)))
    evaluation = network.evaluate(x, label, rivals)
    found = charged(network.layer_norms, evaluation)
    parts = network.layer_norms, evaluation.activations, evaluation.cotangents
    for part, expected in zip(found.error, margin_charge(*parts), strict=True):
        np.testing.assert_array_equal(part, expected)
        assert np.all(part > 0.0)
    network.ready(tf.float32)
    single = network.evaluate(tf.cast(x, tf.float32), label, rivals)
    assert not np.any(charged(network.layer_norms, single).error)


# One affine map: kernel and bias as stored, by how much they may be wrong and are, and the input.
WORST = {
    "product": ([1.0 + 2.0**-52, 0.0], 0.0, 0.0, 0.0, [1.0 + 2.0**-52, 1.0]),
    "cancellation": ([1e16, -1e16], 1.0, 0.0, 0.0, [1.0 + 2.0**-52, 1.0]),
    "sum with the bias": ([2.0**-53 * 1.5, 0.0], 1.0, 0.0, 0.0, [1.0, 1.0]),
    "folded kernel": ([1.0, 1.0], 0.0, 1e-3, 0.0, [3.0, 4.0]),
    "folded bias": ([1.0, 1.0], 0.0, 0.0, 1e-3, [0.0, 0.0]),
    "underflow": ([1e-160, 0.0], 0.0, 0.0, 0.0, [1e-160, 1.0]),
    "flushed weight": ([1e-308, 0.0], 0.0, 0.0, 0.0, [1e10, 0.0]),
    "flushed input": ([1e10, 0.0], 0.0, 0.0, 0.0, [1e-308, 0.0]),
    "folded kernel, tiny input": ([1.0, 0.0], 0.0, 1e10, 0.0, [1e-170, 0.0]),
}


@pytest.mark.parametrize("case", WORST)
def test_the_worst_of_one_map(case):
    """The two logits move apart by what folding allows: √2 of the norm in all."""
    weights, bias, kernel_error, bias_error, x = WORST[case]
    kernel = np.stack([weights, np.zeros(2)], axis=1)
    network = Network([Affine(kernel, [bias, 0.0], kernel_error, bias_error)], [])
    label, rivals = tf.zeros(1, tf.int32), tf.ones((1, 1), tf.int32)
    found = charged(
        network.layer_norms, network.evaluate(tf.constant([x], tf.float64), label, rivals)
    )
    exact = sum(mpmath.mpf(w) * mpmath.mpf(v) for w, v in zip(weights, x, strict=True)) + bias
    length = mpmath.sqrt(sum(mpmath.mpf(v) ** 2 for v in x))
    moved = mpmath.sqrt(2) * (kernel_error * length + bias_error)
    off = abs(mpmath.mpf(float(found.margin[0, 0])) - exact) + moved
    assert 0 < off <= mpmath.mpf(float(found.error.margin[0, 0]))
