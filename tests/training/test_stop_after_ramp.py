"""Early stopping by certified accuracy counts from the end of the radius's ramp."""

import keras
import numpy as np
import pytest

from keras_curv import CertifiedAccuracy, CRTModel, InputError, StopAfterRamp, data

X, Y = data.load_all("digits", "train")
X, Y = X[:64], Y[:64]
STEPS = 2  # of an epoch


class Falling(keras.callbacks.Callback):
    """Logs a figure that never improves."""

    def on_epoch_end(self, epoch, logs=None):
        logs["figure"] = 1.0 - 0.1 * epoch


def fitted(callbacks, ramp_epochs, epochs=8):
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), dense(6, "softplus"), dense(10)]
    model = CRTModel(keras.Sequential(layers), 0.1, ramp_steps=STEPS * ramp_epochs)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, batch_size=32, epochs=epochs, callbacks=callbacks, verbose=0)
    return model


@pytest.mark.parametrize("ramp_epochs", [0, 4])
def test_epochs_count_from_the_end_of_the_ramp(ramp_epochs):
    """The first that counts is the one in which the ramp ends; then comes the patience."""
    stop = StopAfterRamp("figure", patience=2)
    fitted([Falling(), stop], ramp_epochs)
    first = max(ramp_epochs - 1, 0)
    assert stop.stopped_epoch == first + 2
    assert stop.best == pytest.approx(1.0 - 0.1 * first)


def test_the_best_weights_are_of_an_epoch_after_the_ramp():
    kept = []

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append(self.model.get_weights())

    stop = StopAfterRamp("figure", patience=2, restore_best_weights=True)
    model = fitted([Falling(), Keep(), stop], 3)
    for found, wanted in zip(model.get_weights(), kept[2], strict=True):
        assert np.array_equal(found, wanted)


def test_it_sees_certified_accuracy():
    certified = CertifiedAccuracy(X[:16], Y[:16], radius=50.0)  # which is never reached
    stop = StopAfterRamp(certified.names[0], patience=1)
    fitted([certified, stop], 2)
    assert stop.stopped_epoch == 2


def test_a_figure_that_is_not_there_is_named():
    with pytest.raises(InputError, match="no 'val_certified' is in the logs; they have: .*loss"):
        fitted([StopAfterRamp("val_certified")], 1)
    with pytest.raises(InputError, match="mode must be one of max, min"):
        StopAfterRamp("figure", mode="auto")
