"""Graphs that are traced once for all networks of the same activations.

Tracing a search takes a second or more for any network, and the traced graph depends only on the
activations once weights, their norms and all sizes are arguments. So a network of any size whose
activations were traced before is certified without tracing: the next one of a sweep, or the same
one after another epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.pinned import Pinned
from keras_curv.numerics.rounding import LayerNorms

# Graph arguments of any size; for each example a row, a number, a class, or several classes.
ROWS, EACH = (tf.TensorSpec(shape, tf.float64) for shape in ((None, None), (None,)))
CLASS, CLASSES = (tf.TensorSpec(shape, tf.int32) for shape in ((None,), (None, None)))
_KEPT = 32  # graphs; what is traced holds no weights, but some ten megabytes


class Weights(NamedTuple):
    """The weights and norms in which networks of the same activations differ, float64."""

    kernels: list[tf.Tensor]  # kernels, biases: as in `FeedForward.weights`
    biases: list[tf.Tensor]
    norms: list[tf.Tensor]  # the entries of the `LayerNorms` of each map
    # the mask of pinned inputs, and D of a `PinnedNetwork`, if there are any
    pins: tuple[tf.Tensor, ...] = ()


class Argument(FeedForward):
    """A network whose weights are arguments of the graph that is being traced.

    Args:
        activations: the activations of the network.
        weights: tensors of that graph.
    """

    def __init__(self, activations: tuple[Activation, ...], weights: Weights):
        self.activations = activations
        self.layer_norms = [LayerNorms(*tf.unstack(norms)) for norms in weights.norms]
        self._weights = {tf.float64: (weights.kernels, weights.biases)}
        self._rows = {tf.float64: tf.transpose(weights.kernels[-1])}

    def ready(self, dtype: tf.DType) -> None:
        """Casts the weights to a dtype, see `FeedForward`."""
        if dtype not in self._weights:
            kernels, biases = (
                [tf.cast(a, dtype) for a in part] for part in self.weights(tf.float64)
            )
            self._weights[dtype] = kernels, biases
            self._rows[dtype] = tf.transpose(kernels[-1])

    def weights(self, dtype: tf.DType) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the weights as in `FeedForward`, in float64 or another dtype that is `ready`."""
        return self._weights[dtype]

    def class_rows(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the rows as in `FeedForward`, in float64 or another dtype that is `ready`."""
        return self._rows[dtype]


class PinnedArgument(Pinned, Argument):
    """An `Argument` with pinned inputs, whose mask is an argument of the graph too."""

    def __init__(self, activations: tuple[Activation, ...], weights: Weights):
        super().__init__(activations, weights)
        self.pinned, *direct = weights.pins
        self.direct = direct[0] if direct else None

    def _added(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, tf.cast(self.direct, x.dtype))


def as_graph(
    function: Callable[..., Any], signature: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """Returns a function as a graph, traced once; without a signature, as rarely as possible.

    TensorFlow counts how often each function is traced, and warns at five; here each network has
    its own graph. Each partial is counted separately, which avoids the warning.
    """
    seldom = {"reduce_retracing": True} if signature is None else {"input_signature": signature}
    return tf.function(functools.partial(function), autograph=False, **seldom)


def compiled(
    make: Callable[..., Callable[..., Any]],
    network: Network,
    *settings: Hashable,
    signature: tuple[Any, ...],
) -> Callable[..., Any]:
    """Returns `make(network, *settings)` as a graph that networks of equal activations share.

    Args:
        make: returns the function to trace, for any network; it may use the network's activations,
            its norms, and what `FeedForward` computes from float64 tensors.
        network: a sparse network has a graph of its own. The graph does not see limits of inputs.
        settings: the further arguments of `make`.
        signature: specs of the graph's arguments, without sizes.

    Example:
        >>> network = Network.from_weights([[[1.0, 0.0], [0.0, 1.0]]], [[1.0, 1.0]], [])
        >>> logits = compiled(lambda network: network.logits, network, signature=(ROWS,))
        >>> logits(tf.zeros((1, 2), tf.float64)).numpy()
        array([[1., 1.]])
    """
    if any(affine.is_sparse for affine in network.affines):
        own = make(network, *settings)
        return as_graph(lambda *args: own(*args), signature)
    norms = [tf.constant(layer, tf.float64) for layer in network.layer_norms]
    weights = Weights(*network.weights(tf.float64), norms, _pins(network))
    key = make, network.activations, settings, signature, len(weights.pins)
    return functools.partial(shared(*key), weights)


def traced(
    make: Callable[..., Callable[..., Any]],
    network: FeedForward,
    dtype: tf.DType,
    *,
    signature: tuple[Any, ...],
) -> Callable[..., Any]:
    """Returns `make(network)`, `compiled` if it would run eagerly and the network allows it."""
    if isinstance(network, Network) and dtype == tf.float64 and tf.executing_eagerly():
        return compiled(make, network, signature=signature)
    return make(network)


def _pins(network: Network) -> tuple[tf.Tensor, ...]:
    """Returns `Weights.pins`; without pinned inputs there is no D either."""
    if network.pinned is None:
        return ()
    direct = network.direct
    pinned = tf.constant(network.pinned)
    return (pinned,) if direct is None else (pinned, tf.constant(direct, tf.float64))


@functools.lru_cache(maxsize=_KEPT)
def shared(
    make: Callable[..., Callable[..., Any]],
    activations: tuple[Activation, ...],
    settings: tuple[Hashable, ...],
    signature: tuple[Any, ...],
    pins: int,
) -> Callable[..., Any]:
    """Returns the graph of `compiled`, kept by its arguments; it takes the `Weights` first."""
    depth = len(activations) + 1
    norms = tf.TensorSpec((len(LayerNorms._fields),), tf.float64)
    pinned = (tf.TensorSpec((None,), tf.bool), ROWS)[:pins]
    weights = Weights([ROWS] * depth, [EACH] * depth, [norms] * depth, pinned)
    argument = PinnedArgument if pins else Argument

    def graph(weights: Weights, *args: Any) -> Any:
        return make(argument(activations, weights), *settings)(*args)

    return as_graph(graph, (weights, *signature))
