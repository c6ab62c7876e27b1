"""The nodes and functions that TensorFlow meets as it computes some tensors of a main graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.saved_model.graph.nodes import node_name


class Reach(NamedTuple):
    """Nodes of the main graph that are computed or waited for, and functions that may be called."""

    nodes: Mapping[str, NodeDef]  # of the main graph, by name
    # by name; of each all nodes count, as TensorFlow writes out all of them
    functions: Mapping[str, FunctionDef]

    @classmethod
    def of(
        cls,
        nodes: Mapping[str, NodeDef],
        library: Mapping[str, FunctionDef],
        tensors: Iterable[str],
    ) -> Reach:
        """Returns what some tensors are computed from, or wait for.

        Args:
            nodes: the main graph, by name.
            library: all functions, by name.
            tensors: of the main graph.

        Raises:
            KeyError: a node is not there.
        """
        found: dict[str, NodeDef] = {}
        waiting = [node_name(tensor) for tensor in tensors]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = nodes[name]
                waiting += map(node_name, nodes[name].input)
        functions: dict[str, FunctionDef] = {}
        calls = [name for node in found.values() for name in called(node)]
        while calls:
            name = calls.pop()
            if name in library and name not in functions:
                functions[name] = library[name]
                calls += [each for node in library[name].node_def for each in called(node)]
        return cls(found, functions)

    def bodies(self) -> Iterator[tuple[str, Iterable[NodeDef]]]:
        """Yields the nodes of the main graph, and of each function, each with words for where."""
        yield "the main graph", self.nodes.values()
        for name, function in self.functions.items():
            yield f"function {name}", function.node_def


def called(node: NodeDef) -> list[str]:
    """Returns names of the functions that a node may call, if they are functions."""
    names = [node.op]  # a function can be called as if it were an op
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names
