"""What flows are affine in: the input, and what activations make of flows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine

_SAMPLES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """What flows are affine in: the input, or what an activation makes of a flow.

    Attributes:
        size: entries of an example.
        depth: activations on the longest way from the input to it, its own included.
        sources: that it is made of; none for the input.
        affine: the map of their outputs, one after the other; None for the input.
        reads: which entries of these the map may read.
        sigma: the activation; None for the logits, which have none.
    """

    size: int
    depth: int = 0
    sources: tuple[Source, ...] = ()
    affine: Affine | None = None
    reads: np.ndarray | None = None
    sigma: Activation | None = None

    @functools.cached_property
    def samples(self) -> np.ndarray:
        """Its values at a few inputs of all sizes, `(samples, size)`; NaN where they overflow."""
        if self.affine is None:
            sizes = np.logspace(-1.0, 4.0, _SAMPLES)[:, None]
            return sizes * np.random.default_rng(0).normal(size=(_SAMPLES, self.size))
        base = np.concatenate([source.samples for source in self.sources], axis=1)
        z = base @ self.affine.kernel + self.affine.bias
        return z if self.sigma is None else self.sigma.value(tf.constant(z)).numpy()


def ancestors(sources: Iterable[Source]) -> list[Source]:
    """These sources and all that they are made of, each after those; each once."""
    found: dict[Source, None] = {}
    stack = [(source, False) for source in sources]
    while stack:
        source, ready = stack.pop()
        if ready:
            found[source] = None
        elif source not in found:
            stack.append((source, True))
            stack += [(each, False) for each in source.sources if each not in found]
    return list(found)
