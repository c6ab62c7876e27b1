"""What the calls of a model return, as affine images of its input and of its activations.

The input and the outputs of activations are *sources*. A *flow* is what a layer makes of other
flows: its affine part alone, as an activation behind it begins a new source. A residual sum or a
concatenation is a flow of several sources. As in `lowering/chain.py`, by which certificates read
the same graph once its weights no longer move.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.training.trainable.graph.layer_rules import Paths, applied, paths_behind

_Function = Callable[[tf.Tensor], tf.Tensor]


class Join(NamedTuple):
    """What joins flows.

    Attributes:
        kind: "Add", "Subtract", "Average" or "Concatenate".
        axis: along which flows are put one after the other, the batch counted; 0: they are not.
    """

    kind: str
    axis: int = 0

    def of(self, parts: list[tf.Tensor], entries: _Function = tf.identity) -> tf.Tensor:
        """Returns the join of batches; `entries` as for `applied`."""
        if self.axis:
            return tf.concat(parts, self.axis)
        if self.kind == "Subtract":
            first, second = parts
            return first + entries(tf.constant(-1.0)) * second
        total = tf.add_n(parts)
        return total * entries(tf.constant(1.0 / len(parts))) if self.kind == "Average" else total


class Flow:
    """What a layer's affine part, or a join, makes of flows.

    Args:
        layer: a Keras layer, or a `Join`; None for a source.
        inputs: what it is given; one flow for a layer.
        shape: of an example of it.

    Attributes:
        depth: activations on the longest way from the input to it, its own included.
        size: entries of an example.
    """

    def __init__(self, layer: Any, inputs: Iterable[Flow], shape: tuple[int, ...]):
        self.layer, self.inputs, self.shape = layer, tuple(inputs), shape
        self.size = math.prod(shape)
        self.depth: int = max((flow.depth for flow in self.inputs), default=0)

    @functools.cached_property
    def calls(self) -> tuple[Flow, ...]:
        """The flows that it is made of, itself the last, each after its inputs; no sources."""
        found: dict[Flow, None] = {}
        for flow in self.inputs:
            found.update(dict.fromkeys(flow.calls))
        return *found, self

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that it is an affine image of."""
        inputs = (each for flow in self.calls for each in flow.inputs)
        return tuple(dict.fromkeys(each for each in inputs if isinstance(each, Source)))

    def image(
        self, sources: Mapping[Source, tf.Tensor], entries: _Function = tf.identity
    ) -> tf.Tensor:
        """Returns its linear part, `(n, *shape)`, of values of its sources, `(n, *their shape)`."""
        values: dict[Flow, tf.Tensor] = dict(sources.items())
        for flow in self.calls:
            given = [values[each] for each in flow.inputs]
            if isinstance(flow.layer, Join):
                values[flow] = flow.layer.of(given, entries)
            else:
                values[flow], _ = applied(flow.layer, given[0], entries)
        return values[self]

    def shift(self) -> tf.Tensor:
        """Returns its value where all sources are 0, `(1, *shape)`."""
        known: dict[Flow, tf.Tensor] = {}  # without those that are 0: these need no convolution

        def value(flow: Flow) -> tf.Tensor:
            return known[flow] if flow in known else tf.zeros((1, *flow.shape))

        for flow in self.calls:
            is_known = any(each in known for each in flow.inputs)
            if isinstance(flow.layer, Join):
                if is_known:
                    known[flow] = flow.layer.of([value(each) for each in flow.inputs])
                continue
            moved, shift = applied(flow.layer, value(flow.inputs[0]))
            if is_known or tf.is_tensor(shift):
                known[flow] = (moved if is_known else tf.zeros_like(moved)) + shift
        return value(self)

    def reads(self, source: Source) -> np.ndarray:
        """Returns which entries of a source it reads, whatever its weights, `(size,)`."""
        values = {each: tf.zeros((1, *each.shape)) for each in self.sources}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values[source])
            image = self.image(values, tf.ones_like)
        return tape.gradient(image, values[source]).numpy().reshape(-1) > 0.0

    @functools.cached_property
    def paths(self) -> Mapping[Source, Paths]:
        """How many ways lead from an entry of each source to one of it."""
        twice = Paths.SINGLE if isinstance(self.layer, Join) and self.layer.axis else Paths.MANY
        found: dict[Source, Paths] = {}
        for flow in self.inputs:
            for source, paths in flow.paths.items():
                before = found.get(source)
                found[source] = paths if before is None else max(before, paths, twice)
        if isinstance(self.layer, Join):
            return found
        shape = self.inputs[0].shape
        return {source: paths_behind(self.layer, shape, paths) for source, paths in found.items()}


class Source(Flow):
    """The input, or the output of an activation.

    Args:
        shape: of an example.
        before: the flow that its activation is of; None for the input.
        sigma: the activation.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        before: Flow | None = None,
        sigma: Activation | None = None,
    ):
        super().__init__(None, (), shape)
        self.before, self.sigma = before, sigma
        self.depth = 0 if before is None else before.depth + 1

    @property
    def calls(self) -> tuple[Flow, ...]:
        """See `Flow`: none."""
        return ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """See `Flow`: itself."""
        return (self,)

    @property
    def paths(self) -> Mapping[Source, Paths]:
        """See `Flow`."""
        return {self: Paths.NARROW}


def joined(kind: str, axis: int, flows: list[Flow]) -> Flow:
    """Returns the flow that joins some of shapes that fit.

    Args:
        kind: as of `Join`.
        axis: as Keras has it, for "Concatenate".
        flows: two or more.
    """
    shapes = [flow.shape for flow in flows]
    if kind != "Concatenate":
        return Flow(Join(kind), flows, shapes[0])
    axis = axis % (len(shapes[0]) + 1)
    shape = list(shapes[0])
    shape[axis - 1] = sum(each[axis - 1] for each in shapes)
    return Flow(Join(kind, axis), flows, tuple(shape))


def layers_in(flows: Iterable[Flow]) -> list[keras.layers.Layer]:
    """Returns the Keras layers that flows are made of, each once."""
    calls = (flow for last in flows for flow in last.calls)
    return list(dict.fromkeys(c.layer for c in calls if not isinstance(c.layer, Join)))
