"""A model written in TensorFlow without Keras, in any spelling."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.network.network import Network


class Net(tf.Module):
    """x (n, 6) → 5 hidden units, softplus → 3 logits, written out by `body(x, net)`."""

    def __init__(self, body=None, dtype=np.float32, seed=11, wrap=tf.Variable):
        super().__init__()
        rng = np.random.default_rng(seed)
        shapes = {"w": (6, 5), "b": (5,), "v": (5, 3), "c": (3,), "mean": (6,), "s": (6,)}
        self.arrays = {
            n: (0.2 + np.abs(rng.normal(size=s))).astype(dtype) for n, s in shapes.items()
        }
        self.arrays["w"] *= np.where(rng.random((6, 5)) < 0.5, -1, 1).astype(dtype)
        self.arrays["v"] *= np.where(rng.random((5, 3)) < 0.5, -1, 1).astype(dtype)
        for name, array in self.arrays.items():
            setattr(self, name, wrap(array))
        self.body = body or plain_body

    def export(self, path, shape=(6,), dtype=tf.float32, **outputs):
        spec = tf.TensorSpec((None, *shape), dtype, name="x")
        function = tf.function(lambda x: self.body(x, self), input_signature=[spec])
        self.function = function
        tf.saved_model.save(self, str(path), signatures=function.get_concrete_function())
        return path

    def oracle(self, w=None, b=None, v=None, c=None):
        def pick(given, name):
            return np.float64(self.arrays[name]) if given is None else given

        return Network.from_weights(
            [pick(w, "w"), pick(v, "v")], [pick(b, "b"), pick(c, "c")], "softplus"
        )


def plain_body(x, net):
    return tf.nn.softplus(x @ net.w + net.b) @ net.v + net.c
