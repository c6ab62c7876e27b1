"""Logs as TF Serving writes them, encoded by hand, and small models to have served them."""

import numpy as np
import tensorflow as tf


def varint(number):
    number &= 2**64 - 1
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, payload):
    """A length-delimited field of a protocol buffer, or a varint."""
    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def spec(name="m", version=None, signature="", label=""):
    out = field(1, name.encode())
    if version is not None:
        out += field(2, field(1, version))
    if signature:
        out += field(3, signature.encode())
    if label:
        out += field(4, label.encode())
    return out


def content(x, dtype=None):
    """A TensorProto, serialised, its numbers as bytes."""
    return tf.make_tensor_proto(x, dtype).SerializeToString()


def predict(x, key="x", *, timestamp=None, served=None, metadata=None, more=b"", **asked):
    """A PredictionLog of a predict request, serialised.

    Args:
        x: an array, or the bytes of a TensorProto.
        served, metadata: versions that the response and the log's metadata name.
    """
    tensor = x if isinstance(x, bytes) else content(x)
    request = field(1, spec(**asked))
    request += field(2, field(1, key.encode()) + field(2, tensor)) + more
    log = field(1, request)
    if served is not None:
        log += field(2, field(2, spec(version=served)))
    about = b"" if metadata is None else field(1, spec(version=metadata))
    about += b"" if timestamp is None else field(4, timestamp)
    return (field(1, about) if about else b"") + field(6, log)


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


class Small(tf.Module):
    """A net of inputs (2, 3) and three classes."""

    def __init__(self, seed, activation=tf.nn.softplus):
        super().__init__()
        rng = np.random.default_rng(seed)
        shapes = (6, 5), (5,), (5, 3), (3,)
        self.parts = [tf.Variable(rng.standard_normal(s), dtype=tf.float32) for s in shapes]
        self.activation = activation

    def __call__(self, x):
        kernel, bias, last, offset = (tf.cast(part, x.dtype) for part in self.parts)
        flat = tf.reshape(x, (-1, 6))
        return tf.matmul(self.activation(tf.matmul(flat, kernel) + bias), last) + offset


def save(path, seed, key="x", **options):
    """A SavedModel with the signatures serving_default, raw (uint8) and double."""
    model = Small(seed, **options)

    def signature(dtype, key, function):
        return tf.function(lambda **x: {"logits": function(x[key])}).get_concrete_function(
            **{key: tf.TensorSpec((None, 2, 3), dtype, name=key)}
        )

    signatures = {
        "serving_default": signature(tf.float32, key, model),
        "raw": signature(
            tf.uint8, "pixels", lambda x: model(tf.cast(x, tf.float32) * (1.0 / 255.0))
        ),
        "double": signature(tf.float64, "x", model),
    }
    tf.saved_model.save(model, str(path), signatures=signatures)
    return str(path)
