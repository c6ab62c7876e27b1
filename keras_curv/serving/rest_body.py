"""Bodies of predict requests to TF Serving's REST API, parsed as data.

A body is a JSON object with `instances`, a list with an entry for each example (row form), or with
`inputs`, tensors of whole batches (columnar form). An entry or `inputs` is a value where the model
has one input, or an object of values by the names of inputs. `signature_name` may choose a
signature. Other names are ignored, as the server ignores them.

JSON says nothing of dtypes: a number is read as that of the signature, and must be in its range.

Reference: tensorflow.org/tfx/serving/api_rest, and `json_tensor.cc` in tensorflow_serving/util.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.files import named_once
from keras_curv.rows.reason import Reason
from keras_curv.serving.prediction_log import UNNAMED, LoggedRequest, require_batch
from keras_curv.serving.refusal import Refusal

_MOST_PARTS = 2**20  # lists and objects of a body; up to 400 bytes of memory each
_NUMBERS = {int, float}


class JsonTensor(NamedTuple):
    """A tensor as JSON has it."""

    # its shape; None where lists beside each other differ in length or in depth
    sizes: tuple[int, ...] | None
    values: list  # in order, row by row
    entries: int  # how many it has: examples, if it is a batch

    def read(self, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the batch of examples, `(n, *shape)`, n ≥ 1, of `dtype`.

        Raises:
            Refusal: it is no such batch, or a value is not a number of this dtype.
        """
        if self.sizes is None:
            raise Refusal(Reason.WRONG_SHAPE, "lists of several lengths or depths")
        require_batch(self.sizes, shape)
        found = set(map(type, self.values))
        if dtype.is_bool and found == {bool}:
            return np.array(self.values).reshape(self.sizes)
        if not found <= _NUMBERS or dtype.is_bool:
            kinds = {str: "text", dict: "an object", bool: "true or false", type(None): "null"}
            kind = next((text for kind, text in kinds.items() if kind in found), "numbers")
            if any(map(is_base64, self.values)):
                kind = "base64"
            raise Refusal(Reason.WRONG_DTYPE, f"{kind}, not {dtype.name}")
        if dtype.is_integer:
            if float in found:
                raise Refusal(Reason.WRONG_DTYPE, f"a number with a fraction, not {dtype.name}")
            within = dtype.min <= min(self.values) and max(self.values) <= dtype.max
            x = np.array(self.values, dtype.as_numpy_dtype) if within else None
        else:
            x = _floats(self.values, dtype)
        if x is None:
            raise Refusal(Reason.BROKEN_TENSOR, f"values out of the range of {dtype.name}")
        return x.reshape(self.sizes)


def parse_body(line: bytes, number: int) -> LoggedRequest:
    """Parses the body of one request.

    Args:
        line: of a file of JSON lines, from anyone.
        number: of the line in its file, from 0.

    Raises:
        Refusal: it is no such body.

    Example:
        >>> parse_body(b'{"instances": [[0, 1.5], [2, 3]]}', 0).inputs
        {None: JsonTensor(sizes=(2, 2), values=[0, 1.5, 2, 3], entries=2)}
    """
    place = f"line {number + 1}"
    try:
        signature, inputs = _tensors(_parsed(line))
    except ValueError as error:
        raise Refusal(Reason.NOT_A_LOG, f"{place}: {error}") from error
    return LoggedRequest(inputs, "", None, "", signature, 0, place)


def _parsed(line: bytes) -> Any:
    """Returns a line of JSON; ValueError where it is none, or would take much memory."""
    if line.count(b"[") + line.count(b"{") > _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS} lists and objects")
    try:
        return json.loads(
            line.decode("utf-8"), object_pairs_hook=named_once, parse_constant=_no_number
        )
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")


def _tensors(body: Any) -> tuple[str, dict[str | None, JsonTensor]]:
    """Returns the signature ("" for the default one) and the inputs of a body."""
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise ValueError('it is no object with either "instances" or "inputs"')
    signature = body.get("signature_name", "")
    if not isinstance(signature, str):
        raise ValueError('"signature_name" is no text')
    columns = body["inputs"] if "inputs" in body else _columns(body["instances"])
    if not isinstance(columns, dict) or is_base64(columns):
        columns = {UNNAMED: columns}
    return signature, {name: _tensor(value) for name, value in columns.items()}


def _columns(instances: Any) -> Any:
    """Returns the entries of the row form by input, or as they are where they name none."""
    if not isinstance(instances, list):
        raise ValueError('"instances" is no list')
    named = [entry for entry in instances if isinstance(entry, dict) and not is_base64(entry)]
    if not named:
        return instances
    if any(entry.keys() != named[0].keys() for entry in named) or len(named) < len(instances):
        raise ValueError("the instances name different inputs")
    return {name: [entry[name] for entry in named] for name in named[0]}


def is_base64(value: Any) -> bool:
    """Returns whether a value stands for bytes."""
    return isinstance(value, dict) and list(value) == ["b64"]


def _tensor(value: Any) -> JsonTensor:
    """Returns a value as a tensor, level by level, so that no depth is too deep."""
    count = len(value) if isinstance(value, list) else 1
    sizes: list[int] = []
    level = [value]
    while level and type(level[0]) is list:
        sizes.append(len(level[0]))
        if set(map(type, level)) != {list} or set(map(len, level)) != {sizes[-1]}:
            return JsonTensor(None, [], count)
        level = list(itertools.chain.from_iterable(level))
    ragged = list in set(map(type, level))
    return JsonTensor(None if ragged else tuple(sizes), level, count)


def _floats(values: Sequence[float], dtype: tf.DType) -> np.ndarray | None:
    """Returns the closest numbers of a dtype; None where one is out of range."""
    try:
        with np.errstate(over="ignore"):
            x = np.array(values, np.float64).astype(dtype.as_numpy_dtype)
    except OverflowError:  # an integer that float64 does not hold
        return None
    return x if np.isfinite(x).all() else None
