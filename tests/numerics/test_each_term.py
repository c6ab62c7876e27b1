"""Each term of a charge, alone: all else is 0, and what it must be is known without rounding.

`benchmarks/mutants.py` drops one term after the other and sees that a test here fails. What float64
really does is in `test_rounding.py`; here is what it may do at worst.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from keras_curv import dual
from keras_curv.numerics.rounding import (
    ACTIVATION_ULPS,
    FLOAT32_TINY,
    FLOAT32_UNIT,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    LayerNorms,
    activation_errors,
    gamma,
    gradient_error,
    margin_charge,
    margin_error,
    norm_bound,
    pre_activation_errors,
    scaled_back,
    unit_and_tiny,
    up,
)

NOTHING = LayerNorms(1, 1, *[0.0] * 8)
# Numbers that only a term with them can reach.
BIG, ROOT = 1e10, Fraction(math.sqrt(2.0))
_exactly = np.vectorize(lambda v: Fraction(float(v)), otypes=[object])


def exact_gamma(operations, unit=UNIT):
    error = Fraction(unit) * operations
    return error / (1 - error)


def assert_covers(charge, least):
    """That a charge is finite, and no less than an exact number that is not 0."""
    charge = float(charge)
    assert math.isfinite(charge) and Fraction(charge) >= Fraction(least) > 0


def test_gamma_is_the_relative_error_of_so_many_roundings():
    for operations in (1.0, 7.0, 2.0**20, 2.0**52):
        exact = exact_gamma(Fraction(operations))
        assert abs(Fraction(gamma(operations)) / exact - 1) < Fraction(2) ** -51
    assert gamma(2.0**53) == gamma(2.0**60) == np.inf
    assert gamma(4.0, FLOAT32_UNIT) == pytest.approx(4.0 * 2.0**-24, rel=1e-6)


@pytest.mark.parametrize("operations", [0.0, 1.0, 1e3, 1e9])
def test_what_is_rounded_up_covers_its_roundings(operations, rng):
    for value in rng.standard_normal(50) ** 2:
        exact = Fraction(float(value)) * (1 + Fraction(UNIT) * (int(operations) + 1))
        found = Fraction(float(up(value, operations)))
        assert exact <= found <= exact * (1 + 4 * exact_gamma(int(operations) + 9))
    assert up(1.0) > 1.0 + 4.0 * UNIT


def test_what_is_scaled_back_is_a_bound_where_digits_are_lost():
    for bound, power in ((1.0 + 2.0**-52, -1060), (3.0, -1075), (1.3, 40), (5e-324, -1)):
        assert Fraction(scaled_back(bound, power)) >= Fraction(bound) * Fraction(2) ** power
    assert scaled_back(1.0, 1100) == np.inf


ROWS = {
    "ordinary": lambda rng: rng.standard_normal((60, 7)),
    "subnormal": lambda rng: rng.integers(1, 40, (60, 7)) * 5e-324,
    "small": lambda rng: rng.standard_normal((60, 7)) * 1e-200,
    "large": lambda rng: rng.standard_normal((60, 7)) * 1e290,
    "of all sizes": lambda rng: -(10.0 ** rng.uniform(-200, 200, (60, 7))),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ROWS)
def test_norms_are_bounds(kind, sparse, rng):
    rows = ROWS[kind](rng)
    given = scipy.sparse.csr_array(rows) if sparse else rows
    exact = [sum(v * v for v in row) for row in _exactly(rows)]
    one = [norm_bound(given[[i]] if sparse else row) for i, row in enumerate(rows)]
    for found in (norm_bound(given, axis=1), one):
        for bound, square in zip(found, exact, strict=True):
            assert square <= Fraction(float(bound)) ** 2
            # Subnormal numbers are rounded by as much as they are; sparse rows share a scale.
            loose = {"subnormal": 3, "ordinary": 1 + Fraction(1e-12)}.get(kind, 1 + Fraction(1e-9))
            assert sparse and kind != "ordinary" or Fraction(float(bound)) ** 2 <= square * loose
    assert norm_bound(0.0 * rows) == 0.0 and norm_bound(0.0 * rows, axis=0).max() == 0.0


def test_a_sparse_square_may_underflow():
    """Beside an entry of 1 each loses next to nothing; 10⁴ in a column of their own do not."""
    rows = np.zeros((10**4 + 1, 2))
    rows[0, 0], rows[1:, 1] = 1.0, 1e-170
    for array in (rows, scipy.sparse.csr_array(rows)):
        assert norm_bound(array, axis=0)[1] >= 1e-168 and norm_bound(array, axis=0)[0] < 1.0 + 1e-9


def test_a_norm_that_is_no_number_is_none():
    for bad in (np.inf, np.nan):
        assert not norm_bound(np.array([1.0, bad])) < np.inf
    np.testing.assert_array_equal(norm_bound(np.array([[1.0, np.inf]]), axis=0)[1], np.inf)


def forward(activation=(0.0,), given=None, **norms):
    given = None if given is None else tf.constant([given], tf.float64)
    layers = [NOTHING._replace(**norms)]
    return pre_activation_errors(layers, [tf.constant([activation], tf.float64)], given)[0][0]


# Norms of the layer, its input as computed, what that is off by, and the least charge.
FORWARD = {
    "error of the input": (dict(norm=3.0), (0.0,), 0.5, Fraction(3, 2)),
    "products": (dict(magnitude=3.0, fan_in=5), (2.0,), None, 6 * exact_gamma(6)),
    "bias": (dict(bias=3.0, fan_in=5), (0.0,), None, 3 * exact_gamma(6)),
    "long sums": (dict(bias=3.0, fan_in=10**6), (0.0,), None, 3 * exact_gamma(10**6)),
    "folded kernel": (dict(kernel_error=3.0), (2.0,), None, 6),
    "folded bias": (dict(bias_error=3.0), (0.0,), None, 3),
    "underflow of a product": (dict(), (0.0,), None, Fraction(TINY)),
    "kernel that is flushed": (dict(), (BIG,), None, Fraction(TINY) * Fraction(BIG)),
    "input that is flushed": (dict(magnitude=BIG), (0.0,), None, Fraction(TINY) * Fraction(BIG)),
    "square of the input": (dict(kernel_error=BIG), (1e-170,), None, Fraction(1e-160) * 9 / 10),
}


@pytest.mark.parametrize("term", FORWARD)
def test_the_error_of_a_map(term):
    norms, activation, given, least = FORWARD[term]
    assert_covers(forward(activation, given, **norms), least)


def test_products_and_norms_of_a_charge_are_rounded_up(rng):
    norm, given = rng.uniform(1.0, 2.0, (2, 60))
    layers, zeros = [NOTHING._replace(norm=tf.constant(norm))], tf.zeros((60, 1), tf.float64)
    charges = pre_activation_errors(layers, [zeros], tf.constant(given))[0].numpy()
    for charge, product in zip(charges, _exactly(norm) * _exactly(given), strict=True):
        assert_covers(charge, product)


def behind(activation=(0.0,), **norms):
    """The error of an activation behind one map of nothing."""
    pair = [tf.zeros((1, 1), tf.float64), tf.constant([activation], tf.float64)]
    return activation_errors([NOTHING._replace(**norms)], pair)[1][0]


def test_the_error_of_an_activation(rng):
    assert_covers(behind(slope=3.0, bias_error=1.0), 3)
    ulps = Fraction(ACTIVATION_ULPS * UNIT)
    assert_covers(behind((2.0,)), 2 * ulps)
    assert_covers(behind(floor=3.0, fan_out=4), 6 * ulps)
    assert_covers(behind(), Fraction(1024 * TINY))  # what an activation loses to underflow
    slope, bias = rng.uniform(1.0, 2.0, (2, 60))  # the charge has roundings of its own
    layers = [NOTHING._replace(slope=tf.constant(slope), bias_error=tf.constant(bias))]
    charges = activation_errors(layers, [tf.zeros((60, 1), tf.float64)] * 2)[1].numpy()
    for charge, product in zip(charges, _exactly(slope) * _exactly(bias), strict=True):
        assert_covers(charge, product)


def test_errors_pass_through_layers():
    """1 of the first bias; then twice, three times; and each layer its own."""
    layers = [NOTHING._replace(bias_error=1.0, slope=2.0), NOTHING._replace(norm=3.0, slope=5.0)]
    rows = [tf.zeros((1, 1), tf.float64)] * 3
    errors = activation_errors(layers, rows)
    assert len(errors) == 3 and float(errors[0][0]) == 0.0
    np.testing.assert_allclose([float(e[0]) for e in errors[1:]], [2.0, 30.0], rtol=1e-5)
    assert_covers(errors[2][0], 30)
    # Of the rows, the second activation is wrong by 32 units of a number of its own.
    far = [*rows[:2], tf.constant([[1e20]], tf.float64)]
    assert_covers(activation_errors(layers, far)[2][0] - 31.0, Fraction(1e20 * 32 * UNIT))
    pre_errors = [float(error[0]) for error in pre_activation_errors(layers, rows[:2])]
    np.testing.assert_allclose(pre_errors, [1.0, 6.0], rtol=1e-5)


def test_a_margin_has_two_logits():
    """Each may be off by the bias's whole error in a direction of its own: √2 of it in all."""
    layers = [NOTHING._replace(bias_error=3.0)]
    given = [tf.zeros((1, 1), tf.float64)]
    cotangents = [tf.zeros((1, 2, 1), tf.float64)]
    charge = margin_charge(layers, given, cotangents)
    assert charge.margin.shape == charge.gradient.shape == (1, 2)
    for found in (charge.margin[0, 0], charge.margin[0, 1], margin_error(layers, given)[0]):
        assert_covers(found, 3 * ROOT)


def backward(sizes=(0.0,), *layers, pre=0.0, unit=UNIT, tiny=TINY):
    """The gradient's error; the last of these layers gives w alone."""
    pre_errors = [tf.constant([pre], tf.float64)] * (len(layers) - 1)
    sizes = [tf.constant([[size]], tf.float64) for size in sizes]
    return gradient_error(layers, pre_errors, sizes, unit=unit, tiny=tiny)[0, 0]


def test_the_error_of_the_last_weights():
    for unit, tiny in ((UNIT, TINY), (FLOAT32_UNIT, FLOAT32_TINY)):
        numbers = dict(unit=unit, tiny=tiny)
        assert_covers(backward((0.0,), NOTHING._replace(kernel_error=3.0), **numbers), 3 * ROOT)
        assert_covers(backward((3.0,), NOTHING, **numbers), 3 * Fraction(unit))
        least = 5 * Fraction(tiny)  # of 25 entries
        assert_covers(backward((0.0,), NOTHING._replace(fan_in=25), **numbers), least)
    assert_covers(backward((3.0,), NOTHING), 3 * Fraction(UNIT))
    assert float(backward((3.0,), NOTHING)) < 1e-15


# Of the layer and the last one: norms, ‖v̂‖, the error of z, and the least charge for (u, τ).
BACKWARD = {
    "error behind": (
        *(dict(norm=3.0, slope=2.0), dict(kernel_error=1.0), 0.0, 0.0),
        lambda u, t: 6 * ROOT,
    ),
    "slope elsewhere": (dict(norm=3.0, bend=2.0), {}, 5.0, 7.0, lambda u, t: 210),
    "slope elsewhere, of an error": (
        *(dict(norm=3.0, bend=2.0), dict(kernel_error=1.0), 0.0, 7.0),
        lambda u, t: 42 * ROOT,
    ),
    "rounded slope": (
        *(dict(norm=1.0, slope=2.0), {}, 3.0, 0.0),
        # beside what a rounded w makes
        lambda u, t: 2 * 3 * Fraction(u) * (Fraction(ACTIVATION_ULPS) + 2),
    ),
    "flushed slope": (dict(norm=1.0), {}, BIG, 0.0, lambda u, t: Fraction(t) * Fraction(BIG)),
    "underflow of a product": (dict(), {}, 0.0, 0.0, lambda u, t: Fraction(t)),
    "flushed kernel": (
        *(dict(slope=1.0), {}, BIG, 0.0),
        lambda u, t: Fraction(t) * Fraction(BIG),
    ),
    "flushed product": (
        *(dict(magnitude=BIG), {}, 0.0, 0.0),
        lambda u, t: Fraction(t) * Fraction(BIG),
    ),
    "products": (
        *(dict(magnitude=3.0, slope=2.0, fan_out=5), {}, 7.0, 0.0),
        lambda u, t: 42 * exact_gamma(5, u),
    ),
    "long sums": (
        *(dict(magnitude=3.0, slope=2.0, fan_out=10**5), {}, 7.0, 0.0),
        lambda u, t: 42 * exact_gamma(10**5, u),
    ),
    "folded kernel": (
        *(dict(kernel_error=3.0, slope=2.0), {}, 7.0, 0.0),
        lambda u, t: 42 * (1 + Fraction(ACTIVATION_ULPS * u)),  # as large as σ′ may be computed
    ),
}


@pytest.mark.parametrize("numbers", [(UNIT, TINY), (FLOAT32_UNIT, FLOAT32_TINY)], ids=str)
@pytest.mark.parametrize("term", BACKWARD)
def test_the_error_of_a_gradient(term, numbers):
    norms, last, size, pre, least = BACKWARD[term]
    layers = NOTHING._replace(**norms), NOTHING._replace(**last)
    charge = backward((size,), *layers, pre=pre, unit=numbers[0], tiny=numbers[1])
    assert_covers(charge, least(*numbers))


def test_a_gradient_is_charged_in_float64_unless_it_is_told():
    """Otherwise the terms above would be float32's, and too large to be useful."""
    layers = NOTHING._replace(norm=1.0, slope=2.0), NOTHING
    pre_errors, sizes = [tf.zeros(1, tf.float64)], [tf.ones((1, 1), tf.float64)]
    for layer in layers, (layers[0]._replace(slope=0.0, norm=0.0), NOTHING):
        default = float(gradient_error(layer, pre_errors, sizes)[0, 0])
        assert default == float(backward((1.0,), *layer)) > 0.0


def test_what_a_gradient_is_charged_is_rounded_up(rng):
    norm, bend, pre, size = parts = rng.uniform(1.0, 2.0, (4, 60))
    first = NOTHING._replace(norm=tf.constant(norm[:, None]), bend=tf.constant(bend[:, None]))
    given = [tf.constant(pre)], [tf.constant(size[:, None])]
    given = [*given[0]] * 2, [tf.zeros((60, 1), tf.float64), *given[1]]  # no rounded w beside it
    charges = gradient_error([first, NOTHING, NOTHING], *given)[:, 0].numpy()
    for charge, product in zip(charges, np.prod(_exactly(parts), axis=0), strict=True):
        assert_covers(charge, product)


def test_each_layer_has_its_own_size_and_slope():
    """Of three maps: the second from the end comes first on the way back."""
    layers = [
        NOTHING._replace(norm=1.0, slope=1.0, bend=1.0),
        NOTHING._replace(norm=10.0, slope=1.0, bend=3.0),
        NOTHING,
    ]
    pre_errors = [tf.constant([p], tf.float64) for p in (1.0, 1.0)]
    sizes = [tf.constant([[s]], tf.float64) for s in (1.0, 100.0)]
    # θ_2 = 3, χ_1 = 30, θ_1 = χ_1 + (100 + χ_1)
    found = gradient_error(layers, pre_errors, sizes)[0, 0]
    assert float(found) == pytest.approx(160.0, rel=1e-5) and found >= 160.0


def test_each_arithmetic_has_its_own_numbers():
    assert unit_and_tiny(tf.float64) == (UNIT, TINY) == (2.0**-53, 2.0**-1022)
    assert unit_and_tiny(tf.float32) == (FLOAT32_UNIT, FLOAT32_TINY) == (2.0**-24, 2.0**-126)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_norms_of_what_is_rounded_are_bounds(depth):
    """As large as sums of that many squares may come out too small."""
    count = 2**14
    layers = [NOTHING._replace(bias_error=1.0, norm=1.0, bend=1.0)] * (depth - 1) + [NOTHING]
    given = [tf.zeros((1, 1), tf.float64)] * depth
    ones = [tf.ones((1, 1, count), tf.float64)] * depth
    charge = margin_charge(layers, given, ones).gradient[0, 0]
    size = 128 * (1 + exact_gamma(count // 2))
    assert_covers(charge, size if depth == 2 else size * Fraction(UNIT))
    assert float(charge) < 129.0 if depth == 2 else float(charge) < 300.0 * UNIT


def test_a_square_may_underflow():
    entry = 1e-170
    layers = [NOTHING._replace(bias_error=1e20, norm=1e20, bend=1.0), NOTHING]
    cotangents = [tf.constant([[[entry]]], tf.float64)] * 2
    charge = margin_charge(layers, [tf.zeros((1, 1), tf.float64)] * 2, cotangents).gradient
    assert_covers(charge[0, 0], Fraction(entry) * 10**40 * 9 / 10)
    found = margin_charge([NOTHING], [tf.zeros((1, 1), tf.float64)], cotangents[:1]).gradient
    assert_covers(found[0, 0], Fraction(TINY))


# The minorant of `dual.py`: with powers of two nothing is rounded, in either range of sizes.
@pytest.mark.parametrize("power", [0, -400, 300])
def test_a_minorant_by_hand(power):
    scale = 2.0**power
    margin, gradient, moved = [20.0], [[3.0 / scale, 0.0]], [[scale, 2.0 * scale]]
    kappa = [2.0 / scale / scale] if power != -400 else [2.0 / scale]
    bound = dual.minorant(*(tf.constant(p, tf.float64) for p in (margin, gradient, moved, kappa)))
    bent = [kappa[0] * d for d in moved[0]]
    half = 0.5 * sum(b * d for b, d in zip(bent, moved[0], strict=True))
    assert float(bound.intercept[0]) == 20.0 - 3.0 - half
    slope = math.hypot(3.0 / scale + bent[0], bent[1])
    assert float(bound.slope[0]) == pytest.approx(slope, rel=1e-14)
    assert float(bound.curvature[0]) == kappa[0]


def test_a_minorant_without_a_move():
    parts = [2.0], [[3.0, 4.0]], None, [1.0]
    given = [None if p is None else tf.constant(p, tf.float64) for p in parts]
    assert [float(part[0]) for part in dual.minorant(*given)] == [2.0, 5.0, 1.0]
    given[1] = tf.constant([[np.inf, 0.0]], tf.float64)  # as inf · 0
    assert np.isnan(float(dual.minorant(*given).intercept[0]))


@pytest.mark.parametrize("size", [1e-310, 1e-250, 1e-80, 1.0, 1e80, 1e250])
def test_norms_of_any_size(size):
    vector = np.array([[3.0, -4.0]]) * size
    if size > 1e-307:
        for one in (vector, -np.abs(vector)):
            np.testing.assert_allclose(dual.norm(tf.constant(one)), 5.0 * size, rtol=1e-14)
    assert float(dual.norm(tf.zeros((1, 2), tf.float64))[0]) == 0.0
    wide = np.array([[1.0, 1e-200, 1e100 * (size > 1.0)]])
    np.testing.assert_allclose(dual.norm(tf.constant(wide)), wide.max(), rtol=1e-14)


ROOTS = {  # A, h, κ → r
    "all": (6.0, 1.0, 4.0, 1.5),
    "line": (6.0, 2.0, 0.0, 3.0),
    "parabola": (8.0, 0.0, 4.0, 2.0),
    "tiny squares": (6e-320 * 2**60, 2.0**-300, 0.0, 6e-320 * 2**360),
    "small curvature": (2.0**-600, 0.0, 2.0**-599, 1.0),
    "large curvature": (2.0**600, 0.0, 2.0**601, 1.0),
    "nothing left": (0.0, 1.0, 1.0, 0.0),
    "less than nothing": (-1.0, 1.0, 1.0, 0.0),
    "nothing that changes": (1.0, 0.0, 0.0, np.inf),
    "no number": (np.nan, 1.0, 1.0, 0.0),
    "no slope": (1.0, np.nan, 1.0, 0.0),
    "no margin": (np.inf, 1.0, 1.0, 0.0),
    "no margin, line": (np.inf, 1.0, 0.0, 0.0),
    "overflow": (1e308, 1e-150, 0.0, np.finfo(np.float64).max),
}


@pytest.mark.parametrize("case", ROOTS)
def test_roots(case):
    *parts, root = ROOTS[case]
    bound = dual.Minorant(*(tf.constant([part], tf.float64) for part in parts))
    found = float(dual.certified_radius(bound)[0])
    assert found == pytest.approx(root, rel=1e-14)


def test_floors_are_small():
    """Far below any norm that is met, far above its square's underflow."""
    assert SLOPE_FLOOR**2 < 1e-290 and SLOPE_FLOOR > 1e-154
