"""The gap between the curvature measured at data and the proved bounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.theorem_4 import theorem4
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.numerics.spectral import symmetric_norm_estimate
from keras_curv.process import usual_floats

_POWER_STEPS = 12  # to find the largest Hessian
_AT_ONCE = 256  # examples whose Hessians are compared at a time; only the largest is made dense


class CurvatureGap(NamedTuple):
    """The curvature measured at data beside the proved bounds.

    Attributes:
        lower: K_lb, the curvature measured.
        proved: the bound that a certificate uses on the same pairs: the signed bound, theorem 3
            for two layers.
        upper: K_ub, the bound of theorem 4.
        pairs: the number of (label, runner-up) pairs with enough examples.
    """

    lower: float
    proved: float
    upper: float
    pairs: int


@usual_floats
def curvature_gap(
    network: Network, x: np.ndarray, label: np.ndarray, *, minimum_examples: int = 100
) -> CurvatureGap:
    """Returns K_lb, the largest curvature at examples, beside the proved bounds and K_ub.

    For every pair (label, runner-up class) with at least `minimum_examples` examples, K_lb
    takes the largest ‖∇²f(x)‖ over those examples; all figures are means over these pairs.
    K_lb is a measurement, not a bound.

    Args:
        x: `(n, dim)`.
        label: `(n,)`, integers.
        minimum_examples: pairs with fewer are left out.

    Raises:
        InputError: no pair has enough examples.

    Example:
        >>> from keras_curv import data, read
        >>> x, y = data.load_all("digits")
        >>> network = read("saved_models/digits").network
        >>> x, y = x[:200].reshape(200, -1), y[:200]
        >>> gap = curvature_gap(network, x, y, minimum_examples=10)
        >>> gap.lower < gap.proved < gap.upper
        True

    Reference: Singla & Feizi (2020), appendix G.1 (K_lb and K_ub).
    """
    x = np.asarray(x, np.float64)
    label = np.asarray(label, np.int64)
    rival = network.runner_up(network.logits(x), tf.constant(label)).numpy()
    bounds, theorem = curvature_bounds(network), theorem4(network)
    ours = np.maximum(-bounds.lower, bounds.upper)
    lower, proved, upper = [], [], []
    for y, t in np.unique(np.stack([label, rival], axis=1), axis=0):
        members = np.flatnonzero((label == y) & (rival == t))
        if len(members) < minimum_examples:
            continue
        parts = np.split(members, range(_AT_ONCE, len(members), _AT_ONCE))
        sizes = [_hessian_sizes(network, x[part], label[part], rival[part]) for part in parts]
        most = members[np.concatenate(sizes).argmax()][None]
        hessian = network.hessian(x[most], label[most], rival[most]).numpy()[0]
        lower.append(symmetric_norm_estimate(hessian))
        proved.append(ours[y, t])
        upper.append(theorem[y, t])
    if not lower:
        raise InputError(
            f"no pair of label and runner-up has {minimum_examples} examples. "
            f"Received: {len(x)} examples; lower minimum_examples"
        )
    met, bound, theorem_4 = (float(np.mean(values)) for values in (lower, proved, upper))
    return CurvatureGap(met, bound, theorem_4, len(lower))


def _hessian_sizes(
    network: Network, x: np.ndarray, label: np.ndarray, rival: np.ndarray
) -> np.ndarray:
    """Estimates ‖∇²f(x)‖ by power iteration, `(n,)`."""
    x, label, rival = map(tf.constant, (x.astype(np.float32), label, rival))
    vector = tf.random.stateless_normal(tf.shape(x), (0, 0))
    for _ in range(_POWER_STEPS):
        vector = tf.math.l2_normalize(vector, axis=1)
        with tf.autodiff.ForwardAccumulator(x, vector) as along:
            _, gradient = network.margin_and_gradient(x, label, rival)
        vector = along.jvp(gradient)
    return tf.norm(vector, axis=1).numpy()
