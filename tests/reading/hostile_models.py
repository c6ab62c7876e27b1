# ruff: noqa: E501
"""Malicious SavedModels, for the tests and for `benchmarks/hostile.py`.

`CASES[name](folder, canary)` builds one, as `folder`; if any of it ran as its author wants, a file
`canary` would be there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_curv.reading.crc32c import masked_crc32c

GRAPH, INDEX = "saved_model.pb", "variables/variables.index"
DATA = "variables/variables.data-00000-of-00001"
CASES = {}
HARMLESS = {}  # what is hostile in these lies where nobody looks: they are read as if without it


class Net(tf.Module):
    """Weights for four inputs, five hidden units and three classes."""

    def __init__(self, last=1.0):
        super().__init__()
        rng = np.random.default_rng(4)
        self.w = tf.Variable(rng.normal(size=(4, 5)), dtype=tf.float32)
        self.square = tf.Variable(rng.normal(size=(4, 4)), dtype=tf.float32)
        self.v = tf.Variable(last * rng.normal(size=(5, 3)), dtype=tf.float32)

    def __call__(self, x):
        return tf.nn.softplus(x @ self.w) @ self.v


def export(path, body=lambda x, net: net(x), specs=None, net=None):
    """Saves `body(x, net)` as the default signature; returns the directory."""
    net = net or Net()
    specs = specs or [tf.TensorSpec((None, 4), tf.float32)]
    function = tf.function(lambda *x: body(*x, net)).get_concrete_function(*specs)
    tf.saved_model.save(net, str(path), signatures=function)
    return path


@contextlib.contextmanager
def edited(path):
    """The SavedModel's message, to be changed in place."""
    file = path / GRAPH
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    yield proto.meta_graphs[0]
    file.write_bytes(proto.SerializeToString())


def case(name, registry=CASES):
    def register(build):
        registry[name] = build
        return build

    return register


def nodes_of(meta):
    for function in meta.graph_def.library.function:
        yield from function.node_def


def enlarge(path, old, new):
    """Puts another number in the place of a constant, and drops what tells the shapes."""
    changed = 0
    with edited(path) as meta:
        for node in nodes_of(meta):
            if node.op == "Const" and node.attr["dtype"].type == tf.int32.as_datatype_enum:
                values = tf.make_ndarray(node.attr["value"].tensor)
                if (values == old).any():
                    values = np.where(values == old, new, values).astype(np.int32)
                    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
                    changed += 1
            if "_output_shapes" in node.attr:
                del node.attr["_output_shapes"]
    assert changed
    return path


# Ops that reach outside


def _write(x, net, canary):
    tf.io.write_file(str(canary), "owned")
    return net(x)


def ran(canary):
    def write(value):
        canary.write_text("owned")
        return value

    return write


def _looping(x, net, canary):
    return tf.while_loop(lambda y: tf.reduce_all(tf.abs(y) < np.inf), lambda y: (y * 0.0,), (x,))[0]


BODIES = {
    "write_file": _write,
    "read_file": lambda x, n, c: n(x) + tf.cast(tf.strings.length(tf.io.read_file("/etc/passwd")), tf.float32),
    "py_function": lambda x, n, c: n(tf.ensure_shape(tf.py_function(ran(c), [x], tf.float32), (None, 4))),
    "numpy_function": lambda x, n, c: n(tf.ensure_shape(tf.numpy_function(ran(c), [x], tf.float32), (None, 4))),
    "print to a file": lambda x, n, c: (tf.print("owned", output_stream=f"file://{c}"), n(x))[1],
    "save": lambda x, n, c: (tf.raw_ops.SaveV2(prefix=str(c), tensor_names=["a"], shape_and_slices=[""], tensors=[n.v]), n(x))[1],
    "debug to a file": lambda x, n, c: n(tf.raw_ops.DebugIdentityV2(input=x, debug_urls=[f"file://{c}"])),
    "in a nested function": lambda x, n, c: tf.function(lambda y: tf.function(lambda z: _write(z, n, c))(y) * 2.0)(x),
    "in a map": lambda x, n, c: tf.map_fn(lambda row: _write(row[None], n, c)[0], x),
    "in a branch": lambda x, n, c: tf.cond(tf.reduce_sum(x) > 0, lambda: _write(x, n, c), lambda: n(x)),
    "infinite loop": lambda x, n, c: n(_looping(x, n, c)),
    "host call": lambda x, n, c: (tf.raw_ops.CollectiveReduce(input=x, group_size=2, group_key=1, instance_key=1, merge_op="Add", final_op="Id", subdiv_offsets=[0]), n(x))[1],
}  # fmt: skip
for name, body in BODIES.items():
    case(f"op: {name}")(
        lambda path, canary, body=body: export(path, lambda x, net: body(x, net, canary))
    )


@case("op: in a function that no signature calls")
def _uncalled(path, canary):
    net = Net()
    net.more = tf.function(
        lambda x: _write(x, net, canary), input_signature=[tf.TensorSpec((None, 4))]
    )
    return export(path, net=net)


@case("op: in the saver")
def _in_saver(path, canary):
    export(path, lambda x, net: _write(x, net, canary))
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        meta.saver_def.restore_op_name = output.name.split(":")[0]
    return path


@case("op: a name that writes to the terminal")
def _terminal(path, canary):
    export(path)
    with edited(path) as meta:
        next(nodes_of(meta)).op = "Wri\x1b[2J\nte"
    return path


@case("object: table with an initialiser")
def _table(path, canary):
    words = path.parent / "words.txt"
    words.write_text("a\nb\n")
    net, kind = Net(), tf.lookup.TextFileIndex
    source = tf.lookup.TextFileInitializer(
        str(words), tf.string, kind.WHOLE_LINE, tf.int64, kind.LINE_NUMBER
    )
    net.table = tf.lookup.StaticHashTable(source, 0)
    return export(path, net=net)


@case("object: registered class with an initialiser")
def _registered(path, canary):
    net = Net()
    net.table = tf.Module()
    for name in ("_initialize", "_create_resource"):
        setattr(net.table, name, tf.function(lambda: tf.constant(0.0), input_signature=[]))
    export(path, net=net)
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        nodes[table].registered_name = "tf.StaticHashTable"
    return path


@case("asset: outside of the directory")
def _asset(path, canary):
    export(path)
    with edited(path) as meta:
        meta.asset_file_def.add(filename="../../../../etc/passwd").tensor_info.name = "x:0"
    return path


# Files


def replaced(path, name, make):
    export(path)
    target = path / name
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    make(target)
    return path


def link_case(what, name, make, registry=CASES):
    case(f"file: {what}", registry)(lambda path, canary: replaced(path, name, make))


def _outside(target):
    """A good graph, but in another model."""
    target.symlink_to(export(target.parent.parent / "twin") / target.name)


link_case("graph is a pipe", GRAPH, os.mkfifo)
link_case("graph is /dev/zero", GRAPH, lambda t: t.symlink_to("/dev/zero"))
link_case("graph is elsewhere", GRAPH, _outside)
link_case("graph links to itself", GRAPH, lambda t: t.symlink_to(t))
link_case("index is a pipe", INDEX, os.mkfifo)
link_case("index is /dev/zero", INDEX, lambda t: t.symlink_to("/dev/zero"))
link_case("data are a pipe", DATA, os.mkfifo)
link_case("data are /dev/zero", DATA, lambda t: t.symlink_to("/dev/zero"))
link_case("data are elsewhere", DATA, lambda t: t.symlink_to("/etc/passwd"))
link_case("variables are elsewhere", "variables", lambda t: t.symlink_to("/etc"))
link_case("data of a TiB, all holes", DATA, lambda t: (t.touch(), os.truncate(t, 2**40)))
link_case("fingerprint is a pipe", "fingerprint.pb", os.mkfifo, HARMLESS)
link_case("fingerprint is noise", "fingerprint.pb", lambda t: t.write_bytes(b"\xff" * 99), HARMLESS)
link_case("debug info is /dev/zero", "debug/saved_model_debug_info.pb",
          lambda t: t.symlink_to("/dev/zero"), HARMLESS)  # fmt: skip
link_case("another graph as text", "saved_model.pbtxt", lambda t: t.write_text("{"), HARMLESS)
link_case("another graph in chunks", "saved_model.cpb", lambda t: t.write_text("{"), HARMLESS)
link_case("assets are a pipe", "assets", os.mkfifo, HARMLESS)


# The index of variables


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def block_of(entries):
    content = b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in entries)
    content += struct.pack("<II", 0, 1)
    return content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0"))


def index_of(entries, claimed=None):
    """A table as TensorFlow would read it; `claimed`: the size that its only block says it has."""
    return table_of(block_of(entries), claimed=claimed)


def table_of(data, handles=1, claimed=None):
    """A table of one block, which is named that often."""
    handle = varint(0) + varint(claimed or len(data) - 5)
    inner = block_of([(b"~", handle)] * handles)
    footer = varint(0) + varint(0) + varint(len(data)) + varint(len(inner) - 5)
    return data + inner + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _rewritten(change, **claims):
    def build(path, canary):
        from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

        from keras_curv.reading import checkpoint

        export(path)
        entries = []
        for key, value in checkpoint._entries((path / INDEX).read_bytes()):
            if key.startswith(b"w/"):
                entry = BundleEntryProto.FromString(value)
                change(entry)
                value = entry.SerializeToString()
            entries.append((key, value))
        (path / INDEX).write_bytes(index_of(entries, **claims))
        return path

    return build


def _shape(entry):
    entry.shape.dim[0].size = 2**58


def _bytes(entry):
    _shape(entry)
    entry.size = 2**58 * 5 * 4


def _strings(entry):
    entry.dtype = tf.string.as_datatype_enum


case("index: a shape of 2^60 entries")(_rewritten(_shape))
case("index: 2^60 bytes of data")(_rewritten(_bytes))
case("index: data at 2^60")(_rewritten(lambda entry: setattr(entry, "offset", 2**60)))
case("index: in the millionth file")(_rewritten(lambda entry: setattr(entry, "shard_id", 10**6)))
case("index: numbers as strings of any length")(_rewritten(_strings))


def _reference(entry):
    entry.dtype += 100


def _high_rank(entry):
    for _ in range(10**5):
        entry.shape.dim.add(size=2**60)


case("index: a block of 2^60 bytes")(_rewritten(lambda entry: None, claimed=2**60))
case("index: numbers as references")(_rewritten(_reference))
case("index: a shape of 100,000 dimensions")(_rewritten(_high_rank))


def _entries(path):
    from keras_curv.reading import checkpoint

    return dict(checkpoint._entries((path / INDEX).read_bytes()))


@case("index: a string of 8 GiB")
def _long_string(path, canary):
    """Its check is right; TensorFlow would end the process."""
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

    entries, data = _entries(export(path)), (path / DATA).read_bytes()
    for key, value in entries.items():
        if key == b"_CHECKPOINTABLE_OBJECT_GRAPH":
            entry = BundleEntryProto.FromString(value)
            start = varint(2**33) + struct.pack("<I", masked_crc32c(struct.pack("<Q", 2**33)))
            place = slice(entry.offset, entry.offset + len(start))
            (path / DATA).write_bytes(data[: place.start] + start + data[place.stop :])
    return path


def _empty():
    """An entry without content, which would be in order."""
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

    entry = BundleEntryProto(dtype=tf.float32.as_datatype_enum)
    entry.shape.dim.add()
    return entry.SerializeToString()


def _sharing(path, keys):
    """Writes an index of keys `(shared, own)`: so many bytes of the one before, then these."""
    content, value = varint(0) * 2 + varint(2) + b"\x08\x01", _empty()  # the header: one file
    for shared, own in keys:
        content += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
    content += struct.pack("<II", 0, 1)
    data = content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0"))
    (export(path) / INDEX).write_bytes(table_of(data))
    return path


@case("index: a letter makes a key longer")
def _long_keys(path, canary):
    """Half a megabyte or so; written out, 1.8 GB."""
    return _sharing(path, [(i, b"a") for i in range(60_000)])


@case("index: keys share all but two bytes")
def _shared_keys(path, canary):
    keys = [(4000, struct.pack(">H", i)) for i in range(1, 30_000)]
    return _sharing(path, [(0, b"a" * 4000), *keys])


@case("index: too many entries")
def _many_entries(path, canary):
    return _sharing(path, [(0, struct.pack(">I", i)) for i in range(2**16)])


@case("index: one block 20,000 times")
def _one_block(path, canary):
    entries = _entries(export(path))
    padding = [(b"~%05d" % i, _empty()) for i in range(2_000)]
    (path / INDEX).write_bytes(table_of(block_of([*entries.items(), *padding]), handles=20_000))
    return path


@case("index: an entry within another")
def _hidden(path, canary):
    """Found only by who jumps to it, as TensorFlow does: the block lists where it starts."""
    entries = _entries(export(path))
    hidden = b"\0" + varint(1) + varint(0) + b"v"
    unknown = _empty() + b"\x7a" + varint(len(hidden))  # a field of no name
    block = block_of([*entries.items(), (b"~", unknown + hidden)])[:-5]
    content = block[:-8] + struct.pack("<III", 0, len(block) - 8 - len(hidden), 2) + b"\0"
    data = content + struct.pack("<I", masked_crc32c(content))
    (path / INDEX).write_bytes(table_of(data))
    return path


@case("index: data with a hole of 4 GiB")
def _hole(path, canary):
    os.truncate(export(path) / DATA, 2**32)
    return path


# Shapes and constants


def _grown(op):
    return lambda path, canary: enlarge(export(path, op), 1234, 2**31 - 1)


case("shape: filled")(_grown(lambda x, n: n(x) + tf.reduce_sum(tf.fill([1234], 0.5))))
case("shape: filled, twice as large at each step")(
    lambda path, canary: enlarge(
        export(path, lambda x, n: n(x) + tf.reduce_sum(tf.fill([1234, 1234], 0.5))), 1234, 10**6
    )
)
case("shape: tiled")(_grown(lambda x, n: n(x) + tf.reduce_sum(tf.tile([0.5], [1234]))))
case("shape: broadcast")(
    _grown(lambda x, n: n(x) + tf.reduce_sum(tf.broadcast_to(tf.constant([0.5]), [1234])))
)
case("shape: padded")(
    _grown(lambda x, n: n(x) + tf.reduce_sum(tf.pad(tf.constant([0.5]), [[0, 1234]])))
)
case("shape: a range, while loading")(
    _grown(lambda x, n: n(tf.reshape(x, tf.concat([[-1], tf.range(0, 1234)[4:5]], 0))))
)
case("shape: in an output that nobody asked for")(
    _grown(lambda x, n: {"logits": n(x), "more": tf.reduce_sum(tf.fill([1234], 1.0))})
)


def _input(shape, body):
    return lambda path, canary: export(path, body, [tf.TensorSpec((None, *shape), tf.float32)])


def _flat(x):
    return tf.reshape(x, (-1, int(np.prod(x.shape[1:]))))


case("shape: convolved, 10^6 × 10^6")(
    _input((10**6, 10**6, 1), lambda x, n: tf.nn.conv2d(x, tf.ones((1, 1, 1, 2)), 1, "SAME"))
)
case("shape: averaged, 10^4 × 10^4")(
    _input((10**4, 10**4, 1), lambda x, n: _flat(tf.nn.avg_pool2d(x, 5000, 5000, "VALID")))
)
case("shape: a window of 10^5 × 10^5")(
    _input((4, 4, 1), lambda x, n: _flat(tf.nn.avg_pool2d(x, 10**5, 1, "SAME")))
)
case("shape: a million units, each on its own")(_input((2**20,), lambda x, n: tf.tanh(tf.tanh(x))))
case("shape: depthwise on a hundred thousand channels")(
    _input((1, 1, 10**5), lambda x, n: _flat(tf.nn.depthwise_conv2d(x, np.ones((1, 1, 10**5, 1), np.float32), [1] * 4, "SAME")))
)  # fmt: skip


def _outer(x, net):
    wide = tf.reshape(net.w, (1, 20))
    for size in (20, 400, 160_000):
        wide = tf.reshape(tf.reshape(wide, (size, 1)) + tf.reshape(wide, (1, size)), (1, size**2))
    return net(x) + wide[:, :3]


case("constant: broadcast against itself")(lambda path, canary: export(path, _outer))


@case("constant: joined to itself forty times")
def _joined(path, canary):
    def body(x, net):
        shape = tf.constant([-1, 4])
        for _ in range(40):
            shape = tf.concat([shape, tf.constant([7, 7])], 0)
        return net(tf.reshape(x, shape[:2]))

    export(path, body)
    with edited(path) as meta:
        for node in nodes_of(meta):
            if node.op == "ConcatV2":
                node.input[1] = node.input[0]
            node.attr.pop("_output_shapes", None)
    return path


@case("constant: one number that stands for 2^33")
def _constant(path, canary):
    export(path, lambda x, net: net(x + tf.zeros((1, 4))))
    with edited(path) as meta:
        for node in nodes_of(meta):
            node.attr.pop("_output_shapes", None)
            if node.op == "Const":
                tensor = node.attr["value"].tensor
                tensor.Clear()
                tensor.dtype = tf.float32.as_datatype_enum
                tensor.float_val.append(0.5)
                tensor.tensor_shape.dim.add().size = 2**33
    return path


@case("constant: a bound in a specification")
def _specification(path, canary):
    export(path)
    with edited(path) as meta:
        for function in meta.object_graph_def.concrete_functions.values():
            spec = function.output_signature.bounded_tensor_spec_value
            for bound in (spec.minimum, spec.maximum):
                bound.dtype = tf.float32.as_datatype_enum
                bound.float_val.append(0.5)
                bound.tensor_shape.dim.add().size = 2**34
    return path


@case("constant: a shape of seventeen axes")
def _axes(path, canary):
    export(path, lambda x, net: net(x + tf.zeros((1, 4))))
    with edited(path) as meta:
        node = next(node for node in nodes_of(meta) if node.op == "Const")
        for _ in range(17):
            node.attr["value"].tensor.tensor_shape.dim.add().size = 1
    return path


def _add_objects(meta, number, parents):
    """Plain objects, each the child of another one; returns them."""
    nodes = meta.object_graph_def.nodes
    for index in range(number):
        nodes.add().user_object.identifier = "_generic_user_object"
        parent = len(nodes) - 2 if index and parents == "chain" else 0
        nodes[parent].children.add(node_id=len(nodes) - 1, local_name=f"more{index}")
    return nodes[-number:]


@case("constant: named by a hundred objects")
def _named(path, canary):
    export(path)
    with edited(path) as meta:
        node = meta.graph_def.node.add(name="big", op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        tensor = node.attr["value"].tensor
        tensor.dtype = tf.float32.as_datatype_enum
        tensor.float_val.append(0.5)
        tensor.tensor_shape.dim.add().size = 2**20
        for each in _add_objects(meta, 100, "first"):
            each.constant.operation = "big"
    return path


# What TensorFlow computes while it loads: here what a reshape is asked to make of the examples


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
                tensor = node.attr["value"].tensor
                if node.op == "Const" and [d.size for d in tensor.tensor_shape.dim] in (
                    [5, 1],
                    [1, 5],
                ):
                    for dim in tensor.tensor_shape.dim:
                        dim.size = 2**17 if dim.size == 5 else 1
                    tensor.ClearField("tensor_content")
                    tensor.int_val[:] = [0]
        return path

    return build


def _doubled(column, row, net):
    for _ in range(12):
        row = tf.concat([row, row], 0)
    return tf.reduce_max(row)


def _indices(column, row, net):
    """Each time twice as many: of as many numbers as the last ones have axes."""
    found = tf.raw_ops.Where(condition=tf.ones((4, 4)))
    for _ in range(22):
        found = tf.raw_ops.Where(condition=found + 1)
    return tf.reduce_max(found) * 0


def _axes_added_up(column, row, net):
    many = tf.zeros([1] * 16, tf.int32)
    for _ in range(3):
        many = tf.raw_ops.GatherV2(params=many, indices=many, axis=0)
    return tf.raw_ops.Reshape(tensor=many, shape=[])


def _nothing(column, row, net):
    none = tf.raw_ops.Reshape(tensor=tf.zeros((0,)), shape=[2**29, 0])
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
    "filled, three times one number": lambda c, r, n: tf.reduce_max(tf.fill(tf.stack([tf.constant(4096)] * 3), 0)),
    "indices of indices, twenty times": _indices,
    "the sums of no numbers": _nothing,
    "more axes at each step": _axes_added_up,
    "a range in small steps": lambda c, r, n: tf.reduce_min(tf.raw_ops.Range(start=0.0, limit=1.0, delta=1e-10)),
}  # fmt: skip
for name, body in ASKED.items():
    case(f"loading: {name}")(_asked(body))
case("loading: a variable times itself, once it is a constant")(
    _asked(lambda c, r, n: tf.reduce_max(n.long @ tf.transpose(n.long)), _long)
)


def _listing(op, attribute, body):
    """As if the op had a billion inputs or outputs."""

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


def _changed(change):
    """A model whose message `change(meta)` changes."""

    def build(path, canary):
        export(path, lambda x, net: net(x))
        with edited(path) as meta:
            change(meta)
        return path

    return build


def _stripped(meta):
    meta.meta_info_def.stripped_op_list.MergeFromString(b"\x0a\x00" * (2**20 + 1))


def _specifications(meta):
    (function, *_) = meta.object_graph_def.concrete_functions.values()
    function.output_signature.tuple_value.MergeFromString(b"\x0a\x02\x0a\x00" * 10**5)


def _types(meta):
    node = next(node for node in nodes_of(meta) if "Tout" in node.attr)
    node.attr["Tout"].list.type.extend([1] * 300_000)


def _inputs(meta):
    node = next(nodes_of(meta))
    node.input.extend([f"^{node.name}"] * 300_000)


def _children(meta):
    for index in range(70_000):
        meta.object_graph_def.nodes[0].children.add(node_id=1, local_name=f"more{index}")


case("list: a million ops that nobody needs")(_changed(_stripped))
case("list: 100,000 specifications")(_changed(_specifications))
case("list: 300,000 types of a call")(_changed(_types))
case("list: 300,000 inputs of an op")(_changed(_inputs))
case("list: 70,000 children of an object")(_changed(_children))
case("list: a chain of a hundred objects")(_changed(lambda meta: _add_objects(meta, 100, "chain")))


@case("calls: with a number that the function takes")
def _generic(path, canary):
    inner = tf.function(lambda x: x + tf.unstack(x, 4, axis=1)[0][:, None])
    export(path, lambda x, net: net(inner(x)))
    with edited(path) as meta:
        for node in [*meta.graph_def.node, *nodes_of(meta)]:
            node.attr.pop("_output_shapes", None)
            if node.op == "Unpack":
                node.attr["num"].placeholder = "N"
            if node.op == "PartitionedCall":
                node.attr["N"].i = 2**30
        for function in meta.graph_def.library.function:
            if any(node.op == "Unpack" for node in function.node_def):
                function.signature.attr.add(name="N", type="int")
    return path


@case("calls: a function with another implementation")
def _implementations(path, canary):
    export(path, lambda x, net: tf.function(net)(x))
    with edited(path) as meta:
        for function in meta.graph_def.library.function:
            function.attr["api_implements"].s = b"net"
    return path


# Calls


def _chain(path, links, calls):
    """Functions h0, h1, …, each calling the next so many times; `links` 0: itself."""
    inner = tf.function(lambda x: tf.identity(x))

    @tf.function
    def outer(x):
        for _ in range(calls):
            x = inner(x)
        return x

    export(path, lambda x, net: net(outer(x)))
    with edited(path) as meta:
        library = meta.graph_def.library.function
        first = next(f for f in library if "_outer_" in f.signature.name)
        last = next(n.attr["f"].func.name for n in first.node_def if "f" in n.attr)
        for index in range(links):
            link = library.add()
            link.CopyFrom(first)
            link.signature.name = f"h{index}"
            for node in link.node_def:
                if "f" in node.attr:
                    node.attr["f"].func.name = last if index == links - 1 else f"h{index + 1}"
        for node in first.node_def:
            if "f" in node.attr:
                node.attr["f"].func.name = "h0" if links else first.signature.name
    return path


case("calls: itself")(lambda path, canary: _chain(path, 0, 1))
case("calls: the next twice, fifty times")(lambda path, canary: _chain(path, 50, 2))
case("calls: 5,000 deep")(lambda path, canary: _chain(path, 5000, 1))


def _with_function(arguments, calls, functions=1):
    """Functions of so many arguments, and another one that calls the first so many times."""

    def add(meta):
        library = meta.graph_def.library.function
        for index in range(functions):
            function = library.add()
            function.signature.name = f"e{index}"
            for place in range(arguments):
                function.signature.input_arg.add(name=f"a{place}", type=1)
        caller = library.add()
        caller.signature.name = "caller"
        for index in range(calls):
            node = caller.node_def.add(name=f"c{index}", op="PartitionedCall")
            node.attr["f"].func.name = "e0"
            node.attr["Tin"].list.SetInParent()
            node.attr["Tout"].list.SetInParent()

    return _changed(add)


case("calls: a function of 70,000 arguments")(_with_function(70_000, 0))
case("calls: 5000 arguments, twenty times")(_with_function(5000, 20))
case("calls: none of five thousand functions")(_with_function(0, 0, 5000))


# The message


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
    def long(x, net):
        return net(x)

    export(path, long)
    with edited(path) as meta:
        function = meta.graph_def.library.function[0]
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


@case("message: 10^5 objects")
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


def restore_function(meta):
    """The function by which a server restores variables, and the node that calls it."""
    (call,) = [n for n in meta.graph_def.node if n.name == meta.saver_def.restore_op_name]
    name = call.attr["f"].func.name
    (function,) = [f for f in meta.graph_def.library.function if f.signature.name == name]
    return function, call


def two_heads(path):
    """With a second kernel of the same shape, which a server could be given instead."""
    net = Net()
    net.other = tf.Variable(-net.v)
    return export(
        path, net=net, body=lambda x, net: tf.nn.softplus(x @ net.w) @ (net.v + 0.5 * net.other)
    )


def swap_places(function):
    """Restores each of two variables of the same shape to the value of the other."""
    reads = [n for n in function.node_def if n.op == "Identity" and "RestoreV2:" in n.input[0]]
    (keys,) = [n for n in function.node_def if n.name == "RestoreV2/tensor_names"]
    names = [key.decode() for key in tf.make_ndarray(keys.attr["value"].tensor)]
    places = [i for i, key in enumerate(names) if key.startswith(("v/", "other/"))]
    for node in reads:
        place = int(node.input[0].rpartition(":")[2])
        if place in places:
            node.input[0] = f"RestoreV2:tensors:{sum(places) - place}"


@case("signature: variables are restored crosswise")
def _crosswise(path, canary):
    two_heads(path)
    with edited(path) as meta:
        swap_places(restore_function(meta)[0])
    return path


@case("signature: the call is given other variables")
def _given_others(path, canary):
    """The function and the checkpoint are as they were; the main graph hands them over crosswise."""
    two_heads(path)
    with edited(path) as meta:
        name = meta.signature_def["serving_default"].outputs["output_0"].name.split(":")[0]
        (call,) = [n for n in meta.graph_def.node if n.name == name]
        handles = [n.name for n in meta.graph_def.node if n.op == "VarHandleOp"]
        shapes = {n.name: str(n.attr["shape"]) for n in meta.graph_def.node}
        alike = [i for i, g in enumerate(call.input) if g in handles and shapes[g].count("5") == 1]
        alike = [i for i in alike if "size: 3" in shapes[call.input[i]]]
        first, second = alike
        call.input[first], call.input[second] = call.input[second], call.input[first]
    return path


@case("signature: two variables share a name")
def _shared(path, canary):
    two_heads(path)
    with edited(path) as meta:
        for node in meta.graph_def.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = b"one"
    return path


@case("signature: a variable is restored twice")
def _twice(path, canary):
    two_heads(path)
    with edited(path) as meta:
        function, _ = restore_function(meta)
        (first, *_) = [n for n in function.node_def if n.op == "AssignVariableOp"]
        again = function.node_def.add()
        again.CopyFrom(first)
        again.name = "again"
    return path


@case("signature: the init op assigns")
def _init_assigns(path, canary):
    export(path)
    with edited(path) as meta:
        for node in meta.graph_def.node:
            if node.op == "VarHandleOp":
                value = meta.graph_def.node.add(name="read", op="ReadVariableOp", input=[node.name])
                value.attr["dtype"].CopyFrom(node.attr["dtype"])
                change = meta.graph_def.node.add(
                    name="change", op="AssignAddVariableOp", input=[node.name, "read"]
                )
                change.attr["dtype"].CopyFrom(node.attr["dtype"])
                break
        (noop,) = [n for n in meta.graph_def.node if n.op == "NoOp"]
        noop.input.append("^change")
    return path


@case("signature: another one changes variables")
def _changes(path, canary):
    net = Net()
    spec = [tf.TensorSpec((None, 4), tf.float32, name="x")]

    def change(x):
        net.v.assign(-net.v)
        return {"logits": net(x)}

    functions = {
        "serving_default": tf.function(lambda x: {"logits": net(x)}, input_signature=spec),
        "change": tf.function(change, input_signature=spec),
    }
    tf.saved_model.save(net, str(path), signatures=functions)
    return path


def main_call(meta):
    """The node that answers the signature in the main graph."""
    name = next(iter(meta.signature_def["serving_default"].outputs.values())).name.split(":")[0]
    return next(node for node in meta.graph_def.node if node.name == name)


def constant(nodes, name, value):
    """Adds a Const; returns its name."""
    tensor = tf.make_tensor_proto(value)
    node = nodes.add(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    node.attr["dtype"].type = tensor.dtype
    return name


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


@case("signature: restoring saves")
def _restoring_saves(path, canary):
    export(path)
    with edited(path) as meta:
        body = restore_function(meta)[0].node_def
        (restore,) = [node for node in body if node.op == "RestoreV2"]
        given = {"p": str(canary), "k": ["x"], "s": [""], "d": np.float32([1.0])}
        given = [f"{constant(body, name, value)}:output:0" for name, value in given.items()]
        body.add(name="save", op="SaveV2", input=given).attr["dtypes"].list.type.append(1)
        restore.input.append("^save")
    return path


@case("signature: two variables share a name in two containers")
def _containers(path, canary):
    two_heads(path)
    with edited(path) as meta:
        for i, node in enumerate(n for n in meta.graph_def.node if n.op == "VarHandleOp"):
            node.attr["container"].s = (b"", b"localhost")[i % 2]
            node.attr["shared_name"].s = b"%d" % (i // 2)
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


@case("signature: much is computed beside the output")
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


@case("signature: restoring goes in circles")
def _circles(path, canary):
    export(path)
    with edited(path) as meta:
        function, _ = restore_function(meta)
        for node in function.node_def:
            if node.op == "Identity" and "RestoreV2:" in node.input[0]:
                node.input[0] = f"{node.name}:output:0"
    return path
