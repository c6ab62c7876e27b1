"""The calls of a Keras model read as flows: each layer has a rule, or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.counterparts import instead, smoother
from keras_curv.training.trainable.graph.calls import Call
from keras_curv.training.trainable.graph.flows import Flow, Source, joined
from keras_curv.training.trainable.graph.layer_rules import AFFINE, KEEPS_ENTRIES
from keras_curv.training.trainable.keras_functions import name_of

_layers = keras.layers
# The only values of these settings that training reads. TensorFlow has no second gradient of other
# interpolations, and says so of some only.
_USUAL = {"groups": 1, "interpolation": "nearest", "data_format": "channels_last"}
_JOINS = (_layers.Add, _layers.Subtract, _layers.Average, _layers.Concatenate)
_OPERATIONS = ("Add", "Subtract", "Concatenate")  # of functional models, as `a + b`


def output_of(calls: list[Call], shape: tuple[int, ...], table: Mapping[str, Activation]) -> Flow:
    """Returns what the last of some calls returns.

    Args:
        calls: of a model, see `calls_of`.
        shape: of an example.
        table: the activations that it may have.

    Raises:
        InputError: a layer or an activation has no rule; it is named.
    """
    values: list[Flow] = [Source(shape)]
    for call in calls:
        given = [values[i] for i in call.inputs]
        if join := _join(call.layer):
            values.append(_joined(join, call, given))
            continue
        _require_known(call.layer)
        if len(given) != 1:
            raise InputError(
                f"base gives the layer {call.layer.name!r} ({type(call.layer).__name__}) "
                f"{len(given)} outputs of layers, of which training reads one"
            )
        values.append(_read(call.layer, given[0], table))
    return values[-1]


def known_activation(
    layer: keras.layers.Layer, table: Mapping[str, Activation]
) -> Activation | None:
    """Returns the layer's activation, None without one and for one not in the table."""
    name = name_of(getattr(layer, "activation", None))
    return None if name is None else table.get(name)


def _read(layer: keras.layers.Layer, flow: Flow, table: Mapping[str, Activation]) -> Flow:
    """Returns what a layer makes of a flow."""
    if isinstance(layer, Carry):
        return joined("Concatenate", -1, [flow, _read(layer.layer, flow, table)])
    if not isinstance(layer, _layers.Activation):
        shape = tuple(layer.compute_output_shape((None, *flow.shape))[1:])
        flow = Flow(layer, [flow], shape)
    activation = _activation(layer, table)
    return flow if activation is None else Source(flow.shape, flow, activation)


def _join(layer: Any) -> str | None:
    """Returns the kind of join that a layer or an operation is; None: another."""
    kind = type(layer)
    if kind in _JOINS:
        return kind.__name__
    operation = kind.__module__.startswith("keras.src.ops.") and kind.__name__ in _OPERATIONS
    return kind.__name__ if operation else None


def _joined(kind: str, call: Call, flows: list[Flow]) -> Flow:
    """Returns the flow of a join; refuses constants, and sums of different shapes."""
    shapes, axis = [flow.shape for flow in flows], getattr(call.layer, "axis", -1)
    what = None
    if call.constants:
        what = "a constant"
    elif kind != "Concatenate" and len(set(shapes)) > 1:
        what = f"examples of shapes {shapes}"
    elif kind == "Concatenate" and axis % (len(shapes[0]) + 1) == 0:
        what = "batches"
    if what is not None:
        raise InputError(
            f"base has the layer {call.layer.name!r} ({kind}) of {what}, which training cannot "
            "read; it reads those of outputs of layers, of one shape or along one of its axes"
        )
    return joined(kind, axis, flows)


def _require_known(layer: keras.layers.Layer) -> None:
    """InputError unless there is a rule for the layer, its activation aside."""
    known = (*KEEPS_ENTRIES, *AFFINE, _layers.Activation, Carry)
    settings = {name: getattr(layer, name, usual) for name, usual in _USUAL.items()}
    unusual = [f"{name}={value!r}" for name, value in settings.items() if value != _USUAL[name]]
    if type(layer) not in known or unusual:  # a subclass may do anything in its call
        having = f" with {', '.join(unusual)}" if unusual else ""
        usual = ", ".join(f"{name}={_USUAL[name]!r}" for name in _USUAL if name in having)
        raise InputError(
            f"base has the layer {layer.name!r} ({type(layer).__name__}){having}, which training "
            f"cannot read; {f'it reads {usual}' if unusual else instead(layer)}"
        )


def _activation(layer: keras.layers.Layer, table: Mapping[str, Activation]) -> Activation | None:
    """Returns the layer's activation, None where it is affine; refuses those without a theory."""
    function = getattr(layer, "activation", None)
    if function is None or function is keras.activations.linear:
        return None
    activation = known_activation(layer, table)
    if activation is not None:
        return activation
    name = getattr(function, "__name__", str(function))
    hint = f"supported: {', '.join(table)}"
    if name in ("softmax", "log_softmax"):
        hint = "base must return logits: leave the softmax out"
    elif smooth := smoother(name_of(function) or ""):
        hint = f"{name} → {smooth}, which keras_curv.smoothed(model) puts there"
    raise InputError(
        f"base has the activation {name!r} in layer {layer.name!r}, which this "
        f"training has no theory for; {hint}"
    )
