"""Average pooling of many channels takes memory for each of them, not for each pair."""

import tracemalloc

import keras

from keras_curv.lowering import flow
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model

L = keras.layers


def test_pooling_does_not_pair_channels_with_one_another(monkeypatch):
    """A window of 8 × 8 for each pair of 512 channels would have 16 million entries, thrice."""
    monkeypatch.setattr(flow, "SPARSE_FROM", 1)
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 2**14)
    model = keras.Sequential(
        [keras.Input((16, 16, 1)), L.Conv2D(512, 1, activation="tanh"), L.AveragePooling2D(8)]
    )
    model.add(L.Flatten())
    model.add(L.Dense(2))
    tracemalloc.start()
    network = served_model.read(model).network
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert network.sizes == (256, 256 * 512, 2)
    assert peak < 2**27
