# ruff: noqa: E501
"""Work that TensorFlow does while it loads: here for the shape that a reshape is asked for."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import Net, cases, edited, export, nodes_of

CASES, case = cases()


def _asked(body, net=None):
    """Reshapes the examples to four columns and `body(column, row, net)`, a number that is 0.

    Column and row are written as one number each, which stands for 2^17.
    """

    def build(path, canary):
        def whole(x, net):
            ends = tf.constant([[0]] * 5), tf.constant([[0] * 5])
            return net(tf.reshape(x, [-1, 4 + tf.cast(body(*ends, net), tf.int32)]))

        export(path, whole, net=net and net())
        with edited(path) as meta:
            for node in [*meta.graph_def.node, *nodes_of(meta)]:
                node.attr.pop("_output_shapes", None)
                if node.op != "Const":
                    continue
                tensor = node.attr["value"].tensor
                if [d.size for d in tensor.tensor_shape.dim] in (
                    [5, 1],
                    [1, 5],
                ):
                    for dim in tensor.tensor_shape.dim:
                        dim.size = 2**17 if dim.size == 5 else 1
                    tensor.ClearField("tensor_content")
                    tensor.int_val[:] = [0]
        return path

    return build


def _larger(body, small, large):
    """Exchanges a constant of `_asked(body)`: TensorFlow computes what is asked when it writes, too."""

    def build(path, canary):
        _asked(body)(path, canary)
        with edited(path) as meta:
            (tensor,) = [
                node.attr["value"].tensor
                for node in nodes_of(meta)
                if node.op == "Const"
                and np.array_equal(tf.make_ndarray(node.attr["value"].tensor), small)
            ]
            tensor.CopyFrom(tf.make_tensor_proto(large))
        return path

    return build


def _doubled(column, row, net):
    for _ in range(12):
        row = tf.concat([row, row], 0)
    return tf.reduce_max(row)


def _indices(column, row, net):
    """Each time twice as many: of as many numbers as the last ones have axes. None at first."""
    found = tf.raw_ops.Where(condition=tf.zeros((4, 4)))
    for _ in range(22):
        found = tf.raw_ops.Where(condition=found + 1)
    return tf.reduce_max(found) * 0


def _axes_added_up(column, row, net):
    many = tf.zeros([1] * 16, tf.int32)
    for _ in range(3):
        many = tf.raw_ops.GatherV2(params=many, indices=many, axis=0)
    return tf.raw_ops.Reshape(tensor=many, shape=[])


def _filled(column, row, net):
    return tf.reduce_max(tf.fill(tf.stack([tf.constant(7)] * 3), 0))


def _range(column, row, net):
    return tf.reduce_min(tf.raw_ops.Range(start=0.0, limit=1.0, delta=0.25))


def _nothing(column, row, net):
    none = tf.raw_ops.Reshape(tensor=tf.zeros((0,)), shape=[3, 0])
    return tf.reduce_max(tf.raw_ops.Sum(input=none, axis=[1]))


def _long():
    net = Net()
    net.long = tf.Variable(tf.zeros((2**16, 1)))
    return net


_shape_of = tf.raw_ops.Shape  # tf.shape would be a constant
ASKED = {
    "two vectors, added": lambda c, r, n: tf.reduce_max(c + r),
    "two vectors, multiplied": lambda c, r, n: tf.reduce_max(c @ r),
    "two vectors, added in another function": lambda c, r, n: tf.function(lambda a, b: tf.reduce_max(a + b))(c, r),
    "an outer product by Einsum": lambda c, r, n: tf.reduce_max(tf.einsum("i,j->ij", c[:, 0], r[0])),
    "a vector, doubled twelve times": _doubled,
    "filled, as a shape says three times": lambda c, r, n: tf.reduce_max(tf.fill(tf.stack([_shape_of(input=r)[1]] * 3), 0)),
    "filled, as the shape of a product says": lambda c, r, n: tf.reduce_max(tf.fill(_shape_of(input=c @ r), 0)),
    "more axes at each step": _axes_added_up,
}  # fmt: skip
for name, body in ASKED.items():
    case(f"loading: {name}")(_asked(body))
case("loading: indices of indices, twenty times")(
    _larger(_indices, np.zeros((4, 4)), np.ones((4, 4), np.float32))
)
case("loading: filled, three times one number")(_larger(_filled, 7, np.int32(4096)))
case("loading: a range in small steps")(_larger(_range, 0.25, np.float32(1e-10)))
case("loading: the sums of no numbers")(_larger(_nothing, [3, 0], np.int32([2**29, 0])))
case("loading: a variable times itself, once it is a constant")(
    _asked(lambda c, r, n: tf.reduce_max(n.long @ tf.transpose(n.long)), _long)
)
