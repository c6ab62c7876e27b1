"""Asserts that a model is refused, and makes the specs of such models."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.reading import served_model


def assert_refused(source, *words, **options):
    """One line, with the directory and every word in it; returns the line."""
    with pytest.raises(InputError) as caught:
        served_model.read(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    name = getattr(source, "name", "") if isinstance(source, keras.Model) else str(source)
    for word in (name, *words):
        assert word in message
    return message


def spec(*shape, dtype=tf.float32, name=None):
    return tf.TensorSpec(shape, dtype, name=name)
