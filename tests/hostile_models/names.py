"""Nodes that TensorFlow takes for one another, by the names that it gives to nodes itself."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import cases, edited, export, nodes_of, served_function

CASES, case = cases()


@tf.function
def _inner(x):
    return tf.multiply(x, 2.0, name="k")


def _beside_a_call(x, net):
    """TensorFlow writes the call out as nodes named behind it, such as `PartitionedCall/k`."""
    y = _inner(x)
    with tf.name_scope(f"{y.op.name}/"):
        z = tf.multiply(x, -3.0, name="k")
    return net(y) + net(z)


@case("name: as a node behind a call")
def _collision(path, canary):
    return export(path, _beside_a_call)


@case("name: as a node behind a call, that nobody asks for")
def _idle_collision(path, canary):
    export(path, lambda x, net: net(_inner(x)) + net(tf.multiply(x, -3.0, name="other")))
    with edited(path) as meta:
        body = served_function(meta)
        while not any(node.op == "Mul" for node in body.node_def):
            called = {n.attr["f"].func.name for n in body.node_def if "f" in n.attr}
            body = next(f for f in meta.graph_def.library.function if f.signature.name in called)
        call = next(node.name for node in body.node_def if "f" in node.attr)
        idle = body.node_def.add(name=f"{call}/k", op="NoOp")
        assert idle.name.endswith("PartitionedCall/k")
    return path


OPTIMIZER = (
    "ConstantFolding/{}_recip",
    "ConstantFoldingCtrl/{}_0",
    "ArithmeticOptimizer/ReplaceMulWithSquare_{}",
    "scope/ArithmeticOptimizer/FoldMultiplyIntoConv_scaled_{}",
    "{}-0-TransposeNHWCToNCHW-LayoutOptimizer",
    "{}-0-CastToFp32-AutoMixedPrecision",
    "{}/unary_ops_composition",
    "scope/__cf__{}",
    "scope/_12",
)
for pattern in OPTIMIZER:

    @case(f"name: {pattern}")
    def _optimizer(path, canary, pattern=pattern):
        """A division, and beside it a node that its optimizer would take for its own."""

        def body(x, net):
            y = tf.divide(x, 4.0, name="D")
            z = tf.multiply(x, 4.0, name="placed")
            return net(y) + net(z)

        export(path, body)
        with edited(path) as meta:
            for node in nodes_of(meta):
                node.name = pattern.format("D") if node.name == "placed" else node.name
                node.input[:] = [
                    f"{pattern.format('D')}:z:0" if given == "placed:z:0" else given
                    for given in node.input
                ]
        return path


@case("name: as a part of a batch normalization")
def _normalization(path, canary):
    def body(x, net):
        image = tf.reshape(x, (-1, 2, 2, 1))
        one = tf.ones((1,))
        normal = tf.compat.v1.nn.fused_batch_norm(
            image, one, one, one, one, is_training=False, name="norm"
        )[0]
        other = tf.multiply(image, -3.0, name="other")
        return net(tf.reshape(normal + other, (-1, 4)))

    export(path, body)
    with edited(path) as meta:
        for node in nodes_of(meta):
            if node.op == "FusedBatchNormV3":
                place = f"{node.name}/Const"
        for node in nodes_of(meta):
            node.name = place if node.name == "other" else node.name
            given = [place + g.removeprefix("other") if g == "other:z:0" else g for g in node.input]
            node.input[:] = given
    return path


@case("name: of the session's own")
def _session(path, canary):
    export(path)
    with edited(path) as meta:
        (info,) = meta.signature_def["serving_default"].inputs.values()
        old, new = info.name.removesuffix(":0"), "_arg_serving_default_x_0_0"
        for node in meta.graph_def.node:
            node.name = new if node.name == old else node.name
            node.input[:] = [new if given == old else given for given in node.input]
        info.name = f"{new}:0"
    return path
