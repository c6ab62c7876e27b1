"""The weights of a file → the variables of the model that was rebuilt, one by one.

Keras finds them by place: in an archive by the names of classes and their number, in an `.h5` file
by the order of layers and of what each lists. They are found here in the same way; and whatever
says the same by name must agree, shapes are equal, nothing is missing and nothing is left.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_curv.errors import InputError
from keras_curv.keras_file.hdf5 import Array, Group
from keras_curv.saved_model import limits

_NO_WEIGHTS = ("seed_generator", "random_generator", "_random_generator")  # of dropout
_TRAINED = re.compile(r"optimizer|_?(metrics|loss_tracker|compile_metrics|loss)(_\d+)?|vars")
_KERAS_2 = {"depthwise_kernel": "kernel"}  # what it calls a weight
_DENSE = ("query_dense", "key_dense", "value_dense", "output_dense")
_BOTH_WAYS = "forward_layer/cell", "backward_layer/cell"
# Layers that have the weights of a wrapper, as Carry is, of recurrent layers and of attention.
_WITHIN = ("layer",), ("cell",), _BOTH_WAYS, _DENSE, tuple(f"_{name}" for name in _DENSE)


def held(weights: Group, legacy: bool) -> dict[str, Array]:
    """Returns the arrays that are a model's weights, by path; those of training are not among them.

    Raises:
        InputError: there are too many numbers for a network.
        ValueError: the file is not as Keras writes it.
    """
    found = {}
    for name, member in weights.members.items():
        if isinstance(member, Array):
            found[name] = member
        elif legacy or not _TRAINED.fullmatch(name) or name == "vars":
            found |= {f"{name}/{path}": array for path, array in member.arrays().items()}
    found = {path: array for path, array in found.items() if not _is_seed(path)}
    entries = sum(math.prod(array.shape) for array in found.values())
    limits.require_at_most(entries, limits.TOTAL_ENTRIES, "the number of all weights")
    return found


def _is_seed(path: str) -> bool:
    return any(part in _NO_WEIGHTS for part in path.split("/"))


def give(model: keras.Model, weights: Group, arrays: dict[str, Array], legacy: bool) -> None:
    """Gives a model its weights.

    Args:
        model: rebuilt from the same file.
        weights: the group that has them.
        arrays: all that there are, see `held`.
        legacy: whether they lie as in an `.h5` file.

    Raises:
        InputError: one is missing, left over, of another shape or type, NaN or infinite.
    """
    left = dict(arrays)
    pairs = _by_layer(model, weights) if legacy else _by_class(model, weights, "")
    for path, variable in pairs:
        array = left.pop(path, None)
        name = f"the weight {variable.path[:80]!r} ({path[:120]} in the file)"
        if array is None:
            raise InputError(f"{name} is missing")
        _assign(variable, array, name)
    if left:
        raise InputError(f"{min(left)[:120]} in the file is a weight that no layer has")
    _finish(model)


def _finish(model: keras.Model) -> None:
    """Lets layers compute what they keep beside their weights."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            _finish(layer)
        elif isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def _assign(variable: Any, array: Array, name: str) -> None:
    if array.shape != tuple(variable.shape):
        raise InputError(f"{name} has shape {array.shape}, and the layer's is {variable.shape}")
    values = array.values()
    floats = keras.backend.is_float_dtype(variable.dtype)
    if (values.dtype.kind == "f") != floats:
        raise InputError(f"{name} is of type {values.dtype}, and the layer's is {variable.dtype}")
    with np.errstate(over="ignore"):
        values = values.astype(variable.dtype)
    if floats and not np.isfinite(values).all():
        raise InputError(f"{name} has entries that are NaN or infinite")
    variable.assign(values)


def _snake(name: str) -> str:
    """Returns a class's name as Keras has it in paths."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _by_class(model: Any, weights: Group, path: str) -> Iterator[tuple[str, Any]]:
    """Yields path and variable of an archive: of each layer its class, and which one of these."""
    numbers: dict[str, int] = {}
    for layer in model.layers:
        kind = _snake(type(layer).__name__)
        count = numbers[kind] = numbers.get(kind, -1) + 1
        place = f"{path}layers/{kind}" + (f"_{count}" if count else "")
        if isinstance(layer, keras.Model):
            yield from _by_class(layer, weights, f"{place}/")
            continue
        inside = next((names for names in _WITHIN if hasattr(layer, names[0].split("/")[0])), ())
        owners = {f"{place}/{name}": _part(layer, name) for name in inside} or {place: layer}
        for where, owner in owners.items():
            for index, variable in enumerate(owner.weights):
                yield f"{where}/vars/{index}", variable


def _part(layer: Any, path: str) -> Any:
    """Returns a layer in a layer, or in one of these."""
    return functools.reduce(getattr, path.split("/"), layer)


def _by_layer(model: Any, weights: Group) -> Iterator[tuple[str, Any]]:
    """Yields path and variable of an `.h5` file: what each layer lists, in order."""
    layers = [layer for layer in model.layers if layer.weights]
    names = _texts(weights, "layer_names")
    listed = {name: _texts(_group(weights, name), "weight_names") for name in names}
    with_weights = [name for name in names if listed[name]]
    if len(listed) < len(names) or with_weights != [layer.name for layer in layers]:
        raise InputError("its layers with weights are not those of its config, in that order")
    for layer in layers:
        variables = layer.trainable_weights + layer.non_trainable_weights
        if len(listed[layer.name]) != len(variables):
            raise InputError(
                f"the layer {layer.name[:80]!r} has {len(listed[layer.name])} weights in the file, "
                f"and {len(variables)} by its config"
            )
        for name, variable in zip(listed[layer.name], variables, strict=True):
            last = name.split("/")[-1].split(":")[0]
            if variable.name not in (last, _KERAS_2.get(last)):
                raise InputError(
                    f"{name[:80]!r} in the file is where {variable.path[:80]!r} should be"
                )
            yield f"{layer.name}/{name}", variable


def _group(weights: Group, name: str) -> Group:
    found = weights.members.get(name)
    if not isinstance(found, Group):
        raise InputError(f"the layer {name[:80]!r} is listed, and not in the file")
    return found


def _texts(group: Group, name: str) -> list[str]:
    """Returns a list of texts among attributes, which may be split in numbered parts."""
    found = group.attributes.get(name)
    if isinstance(found, list):
        return found
    parts: list[list[str]] = []
    while isinstance(part := group.attributes.get(f"{name}{len(parts)}"), list):
        parts.append(part)
    return [text for part in parts for text in part]
