"""Ops that a signature could run are screened, on graphs written by hand.

A graph is `{function: [op or @function called]}`.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from keras_curv.errors import InputError
from keras_curv.saved_model import server


def _fill(node, index, what):
    node.name = f"n{index}"
    node.op = "StatefulPartitionedCall" if what.startswith("@") else what
    if what.startswith("@"):
        node.attr["f"].func.name = what[1:]


def screen(main, **functions):
    """Screens a main graph `{node name: op or @function}` of which `serve` is served."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.meta_info_def.tags.append("serve")
    meta.object_graph_def.nodes.add()
    for index, (name, what) in enumerate(main.items()):
        node = meta.graph_def.node.add()
        _fill(node, index, what)
        node.name = name
    for name, body in functions.items():
        function = meta.graph_def.library.function.add()
        function.signature.name = name
        for index, what in enumerate(body):
            _fill(function.node_def.add(), index, what)
    definition = meta.signature_def["serving_default"]
    definition.outputs["logits"].name = "serve:0"
    definition.inputs["x"].name = "path:0"
    definition.inputs["y"].name = "path:0"
    meta.saver_def.restore_op_name = "restorer"
    server.answer(meta, "serving_default", lambda key: tf.zeros(1), None, "the model")


MAIN = {"path": "Placeholder", "saver": "@save", "restorer": "@restore", "serve": "@net"}
UNREACHED = {
    "the saver's": dict(save=["StringJoin", "@shard"], shard=["SaveV2"], restore=["RestoreV2"]),
    "only by name": {"__inference__traced_save_7": ["RestoreV2"]},
    "never called": {"idle": ["EagerPyFunc"]},
    "saver writes": {"save": ["WriteFile"]},
}


@pytest.mark.parametrize("case", UNREACHED)
def test_what_no_signature_runs_is_not_screened(case):
    """Past the screening, these are refused for their inputs, which share a place."""
    with pytest.raises(InputError, match="the model.*not each of one place"):
        screen(MAIN, net=["MatMul", "Softplus"], **UNREACHED[case])


SCREENED = {
    "in the main graph": (dict(MAIN, serve="SaveV2"), {}, "SaveV2"),
    "served too": (MAIN, {"save": ["SaveV2"], "net": ["@save"]}, "SaveV2"),
    "served below": (
        MAIN,
        {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@c"], "c": ["@b"]},
        "SaveV2",
    ),
    "served above": (MAIN, {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@a"]}, "SaveV2"),
    "write shared": (MAIN, {"save": ["@w"], "w": ["WriteFile"], "net": ["@w"]}, "WriteFile"),
    "assigned": (MAIN, {"net": ["AssignVariableOp"]}, "AssignVariableOp"),
    "assigned anyhow": (MAIN, {"net": ["ResourceApplyAdam"]}, "ResourceApplyAdam"),
    "called as an op": (MAIN, {"save": ["@Conv1D"], "Conv1D": ["SaveV2"], "net": ["Conv1D"]}, ""),
}


@pytest.mark.parametrize("case", SCREENED)
def test_ops_are_screened_wherever_they_hide(case):
    main, functions, op = SCREENED[case]
    with pytest.raises(InputError, match=f"the model.*{op}.* not on the list"):
        screen(main, **functions)


def test_a_second_function_of_the_same_name_is_refused_too():
    """One of the two may be what a server runs."""
    meta = meta_graph_pb2.MetaGraphDef()
    for index, op in enumerate(["WriteFile", "Softplus"]):
        function = meta.graph_def.library.function.add()
        function.signature.name = "net"
        _fill(function.node_def.add(), index, op)
    meta.meta_info_def.tags.append("serve")
    meta.object_graph_def.nodes.add()
    meta.signature_def["serving_default"].outputs["logits"].name = "serve:0"
    _fill(meta.graph_def.node.add(), 0, "@net")
    meta.graph_def.node[0].name = "serve"
    with pytest.raises(InputError, match="a function is defined twice"):
        server.answer(meta, "serving_default", lambda key: tf.zeros(1), None, "the model")
