"""Which ops a SavedModel may hold before it is loaded: an allow-list, checked without running any.

Loading runs parts of a graph. An op that only computes from its inputs cannot do harm; every
other op, known or not, is refused by name, wherever in the file it hides.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import saver_pb2

from keras_curv.errors import InputError

# Ops that compute from their inputs and do nothing else; a graph of these is safe to load and
# to run. Most have no rule in `op_rules.py`: such a model is loaded, then refused for want of one.
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
                names += [callee for node in functions[name].node_def for callee in called(node)]
        return found

    tensors = (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name)
    saver_nodes = {tensor.split(":")[0] for tensor in tensors}
    by_saver, by_others = [], list(exposed)
    for node in definition.node:
        (by_saver if node.name in saver_nodes else by_others).extend(called(node))
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


def called(node: node_def_pb2.NodeDef) -> list[str]:
    """Names of the functions that a node may call."""
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
