"""Which output of a model is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from keras_curv.errors import InputError


class Output(NamedTuple):
    """One output of a model.

    Attributes:
        name: by which a client gets it; "" where it has none.
        dtype, shape: as far as they are known.
        tensor: in the model's graph.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    tensor: str

    def is_float_matrix(self) -> bool:
        """Returns whether it can be logits."""
        return self.dtype.is_floating and self.shape.rank in (2, None)


def logits_of(outputs: Iterable[Output]) -> str:
    """Returns the tensor of the one that can be logits: named so, or the only float matrix.

    Raises:
        InputError: the one named "logits" is none, or several could be.
    """
    outputs = list(outputs)
    named = [output for output in outputs if output.name == "logits"]
    matrices = [output for output in named or outputs if output.is_float_matrix()]
    if len(matrices) != 1:
        described = ", ".join(f"{o.dtype.name}{o.shape}" for o in outputs)
        raise InputError(
            f"the outputs ({described or 'none'}) must have one float matrix (batch, classes), "
            "or one named 'logits'"
        )
    return matrices[0].tensor
