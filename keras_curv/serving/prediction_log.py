"""Requests that TF Serving logged, parsed as data.

The messages are those of TF Serving's public protos, with
the fields that matter here; the parser skips all others. They have a package name of their own, so
that nothing depends on `tensorflow-serving-api` and nothing collides with it.

Reference: `prediction_log.proto`, `predict.proto`, `model.proto` and `logging.proto` in
tensorflow_serving/apis.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto

from keras_curv.rows.reason import Reason
from keras_curv.saved_model.wire import varint
from keras_curv.serving.refusal import Refusal

UNNAMED = None  # the input of a request that names none, for models of one
REPEATED_NUMBERS = 2**18  # in a tensor that does not hold them all
_MOST_STRINGS = 2**20
_STRING, _FIXED = 8 << 3 | 2, {1: 8, 5: 4}  # the tag of a TensorProto's strings; sizes of others
_MAX_RANK = 16
_MOST_INPUTS = 2**8  # no model that is read has more
_PACKAGE = "keras_curv.serving"
# Message → its fields: name, number, type, which is one of protobuf's, a message here, or in full.
_MESSAGES = {
    "PredictionLog": """
        log_metadata 1 LogMetadata, classify_log 2 bytes, regress_log 3 bytes,
        multi_inference_log 4 bytes, session_run_log 5 bytes, predict_log 6 PredictLog,
        predict_streamed_log 7 bytes""",
    "LogMetadata": "model_spec 1 ModelSpec, timestamp_secs 4 int64",
    "PredictLog": "request 1 PredictRequest, response 2 PredictResponse",
    # Inputs are bytes until they are counted: two bytes of a record are an input.
    "PredictRequest": "model_spec 1 ModelSpec, inputs 2 repeated bytes",
    "PredictResponse": "model_spec 2 ModelSpec",
    "ModelSpec": "name 1 string, version 2 google.protobuf.Int64Value, "
    "signature_name 3 string, version_label 4 string",
    "Input": "key 1 string, value 2 Tensor",  # the entries of a map
    # A TensorProto without strings, resources and variants, of which two bytes are an object each.
    "Tensor": """
        dtype 1 int32, tensor_shape 2 tensorflow.TensorShapeProto, tensor_content 4 bytes,
        float_val 5 repeated float, double_val 6 repeated double, int_val 7 repeated int32,
        int64_val 10 repeated int64, bool_val 11 repeated bool, half_val 13 repeated int32""",
}
_LOGS = {
    "classify_log": Reason.CLASSIFY,
    "regress_log": Reason.REGRESS,
    "multi_inference_log": Reason.MULTI_INFERENCE,
    "session_run_log": Reason.SESSION_RUN,
    "predict_streamed_log": Reason.PREDICT_STREAMED,
}
_VALUES = {  # or int_val
    **{tf.float32: "float_val", tf.float64: "double_val", tf.float16: "half_val"},
    **{tf.int64: "int64_val", tf.bool: "bool_val"},
}


class LoggedRequest(NamedTuple):
    """A predict request."""

    inputs: dict[Any, Any]  # tensors by the names of the inputs: messages, or what JSON has
    model: str  # name of the model; "" where the log has none
    # number of the version that served the request; None where the log does not say
    version: int | None
    # label that the request asked for, if the log does not say which version served it; ""
    # otherwise
    version_label: str
    signature: str  # name of the signature; "" for the default one
    timestamp: int  # seconds since 1970; 0 where the log has none
    place: str = ""  # where the request stands in its file, for messages


def parse_log(record: bytes) -> LoggedRequest:
    """Parses one record of a log.

    The version is that of the response, which is the one that served; else the one asked for;
    else that of the log's own metadata.

    Raises:
        Refusal: the record is no PredictionLog, or one of another kind.
    """
    log: Any = _parsed("PredictionLog", record)
    for field, reason in _LOGS.items():
        if log.HasField(field):
            raise Refusal(reason)
    if not log.HasField("predict_log"):
        raise Refusal(Reason.NOT_A_LOG, "no kind of request is set")
    request = log.predict_log.request
    if len(request.inputs) > _MOST_INPUTS:
        raise Refusal(Reason.WRONG_INPUTS, f"{len(request.inputs)} inputs")
    inputs = [_parsed("Input", entry) for entry in request.inputs]
    asked = request.model_spec
    specs = (log.predict_log.response.model_spec, asked, log.log_metadata.model_spec)
    version = next((s.version.value for s in specs if s.HasField("version")), None)
    return LoggedRequest(
        inputs={entry.key: entry.value for entry in inputs},
        model=asked.name or log.log_metadata.model_spec.name,
        version=version,
        version_label=asked.version_label if version is None else "",
        signature=asked.signature_name,
        timestamp=max(log.log_metadata.timestamp_secs, 0),
    )


def read_tensor(tensor: Any, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the batch of examples in a tensor, `(n, *shape)`, n ≥ 1, of `dtype`.

    As everywhere in TensorFlow, values that are missing at the end repeat the last one, and no
    values at all are zeros; but here only up to `REPEATED_NUMBERS`, so that a few bytes cannot
    take all memory.

    Args:
        tensor: the message, from anyone.
        dtype: required dtype: floats of 16, 32 or 64 bits, integers but for uint32 and uint64, or
            truth values.
        shape: required shape of one example.

    Raises:
        Refusal: the tensor is no such batch.
    """
    if tensor.dtype != dtype.as_datatype_enum:
        raise Refusal(Reason.WRONG_DTYPE, f"{_dtype_name(tensor.dtype)}, not {dtype.name}")
    sizes = _sizes(tensor)
    require_batch(sizes, shape)
    assert sizes is not None
    _require_held(tensor, dtype, math.prod(sizes))
    tensor.DiscardUnknownFields()
    try:
        return tf.make_ndarray(TensorProto.FromString(tensor.SerializeToString()))
    except OverflowError as error:
        detail = f"values out of the range of {dtype.name}"
        raise Refusal(Reason.BROKEN_TENSOR, detail) from error


def read_strings(tensor: Any) -> list[bytes]:
    """Returns the strings of a batch of scalars, one at least.

    Raises:
        Refusal: the tensor is no such batch, or does not hold each of them.
    """
    if tensor.dtype != types_pb2.DT_STRING:
        raise Refusal(Reason.WRONG_DTYPE, f"{_dtype_name(tensor.dtype)}, not string")
    sizes = _sizes(tensor)
    require_batch(sizes, ())
    assert sizes is not None
    if sizes[0] > _MOST_STRINGS:
        raise Refusal(Reason.BROKEN_TENSOR, f"more than {_MOST_STRINGS} strings")
    # The class has no field of strings: it keeps them as it found them.
    held, place, found = tensor.SerializeToString(), 0, list[bytes]()
    with contextlib.suppress(ValueError):  # then there are not as many
        while place < len(held) and len(found) <= sizes[0]:
            tag, place = varint(held, place)
            size = _FIXED.get(tag & 7, 0)
            if tag & 7 in (0, 2):
                number, place = varint(held, place)
                size = number if tag & 7 == 2 else 0
            if tag == _STRING:
                found.append(held[place : place + size])
            place += size
    if len(found) != sizes[0]:
        raise Refusal(Reason.BROKEN_TENSOR, f"{len(found)} strings for {sizes[0]}")
    return found


def require_batch(sizes: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
    """Raises Refusal where a tensor of these sizes is no batch of examples of a shape."""
    if sizes is None or len(sizes) != len(shape) + 1 or sizes[1:] != shape:
        wanted = "".join(f", {n}" for n in shape)
        detail = f"{sizes or 'unknown'}, not (n{wanted})"
        raise Refusal(Reason.WRONG_SHAPE, detail, alone=sizes == shape)
    if sizes[0] == 0:
        raise Refusal(Reason.EMPTY_BATCH)


def batch_size(tensors: Iterable[Any]) -> int:
    """Returns how many examples tensors say that they hold, 1 at least, of any shape and dtype.

    That is their first dimension, up to `REPEATED_NUMBERS` or what they have bytes for.
    """
    sizes = [(tensor, _sizes(tensor)) for tensor in tensors]
    most = (min(s[0], max(t.ByteSize(), REPEATED_NUMBERS)) for t, s in sizes if s)
    return max(most, default=1) or 1


def _sizes(tensor: Any) -> tuple[int, ...] | None:
    """Returns the shape of a tensor; None where it is unknown or none."""
    shape = tensor.tensor_shape
    if shape.unknown_rank or len(shape.dim) > _MAX_RANK:
        return None
    sizes = tuple(dim.size for dim in shape.dim)
    return None if any(size < 0 for size in sizes) else sizes


def _require_held(tensor: Any, dtype: tf.DType, count: int) -> None:
    """Raises Refusal where a tensor does not hold `count` numbers, and may not stand for them."""
    if tensor.tensor_content:
        held = len(tensor.tensor_content)
        if held != count * dtype.size:
            detail = f"{held} bytes for {count} numbers of {dtype.name}"
            raise Refusal(Reason.BROKEN_TENSOR, detail)
        return
    held = len(getattr(tensor, _VALUES.get(dtype, "int_val")))
    if held > count or (held < count and count > REPEATED_NUMBERS):
        raise Refusal(Reason.BROKEN_TENSOR, f"{held} values for {count} numbers")


def _dtype_name(number: int) -> str:
    """Returns the name of a dtype, or its number where it has no name."""
    try:
        return tf.as_dtype(number).name
    except TypeError:
        return f"dtype {number}"


def _parsed(message: str, content: bytes) -> Any:
    try:
        return _CLASSES[message].FromString(content)
    except DecodeError as error:
        raise Refusal(Reason.NOT_A_LOG, "the protocol buffer does not parse") from error


def _classes() -> dict[str, type[Message]]:
    """Builds the classes of `_MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[TensorProto.DESCRIPTOR.file.name, wrappers_pb2.DESCRIPTOR.name],
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        definition = file.message_type.add(name=message)
        for text in fields.split(","):
            name, number, *repeated, kind = text.split()
            field = definition.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES or "." in kind:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".{kind}" if "." in kind else f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    log = file.message_type[0]  # which kind of request it is shows even where that is empty
    log.oneof_decl.add(name="log_type")
    for field in log.field:
        if field.name != "log_metadata":
            field.oneof_index = 0
    pool = descriptor_pool.Default()  # which knows TensorProto
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


_CLASSES = _classes()
