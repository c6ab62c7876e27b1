"""What a server answers: a session of TensorFlow 1 that imports the graph, restores and fetches."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.reading import saved_model


def answered(path, x, signature="serving_default"):
    """What a client gets, by name, for the one input that it sends, or for a mapping of several."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        definition = meta.signature_def[signature]
        places = {name: info.name for name, info in definition.inputs.items()}
        sent = x if isinstance(x, dict) else {name: x for (name,) in [places]}
        given = {places[name]: array for name, array in sent.items()}
        assert len(given) == len(sent) == len(places)
        tensors = {name: info.name for name, info in definition.outputs.items()}
        return session.run(tensors, given)


def assert_read_as_answered(path, x=None, output=None, rtol=1e-5):
    """The network that is read is the one a server answers by; returns it."""
    served = saved_model.read(path)
    if x is None:
        x = np.random.default_rng(5).normal(size=(6, *served.input_shape)).astype(np.float32)
    served.check(x)
    outputs = answered(path, x)
    theirs = outputs[output or ("logits" if "logits" in outputs else next(iter(outputs)))]
    ours = served.network.logits(tf.constant(np.float64(x).reshape(len(x), -1))).numpy()
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)
    return served
