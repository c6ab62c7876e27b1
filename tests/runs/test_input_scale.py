"""What examples are multiplied by is that number, in float64, and not the float32 next to it."""

import csv
from fractions import Fraction

import keras
import numpy as np
import pytest

from keras_curv import certify_examples
from keras_curv.errors import InputError


def linear(bias):
    """A model whose boundary is at −bias."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    model.set_weights([np.array([[1.0, 0.0]]), np.array([bias, 0.0])])
    return model


@pytest.mark.parametrize("scale", [0.1, 1.0 / 255.0, 3.0])
def test_no_radius_exceeds_the_distance_from_the_product(scale, tmp_path):
    bias = np.nextafter(np.float32(-scale), np.float32(0.0)) * np.float32(1.0 - 1e-6)
    examples = np.ones((1, 1), np.float32), np.zeros(1, int)
    path = tmp_path / "rows.csv"
    options = {"input_scale": scale, "radii": [1e-9], "method": "crc", "output": path}
    certify_examples(linear(bias), examples, **options)
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert 0.0 < Fraction(row["radius"]) <= Fraction(scale) + Fraction(float(bias))


def test_the_whitest_pixel_is_inside_of_the_unit_box():
    examples = np.array([[255], [0]], np.uint8), np.array([0, 1])
    options = {"input_scale": 1.0 / 255.0, "threat": {"low": 0.0, "high": 1.0}}
    summary = certify_examples(linear(-0.5), examples, radii=[0.4], method="crc", **options)
    assert summary["certified_accuracy"]["0.4"] == 1.0


def test_what_float64_cannot_hold_is_not_scaled():
    examples = np.array([[2**53 + 1]]), np.array([0])
    with pytest.raises(InputError, match="int64 entries that float64 cannot hold"):
        certify_examples(linear(-0.5), examples, input_scale=2.0**-53, method="crc", radii=[0.1])
