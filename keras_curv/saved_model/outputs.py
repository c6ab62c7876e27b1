"""Chooses the output of a model that is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from keras_curv.errors import InputError


class Output(NamedTuple):
    """One output of a model."""

    name: str  # by which a client gets it; "" where it has none
    dtype: tf.DType  # dtype, shape: as far as they are known
    shape: tf.TensorShape
    tensor: str  # in the model's graph

    def is_float_matrix(self) -> bool:
        """Returns whether it can be logits."""
        return self.dtype.is_floating and self.shape.rank in (2, None)


def logits_of(outputs: Iterable[Output], wanted: str | None = None) -> Output:
    """Returns the one that can be logits: named so, or the only float matrix.

    Args:
        outputs: of the model.
        wanted: the name of the one to take.

    Raises:
        InputError: the one named "logits", or the one that is wanted, is none; or several could be.
    """
    outputs = list(outputs)
    named = [output for output in outputs if output.name == (wanted or "logits")]
    matrices = [output for output in named or outputs if output.is_float_matrix()]
    if len(matrices) != 1 or (wanted and not named):
        described = ", ".join(f"{o.name} {o.dtype.name}{o.shape}".strip() for o in outputs)
        condition = f"must have a float matrix (batch, classes) named {wanted!r}"
        if wanted and not named:
            condition += "; output_name is one of these names, which may differ from its layer's"
        if not wanted:
            condition = "must have one float matrix (batch, classes), or one named 'logits'"
            if matrices:
                condition += "; say which by output_name"
            elif any(each.dtype.is_floating and (each.shape.rank or 0) > 2 for each in outputs):
                condition += "; Flatten makes a matrix of an image or a sequence"
        raise InputError(f"the outputs ({described or 'none'}) {condition}")
    return matrices[0]
