"""`saved_model.pb`, parsed as data.

Of what it holds, only what a server runs is looked at: the main graph and its functions, by
`server.py` and `inlining.py`. The graph of objects, by which Python would load the model, is not.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from keras_curv.errors import InputError, about
from keras_curv.reading import limits


def parse(content: bytes, source: str) -> meta_graph_pb2.MetaGraphDef:
    """Returns the one meta graph of a SavedModel's message.

    Raises:
        InputError: it does not parse, or holds none, or several.
    """
    limits.require_at_most(len(content), limits.GRAPH_BYTES, f"{source}, in bytes,")
    with about(f"{source} is not a SavedModel, or is cut off", (DecodeError,)):
        proto = saved_model_pb2.SavedModel.FromString(content)
    if len(proto.meta_graphs) != 1:
        raise InputError(
            f"{source} has {len(proto.meta_graphs)} meta graphs; one, tagged 'serve', is supported"
        )
    return proto.meta_graphs[0]
