"""The choice of hidden layers that are bounded by passes back to the input, or forward."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.linear.bounds.receptive_fields import Field, fields_of
from keras_curv.curvature.liplt import lipschitz_bounds, pre_activation_lipschitz
from keras_curv.network.network import Network

# Results by network and work, because several methods ask for the same ones.
_known: weakref.WeakKeyDictionary[Network, dict[float, list[list[Field]]]] = (
    weakref.WeakKeyDictionary()
)
_NUMBERS = 2**26  # that coupled passes back of an example go through, of both ends of all units
WORK = 2.0**34  # largest number of multiplications per example for passes back of hidden layers


class Plan(NamedTuple):
    """The plan by which each hidden layer is bounded: by passes back to the input, or forward.

    A pass for each end of each unit is sharp, and its cost grows with the square of the width. With
    sparse maps, as in convolutions, it goes only through the unit's receptive field. The cheapest
    layers are passed back as long as the work allows it. For the others, intervals come from those
    of the layer before and from that layer's movement. Passes of margins may then stop at any layer
    on their way.

    Example:
        >>> Plan.of(Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu"))
        Plan(back=(0,), before=[], pre=[], fields=(), passed=0)
    """

    back: tuple[int, ...]  # the hidden layers, from 0, that are bounded by passes back
    # Lipschitz constants of x ↦ a_0, …, a_{L−2}; empty if all layers are bounded back
    before: list[float]
    pre: list[float]  # Lipschitz constants of x ↦ z_1, …, z_{L−1}; likewise
    # the receptive fields of each hidden layer from the first; empty without sparse maps
    fields: Sequence[list[Field]] = ()
    passed: int = 0  # how many hidden layers from the first are passed back through these

    @property
    def bounded_forward(self) -> int:
        """Returns the number of hidden layers that are bounded forward."""
        passed = {*self.back, *range(self.passed)}
        return max(0, len(self.pre) - len(passed))

    @classmethod
    def of(cls, network: Network) -> Plan:
        """Returns the plan for a network; a Lipschitz constant that overflows is infinite."""
        hidden = network.affines[:-1]
        passes = np.cumsum([0.0, *(affine.pass_work for affine in hidden)])
        costs = [2.0 * affine.fan_out * work for affine, work in zip(hidden, passes, strict=False)]
        sparse = any(affine.is_sparse for affine in network.affines)
        dense = range(next((i for i, each in enumerate(hidden) if each.is_sparse), len(hidden)))
        cheapest = sorted(dense, key=costs.__getitem__)
        within = np.cumsum([costs[index] for index in cheapest]) <= WORK
        back = tuple(sorted(np.array(cheapest, int)[within].tolist()))
        if len(back) == len(hidden):
            return cls(back, [], [])
        with np.errstate(over="ignore", invalid="ignore"):
            before = [1.0, *lipschitz_bounds(network)]
            pre = pre_activation_lipschitz(network)
        fields = _fields(network) if sparse else []
        return cls(back, before, pre, fields, len(fields))

    @classmethod
    def together(cls, network: Network) -> Plan:
        """Returns the plan of bounding units together: passes back only where signs are open, and
        only of layers for which they are not too long; of later ones movements are bounded."""
        fields = _fields(network)
        numbers = np.cumsum([sum(field.numbers for field in layer) for layer in fields])
        return cls((), [], [], fields, int((numbers <= _NUMBERS).sum()))


def _fields(network: Network) -> list[list[Field]]:
    """Returns the fields within `WORK`, which takes seconds for a large network, once for each."""
    kept = _known.setdefault(network, {})
    if WORK not in kept:
        kept[WORK] = fields_of(network, WORK)
    return kept[WORK]
