"""Names a cut behind which a model that is refused could be certified."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.lowering.rules.registry import RULES
from keras_curv.saved_model.graph.cut import Way
from keras_curv.saved_model.graph.nodes import arguments_of, node_name

_POOLING = ("Mean", "Max", "AvgPool", "MaxPool")


def advised_cut(
    definition: graph_pb2.GraphDef,
    rewritten: Iterable[NodeDef],
    places: Collection[str],
    output: str,
    refused: str | None = None,
    *,
    late: bool = False,
) -> str:
    """Returns a sentence with the first cut behind all ops that are refused; "" without one.

    Args:
        definition: the flat graph, where the cut gets its name.
        rewritten: the nodes that are read, each after those it reads, but for the inputs.
        places: the inputs.
        output: the tensor that is certified.
        refused: a node that is refused beside those without a rule; None: there is none.
        late: whether it is refused for its size, as what follows would be: then the cut is behind
            the last pooling of all, where there is one.
    """
    nodes = {node.name: node for node in rewritten}
    given = {name: NodeDef(name=name, op="Placeholder") for name in places}
    named = dict(zip(places, places, strict=True))
    way = Way(nodes | given, named, output)
    order = {node.name: number for number, node in enumerate(way)}
    bad = [n.name for n in way if n.name == refused or n.name not in given and n.op not in RULES]
    if refused not in order:  # a constant, which no way leads through
        bad += [n.name for n in way if refused in arguments_of(n)]
    last = max((order[name] for name in bad), default=-1)
    whole = Way({node.name: node for node in definition.node}, named, output)
    lists = {node.name for node in whole if node.op.startswith("TensorList")}  # not by example
    known = {tensor for tensor in whole.bottlenecks() if tensor not in lists}
    behind = [t for t in way.bottlenecks() if order[node_name(t)] >= last and t in known]
    pooled = [t for t in behind if late and nodes[node_name(t)].op in _POOLING]
    found = next(iter([*pooled[-1:], *behind]), None)
    return f"; cut at {whole.short(found)!r} to certify the part behind it" if found else ""
