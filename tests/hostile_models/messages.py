"""Messages that are cut, stuffed or deep."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.index import varint
from hostile_models.models import GRAPH, cases, edited, export, served_function

CASES, case = cases()
HARMLESS, harmless_case = cases()


def _stuffed(path, add):
    export(path)
    with open(path / GRAPH, "ab") as file:
        add(file)
    return path


def _unknown(file):
    size = 300 * 2**20
    file.write(varint(99 << 3 | 2) + varint(size))
    file.truncate(file.tell() + size)


def _nested(file):
    inner = b""
    for _ in range(100_000):
        inner = varint(2 << 3 | 2) + varint(len(inner)) + inner if len(inner) < 10**5 else inner
    file.write(inner)


def _empty_nodes(path, canary):
    export(path)
    with edited(path) as meta:
        empty = varint(1 << 3 | 2) + varint(0)
        meta.graph_def.MergeFromString(empty * 10**6)
    return path


def _many(path, canary):
    export(path)
    with edited(path) as meta:
        function = served_function(meta)
        for index in range(10**5):
            node = function.node_def.add(name=f"more{index}", op="NoOp")
            node.attr["_"].b = True
    return path


case("message: 300 MiB of unknown fields")(lambda path, canary: _stuffed(path, _unknown))
case("message: deep nesting")(lambda path, canary: _stuffed(path, _nested))
case("message: a million empty nodes")(_empty_nodes)
case("message: 100,000 nodes")(_many)
case("message: two graphs")(lambda path, canary: _stuffed(path, lambda f: f.write(b"\x12\x00")))


@case("message: cut in the middle")
def _cut(path, canary):
    export(path)
    content = (path / GRAPH).read_bytes()
    (path / GRAPH).write_bytes(content[: len(content) // 2])
    return path


@harmless_case("message: 10^5 objects")
def _objects(path, canary):
    export(path)
    with edited(path) as meta:
        for _ in range(10**5):
            meta.object_graph_def.nodes.add().user_object.identifier = "_generic_user_object"
    return path


@case("depth: 400 layers")
def _layers(path, canary):
    def deep(x, net):
        for _ in range(400):
            x = tf.tanh(x)
        return net(x)

    return export(path, deep)
