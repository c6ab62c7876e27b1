"""Quantities at the centres of balls that do not depend on the radius, each computed once."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import tensorflow as tf

from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.bounds.second_layer import SecondLayer
from keras_curv.network.network import Network
from keras_curv.numerics.intervals import Interval
from keras_curv.numerics.rounding import pre_activation_errors
from keras_curv.threats.box import box_reach
from keras_curv.threats.confined import Reach


class Centres:
    """The centres of balls around n examples.

    Args:
        network: that they are inputs of.
        x: the examples, `(n, dim)`.
        first: bounds the second layer's units by curvature; None: nothing does.
        proved: whether bounds on these balls are proved, or only estimated for a search.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.ones(2)] * 2, "relu")
        >>> centres = Centres(network, np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> centres.z[0][1], centres[1:].z[0][0]
        (array([4., 5.]), array([4., 5.]))
    """

    def __init__(
        self,
        network: Network,
        x: np.ndarray,
        first: FirstLayer | None = None,
        *,
        proved: bool = True,
    ):
        self.network, self.x, self.first, self.proved = network, x, first, proved
        self._all: tuple[Self, np.ndarray] | None = None
        self._pairs: dict[tuple[int, int], Any] = {}

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: np.ndarray | slice) -> Self:
        """Returns some of the centres, which share all that is known."""
        every, known = self._all or (self, np.arange(len(self)))
        some = self.part(self.x[rows])
        some._all = every, known[rows]
        some._pairs = self._pairs
        return some

    def part(self, x: np.ndarray) -> Self:
        """Returns new centres of the same kind."""
        return type(self)(self.network, x, self.first, proved=self.proved)

    @property
    def rows(self) -> np.ndarray:
        """Returns where these are among all, `(n,)`."""
        return np.arange(len(self)) if self._all is None else self._all[1]

    def recall(self, some: np.ndarray, rivals: np.ndarray) -> list[Any]:
        """Returns the values remembered for pairs of an example and a rival, or None."""
        return [self._pairs.get(pair) for pair in self._pairs_of(some, rivals)]

    def remember(self, some: np.ndarray, rivals: np.ndarray, values: Iterable[Any]) -> None:
        """Remembers where the searches of these pairs ended, to begin there on the next ball."""
        self._pairs.update(zip(self._pairs_of(some, rivals), values, strict=True))

    def _pairs_of(self, some: np.ndarray, rivals: np.ndarray) -> Iterable[tuple[int, int]]:
        return zip(self.rows[some].tolist(), rivals.tolist(), strict=True)

    @functools.cached_property
    def room(self) -> Reach | None:
        """The limits of the entries of x; None: there are none."""
        if self.network.limits is None:
            return None
        return box_reach(self.network, self.x)

    @property
    def z(self) -> list[np.ndarray]:
        """`z_1, …, z_{L−1}` at x."""
        return self._passed[0]

    @property
    def errors(self) -> list[np.ndarray]:
        """Bounds on the norms of their errors, `(n, 1)` each."""
        return self._passed[1]

    @functools.cached_property
    def _passed(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if self._all is not None:
            every, rows = self._all
            return [z[rows] for z in every.z], [error[rows] for error in every.errors]
        network, z = self.network, []
        hidden = [self.x]
        for affine, activation in zip(network.affines, network.activations, strict=False):
            z.append(hidden[-1] @ affine.kernel + affine.bias)
            hidden.append(activation.value(tf.constant(z[-1])).numpy())
        errors = pre_activation_errors(network.layer_norms, [tf.constant(a) for a in hidden])
        return z, [error.numpy()[:, None] for error in errors[:-1]]

    def units(self, radius: np.ndarray) -> Interval:
        """See `SecondLayer.bounds`; radii `(n,)`."""
        every, rows = self._all or (self, np.arange(len(self)))
        return every._second_layer.bounds(rows, radius)

    @functools.cached_property
    def _second_layer(self) -> SecondLayer:
        assert self.first is not None
        return SecondLayer(self.first, self.z[0], self.errors[0])
