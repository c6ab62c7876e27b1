"""Functions that call too deep, too often, or with too much."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import cases, changed, edited, export, nodes_of

CASES, case = cases()
HARMLESS, harmless_case = cases()


@case("calls: with a number that the function takes")
def _generic(path, canary):
    inner = tf.function(lambda x: x + tf.unstack(x, 4, axis=1)[0][:, None])
    export(path, lambda x, net: net(inner(x)))
    with edited(path) as meta:
        for node in [*meta.graph_def.node, *nodes_of(meta)]:
            node.attr.pop("_output_shapes", None)
            if node.op == "Unpack":
                node.attr["num"].placeholder = "N"
            if node.op == "PartitionedCall":
                node.attr["N"].i = 2**30
        for function in meta.graph_def.library.function:
            if any(node.op == "Unpack" for node in function.node_def):
                function.signature.attr.add(name="N", type="int")
    return path


@case("calls: a function with another implementation")
def _implementations(path, canary):
    export(path, lambda x, net: tf.function(net)(x))
    with edited(path) as meta:
        for function in meta.graph_def.library.function:
            function.attr["api_implements"].s = b"net"
    return path


def chain(path, links, calls):
    """Functions h0, h1, …, each calling the next so many times; `links` 0: itself."""
    inner = tf.function(lambda x: tf.identity(x))

    @tf.function
    def outer(x):
        for _ in range(calls):
            x = inner(x)
        return x

    export(path, lambda x, net: net(outer(x)))
    with edited(path) as meta:
        library = meta.graph_def.library.function
        first = next(f for f in library if "_outer_" in f.signature.name)
        last = next(n.attr["f"].func.name for n in first.node_def if "f" in n.attr)
        for index in range(links):
            link = library.add()
            link.CopyFrom(first)
            link.signature.name = f"h{index}"
            for node in link.node_def:
                if "f" in node.attr:
                    node.attr["f"].func.name = last if index == links - 1 else f"h{index + 1}"
        for node in first.node_def:
            if "f" in node.attr:
                node.attr["f"].func.name = "h0" if links else first.signature.name
    return path


case("calls: itself")(lambda path, canary: chain(path, 0, 1))
case("calls: the next twice, fifty times")(lambda path, canary: chain(path, 50, 2))
case("calls: 5,000 deep")(lambda path, canary: chain(path, 5000, 1))


def _with_function(arguments, calls, functions=1):
    """Functions of so many arguments, and another one that calls the first so many times."""

    def add(meta):
        library = meta.graph_def.library.function
        for index in range(functions):
            function = library.add()
            function.signature.name = f"e{index}"
            for place in range(arguments):
                function.signature.input_arg.add(name=f"a{place}", type=1)
        caller = library.add()
        caller.signature.name = "caller"
        for index in range(calls):
            node = caller.node_def.add(name=f"c{index}", op="PartitionedCall")
            node.attr["f"].func.name = "e0"
            node.attr["Tin"].list.SetInParent()
            node.attr["Tout"].list.SetInParent()

    return changed(add)


harmless_case("calls: a function of 70,000 arguments")(_with_function(70_000, 0))
harmless_case("calls: 5000 arguments, twenty times")(_with_function(5000, 20))
harmless_case("calls: none of five thousand functions")(_with_function(0, 0, 5000))
