"""The affine map between two layers of units, whose weights are those of the model at any moment.

A source stands in the layer of its depth, beside the others of that depth. What is read of it
further on is carried there by units with the identity, as in `lowering/chain.py`: only those
entries, and only so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.training.trainable.graph.flows import Flow, Source, layers_in
from keras_curv.training.trainable.graph.layer_rules import KEEPS_ENTRIES, LOCAL, Paths, as_float32

_Function = Callable[[tf.Tensor], tf.Tensor]


class Units(NamedTuple):
    """Entries of a source that stand in a layer; None: all."""

    source: Source
    entries: np.ndarray | None = None

    @property
    def size(self) -> int:
        """The number of units."""
        return self.source.size if self.entries is None else len(self.entries)

    def value(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the source's value, 0 at entries that do not stand here."""
        if self.entries is not None:
            place = np.full(self.source.size, self.size)
            place[self.entries] = np.arange(self.size)
            rows = tf.gather(tf.pad(rows, [[0, 0], [0, 1]]), place, axis=1)
        return tf.reshape(rows, (-1, *self.source.shape))

    def picked(self, rows: tf.Tensor, before: Units) -> tf.Tensor:
        """Returns these entries of those that stand in the layer before."""
        if self.entries is None or self.size == before.size:
            return rows
        known = np.arange(before.size) if before.entries is None else before.entries
        return tf.gather(rows, np.searchsorted(known, self.entries), axis=1)


class LiveMap:
    """One affine map, applied forward and transposed by the layers that it is made of.

    Args:
        before: the units that it reads.
        flows: those that it computes, in this order.
        carried: the units that it hands on behind these.

    Attributes:
        fan_in, fan_out: the numbers of units.
        output_shape: of the flow, if it is one and nothing is carried.
        is_single: whether it is from one source to one flow.
        dense: the layer whose kernel and bias the map has, if it has those of one.
    """

    def __init__(
        self, before: Sequence[Units], flows: Sequence[Flow], carried: Sequence[Units] = ()
    ):
        self.before, self.flows, self.carried = tuple(before), tuple(flows), tuple(carried)
        self._sizes = [units.size for units in self.before]
        self.fan_in = sum(self._sizes)
        self.fan_out = sum(f.size for f in self.flows) + sum(u.size for u in self.carried)
        is_flow = len(self.flows) == 1 and not self.carried
        self.output_shape = self.flows[0].shape if is_flow else (self.fan_out,)
        self.is_single = is_flow and len(self.before) == 1
        self.dense = self._only_dense() if self.is_single else None

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers that it is made of."""
        return layers_in(self.flows)

    def _only_dense(self) -> keras.layers.Dense | None:
        weighty = [c.layer for c in self.flows[0].calls if not isinstance(c.layer, KEEPS_ENTRIES)]
        if len(weighty) != 1 or not isinstance(weighty[0], keras.layers.Dense):
            return None
        fits = tuple(weighty[0].kernel.shape) == (self.fan_in, self.fan_out)
        return weighty[0] if fits else None

    @property
    def is_structured(self) -> bool:
        """Whether the layers are quicker than their matrix."""
        return not self.is_single or any(isinstance(layer, LOCAL) for layer in self.layers)

    @property
    def has_single_paths(self) -> bool:
        """Whether each entry of the kernel is one product of weights, not a sum of several."""
        return all(max(flow.paths.values()) < Paths.MANY for flow in self.flows)

    def weights(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns kernel `(fan_in, fan_out)` and bias `(fan_out,)`, float32, differentiable."""
        if self.dense is not None:
            bias = self.dense.bias
            bias = tf.zeros(self.fan_out) if bias is None else as_float32(bias)
            return as_float32(self.dense.kernel), bias
        shifts = [tf.reshape(flow.shift(), (-1,)) for flow in self.flows]
        none = tf.zeros(sum(units.size for units in self.carried))
        if self.fan_out < self.fan_in:  # a unit vector of the shorter side is a row
            kernel = tf.transpose(self.transposed_product(tf.eye(self.fan_out)))
        else:
            kernel = self.product(tf.eye(self.fan_in))
        return kernel, tf.concat([*shifts, none], axis=0)

    def product(self, array: tf.Tensor, entries: _Function = tf.identity) -> tf.Tensor:
        """Returns `(…, fan_in)` times the kernel, layer by layer.

        Args:
            array: the vectors.
            entries: a function of the kernel's entries, of products the product of what it is of
                the factors; for `has_single_paths`.
        """
        parts = tf.split(tf.reshape(array, (-1, self.fan_in)), self._sizes, axis=1)
        before = {
            units.source: (units, rows) for units, rows in zip(self.before, parts, strict=True)
        }
        values = {source: units.value(rows) for source, (units, rows) in before.items()}
        found = [tf.reshape(flow.image(values, entries), (-1, flow.size)) for flow in self.flows]
        for carried in self.carried:
            units, rows = before[carried.source]
            found.append(carried.picked(rows, units))
        shape = tf.concat([tf.shape(array)[:-1], [self.fan_out]], axis=0)
        return tf.reshape(tf.concat(found, axis=1), shape)

    def transposed_product(self, array: tf.Tensor, entries: _Function = tf.identity) -> tf.Tensor:
        """Returns `(…, fan_out)` times the transposed kernel: the gradient of the linear map."""
        anywhere = tf.zeros(tf.concat([tf.shape(array)[:-1], [self.fan_in]], axis=0))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(anywhere)
            product = self.product(anywhere, entries)
        return tape.gradient(product, anywhere, output_gradients=array)


def live_maps(last: Flow) -> tuple[list[LiveMap], list[Activation]]:
    """Returns the maps up to that of the last flow, and the activations between them.

    Args:
        last: not a source.

    Example:
        >>> from keras_curv.network.activations import ACTIVATIONS
        >>> from keras_curv.training.trainable.graph.flows import joined
        >>> start, dense = Source((3,)), keras.layers.Dense(4)
        >>> dense.build((None, 3))
        >>> tanh = Source((4,), Flow(dense, [start], (4,)), ACTIVATIONS["tanh"])
        >>> maps, activations = live_maps(joined("Concatenate", -1, [start, tanh]))
        >>> [(each.fan_in, each.fan_out) for each in maps], activations[0].name
        ([(3, 7), (7, 7)], 'tanh × 4, identity × 3')
    """
    sources = _ancestors(last)
    read = {source: np.zeros(source.size, np.int64) for source in sources}  # the depth of the last
    for flow in (last, *(each.before for each in sources if each.before is not None)):
        for source in flow.sources:
            # Of its own layer all of a source is there: only what is carried is asked for.
            if flow.depth > source.depth:
                depths = np.where(flow.reads(source), flow.depth + 1, 0)
                read[source] = np.maximum(read[source], depths)
    maps, activations = [], []
    before = [Units(source) for source in sources if source.depth == 0]
    for depth in range(1, last.depth + 2):
        own = [source for source in sources if source.depth == depth]
        carried = [_carried(each, read[each] > depth) for each in sources if each.depth < depth]
        carried = [units for units in carried if units.size]
        if depth > last.depth:
            maps.append(LiveMap(before, [last]))
            break
        maps.append(LiveMap(before, [each.before for each in own if each.before], carried))
        parts = [(each.sigma, each.size) for each in own if each.sigma is not None]
        activations.append(unit_wise([*parts, (IDENTITY, sum(u.size for u in carried))]))
        before = [*(Units(source) for source in own), *carried]
    return maps, activations


def _carried(source: Source, is_read: np.ndarray) -> Units:
    return Units(source, None if is_read.all() else np.flatnonzero(is_read))


def _ancestors(last: Flow) -> list[Source]:
    """Returns the sources that a flow is made of, each once, by depth."""
    found: dict[Source, None] = {}
    stack = [last]
    while stack:
        for source in stack.pop().sources:
            if source not in found:
                found[source] = None
                if source.before is not None:
                    stack.append(source.before)
    return sorted(found, key=lambda source: source.depth)
