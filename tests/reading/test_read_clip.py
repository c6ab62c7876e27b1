"""However a clip of the input is spelled, it is told apart from the network behind it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import ClipInput
from keras_curv.network.clip import split_clip
from keras_curv.reading.served_model import read

layers = keras.layers


@keras.saving.register_keras_serializable(package="test_read_clip")
class _Spelled(layers.Layer):
    """A clip in plain TensorFlow."""

    def __init__(self, call, **kwargs):
        super().__init__(**kwargs)
        self._function = call

    def call(self, x):
        return self._function(x)


SPELLINGS = {
    "clip_by_value": (lambda: [_Spelled(lambda x: tf.clip_by_value(x, 0.0, 1.0))], 0.0, 1.0),
    "minimum of maximum": (
        lambda: [_Spelled(lambda x: tf.minimum(tf.maximum(x, -0.5), 2.0))],
        -0.5,
        2.0,
    ),
    "maximum of minimum": (
        lambda: [_Spelled(lambda x: tf.maximum(tf.minimum(x, 2.0), -0.5))],
        -0.5,
        2.0,
    ),
    "capped ReLU": (lambda: [layers.ReLU(max_value=1.0)], 0.0, 1.0),
    "relu6": (lambda: [_Spelled(tf.nn.relu6)], 0.0, 6.0),
    "relu": (lambda: [layers.ReLU()], 0.0, np.inf),
    "rescaled": (lambda: [layers.Rescaling(1.25, -0.125), layers.ReLU(max_value=1.0)], 0.1, 0.9),
    "pixels": (lambda: [layers.Rescaling(1 / 255), layers.ReLU(max_value=1.0)], 0.0, 255.0),
    "layer": (lambda: [ClipInput()], 0.0, 1.0),
    "dead zone": (lambda: [ClipInput(dead_zone=0.1)], 0.1, 0.9),
    "other limits": (lambda: [ClipInput(-1.0, 3.0, dead_zone=0.25)], 0.0, 2.0),
}


@pytest.mark.parametrize(
    ("spelling", "exported"),
    [*((name, False) for name in SPELLINGS), ("rescaled", True), ("dead zone", True)],
)
def test_a_clip_is_read(spelling, exported, tmp_path):
    """It is flat where it should be, and both parts together are the model."""
    first, low, high = SPELLINGS[spelling]
    keras.utils.set_random_seed(0)
    behind = [layers.Flatten(), layers.Dense(5, "softplus"), layers.Dense(3)]
    model = keras.Sequential([keras.Input((2, 3, 1)), *first(), *behind])
    if exported:
        model.export(str(tmp_path / "model"), verbose=False)
    served = read(str(tmp_path / "model") if exported else model)
    span = (high if np.isfinite(high) else low + 5.0) - low
    x = np.random.default_rng(0).uniform(low - span, low + 2 * span, (50, 2, 3, 1))
    served.check(x.astype(np.float32))
    clip, network = split_clip(served.network)
    assert network.depth == 2 and [one.name for one in network.activations] == ["softplus"]
    assert np.all(clip.scale != 0.0)
    flat = tf.constant(x.reshape(50, 6))
    np.testing.assert_allclose(
        network.logits(clip.value(flat)), model(x.astype(np.float32)), rtol=1e-4, atol=1e-5
    )
    ends = [(limit - clip.offset) / clip.scale for limit in (clip.low, clip.high)]
    z = np.sort(ends, axis=0)
    np.testing.assert_allclose(z, [np.full(6, low), np.full(6, high)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "first", [layers.Permute((2, 1)), layers.Dense(2), layers.AveragePooling1D(2, 1, "same")]
)
def test_other_clips_are_layers(first):
    """Behind one that moves entries, or mixes them."""
    parts = [first, layers.ReLU(max_value=1.0), layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((2, 2)), *parts])
    assert split_clip(read(model).network) is None
