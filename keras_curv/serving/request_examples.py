"""The examples of a logged request, for the model that takes them."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.data.tf_examples import parse_features
from keras_curv.errors import InputError
from keras_curv.reading.served_model import ServedModel
from keras_curv.rows.reason import Reason
from keras_curv.serving.prediction_log import (
    REPEATED_NUMBERS,
    UNNAMED,
    LoggedRequest,
    read_strings,
    read_tensor,
)
from keras_curv.serving.refusal import Refusal
from keras_curv.serving.rest_body import JsonTensor, is_base64


def examples_of(request: LoggedRequest, served: ServedModel) -> np.ndarray:
    """Returns the batch of a request, `(n, *input_shape)`, n ≥ 1; several inputs are joined.

    Args:
        request: whose inputs have the names of the signature's, or is one input without a name.
        served: the model.

    Raises:
        Refusal: a tensor does not fit the model, or its inputs are not of the same examples.
    """
    tensors = request.inputs
    if served.defaults is not None:
        return _of_tf_examples(next(iter(tensors.values())), served, served.defaults)
    shapes = served.inputs.shapes
    if UNNAMED in tensors:
        tensors = dict.fromkeys(shapes, tensors[UNNAMED])
    specs = served.inputs.specs
    arrays = {n: _numbers(tensors[n], specs[n].dtype, shape) for n, shape in shapes.items()}
    counts = sorted({len(each) for each in arrays.values()})
    if len(counts) > 1:
        raise Refusal(Reason.WRONG_SHAPE, f"inputs of {counts[0]} and of {counts[-1]} examples")
    return _joined(arrays, served) if len(arrays) > 1 else next(iter(arrays.values()))


def _joined(arrays: dict[str, np.ndarray], served: ServedModel) -> np.ndarray:
    try:
        return served.inputs.joined(arrays)
    except InputError as error:
        raise Refusal(Reason.BROKEN_TENSOR, str(error)) from error


def _numbers(tensor: Any, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(tensor, JsonTensor):
        return tensor.read(dtype, shape)
    return read_tensor(tensor, dtype, shape)


def _of_tf_examples(
    tensor: Any, served: ServedModel, defaults: Mapping[str, np.ndarray | None]
) -> np.ndarray:
    """Returns the features in a tensor of serialized tf.Examples."""
    records = _decoded(tensor) if isinstance(tensor, JsonTensor) else read_strings(tensor)
    shapes = served.inputs.shapes
    count, held = len(records) * sum(map(math.prod, shapes.values())), sum(map(len, records))
    if count > max(REPEATED_NUMBERS, held):  # defaults need no bytes
        raise Refusal(Reason.BROKEN_TENSOR, f"{held} bytes for {count} numbers")
    columns: dict[str, list[np.ndarray]] = {name: [] for name in shapes}
    for number, record in enumerate(records):
        try:
            found = parse_features(record, shapes, defaults, served.inputs.fixed)
        except ValueError as error:
            raise Refusal(Reason.BROKEN_TENSOR, f"tf.Example {number}: {error}") from error
        for name, column in columns.items():
            column.append(found[name])
    return _joined({name: np.stack(column) for name, column in columns.items()}, served)


def _decoded(tensor: JsonTensor) -> list[bytes]:
    """Returns what the base64 values of a list stand for."""
    if tensor.sizes is None or len(tensor.sizes) != 1 or not tensor.values:
        raise Refusal(Reason.WRONG_SHAPE, "no list of serialized tf.Examples")
    if not all(is_base64(value) and isinstance(value["b64"], str) for value in tensor.values):
        raise Refusal(Reason.WRONG_DTYPE, 'serialized tf.Examples are bytes, {"b64": "..."}')
    try:
        return [base64.b64decode(value["b64"], validate=True) for value in tensor.values]
    except (binascii.Error, ValueError) as error:
        raise Refusal(Reason.BROKEN_TENSOR, "what should be base64 is not") from error
