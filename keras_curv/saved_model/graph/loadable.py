"""Refuses graphs that every loader of TensorFlow refuses, so that no server answers by them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.versions_pb2 import VersionDef

from keras_curv.errors import InputError, about
from keras_curv.saved_model.graph.nodes import data_inputs, node_name
from keras_curv.saved_model.graph.reach import Reach

_DEVICE = re.compile(r"[A-Za-z0-9_:/*.-]*", re.ASCII)


def require_version(versions: VersionDef) -> None:
    """Refuses a graph that says that this TensorFlow cannot load it.

    Args:
        versions: of the graph.

    Raises:
        InputError: it is for a newer TensorFlow, or of one that is too old.
    """
    ours = tf.version.GRAPH_DEF_VERSION
    oldest = tf.version.GRAPH_DEF_VERSION_MIN_PRODUCER
    if versions.min_consumer > ours or ours in versions.bad_consumers:
        raise InputError(
            f"it asks for a newer TensorFlow, of graph version {versions.min_consumer}; this one "
            f"has {ours}"
        )
    if versions.producer < oldest:
        raise InputError(f"its graph version {versions.producer} is too old; at least {oldest}")


def require_graphs(main: Iterable[NodeDef], reach: Reach) -> None:
    """Refuses graphs that go in circles, or name nodes or devices that cannot be.

    Args:
        main: all nodes of the main graph, which a server loads at once.
        reach: what is asked for.

    Raises:
        InputError: one does.
    """
    bodies: list[tuple[str, list[NodeDef], list[str]]] = [("the main graph", [*main], [])]
    for name, function in reach.functions.items():
        given = {
            node_name(tensor) for tensor in (*function.ret.values(), *function.control_ret.values())
        }
        there = {each.name for each in (*function.node_def, *function.signature.input_arg)}
        for missing in given - there:
            raise InputError(f"function {name}: it returns {missing!r}, which is not there")
        arguments = [argument.name for argument in function.signature.input_arg]
        bodies.append((f"function {name}", [*function.node_def], arguments))
    for where, body, arguments in bodies:
        _require_order(where, body, arguments)
        for device in {node.device for node in body}:
            with about(f"{where}: {device[:80]!r} is no device", (ValueError,)):
                if not _DEVICE.fullmatch(device):  # in Python, a number may be followed by a space
                    raise ValueError("it has other characters than names of devices have")
                tf.DeviceSpec.from_string(device)


def _require_order(where: str, body: list[NodeDef], arguments: list[str]) -> None:
    """Refuses nodes of which none can be the first, or that take something from nowhere."""
    readers: dict[str, list[str]] = {name: [] for name in [*arguments, *(n.name for n in body)]}
    missing: dict[str, int] = {}
    for node in body:
        if list(node.input[: len(data_inputs(node))]) != data_inputs(node):
            raise InputError(f"{where}: {node.name!r} waits for nodes before it takes its inputs")
        sources = {node_name(given) for given in node.input}
        missing[node.name] = len(sources)
        for name in sources:
            if name not in readers:
                raise InputError(f"{where}: {node.name!r} depends on {name!r}, which is not there")
            readers[name].append(node.name)
    ready = [*arguments, *(name for name, count in missing.items() if not count)]
    done = 0
    while ready:
        done += 1
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if done < len(readers):
        stuck = next(name for name, count in missing.items() if count)
        raise InputError(f"{where}: the node {stuck!r} depends on itself")
