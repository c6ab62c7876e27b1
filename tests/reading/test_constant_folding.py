"""What TensorFlow computes while it loads a graph is bounded, and not taken for more than it is."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import edited, export
from tensorflow.python.framework import op_def_registry

from keras_curv.errors import InputError
from keras_curv.reading import allow_list, constant_folding

# Integers on which values depend, but no shape.
DATA = {
    *("indices", "segment_ids", "minval", "maxval", "seed", "key", "counter", "alg"),
    *("shard", "num_shards"),
}


def walked(body, *specs):
    """The walk through `body`'s graph, and what it knows of each node."""
    graph = tf.function(body).get_concrete_function(*specs).graph
    walk = constant_folding._Walk(graph.as_graph_def())
    return walk, walk.values(graph.as_graph_def().node, {}), graph


def _is_integer(argument, attributes):
    if argument.type:
        return tf.as_dtype(argument.type).is_integer
    if not argument.type_attr:
        return False
    allowed = attributes[argument.type_attr].allowed_values.list.type
    return bool(allowed) and all(tf.as_dtype(kind).is_integer for kind in allowed)


def test_every_argument_that_can_be_a_shape_is_asked():
    for op in allow_list._PURE_OPS | allow_list._SAVER_OPS:
        definition = op_def_registry.get(op)
        attributes = {attribute.name: attribute for attribute in definition.attr}
        arguments = definition.input_arg
        asked = {place % len(arguments) for place in constant_folding.ASKED.get(op, ())}
        for place, argument in enumerate(arguments):
            if _is_integer(argument, attributes) and argument.name not in DATA:
                assert place in asked, (op, argument.name)


def _constants(rng):
    return [tf.constant(rng.normal(size=shape)) for shape in ((1, 7), (7, 1), (7,), (3, 7), (7, 7))]


OPS = {
    "add": lambda r, c, v, m, s: r + c,
    "product": lambda r, c, v, m, s: m @ c,
    "outer": lambda r, c, v, m, s: c @ r,
    "pack": lambda r, c, v, m, s: tf.stack([r, r, r]),
    "concat": lambda r, c, v, m, s: tf.concat([m, r, s], 0),
    "gather": lambda r, c, v, m, s: tf.gather(m, [0, 1, 1, 2, 0], axis=0),
    "fill": lambda r, c, v, m, s: tf.raw_ops.Fill(dims=tf.stack([4, 5]), value=1.0),
    "tile": lambda r, c, v, m, s: tf.tile(m, [2, 3]),
    "pad": lambda r, c, v, m, s: tf.pad(v, [[1, 1]]),
    "range": lambda r, c, v, m, s: tf.raw_ops.Range(start=-3, limit=30, delta=2),
    "small steps": lambda r, c, v, m, s: tf.raw_ops.Range(start=0.0, limit=1.0, delta=0.01),
    "one hot": lambda r, c, v, m, s: tf.one_hot([1, 2, 3], 9),
    "bytes": lambda r, c, v, m, s: tf.bitcast(m, tf.uint8),
    "slice": lambda r, c, v, m, s: tf.raw_ops.Shape(input=m)[1] + tf.constant([[2, 3]])[:, 1:],
    "new axis": lambda r, c, v, m, s: v[:, None] + v[None],
    "scalar of a matrix": lambda r, c, v, m, s: s[2],
    "size": lambda r, c, v, m, s: tf.raw_ops.Size(input=m),
    "pad twice": lambda r, c, v, m, s: tf.pad(tf.pad(m, [[1, 2], [3, 0]]), [[0, 5], [0, 0]]),
    "padded convolution": lambda r, c, v, m, s: tf.nn.conv2d(
        tf.cast(s, tf.float32)[None, :, :, None], np.ones((2, 2, 1, 3), np.float32), 1,
        [[0, 0], [5, 5], [4, 6], [0, 0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_no_array_is_larger_than_its_bound(rng, name):
    _, values, graph = walked(lambda: OPS[name](*_constants(rng)))
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            assert values[operation.name].entries >= math.prod(tensor.shape), operation.name
            assert values[operation.name].rank >= (tensor.shape.rank or 0), operation.name


def test_arithmetic_on_shapes_is_little_work():
    def body(x):
        n, h, w, c = (tf.raw_ops.Shape(input=x)[i] for i in range(4))
        flat = tf.reshape(x, tf.stack([n, h * w * c]))
        x = tf.reshape(flat, tf.concat([tf.shape(x)[:1], [4, -1]], 0))
        return tf.tile(tf.reduce_sum(x, [1, 2], keepdims=True), tf.stack([1, h * 2, w // 2]))

    walk, values, _ = walked(body, tf.TensorSpec((None, 8, 8, 3)))
    assert walk.work < 1e4
    assert values["Tile"].entries is None  # of the input


def test_padding_an_image_by_much_is_fine():
    definition = walked(
        lambda x: tf.pad(x, [[0, 0], [64, 64], [64, 64], [0, 0]]), tf.TensorSpec((None, 8, 8, 1))
    )[2].as_graph_def()
    constant_folding.refuse_large(definition)


def test_a_constant_that_its_type_cannot_hold_is_of_any_size():
    with tf.Graph().as_default() as graph:
        tf.constant([1, 2], tf.uint8)
    definition = graph.as_graph_def()
    tensor = definition.node[0].attr["value"].tensor
    tensor.ClearField("tensor_content")
    tensor.int_val[:] = [300, 1]
    assert (
        constant_folding._Walk(definition).values(definition.node, {})["Const"].product == math.inf
    )


def test_what_depends_on_the_input_is_not_computed(rng):
    kernel = tf.constant(rng.normal(size=(400, 400)))

    def body(x):
        for _ in range(4):
            x = x @ kernel
        return tf.reshape(x, tf.shape(x @ tf.transpose(x)))

    constant_folding.refuse_large(
        walked(body, tf.TensorSpec((None, 400), tf.float64))[2].as_graph_def()
    )


@pytest.mark.parametrize("inside", [False, True])
def test_many_little_ones_are_too_much_together(inside):
    """Of 30 by 30 while TensorFlow writes the graph and computes them all; of 3000 by 3000 then."""

    def body(x):
        for _ in range(40):
            ends = (tf.raw_ops.Fill(dims=dims, value=0) for dims in ([30, 1], [1, 30]))
            x = tf.reshape(x, [-1, 2 + tf.reduce_max(sum(ends))])
        return x

    called = tf.function(body)
    function = tf.function((lambda x: called(x)) if inside else body)
    definition = function.get_concrete_function(tf.TensorSpec((None, 2))).graph.as_graph_def()
    constant_folding.refuse_large(definition)
    functions = (function.node_def for function in definition.library.function)
    for node in itertools.chain(definition.node, *functions):
        value = tf.make_ndarray(node.attr["value"].tensor) if node.op == "Const" else None
        if np.any(value == 30):
            larger = tf.make_tensor_proto(np.where(value == 30, 3000, value))
            node.attr["value"].tensor.CopyFrom(larger)
    with pytest.raises(InputError, match=r"op Reshape \(node 'Reshape_\d+'\) depends on a shape"):
        constant_folding.refuse_large(definition)


@pytest.mark.parametrize("count", [0, 1])
def test_ops_without_their_arguments_are_left_to_tensorflow(count):
    definition = tf.Graph().as_graph_def()
    definition.node.add(name="x", op="Placeholder")
    for op in allow_list._PURE_OPS:
        definition.node.add(name=f"of_{op}", op=op, input=["x"] * count)
    constant_folding.refuse_large(definition)


def test_a_function_defined_twice_is_refused(tmp_path):
    from keras_curv.reading import saved_model

    path = export(tmp_path / "model")
    with edited(path) as meta:
        functions = meta.graph_def.library.function
        functions.append(functions[0])
    with pytest.raises(InputError, match="a function is defined twice"):
        saved_model.read(path)
