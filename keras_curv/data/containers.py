"""Examples in the containers that people keep them in: tf.data, tables of pandas, bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError

Examples = np.ndarray | Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

_EXACT = 2**53  # the largest integer up to which float64 has all


def of_dataset(dataset: tf.data.Dataset, shapes: Shapes) -> tuple[Examples, np.ndarray | None]:
    """Returns the examples of a dataset and their labels, if it has them.

    Args:
        dataset: of examples or of batches of them: x alone, `(x, y)` or `(x, y, weight)`, as for
            `model.fit`; x is a tensor, or name → tensor.
        shapes: name of each input of the model → shape of one example.

    Raises:
        InputError: it does not end, is empty, or has other elements.

    Example:
        >>> pairs = tf.data.Dataset.from_tensor_slices((np.eye(3), [0, 1, 2])).batch(2)
        >>> x, y = of_dataset(pairs, {"x": (3,)})
        >>> x.shape, y.tolist()
        ((3, 3), [0, 1, 2])
    """
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise InputError("the dataset has no end; give dataset.take(n)")
    spec = dataset.element_spec
    labelled = isinstance(spec, tuple)
    if labelled and not 1 <= len(spec) <= 3:
        raise InputError(f"a dataset has x, (x, y) or (x, y, weight). Received: {len(spec)} parts")
    first = spec[0] if labelled else spec
    name, part = next(iter(first.items())) if isinstance(first, Mapping) else (None, first)
    if not isinstance(part, tf.TensorSpec):
        raise InputError(f"a dataset must have tensors, or tensors by name. Received: {first}")
    shape = shapes.get(name, ()) if name is not None else next(iter(shapes.values()))
    if len(shapes) > 1 and name is None:
        shape = (sum(int(np.prod(each)) for each in shapes.values()),)
    if part.shape.rank == len(shape):
        dataset = dataset.batch(1024)
    elements: list[Any] = [
        element if labelled else (element,) for element in dataset.as_numpy_iterator()
    ]
    if not elements:
        raise InputError("the dataset has no examples")
    parts = [element[0] for element in elements]
    x: Examples
    if isinstance(first, Mapping):
        x = {key: np.concatenate([part[key] for part in parts]) for key in first}
    else:
        x = np.concatenate(parts)
    labels = [element[1] for element in elements] if len(elements[0]) > 1 else []
    return x, np.concatenate(labels) if labels else None


def is_table(x: Any) -> bool:
    """Returns whether this is a DataFrame, of pandas or of a library that is like it."""
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def of_table(table: Any, shapes: Shapes) -> Examples:
    """Returns the examples of a DataFrame, one a row.

    Of a model with several inputs its columns are the inputs, each of one number, by name; of a
    model with one input they are its entries, in their order.

    Args:
        table: the DataFrame.
        shapes: as in `of_dataset`.

    Raises:
        InputError: a column does not hold numbers, or only numbers that float64 cannot hold.
    """
    columns = {}
    if not len(table.columns):
        raise InputError("the table has no columns")
    for name in table.columns:
        column = table[name].to_numpy()
        if column.dtype.kind not in "fiub":
            raise InputError(
                f"the column {name!r} is of the type {table[name].dtype}, and not of numbers"
            )
        columns[name] = column.astype(np.uint8) if column.dtype.kind == "b" else column
    if len(shapes) > 1:
        known = {name: (len(table), *shapes.get(name, ())) for name in columns}
        return {
            name: column.reshape(known[name]) if column.size == np.prod(known[name]) else column
            for name, column in columns.items()
        }
    kind = np.result_type(*columns.values())
    for name, column in columns.items():
        if kind.kind == "f" and column.dtype.kind in "iu" and np.any(np.abs(column) > _EXACT):
            raise InputError(f"the column {name!r} has integers beyond 2⁵³, which no float64 holds")
    return np.stack([column.astype(kind) for column in columns.values()], axis=1)


def plain(x: Any) -> np.ndarray:
    """Returns an array of numbers that NumPy itself has a type for.

    Raises:
        InputError: it is masked.

    Example:
        >>> plain(tf.constant([1.5], tf.bfloat16))
        array([1.5], dtype=float32)
    """
    if np.ma.isMaskedArray(x):
        raise InputError("x is a masked array: what is masked has no value; give x.filled(value)")
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
