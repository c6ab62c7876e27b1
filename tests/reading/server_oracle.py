"""Answers as a server: a session of TensorFlow 1 imports the graph, restores and fetches.

And what a model answers that Python has loaded.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.reading import served_model


def answered(path, x, signature="serving_default"):
    """Returns outputs by name for the one input that a client sends, or for several by name."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        definition = meta.signature_def[signature]
        places = {name: info.name for name, info in definition.inputs.items()}
        sent = x if isinstance(x, dict) else {name: x for (name,) in [places]}
        given = {places[name]: array for name, array in sent.items()}
        assert len(given) == len(sent) == len(places)
        tensors = {name: info.name for name, info in definition.outputs.items()}
        return session.run(tensors, given)


def loaded(path, x, signature="serving_default"):
    """The same of a model that `tf.saved_model.load` has loaded."""
    model = tf.saved_model.load(str(path))
    function = model.signatures[signature]
    names = function.structured_input_signature[1]
    sent = x if isinstance(x, dict) else {name: x for (name,) in [names]}
    answers = function(**{name: tf.constant(array) for name, array in sent.items()})
    return {name: answer.numpy() for name, answer in answers.items()}


def assert_read_as_answered(path, x=None, output=None, rtol=1e-5):
    """The network that is read is the one a server answers by, and Python; returns it."""
    served = served_model.read(path)
    if x is None:
        x = np.random.default_rng(5).normal(size=(6, *served.input_shape)).astype(np.float32)
    served.check(x)  # so that the network is what the flat graph computes
    ours = served.call(tf.constant(x)).numpy()
    for outputs in (answered(path, x), loaded(path, x)):
        name = output or ("logits" if "logits" in outputs else next(iter(outputs)))
        scale = np.abs(outputs[name]).max()
        np.testing.assert_allclose(ours, outputs[name], rtol=rtol, atol=rtol * scale)
    return served
