"""What TF Serving logs of a request, parsed as data.

The messages are those of TF Serving's public protos, with the fields that matter here; what has
no field is skipped by the parser. They live in a pool of their own, so that nothing depends on
`tensorflow-serving-api` and nothing collides with it.

Reference: `prediction_log.proto`, `predict.proto`, `model.proto` and `logging.proto` in
tensorflow_serving/apis, `tensor.proto` in tensorflow/core/framework.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from keras_curv.rows.reason import Reason
from keras_curv.serving.refusal import Refusal

REPEATED_NUMBERS = 2**18  # that a tensor may stand for without holding them
_MAX_RANK = 16
_PACKAGE = "keras_curv.serving"
# Message → its fields: name, number, type, which is one of protobuf's or a message.
_MESSAGES = {
    "PredictionLog": """
        log_metadata 1 LogMetadata, classify_log 2 bytes, regress_log 3 bytes,
        multi_inference_log 4 bytes, session_run_log 5 bytes, predict_log 6 PredictLog,
        predict_streamed_log 7 bytes""",
    "LogMetadata": "model_spec 1 ModelSpec, timestamp_secs 4 int64",
    "PredictLog": "request 1 PredictRequest, response 2 PredictResponse",
    "PredictRequest": "model_spec 1 ModelSpec, inputs 2 repeated Input",
    "PredictResponse": "model_spec 2 ModelSpec",
    "ModelSpec": "name 1 string, version 2 Int64Value, signature_name 3 string, "
    "version_label 4 string",
    "Int64Value": "value 1 int64",
    "Input": "key 1 string, value 2 Tensor",  # the entries of a map
    "Tensor": """
        dtype 1 int32, tensor_shape 2 Shape, tensor_content 4 bytes, float_val 5 repeated float,
        double_val 6 repeated double, int_val 7 repeated int32, half_val 13 repeated int32""",
    "Shape": "dim 2 repeated Dim, unknown_rank 3 bool",
    "Dim": "size 1 int64",
}
_LOGS = {
    "classify_log": Reason.CLASSIFY,
    "regress_log": Reason.REGRESS,
    "multi_inference_log": Reason.MULTI_INFERENCE,
    "session_run_log": Reason.SESSION_RUN,
    "predict_streamed_log": Reason.PREDICT_STREAMED,
}
_VALUES = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.float16: "half_val",
    tf.uint8: "int_val",
    tf.int8: "int_val",
    tf.int16: "int_val",
    tf.int32: "int_val",
}


class LoggedRequest(NamedTuple):
    """A predict request.

    Attributes:
        inputs: name → tensor, still as a message.
        model: its name; "" where there is none.
        version: that served it, or None where the log does not say.
        version_label: where it asked for a label, and the log does not say what that stood for.
        signature: "" for the default one.
        timestamp: seconds since 1970, or 0 where there is none.
    """

    inputs: dict[str, Message]
    model: str
    version: int | None
    version_label: str
    signature: str
    timestamp: int


def parse_log(record: bytes) -> LoggedRequest:
    """One record of a log.

    The version is that of the response, which is the one that served; else the one asked for;
    else that of the log's own metadata.

    Raises:
        Refusal: it is no PredictionLog, or one of another kind.
    """
    log = PredictionLog()
    try:
        log.ParseFromString(record)
    except DecodeError as error:
        raise Refusal(Reason.NOT_A_LOG, "the protocol buffer does not parse") from error
    for field, reason in _LOGS.items():
        if log.HasField(field):
            raise Refusal(reason)
    if not log.HasField("predict_log"):
        raise Refusal(Reason.NOT_A_LOG, "no kind of request is set")
    request = log.predict_log.request
    asked = request.model_spec
    specs = (log.predict_log.response.model_spec, asked, log.log_metadata.model_spec)
    version = next((s.version.value for s in specs if s.HasField("version")), None)
    return LoggedRequest(
        inputs={entry.key: entry.value for entry in request.inputs},
        model=asked.name or log.log_metadata.model_spec.name,
        version=version,
        version_label=asked.version_label if version is None else "",
        signature=asked.signature_name,
        timestamp=max(log.log_metadata.timestamp_secs, 0),
    )


def read_tensor(tensor: Message, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """The batch of examples in a tensor.

    As in TensorFlow, values that are missing at the end repeat the last one, and no values at all
    are zeros; but only up to `REPEATED_NUMBERS`, so that a few bytes cannot take all memory.

    Args:
        dtype: that it must have.
        shape: of one example; the tensor must be `(n, *shape)`, n ≥ 1.

    Returns:
        `(n, *shape)` of `dtype`.

    Raises:
        Refusal: it is none.
    """
    if tensor.dtype != dtype.as_datatype_enum:
        raise Refusal(Reason.WRONG_DTYPE, f"{_dtype_name(tensor.dtype)}, not {dtype.name}")
    sizes = _sizes(tensor.tensor_shape)
    if sizes is None or len(sizes) != len(shape) + 1 or sizes[1:] != shape:
        wanted = "".join(f", {n}" for n in shape)
        raise Refusal(Reason.WRONG_SHAPE, f"{sizes or 'unknown'}, not (n{wanted})")
    if sizes[0] == 0:
        raise Refusal(Reason.EMPTY_BATCH)
    count = math.prod(sizes)
    plain = np.dtype(dtype.as_numpy_dtype).newbyteorder("<")
    if tensor.tensor_content:
        if len(tensor.tensor_content) != count * plain.itemsize:
            raise Refusal(
                Reason.BROKEN_TENSOR,
                f"{len(tensor.tensor_content)} bytes for {count} numbers of {dtype.name}",
            )
        flat = np.frombuffer(tensor.tensor_content, plain).astype(dtype.as_numpy_dtype)
    else:
        flat = _expand(_held(tensor, dtype), count)
    return flat.reshape(sizes)


def _sizes(shape: Message) -> tuple[int, ...] | None:
    if shape.unknown_rank or len(shape.dim) > _MAX_RANK:
        return None
    sizes = tuple(dim.size for dim in shape.dim)
    return None if any(size < 0 for size in sizes) else sizes


def _held(tensor: Message, dtype: tf.DType) -> np.ndarray:
    """The values in the field that belongs to the dtype."""
    values = getattr(tensor, _VALUES[dtype])
    target = dtype.as_numpy_dtype
    if dtype in (tf.float32, tf.float64):
        return np.fromiter(values, target, len(values))
    integers = np.fromiter(values, np.int64, len(values))
    limits = np.iinfo(np.uint16 if dtype == tf.float16 else target)
    if len(integers) and (integers.min() < limits.min or integers.max() > limits.max):
        raise Refusal(Reason.BROKEN_TENSOR, f"values out of the range of {dtype.name}")
    cast = integers.astype(limits.dtype)
    return cast.view(np.float16) if dtype == tf.float16 else cast


def _expand(values: np.ndarray, count: int) -> np.ndarray:
    missing = count - len(values)
    if missing < 0 or (missing and count > REPEATED_NUMBERS):
        raise Refusal(Reason.BROKEN_TENSOR, f"{len(values)} values for {count} numbers")
    last = values[-1:] if len(values) else np.zeros(1, values.dtype)
    return np.concatenate([values, np.repeat(last, missing)])


def _dtype_name(number: int) -> str:
    try:
        return tf.as_dtype(number).name
    except TypeError:
        return f"dtype {number}"


def _message_classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        definition = file.message_type.add(name=message)
        for text in fields.split(","):
            name, number, *repeated, kind = text.split()
            field = definition.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    log = file.message_type[0]  # which kind of request it is shows even where that is empty
    log.oneof_decl.add(name="log_type")
    for field in log.field:
        if field.name != "log_metadata":
            field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


PredictionLog = _message_classes()["PredictionLog"]
