"""The nodes behind a tensor and how they are connected, and nothing of what they compute.

The cut of a model is looked up here, before anything that is cut off has been judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.saved_model import limits
from keras_curv.saved_model.graph.cut import Cut, Way
from keras_curv.saved_model.graph.inlining import Frame, Inliner

_SHORT = 2**16  # bytes of a constant


class Outline(Inliner):
    """Writes out what lies behind tensors of one main graph, but neither variables nor judgements.

    A call that cannot be written out stays what it is: a node that may depend on all that it takes.
    """

    def require_readable(self, frame: Frame, node: NodeDef) -> None:
        """Lets every op pass."""

    def called(self, frame: Frame, node: NodeDef) -> Frame | None:
        """Returns the call that a node makes; None where it cannot be written out."""
        try:
            return super().called(frame, node)
        except InputError:
            return None

    def value(self, frame: Frame, node: NodeDef, waiting: list) -> str:
        """Writes a variable's reading as a node."""
        return self.write_node(frame, node, waiting)

    def copied(self, node: NodeDef, prefix: str) -> NodeDef:
        """Adds the node without its inputs, with its types and short constants."""
        self.spend(node.ByteSize(), limits.GRAPH_BYTES, "the graph with its calls, in bytes,")
        copy = self.new(prefix + node.name, node.op)
        for name, value in node.attr.items():
            kind = value.WhichOneof("value")
            short = kind == "tensor" and value.ByteSize() <= _SHORT
            if kind in ("type", "list", "i", "shape") or short:
                copy.attr[name].CopyFrom(value)
        return copy


def find_cut(
    definition: graph_pb2.GraphDef,
    places: Mapping[str, str],
    output: str,
    name: str,
    tensor: str | None = None,
) -> Cut:
    """Returns the cut of a name in a main graph with functions.

    Args:
        definition: the main graph, and its functions.
        places: name of each input → its node.
        output: its tensor that is certified.
        name, tensor: see `Way.cut`.

    Raises:
        InputError: see `Way.cut`.
        LookupError, TypeError, ValueError: it is not a graph that TensorFlow takes.
    """
    outline = Outline(definition)
    given = {outline.write(place): each for each, place in places.items()}
    returned = outline.write(output)
    nodes = {node.name: node for node in outline.flat.node}
    return Way(nodes, given, returned).cut(name, outline.claims, tensor)


_PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum", "Conv2D")


@contextlib.contextmanager
def advising(
    definition: graph_pb2.GraphDef, places: Mapping[str, str], output: str
) -> Iterator[None]:
    """Adds a cut to the message where a block raises that a whole model is too large.

    Args:
        definition, places, output: as of `find_cut`.
    """
    try:
        yield
    except limits.TooLarge as error:
        raise limits.TooLarge(f"{error}{_late_cut(definition, places, output)}") from error


def _late_cut(definition: graph_pb2.GraphDef, places: Mapping[str, str], output: str) -> str:
    """Returns a clause that names the cut before the last layer with a kernel."""
    with contextlib.suppress(InputError, LookupError, TypeError, ValueError):
        outline = Outline(definition)
        given = {outline.write(place): each for each, place in places.items()}
        returned = outline.write(output)
        nodes = {node.name: node for node in outline.flat.node}
        way = Way(nodes, given, returned)
        found = way.bottlenecks()
        read = [t for t in found if any(nodes[r].op in _PRODUCTS for r in way.readers(t) if r)]
        return f"; cut at {way.short((read or found)[-1])!r} to certify the part behind it"
    return ""
