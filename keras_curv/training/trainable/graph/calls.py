"""The calls of a Keras model's layers, in the order in which they can be computed.

A layer that is called twice stands here twice. Nested models are opened.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from keras_curv.errors import InputError


class Call(NamedTuple):
    """One call of a layer, or of an operation of a functional model.

    Attributes:
        layer: what is called.
        inputs: which values it is given: 0 is the model's input, i what the i-th call returns.
        constants: how many other values it is given, as 1.0 in `x + 1.0`.
    """

    layer: Any
    inputs: tuple[int, ...]
    constants: int = 0


class _Value:
    """A value's number, in the place of a tensor."""

    def __init__(self, number: int):
        self.number = number


def calls_of(model: keras.Model) -> list[Call]:
    """Returns the calls of a model of one input and one output; the last one returns the output.

    Raises:
        InputError: a model has a `call` of its own.

    Example:
        >>> inputs = keras.Input((4,))
        >>> hidden = keras.layers.Dense(4)(inputs)
        >>> calls = calls_of(keras.Model(inputs, keras.layers.Add()([inputs, hidden])))
        >>> [(type(call.layer).__name__, call.inputs) for call in calls]
        [('Dense', (0,)), ('Add', (0, 1))]
    """
    calls: list[Call] = []
    output = _traced(model, [_Value(0)], calls)
    # A nested model may compute what nothing uses after what is returned.
    (last,) = (one.number for one in keras.tree.flatten(output))
    return calls[:last]


def in_a_row(calls: list[Call]) -> bool:
    """Returns whether each call is given what the one before it returns, and nothing else."""
    return all(call.inputs == (i,) and not call.constants for i, call in enumerate(calls))


def layers_in_order(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns layers and operations in order, each once, those of nested models in their place.

    Raises:
        InputError: a model has a `call` of its own.
    """
    _require_wiring(model)
    layers = []
    for layer in getattr(model, "operations", model.layers):
        layers += layers_in_order(layer) if isinstance(layer, keras.Model) else [layer]
    return layers


def _require_wiring(model: keras.Model) -> None:
    """InputError unless a model is wired by Keras, and not by a `call` of its own."""
    if not type(model).call.__module__.startswith("keras."):
        raise InputError(
            f"base has a `call` of its own in {model.name!r} ({type(model).__name__}), which may "
            "do anything; use keras.Sequential or keras.Model(inputs, outputs)"
        )


def _traced(model: keras.Model, inputs: list[_Value], calls: list[Call]) -> Any:
    """Appends a model's calls, and returns its output."""
    _require_wiring(model)

    def called(layer: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(layer, keras.Model):
                return _traced(layer, keras.tree.flatten(args), calls)
            given = keras.tree.flatten((args, [kwargs[name] for name in sorted(kwargs)]))
            values = tuple(one.number for one in given if isinstance(one, _Value))
            constants = sum(one is not None for one in keras.tree.flatten(args)) - len(values)
            calls.append(Call(layer, values, max(constants, 0)))
            return _Value(len(calls))

        return call

    if isinstance(model, keras.Sequential):
        (value,) = inputs
        for layer in model.layers:
            value = called(layer)(value)
        return value
    # As keras.models.clone_model does: with values of any kind in the place of tensors.
    return model._run_through_graph(inputs, operation_fn=called)
