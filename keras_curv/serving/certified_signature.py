"""A SavedModel that certifies what it serves: a second signature, beside the model's own.

`serving_default` is the model at inference. `certified` returns the same logits
with their class and a radius that `serving/one_gradient.py` proves, in the same forward pass
and one batched backward pass, in which a convolution, or whatever else the reader folds, is the
matrix it was read as, stored beside the model's own weights: dense, or where that would be too
large, its filters and where they are. Both consist of ops that `pure_ops.py` allows, so
that `keras_curv certify` reads the directory as any other.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.files import writing
from keras_curv.lowering import graph
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.products import Product, dense_product, sparse_product
from keras_curv.process import certifying
from keras_curv.reading import served_model
from keras_curv.reading.served_model import ServedModel
from keras_curv.serving.one_gradient import OneGradient

CERTIFIED_SIGNATURE = "certified"
_ALIKE = 1e-2  # is what float32 makes of a pre-activation, relative to the largest
_CHECKED = 8  # random examples on which the model and what was read of it must agree


class _AtInference:
    """A model as it is exported here: at inference, whatever its layers take for their default."""

    def __init__(self, base: keras.Model):
        self.name, self.inputs, self._base = base.name, base.inputs, base

    def __call__(self, x: tf.Tensor, **_: bool) -> tf.Tensor:
        return self._base(x, training=False)


@certifying
def certified_serving(base: keras.Model, directory: str | pathlib.Path) -> None:
    """Exports a model with a second signature that certifies each answer as it is given.

    `certified` takes what `serving_default` takes, and returns

    - `logits`, `(n, classes)`, float32;
    - `class`, `(n,)`, int64: the largest logit;
    - `radius`, `(n,)`, float32: for every δ with `‖δ‖₂ < radius[i]`, the class with the largest
      logit at `x[i] + δ`, as served in float32 from either signature, is `class[i]`, and alone in
      being the largest; so it is in real arithmetic. 0 where nothing is proved. Radii are in the
      model's own input units.

    Assumed is what the guarantee level `float32` assumes: IEEE single, ordinary products (no
    TF32, bfloat16, Winograd or FFT), activations accurate to 16 units of their value σ(z) or, where
    they are several ops, of 1 + |σ(z)| + |z|. The radius is smaller than that of `certify`, which
    searches; the model is bounded once, here.

    Args:
        base: a built Keras model: one float32 input, logits, differentiable activations.
        directory: where to write it; it must not exist.

    Raises:
        InputError: the model or the directory cannot be used; see `keras_curv.read`.

    Example:
        >>> import tempfile
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((3,)), dense(4, "tanh"), dense(2)])
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "model"
        >>> certified_serving(base, folder)
        >>> served = tf.saved_model.load(folder).signatures["certified"]
        >>> answer = served(tf.constant([[1.0, 2.0, 3.0]]))
        >>> sorted(answer), bool(answer["radius"][0] > 0.0)
        (['class', 'logits', 'radius'], True)
    """
    directory = pathlib.Path(directory)
    if directory.exists():
        raise InputError(f"{directory} exists already; give a directory that does not")
    if isinstance(base, (str, pathlib.Path)):
        raise InputError(
            f"a SavedModel cannot be exported again; give the built Keras model. Received: {base}"
        )
    served = served_model.read(_AtInference(base) if getattr(base, "inputs", None) else base)
    if len(served.inputs.specs) > 1:
        raise InputError(
            f"{served.source} takes {served.inputs}; certified serving is of models of one input"
        )
    if served.head != "logits":
        raise InputError(
            f"{served.source} ends in {served.head}; give the model that ends in logits"
        )
    if served.input_dtype != tf.float32:
        raise InputError(
            f"{served.source} takes {served.input_dtype.name}; certified serving needs float32"
        )
    some = np.random.default_rng(0).uniform(0.0, 1.0, (_CHECKED, *served.input_shape))
    served.check(some)
    certificate = OneGradient(served.network)
    (given,) = base.inputs
    signature = [keras.InputSpec(shape=given.shape, dtype=given.dtype, name=given.name)]
    archive = keras.export.ExportArchive()
    archive.track(base)
    # What was read is the model at inference, which layers do not agree on if they are not told.
    archive.add_endpoint("serve", lambda x: base(x, training=False), signature)
    products = [_product(base, affine) for affine in certificate.affines[:-1]]

    def hidden(logits: tf.Tensor) -> list[tf.Tensor]:
        return _pre_activations(logits, served.network, served.source)

    _require_same(lambda x: hidden(base(x, training=False)), served, some.astype(np.float32))

    def certified(x: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = base(x, training=False)
        label, radius = certificate(
            tf.reshape(x, (-1, served.network.dim)),
            logits,
            hidden(logits),
            [product.backward for product in products],
        )
        return {"logits": logits, "class": label, "radius": radius}

    archive.add_endpoint(CERTIFIED_SIGNATURE, certified, signature)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    archive.write_out(str(directory), verbose=False)


def _require_same(
    hidden: Callable[[tf.Tensor], list[tf.Tensor]], served: ServedModel, x: np.ndarray
) -> None:
    """Refuses a model in which the activations that are seen are not those of the network."""
    spec = tf.TensorSpec((None, *x.shape[1:]), tf.float32)
    found = tf.function(hidden, input_signature=[spec], autograph=False)(tf.constant(x))
    known, _ = served.network.forward(tf.constant(x.reshape(len(x), -1).astype(np.float64)))
    for seen, real in zip(found, known, strict=True):
        served_there, real = seen.numpy(), real.numpy()
        finite = np.isfinite(served_there)  # where float32 overflows nothing is certified
        error = np.abs(np.where(finite, served_there, real) - real)
        if not np.all(error <= _ALIKE * (1.0 + np.abs(real).max())):
            raise InputError(
                f"{served.source}: a layer hides what it computes, so there is no certified "
                "signature for it"
            )


def _product(base: keras.Model, affine: Affine) -> Product:
    """Returns the products with a kernel in float32: with the model's own variable that holds it,
    if there is one, else with one of its own, or with constants."""
    if affine.is_sparse:
        return sparse_product(affine.kernel, tf.float32)
    for weight in base.weights:
        if weight.dtype == "float32" and tuple(weight.shape) == affine.kernel.shape:
            if np.array_equal(weight.numpy(), affine.kernel):
                return dense_product(weight.value)
    return dense_product(tf.Variable(affine.kernel.astype(np.float32), trainable=False))


def _pre_activations(logits: tf.Tensor, network: Network, source: str) -> list[tf.Tensor]:
    """Returns the tensors z_1, …, z_{L−1} behind logits that are being traced, `(n, width)`."""
    if not isinstance(logits, tf.Tensor):
        raise InputError(
            f"{source} returns a {type(logits).__name__}; give the model that returns its logits "
            "alone"
        )
    found = graph.pre_activations(logits.graph.as_graph_def(), logits.op.name)
    if [name for name, _ in found] != [activation.name for activation in network.activations]:
        raise InputError(
            f"{source}: a layer hides its activation in a function of its own, or branches meet, "
            "so there is no certified signature for it"
        )
    return [
        tf.reshape(logits.graph.get_tensor_by_name(f"{name}:0"), (-1, width))
        for (_, name), width in zip(found, network.sizes[1:-1], strict=True)
    ]
