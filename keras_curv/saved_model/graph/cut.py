"""The cut: a tensor behind which a model is certified, as if it began there.

A name is looked up among the nodes through which the output depends on an input, calls written out:

1. a node, or `node:k` for its output k; what calls put before its name may be left out;
2. a layer of Keras, by the scope that its nodes are named in, which may end in a number: of
   `functional_1/dense_1/BiasAdd` these are `functional`, `functional_1`, `dense` and `dense_1`. It
   is the tensor of that scope that is read outside of it, if there is but one.

Everything on the way from an input to the output must pass through that tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from keras_curv.errors import InputError
from keras_curv.saved_model.graph.calls import dtype_of
from keras_curv.saved_model.graph.nodes import arguments_of, data_inputs, in_order, node_name

_CALLS = re.compile(r"((Stateful)?PartitionedCall(_\d+)?/)+")
_LISTED = 12  # names in a message
_SAME = ("Identity", "StopGradient", "PreventGradient")
_FLOATS = (tf.float32, tf.float64, tf.float16)


class Cut(NamedTuple):
    """A tensor that stands in for all that it is computed from."""

    tensor: str  # of the flat graph
    shape: TensorShapeProto  # with the batch
    dtype: int  # as protobuf has it

    @property
    def node(self) -> str:
        """The placeholder that stands for it in the flat graph."""
        name, _, place = self.tensor.partition(":")
        return f"{name}/output_{place}" if place else name


class Way:
    """The nodes of a flat graph through which an output depends on its inputs.

    Args:
        nodes: the flat graph, by name; attributes need not be complete.
        places: nodes that are the inputs, and what each is called.
        returned: the tensor of the output.

    Example:
        >>> function = tf.function(lambda x: tf.nn.relu(tf.tanh(x) + tf.exp(x)) * 2.0)
        >>> graph = function.get_concrete_function(tf.ones((1, 2))).graph
        >>> way = Way({node.name: node for node in graph.as_graph_def().node}, {"x": "x"}, "mul")
        >>> way.bottlenecks()
        ['add', 'Relu']
    """

    def __init__(self, nodes: Mapping[str, NodeDef], places: Mapping[str, str], returned: str):
        self._returned, self._places = returned, dict(places)
        self._nodes: dict[str, NodeDef] = {}
        for name in in_order(dict(nodes), node_name(returned)):
            if name in self._places or any(i in self._nodes for i in arguments_of(nodes[name])):
                self._nodes[name] = nodes[name]
        self._ends = {_plain(returned)}  # which are all the output
        while (last := self._nodes.get(node_name(returned))) and last.op in _SAME and last.input:
            self._ends.add(_plain(returned := last.input[0]))
        self._readers: dict[str, list[str]] = {_plain(self._returned): [""]}
        for name, node in self._nodes.items():
            for tensor in map(_plain, data_inputs(node)) if name not in self._places else ():
                self._readers.setdefault(tensor, []).append(name)

    def __iter__(self) -> Iterator[NodeDef]:
        return iter(self._nodes.values())

    def readers(self, tensor: str) -> list[str]:
        """Returns the nodes that read a tensor; "" for who gets the output."""
        return self._readers.get(_plain(tensor), [])

    def outputs_of(self, node: str) -> list[str]:
        """Returns the tensors of a node that are read."""
        return [tensor for tensor in self._readers if node_name(tensor) == node]

    def bottlenecks(self) -> list[str]:
        """Returns float tensors through which everything passes, but for inputs and the output.

        In an order in which each node follows those that it reads, one is passed by if an edge
        leads from before to behind it.
        """
        places = {name: place for place, name in enumerate(self._nodes)}
        ends = [-1] * len(places)  # the last node that reads one
        tensors: dict[str, set[str]] = {name: set() for name in places}
        for tensor, readers in self._readers.items():
            name = node_name(tensor)
            if name in places:
                tensors[name].add(tensor)
                last = max(places.get(reader, len(places)) for reader in readers)
                ends[places[name]] = max(ends[places[name]], last)
        found: list[str] = []
        farthest = max((places[name] for name in self._places.keys() & places.keys()), default=0)
        for name, place in places.items():
            if farthest <= place and name not in self._places and len(tensors[name]) == 1:
                (tensor,) = tensors[name]
                if tensor not in self._ends and self._dtype(tensor) in _FLOATS:
                    found.append(tensor)
            farthest = max(farthest, ends[place])
        return found

    def named(self, name: str) -> list[str]:
        """Returns the tensors that a name may mean."""
        node, _, place = name.partition(":")
        if not (place or "0").isdecimal():
            return []
        same = [found for found in self._nodes if found == node]
        same = same or [found for found in self._nodes if found.endswith(f"/{node}")]
        if same:
            return [_plain(f"{found}:{int(place or 0)}") for found in same]
        scope = "/".join(rf"{re.escape(part)}(_\d+)?" for part in name.split("/"))
        inside = {each: re.match(rf"(.*?/)??{scope}/", each) for each in self._nodes}
        of = {each: match[0] if match else "" for each, match in inside.items()}
        return [
            tensor
            for tensor, readers in self._readers.items()
            if (mine := of.get(node_name(tensor))) and any(of.get(r, "") != mine for r in readers)
        ]

    def short(self, tensor: str) -> str:
        """Returns the shortest name that means a tensor: of its layer, or of its node."""
        name = _CALLS.sub("", tensor, count=1)
        layer = re.sub(r"_\d+$", "", node_name(name).rpartition("/")[0].rpartition("/")[2])
        for shorter in (layer, name):
            if shorter and self.named(shorter) == [tensor]:
                return shorter
        return tensor

    def listed(self) -> str:
        """Returns names of tensors that can be cut at, the last of each layer."""
        last = {tensor.rpartition("/")[0]: tensor for tensor in self.bottlenecks()}
        names = [self.short(tensor)[:120] for tensor in [*last.values()][-_LISTED:]]
        return ", ".join(names) or "none"

    def cut(
        self, name: str, claims: Iterable[tuple[str, TensorShapeProto]], tensor: str | None = None
    ) -> Cut:
        """Returns the cut of a name.

        Args:
            name: see the module.
            claims: tensors with the shapes that are noted of them.
            tensor: which the name is known to mean; None: it is looked up.

        Raises:
            InputError: it means no tensor, or several; something passes it by; its shape or
                its dtype is not known.
        """
        known = None if tensor is None else _plain(tensor)
        found = self.named(name) if known is None else [t for t in [known] if t in self._readers]
        if len(found) != 1:
            what = "there is no layer or tensor of that name on the way to the output; there are"
            if found:
                what = "it may be each of these, of which name one"
            names = ", ".join(_CALLS.sub("", each, count=1)[:120] for each in found[:_LISTED])
            raise InputError(f"it cannot be cut at {name!r}: {what}: {names or self.listed()}")
        (tensor,) = found
        self._require_all_through(tensor, name)
        shapes = [shape for of, shape in claims if _plain(of) == tensor and not shape.unknown_rank]
        fixed = [s for s in shapes if s.dim and all(dim.size >= 0 for dim in s.dim[1:])]
        dtype = self._dtype(tensor)
        if not fixed or dtype is None:
            raise InputError(
                f"it cannot be cut at {name!r}: the shape of what flows there is not known; others "
                f"are: {self.listed()}"
            )
        return Cut(tensor, fixed[0], dtype.as_datatype_enum)

    def _require_all_through(self, tensor: str, name: str) -> None:
        """Refuses a tensor that something passes by, or that nothing follows."""
        if tensor in self._ends:
            raise InputError(f"it cannot be cut at {name!r}: that is the output")
        seen, waiting = {tensor}, [(_plain(self._returned), "the output")]
        while waiting:
            each, reader = waiting.pop()
            node = self._nodes.get(node_name(each))
            if each in seen or node is None:
                continue
            seen.add(each)
            if node.name in self._places:
                given, to = self._places[node.name], _CALLS.sub("", reader, count=1)[:120]
                raise InputError(
                    f"it cannot be cut at {name!r}: the input {given!r} passes it by, to {to}; all "
                    f"passes through: {self.listed()}"
                )
            waiting += [(_plain(given), node.name) for given in data_inputs(node)]

    def _dtype(self, tensor: str) -> tf.DType | None:
        name, _, place = tensor.partition(":")
        number = dtype_of(self._nodes[name], int(place or 0)) if name in self._nodes else 0
        return tf.as_dtype(number) if number else None


def _plain(tensor: str) -> str:
    """Returns a tensor's name without the number of a first output."""
    return tensor.removesuffix(":0")
