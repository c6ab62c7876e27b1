"""Every way of writing a map in TensorFlow is read as the same map."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_oracle import assert_reads_as, examples
from written_net import Net, plain_body

from keras_curv.reading import served_model

L = keras.layers


def _outer(x, net, affine):
    return tf.matmul(tf.nn.softplus(affine), net.v) + net.c


def _raw_product(x, net):
    product = tf.raw_ops.BatchMatMulV2(x=x, y=tf.transpose(net.w), adj_y=True)
    return _outer(x, net, product + net.b)


def _through_shape(x, net):
    flat = tf.reshape(x, tf.stack([tf.shape(x)[0], 3, 2]))
    flat = tf.reshape(flat, tf.concat([tf.shape(flat)[:1], [-1]], axis=0))
    return _outer(x, net, flat @ net.w + net.b)


def _unit_axes(x, net):
    wide = tf.expand_dims(tf.expand_dims(x, -1), 1)
    return _outer(x, net, tf.squeeze(wide, [1, -1]) @ net.w + net.b)


def _transposed(x, net):
    turned = tf.transpose(tf.reshape(x, (-1, 2, 3)), (0, 2, 1))
    return _outer(x, net, tf.reshape(turned, (-1, 6)) @ net.w + net.b)


TURN = np.eye(6)[:, np.arange(6).reshape(2, 3).T.reshape(-1)]

# body, and the first layer (kernel, bias) in terms of the arrays, where it is not (w, b)
SAME = {
    "operator": lambda x, n: _outer(x, n, x @ n.w + n.b),
    "bias on the left": lambda x, n: _outer(x, n, n.b + tf.matmul(x, n.w)),
    "bias_add": lambda x, n: _outer(x, n, tf.nn.bias_add(x @ n.w, n.b)),
    "transpose_b": lambda x, n: _outer(
        x, n, tf.matmul(x, tf.transpose(n.w), transpose_b=True) + n.b
    ),
    "adjoint_b": lambda x, n: _outer(x, n, tf.matmul(x, tf.transpose(n.w), adjoint_b=True) + n.b),
    "batch product": _raw_product,
    "einsum": lambda x, n: _outer(x, n, tf.einsum("ni,io->no", x, n.w) + n.b),
    "minus minus": lambda x, n: _outer(x, n, x @ n.w - (-n.b)),
    "bias of rank 2": lambda x, n: _outer(x, n, x @ n.w + tf.reshape(n.b, (1, 5))),
    "shape ops": _through_shape,
    "unit axes": _unit_axes,
    "identities": lambda x, n: tf.identity(
        _outer(x, n, tf.stop_gradient(tf.identity(x)) @ n.w + n.b)
    ),
    "double negation": lambda x, n: _outer(x, n, -tf.negative(x @ n.w + n.b)),
    "powers of two": lambda x, n: _outer(x, n, ((4.0 * x) / 2.0) @ (n.w / 2.0) + n.b),
}
CHANGED = {
    "subtracted from": (
        lambda x, n: _outer(x, n, n.b - x @ n.w),
        lambda w, b, m, s: (-w, b),
    ),
    "negated": (lambda x, n: _outer(x, n, -(x @ n.w + n.b)), lambda w, b, m, s: (-w, -b)),
    "standardised": (
        lambda x, n: _outer(x, n, ((x - n.mean) / n.s) @ n.w + n.b),
        lambda w, b, m, s: (w / s[:, None], b - (m / s) @ w),
    ),
    "divided": (
        lambda x, n: _outer(x, n, (x / 255.0) @ n.w + n.b),
        lambda w, b, m, s: (w / 255.0, b),
    ),
    "variance": (
        lambda x, n: _outer(x, n, (x - n.mean) * tf.math.rsqrt(n.s + 0.5) @ n.w + n.b),
        lambda w, b, m, s: (w / np.sqrt(s + 0.5)[:, None], b - (m / np.sqrt(s + 0.5)) @ w),
    ),
    "squares": (
        lambda x, n: _outer(x, n, (x * tf.square(n.s) * tf.sqrt(n.mean)) @ n.w + n.b),
        lambda w, b, m, s: (w * (s**2 * np.sqrt(m))[:, None], b),
    ),
    "reciprocal": (
        lambda x, n: _outer(x, n, (x * tf.math.reciprocal(n.s)) @ n.w + n.b),
        lambda w, b, m, s: (w / s[:, None], b),
    ),
    "floored": (
        lambda x, n: _outer(x, n, (x * tf.maximum(n.s, 0.7)) @ n.w + n.b),
        lambda w, b, m, s: (w * np.maximum(s, np.float32(0.7))[:, None], b),
    ),
    "transposed": (_transposed, lambda w, b, m, s: (TURN @ w, b)),
    "scaled after": (
        lambda x, n: _outer(x, n, (x @ n.w + n.b) * n.b - 2.0),
        lambda w, b, m, s: (w * b, b * b - 2.0),
    ),
}


@pytest.mark.parametrize(
    ("case", "wrap"), zip(SAME, itertools.cycle([tf.Variable, tf.constant]), strict=False)
)
def test_every_way_of_writing_an_affine_map_reads_the_same(case, wrap, tmp_path):
    net = Net(SAME[case], wrap=wrap)
    served = served_model.read(net.export(tmp_path / "model"))
    if case in ("bias on the left", "operator"):
        assert_reads_as(served, net.oracle(), examples((6,)))
    else:
        assert_reads_as(served, net.oracle(), examples((6,)), rtol=1e-12)


@pytest.mark.parametrize("case", CHANGED)
def test_arithmetic_around_the_product_is_folded(case, tmp_path):
    body, first = CHANGED[case]
    net = Net(body)
    served = served_model.read(net.export(tmp_path / "model"))
    w, b = first(*(np.float64(net.arrays[name]) for name in ("w", "b", "mean", "s")))
    assert_reads_as(served, net.oracle(w=w, b=b), examples((6,)), rtol=1e-6)


def test_float64_graphs_are_read_exactly(tmp_path):
    net = Net(dtype=np.float64)
    served = served_model.read(net.export(tmp_path / "model", dtype=tf.float64))
    assert_reads_as(served, net.oracle(), examples((6,), np.float64))


def test_bytes_are_cast_then_scaled(tmp_path):
    net = Net(lambda x, n: plain_body(tf.cast(x, tf.float32) / 255.0, n))
    served = served_model.read(net.export(tmp_path / "model", dtype=tf.uint8))
    expected = net.oracle(w=np.float64(net.arrays["w"]) / 255.0)
    assert served.input_dtype == tf.uint8
    assert_reads_as(served, expected, examples((6,), np.uint8), rtol=1e-6)
