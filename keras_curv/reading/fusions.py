"""Where TensorFlow runs two ops as one, and as another function: such graphs are refused.

It does with oneDNN, the default on x86.

**Leaky ReLU.** Its optimizer takes `max(y, c y)` for a leaky ReLU of slope c; for c > 1 that is the
smaller of the two. Whatever it finds to be a multiple is one as a function of the input. So two
flows that differ from all multiples at some sample are safe, and others are refused, but for
those that `contractions.py` reads as the leaky ReLU that they are. No difference counts that is
below 1e-9 of the terms that make it, so that rounding is not taken for one.

**Padding.** A padding before a `Conv2D` is made by the convolution, but not one of channels: where
filters see groups of channels, they are then shared out among those that were there before.
"""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import node_def_pb2

from keras_curv.errors import InputError
from keras_curv.reading.flow import Flow
from keras_curv.reading.sources import ancestors

_ROUNDING = 1e-9
_TOGETHER = {"padding of channels", "groups of channels"}


def refuse_multiples(one: Flow, other: Flow) -> None:
    """Refuses the larger of two flows of one shape of which one may be the other times c > 0.

    Raises:
        InputError: there is no sample that tells.
    """
    with np.errstate(all="ignore"):
        (y, y_size), (z, z_size) = _sampled(one), _sampled(other)
        at = np.unravel_index(np.argmax(np.where(np.isfinite(y), np.abs(y), -1.0)), y.shape)
        factor = z[at] / y[at]
        apart = np.abs(z - factor * y) > _ROUNDING * (z_size + np.abs(factor) * y_size)
        apart |= (np.abs(y) <= _ROUNDING * y_size) & (np.abs(z) > _ROUNDING * z_size)
    if not apart.any() and not factor < 0.0 and factor != 1.0:
        raise InputError(
            f"the maximum of a tensor and {factor:.6g} times the same, which TensorFlow may take "
            "for something else; use a leaky ReLU, or a ReLU"
        )


def _sampled(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """Values of the flow at the samples, `(samples, size)`, and the sums of their terms' sizes."""
    for source in ancestors(flow.sources):
        _ = source.samples  # each is made of those before it
    base = np.concatenate([source.samples for source in flow.sources], axis=1)
    if flow.kernel is None:
        terms = base[:, flow.order] * flow.scale.value
        sizes = np.abs(terms)
    else:
        terms, sizes = base @ flow.kernel.value, np.abs(base) @ abs(flow.kernel.value)
    return terms + flow.shift.value, sizes + np.abs(flow.shift.value)


class Paddings:
    """Whether a graph has both a padding of channels and a convolution in groups.

    Where they stand does not matter: the optimizer moves ops.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def see(self, node: node_def_pb2.NodeDef, arguments: list, result: object) -> None:
        """Takes note of an op, of what it was given and what became of it.

        Raises:
            InputError: it is the second of the two.
        """
        if node.op in ("Pad", "PadV2") and isinstance(result, Flow):
            if result.shape[-1] != arguments[0].shape[-1]:
                self._seen.add("padding of channels")
        elif node.op == "Conv2D" and arguments[1].shape[2] != arguments[0].shape[-1]:
            self._seen.add("groups of channels")
        if self._seen == _TOGETHER:
            raise InputError(
                "a padding of channels and a convolution in groups of them are not supported in "
                "one model: TensorFlow may share out other channels; use Concatenate"
            )
