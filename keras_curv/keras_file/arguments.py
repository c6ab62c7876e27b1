"""What an argument of a layer may be in a file: numbers, words and activations, within bounds.

Each check takes what JSON says and returns what Keras is given, or raises a ValueError that says
what it must be. Nothing else of a file ever reaches Keras.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import keras

from keras_curv.saved_model import limits

Check = Callable[[Any], Any]
OMITTED = object()  # what is returned of an argument that Keras is not to be given
MOST = 2**16  # of any number that says a size: units, filters, windows, paddings

ACTIVATIONS = frozenset(
    "linear relu relu6 leaky_relu elu selu celu gelu silu swish mish softplus softsign softmax "
    "log_softmax sigmoid log_sigmoid hard_sigmoid hard_silu hard_swish tanh hard_tanh tanh_shrink "
    "exponential squareplus sparse_plus sparse_sigmoid threshold hard_shrink soft_shrink".split()
)
# Functions that `keras_curv` registers, which are read without the code of training.
_OURS = {
    "sin": keras.ops.sin,
    "absolute": keras.ops.absolute,
    "gelu_tanh": functools.partial(keras.activations.gelu, approximate=True),
}
_DIFFERENT = {"hard_sigmoid"}  # in Keras 2 and Keras 3


def flag(value: Any) -> bool:
    """Takes true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole(low: int = 1, high: int = MOST) -> Check:
    """Takes an integer within bounds."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return value

    return check


def number(value: Any) -> float:
    """Takes a number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 3e38:
        raise ValueError("must be a number that float32 holds")
    return value


def numbers(value: Any, depth: int = 0) -> Any:
    """Takes a number, or numbers nested in lists."""
    if isinstance(value, list) and depth < limits.AXES:
        return [numbers(each, depth + 1) for each in value]
    return number(value)


def word(*known: str) -> Check:
    """Takes one of some words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    return check


def several(each: Check, alone: bool = True) -> Check:
    """Takes a list of what a check takes, nested at most once; or, if `alone`, just one."""

    def check(value: Any) -> Any:
        if not isinstance(value, list):
            if alone:
                return each(value)
            raise ValueError("must be a list")
        if len(value) > limits.AXES:
            raise ValueError(f"must be a list of at most {limits.AXES}")
        return tuple(
            tuple(map(each, part)) if isinstance(part, list) and alone else each(part)
            for part in value
        )

    return check


def one(check: Check) -> Check:
    """Takes what a check takes; or, as Keras 2 writes an axis, a list of one."""
    return lambda value: check(value[0] if isinstance(value, list) and len(value) == 1 else value)


def optional(check: Check) -> Check:
    """Takes null too."""
    return lambda value: None if value is None else check(value)


def only(known: Any) -> Check:
    """Takes one value alone."""

    def check(value: Any) -> Any:
        if value != known or type(value) is not type(known):
            raise ValueError(f"is not supported unless it is {json.dumps(known)}")
        return value

    return check


nothing = only(None)


def unquantized(value: Any) -> None:
    """Takes null; ValueError for a layer whose weights are integers."""
    if value is not None:
        raise ValueError(
            "says that the layer is quantised, which cannot be certified; save the model from "
            "before it was quantised"
        )


def letters(value: Any) -> str:
    """Takes some letters, as of axes of an equation."""
    if not isinstance(value, str) or not value.isalpha() or len(value) > limits.AXES:
        raise ValueError("must be letters")
    return value


def ignored(value: Any) -> Any:
    """Takes whatever says nothing of what the layer answers; it is not looked at."""
    return OMITTED


def omitted(known: Any) -> Check:
    """Takes one value alone, which Keras 2 writes, and Keras 3 does not know."""

    def check(value: Any) -> Any:
        only(known)(value)
        return OMITTED

    return check


def equation(value: Any) -> str:
    """Takes an equation of two operands for einsum."""
    if not isinstance(value, str) or len(value) > 64 or value.count("->") != 1:
        raise ValueError("must be an equation, as ab,bc->ac")
    return value


def activation(keras_2: bool) -> Check:
    """Takes the name of an activation of Keras, or of one of `keras_curv`; null is linear."""

    def check(value: Any) -> Any:
        if isinstance(value, dict):  # a function that is registered has its name inside
            value = value.get("config")
        if value is None:
            return None
        if isinstance(value, str) and value.startswith("keras_curv>"):
            value = _OURS.get(value.removeprefix("keras_curv>"), value)
            if callable(value):
                return value
        if not isinstance(value, str) or value not in ACTIVATIONS:
            shown = repr(value)[:80] if isinstance(value, str) else "an object"
            raise ValueError(f"is {shown}, which is no activation that Keras knows by name")
        if keras_2 and value in _DIFFERENT:
            raise ValueError(
                f"is {value!r}, which Keras 2 and Keras 3 compute differently; export the model"
            )
        return value

    return check


def dtype(value: Any) -> str:
    """Takes float32 or float64, by name or as the policy of that name."""
    if isinstance(value, dict):
        config = value.get("config")
        known = value.get("class_name") in ("DTypePolicy", "Policy")
        value = config.get("name") if known and isinstance(config, dict) else None
    if value not in ("float32", "float64"):
        raise ValueError(
            "must be float32 or float64: build the model again under that policy, and give it the "
            "weights"
        )
    return value
