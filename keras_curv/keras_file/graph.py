"""The nodes of a functional model: which outputs of which layers another one is called on.

Keras 3 writes a node as the arguments of a call, in which tensors are named by layer, call and
place; Keras 2 writes a list of these. In Keras 2 the first call of a model in a model is number 1,
as 0 is the model itself; in Keras 3 so only where inputs and outputs of the outer model are named,
and of functional ones alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_curv.errors import InputError
from keras_curv.saved_model import limits

_TENSORS = 2**8  # of one call
_NAMES = 2**12  # of tensors, in all calls of a model
_NESTED = ("Sequential", "Functional", "Model")
_NONE = dict.fromkeys(("mask", "attention_mask", "query_mask", "value_mask", "key_mask"), (None,))
_FALSE = dict.fromkeys(("training", "use_causal_mask", "return_attention_scores"), (None, False))
_PLAIN = _NONE | _FALSE  # of a call, beside tensors
# To several arguments.
_ATTENDS = "MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention"
_ARGUMENTS = ("query", "value", "key")  # in the order of the call


@dataclasses.dataclass
class Place:
    """A layer of a graph."""

    layer: Any  # the layer, with a `kind`
    # calls that are still to be made: what each gets, a name of a tensor, a list of them, or a
    # tuple for several arguments
    pending: list[Any]
    outputs: list[list[Any]]  # of each call so far
    keras_2: bool  # whether the calls are written as Keras 2 does
    about: str  # for messages

    @classmethod
    def of(cls, layer: Any, nodes: Any, about: str) -> Place:
        """Returns the place of a layer that is called as the nodes say."""
        about = f"{about}: the layer {layer.layer.name[:80]!r}"
        if not isinstance(nodes, list) or len(nodes) > _TENSORS:
            raise InputError(f"{about} has no list of its calls")
        if layer.kind == "InputLayer":
            if any(nodes):
                raise InputError(f"{about} is an input, and is called")
            return cls(layer, [], [[layer.layer.output]], False, about)
        calls = [_node(node, about, layer.kind in _ATTENDS) for node in nodes if node]
        return cls(layer, calls, [], isinstance(nodes[0] if nodes else None, list), about)

    def next_input(self, places: Mapping[str, Place]) -> Any:
        """Returns what the next call gets; None where that is not computed yet."""
        found = _mapped(self.pending[0], lambda name: name.tensor(places, self.about))
        several = isinstance(found, (list, tuple))
        if found is None or (several and any(each is None for each in found)):
            return None
        del self.pending[0]
        return found


@dataclasses.dataclass(frozen=True)
class _Name:
    """The name of a tensor."""

    layer: str  # layer, call, output: whose output of which call
    call: int
    output: int
    keras_2: bool  # whether Keras 2 counts
    end: bool = False  # whether it is an input or output of the whole model

    def tensor(self, places: Mapping[str, Place], about: str) -> Any:
        """Returns the tensor; None where it is not computed yet."""
        place = places.get(self.layer)
        if place is None:
            raise InputError(f"{about} gets the output of {self.layer[:80]!r}, which is not there")
        call = self.call
        if place.layer.kind in _NESTED:
            if self.keras_2:
                if len(place.outputs) + len(place.pending) > 1:
                    raise InputError(
                        f"{about} gets the output of {self.layer[:80]!r}, a model that is called "
                        "several times, which Keras 2 and Keras 3 number differently; export it"
                    )
                call = max(call - 1, 0)
            elif self.end and place.layer.kind != "Sequential":
                call -= 1
        if call < 0 or call >= len(place.outputs) + len(place.pending):
            raise InputError(f"{about} gets what {self.layer[:80]!r} does not compute")
        if call >= len(place.outputs):
            return None
        if self.output >= len(place.outputs[call]):
            raise InputError(f"{about} gets an output that {self.layer[:80]!r} does not have")
        return place.outputs[call][self.output]


def require_few(places: Mapping[str, Place], about: str) -> None:
    """Refuses calls that get very many tensors, all together."""
    calls = [call for place in places.values() for call in place.pending]
    count = sum(1 if isinstance(call, _Name) else len(call) for call in calls)
    limits.require_at_most(count, _NAMES, f"{about}: the number of tensors that its layers get")


def tensors_of(said: Any, places: Mapping[str, Place], about: str) -> Any:
    """Returns inputs or outputs of a model, nested as they are said."""
    keras_2 = any(place.keras_2 for place in places.values())

    def read(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], str):
            return _name(value, keras_2, about, end=True).tensor(places, about)
        if isinstance(value, list) and len(value) <= _TENSORS and value:
            return [read(each) for each in value]
        if isinstance(value, dict) and len(value) <= _TENSORS and value:
            return {key: read(each) for key, each in value.items()}
        raise InputError(f"{about} are none")

    try:
        return read(said)
    except RecursionError as error:
        raise InputError(f"{about} nest too deeply") from error


def _node(node: Any, about: str, attends: bool) -> Any:
    """Returns what a call gets: a name, a list of names, or, if it `attends`, a tuple of them."""
    if isinstance(node, list):
        limited = node if len(node) <= _TENSORS else []
        names = [_legacy(each, about) for each in limited]
        if not names:
            raise InputError(f"{about} is called on nothing")
        return names[0] if len(names) == 1 else names
    args, kwargs = (node.get("args"), node.get("kwargs")) if isinstance(node, dict) else ([], {})
    if attends and isinstance(args, list) and isinstance(kwargs, dict):
        named = {name: kwargs[name] for name in _ARGUMENTS if kwargs.get(name) is not None}
        kwargs = {name: value for name, value in kwargs.items() if name not in _ARGUMENTS}
        _require_plain(kwargs, about)
        given = [*args, *named.values()]
        in_order = (*_ARGUMENTS[: len(args)], *named) == _ARGUMENTS[: len(given)]
        if not in_order or not 2 <= len(given) <= len(_ARGUMENTS):
            raise InputError(f"{about} is called otherwise than on a query, a value and a key")
        return tuple(_keras_tensor(each, about) for each in given)
    _require_plain(kwargs or {}, about)
    if not isinstance(args, list) or len(args) != 1:
        raise InputError(f"{about} is called otherwise than on one tensor, or a list of tensors")
    (given,) = args
    if isinstance(given, list) and 0 < len(given) <= _TENSORS:
        return [_keras_tensor(each, about) for each in given]
    return _keras_tensor(given, about)


def _legacy(said: Any, about: str) -> _Name:
    if isinstance(said, list) and len(said) == 4:
        _require_plain(said[3], about)
        said = said[:3]
    return _name(said, True, about)


def _keras_tensor(said: Any, about: str) -> _Name:
    config = said.get("config") if isinstance(said, dict) else None
    if not isinstance(config, dict) or said.get("class_name") != "__keras_tensor__":
        raise InputError(f"{about} is called on what is no tensor of the model")
    return _name(config.get("keras_history"), False, about)


def _name(said: Any, keras_2: bool, about: str, end: bool = False) -> _Name:
    if (
        isinstance(said, list)
        and len(said) == 3
        and isinstance(said[0], str)
        and all(type(number) is int and 0 <= number < _TENSORS for number in said[1:])
    ):
        layer, call, output = said
        return _Name(layer, call, output, keras_2, end)
    raise InputError(f"{about} is called on what is no tensor of the model")


def _require_plain(kwargs: Any, about: str) -> None:
    """Refuses what would make a layer answer otherwise, as training=True."""
    for name, value in kwargs.items() if isinstance(kwargs, dict) else [("", None)]:
        if name not in _PLAIN or not any(value is known for known in _PLAIN[name]):
            raise InputError(
                f"{about} is called with {name[:80]}={str(value)[:80]}; call it on tensors alone"
            )


def _mapped(names: Any, tensor: Any) -> Any:
    if isinstance(names, (list, tuple)):
        return type(names)(tensor(name) for name in names)
    return tensor(names)
