"""The names that TensorFlow gives to nodes while it loads a graph, and before it runs one.

A call of a function is replaced by its nodes, and node `k` behind the call `c` is then named `c/k`;
the optimizer names what it makes by what it found: `ConstantFolding/D_recip` for a division D. It
takes what has such a name already for the node that it means, so that a graph with two nodes of one
name is answered otherwise than it reads. Both are refused here, among all nodes that TensorFlow has
before it as it answers a signature: also among those that only have to wait, or are never asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.saved_model import limits
from keras_curv.saved_model.graph.nodes import attribute
from keras_curv.saved_model.graph.reach import Reach

# What names of its own look like, as far as we know the sources of TensorFlow 2.21: those of
# `grappler/optimizers`, and `NewName` in `graph.cc`.
_OPTIMIZER = re.compile(
    r"""
    (^|/)(ConstantFolding|ConstantFoldingCtrl|ArithmeticOptimizer|Recomputed|RecomputeTrigger)/
    | (^|/)_\d+$                                # the nodes of a graph, counted
    | __cf__                                    # constants that were folded
    | -(LayoutOptimizer|AutoMixedPrecision)
    | ^(_|Func/|swap_in_|swap_out_|AutoParallel-)
    | /unary_ops_composition$
    """,
    re.VERBOSE,
)
_NORMALIZATION = re.compile(r"FusedBatchNorm(V2|V3)?")  # is written out as nodes named behind it
# Names that exports give to arguments of a function.
_GIVEN = re.compile(r"(ReadVariableOp(_\d+)?(/resource)?|scale|offset|mean|variance)")


def require_names_of_their_own(reach: Reach) -> None:
    """Refuses a graph in which TensorFlow would take one node for another by its name.

    Args:
        reach: the graph behind what is asked for.

    Raises:
        InputError: two nodes would have one name, or a node has a name of TensorFlow's own.
        KeyError: a function is not there.
    """
    names: set[str] = set()
    normalized: set[str] = set()
    for name, node in _written_out(reach):
        if name in names:
            raise InputError(
                f"two nodes would be named {name!r} once calls are written out, and TensorFlow "
                "would take one for the other; rename one of them"
            )
        names.add(name)
        if _OPTIMIZER.search(name):
            raise InputError(
                f"the node {name!r} is named as TensorFlow's optimizer names nodes of its own, and "
                "would be taken for one; rename it"
            )
        if _NORMALIZATION.fullmatch(node.op):
            normalized.add(name)
    for name in names:
        of, _, last = name.rpartition("/")
        if of in normalized and not _GIVEN.fullmatch(last):
            raise InputError(
                f"the node {name!r} is named as a part of the batch normalization {of!r}, which "
                "TensorFlow writes out as nodes with such names; rename it"
            )


def _written_out(reach: Reach) -> Iterator[tuple[str, NodeDef]]:
    """Yields each node, calls written out, by the name that TensorFlow gives it."""
    nodes, letters, calls = 0, 0, 0
    bodies: list[tuple[str, Iterable[NodeDef], int]] = [("", reach.nodes.values(), 0)]
    while bodies:
        prefix, body, depth = bodies.pop()
        limits.require_at_most(depth, limits.CALL_DEPTH, "the graph, in depth of calls,")
        for node in body:
            name = prefix + node.name
            nodes, letters = nodes + 1, letters + len(name)
            limits.require_at_most(nodes, limits.NODES, "the graph with its calls")
            limits.require_at_most(letters, limits.GRAPH_BYTES, "the graph, in letters of names,")
            yield name, node
            function = attribute(node, "f").func.name
            if function:
                calls += 1
                limits.require_at_most(calls, limits.FUNCTIONS, "the graph, in calls written out,")
                bodies.append((f"{name}/", reach.functions[function].node_def, depth + 1))
