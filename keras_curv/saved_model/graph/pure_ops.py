"""The ops that a signature may run: an allow-list.

Ops beside the answer have no part in a certificate as long as they change nothing. An op that only
computes from its inputs cannot; every other op, known or not, is refused by name. Most have no rule
in `lowering/rules`, and may only lie beside the answer.

Ops of another signature matter only if they could change a variable. TensorFlow itself says of each
op whether it has a state, and says so of every op that is given a resource, as variables are.
"""

from __future__ import annotations

from tensorflow.python.framework import op_def_registry

PURE_OPS = frozenset(
    """
    Placeholder PlaceholderWithDefault Const Identity IdentityN NoOp StopGradient PreventGradient
    PartitionedCall StatefulPartitionedCall VarHandleOp ReadVariableOp DisableCopyOnRead
    VarIsInitializedOp Shape ShapeN Size Rank Pack Unpack StridedSlice Slice Split SplitV Concat
    ConcatV2 Reshape Squeeze ExpandDims Transpose Tile Fill Range ZerosLike OnesLike Cast Bitcast
    GatherV2 Gather GatherNd BroadcastTo BroadcastArgs Reverse ReverseV2 OneHot Pad PadV2 MirrorPad
    Roll Add AddV2 AddN Sub Mul MulNoNan Div DivNoNan RealDiv FloorDiv FloorMod Mod Pow Square Sqrt
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
    ParseExampleV2 UnsortedSegmentSum DenseBincount SparseTensorToCSRSparseMatrix
    SparseMatrixMatMul Xlogy Cross
    """.split()
)

_CALLING = ("While", "If", "Case")  # have the state of the functions that they call
_OUTSIDE = ("PyFuncStateless", "XlaHostCompute")  # run code of others, whatever TensorFlow says


def is_harmless_beside(op: str) -> bool:
    """Returns whether no op of this kind changes a variable, in a signature that nobody asks for.

    Functions that it calls are looked at by themselves.

    Example:
        >>> [is_harmless_beside(op) for op in ("ParseExampleV2", "AssignVariableOp", "Custom>Op")]
        [True, False, False]
    """
    if op in PURE_OPS or op in _CALLING:
        return True
    known = op_def_registry.get(op)
    if known is None or known.is_stateful or op in _OUTSIDE:
        return False
    return not any(argument.is_ref for argument in known.input_arg)
