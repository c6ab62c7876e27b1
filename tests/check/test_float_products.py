"""Products with kernels in float64: the real ones are within, and what is known is close."""

import numpy as np
import pytest
from flint import arb

from keras_curv_check.balls import dot, vector, within
from keras_curv_check.network import through


@pytest.mark.parametrize("size", [1.0, 1e-160, 1e-300, 1e90])
def test_real_products_are_within(size):
    """Entries that cancel, balls that no float is the middle of, and what underflows."""
    rng = np.random.default_rng(7)
    kernel = rng.normal(size=(60, 9)) * 10.0 ** rng.uniform(-8.0, 8.0, size=(60, 9))
    kernel[30:] = -kernel[:30]
    numbers = size * rng.normal(size=(4, 60))
    numbers[:, 30:] = numbers[:, :30] * (1.0 + 1e-15)
    middle = [[(arb(one) / 3).mid() for one in row] for row in numbers.tolist()]
    spreads = vector(np.array([0.0, 1e-20, 1e-9, 1.0]))
    table = [[one + within(far) for one in row] for row, far in zip(middle, spreads, strict=True)]
    found = through(table, kernel, 0.0)
    for row, far, products in zip(middle, spreads, found, strict=True):
        for column, product in zip(kernel.T, products, strict=True):
            w, reach = vector(column), far * float(np.abs(column).sum())
            exact, sizes = dot(row, w), dot([abs(one) for one in row], [abs(one) for one in w])
            assert product.contains(exact - reach) and product.contains(exact + reach)
            assert product.rad() < 1.001 * reach + 1e-13 * sizes + 1e-199


@pytest.mark.parametrize("place", ["number", "kernel", "ball"])
@pytest.mark.parametrize("huge", [1e308, np.inf, np.nan])
def test_what_may_overflow_is_unknown(place, huge):
    kernel, row = np.ones((3, 2)), [arb(1.0)] * 3
    if place == "number":
        row[1] = arb(huge)
    elif place == "ball":
        row[1] = arb(0.0, np.inf if np.isnan(huge) else huge)
    elif np.isfinite(huge):
        kernel[1] = huge
    else:
        return
    assert not any(entry.is_finite() for entry in through([row], kernel, 0.0)[0])
