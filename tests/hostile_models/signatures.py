"""Signatures that a server would answer otherwise than they are read."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import Net, cases, constant, edited, export, nodes_of
from hostile_models.restoring import two_heads

CASES, case = cases()
HARMLESS, harmless_case = cases()


@case("signature: what is served is another function")
def _another(path, canary):
    """A server goes by the signature's own definition, loading in Python by the object graph."""
    net = Net()
    spec = [tf.TensorSpec((None, 4), tf.float32, name="x")]
    functions = {
        "serving_default": tf.function(lambda x: {"logits": net(x)}, input_signature=spec),
        "bad": tf.function(lambda x: {"logits": -net(x)}, input_signature=spec),
    }
    tf.saved_model.save(net, str(path), signatures=functions)
    with edited(path) as meta:
        meta.signature_def["serving_default"].CopyFrom(meta.signature_def["bad"])
    return path


def _with_another(path, another, kind=tf.float32, shape=(None, 4)):
    """A model with a second signature."""
    net = Net()

    def second(x):
        return {"logits": another(net, x)}

    functions = {
        name: tf.function(body, input_signature=[tf.TensorSpec(*spec, name="x")])
        for name, body, spec in (
            ("serving_default", lambda x: {"logits": net(x)}, ((None, 4), tf.float32)),
            ("another", second, (shape, kind)),
        )
    }
    tf.saved_model.save(net, str(path), signatures=functions)
    return path


@case("signature: another one changes variables")
def _changes(path, canary):
    def change(net, x):
        net.v.assign(-net.v)
        return net(x)

    return _with_another(path, change)


@case("signature: another one changes variables, if it likes")
def _may_change(path, canary):
    def change(net, x):
        large = tf.reduce_any(x > 1e6)
        return tf.cond(large, lambda: net.v.assign_add(net.v) * 1.0, lambda: tf.identity(net.v))

    return _with_another(path, lambda net, x: net(x) + tf.reduce_sum(change(net, x)))


@case("signature: another one scatters into variables")
def _scatters(path, canary):
    def change(net, x):
        tf.raw_ops.ResourceScatterAdd(
            resource=net.v.handle, indices=[0], updates=tf.ones_like(net.v[:1])
        )
        return net(x)

    return _with_another(path, change)


@case("signature: another one writes files")
def _writes(path, canary):
    def write(net, x):
        tf.io.write_file(str(canary), "x")
        return net(x)

    return _with_another(path, write)


@case("signature: another one calls Python")
def _calls_python(path, canary):
    return _with_another(
        path, lambda net, x: net(tf.ensure_shape(tf.numpy_function(np.abs, [x], x.dtype), x.shape))
    )


@case("signature: another one has an op that nobody knows")
def _unknown(path, canary):
    _with_another(path, lambda net, x: net(tf.nn.relu(x)))
    with edited(path) as meta:
        nodes = (node for f in meta.graph_def.library.function for node in f.node_def)
        next(node for node in nodes if node.op == "Relu").op = "Mine>Relu"
    return path


@harmless_case("signature: another one parses tf.Examples and decodes pictures")
def _parses(path, canary):
    def parse(net, x):
        features = {
            "x": tf.io.FixedLenFeature([4], tf.float32),
            "png": tf.io.FixedLenFeature([], tf.string),
        }
        found = tf.io.parse_example(x, features)
        shades = tf.map_fn(
            lambda png: tf.reduce_mean(tf.cast(tf.io.decode_png(png), tf.float32)),
            found["png"],
            fn_output_signature=tf.float32,
        )
        return net(found["x"] + shades[:, None])

    return _with_another(path, parse, tf.string, (None,))


def main_call(meta):
    """The node that answers the signature in the main graph."""
    name = next(iter(meta.signature_def["serving_default"].outputs.values())).name.split(":")[0]
    return next(node for node in meta.graph_def.node if node.name == name)


@case("signature: what a client sends is negated")
def _negated(path, canary):
    export(path)
    with edited(path) as meta:
        call = main_call(meta)
        node = meta.graph_def.node.add(name="negated", op="Neg", input=[call.input[0]])
        node.attr["T"].type = tf.float32.as_datatype_enum
        call.input[0] = node.name
    return path


@case("signature: what a client sends is left out")
def _left_out(path, canary):
    export(path)
    with edited(path) as meta:
        call = main_call(meta)
        call.input[0] = constant(meta.graph_def.node, "same", np.ones((1, 4), np.float32))
    return path


@case("signature: in fewer bits")
def _fewer_bits(path, canary):
    export(path)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = 1
    with edited(path) as meta:
        call = main_call(meta)
        call.attr["config_proto"].s = config.SerializeToString()
        for function in meta.graph_def.library.function:
            function.attr["_noinline"].b = function.signature.name == call.attr["f"].func.name
    return path


@case("signature: its outputs go by other names")
def _other_names(path, canary):
    """A client takes `logits`, and gets the other ones."""
    export(path, lambda x, net: {"a": -net(x), "logits": net(x)})
    with edited(path) as meta:
        outputs = meta.signature_def["serving_default"].outputs
        first, second = (
            type(outputs["a"]).FromString(outputs[k].SerializeToString()) for k in ("a", "logits")
        )
        outputs.clear()
        outputs["logits"].CopyFrom(first)
        outputs["z"].CopyFrom(second)
    return path


@harmless_case("signature: much is computed beside the output")
def _beside(path, canary):
    """Behind a control edge, of a size that is not known before there are examples."""

    def body(x, net):
        size = tf.cast(tf.reduce_sum(x) * 0.0, tf.int32) + 2**29
        with tf.control_dependencies([tf.raw_ops.RandomUniform(shape=[size], dtype=tf.float32)]):
            return net(tf.identity(x))

    return export(path, body)


@case("signature: signatures are a variable")
def _no_map(path, canary):
    export(path)
    with edited(path) as meta:
        root = meta.object_graph_def.nodes[0]
        child = {c.local_name: c for c in root.children}
        child["signatures"].node_id = child["w"].node_id
    return path


@case("signature: a call is rewritten")
def _rewritten_call(path, canary):
    """By an attribute that is deprecated, and still obeyed."""
    export(path)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = 1
    with edited(path) as meta:
        main_call(meta).attr["config"].s = config.SerializeToString()
    return path


@case("signature: a call has an attribute that nobody knows")
def _unknown_attribute(path, canary):
    export(path)
    with edited(path) as meta:
        main_call(meta).attr["_replaced_by"].s = b"another"
    return path


@case("signature: an op has a kernel of its own")
def _kernel(path, canary):
    export(path)
    with edited(path) as meta:
        next(n for n in nodes_of(meta) if n.op == "Softplus").attr["_kernel"].s = b"another"
    return path


@case("signature: the logits are whole numbers")
def _whole_logits(path, canary):
    """Beside a matrix of floats, which nobody takes for the logits."""
    return export(path, lambda x, net: {"logits": tf.cast(net(x), tf.int64), "other": -net(x)})


@case("signature: an output is said to be of another type")
def _claimed(path, canary):
    export(path, lambda x, net: {"a": net(x), "b": -net(x)})
    with edited(path) as meta:
        outputs = meta.signature_def["serving_default"].outputs
        outputs["a"].dtype = tf.int64.as_datatype_enum
    return path


@case("signature: for another tag")
def _tag(path, canary):
    export(path)
    with edited(path) as meta:
        meta.meta_info_def.tags[:] = ["serve", "gpu"]
    return path


@case("signature: objects give the function other variables")
def _captures(path, canary):
    """Loading in Python would go by these; a server does not look at them."""
    two_heads(path)
    with edited(path) as meta:
        for function in meta.object_graph_def.concrete_functions.values():
            bound = list(function.bound_inputs)
            function.bound_inputs[:] = bound[::-1]
        for node in meta.object_graph_def.nodes:
            for child in node.children:
                if child.local_name in ("v", "other"):
                    child.local_name = {"v": "other", "other": "v"}[child.local_name]
    return path
