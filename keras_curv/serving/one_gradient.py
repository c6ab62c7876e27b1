"""A certified radius in the serving graph itself: one gradient for each rival, no search.

Where the server computes in float32, with f̂ its margin at x and f the real one, three facts

    f̂(x + δ) ≥ f(x + δ) − E(‖x + δ‖),    E(ρ) = e + e′ρ             serving (`float32.py`)
    f(x + δ) ≥ f(x) − ‖∇f(x)‖ ‖δ‖ − (κ/2) ‖δ‖²                      `dual.py`, at x̂ = x
    f(x) ≥ f̂(x) − E(‖x‖)                                            serving, at x

and `E(‖x + δ‖) ≤ E(‖x‖) + e′‖δ‖` make one minorant, of the margin that is served,

    f̂(x + δ) ≥ A − H ‖δ‖ − (κ/2) ‖δ‖²,    A = f̂(x) − 2 E(‖x‖),    H ≥ ‖∇f(x)‖ + e′,

whose root `r = 2A / (H + √(H² + 2κA))` is returned, the smallest over all rivals. For ‖δ‖ < r every
f̂(x + δ) is positive: the class that is served does not change, whatever the order of the server's
sums there and here. The radius is a proof in real arithmetic too, as f > f̂ − E > 0 follows in
the same way from `A + E(‖x‖)`, with less taken off.

**E.** `Float32Error` bounds the error on a ball around any point. Around the origin its constants
depend on the pair of classes alone: they are computed once, and stand in the graph. They count
with the distance from the origin, so that all that an example adds is ‖x‖. They hold up to a reach,
beyond which a number may overflow: `r ≤ reach − ‖x‖`.

**The gradient** is that of the closed form, backwards from `v_{L−1} = W_L[:, y] − W_L[:, t]` by
`v_{I−1} = W_I (σ′(z_I) ∘ v_I)`, all rivals in one product, in float32. The z_I are those of the
model's own forward pass, off by at most `ζ + ζ′‖x‖` in each entry, constants of the same kind.
`rounding.gradient_error`, with the unit of float32, turns these and the norms of the v_I into a
bound of the error, which is added to H. It takes σ′ to be accurate to 32 units, a sine's too
wherever it is (the tests measure a third of that at most).

**What remains** are some numbers for each rival: norms, A, H and the root. They are computed in
float64, in which squares of float32 numbers neither overflow nor vanish, with its own roundings
charged; the radius goes to float32 downward. Overflow anywhere in the backward pass leaves an
infinity or a NaN in the gradient, never a smaller number, and proves nothing: radius 0, as where
the input is not finite, logits tie, or the margin is within its error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.float32 import Float32Error
from keras_curv.curvature.bounds import CurvatureBounds, curvature_bounds
from keras_curv.network.activations import require_smooth
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import rounding

_LARGEST = 2.0**120  # radius that is returned; float32 ends at 2¹²⁸
_SMALLEST = 2.0**-100  # radius that is not returned as 0
_OUTWARD = 1.0 + 1e-9  # covers a few dozen float64 roundings, or a sum of 10⁶ squares
_INWARD = 1.0 - 1e-9
_DOWN = 1.0 - 2.0**-22  # what rounding to nearest may add in float32, twice over


class OneGradient:
    """x, its logits and its pre-activations, as served in float32 → predicted class and radius.

    Args:
        network: as it was read.
        curvature: bounds that hold for this network, if they are known already.

    Attributes:
        affines: the network's maps with their weights rounded to float32, charged for it. The
            products of all but the last are what `__call__` takes.

    Raises:
        InputError: an activation is not differentiable, or a weight overflows float32.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> x = tf.constant([[3.0, 1.0]])
        >>> label, radius = OneGradient(network)(x, network.logits(x), [], [])
        >>> int(label[0]), f"{radius[0]:.4f}"  # margin 2, gradient √2
        (0, '1.4142')
    """

    def __init__(self, network: Network, *, curvature: CurvatureBounds | None = None):
        require_smooth(network.activations, "a certified signature needs one, certify does not")
        curvature = curvature_bounds(network) if curvature is None else curvature
        self.activations = network.activations
        self.affines = [_in_float32(affine) for affine in network.affines]
        self._layers = [
            affine.norms(activation)
            for affine, activation in zip(self.affines, [*network.activations, None], strict=True)
        ]
        classes = np.arange(network.classes)
        self._rivals = np.array([np.delete(classes, label) for label in classes])
        kappa = np.maximum(-curvature.lower, 0.0) + rounding.CURVATURE_FLOOR
        self._kappa = np.take_along_axis(kappa, self._rivals, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows proves nothing
            origin = np.zeros((network.classes, network.dim))
            anywhere = np.full(network.classes, np.inf)
            self._error = Float32Error(network).linear(origin, classes, self._rivals, anywhere)

    def __call__(
        self,
        x: tf.Tensor,
        logits: tf.Tensor,
        pre_activations: list[tf.Tensor],
        transposed: Sequence[Callable[[tf.Tensor], tf.Tensor]],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Evaluates the closed form of the module's docstring; no loops but over layers.

        Args:
            x: `(n, dim)`, float32, as all that follow.
            logits: `(n, classes)`, as served.
            pre_activations: `z_1, …, z_{L−1}`, as they were on the way there, `(n, width)`.
            transposed: `t ↦ t Wᵀ` of `affines` but the last, on the last axis.

        Returns:
            Classes `(n,)`, int64, and radii `(n,)`, float32.
        """
        label = tf.argmax(logits, axis=1)
        rivals = tf.gather(tf.constant(self._rivals), label)
        size = _norm(x)[:, None]  # ‖x‖, (n, 1)
        reach = self._error.reach[0] * _INWARD - size

        wide = tf.cast(logits, tf.float64)
        margin = tf.gather(wide, label, axis=1, batch_dims=1)[:, None]
        margin = margin - tf.gather(wide, rivals, axis=1, batch_dims=1)
        fixed, rate = (
            self._of_label(self._error.fixed, label),
            self._of_label(self._error.rate, label),
        )
        taken_off = (2.0 * (fixed + rate * size) + 1e-15 * tf.abs(margin)) * _OUTWARD

        bound = dual.Minorant(
            intercept=margin - taken_off,
            slope=(self.slope_bound(size[:, 0], label, rivals, pre_activations, transposed) + rate)
            * _OUTWARD,
            curvature=self._of_label(self._kappa, label),
        )
        radius = tf.minimum(dual.certified_radius(bound) * _INWARD, tf.minimum(reach, _LARGEST))
        # A comparison with NaN is false: every rival must have been proved, before the minimum.
        proved = tf.reduce_all(radius > _SMALLEST, axis=1) & tf.reduce_all(reach > 0.0, axis=1)
        radius = tf.reduce_min(radius, axis=1)
        rounded = tf.cast(radius, tf.float32) * _DOWN
        return label, tf.where(proved, rounded, 0.0)

    def slope_bound(
        self,
        size: tf.Tensor,
        label: tf.Tensor,
        rivals: tf.Tensor,
        pre_activations: list[tf.Tensor],
        transposed: Sequence[Callable[[tf.Tensor], tf.Tensor]],
    ) -> tf.Tensor:
        """Returns ‖∇f(x)‖ from above, `(n, rivals)`, float64."""
        rows = tf.constant(self.affines[-1].kernel.T, tf.float32)
        v = tf.gather(rows, label)[:, None, :] - tf.gather(rows, rivals)
        sizes = [_norm(v)]
        backward = reversed(list(zip(transposed, self.activations, pre_activations, strict=True)))
        for product, activation, z in backward:
            v = product(activation.first(z)[:, None, :] * v)
            sizes.append(_norm(v))
        pre_errors = [fixed[0] + rate[0] * size for fixed, rate in self._error.pre_activations]
        error = rounding.gradient_error(
            self._layers,
            pre_errors,
            sizes[:-1] or sizes,
            unit=rounding.FLOAT32_UNIT,
            tiny=rounding.FLOAT32_TINY,
        )
        return (sizes[-1] + error) * _OUTWARD

    @staticmethod
    def _of_label(table: np.ndarray, label: tf.Tensor) -> tf.Tensor:
        """Returns the row of each label in a table `(classes, rivals)`."""
        return tf.gather(tf.constant(table, tf.float64), label)


def _norm(a: tf.Tensor) -> tf.Tensor:
    """Returns ‖a‖ over the last axis, from above, in float64, which holds float32 squares."""
    wide = tf.cast(a, tf.float64)
    return tf.sqrt(tf.reduce_sum(wide * wide, axis=-1)) * _OUTWARD + rounding.SLOPE_FLOOR


def _in_float32(affine: Affine) -> Affine:
    """Returns the map with the nearest float32 kernel, and adds the change to `kernel_error`."""
    with np.errstate(over="ignore"):
        kernel = affine.kernel.astype(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):  # what overflows is refused by the map
        moved = rounding.norm_bound(kernel - affine.kernel)
    if moved == 0.0:
        return affine
    error = affine.kernel_error + (moved if np.isfinite(moved) else 0.0)
    return dataclasses.replace(affine, kernel=kernel, kernel_error=rounding.up(error))
