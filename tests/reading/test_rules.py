"""The flags in the table of rules guard against inputs that the rules themselves do not look at."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules.registry import RULES, apply, rule

# Of these, numbers come out as they went in.
EXACT = {
    *("Identity", "IdentityN", "StopGradient", "PreventGradient", "Cast", "Shape", "Reshape"),
    *("Squeeze", "ExpandDims", "Transpose", "Pad", "StridedSlice", "Tile", "GatherV2"),
    *("ReverseV2", "Roll", "SpaceToDepth", "DepthToSpace"),
}
BROADCAST = {"Add", "AddV2", "BiasAdd", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum"}


def _node(op, dtype=tf.float32):
    node = NodeDef(name="n", op=op)
    node.attr["T"].type = dtype.as_datatype_enum
    return node


def test_no_other_op_lets_integers_pass():
    assert {op for op, known in RULES.items() if known.exact} == EXACT


@pytest.mark.parametrize("dtype", [tf.int8, tf.float16])
def test_arithmetic_of_types_that_wrap_or_round_is_refused(dtype):
    for op in RULES.keys() - EXACT:
        with pytest.raises(InputError, match="wrap around|float16 rounds"):
            apply(_node(op, dtype), [Flow.input((4,))])


@pytest.mark.parametrize("op", sorted(BROADCAST))
def test_constants_that_would_grow_by_broadcasting_are_refused(op):
    """16 million entries of two constants of 4096 each."""
    column, row = Ball.exact(np.ones((4096, 1))), Ball.exact(np.ones((1, 4096)))
    with pytest.raises(InputError, match="4096 × 4096 entries is too large"):
        apply(_node(op), [column, row])


@pytest.mark.parametrize("op", ["ConcatV2", "Pack"])
def test_constants_that_would_grow_by_joining_are_refused(op):
    with pytest.raises(InputError, match="80000 entries is too large"):
        apply(_node(op), [np.zeros(40_000, np.int32)] * 2)


def test_an_op_has_one_rule():
    with pytest.raises(AssertionError, match="Mul has two rules"):
        rule("Mul")(lambda node: None)
