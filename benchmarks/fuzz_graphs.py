"""Random graphs of real ops with random attributes: the reader may raise only InputError.

    nice python benchmarks/fuzz_graphs.py --graphs 100000 --seed 0

Each graph is a plausible chain of a few ops from an input to an output: most shapes fit, and
attributes are those that the op has. Some are then changed: an attribute, an input, the type or the
shape of a constant, the name of a node. The graph stands behind the signature of a SavedModel,
sometimes with a part of it in a function. A model that is accepted is loaded by Python, and as a
server does with TensorFlow's optimizer, and run beside the network that was read. A finding is a
graph where the network answers differently from either, that takes more than five seconds, or that
ends the process. Every graph can be made again from its number.
"""

import math
import pathlib
import sys
import tempfile

import numpy as np
import tensorflow as tf
from fuzzing import campaign  # first of what follows: it says where that is
from hostile_models import models
from server_oracle import assert_read_as_answered
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from keras_curv.errors import InputError
from keras_curv.lowering.rules import registry
from keras_curv.reading import served_model

SHAPES = ((4,), (6,), (2, 3), (4, 4, 2), (5, 4, 1), (1,), (6, 6, 3))
KNOWN = sorted(op for op in registry.RULES if op_def_registry.get(op) is not None)
UNKNOWN = (
    "Exp",
    "Cumsum",
    "SplitV",
    "ScatterNd",
    "Where",
    "MaxPool",
    "Cos",
    "AddN",
    "ArgMax",
    "Fill",
)
NUMBERS = (0, 1, 2, 3, -1, 7, 2**31 - 1, -(2**31), 2**40)
TYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool, tf.string, tf.half, tf.uint8)


class Graph:
    """One random graph.

    Args:
        number: seed of the graph.
    """

    def __init__(self, number):
        self.rng = np.random.default_rng(number)
        self.definition = graph_pb2.GraphDef()
        self.shape = SHAPES[self.rng.integers(len(SHAPES))]
        node = self.definition.node.add(name="x", op="Placeholder")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape((None, *self.shape)).as_proto())
        self.last, self.now = "x", self.shape
        for _ in range(self.rng.integers(1, 10)):
            self.step()
        if self.rng.random() < 0.8:
            self.op("Reshape", self.constant(np.array([-1, int(np.prod(self.now))], np.int32)))
            self.now = (int(np.prod(self.now)),)
            self.op("MatMul", self.floats((self.now[0], 3)))
        for _ in range(self.rng.poisson(0.7)):
            self.change()

    def constant(self, value):
        """Adds a constant; returns its name."""
        node = self.definition.node.add(name=f"n{len(self.definition.node)}", op="Const")
        tensor = tf.make_tensor_proto(value)
        node.attr["value"].tensor.CopyFrom(tensor)
        node.attr["dtype"].type = tensor.dtype
        return node.name

    def floats(self, shape):
        scale = self.rng.choice([1.0, 1.0, 1.0, 0.0, -1.0, 1e-3, 30.0])
        return self.constant(np.float32(scale * self.rng.normal(size=shape)))

    def integers(self, *values):
        return self.constant(np.array(values, np.int32))

    def op(self, name, *inputs, first=False, **attributes):
        """Adds an op on what there is and on these constants, with all attributes of its kind."""
        given = [*inputs, self.last] if first else [self.last, *inputs]
        node = self.definition.node.add(name=f"n{len(self.definition.node)}", op=name, input=given)
        for known in op_def_registry.get(name).attr:
            value = node.attr[known.name]
            if known.HasField("default_value"):
                value.CopyFrom(known.default_value)
            elif known.type == "type":
                whole = known.name in ("Tshape", "Tperm", "Tpaddings", "Index", "Tidx", "Tindices")
                value.type = (tf.int32 if whole else tf.float32).as_datatype_enum
            else:
                self.fill(value, known.type)
        for key, wanted in attributes.items():
            if isinstance(wanted, (list, tuple)):
                node.attr[key].Clear()
                node.attr[key].list.i.extend(wanted)
            elif isinstance(wanted, bytes):
                node.attr[key].s = wanted
            else:
                node.attr[key].i = wanted
        self.last = node.name

    def fill(self, value, kind):
        """Returns any value of a kind of attribute."""
        pick = lambda some: some[self.rng.integers(len(some))]  # noqa: E731
        value.Clear()
        if kind == "int":
            value.i = int(pick(NUMBERS))
        elif kind == "bool":
            value.b = bool(self.rng.integers(2))
        elif kind == "float":
            value.f = float(pick((0.0, 1.0, -1.0, 1e38, float("nan"), float("inf"), 0.2)))
        elif kind == "type":
            value.type = pick(TYPES).as_datatype_enum
        elif kind == "string":
            value.s = pick((b"", b"SAME", b"VALID", b"NHWC", b"NCHW", b"x", b"\xff"))
        elif kind == "shape":
            value.shape.CopyFrom(tf.TensorShape(pick(((), (1, 4), (None, 4)))).as_proto())
        elif kind == "list(int)":
            value.list.i.extend(int(pick(NUMBERS)) for _ in range(self.rng.integers(6)))
        elif kind == "list(type)":
            value.list.type.extend(pick(TYPES).as_datatype_enum for _ in range(2))
        elif kind == "tensor":
            value.tensor.CopyFrom(tf.make_tensor_proto(1.0))

    def step(self):
        """Adds one op, mostly as an exporter would."""
        rng, now = self.rng, self.now
        size, rank = int(np.prod(now)), len(now)
        kind = rng.integers(18) if rank else 5
        if kind == 0:
            shape = [(), (now[-1],), now, (1, *now)][rng.integers(4)]
            name = rng.choice(
                ["AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Add", "Div"]
            )
            self.op(name, self.floats(shape), first=bool(rng.integers(2)))
        elif kind == 1:
            name = ["Softplus", "Sigmoid", "Tanh", "Relu", "Elu", "Softsign", "Relu6", "Selu"]
            self.op(str(rng.choice([*name, "LeakyRelu", "Neg", "Identity", "StopGradient"])))
        elif kind == 2 and rank == 1:
            self.now = (int(rng.integers(1, 6)),)
            if rng.integers(2):
                self.op("MatMul", self.floats((*now, *self.now)))
            else:
                self.op("BatchMatMulV2", self.floats((*now, *self.now)))
        elif kind in (3, 4) and rank == 3:
            height, width, filters = (int(n) for n in rng.integers(1, 4, 3))
            stride, dilation = (int(n) for n in rng.integers(1, 3, 2))
            padding = [b"SAME", b"VALID"][rng.integers(2)]
            how = {"strides": [1, stride, stride, 1], "padding": padding}
            if kind == 3:
                kernel = self.floats((height, width, now[2], filters))
                self.op("Conv2D", kernel, dilations=[1, dilation, dilation, 1], **how)
                self.moved(
                    (height - 1) * dilation + 1,
                    (width - 1) * dilation + 1,
                    stride,
                    padding,
                    filters,
                )
            elif rng.integers(2):
                kernel = self.floats((height, width, now[2], filters))
                self.op("DepthwiseConv2dNative", kernel, **how)
                self.moved(height, width, stride, padding, now[2] * filters)
            else:
                self.op("AvgPool", ksize=[1, height, width, 1], **how)
                self.moved(height, width, stride, padding, now[2])
        elif kind == 5:
            self.op("Reshape", self.integers(-1, size))
            self.now = (size,)
        elif kind == 6:
            axes = [0, *(1 + rng.permutation(rank))]
            self.op("Transpose", self.integers(*axes))
            self.now = tuple(now[axis - 1] for axis in axes[1:])
        elif kind == 7:
            pairs = [(0, 0), *((int(a), int(b)) for a, b in rng.integers(0, 3, (rank, 2)))]
            self.op("Pad", self.constant(np.array(pairs, np.int32)))
            self.now = tuple(n + a + b for n, (a, b) in zip(now, pairs[1:], strict=True))
        elif kind == 8:
            first = [0, *(int(rng.integers(n)) for n in now)]
            last = [0, *now]
            parts = [self.integers(*values) for values in (first, last, [1] * (rank + 1))]
            self.op("StridedSlice", *parts, begin_mask=1, end_mask=1)
            self.now = tuple(n - a for n, a in zip(now, first[1:], strict=True))
        elif kind == 9:
            times = [1, *(int(n) for n in rng.integers(1, 3, rank))]
            self.op("Tile", self.integers(*times))
            self.now = tuple(n * t for n, t in zip(now, times[1:], strict=True))
        elif kind == 10 and rank > 1:
            axis = int(rng.integers(1, rank + 1))
            self.op("Mean", self.integers(axis))
            self.now = tuple(n for place, n in enumerate(now) if place != axis - 1)
        elif kind == 11:
            axis = int(rng.integers(1, rank + 1))
            picked = rng.integers(now[axis - 1], size=rng.integers(1, 5))
            self.op("GatherV2", self.integers(*picked), self.constant(np.int32(axis)))
            self.now = tuple(len(picked) if p == axis - 1 else n for p, n in enumerate(now))
        elif kind == 12:
            self.op("ReverseV2", self.integers(int(rng.integers(1, rank + 1))))
        elif kind == 13 and rng.random() < 0.3:
            name = str(rng.choice([*KNOWN, *UNKNOWN]))
            arguments = op_def_registry.get(name).input_arg[1:]
            self.op(name, *(self.floats((now[-1],)) for _ in arguments))
        elif kind == 14:
            self.contract()
        elif kind == 15 and rank > 1:
            rows, columns = (int(n) for n in rng.integers(1, 6, 2))
            if rng.integers(2):
                self.op("BatchMatMulV2", self.floats((now[-1], columns)))
                self.now = (*now[:-1], columns)
            else:
                self.op("BatchMatMulV2", self.floats((rows, now[-2])), first=True)
                self.now = (*now[:-2], rows, now[-1])
        elif kind == 16:
            self.multiply()
        elif kind == 17:
            self.normalize()
        if size > 3000:
            self.op("Reshape", self.integers(-1, int(np.prod(self.now))))
            self.now = (int(np.prod(self.now)),)
            self.op("MatMul", self.floats((self.now[0], 5)))
            self.now = (5,)

    def multiply(self):
        """Multiplies by a function of the same tensor, entry by entry or as matrices."""
        rng, before, now = self.rng, self.last, self.now
        self.op(str(rng.choice(["Sigmoid", "Tanh", "Softmax", "Square", "Relu"])))
        if len(now) == 2 and rng.integers(2):
            self.op("BatchMatMulV2", before)
            self.definition.node[-1].attr["adj_y"].b = True
            self.now = (now[0], now[0])
        else:
            name = str(rng.choice(["Mul", "SquaredDifference", "Sub"]))
            self.op(name, before, first=bool(rng.integers(2)))

    def normalize(self):
        """Divides by the root of a sum or mean of squares along one axis, and something more."""
        rng, before = self.rng, self.last
        self.op("Square")
        axis = self.integers(int(rng.integers(1, len(self.now) + 1)))
        self.op(str(rng.choice(["Sum", "Mean"])), axis)
        self.definition.node[-1].attr["keep_dims"].b = True
        self.op("AddV2", self.constant(np.float32(0.5)))
        if rng.integers(2):
            self.op("Rsqrt")
            self.op("Mul", before)
        else:
            self.op("Sqrt")
            self.op("RealDiv", before, first=True)

    def contract(self):
        """Adds an `Einsum` with a constant: some axes are summed over, some shared, one is new."""
        rng = self.rng
        axes, units = "abcdef"[: len(self.now)], int(rng.integers(1, 5))
        uses = rng.integers(3, size=len(axes))  # free, summed, shared
        given = [a for a, use in zip(axes, uses, strict=True) if use] + ["z"]
        made = [a for a, use in zip(axes, uses, strict=True) if use != 1] + ["z"]
        given, made = ("".join(rng.permutation(some)) for some in (given, made))
        sizes = dict(zip(axes, self.now, strict=True), z=units)
        self.op(
            "Einsum",
            self.floats(tuple(sizes[axis] for axis in given)),
            equation=f"n{axes},{given}->n{made}".encode(),
            N=2,
        )
        self.now = tuple(sizes[axis] for axis in made)

    def moved(self, height, width, stride, padding, channels):
        """The shape behind windows of that size; negative where they do not fit."""
        axes = zip(self.now[:2], (height, width), strict=True)
        if padding == b"SAME":
            sizes = [-(-n // stride) for n in self.now[:2]]
        else:
            sizes = [(n - window) // stride + 1 for n, window in axes]
        self.now = (*(max(n, 1) for n in sizes), channels)

    def change(self):
        """Changes one thing somewhere."""
        rng, nodes = self.rng, self.definition.node
        if len(nodes) < 2:
            return
        node = nodes[rng.integers(1, len(nodes))]
        definition = op_def_registry.get(node.op)
        what = rng.integers(4)
        if what == 0 and definition.attr:
            known = definition.attr[rng.integers(len(definition.attr))]
            self.fill(node.attr[known.name], known.type)
        elif what == 1 and node.input:
            node.input[rng.integers(len(node.input))] = nodes[rng.integers(len(nodes))].name
        elif what == 2 and node.op == "Const":
            sizes = [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
            if not 0 <= math.prod(sizes) < 10**6:  # its shape was changed before
                return
            try:
                value = tf.make_ndarray(node.attr["value"].tensor).copy()
            except ValueError:
                return
            if value.size:
                value.reshape(-1)[rng.integers(value.size)] = [0, 1, -1, 3, 2**31 - 1][
                    rng.integers(5)
                ]
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        elif what == 3 and node.op == "Const":
            for dim in node.attr["value"].tensor.tensor_shape.dim:
                dim.size = int(NUMBERS[rng.integers(len(NUMBERS))])


def saved(graph, path):
    """A SavedModel whose signature is answered by the random graph: in a function, as exports are.

    Of some, a part is a function that the others call; and some nodes are named as TensorFlow would
    name what it makes of others.
    """
    models.export(path)
    nodes = [*graph.definition.node][1:]
    parts = split(graph, nodes)
    with models.edited(path) as meta:
        function = models.served_function(meta)
        for field in ("arg_attr", "node_def", "attr", "control_ret"):
            function.ClearField(field)
        function.signature.ClearField("control_output")
        (argument, *_) = (each.name for each in function.signature.input_arg)
        names = {"x": argument}
        written(function, nodes if parts is None else parts[0], names)
        if parts is not None:
            inner = meta.graph_def.library.function.add()
            inner.signature.name = "inner"
            inner.signature.input_arg.add(name="y", type=1)
            inner.signature.output_arg.add(name="z", type=1)
            within = {parts[2]: "y"}
            written(inner, parts[1], within)
            inner.ret["z"] = within.get(graph.last, "y")
            call = function.node_def.add(name="call", op="PartitionedCall", input=[names[parts[2]]])
            call.attr["f"].func.name = "inner"
            for key in ("Tin", "Tout"):
                call.attr[key].list.type.append(1)
            names[graph.last] = "call:output:0"
        (returned,) = function.ret
        function.ret[returned] = names.get(graph.last, argument)
        renamed(graph.rng, function)
        shaped(meta, graph.shape)
    return path


def split(graph, nodes):
    """Where the chain is cut, at times: (nodes before, nodes behind, what these begin with)."""
    cuts = [n.name for n in nodes if n.op != "Const"]
    if len(cuts) < 3 or graph.rng.random() < 0.5:
        return None
    cut = cuts[graph.rng.integers(len(cuts) - 1)]
    place = [node.name for node in nodes].index(cut) + 1
    before, behind = nodes[:place], nodes[place:]
    inside = {node.name for node in behind} | {cut}
    if any(given.split(":")[0] not in inside for node in behind for given in node.input):
        return None
    return before, behind, cut


def written(function, nodes, names):
    """Writes nodes into a function, whose tensors have other names there; these go to `names`."""
    for node in nodes:
        new = function.node_def.add()
        new.CopyFrom(node)
        new.input[:] = [names.get(given, given) for given in node.input]
        definition = op_def_registry.get(node.op)
        outputs = definition.output_arg if definition is not None else []
        names[node.name] = f"{node.name}:{outputs[0].name if outputs else 'output'}:0"


def renamed(rng, function):
    """Names a node as TensorFlow would name something else."""
    nodes = [node for node in function.node_def if node.op != "PartitionedCall"]
    if not nodes or rng.random() < 0.7:
        return
    node, other = (nodes[rng.integers(len(nodes))].name for _ in range(2))
    patterns = ["call/{}", "ConstantFolding/{}_recip", "ConstantFolding/{}-folded", "a/{}", "{}/b"]
    patterns += ["ArithmeticOptimizer/ReplaceMulWithSquare_{}", "{}_1", "ConstantFolding{}"]
    new = patterns[rng.integers(len(patterns))].format(other)
    tensors = [*function.ret.items()]
    for each in function.node_def:
        each.name = new if each.name == node else each.name
        each.input[:] = [moved(given, node, new) for given in each.input]
    for key, given in tensors:
        function.ret[key] = moved(given, node, new)


def moved(tensor, node, new):
    """The tensor, where its node has another name now."""
    name, colon, place = tensor.partition(":")
    return f"{new}{colon}{place}" if name == node else tensor


def shaped(meta, shape):
    """Says everywhere that examples are of this shape, and nothing of the outputs."""
    proto = tf.TensorShape((None, *shape)).as_proto()
    definition = meta.signature_def["serving_default"]
    (given,), (returned,) = definition.inputs.values(), definition.outputs.values()
    given.tensor_shape.CopyFrom(proto)
    returned.tensor_shape.CopyFrom(tf.TensorShape(None).as_proto())
    for node in meta.graph_def.node:
        node.attr.pop("_output_shapes", None)
        if given.name == f"{node.name}:0":
            node.attr["shape"].shape.CopyFrom(proto)
    name = models.served_function(meta).signature.name
    function = meta.object_graph_def.concrete_functions[name]
    (field,) = function.canonicalized_input_signature.tuple_value.values[
        1
    ].dict_value.fields.values()
    field.tensor_spec_value.shape.CopyFrom(proto)
    (field,) = function.output_signature.dict_value.fields.values()
    field.tensor_spec_value.shape.CopyFrom(tf.TensorShape(None).as_proto())


def taken(number):
    """Returns "read", "refused", or "read otherwise"."""
    graph = Graph(number)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(graph, pathlib.Path(folder) / "model")
        x = np.random.default_rng(number).normal(size=(3, *graph.shape)).astype(np.float32)
        try:
            served = served_model.read(path)
            served.check(x)
        except InputError as error:
            assert str(error).isprintable()
            return "read otherwise" if "disagree" in str(error) else "refused"
        try:
            assert_read_as_answered(path, x)
        except AssertionError:
            return "read otherwise"
    return "read"


if __name__ == "__main__":
    sys.exit(campaign(taken, {"read", "refused"}, "graphs"))
