"""A frozen TensorFlow graph, read op by op into affine maps and activations.

Each op has a rule that says what it does to the numbers; an op without a rule is refused by
name and node, never guessed. Between two activations everything is affine: it is folded into
one kernel and one bias, with a bound of what folding rounds away (`ball.py`).

Shapes are computed for a batch of `_BATCH` examples, a large prime: a reshape or transpose
that mixes examples cannot keep it as the first axis, and is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import saver_pb2

from keras_curv import activations
from keras_curv.ball import Ball
from keras_curv.errors import InputError
from keras_curv.linear import Affine
from keras_curv.network import Network

_BATCH = 1_000_003

# What a served output may apply to the logits; each keeps their order in real arithmetic.
HEADS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "logits": tf.identity,
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "sigmoid": tf.sigmoid,
    "binary_sigmoid": lambda logits: tf.sigmoid(logits[:, 1:]),
}

# Ops that compute from their inputs and do nothing else; a graph of these is safe to load and
# to run. Most have no rule below: such a model is loaded, then refused by the rule that lacks.
_PURE_OPS = frozenset(
    """
    Placeholder PlaceholderWithDefault Const Identity IdentityN NoOp StopGradient PreventGradient
    PartitionedCall StatefulPartitionedCall VarHandleOp ReadVariableOp DisableCopyOnRead
    VarIsInitializedOp Shape ShapeN Size Rank Pack Unpack StridedSlice Slice Split SplitV Concat
    ConcatV2 Reshape Squeeze ExpandDims Transpose Tile Fill Range ZerosLike OnesLike Cast Bitcast
    GatherV2 Gather GatherNd BroadcastTo BroadcastArgs Reverse ReverseV2 OneHot Pad PadV2 MirrorPad
    Add AddV2 AddN Sub Mul MulNoNan Div DivNoNan RealDiv FloorDiv FloorMod Mod Pow Square Sqrt
    Rsqrt Exp Expm1 Log Log1p Abs Neg Sign Reciprocal Inv Floor Ceil Round Rint Maximum Minimum
    ClipByValue SquaredDifference Erf Erfc Sin Cos Tan Sinh Cosh Asin Acos Atan Atan2 Asinh Acosh
    Atanh Sum Mean Prod Max Min All Any ArgMax ArgMin TopKV2 Cumsum Cumprod Equal NotEqual Less
    LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot Select SelectV2 IsNan IsInf
    IsFinite MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum BiasAdd BiasAddV1 Conv2D
    Conv3D DepthwiseConv2dNative Conv2DBackpropInput MaxPool MaxPoolV2 MaxPool3D AvgPool AvgPool3D
    FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 L2Loss LRN Softmax LogSoftmax Softplus Sigmoid
    Tanh Relu Relu6 LeakyRelu Elu Selu Softsign ResizeBilinear ResizeNearestNeighbor SpaceToDepth
    DepthToSpace SpaceToBatchND BatchToSpaceND RandomUniform RandomStandardNormal TruncatedNormal
    RandomUniformInt StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessRandomGetKeyCounter
    StatelessRandomGetAlg StatelessRandomUniform StatelessRandomGetKeyCounterAlg Where
    AssignVariableOp AssignAddVariableOp AssignSubVariableOp UnsortedSegmentSum Xlogy Cross
    """.split()
)
# What the functions that save and restore variables consist of. Serving calls them with a path
# of its own; nothing here ever does.
_SAVER_OPS = frozenset(
    """
    SaveV2 RestoreV2 MergeV2Checkpoints ShardedFilename StringJoin StaticRegexFullMatch
    """.split()
)


def refuse_unsafe_ops(
    definition: graph_pb2.GraphDef,
    saver: saver_pb2.SaverDef,
    exposed: Iterable[str],
    source: str,
) -> None:
    """Refuses a graph that has an op which could reach outside of its own computation.

    Args:
        definition: the main graph with its function library.
        saver: names the nodes of the main graph that save and restore. It is believed only
            of functions that nothing else can reach.
        exposed: the functions that objects of the model call by name.
        source: for the message.

    Raises:
        InputError: names the op, the node and the function.
    """
    functions = {function.signature.name: function for function in definition.library.function}

    def reachable(names: list[str]) -> set[str]:
        found: set[str] = set()
        while names:
            name = names.pop()
            if name in functions and name not in found:
                found.add(name)
                names += [called for node in functions[name].node_def for called in _called(node)]
        return found

    tensors = (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name)
    saver_nodes = {tensor.split(":")[0] for tensor in tensors}
    by_saver, by_others = [], list(exposed)
    for node in definition.node:
        (by_saver if node.name in saver_nodes else by_others).extend(_called(node))
    saving = reachable(by_saver)
    by_others += [name for name in functions if name not in saving]
    saving -= reachable(by_others)

    for node in definition.node:
        _refuse_unless(node, _PURE_OPS, "the main graph", source)
    for function in definition.library.function:  # not the dict: names may be doubled
        name = function.signature.name
        allowed = _PURE_OPS | _SAVER_OPS if name in saving else _PURE_OPS
        for node in function.node_def:
            _refuse_unless(node, allowed, f"function {name}", source)


def _called(node: node_def_pb2.NodeDef) -> list[str]:
    names = [node.op]  # a function can be called as if it were an op
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names


def _refuse_unless(node, allowed: frozenset[str], where: str, source: str) -> None:
    if node.op not in allowed:
        raise InputError(
            f"{source}: op {node.op} (node {node.name!r} in {where}) is not on the list of ops "
            "that are safe to load; the model is refused unread"
        )


@dataclasses.dataclass(frozen=True)
class _Flow:
    """A tensor that depends on the input: affine in the output of the last activation.

    Entry j of an example, flattened, is `(base @ kernel)[j] * scale[j] + shift[j]` where
    there is a kernel, else `base[order[j]] * scale[j] + shift[j]`.

    Attributes:
        shape: of one example.
        layers: the affine maps and activations that make the base.
        base: its size.
        kernel: `(base, size)`, or None for a picking of entries.
        order: `(size,)`, where there is no kernel.
        scale, shift: `(size,)`; scale is 1 where there is a kernel.
        head: what has been applied to the logits, "logits" while nothing has.
    """

    shape: tuple[int, ...]
    layers: tuple
    base: int
    kernel: Ball | None
    order: np.ndarray
    scale: Ball
    shift: Ball
    head: str = "logits"

    @classmethod
    def input(cls, shape: tuple[int, ...], layers: tuple = ()) -> _Flow:
        size = int(np.prod(shape))
        return cls(
            shape=shape,
            layers=layers,
            base=size,
            kernel=None,
            order=np.arange(size),
            scale=Ball.exact(np.ones(size)),
            shift=Ball.exact(np.zeros(size)),
        )

    def scaled(self, factor: Ball) -> _Flow:
        shift = self.shift if self.shift.equals(0.0) else self.shift * factor
        if self.kernel is None:
            return dataclasses.replace(self, scale=factor * self.scale, shift=shift)
        return dataclasses.replace(self, kernel=self.kernel * factor, shift=shift)

    def shifted(self, offset: Ball) -> _Flow:
        return dataclasses.replace(self, shift=self.shift + offset)

    def rearranged(self, positions: np.ndarray) -> _Flow:
        """Entry j becomes the former entry `positions[j]`; the shape is that of `positions`."""
        flat = positions.reshape(-1)
        return dataclasses.replace(
            self,
            shape=positions.shape,
            kernel=None if self.kernel is None else self.kernel[:, flat],
            order=self.order if self.kernel is not None else self.order[flat],
            scale=self.scale[flat],
            shift=self.shift[flat],
        )

    def times(self, kernel: Ball) -> _Flow:
        """The product with a matrix `(size, out)`."""
        scale = self.scale.reshape((-1, 1))
        if self.kernel is not None:
            product = self.kernel @ kernel
        else:
            rows = kernel * scale if not self.scale.equals(1.0) else kernel
            product = Ball.exact(np.zeros((self.base, kernel.shape[1])))
            product.value[self.order] = rows.value
            product.error[self.order] = rows.error
        shift = Ball.exact(np.zeros(kernel.shape[1]))
        if not self.shift.equals(0.0):
            shift = self.shift @ kernel
        return dataclasses.replace(
            self,
            shape=(kernel.shape[1],),
            kernel=product,
            scale=Ball.exact(np.ones(kernel.shape[1])),
            shift=shift,
        )

    def affine(self) -> Affine:
        """The map, with an identity for a kernel where there has been no product."""
        flow = self
        if self.kernel is None:
            flow = self.times(Ball.exact(np.eye(self.shift.shape[0])))
        return Affine(
            flow.kernel.value,
            flow.shift.value,
            flow.kernel.norm_of_error(),
            flow.shift.norm_of_error(),
        )

    def activated(self, name: str) -> _Flow:
        layer = (self.affine(), activations.get(name))
        return _Flow.input(self.shape, (*self.layers, layer))


class _Unreadable(Exception):
    """A rule does not apply; the text says why."""


_RULES: dict[str, Callable] = {}


def _rule(*ops: str):
    def register(function):
        _RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def read_network(
    definition: graph_pb2.GraphDef,
    *,
    input_node: str,
    input_shape: tuple[int, ...],
    output: str,
    source: str,
) -> tuple[Network, str]:
    """Reads a flat graph of constants and one placeholder.

    Args:
        definition: without functions or variables.
        input_node: the placeholder.
        input_shape: of one example.
        output: the tensor with logits, or with what a head of `HEADS` makes of them.
        source: for messages.

    Returns:
        The network, and the name of the head.

    Raises:
        InputError: an op without a rule, or used in a way its rule does not cover.
    """
    nodes = {node.name: node for node in definition.node}
    values: dict[str, object] = {input_node: _Flow.input(input_shape)}
    for name in _in_order(nodes, output.split(":")[0]):
        node = nodes[name]
        if name in values:
            continue
        arguments = [values[_node_of(i)] for i in node.input if not i.startswith("^")]
        try:
            with np.errstate(all="ignore"):  # what overflows is refused by `Affine`
                values[name] = _apply(node, arguments)
        except (_Unreadable, InputError) as error:
            raise InputError(f"{source}: op {node.op} (node {name!r}): {error}") from error
    flow = values[output.split(":")[0]]
    if not isinstance(flow, _Flow):
        raise InputError(f"{source}: the output does not depend on the input")
    try:
        with np.errstate(all="ignore"):
            return _finish(flow)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _finish(flow: _Flow) -> tuple[Network, str]:
    if len(flow.shape) != 1:
        raise InputError(f"the output must be (batch, classes). Received: {flow.shape}")
    affines = [affine for affine, _ in flow.layers]
    sigmas = [sigma for _, sigma in flow.layers]
    if flow.head == "logits" and sigmas and flow.kernel is None and _is_untouched(flow):
        # Nothing follows the last activation: it is a head. A strictly increasing function of
        # every logit keeps their order; of one logit, only sigmoid says where its classes part.
        name, classes = sigmas[-1].name, affines[-1].fan_out
        if name != "sigmoid":
            raise InputError(
                f"the output is {name} of an affine map; end the model in logits, "
                "softmax or sigmoid"
            )
        if classes > 1:
            return Network(affines, sigmas[:-1]), "sigmoid"
        last = affines[-1]
        two = Affine(
            np.concatenate([np.zeros_like(last.kernel), last.kernel], axis=1),
            np.concatenate([np.zeros_like(last.bias), last.bias]),
            last.kernel_error,
            last.bias_error,
        )
        return Network([*affines[:-1], two], sigmas[:-1]), "binary_sigmoid"
    if flow.shape == (1,):
        raise InputError(
            "the output is one number without a sigmoid, so the classes are not "
            "defined; use two logits, or a sigmoid"
        )
    return Network([*affines, flow.affine()], sigmas), flow.head


def _is_untouched(flow: _Flow) -> bool:
    in_order = np.array_equal(flow.order, np.arange(flow.base))
    return in_order and flow.scale.equals(1.0) and flow.shift.equals(0.0)


def _in_order(nodes: dict[str, node_def_pb2.NodeDef], last: str) -> list[str]:
    """The nodes that `last` depends on, each after its inputs; control edges are left out."""
    order, seen, stack = [], set(), [(last, False)]
    while stack:
        name, ready = stack.pop()
        if ready:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(_node_of(i), False) for i in nodes[name].input if not i.startswith("^")]
    return order


def _node_of(tensor: str) -> str:
    name, _, index = tensor.partition(":")
    if index not in ("", "0"):
        raise InputError(f"tensor {tensor!r}: ops with several outputs are not supported")
    return name


def _apply(node: node_def_pb2.NodeDef, arguments: list):
    if node.op == "Const":
        return _constant(tf.make_ndarray(node.attr["value"].tensor))
    if node.op not in _RULES:
        raise _Unreadable(_WHY_NOT.get(node.op, "there is no rule that reads this op"))
    flows = [argument for argument in arguments if isinstance(argument, _Flow)]
    if any(flow.head != "logits" for flow in flows) and node.op != "Identity":
        raise _Unreadable(f"nothing may follow the final {flows[0].head}")
    return _RULES[node.op](node, *arguments)


def _constant(array: np.ndarray):
    """Floats become balls; integers, shapes among them, stay as they are."""
    if array.dtype in (np.float32, np.float64):
        return Ball.exact(array.astype(np.float64))
    if np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_:
        return array
    raise _Unreadable(f"constants of type {array.dtype} are not supported")


_KINK = "is not differentiable, so it has no curvature bound; use softplus, sigmoid or tanh"
_WHY_NOT = {
    "Relu": f"ReLU {_KINK}",
    "Relu6": f"ReLU6 {_KINK}",
    "LeakyRelu": f"leaky ReLU {_KINK}",
    "Selu": f"SELU {_KINK}",
    "MaxPool": f"max pooling {_KINK}",
    "Conv2D": "convolutions are not supported yet; use dense layers",
}


def _per_example(array: Ball, shape: tuple[int, ...]) -> Ball:
    """A constant broadcast against `(batch, *shape)`, as one example's entries, flattened."""
    if array.value.ndim > len(shape) and array.value.shape[0] != 1:
        raise _Unreadable(f"a constant of shape {array.shape} differs between examples")
    if array.value.ndim > len(shape):
        array = array.reshape(array.shape[1:])
    try:
        return array.broadcast_to(shape).reshape((-1,))
    except ValueError:
        raise _Unreadable(
            f"a constant of shape {array.shape} does not fit examples of shape {shape}"
        ) from None


def _need_constant(value) -> Ball:
    if not isinstance(value, Ball):
        raise _Unreadable("both operands depend on the input, or one is not a float")
    return value


@_rule("Identity", "StopGradient", "PreventGradient")
def _identity(node, value):
    return value


@_rule("Cast")
def _cast(node, value):
    target = tf.dtypes.as_dtype(node.attr["DstT"].type)
    if target in (tf.float32, tf.float64):
        if isinstance(value, np.ndarray):
            raise _Unreadable("a float made from integers may depend on the batch size")
        return value  # a change of format, not of value, in real arithmetic
    if isinstance(value, np.ndarray) and target.is_integer:
        return value
    raise _Unreadable(f"a cast to {target.name} rounds; use float32 or float64 throughout")


@_rule("Add", "AddV2", "BiasAdd")
def _add(node, a, b):
    if node.op == "BiasAdd" and node.attr["data_format"].s not in (b"", b"NHWC"):
        raise _Unreadable("only channels_last is supported")
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a + b
    if isinstance(b, _Flow):
        a, b = b, a
    if isinstance(a, _Flow):
        offset = _need_constant(b)
        return a.shifted(_per_example(offset, _grown(a, offset)))
    return _need_constant(a) + _need_constant(b)


@_rule("Sub")
def _sub(node, a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a - b
    if isinstance(a, _Flow):
        return _add(node, a, -_need_constant(b))
    if isinstance(b, _Flow):
        return _add(node, b.scaled(Ball.exact(-np.ones(b.shift.shape))), a)
    return _need_constant(a) - _need_constant(b)


@_rule("Mul")
def _mul(node, a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a * b
    if isinstance(b, _Flow):
        a, b = b, a
    if isinstance(a, _Flow):
        factor = _need_constant(b)
        return a.scaled(_per_example(factor, _grown(a, factor)))
    return _need_constant(a) * _need_constant(b)


@_rule("RealDiv", "Div")
def _divide(node, a, b):
    if isinstance(a, _Flow):
        return _mul(node, a, _need_constant(b).reciprocal())
    return _need_constant(a) / _need_constant(b)


def _grown(flow: _Flow, constant: Ball) -> tuple[int, ...]:
    """The example's shape; a constant must not broadcast it to a larger one."""
    if len(constant.shape) > len(flow.shape) + 1:
        raise _Unreadable(f"a constant of shape {constant.shape} would add an axis")
    return flow.shape


@_rule("Neg")
def _neg(node, value):
    if isinstance(value, _Flow):
        return value.scaled(Ball.exact(-np.ones(value.shift.shape)))
    return -value


@_rule("Sqrt", "Rsqrt", "Square", "Reciprocal", "Inv")
def _of_constant(node, value):
    name = {"Inv": "reciprocal"}.get(node.op, node.op.lower())
    return getattr(_need_constant(value), name)()


@_rule("Maximum")
def _maximum(node, a, b):
    return _need_constant(a).maximum(_need_constant(b))


@_rule("MatMul", "BatchMatMulV2")
def _matmul(node, a, b):
    if not isinstance(a, _Flow):
        raise _Unreadable("the input must be on the left of a product")
    kernel = _need_constant(b)
    if node.attr["transpose_a"].b or node.attr["adj_x"].b:
        raise _Unreadable("a product with the transposed batch mixes examples")
    if node.attr["transpose_b"].b or node.attr["adj_y"].b:
        kernel = kernel.transpose()
    if len(a.shape) != 1 or kernel.value.ndim != 2 or a.shape[0] != kernel.shape[0]:
        raise _Unreadable(
            f"a product of examples {a.shape} with a matrix {kernel.shape}; only "
            "(features,) with (features, units) is supported: put a Flatten before"
        )
    return a.times(kernel)


@_rule("Softplus", "Sigmoid", "Tanh")
def _activation(node, value):
    if not isinstance(value, _Flow):
        raise _Unreadable("an activation of a constant")
    return value.activated(node.op.lower())


@_rule("Softmax", "LogSoftmax")
def _head(node, value):
    if not isinstance(value, _Flow) or len(value.shape) != 1:
        raise _Unreadable("a softmax must be over the classes, at the end")
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    return dataclasses.replace(value, head=name)


@_rule("Shape")
def _shape(node, value):
    return np.array([_BATCH, *value.shape] if isinstance(value, _Flow) else value.shape, np.int64)


@_rule("Reshape")
def _reshape(node, value, shape):
    if isinstance(value, Ball):
        return value.reshape(tuple(int(n) for n in shape))
    if not isinstance(value, _Flow):
        return value.reshape(shape)
    size = value.shift.shape[0]
    wanted = [int(n) for n in shape]
    if -1 in wanted:
        known = int(np.prod([n for n in wanted if n != -1], dtype=object))
        wanted[wanted.index(-1)] = _BATCH * size // known if known else 0
    if not wanted or wanted[0] != _BATCH or int(np.prod(wanted[1:], dtype=object)) != size:
        raise _Unreadable(f"a reshape to {list(map(int, shape))} mixes examples or loses entries")
    return value.rearranged(np.arange(size).reshape(wanted[1:]))


@_rule("Squeeze", "ExpandDims")
def _unit_axes(node, value, axis=None):
    if isinstance(value, np.ndarray):
        raise _Unreadable("only supported for floats")
    flow = isinstance(value, _Flow)
    shape = [_BATCH, *value.shape] if flow else list(value.shape)
    if node.op == "ExpandDims":
        place = int(np.asarray(axis))
        shape.insert(place if place >= 0 else place + len(shape) + 1, 1)
    else:
        axes = [a % len(shape) for a in node.attr["squeeze_dims"].list.i]
        axes = axes or [a for a, n in enumerate(shape) if n == 1]
        if any(shape[a] != 1 for a in axes):
            raise _Unreadable(f"cannot squeeze axes {axes} of {shape}")
        shape = [n for a, n in enumerate(shape) if a not in axes]
    return _reshape(node, value, np.array(shape))


@_rule("Transpose")
def _transpose(node, value, order):
    axes = [int(axis) for axis in order]
    if not isinstance(value, _Flow):
        return value.transpose(axes)
    if axes[0] != 0:
        raise _Unreadable(f"a transpose {axes} moves the batch axis")
    positions = np.arange(value.shift.shape[0]).reshape(value.shape)
    return value.rearranged(positions.transpose([axis - 1 for axis in axes[1:]]))


@_rule("Pack")
def _pack(node, *values):
    return np.stack([_need_integers(value) for value in values], axis=node.attr["axis"].i)


@_rule("ConcatV2")
def _concat(node, *values):
    *parts, axis = [_need_integers(value) for value in values]
    return np.concatenate(parts, axis=int(axis))


@_rule("Prod")
def _prod(node, value, axis):
    keep = node.attr["keep_dims"].b
    return np.prod(_need_integers(value), axis=tuple(np.atleast_1d(axis)), keepdims=keep)


@_rule("StridedSlice")
def _strided_slice(node, value, begin, end, strides):
    masked = node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i
    if len(np.atleast_1d(begin)) != 1 or masked:
        raise _Unreadable("only slices of a shape are supported")
    first = None if node.attr["begin_mask"].i else int(begin[0])
    last = None if node.attr["end_mask"].i else int(end[0])
    if node.attr["shrink_axis_mask"].i:
        return _need_integers(value)[first]
    return _need_integers(value)[first : last : int(strides[0])]


def _need_integers(value) -> np.ndarray:
    if not isinstance(value, (np.ndarray, np.integer)):
        raise _Unreadable("only supported for shapes")
    return np.asarray(value)
