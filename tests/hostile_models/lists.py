"""Lists as long as nobody needs them."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import (
    add_objects,
    cases,
    changed,
    edited,
    export,
    nodes_of,
    served_function,
)

CASES, case = cases()
HARMLESS, harmless_case = cases()


def _listing(op, attribute, body):
    """Makes it look as if the op had a billion inputs or outputs."""

    def build(path, canary):
        export(path, body)
        with edited(path) as meta:
            for node in [*meta.graph_def.node, *nodes_of(meta)]:
                node.attr.pop("_output_shapes", None)
                if node.op == op:
                    node.attr[attribute].i = 2**30
        return path

    return build


case("list: unpacked to a billion")(
    _listing("Unpack", "num", lambda x, n: n(x) + tf.unstack(x, 4, axis=1)[0][:, None])
)
case("list: split in a billion")(
    _listing("Split", "num_split", lambda x, n: n(tf.concat(tf.split(x, 4, axis=1), 1)))
)
case("list: a billion packed")(
    _listing("Pack", "N", lambda x, n: n(x) + tf.stack([x, x])[0, :, :1])
)
case("list: the shapes of a billion")(
    _listing("ShapeN", "N", lambda x, n: n(x) + tf.cast(tf.shape_n([x, x])[0][0], tf.float32))
)


def _stripped(meta):
    meta.meta_info_def.stripped_op_list.MergeFromString(b"\x0a\x00" * (2**20 + 1))


def _specifications(meta):
    (function, *_) = meta.object_graph_def.concrete_functions.values()
    function.output_signature.tuple_value.MergeFromString(b"\x0a\x02\x0a\x00" * 10**5)


def _types(meta):
    node = next(node for node in nodes_of(meta) if "Tout" in node.attr)
    node.attr["Tout"].list.type.extend([1] * 300_000)


def _inputs(meta):
    node = next(iter(served_function(meta).node_def))
    node.input.extend([f"^{node.name}"] * 300_000)


def _children(meta):
    for index in range(70_000):
        meta.object_graph_def.nodes[0].children.add(node_id=1, local_name=f"more{index}")


case("list: a million ops that nobody needs")(changed(_stripped))
case("list: 100,000 specifications")(changed(_specifications))
harmless_case("list: 300,000 types of a call")(changed(_types))
case("list: 300,000 inputs of an op")(changed(_inputs))
harmless_case("list: 70,000 children of an object")(changed(_children))
harmless_case("list: a chain of a hundred objects")(
    changed(lambda meta: add_objects(meta, 100, "chain"))
)
