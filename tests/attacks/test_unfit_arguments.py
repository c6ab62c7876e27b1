"""Arguments of an attack that do not fit are refused by name."""

import keras
import numpy as np
import pytest

from keras_curv import Network, pgd_attack, read
from keras_curv.errors import InputError

NETWORK = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
X, LABEL = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 1])
UNFIT = {
    "a model": ({"network": keras.Sequential([keras.Input((2,))])}, "read.model..network.*Sequen"),
    "a path": ({"network": "saved_models/digits"}, "network must be a Network.* Received: str"),
    "shape": ({"x": X[:, :1]}, r"x must have the shape \(n, 2\). Received: \(2, 1\)"),
    "one example": ({"x": X[0]}, r"Received: \(2,\)"),
    "integers": ({"x": X.astype(int)}, "x must be floats"),
    "labels of floats": (
        {"label": LABEL.astype(float)},
        "label integers. Received: float32, float64",
    ),
    "few labels": (
        {"label": LABEL[:1]},
        r"label must have an entry for each example, \(n,\) = \(2,\)",
    ),
    "one-hot": ({"label": np.eye(2, dtype=int)}, r"label must have .* Received: \(2, 2\)"),
    "no class": ({"label": LABEL + 1}, "label must be of the 2 classes, from 0. Received: 1 to 2"),
    "text": ({"radius": "2/255"}, "radius must be a number, or one for each.* Received: '2/255'"),
    "none": ({"radius": None}, "radius must be a number.* Received: None"),
    "radii": ({"radius": [0.1] * 3}, r"radius must have an entry for each.* Received: \(3,\)"),
    "negative": ({"radius": -1.0}, "radius must be positive. Received: -1"),
    "steps": ({"steps": 0}, "steps must be an integer, at least 1"),
    "step": ({"step_size": 0.0}, "step_size must be a positive number. Received: 0.0"),
    "seed": ({"seed": "a"}, "seed must be an integer"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_argument_that_does_not_fit_is_named(case):
    changes, message = UNFIT[case]
    given = {"network": NETWORK, "x": X, "label": LABEL, "radius": 0.1, "steps": 3} | changes
    with pytest.raises(InputError, match=message):
        pgd_attack(given.pop("network"), given.pop("x"), given.pop("label"), **given)


def test_arrays_and_a_radius_for_each_are_taken():
    margin, _ = pgd_attack(NETWORK, X, LABEL, radius=[0.7, 0.72], steps=20, restarts=1)
    assert margin[0] > 0 > margin[1]
    digits = read("saved_models/digits").network
    assert pgd_attack(digits, np.zeros((1, 64), np.float32), [0], radius=0.1, steps=2)[0].shape == 1
