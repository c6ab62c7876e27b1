"""Curvature behind a Lipschitz constant: section 29."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, up
from keras_curv_check.confined import minorant_left
from keras_curv_check.curvature import Curvature
from keras_curv_check.files import NetworkFile
from keras_curv_check.network import Network, telescoped
from keras_curv_check.norms import Matrix

_MOST_UNITS = 2**12  # whose products are formed


class Stages:
    """A network that is cut behind its last layer with kinks, and smooth from there on.

    Args:
        network: the network.
        depth: layers before the cut.
    """

    def __init__(self, network: Network, depth: int):
        self._layer, self._network = network.layers[depth - 1], network
        file = network.file
        parts = file.maps[depth:], file.activations[depth:], len(self._layer), ""
        self._head, self._depth = Network(NetworkFile(*parts)), depth

    @functools.cached_property
    def _curvature(self) -> Curvature:
        return Curvature(self._head)

    @classmethod
    def of(cls, network: Network) -> Stages | None:
        """Cuts a network; None if it has no kinks, or none of its layers is smooth behind them."""
        kinks = [any(sigma.bends is None for sigma in layer) for layer in network.layers]
        depth = len(kinks) - kinks[::-1].index(True) if any(kinks) else 0
        return cls(network, depth) if 0 < depth < len(kinks) else None

    @functools.cached_property
    def _lipschitz(self) -> arb:
        """Bounds the Lipschitz constant of the features from above."""
        network, depth = self._network, self._depth
        guard = network.steepest[depth - 1] * network.lipschitz[depth - 1]
        if len(self._layer) > _MOST_UNITS:
            return guard
        unit = Matrix(np.eye(len(self._layer)), ZERO)
        parts = network.expanded(unit, depth)
        bound = telescoped(parts, network.lipschitz, lambda one: one.norm())
        return arb(min(up(bound), up(guard)))

    def features(self, pre: Sequence[Vector]) -> Vector:
        """Returns the features at x, where pre-activations of the network are these."""
        return [s.value(z) for s, z in zip(self._layer, pre[self._depth - 1], strict=True)]

    def left(self, point: Vector, features: Vector, radius: arb, label: int, rival: int) -> arb:
        """Returns what the head's curvature leaves of a margin, by the gradient at one point.

        Args:
            point: among the features.
            features: at x.
            radius: around x.
            label, rival: classes.
        """
        kappa, radius = self._curvature(label, rival), self._lipschitz * radius
        _, slopes, (logits,) = self._head.forward([point])
        (gradient,) = self._head.gradients(slopes, [0], [(label, rival)])
        moved = [a - b for a, b in zip(point, features, strict=True)]
        margin = logits[label] - logits[rival]
        return minorant_left(margin, gradient, moved, kappa, radius, None)
