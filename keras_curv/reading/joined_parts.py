"""The features by name in what a live model joins at its cut, as encodings of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

_SAME = ("Identity", "Cast")


def parts_of(graph: tf.Graph, tensor: str, places: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns name of an input → places of what is computed of it alone, in a joined tensor.

    Args:
        graph: in which a live model was traced, so that shapes are what TensorFlow infers.
        tensor: `(batch, size)`, made by a concatenation; of others nothing is known.
        places: name of each input → its placeholder.

    Returns:
        Arrays `(1, size)`; nothing of inputs that have no part of their own, or several.

    Example:
        >>> specs = [tf.TensorSpec((None, n), name=name) for name, n in (("a", 1), ("b", 2))]
        >>> function = tf.function(lambda a, b: tf.concat([b * 2.0, a, a + b], 1, name="joined"))
        >>> graph = function.get_concrete_function(*specs).graph
        >>> {n: p.tolist() for n, p in parts_of(graph, "joined", {"a": "a", "b": "b"}).items()}
        {'a': [[2]], 'b': [[0, 1]]}
    """
    try:
        joined = graph.get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0")
    except (KeyError, ValueError):  # within a function
        return {}
    while joined.op.type in _SAME:
        joined = joined.op.inputs[0]
    if joined.op.type != "ConcatV2" or joined.shape.rank != 2:
        return {}
    *parts, axis = joined.op.inputs
    sizes = [part.shape[-1] for part in parts]
    if tf.get_static_value(axis) not in (1, -1) or None in sizes:
        return {}
    names = {place: name for name, place in places.items()}
    found: dict[str, list[np.ndarray]] = {}
    for part, end in zip(parts, np.cumsum(sizes), strict=True):
        of = _inputs_of(part.op, names)
        if len(of) == 1:
            found.setdefault(of.pop(), []).append(np.arange(end - part.shape[-1], end)[None])
    return {name: where[0] for name, where in sorted(found.items()) if len(where) == 1}


def _inputs_of(op: tf.Operation, names: Mapping[str, str]) -> set[str]:
    """Returns the names of the inputs that an op depends on."""
    found, seen, waiting = set(), {op.name}, [op]
    while waiting:
        each = waiting.pop()
        if each.name in names:
            found.add(names[each.name])
        more = [tensor.op for tensor in each.inputs if tensor.op.name not in seen]
        seen.update(other.name for other in more)
        waiting += more
    return found
