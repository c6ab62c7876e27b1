"""`saved_model.pb`, parsed as data.

A server runs the main graph and its functions, which `server.py` and `inlining.py` read. Python
would load the graph of objects, which `object_graph.py` reads.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from keras_curv.errors import InputError, about
from keras_curv.saved_model import limits
from keras_curv.saved_model.wire import require_said_once


def parse(content: bytes, source: str) -> meta_graph_pb2.MetaGraphDef:
    """Returns the one meta graph of a SavedModel's message.

    Raises:
        InputError: it does not parse, says something twice, or holds none, or several.
    """
    limits.require_at_most(len(content), limits.GRAPH_BYTES, f"{source}, in bytes,")
    with about(f"{source} is not a SavedModel, or is cut off", (DecodeError,)):
        proto = saved_model_pb2.SavedModel.FromString(content)
    with about(source):
        require_said_once(content, saved_model_pb2.SavedModel.DESCRIPTOR)
    if len(proto.meta_graphs) != 1:
        raise InputError(
            f"{source} has {len(proto.meta_graphs)} meta graphs; one, tagged 'serve', is supported"
        )
    return proto.meta_graphs[0]
