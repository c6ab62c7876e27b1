"""The exponential has ranges on intervals alone: neither Lipschitz nor of bounded curvature."""

import numpy as np
import pytest

from keras_curv.errors import InputError
from keras_curv.network import activations

SIGMA = activations.get("exponential")


def test_ranges_on_intervals():
    low, high = np.array([-1.0, 0.0, -np.inf]), np.array([1.0, 800.0, 0.0])
    for range_on in (SIGMA.first_range_on, SIGMA.piece_range_on):
        least, most = range_on(low, high)
        np.testing.assert_allclose(least, [np.exp(-1.0), 1.0, 0.0], rtol=1e-13)
        np.testing.assert_allclose(most, [np.exp(1.0), np.inf, 1.0], rtol=1e-13)
        assert least[0] <= np.exp(-1.0) and most[0] >= np.exp(1.0)


@pytest.mark.parametrize(
    "required, why",
    [
        (activations.require_smooth, "bends without bound.* crown needs none"),
        (activations.require_lipschitz, "unbounded slope"),
    ],
)
def test_what_needs_more_refuses_it_by_name(required, why):
    with pytest.raises(InputError, match=f"'exponential' .*{why}"):
        required([activations.get("tanh"), SIGMA])
