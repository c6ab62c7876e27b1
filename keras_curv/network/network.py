"""A feed-forward network as mathematics: affine, activation, affine, …, affine.

Certificates see a model only as a `Network`: float64 weights that do not change. `FeedForward` is
its common base with a network in training (`training/trainable/trainable_network.py`).
Margins have closed-form gradients, so nothing here needs a gradient tape.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_curv.errors import InputError
from keras_curv.network import activations as activation_table
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.products import Product, SparseProducts, dense_product
from keras_curv.network.sparse_affine import DENSE_UP_TO
from keras_curv.numerics import intervals
from keras_curv.numerics.rounding import LayerNorms


class Evaluation(NamedTuple):
    """Margins of n inputs against their rivals, with the intermediate results of both passes."""

    margin: tf.Tensor  # `(n, rivals)`
    gradient: tf.Tensor  # the gradient of the margin with respect to the input, `(n, rivals, dim)`
    activations: list[tf.Tensor]  # `a_0 = x, …, a_{L−1}`, each `(n, width)`
    # `v_{L−1} = w, …, v_0 = gradient`, each `(n, rivals, width)`, in the dtype of the backward pass
    cotangents: list[tf.Tensor]
    pre: list[tf.Tensor]  # `z_1, …, z_{L−1}`, each `(n, width)`


class FeedForward(abc.ABC):
    """`z_1 = x W_1 + b_1, a_1 = σ_1(z_1), …, z_L = a_{L−1} W_L + b_L`; the logits are z_L.

    Attributes:
        sizes: `(dim, N_1, …, N_{L−1}, classes)`.
        activations: the L − 1 activations.
        pinned: mask of the input entries that no attacker moves, `(dim,)`; None: all may move.
        limits: least and largest value that an attacker may give each entry; None: any.
        direct: D, with which pinned entries add to the logits, see `PinnedNetwork`; None: nothing.
    """

    sizes: tuple[int, ...]
    activations: tuple[Activation, ...]
    pinned: np.ndarray | None = None
    limits: tuple[np.ndarray, np.ndarray] | None = None
    direct: np.ndarray | None = None

    @abc.abstractmethod
    def weights(self, dtype: tf.DType) -> tuple[list, list[tf.Tensor]]:
        """Returns L kernels `(in, out)` and L biases `(out,)`.

        None stands for a kernel that is too large to be dense and has only `products`; the last
        kernel is always dense.
        """

    def ready(self, dtype: tf.DType) -> None:
        """Makes the weights in a dtype before a loop of a graph uses them."""
        self.weights(dtype)

    def products(self, dtype: tf.DType) -> list[Product]:
        """Returns `a ↦ a W` and `t ↦ t Wᵀ` of each hidden map; subclasses may have faster ones."""
        return [dense_product(kernel) for kernel in self.weights(dtype)[0][:-1]]

    def image_back(
        self, index: int, centre: tf.Tensor, half: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `c Wᵀ` and `r |W|ᵀ` of a hidden map, `(n, in)`, and `‖W_i‖²` of its rows.

        Args:
            index: of the map, from 0.
            centre, half: c and r, `(n, out)`.
        """
        kernel = self.weights(centre.dtype)[0][index]
        images = intervals.image(centre, half, tf.transpose(kernel))
        return *images, tf.reduce_sum(kernel * kernel, axis=1)

    def class_rows(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the last kernel with a row for each class, `(classes, N_{L−1})`."""
        return tf.transpose(self.weights(dtype)[0][-1])

    @property
    def depth(self) -> int:
        """Returns L, the number of affine maps; "2 × 1024" has depth 2."""
        return len(self.sizes) - 1

    @property
    def restricted(self) -> bool:
        """Returns whether some inputs are out of an attacker's reach."""
        return self.pinned is not None or self.limits is not None

    @property
    def dim(self) -> int:
        """Returns the number of entries of a flattened input."""
        return self.sizes[0]

    @property
    def classes(self) -> int:
        """Returns the number of logits."""
        return self.sizes[-1]

    @property
    def multiplications(self) -> float:
        """Returns the multiplications of one forward or backward pass if all maps were dense."""
        return float(np.dot(self.sizes[:-1], self.sizes[1:]))

    def forward(self, x: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns `[z_1, …, z_{L−1}]` and `[a_0 = x, …, a_{L−1}]`, each `(n, width)`."""
        pre, post = [], [x]
        _, biases = self.weights(x.dtype)
        for product, bias, activation in zip(
            self.products(x.dtype), biases, self.activations, strict=False
        ):
            pre.append(product.forward(post[-1]) + bias)
            post.append(activation.value(pre[-1]))
        return pre, post

    def hidden(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Returns `a_0 = x, a_1, …, a_{L−1}`, each `(n, width)`."""
        return self.forward(x)[1]

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Maps `(n, dim)` to logits `(n, classes)` in the dtype of `x` (float32 or float64)."""
        return self._outputs(self.forward(tf.convert_to_tensor(x))[1])

    def _outputs(self, post: list[tf.Tensor]) -> tf.Tensor:
        """Returns the logits of `a_0, …, a_{L−1}`."""
        kernels, biases = self.weights(post[0].dtype)
        return tf.matmul(post[-1], kernels[-1]) + biases[-1]

    def margin_map(
        self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns w `(n, rivals, N_{L−1})` and c `(n, rivals)` of the margins `w·a_{L−1} + c`.

        Args:
            x: `(n, dim)`, float32 or float64; only its dtype and its pinned entries matter.
            label: `(n,)`, integers.
            rivals: `(n, rivals)`, integers.
        """
        rows, bias = self.class_rows(x.dtype), self.weights(x.dtype)[1][-1]
        w = tf.expand_dims(tf.gather(rows, label), 1) - tf.gather(rows, rivals)
        return w, tf.expand_dims(tf.gather(bias, label), 1) - tf.gather(bias, rivals)

    def evaluate(self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor) -> Evaluation:
        """Evaluates margins `f_t(x) = z_L[label] − z_L[t]` and gradients by one forward pass.

        Args:
            x: `(n, dim)`, float32 or float64.
            label: `(n,)`, integers.
            rivals: `(n, rivals)`, integers, none equal to its label.
        """
        pre, post = self.forward(x)
        margin, w = self._last_margins(post, label, rivals)
        cotangents = [w]
        for product, z, activation in reversed(
            list(zip(self.products(x.dtype), pre, self.activations, strict=True))
        ):
            slope = tf.expand_dims(activation.first(z), 1)
            cotangents.append(product.backward(slope * cotangents[-1]))
        cotangents[-1] = self._where_moved(cotangents[-1])
        return Evaluation(margin, cotangents[-1], post, cotangents, pre)

    def _where_moved(self, gradient: tf.Tensor) -> tf.Tensor:
        """Returns a gradient with 0 at the inputs that the attacker does not move."""
        return gradient

    def margins(
        self, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the margins of `evaluate`, as differences of logits, and its activations."""
        post = self.forward(x)[1]
        logits = self._outputs(post)
        own = tf.gather(logits, label[:, None], axis=1, batch_dims=1)
        return own - tf.gather(logits, rivals, axis=1, batch_dims=1), post

    def _last_margins(
        self, post: list[tf.Tensor], label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the margins `(n, rivals)` at `a_0, …, a_{L−1}`, and w of `margin_map`."""
        w, c = self.margin_map(post[0], label, rivals)
        return tf.einsum("nrk,nk->nr", w, post[-1]) + c, w

    def margin(self, x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor) -> tf.Tensor:
        """Returns `f(x) = z_L[label] − z_L[rival]` for one rival each: `(n,)`."""
        post, rivals = self.forward(x)[1], tf.expand_dims(rival, 1)
        return tf.squeeze(self._last_margins(post, label, rivals)[0], 1)

    def margin_and_gradient(
        self, x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the margin against one rival each, `(n,)`, and its gradient, `(n, dim)`."""
        evaluation = self.evaluate(x, label, tf.expand_dims(rival, 1))
        return tf.squeeze(evaluation.margin, 1), tf.squeeze(evaluation.gradient, 1)

    def hessian(self, x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor) -> tf.Tensor:
        """Returns the margin's dense Hessian `∇²f = Σ_I B_Iᵀ diag(F_I ∘ σ″(z_I)) B_I`.

        `B_I` is the Jacobian of z_I with respect to x, `F_I` that of f with respect to a_I.

        Args:
            x: `(n, dim)`.
            label, rival: `(n,)`.

        Returns:
            `(n, dim, dim)`.

        Reference: Singla & Feizi (2020), lemma 1.
        """
        pre, _ = self.forward(x)
        toward_output = self.evaluate(x, label, tf.expand_dims(rival, 1)).cotangents
        batch = tf.shape(x)[0]
        jacobian = tf.tile(tf.eye(self.dim, dtype=x.dtype)[None], (batch, 1, 1))
        total = tf.zeros_like(jacobian)
        for index, (product, z, activation) in enumerate(
            zip(self.products(x.dtype), pre, self.activations, strict=True)
        ):
            jacobian = product.forward(jacobian)  # (n, dim, width): B_Iᵀ
            diagonal = toward_output[self.depth - 2 - index][:, 0] * activation.second(z)
            total += tf.matmul(jacobian * diagonal[:, None, :], jacobian, transpose_b=True)
            jacobian *= activation.first(z)[:, None, :]
        return total

    def lowest_margin(self, x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Returns the margin against the runner-up class, `(n,)`."""
        logits = self.logits(x)
        strongest = self.runner_up(logits, label)
        return tf.gather(logits, label, batch_dims=1) - tf.gather(logits, strongest, batch_dims=1)

    def runner_up(self, logits: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Returns the likeliest class other than `label`, `(n,)`; excludes by index: ties stay."""
        return tf.argmax(_without(logits, label), axis=-1, output_type=label.dtype)


def likeliest_rivals(logits: tf.Tensor, label: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the `count` likeliest classes other than `label`, `(n, count)`, by falling logit."""
    return tf.cast(tf.math.top_k(_without(logits, label), count).indices, label.dtype)


def _without(logits: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """Returns the logits with the label's set to −∞."""
    own = tf.one_hot(label, tf.shape(logits)[-1], on_value=True, off_value=False)
    return tf.where(own, tf.constant(-np.inf, logits.dtype), logits)


class Network(FeedForward):
    """A feed-forward network with its weights, as they are stored.

    Args:
        affines: the L affine maps.
        activations: the L − 1 activations between them.

    Raises:
        InputError: sizes do not chain, or there are fewer than two classes.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> network.depth, network.dim, network.classes
        (1, 2, 2)
    """

    _least_outputs = 2

    def __init__(self, affines: Sequence[Affine], activations: Sequence[Activation]):
        if not affines or len(activations) != len(affines) - 1:
            raise InputError(
                "a network needs one activation between every two affine maps. "
                f"Received: {len(affines)} affine maps, {len(activations)} activations"
            )
        for before, after in zip(affines[:-1], affines[1:], strict=True):
            if before.fan_out != after.fan_in:
                raise InputError(
                    f"an affine map with {before.fan_out} outputs cannot be followed by one "
                    f"with {after.fan_in} inputs"
                )
        if affines[-1].fan_out < self._least_outputs:
            raise InputError("a classifier needs at least two logits. Received: 1")
        if affines[-1].is_sparse:
            raise InputError(
                f"the last matrix, {affines[-1].fan_in} × {affines[-1].fan_out}, is too large "
                f"(at most {DENSE_UP_TO} entries); pool before it, or use fewer classes"
            )
        self.affines = tuple(affines)
        self.activations = tuple(activations)
        self.sizes = (affines[0].fan_in, *(affine.fan_out for affine in affines))
        self._tensors: dict[str, tuple[list[tf.Tensor | None], list[tf.Tensor]]] = {}
        self._common: dict[int, SparseProducts] = {}
        self._sparse: dict[tuple[int, str], Product] = {}

    @classmethod
    def from_weights(
        cls,
        kernels: Sequence[ArrayLike],
        biases: Sequence[ArrayLike],
        activation: str | Sequence[str],
    ) -> Network:
        """Makes a network of Keras-oriented kernels `(in, out)` and biases `(out,)`.

        Args:
            kernels: L arrays; float64, or anything that converts to it exactly.
            biases: L arrays.
            activation: one name for all hidden layers, or L − 1 names.
        """
        names = [activation] * (len(kernels) - 1) if isinstance(activation, str) else activation
        return cls(
            [
                Affine(np.asarray(kernel), np.asarray(bias))
                for kernel, bias in zip(kernels, biases, strict=True)
            ],
            [activation_table.get(name) for name in names],
        )

    @property
    def differentials(self) -> tuple[Affine, ...]:
        """Returns the affine maps without pinned inputs, for bounds on movement."""
        return self.affines

    @functools.cached_property
    def layer_norms(self) -> list[LayerNorms]:
        """Returns the norms of every affine map that the rounding charge needs."""
        activations = (*self.activations, None)
        return [a.norms(s) for a, s in zip(self.affines, activations, strict=True)]

    def weights(self, dtype: tf.DType) -> tuple[list, list[tf.Tensor]]:
        """Returns the weights as in `FeedForward`, one constant for each dtype."""
        if dtype.name not in self._tensors:
            with tf.init_scope():  # outside of any graph: captured, not copied into it
                self._tensors[dtype.name] = (
                    [None if a.is_sparse else tf.constant(a.kernel, dtype) for a in self.affines],
                    [tf.constant(affine.bias, dtype) for affine in self.affines],
                )
        return self._tensors[dtype.name]

    def products(self, dtype: tf.DType) -> list[Product]:
        """Returns the products as in `FeedForward`; sparse maps keep one for each dtype."""
        for index, affine in enumerate(self.affines):
            if affine.is_sparse and (index, dtype.name) not in self._sparse:
                if index not in self._common:
                    self._common[index] = SparseProducts(affine.kernel)
                self._sparse[index, dtype.name] = self._common[index].of(dtype)
        return [
            self._sparse[index, dtype.name] if kernel is None else dense_product(kernel)
            for index, kernel in enumerate(self.weights(dtype)[0][:-1])
        ]


class Scores(Network):
    """A network with numeric outputs that are not compared, so one output is enough.

    Example:
        >>> Scores.from_weights([np.ones((2, 1))], [np.zeros(1)], []).classes
        1
    """

    _least_outputs = 1


def require_dense(
    network: Network, what: str, instead: str = "use lipschitz, crown or crc"
) -> None:
    """Refuses a network with a map too large to be dense; the InputError names `what` needs it."""
    for index, affine in enumerate(network.affines):
        if affine.is_sparse:
            raise InputError(
                f"the network is too large for {what}: map {index + 1}, {affine.fan_in} × "
                f"{affine.fan_out}, has more than {DENSE_UP_TO} entries; {instead}"
            )
