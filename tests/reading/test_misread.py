"""Attributes, keys and numbers that TensorFlow takes otherwise than they look, are refused."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import export
from refused import assert_refused
from tensorflow.core.protobuf import saved_model_pb2

from keras_curv.errors import InputError
from keras_curv.lowering.rules.resizing import nearest_pixels

SPECS = [tf.TensorSpec((None, 5), tf.float32)]


def _pooled(x):
    """Windows {0}, {2, 3} and not {0, 1}, {3, 4}, which have the same shape."""
    pads = [0, 0, 1, 0, 0, 0, 0, 0]
    image = tf.reshape(x, (-1, 5, 1, 1))
    sizes = {"ksize": [1, 2, 1, 1], "strides": [1, 3, 1, 1]}
    pooled = tf.raw_ops.MaxPool(
        input=image, **sizes, padding="EXPLICIT", explicit_paddings=pads, data_format="NHWC"
    )
    return tf.reshape(pooled, (-1, 2))


def _masked(name):
    """A bit beyond the only entry says nothing, but was taken for it."""

    def body(x):
        ends = {"begin": [1], "end": [4], "strides": [2], f"{name}_mask": 2}
        places = tf.raw_ops.StridedSlice(input=tf.constant([0, 1, 2, 3]), **ends)
        return tf.gather(x, places, axis=1)

    return body


def _added_truths(x):
    """1 + 1, and not "or"."""
    one = tf.cast(tf.constant([True, True]), tf.int32)
    return tf.gather(x, one + one, axis=1)


def _wrapped(x):
    """2³² + 1, the whole axis, and not the 1 that it is in 32 bits."""
    many = tf.cast(tf.constant([65536], tf.int32), tf.int64)
    end = tf.concat([tf.constant([0], tf.int64), many * many + 1], 0)
    zeros, ones = (tf.constant([n, n], tf.int64) for n in (0, 1))
    sliced = tf.raw_ops.StridedSlice(
        input=x, begin=zeros, end=end, strides=ones, begin_mask=1, end_mask=1
    )
    return tf.reduce_max(sliced, axis=1, keepdims=True) * np.ones((1, 2), np.float32)


MISREAD = {
    "padding of a maximum": (_pooled, "padding EXPLICIT is not supported"),
    **{f"mask of {name}": (_masked(name), "of a shape") for name in ("begin", "end")},
    "mask that drops an axis": (_masked("shrink_axis"), "of a shape"),
    "truth values": (_added_truths, "truth values"),
    "integers": (_wrapped, "may wrap around"),
    "slope": (lambda x: tf.nn.leaky_relu(x, 1e-40), "take for 0"),
}


@pytest.mark.parametrize("case", MISREAD)
def test_what_looks_otherwise_is_refused(case, tmp_path):
    body, words = MISREAD[case]

    def whole(x, net):
        return body(x)[:, :2]

    assert_refused(export(tmp_path / "model", whole, SPECS), words)


class _Times(tf.Module):
    def __init__(self):
        self.w = tf.Variable(np.eye(2, dtype=np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def __call__(self, x):
        return {"logits": tf.matmul(x, self.w)}


def test_two_keys_do_not_become_one(tmp_path):
    """Bytes that are not UTF-8 were read as the character for such, which is a key of its own."""
    module, path = _Times(), tmp_path / "model"
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.__call__})
    file = path / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    stand_in = "\ufffd".encode()
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            strings = node.attr["value"].tensor.string_val
            for i, key in enumerate(strings):
                if key.endswith(b"VARIABLE_VALUE"):
                    strings[i] = stand_in
    file.write_bytes(model.SerializeToString())
    _rewrite(path / "variables", {stand_in: np.eye(2), b"\xff": np.eye(2)[::-1]})
    assert_refused(path, "the index is corrupt", "utf-8")


def _rewrite(folder: pathlib.Path, tensors: dict[bytes, np.ndarray]) -> None:
    prefix, graph = str(folder / "variables"), "_CHECKPOINTABLE_OBJECT_GRAPH"
    (kept,) = tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=[graph], shape_and_slices=[""], dtypes=[tf.string]
    )
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[graph, *tensors],
        shape_and_slices=[""] * (1 + len(tensors)),
        tensors=[kept, *(tf.constant(value, tf.float32) for value in tensors.values())],
    )


def test_a_pixel_next_to_an_edge_is_refused():
    """Its place, 8191 − 2⁻¹², is 8191 in float32; a ratio that is exact does not help."""
    with pytest.raises(InputError, match="equally near"):
        nearest_pixels(8193, 2048)
    assert nearest_pixels(4, 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
