"""The table of rules: what each op does to numbers, and all else that reading knows of it.

A rule takes the node and its arguments: `Flow` for a tensor that depends on the input, `Ball` for
float constants, integer arrays for shapes. It returns one of these, or raises `InputError` where it
does not cover the case. An op without a rule is refused; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import bilinear
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.saved_model.advice import advice
from keras_curv.saved_model.limits import NODES, TENSOR_ENTRIES, require_shape

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Rule(NamedTuple):
    """The rule of one op."""

    function: Callable[..., Any]  # takes the node and its arguments, and returns the value
    # numbers come out as they went in, so integers that depend on the input may pass
    exact: bool = False
    shares: bool = False  # the result is the argument's own numbers, which memory holds once
    broadcasts: bool = False  # constants grow to the shape that they are broadcast to
    joins: bool = False  # constants grow to the sum of their sizes


RULES: dict[str, Rule] = {}
_WHY_NOT = {
    "SpaceToBatchND": "it mixes examples, and not as a dilated convolution does",
    "MaxPoolV2": "only supported with windows that are attributes",
}


def rule(*ops: str, **known: bool) -> Callable[[_Function], _Function]:
    """Registers the decorated function as the rule of some ops, with attributes of `Rule`."""

    def register(function: _Function) -> _Function:
        for op in ops:
            assert op not in RULES, f"{op} has two rules"
            RULES[op] = Rule(function, **known)
        return function

    return register


def apply(node: NodeDef, arguments: list) -> Value | tuple[Flow, ...]:
    """Returns the value of the node, from those of its arguments.

    Raises:
        InputError: there is no rule for it, or the rule does not cover the case.
    """
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        require_shape(dim.size for dim in tensor.tensor_shape.dim)
        return _constant(tf.make_ndarray(tensor))
    require_rule(node)
    known = RULES[node.op]
    flows = [argument for argument in arguments if isinstance(argument, Flow)]
    if flows and not known.exact:
        require_float(node)
    if node.op != "Identity":
        arguments = [_without_head(argument) for argument in arguments]
    _refuse_large(known, [a for a in arguments if isinstance(a, (Ball, np.ndarray))])
    result = known.function(node, *arguments)
    if isinstance(result, (np.ndarray, np.integer, int)):
        return _integers(np.asarray(result))
    return result


def _without_head(value: Value) -> Value:
    """Returns the value; that of a softmax that turns out not to be the last op, computed."""
    if not isinstance(value, Flow) or value.head == "logits":
        return value
    if value.head != "softmax":
        raise InputError(f"{value.head} is read as the last layer only; nothing may follow it")
    return bilinear.softmax(dataclasses.replace(value, head="logits"), 0)


SMOOTHING = (
    "; keras_curv.certify(model, x, method='smoothing', deviation=s) takes any live model or "
    "callable, and certifies it smoothed by noise instead"
)


def require_rule(node: NodeDef) -> None:
    """Refuses an op that no rule reads."""
    if node.op != "Const" and node.op not in RULES:
        why = _WHY_NOT.get(node.op, "there is no rule that reads this op")
        raise InputError(why + advice(node.op) + SMOOTHING)


def shares_numbers(node: NodeDef) -> bool:
    """Returns whether the node's value is its argument's own numbers."""
    return node.op in RULES and RULES[node.op].shares


def require_float(node: NodeDef) -> None:
    """Refuses an op on integers, or on floats that are neither float32 nor float64."""
    dtype = tf.as_dtype(node.attr["T"].type or tf.float32.as_datatype_enum)
    if dtype.is_integer:
        raise InputError("integers wrap around; cast them to a float first")
    if dtype not in (tf.float32, tf.float64):
        raise InputError(f"{dtype.name} rounds; only float32 and float64 are supported")


def _integers(array: np.ndarray) -> np.ndarray:
    """Returns entries of a shape; refuses those that TensorFlow's integers could not hold."""
    if any(isinstance(n, int) and abs(n) >= 2**31 for n in array.reshape(-1).tolist()):
        raise InputError("a number of 2³¹ or more is computed, which may wrap around")
    return array


def _refuse_large(known: Rule, constants: list) -> None:
    """Refuses constants that would grow too large, joined or broadcast against one another."""
    shapes = [constant.shape for constant in constants]
    integers = any(isinstance(constant, np.ndarray) for constant in constants)
    limit = NODES if integers else TENSOR_ENTRIES  # integers are shapes, and parts of them
    if known.joins:
        require_shape([sum(math.prod(shape) for shape in shapes)], limit)
    elif known.broadcasts and len(shapes) > 1:
        require_shape(np.broadcast_shapes(*shapes), limit)


def _constant(array: np.ndarray) -> Ball | np.ndarray:
    """Makes balls of floats; integers, shapes among them, stay as they are."""
    if array.dtype in (np.float32, np.float64):
        return Ball.exact(array.astype(np.float64))
    if array.dtype in (np.int32, np.int64, np.bool_):
        return array
    raise InputError(f"constants of type {array.dtype} are not supported")
