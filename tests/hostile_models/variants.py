"""The plain model with one thing in it changed: an op's name, an attribute, a type, an input."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import cases, edited, export, nodes_of

CASES, case = cases()
HARMLESS, harmless_case = cases()

_OPS = """
    ReadFile WriteFile MatchingFiles PyFunc PyFuncStateless EagerPyFunc Print PrintV2 Assert SaveV2
    RestoreV2 MergeV2Checkpoints DeleteSessionTensor GetSessionTensor Stage Unstage QueueDequeueV2
    HashTableV2 LookupTableFindV2 InitializeTableFromTextFileV2 IteratorGetNext MapDataset RemoteCall
    RpcServerRegister LoadLibrary XlaLaunch Where If While StatelessWhile Case Switch Merge Enter
    NextIteration LoopCond SymbolicGradient DecodeRaw ParseExampleV2 RandomUniform Multinomial Timestamp
    DebugIdentityV2 CheckNumericsV2 CollectiveReduce TPUReplicate _HostCast GatherNd SplitV ScatterNd
    TensorListReserve ReduceDataset VarIsInitializedOp AssignVariableOp NoSuchOp
    """.split()  # noqa: E501


def _activation(meta):
    """The node of the plain model that is no product, in whichever function it is."""
    return next(node for node in nodes_of(meta) if node.op == "Softplus")


def _changed(name, change):
    @case(f"variant: {name}")
    def build(path, canary):
        export(path)
        with edited(path) as meta:
            change(meta)
        return path


for op in _OPS:
    _changed(f"op {op}", lambda meta, op=op: setattr(_activation(meta), "op", op))

for name in (
    "_kernel",
    "_tpu_replicate",
    "_XlaCompile",
    "api_implements",
    "T2",
    "_grappler",
    "\x1b[",
):

    def _noted(meta, name=name):
        _activation(meta).attr[name].s = b"x"

    _changed(f"attribute {name!r}", _noted)

for dtype in ("string", "bool", "complex64", "int64", "bfloat16", "resource", "variant", "qint8"):

    def _typed(meta, dtype=dtype):
        number = tf.as_dtype(dtype).as_datatype_enum
        definition = meta.signature_def["serving_default"]
        (info,) = definition.inputs.values()
        info.dtype = number
        for node in meta.graph_def.node:
            if node.name == info.name.split(":")[0]:
                node.attr["dtype"].type = number

    _changed(f"inputs of type {dtype}", _typed)

for number in (0, 1, 3, 300, 2**31 - 1, 2**62):

    def _shaped(meta, number=number):
        definition = meta.signature_def["serving_default"]
        (info,) = definition.inputs.values()
        for node in meta.graph_def.node:
            if node.name == info.name.split(":")[0]:
                node.attr["shape"].shape.dim[1].size = number

    _changed(f"examples of {number} entries", _shaped)

for given in (
    "^nothing",
    "nothing:0",
    "",
    ":",
    "x:y:z",
    "x:99999999999",
    "\udcff".encode("utf-8", "replace").decode(),
):

    def _given(meta, given=given):
        _activation(meta).input[0] = given

    _changed(f"an input named {given!r}", _given)
