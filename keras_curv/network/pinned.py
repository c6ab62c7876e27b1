"""Networks with pinned inputs: inputs that enter the network and that no attacker moves.

A quantity that an attacker cannot change, such as a frozen feature or the original example, is an
input like any other, `z_1 = ξ B + x W + b`, with two differences: gradients with respect to it are
0, and bounds on movement (Lipschitz constants, curvature, ranges on a ball) leave its rows of the
first kernel out. A number to be compared with the outputs of each example is pinned too, and is
added to the logits directly. Inputs that move may have limits, which methods may use.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import FeedForward, Network, require_dense


class Pinned(FeedForward):
    """A mixin with the methods that pinned inputs change in any network.

    Attributes:
        pinned, direct: as in `PinnedNetwork`.
    """

    direct: np.ndarray | None = None

    def margin_map(
        self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns w and c as in `FeedForward`, with `x_p D` added to c."""
        w, c = super().margin_map(x, label, rivals)
        if self.direct is None:
            return w, c
        added = self._added(x)
        own = tf.gather(added, tf.cast(label, tf.int32)[:, None], axis=1, batch_dims=1)
        return w, c + (own - tf.gather(added, rivals, axis=1, batch_dims=1))

    def _outputs(self, post: list[tf.Tensor]) -> tf.Tensor:
        logits = super()._outputs(post)
        return logits if self.direct is None else logits + self._added(post[0])

    def _where_moved(self, gradient: tf.Tensor) -> tf.Tensor:
        if self.pinned is None:
            return gradient
        return tf.where(self.pinned, tf.zeros_like(gradient), gradient)

    def hessian(self, x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor) -> tf.Tensor:
        """Returns the Hessian as in `FeedForward`, with 0 in rows and columns of pinned inputs."""
        hessian = super().hessian(x, label, rival)
        if self.pinned is None:
            return hessian
        moved = ~self.pinned
        return tf.where(moved[:, None] & moved, hessian, tf.zeros_like(hessian))

    def _added(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x_p D`, `(n, classes)`."""
        with tf.init_scope():
            direct = tf.constant(self.direct, x.dtype)
        return tf.matmul(x, direct)


class PinnedNetwork(Pinned, Network):
    """A network with pinned inputs x_p: `z_L = a_{L−1} W_L + b_L + x_p D`.

    Args:
        affines, activations: as in any network; the first map is dense where inputs are pinned.
        pinned: mask of the pinned inputs, `(dim,)`, bool; not all. None: no input is pinned.
        direct: D, `(dim, classes)`, 0 outside pinned rows, each entry 0, 1 or −1; None: no such
            term. The rounding of adding it, less than 8 units of what is added, is not charged:
            the code that writes those inputs leaves room for it.
        limits: least and largest value of each input, `(dim,)` each; None: there are none.

    Raises:
        InputError: shapes do not fit, or nothing is left to move.

    Example:
        >>> maps = [Affine(np.array([[3.0, 0.0], [0.0, 5.0]]), np.zeros(2))]
        >>> network = PinnedNetwork(maps, [], np.array([False, True]))
        >>> x, label, rivals = tf.constant([[1.0, 2.0]]), tf.constant([1]), tf.constant([[0]])
        >>> network.evaluate(x, label, rivals).gradient.numpy()
        array([[[-3.,  0.]]], dtype=float32)
    """

    def __init__(
        self,
        affines: Sequence[Affine],
        activations: Sequence[Activation],
        pinned: np.ndarray | None,
        direct: np.ndarray | None = None,
        limits: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        super().__init__(affines, activations)
        self.pinned = None if pinned is None else np.array(pinned, bool)
        self.direct = None if direct is None else np.array(direct, np.float64)
        if self.pinned is not None:
            if self.pinned.shape != (self.dim,) or self.pinned.all():
                raise InputError(
                    f"pinned must say of {self.dim} inputs which are, and not all. "
                    f"Received: {self.pinned.shape}, {self.pinned.sum()} of them pinned"
                )
            require_dense(self, "pinned inputs", "give weights to no input, or pool before")
        if self.direct is not None and self.direct.shape != (self.dim, self.classes):
            raise InputError(
                f"direct must be ({self.dim}, {self.classes}). Received: {self.direct.shape}"
            )
        if self.direct is not None:
            moved = True if self.pinned is None else ~self.pinned
            if np.any(self.direct[moved]):
                raise InputError("direct must be 0 but in rows of inputs that are pinned")
        self.limits = limits
        if limits is not None and any(limit.shape != (self.dim,) for limit in limits):
            raise InputError(f"limits must be ({self.dim},). Received: {limits[0].shape}")

    @functools.cached_property
    def differentials(self) -> tuple[Affine, ...]:
        """Returns the maps as in `Network`, with 0 in pinned rows of the first kernel."""
        if self.pinned is None or not self.pinned.any():
            return self.affines
        first, moved = self.affines[0], ~self.pinned[:, None]
        free = dataclasses.replace(
            first,
            kernel=np.where(moved, first.kernel, 0.0),
            served_kernel_error=np.where(moved, first.served_kernel_error, 0.0),
        )
        return (free, *self.affines[1:])
