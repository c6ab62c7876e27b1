"""The convex outer adversarial polytope of a ReLU network, in graph and differentiable.

**Bounds.** Where `l ≤ z ≤ u`, relu lies between two parallel lines: with `z⁺ = max(z, 0)`,

    d z ≤ relu(z) ≤ d z + 2h,    d = u⁺ / (u⁺ + (−l)⁺),    h = d (−l)⁺ / 2,

d being 1 or 0 and h = 0 for a unit that does not change sign. So, on the ball `‖δ‖ ≤ R` around x,
the outputs of layer k are `d_k ∘ z_k + h_k ∘ (1 + e_k)` with `|e_k| ≤ 1`: affine in δ and the e's.
With the centre c and the norms of columns,

    c_1 = x W_1 + b_1,    c_{k+1} = (d_k ∘ c_k + h_k) W_{k+1} + b_{k+1},
    |z_k − c_k|  ≤  R ‖W_1 D_1 W_2 ⋯ D_{k−1} W_k‖₂ + Σ_{i<k} h_iᵀ |W_{i+1} D_{i+1} ⋯ W_k|,

and the same for a margin with `W_L (e_y − e_t)` in the place of the last map. This is the dual
objective of Wong & Kolter, `J = −Σ ν_{i+1}ᵀ b_i − ν̂_1ᵀ x − R ‖ν̂_1‖₂ + Σ l [ν]₊`: there ν = d ∘ ν̂,
and so `l [ν]₊ = l d (|ν̂| + ν̂)/2 = −h |ν̂| − h ν̂`.

**Projections.** These matrices are different for every example. The first term is the norm of a
column v of `dim` entries: with r standard normal rows G, `‖G v‖₂ / E χ_r` has mean `‖v‖₂`
(Johnson & Lindenstrauss). The others are l1 norms whatever the ball: with standard Cauchy rows C,
every entry of `C (h ∘ v)` is Cauchy of scale `hᵀ|v|`, which is the median of its absolute value;
its mean is infinite. Either way r rows pass forward instead of one for each entry. What is exact at
no cost stays exact: both bounds of the first hidden layer, the term of the layer right before,
`h_{k−1}ᵀ |W_k|`, layers of at most r entries, and the margins, which are few and pass backward. So
nothing is random with one hidden layer; no l1 norm is with two.

Reference: Wong & Kolter, "Provable defenses against adversarial examples via the convex outer
adversarial polytope" (2018), theorem 1 and algorithm 1; Wong, Schmidt, Metzen & Kolter, "Scaling
provable adversarial defenses" (2018), section 3.2 and algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_curv.dual import as_dtype
from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product
from keras_curv.training.rivals.interval import l2_norm


class Layer(NamedTuple):
    """One hidden layer on the balls, each `(n, N_k)`.

    Attributes:
        low, high: the interval of z_k.
        slope: d.
        half: h, half the distance of the two lines.
        centre: d ∘ c + h, of the outputs.
    """

    low: tf.Tensor
    high: tf.Tensor
    slope: tf.Tensor
    half: tf.Tensor
    centre: tf.Tensor


class _Source(NamedTuple):
    """A set of unknowns that move all later layers: δ, or e_k.

    Attributes:
        rows: its directions, or random combinations of them, `(n or 1, rows, N)`.
        spread: `(n or 1, rows, N)` → how far they can move each entry, `(n or 1, N)`.
    """

    rows: tf.Tensor
    spread: Callable[[tf.Tensor], tf.Tensor]

    def through(self, product: Product, slope: tf.Tensor | None = None) -> _Source:
        """Returns the same one layer on."""
        rows = self.rows if slope is None else slope[:, None] * self.rows
        return self._replace(rows=product.forward(rows))


def hidden_layers(
    network: FeedForward,
    x: tf.Tensor,
    radius: Any,
    *,
    projections: int | None = None,
    seed: Any = (0, 0),
) -> list[Layer]:
    """Returns bounds of the hidden layers wherever `‖δ‖₂ ≤ radius`; estimates by projections.

    Args:
        network: with relu alone.
        x: `(n, dim)`, float32 or float64, in which it is computed; rounding is not charged.
        radius: R ≥ 0, a number.
        projections: r, for layers wider than that; None: exact.
        seed: `(2,)`, integers, of the projections.

    Example:
        >>> import numpy as np
        >>> from keras_curv import Network
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> layer, = hidden_layers(network, tf.constant([[3.0, 1.0]]), 2.0)
        >>> layer.low.numpy(), layer.slope.numpy()
        (array([[ 1., -1.]], dtype=float32), array([[1.  , 0.75]], dtype=float32))
    """
    radius = as_dtype(radius, x.dtype)
    kernels, biases = network.weights(x.dtype)
    layers: list[Layer] = []
    sources: list[_Source] = []
    products = network.products(x.dtype)
    for index, (product, kernel, bias) in enumerate(zip(products, kernels, biases, strict=False)):
        before = layers[-1] if layers else None
        centre = product.forward(before.centre if before else x) + bias
        if before:
            sources = [source.through(product, before.slope) for source in sources]
        spread = _first_spread(kernel, radius, before)
        for source in sources:
            spread += source.spread(source.rows)
        layers.append(_bounded(centre, spread))
        if index < len(products) - 1:
            own_seed = tf.random.fold_in(seed, index)
            source = _source(network.sizes[index], radius, before, projections, own_seed)
            sources.append(source.through(product))
    return layers


def margin_bounds(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    radius: Any,
    *,
    projections: int | None = None,
    seed: Any = (0, 0),
) -> tf.Tensor:
    """Returns lower bounds of `z_label − z_t` wherever `‖δ‖₂ ≤ radius`, `(n, classes)`.

    That of the label itself is zero. For the other arguments see `hidden_layers`.

    Args:
        label: `(n,)`, integers.

    Example:
        >>> import numpy as np
        >>> from keras_curv import Network
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> x, label = tf.constant([[3.0, 1.0]], tf.float64), tf.constant([0])
        >>> margin_bounds(network, x, label, 0.5)[:, 1].numpy().round(6)  # 3 − 1 − √2/2
        array([1.292893])
    """
    layers = hidden_layers(network, x, radius, projections=projections, seed=seed)
    kernels, biases = network.weights(x.dtype)
    own = tf.one_hot(label, network.classes, dtype=x.dtype)
    logits = tf.matmul(layers[-1].centre if layers else x, kernels[-1]) + biases[-1]
    bound = tf.reduce_sum(own * logits, axis=1, keepdims=True) - logits
    rows = tf.transpose(kernels[-1])
    cotangent = tf.matmul(own, rows)[:, None] - rows
    products = network.products(x.dtype)
    for product, layer in zip(reversed(products), reversed(layers), strict=True):
        bound -= tf.linalg.matvec(tf.abs(cotangent), layer.half)
        cotangent = product.backward(layer.slope[:, None] * cotangent)
    return bound - as_dtype(radius, x.dtype) * l2_norm(cotangent, axis=-1)


def _bounded(centre: tf.Tensor, spread: tf.Tensor) -> Layer:
    low, high = centre - spread, centre + spread
    above, below = tf.nn.relu(high), tf.nn.relu(-low)
    slope = tf.math.divide_no_nan(above, above + below)
    half = slope * below / 2.0
    return Layer(low, high, slope, half, slope * centre + half)


def _first_spread(kernel: tf.Tensor, radius: tf.Tensor, before: Layer | None) -> tf.Tensor:
    """Returns the exact spread of each unit that the layer right before causes, δ at first."""
    if before is None:
        return radius * l2_norm(kernel, axis=0)
    return tf.matmul(before.half, tf.abs(kernel))


def _source(
    size: int, radius: tf.Tensor, layer: Layer | None, projections: int | None, seed: tf.Tensor
) -> _Source:
    """Returns δ where there is no layer, else the e's of the layer; of so many entries."""
    drawn = None if projections is None or size <= projections else projections
    if drawn is None:
        rows = tf.eye(size, dtype=radius.dtype)[None]
    elif layer is None:
        rows = tf.random.stateless_normal((1, drawn, size), seed, dtype=radius.dtype)
    else:
        uniform = tf.random.stateless_uniform((1, drawn, size), seed, dtype=radius.dtype)
        rows = tf.tan(math.pi * (uniform - 0.5))
    if layer is None:
        scale = radius / (1.0 if drawn is None else _mean_of_chi(drawn))
        return _Source(rows, lambda rows: scale * l2_norm(rows, axis=1))
    spread = _sum_of_sizes if drawn is None else _median_size
    return _Source(layer.half[:, None] * rows, spread)


def _mean_of_chi(freedom: int) -> float:
    """Returns the mean length of so many standard normal numbers."""
    return math.sqrt(2.0) * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))


def _sum_of_sizes(rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.abs(rows), axis=1)


def _median_size(rows: tf.Tensor) -> tf.Tensor:
    """Returns the median of |·| over the rows; the mean of the middle two of an even count."""
    count = rows.shape[1]
    largest = tf.math.top_k(tf.abs(tf.transpose(rows, (0, 2, 1))), count // 2 + 1).values
    return largest[..., -1] if count % 2 else (largest[..., -1] + largest[..., -2]) / 2.0
