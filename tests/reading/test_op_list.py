"""The list of safe ops alone, on graphs written by hand: `{function: [op or @function called]}`."""

from __future__ import annotations

import keras
import pytest
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saver_pb2

from keras_curv.errors import InputError
from keras_curv.reading import allow_list

L = keras.layers


def _fill(node, index, what):
    node.name = f"n{index}"
    node.op = "StatefulPartitionedCall" if what.startswith("@") else what
    if what.startswith("@"):
        node.attr["f"].func.name = what[1:]


def screen(main, **functions):
    """Screens a main graph `{node name: op or @function}`; the node `saver` is the saver's."""
    definition = graph_pb2.GraphDef()
    for index, (name, what) in enumerate(main.items()):
        node = definition.node.add()
        _fill(node, index, what)
        node.name = name
    for name, body in functions.items():
        function = definition.library.function.add()
        function.signature.name = name
        for index, what in enumerate(body):
            _fill(function.node_def.add(), index, what)
    saver = saver_pb2.SaverDef(
        filename_tensor_name="path:0", save_tensor_name="saver:0", restore_op_name="restorer"
    )
    allow_list.refuse_unsafe_ops(definition, saver, (), "the model")


MAIN = {"path": "Placeholder", "saver": "@save", "restorer": "@restore", "serve": "@net"}


def test_saving_and_restoring_by_the_saver_alone_is_allowed():
    screen(
        MAIN,
        save=["StringJoin", "@shard", "MergeV2Checkpoints"],
        shard=["SaveV2"],
        restore=["RestoreV2"],
        net=["MatMul", "Softplus"],
    )


SCREENED = {
    "in the main graph": (dict(MAIN, extra="SaveV2"), {}, "SaveV2"),
    "saver writes": (MAIN, {"save": ["WriteFile"]}, "WriteFile"),
    "saver itself": (dict(MAIN, saver="WriteFile"), {}, "WriteFile"),
    "saver op": (dict(MAIN, saver="SaveV2"), {}, "SaveV2"),
    "served too": (MAIN, {"save": ["SaveV2"], "net": ["@save"]}, "SaveV2"),
    "served below": (
        MAIN,
        {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@c"], "c": ["@b"]},
        "SaveV2",
    ),
    "served above": (MAIN, {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@a"]}, "SaveV2"),
    "write shared": (MAIN, {"save": ["@w"], "w": ["WriteFile"], "net": ["@w"]}, "WriteFile"),
    "only by name": (MAIN, {"__inference__traced_save_7": ["RestoreV2"]}, "RestoreV2"),
    "never called": (MAIN, {"idle": ["EagerPyFunc"]}, "EagerPyFunc"),
    "called as an op": (MAIN, {"save": ["@Conv1D"], "Conv1D": ["SaveV2"], "net": ["Conv1D"]}, ""),
}


@pytest.mark.parametrize("case", SCREENED)
def test_ops_are_screened_wherever_they_hide(case):
    main, functions, op = SCREENED[case]
    with pytest.raises(InputError, match=f"the model.*{op}"):
        screen(main, **functions)


def test_a_second_function_of_the_same_name_is_screened_too():
    definition = graph_pb2.GraphDef()
    for index, op in enumerate(["WriteFile", "Softplus"]):
        function = definition.library.function.add()
        function.signature.name = "net"
        _fill(function.node_def.add(), index, op)
    with pytest.raises(InputError, match="WriteFile"):
        allow_list.refuse_unsafe_ops(definition, saver_pb2.SaverDef(), (), "the model")
