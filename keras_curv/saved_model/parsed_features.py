"""The features of a signature that parses serialized tf.Examples: they are its inputs.

A server is sent strings. The first op parses them into features of known names, shapes and types,
and nothing else reads the strings. Each dense feature that the output depends on becomes an input
by its name; the parsing itself is cut off. A feature of any length, sparse or ragged, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.saved_model import limits
from keras_curv.saved_model.graph.cut import Cut, Way
from keras_curv.saved_model.graph.nodes import attribute, data_inputs, node_name
from keras_curv.saved_model.graph.outline import Outline

_PARSING = "ParseExampleV2"
_SAME = ("Reshape", "Identity")
_KEYS, _DEFAULTS = 3, 5  # places among its arguments


class Feature(NamedTuple):
    """A dense feature."""

    cut: Cut  # the tensor that holds it
    default: np.ndarray | None  # what it is in examples that leave it out; None: they must have it


def find_features(
    definition: graph_pb2.GraphDef, places: Mapping[str, str], output: str
) -> dict[str, Feature]:
    """Returns the features that an output depends on, by name, sorted; none where none is parsed.

    Args:
        definition: a main graph, and its functions.
        places: name of each input → its node.
        output: its tensor that is certified.

    Raises:
        InputError: it depends on a feature that is not dense, or on the strings besides.
        LookupError, TypeError, ValueError: it is not a graph that TensorFlow takes.
    """
    nodes = {node.name: node for node in definition.node}
    strings = [attribute(nodes[each], "dtype").type == tf.string for each in places.values()]
    if strings != [True]:
        return {}
    outline = Outline(definition)
    (place,) = (outline.write(each) for each in places.values())
    returned = outline.write(output)
    flat = {node.name: node for node in outline.flat.node}
    way = Way(flat, dict.fromkeys((place,), next(iter(places))), returned)
    readers = [flat[name] for name in way.readers(place) if name]
    if [node.op for node in readers] != [_PARSING] or place in data_inputs(readers[0])[1:]:
        return {}
    shape = attribute(nodes[next(iter(places.values()))], "shape").shape
    if shape.unknown_rank or len(shape.dim) != 1:
        raise InputError(f"op {_PARSING}: serialized examples must come as a list, (batch,)")
    return _features(readers[0], flat, way)


def _features(parsing: NodeDef, flat: Mapping[str, NodeDef], way: Way) -> dict[str, Feature]:
    given = data_inputs(parsing)
    names = _constant(flat, given[_KEYS])
    if names is None:
        raise InputError(f"op {_PARSING} (node {parsing.name!r}) computes names of features")
    keys = [key.decode() for key in names.reshape(-1).tolist()]
    types, shapes = (parsing.attr[name].list for name in ("Tdense", "dense_shapes"))
    if not len(keys) == len(set(keys)) == len(types.type) == len(shapes.shape):
        raise InputError(f"op {_PARSING} (node {parsing.name!r}) names two features alike, or none")
    start = 3 * attribute(parsing, "num_sparse").i
    found = {}
    for tensor in way.outputs_of(parsing.name):
        place = int(tensor.partition(":")[2] or 0) - start
        if not 0 <= place < len(keys):
            raise InputError(
                f"op {_PARSING} (node {parsing.name!r}): features that are sparse or ragged are of "
                "any length, and no inputs that can be certified; cut behind them"
            )
        key, said = keys[place], shapes.shape[place]
        if said.unknown_rank or any(dim.size < 1 for dim in said.dim):
            raise InputError(f"the feature {key!r} is of any length; give it one, or cut behind it")
        sizes = [dim.size for dim in said.dim]
        limits.require_shape(sizes, limits.EXAMPLE_ENTRIES)
        whole = tf.TensorShape([None, *sizes]).as_proto()
        default = _constant(flat, given[_DEFAULTS + place])
        if default is not None:
            default = default.reshape(sizes) if default.size == math.prod(sizes) else None
        found[key] = Feature(Cut(tensor, whole, types.type[place]), default)
    return dict(sorted(found.items()))


def _constant(flat: Mapping[str, NodeDef], tensor: str) -> np.ndarray | None:
    """Returns a constant, which may be brought into shape; None where it is none."""
    node = flat[node_name(tensor)]
    while node.op in _SAME and node.input:
        node = flat[node_name(node.input[0])]
    held = attribute(node, "value").tensor
    if node.op != "Const" or not held.dtype:
        return None
    limits.require_shape((dim.size for dim in held.tensor_shape.dim), limits.EXAMPLE_ENTRIES)
    return tf.make_ndarray(held)
