"""Pipelines of tf.data without a thread that whoever drops an iterator may have to wait for."""

import numpy as np
import tensorflow as tf

from keras_curv.data.pipeline import without_tuning
from keras_curv.training.run import trainer
from keras_curv.training.run.recipe import Recipe


def test_the_same_elements_without_a_thread_that_tunes():
    plain = tf.data.Dataset.range(7).batch(3).prefetch(2)
    untuned = without_tuning(plain)
    assert untuned.options().autotune.enabled is False
    for one, other in zip(plain, untuned, strict=True):
        assert np.array_equal(one, other)


def test_training_and_validation_are_without_it():
    x, y = np.zeros((8, 4), np.float32), np.zeros(8, np.int64)
    batches = trainer.training_batches(x, y, Recipe(width=4, epochs=2, batch_size=4), 0)
    assert batches.options().autotune.enabled is False
    assert trainer.validation_batches((x, y)).options().autotune.enabled is False
