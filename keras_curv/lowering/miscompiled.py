"""Refuses graphs of which TensorFlow runs two ops as one, and as another function.

oneDNN does most of it, the default on x86. The places of ops do not matter here, as the optimizer
moves them.

**Leaky ReLU.** The optimizer takes `max(y, c y)` for a leaky ReLU of slope c; for c > 1 that is the
smaller of the two. Whatever it finds to be a multiple is one as a function of the input. So two
flows that differ from all multiples at some sample are safe, and others are refused, but for
those that `contractions.py` reads as the leaky ReLU that they are. No difference counts that is
below 1e-9 of the terms that make it, so that rounding is not taken for one.

**Outputs.** It forgets which output of an op it means: the largest entry of `f(b)`, f rising and
a, b the parts of a split, becomes f of the largest of a, and `max(b, c a)` a leaky ReLU of either.
Without oneDNN too.

**Padding.** A padding before a `Conv2D` is made by the convolution, but not one of channels: where
filters see groups of channels, they are then shared out among those that were there before.

**Columns.** Of an image of one channel, a `Conv2D` that strides along rows only, and leaves one
column, reads memory that is not its own, for two examples or more (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering.chain import ancestors
from keras_curv.lowering.flow import Flow
from keras_curv.saved_model.graph.nodes import data_inputs
from keras_curv.saved_model.limits import charge_entries

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
        times = f"{factor:.6g} times" if np.isfinite(factor) else "what may be a multiple of"
        raise InputError(
            f"the maximum of a tensor and {times} the same, which TensorFlow may take for "
            "something else; use a leaky ReLU, or a ReLU"
        )


def _sampled(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """Returns the flow's values at the samples, `(samples, size)`, and the terms' total sizes."""
    for source in ancestors(flow.sources):
        _ = source.samples  # each is made of those before it
    base = np.concatenate([source.samples for source in flow.sources], axis=1)
    charge_entries(2 * len(base), flow.stored, "samples of a maximum")
    if flow.kernel is None:
        terms = base[:, flow.order] * flow.scale.value
        sizes = np.abs(terms)
    else:
        terms, sizes = base @ flow.kernel.value, np.abs(base) @ abs(flow.kernel.value)
    return terms + flow.shift.value, sizes + np.abs(flow.shift.value)


def refuse_outputs(nodes: Iterable[NodeDef]) -> None:
    """Refuses a graph with a maximum that reads any output of an op but the first.

    Args:
        nodes: as the server has them, those that count.

    Raises:
        InputError: it has both.
    """
    nodes = list(nodes)
    constants = {node.name for node in nodes if node.op == "Const"}
    largest, later = None, None
    for node in nodes:
        inputs = data_inputs(node)
        among = node.op == "Maximum" and not constants.intersection(inputs)
        if among or node.op in ("Max", "MaxPool"):
            largest = largest or node
        if any(tensor.partition(":")[2] not in ("", "0") for tensor in inputs):
            later = later or node
    if largest is not None and later is not None:
        raise InputError(
            f"the maximum {largest.name!r} may be given the wrong part: {later.name!r} reads "
            "another output of an op than its first, and TensorFlow may take the first; use slices "
            "instead of a split"
        )


def refuse_column(strides: tuple[int, int], made: tuple[int, int, int]) -> None:
    """Refuses a convolution of one channel that leaves one column of an image; see the module.

    Args:
        strides: of the two axes.
        made: the shape of the convolved image.

    Raises:
        InputError: it is one.
    """
    (down, across), (height, width, _) = strides, made
    if down == 1 < across and height > 1 == width:
        raise InputError(
            f"a convolution of one channel with strides (1, {across}) that leaves one column, "
            "which TensorFlow computes wrongly for several examples; crop its input to the columns "
            "that it sees, and stride by (1, 1)"
        )


class Paddings:
    """Whether a graph has both a padding of channels and a convolution in groups."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def see(self, node: NodeDef, arguments: list, result: object) -> None:
        """Takes note of an op, of what it was given and what became of it.

        Raises:
            InputError: it is the second of the two.
        """
        if node.op in ("Pad", "PadV2") and isinstance(result, Flow):
            if result.shape[-1] != arguments[0].shape[-1]:
                self._seen.add("padding of channels")
        elif (
            node.op in ("Conv2D", "DilatedConv2D")
            and arguments[1].shape[2] != arguments[0].shape[-1]
        ):
            self._seen.add("groups of channels")
        if self._seen == _TOGETHER:
            raise InputError(
                "a padding of channels and a convolution in groups of them are not supported in "
                "one model, as TensorFlow may share out other channels; leave one of them out"
            )
