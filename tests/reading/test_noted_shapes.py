"""Shapes that an export has noted and does not compute, as loaders take them."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf import saved_model_pb2

from keras_curv import InputError, certify

CALLS = ("StatefulPartitionedCall", "PartitionedCall")
WRONG = [[-1], [-1, 3, 1], [], [-1, 4], [2, 2, 2, 2], [-2, 3], [-1, 2**40]]
TRUE = [None, [-1, 3], [-1, -1]]


def export(folder, rng):
    weights = tf.Variable(rng.normal(size=(4, 3)).astype(np.float32))
    module = tf.Module()
    module.weights = weights
    spec = tf.TensorSpec((None, 4), tf.float32, name="x")
    module.serve = tf.function(lambda x: {"y": tf.tanh(x) @ weights}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.serve)


def shape_of(sizes):
    if sizes is None:
        return TensorShapeProto(unknown_rank=True)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def note(meta, ops, sizes):
    """On all nodes with these ops that are behind the signature."""
    bodies = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    for node in (node for body in bodies for node in body):
        made = node.attr["_output_shapes"].list
        if node.op in ops and len(made.shape) == 1 and made.shape[0].dim[-1:] != []:
            if made.shape[0].dim[-1].size == 3 and len(made.shape[0].dim) == 2:
                made.shape[0].CopyFrom(shape_of(sizes))


def changed(folder, change, rng):
    export(folder, rng)
    file = pathlib.Path(folder) / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    change(model.meta_graphs[0])
    file.write_bytes(model.SerializeToString())
    return str(folder)


def loads(folder):
    """Whether servers take it: by the function of the signature, and by the main graph."""
    try:
        tf.saved_model.load(folder).signatures["serving_default"](tf.ones((5, 4)))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
            signature = meta.signature_def["serving_default"]
            place, tensor = signature.inputs["x"].name, signature.outputs["y"].name
            session.run(tensor, {place: np.ones((5, 4))})
    except (ValueError, tf.errors.OpError):
        return False
    return True


OTHERS = [("MatMul",), ("Identity",)]


@pytest.mark.parametrize(
    ("ops", "sizes"),
    [
        *((CALLS, sizes) for sizes in (*WRONG, *TRUE)),
        *((OTHERS[at % 2], sizes) for at, sizes in enumerate((*WRONG[:4], *TRUE[:2]))),
    ],
)
def test_a_note_that_keeps_servers_from_loading_is_refused(ops, sizes, tmp_path, rng):
    folder = changed(tmp_path / "model", lambda meta: note(meta, ops, sizes), rng)
    x = rng.normal(size=(5, 4)).astype(np.float32)
    assert loads(folder) == (sizes in TRUE)
    if sizes in TRUE:
        assert np.all(certify(folder, x, method="lipschitz").radius > 0.0)
        return
    with pytest.raises(InputError, match="is said to be of shape"):
        certify(folder, x, method="lipschitz")


@pytest.mark.parametrize("sizes", [*WRONG, *TRUE])
def test_what_a_signature_says_of_its_output_is_true(sizes, tmp_path, rng):
    """No server looks; clients may believe it."""

    def change(meta):
        output = meta.signature_def["serving_default"].outputs["y"]
        output.tensor_shape.CopyFrom(shape_of(sizes))

    folder = changed(tmp_path / "model", change, rng)
    x = rng.normal(size=(5, 4)).astype(np.float32)
    assert loads(folder)
    if sizes in TRUE:
        served = tf.saved_model.load(folder).signatures["serving_default"](tf.constant(x))["y"]
        np.testing.assert_array_equal(
            certify(folder, x, method="lipschitz").prediction, np.argmax(served, axis=1)
        )
        return
    with pytest.raises(InputError, match="must have one float matrix|is said to be of shape"):
        certify(folder, x, method="lipschitz")


@pytest.mark.parametrize(("rank", "taken"), [(2, False), (4, True)])
def test_a_node_beside_the_answer_counts_as_loaders_count_it(rank, taken, tmp_path, rng):
    """Nobody asks for it, but a function is loaded whole."""

    def beside(meta):
        (function,) = (
            f for f in meta.graph_def.library.function if any(n.op == "MatMul" for n in f.node_def)
        )
        image = function.node_def.add(name="image", op="Const")
        image.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.ones((1,) * rank, np.float32)))
        image.attr["dtype"].type = tf.float32.as_datatype_enum
        idle = function.node_def.add(name="idle", op="Conv2D", input=["image:output:0"] * 2)
        idle.attr["T"].type = tf.float32.as_datatype_enum
        idle.attr["strides"].list.i.extend([1] * 4)
        idle.attr["padding"].s = b"SAME"

    folder = changed(tmp_path / "model", beside, rng)
    assert loads(folder) == taken
    x = rng.normal(size=(5, 4)).astype(np.float32)
    if taken:
        assert np.all(certify(folder, x, method="lipschitz").radius > 0.0)
        return
    with pytest.raises(InputError, match="TensorFlow cannot build its graph"):
        certify(folder, x, method="lipschitz")
