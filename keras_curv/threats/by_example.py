"""Directions that depend on the example: its brightness and its contrast.

A basis may be given by names. Its columns are then those of each example x by itself,

    brightness   ξ is added to all entries        1
    contrast     x + ξ (x − mean of x)            x − mean of x

so that a factor 1 + ξ of the contrast is a change of length |ξ|. `ξ ↦ f(x + Bξ)` is a network of ξ
alone, another one for each example: its first kernel is Bᵀ W and its bias x W + b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError, require_one_of
from keras_curv.network.affine import Affine
from keras_curv.network.network import Evaluation, FeedForward, Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.threats.absorbed import product_in
from keras_curv.threats.arrays import LARGEST, numbers, require_basis

DIRECTIONS = ("brightness", "contrast")


def basis_of(given: Any) -> np.ndarray:
    """Returns a basis as a matrix, or the names of its directions as an array of texts.

    Raises:
        InputError: it is neither, or a direction is unknown or there twice.

    Example:
        >>> basis_of("contrast"), basis_of([[1.0], [2.0]]).shape
        (array(['contrast'], dtype='<U8'), (2, 1))
    """
    names = np.array([given] if isinstance(given, str) else given, dtype=object).reshape(-1)
    if not len(names) or not all(isinstance(name, str) for name in names):
        matrix = numbers(given, "basis")
        require_basis(matrix)
        return matrix
    for name in names.tolist():
        require_one_of(name, DIRECTIONS, "a direction of basis")
    if len(set(names)) < len(names):
        raise InputError(f"basis has a direction twice. Received: {', '.join(names)}")
    return names.astype(str)


def is_by_example(basis: np.ndarray | None) -> bool:
    """Returns whether a basis has names, so that it is made of each example."""
    return basis is not None and basis.dtype.kind == "U"


def directions(names: Sequence[str], x: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the directions of an example, `(dim, q)`, and a bound on the norm of their error.

    Args:
        names: some of `DIRECTIONS`.
        x: the example, `(dim,)`, float64.

    Raises:
        InputError: a number is so large that the sum may overflow.

    Example:
        >>> directions(["brightness", "contrast"], np.array([1.0, 3.0]))[0]
        array([[ 1., -1.],
               [ 1.,  1.]])
    """
    if not np.abs(x).max() <= LARGEST:
        largest = np.abs(x).max()
        raise InputError(f"inputs must be at most {LARGEST:g} in size. Received: {largest:g}")
    mean = x[0] if (x == x[0]).all() else math.fsum(x) / len(x)
    columns = {"brightness": np.ones(len(x)), "contrast": x - mean}
    basis = np.stack([columns[name] for name in names], axis=1)
    # Sum and quotient are rounded once each, and each difference once; equal numbers have no error.
    size = 2.0 * math.sqrt(len(x)) * abs(mean) + norm_bound(columns["contrast"])
    exact = "contrast" not in names or not columns["contrast"].any()
    return basis, 0.0 if exact else up(2.0 * UNIT * size + 4.0 * TINY * len(x))


def moved_along(names: Sequence[str], x: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """Returns `x + B(x) ξ`, `(n, dim)`, about; of ξ the first entries count."""
    pairs = zip(x, xi[:, : len(names)], strict=True)
    return np.stack([one + directions(names, one)[0] @ move for one, move in pairs])


def network_around(network: Network, names: Sequence[str], x: np.ndarray) -> Network:
    """Returns the network of ξ, and of the inputs that a property has added.

    With Σ of d products in any order, x W + b is off by at most `γ_{d+2} (‖x‖ ‖W‖_F + ‖b‖)`, and by
    `‖ΔW‖ ‖x‖ + ‖Δb‖` of folding; for Bᵀ W see `absorbed.product_in`.

    Args:
        network: of x, and then of the inputs of a property.
        names: of directions.
        x: the example, `(dim,)`, float64.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], ())
        >>> around = network_around(network, ["contrast"], np.array([1.0, 3.0]))
        >>> around.affines[0].kernel, around.affines[0].bias
        (array([[-1.,  1.]]), array([1., 3.]))
    """
    first, dim = network.affines[0], len(x)
    basis, off = directions(names, x)
    kernel = first.kernel if dim == first.fan_in else first.kernel[:dim]
    product, lost = product_in(basis, kernel)
    size, weights = norm_bound(x), norm_bound(kernel)
    added = network.dim - dim
    folded = first.kernel_error * (norm_bound(basis) + bool(added))
    kernel_error = up(folded + lost + off * weights) if basis.any() else folded
    rounded = gamma(dim + 4) * (size * weights + norm_bound(first.bias))
    rounded += 8.0 * TINY * dim * first.fan_out * (1.0 + size + weights)
    bias_error = up(rounded + first.kernel_error * size + first.bias_error)
    rows = [product, first.kernel[dim:]] if added else [product]
    moved = Affine(np.concatenate(rows), x @ kernel + first.bias, kernel_error, bias_error)
    parts = [moved, *network.affines[1:]], network.activations
    if not added:
        return Network(*parts)
    pinned, direct = np.arange(moved.fan_in) >= len(names), network.direct
    if direct is not None:
        direct = np.concatenate([np.zeros((len(names), network.classes)), direct[dim:]])
    return PinnedNetwork(*parts, pinned, direct)


class Around(FeedForward):
    """`(ξ, x) ↦ f(x + B(x) ξ)` for many examples x at once: for searches, not for proofs.

    Args:
        network: f, of x and then of the inputs of a property.
        names: of directions.
        dim: entries of x.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], ())
        >>> u = tf.constant([[0.5, 1.0, 3.0]], tf.float64)
        >>> Around(network, ["contrast"], 2).logits(u).numpy()
        array([[0.5, 3.5]])
    """

    def __init__(self, network: FeedForward, names: Sequence[str], dim: int):
        self._network, self._names, self._dim = network, names, dim
        self.activations = network.activations
        self.sizes = len(names) + network.dim, *network.sizes[1:]

    def weights(self, dtype: tf.DType) -> tuple[list, list[tf.Tensor]]:
        """See `FeedForward`; the first kernel is that of f."""
        return self._network.weights(dtype)

    def _basis(self, u: tf.Tensor) -> tf.Tensor:
        """Returns B(x), with 0 for the inputs of a property, `(n, q, network's dim)`."""
        own = u[:, len(self._names) :][:, : self._dim]
        columns = {
            "brightness": tf.ones_like(own),
            "contrast": own - tf.reduce_mean(own, axis=1, keepdims=True),
        }
        still = [[0, 0], [0, 0], [0, self._network.dim - self._dim]]
        return tf.pad(tf.stack([columns[name] for name in self._names], axis=1), still)

    def _moved(self, u: tf.Tensor) -> tf.Tensor:
        """Returns x + B(x) ξ, and the inputs of a property."""
        count = len(self._names)
        return u[:, count:] + tf.einsum("nq,nqd->nd", u[:, :count], self._basis(u))

    def forward(self, x: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See `FeedForward`."""
        return self._network.forward(self._moved(x))

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """See `FeedForward`."""
        return self._network.logits(self._moved(x))

    def margins(
        self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """See `FeedForward`."""
        return self._network.margins(self._moved(x), label, rivals)

    def evaluate(self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor) -> Evaluation:
        """See `FeedForward`; gradients are those of ξ, and 0 at x."""
        found = self._network.evaluate(self._moved(x), label, rivals)
        along = tf.einsum("nrd,nqd->nrq", found.gradient, self._basis(x))
        still = [[0, 0], [0, 0], [0, self._network.dim]]
        return found._replace(gradient=tf.pad(along, still))
