"""What was read of a model, in lines for people."""

from __future__ import annotations

import decimal
from collections.abc import Iterator

from keras_curv.errors import visible
from keras_curv.network.affine import Affine
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.reading.served_model import ServedModel

_UP = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)


def outline(served: ServedModel) -> Iterator[str]:
    """Yields lines that say what was read of a model: inputs, every layer, the head.

    Norms are proved bounds of spectral norms, rounded up to six digits.

    Example:
        >>> from keras_curv.reading.served_model import read
        >>> for line in list(outline(read("saved_models/digits")))[4:7]:
        ...     print(line)
        map 1: 64 → 256, dense, norm ≤ 27.6694, as stored
        activation 1: softplus
        map 2: 256 → 10, dense, norm ≤ 2.92109, as stored
    """
    network = served.network
    yield f"model: {visible(served.source)}"
    if served.signature:
        yield f"signature: {visible(served.signature)}"
    if served.cut:
        yield f"cut: behind {visible(served.cut)} ({visible(served.cut_tensor)})"
    for name, spec in served.inputs.specs.items():
        shape = tuple(served.inputs.shapes[name])
        count = served.inputs.counts.get(name)
        how = f", one of {count} categories" if count else ""
        how += ", held fixed" if name in served.inputs.fixed else ""
        yield f"input: {visible(name)}, {shape}, {spec.dtype.name}{how}"
    yield f"the network takes {network.dim} numbers, gives {network.classes}"
    for number, affine in enumerate(network.affines, 1):
        yield f"map {number}: {_described(affine)}"
        if number < network.depth:
            yield f"activation {number}: {network.activations[number - 1].name}"
    yield f"head: {served.head}"
    total = sum(_stored(affine) + affine.fan_out for affine in network.affines)
    yield f"numbers: {total:,}"


def _described(affine: Affine) -> str:
    kind = f"sparse, {_stored(affine):,} entries" if affine.is_sparse else "dense"
    folded = "as stored"
    if affine.kernel_error or affine.bias_error:
        folded = (
            f"folded, kernel to within {affine.kernel_error:.1e}, "
            f"bias to within {affine.bias_error:.1e}"
        )
    norm = float(_UP.create_decimal(affine.norm))
    return f"{affine.fan_in} → {affine.fan_out}, {kind}, norm ≤ {norm:g}, {folded}"


def _stored(affine: Affine) -> int:
    return affine.kernel.nnz if isinstance(affine, SparseAffine) else affine.kernel.size
