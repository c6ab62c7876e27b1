"""Graphs that load, and have a part without a rule, are refused by name."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from hostile_models.models import export
from refused import assert_refused

L = keras.layers


def _image(x):
    return tf.reshape(x, (-1, 2, 2, 1))


def _pooled(x):
    sizes = {"ksize": tf.constant([1, 2, 2, 1]), "strides": tf.constant([1, 1, 1, 1])}
    return {"input": _image(x), "padding": "SAME", **sizes}


def _mixed(dtype):
    def body(x, net):
        return tf.cast(tf.cast(x, dtype) @ tf.cast(net.w, dtype), tf.float32)

    return body


def _batch_average(x, net):
    return net(x - tf.reduce_mean(x, axis=0, keepdims=True))


def _batch_size(x, net):
    """Weights that depend on how many examples are asked at once."""
    return net(x) + tf.cast(tf.shape(x)[0], tf.float32) * tf.constant([1.0, 2.0, 3.0])


def _loop(x, net):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y @ net.square), (0, x))[1]


UNREADABLE = {  # name: body, words of the message
    "expm1": (lambda x, n: tf.math.expm1(x @ n.w) @ n.v, ["Expm1"]),
    "sign": (lambda x, n: tf.sign(x @ n.w) @ n.v, ["Sign"]),
    "max pooling": (
        lambda x, n: tf.reshape(tf.raw_ops.MaxPoolV2(**_pooled(x)), (-1, 4)) @ n.w,
        ["MaxPoolV2", "attributes"],
    ),
    "transposed convolution": (
        lambda x, n: (
            tf.reshape(
                tf.nn.conv2d_transpose(_image(x), tf.ones((1, 1, 1, 1)), (1, 2, 2, 1), 1), (-1, 4)
            )
            @ n.w
        ),
        ["Conv2DBackpropInput"],
    ),
    "examples added across": (lambda x, n: (x + x[:, None])[:, 0], ["Add", "would mix"]),
    "joined examples": (lambda x, n: tf.concat([x, x], 0) @ n.w, ["ConcatV2", "along axis 0"]),
    "joined with constants": (
        lambda x, n: tf.concat([x, tf.ones_like(x)], 1)[:, :4] @ n.w,
        ["OnesLike"],
    ),
    "attention": (lambda x, n: tf.matmul(tf.matmul(x, x, transpose_b=True), x) @ n.w, ["MatMul"]),
    "input on the right": (lambda x, n: tf.matmul(n.w, x, True, True), ["MatMul", "left"]),
    "batch transposed": (
        lambda x, n: tf.matmul(tf.transpose(x), tf.ones((4, 3)), transpose_a=True),
        ["Transpose", "batch"],
    ),
    "batch transposed in the product": (
        lambda x, n: tf.matmul(tf.reshape(x, (-1, 4)), tf.ones((4, 3)), transpose_a=True),
        ["MatMul", "batch"],
    ),
    "reshape over examples": (lambda x, n: tf.reshape(x, (-1, 2)) @ tf.ones((2, 3)), ["Reshape"]),
    "reshape to one": (lambda x, n: tf.reshape(x, (1, -1)), ["Reshape", "mixes"]),
    "reshape and back": (lambda x, n: n(tf.reshape(tf.reshape(x, (2, -1)), (-1, 4))), ["Reshape"]),
    "batch mean": (_batch_average, ["Mean"]),
    "batch sum": (lambda x, n: n(x) * tf.reduce_sum(x, axis=0, keepdims=True)[:, :3], ["Sum"]),
    "examples unstacked": (lambda x, n: tf.stack(tf.unstack(x, num=1)) @ n.w, ["Unpack", "batch"]),
    "weights by example": (
        lambda x, n: n(x) + tf.reduce_sum(tf.zeros((3, tf.shape(x)[0])) @ x),
        ["Fill"],
    ),
    "examples multiplied": (lambda x, n: n(x * tf.reverse(x, [0])), ["ReverseV2"]),
    "examples attended": (
        lambda x, n: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x) @ n.w,
        ["MatMul", "mixes examples"],
    ),
    "batch size": (_batch_size, []),
    "batch size, as a vector": (
        lambda x, n: n(x) + tf.cast(tf.shape(x)[:1], tf.float32) * tf.constant([1.0, 2.0, 3.0]),
        [],
    ),
    "per example constant": (lambda x, n: n(x) + tf.ones((2, 3)), []),
    "broadcast": (lambda x, n: tf.reshape(n(x), (-1, 3, 1)) + tf.ones((1, 1, 2)), []),
    "slice of examples": (lambda x, n: x[1:] @ n.w, ["StridedSlice", "batch"]),
    "one example": (lambda x, n: x[:1] @ n.w, ["StridedSlice", "batch"]),
    "examples reversed": (lambda x, n: x[::-1] @ n.w, ["StridedSlice", "batch"]),
    "examples reversed by name": (lambda x, n: tf.reverse(x, [0]) @ n.w, ["ReverseV2", "batch"]),
    "examples gathered": (lambda x, n: tf.gather(x, [0, 0]) @ n.w, ["GatherV2", "batch"]),
    "examples repeated": (lambda x, n: tf.tile(x, [2, 1]) @ n.w, ["Tile", "example"]),
    "examples padded": (lambda x, n: tf.pad(x, [[0, 1], [0, 0]]) @ n.w, ["Pad", "example"]),
    "examples to blocks": (
        lambda x, n: (
            tf.reshape(
                tf.space_to_batch(tf.reshape(x, (-1, 2, 2, 1)), [2, 2], [[0, 0], [0, 0]]), (-1, 4)
            )
            @ n.w
        ),
        ["SpaceToBatchND", "mixes"],
    ),
    "rows over examples": (
        lambda x, n: tf.reshape(tf.reshape(x, (-1, 2)) @ tf.ones((2, 3)), (-1, 6)),
        ["MatMul", "product"],
    ),
    "split of examples": (lambda x, n: tf.split(x, 1, 0)[0] @ n.w, ["Split", "batch"]),
    "clip by another batch": (lambda x, n: n(tf.minimum(x, x[:, None])[:, 0]), ["Minimum", "mix"]),
    "rounding": (lambda x, n: n(tf.round(x)), ["Round"]),
    "integer cast": (
        lambda x, n: n(tf.cast(tf.cast(x, tf.int32), tf.float32)),
        ["Cast", "int32", "rounds"],
    ),
    "half precision": (_mixed(tf.float16), ["Cast"]),
    "bfloat16": (_mixed(tf.bfloat16), ["Cast"]),
    "attention by einsum": (lambda x, n: tf.einsum("ni,nj->ij", x, x) @ n.w, ["Einsum", "mixes"]),
    "log of softmax": (lambda x, n: tf.math.log(tf.nn.softmax(n(x))), ["Log"]),
    "softmax of pixels": (
        lambda x, n: tf.reshape(tf.nn.softmax(tf.reshape(x, (-1, 2, 2))), (-1, 4)),
        ["reciprocal"],
    ),
    "one unit": (lambda x, n: n(x) @ tf.ones((3, 1)), ["one number", "sigmoid"]),
    "one unit, softmax": (lambda x, n: tf.nn.softmax(n(x) @ tf.ones((3, 1))), []),
    "tanh at the end": (lambda x, n: tf.tanh(n(x)), ["tanh"]),
    "softplus at the end": (lambda x, n: tf.nn.softplus(n(x)), ["softplus"]),
    "three dimensions": (lambda x, n: tf.reshape(n(x), (-1, 3, 1)), ["(None, 3, 1)"]),
    "one dimension": (lambda x, n: tf.reshape(n(x) @ tf.ones((3, 1)), (-1,)), ["output"]),
    "classes only": (lambda x, n: tf.argmax(n(x), axis=1), ["int64"]),
    "two matrices": (lambda x, n: {"a": n(x), "b": -n(x)}, ["'logits'"]),
    "logits are classes": (lambda x, n: {"logits": tf.argmax(n(x), axis=1)}, []),
    "constant": (lambda x, n: tf.zeros((2, 3)) + 2.0 * tf.transpose(n.v)[:, 0], []),
    "loop": (_loop, ["While"]),
    "condition": (
        lambda x, n: tf.cond(tf.reduce_sum(x) > 0.0, lambda: n(x), lambda: -n(x)),
        ["If"],
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_graphs_without_a_rule_are_refused_by_name(case, tmp_path):
    body, words = UNREADABLE[case]
    assert_refused(export(tmp_path / "model", body), *words)


def _by_arithmetic(x, net):
    n = tf.shape(x)[0]
    factor = tf.reduce_prod(tf.constant([2, 2])[0:n])  # 2 for a batch of one, else 4
    mixed = tf.transpose(tf.reshape(x, tf.stack([n, factor, -1])), [0, 2, 1])
    return net(tf.reshape(mixed, tf.stack([n, 4])))


def _by_squeeze(x, net):
    rank = tf.shape(tf.squeeze(x))[-1:]  # of a batch of one, the only axis
    return net(tf.reshape(x, tf.concat([tf.shape(x)[:1], rank], 0)))


def _by_length(x, net):
    n = tf.shape(x)[0]
    return net(tf.reshape(x, tf.stack([n, 4 * n // n])))


@pytest.mark.parametrize("body", [_by_arithmetic, _by_squeeze, _by_length])
def test_models_that_look_at_the_batch_size_are_refused(tmp_path, body):
    """A server's batch of one would get another function than the one certified."""
    assert_refused(export(tmp_path, body))
