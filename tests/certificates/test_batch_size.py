"""A batch takes seconds: its rows are what a killed run keeps, and by it a bar moves."""

import keras
import pytest

from keras_curv import Certifier


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_batch_is_small_where_one_bound_is_much_work(norm):
    layers = [keras.layers.Dense(width, "tanh") for width in (768, 768)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(3)])
    sizes = {
        method: Certifier(model, method=method, threat={"norm": norm}).batch_size()
        for method in ("crc", "crown", "auto")
    }
    assert sizes["auto"] == sizes["crown"] < 30 and sizes["crc"] == 1024


def test_a_batch_is_small_where_one_gradient_is_much_work():
    layers = [keras.layers.Conv2D(48, 3, activation="tanh") for _ in range(2)]
    model = keras.Sequential([keras.Input((24, 24, 1)), *layers, keras.layers.Flatten()])
    model.add(keras.layers.Dense(10))
    assert Certifier(model, method="crc").batch_size() < 10
