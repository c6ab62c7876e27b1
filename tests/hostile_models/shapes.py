# ruff: noqa: E501
"""Shapes whose arrays would fill the memory."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import cases, enlarge, export

CASES, case = cases()
HARMLESS, harmless_case = cases()


def _grown(op):
    return lambda path, canary: enlarge(export(path, op), 1234, 2**31 - 1)


case("shape: filled")(_grown(lambda x, n: n(x) + tf.reduce_sum(tf.fill([1234], 0.5))))
case("shape: filled, twice as large at each step")(
    lambda path, canary: enlarge(
        export(path, lambda x, n: n(x) + tf.reduce_sum(tf.fill([1234, 1234], 0.5))), 1234, 10**6
    )
)
case("shape: tiled")(_grown(lambda x, n: n(x) + tf.reduce_sum(tf.tile([0.5], [1234]))))
case("shape: broadcast")(
    _grown(lambda x, n: n(x) + tf.reduce_sum(tf.broadcast_to(tf.constant([0.5]), [1234])))
)
case("shape: padded")(
    _grown(lambda x, n: n(x) + tf.reduce_sum(tf.pad(tf.constant([0.5]), [[0, 1234]])))
)
case("shape: a range, while loading")(
    _grown(lambda x, n: n(tf.reshape(x, tf.concat([[-1], tf.range(0, 1234)[4:5]], 0))))
)
harmless_case("shape: in an output that nobody asked for")(
    _grown(lambda x, n: {"logits": n(x), "more": tf.reduce_sum(tf.fill([1234], 1.0))})
)


def _input(shape, body):
    return lambda path, canary: export(path, body, [tf.TensorSpec((None, *shape), tf.float32)])


def _flat(x):
    return tf.reshape(x, (-1, int(np.prod(x.shape[1:]))))


case("shape: convolved, 10^6 × 10^6")(
    _input((10**6, 10**6, 1), lambda x, n: tf.nn.conv2d(x, tf.ones((1, 1, 1, 2)), 1, "SAME"))
)
case("shape: averaged, 10^4 × 10^4")(
    _input((10**4, 10**4, 1), lambda x, n: _flat(tf.nn.avg_pool2d(x, 5000, 5000, "VALID")))
)
case("shape: a window of 10^5 × 10^5")(
    _input((4, 4, 1), lambda x, n: _flat(tf.nn.avg_pool2d(x, 10**5, 1, "SAME")))
)
case("shape: a million units, each on its own")(_input((2**20,), lambda x, n: tf.tanh(tf.tanh(x))))
case("shape: depthwise on a hundred thousand channels")(
    _input((1, 1, 10**5), lambda x, n: _flat(tf.nn.depthwise_conv2d(x, np.ones((1, 1, 10**5, 1), np.float32), [1] * 4, "SAME")))
)  # fmt: skip
