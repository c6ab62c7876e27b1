"""Products with a constant along any axes of an example are read as what they compute."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_oracle import SERVED_TOLERANCE
from refused import assert_refused, spec

from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules.products import contracted
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model

L = keras.layers
SHAPE = (2, 3, 4)


def _random_equation(rng):
    """Letters of free, shared, summed and new axes, in any order, and their sizes."""
    counts = rng.integers(0, 3, 4)
    letters = np.split(np.array(list("abcdefgh"[: counts.sum()])), np.cumsum(counts)[:-1])
    free, shared, summed, new = (list(some) for some in letters)

    def shuffled(axes):
        return "".join(rng.permutation(axes)) if axes else ""

    taken, given = shuffled(free + shared + summed), shuffled(shared + summed + new)
    sizes = dict(zip("abcdefgh", rng.integers(1, 4, 8), strict=True))
    return taken, given, shuffled(free + shared + new), sizes


@pytest.mark.parametrize("seed", range(60))
def test_any_contraction_is_the_map_that_einsum_computes(seed):
    rng = np.random.default_rng(seed)
    taken, given, made, sizes = _random_equation(rng)
    shape, of_kernel = (tuple(int(sizes[a]) for a in axes) for axes in (taken, given))
    kernel = rng.normal(size=of_kernel)
    flow = contracted(Flow.input(shape), Ball.exact(kernel), taken, given, made)
    unit = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    expected = np.einsum(f"z{taken},{given}->z{made}", unit, kernel)
    assert flow.shape == expected.shape[1:]
    affine = flow.affine()
    matrix = expected.reshape(len(unit), -1)
    np.testing.assert_array_equal(affine.kernel, matrix)
    assert affine.kernel_error <= 1e-13


class Product(tf.Module):
    """Images `SHAPE`, a product with a constant, tanh, and three classes behind it."""

    def __init__(self, product, *shape):
        super().__init__()
        rng = np.random.default_rng(3)
        self.kernel = tf.Variable(rng.normal(size=shape), dtype=tf.float32)
        self.product, self.rng = product, rng
        size = int(np.prod(self.hidden(tf.zeros((1, *SHAPE))).shape[1:]))
        self.last = tf.Variable(rng.normal(size=(size, 3)), dtype=tf.float32)
        self.size = size

    def hidden(self, x):
        return tf.tanh(self.product(x, self.kernel))

    def __call__(self, x):
        return tf.reshape(self.hidden(x), (-1, self.size)) @ self.last

    def export(self, path):
        signature = tf.function(self.__call__).get_concrete_function(spec(None, *SHAPE))
        tf.saved_model.save(self, str(path), signatures=signature)
        return path


def _einsum(equation, *, kernel_first=False):
    def product(x, kernel):
        return tf.raw_ops.Einsum(
            inputs=[kernel, x][:: 1 if kernel_first else -1], equation=equation
        )

    return product


READ = {
    "last axis": (_einsum("nabc,cd->nabd"), (4, 5)),
    "first axis": (_einsum("nabc,da->nbcd"), (5, 2)),
    "whole examples": (_einsum("nabc,abcd->nd"), (2, 3, 4, 5)),
    "of each place": (_einsum("nabc,abcd->nabd"), (2, 3, 4, 5)),
    "scaled and turned": (_einsum("nabc,cb->ncab"), (4, 3)),
    "repeated": (_einsum("nabc,d->nabcd"), (2,)),
    "ellipsis": (_einsum("...c,cd->...d"), (4, 5)),
    "ellipsis in between": (_einsum("n...c,cd->nd..."), (4, 5)),
    "constant first": (_einsum("dc,nabc->ndab", kernel_first=True), (5, 4)),
    "rows": (tf.matmul, (4, 5)),
    "rows, transposed": (lambda x, k: tf.matmul(x, k, transpose_b=True), (5, 4)),
    "columns": (lambda x, k: tf.matmul(x, k, transpose_a=True), (3, 5)),
    "from the left": (lambda x, k: tf.matmul(k, x), (5, 3)),
    "from the left, all transposed": (
        lambda x, k: tf.matmul(k, x, transpose_a=True, transpose_b=True),
        (4, 5),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_products_along_any_axis_are_read(case, tmp_path):
    product, shape = READ[case]
    module = Product(product, *shape)
    served = served_model.read(module.export(tmp_path / "model"))
    x = np.random.default_rng(5).normal(size=(4, *SHAPE)).astype(np.float32)
    ours = served.network.logits(np.float64(x.reshape(4, -1))).numpy()
    np.testing.assert_allclose(
        module(tf.constant(x)), ours, rtol=SERVED_TOLERANCE, atol=SERVED_TOLERANCE
    )
    served.check(x)


REFUSED = {
    "of other examples": (lambda x, k: tf.einsum("nabc,mabd->ncd", x, x * k), (4,), "batch"),
    "examples summed": (_einsum("nabc,cd->abd"), (4, 5), "mixes examples"),
    "batch moved": (_einsum("nabc,cd->dnab"), (4, 5), "moves the axis of the batch"),
    "of each example": (_einsum("nabc,ncd->nabd"), (1, 4, 5), "mixes examples"),
    "batch in an ellipsis": (_einsum("...bc,cd->b...d"), (4, 5), "mixes examples"),
    "a diagonal": (
        lambda x, k: _einsum("naac,cd->nad")(tf.reshape(x, (-1, 2, 2, 6)), k),
        (6, 5),
        "diagonal",
    ),
    "diagonal of the constant": (_einsum("nabc,cc->nab"), (4, 4), "diagonal"),
    "summed before": (_einsum("nabc,cd->nad"), (4, 5), "one operand alone"),
    "constant summed before": (_einsum("nabc,cd->nab"), (4, 5), "one operand alone"),
    "an ellipsis of the constant": (_einsum("nabc,...c->nab..."), (5, 4), "ellipsis"),
    "one operand": (
        lambda x, k: tf.raw_ops.Einsum(inputs=[x], equation="nabc->nab") * k,
        (1,),
        "two operands",
    ),
    "what TensorFlow overruns": (
        lambda x, k: tf.matmul(tf.reshape(x, (-1, 1, 6, 4)), k),
        (4, 5),
        "issue 117700",
    ),
    "a stack of matrices": (lambda x, k: tf.matmul(x, k), (2, 4, 5), "constant of shape (2, 4, 5)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_products_that_are_no_map_of_each_example_are_refused(case, tmp_path):
    product, shape, reason = REFUSED[case]
    assert_refused(Product(product, *shape).export(tmp_path / "model"), reason)


@pytest.mark.parametrize("between", ["depthwise", "pooled"])
def test_a_contraction_makes_no_image_of_its_filters(between, rng, monkeypatch):
    """Its last axis is free: what a convolution sums over then is pixels, each with its own sum."""
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 60)
    inputs = keras.Input((6, 6, 2, 2))
    images = L.EinsumDense("abcde,e->abcd", (6, 6, 2))(inputs)
    same = L.DepthwiseConv2D(1, use_bias=False) if between == "depthwise" else L.AvgPool2D(2)
    differences = L.Conv2D(1, 1, use_bias=False)(same(images))
    model = keras.Model(inputs, L.Dense(3)(L.Flatten()(L.ReLU()(differences))))
    for weight in model.weights:
        weight.assign(np.ones(weight.shape))
    model.layers[3].set_weights([np.array([1.0, -0.9]).reshape(1, 1, 2, 1)])
    first = served_model.read(model).network.affines[0]
    assert first.is_sparse
    assert np.linalg.norm(first.kernel.toarray(), 2) <= first.norm * (1.0 + 1e-12)
    x = rng.standard_normal((4, 6, 6, 2, 2)).astype(np.float32)
    found = served_model.read(model).network.logits(tf.constant(x.reshape(4, -1).astype(float)))
    np.testing.assert_allclose(found, model(x), atol=1e-5)
