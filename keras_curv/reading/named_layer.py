"""A layer of a live model by its name, and what it makes while the model is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keras_curv.errors import InputError


def named_layer(model: Any, name: str, source: str) -> Any | None:
    """Returns the layer of a name, in a nested model too; None where there is none.

    Args:
        model: of Keras.
        name: of the layer, or of a layer of a nested model `outer/inner`.
        source: for messages.

    Raises:
        InputError: several layers have it.

    Example:
        >>> import keras
        >>> inner = [keras.Input((2,)), keras.layers.Dense(3, name="d")]
        >>> model = keras.Sequential([keras.Input((2,)), keras.Sequential(inner, name="net")])
        >>> [named_layer(model, name, "").name for name in ("net", "d", "net/d")]
        ['net', 'd', 'd']
    """
    found = {path: layer for path, layer in _layers(model, "") if f"/{path}".endswith(f"/{name}")}
    if name in found or len(found) < 2:
        return found.get(name, next(iter(found.values()), None))
    names = ", ".join(sorted(found)[:12])
    raise InputError(f"{source}: the cut {name!r} may be each of these layers; name one: {names}")


def _layers(model: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for layer in getattr(model, "layers", ()):
        yield f"{prefix}{layer.name}", layer
        yield from _layers(layer, f"{prefix}{layer.name}/")


@contextlib.contextmanager
def outputs_of(layer: Any | None) -> Iterator[list[Any]]:
    """Yields a list to which each call of a layer in the block adds what it returned."""
    made: list[Any] = []
    if layer is None:
        yield made
        return
    own, call = "call" in vars(layer), layer.call

    def recording(*args: Any, **kwargs: Any) -> Any:
        made.append(call(*args, **kwargs))
        return made[-1]

    layer.call = recording
    try:
        yield made
    finally:
        if own:
            layer.call = call
        else:
            del layer.call
