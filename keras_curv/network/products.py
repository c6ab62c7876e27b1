"""Products of arrays with the matrix of an affine map, and with its transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import tensorflow as tf

from keras_curv.numerics.column_groups import Kind, kinds_of

_TOGETHER = 8  # least average number of columns in a group
_KINDS = 64  # largest number of kinds of groups


class Product(NamedTuple):
    """A product with a matrix and with its transpose, on the last axis of arrays of any rank."""

    forward: Callable[[tf.Tensor], tf.Tensor]
    backward: Callable[[tf.Tensor], tf.Tensor]


def dense_product(kernel: tf.Tensor) -> Product:
    """Returns the products `a ↦ a W` and `t ↦ t Wᵀ`.

    Example:
        >>> product = dense_product(tf.constant([[1.0, 2.0]]))
        >>> product.backward(tf.constant([[1.0, 1.0]])).numpy()
        array([[3.]], dtype=float32)
    """
    return Product(
        functools.partial(last_axis_product, matrix=kernel, transposed=False),
        functools.partial(last_axis_product, matrix=kernel, transposed=True),
    )


def last_axis_product(array: tf.Tensor, matrix: tf.Tensor, transposed: bool = False) -> tf.Tensor:
    """Returns `array @ matrix` on the last axis, by one large product, not many small ones."""
    if len(array.shape) == 2:
        return tf.matmul(array, matrix, transpose_b=transposed)
    shape, sizes = tf.shape(array), tf.unstack(tf.shape(matrix))
    rows, columns = reversed(sizes) if transposed else sizes
    product = tf.matmul(tf.reshape(array, (-1, rows)), matrix, transpose_b=transposed)
    return tf.reshape(product, tf.concat([shape[:-1], [columns]], axis=0))


def float32_keeps_digits(seed: tf.Tensor) -> tf.Tensor:
    """Returns whether float32 products keep the digits of their factors, as the rounding charge
    assumes; to be called in the graph whose products are in question.

    They lose digits where a setting of TensorFlow, an environment variable or a device rounds
    factors to bfloat16 or TF32 first: then a product with the identity changes the other factor.
    Such a setting may change after a graph was traced, so each call tests it; and it compares in
    float64, because a comparison in float32 may be rounded too.

    Args:
        seed: `(2,)`, int32, of the numbers that are multiplied; it must not be known before the
            graph runs, or the result would be folded into a constant when the graph is made.
    """
    tried, one = tf.random.stateless_uniform((64, 64), seed, 1.0, 2.0, tf.float32), tf.eye(64)
    before = tf.cast(tried, tf.float64)
    products = tf.matmul(one, tried), tf.matmul(tried, one, transpose_b=True)
    return tf.reduce_all([tf.reduce_all(tf.cast(p, tf.float64) == before) for p in products])


def sparse_product(kernel: scipy.sparse.csr_array, dtype: tf.DType) -> Product:
    """Returns the products with a sparse W, `(in, out)`, as constants of a dtype.

    The products of a convolution use its filters, at all places at once; see `Kind`.

    Example:
        >>> product = sparse_product(scipy.sparse.csr_array([[1.0, 2.0]]), tf.float32)
        >>> product.forward(tf.constant([[3.0]])).numpy()
        array([[3., 6.]], dtype=float32)
    """
    return SparseProducts(kernel).of(dtype)


class SparseProducts:
    """The products with a sparse matrix in any dtype, whose common structure is found once.

    Args:
        kernel: W, `(in, out)`.
    """

    def __init__(self, kernel: scipy.sparse.csr_array):
        self._shape = kernel.shape
        kinds = kinds_of(scipy.sparse.csc_array(kernel), _TOGETHER)
        self._kinds = None if kinds is None or len(kinds) > _KINDS else kinds
        if self._kinds is None:
            stored = kernel.tocoo()
            self._stored = stored.data
            with tf.init_scope():  # outside of any graph: captured, not copied into it
                self._places = tf.constant(np.stack(stored.coords, axis=1, dtype=np.int64))

    def of(self, dtype: tf.DType) -> Product:
        """Returns the products with constants of a dtype; see `sparse_product`."""
        kinds, shape = self._kinds, self._shape
        with tf.init_scope():
            if kinds is None:
                matrix = tf.SparseTensor(self._places, tf.constant(self._stored, dtype), shape)
                forward = functools.partial(_unstructured, matrix=matrix, transposed=False)
                return Product(
                    forward, functools.partial(_unstructured, matrix=matrix, transposed=True)
                )
            reading = Windows(kinds, shape, dtype)
            writing = Windows([Kind(v.T, c, r) for v, r, c in kinds], shape[::-1], dtype)
        return Product(reading, writing)


class Windows:
    """The product with a matrix of column groups: gathers inputs, multiplies, adds to outputs."""

    def __init__(self, kinds: Sequence[Kind], shape: tuple[int, int], dtype: tf.DType):
        self._fan_in, self._fan_out = shape
        self._values = [tf.constant(kind.values.T, dtype) for kind in kinds]
        self._from = [tf.constant(kind.rows.T, tf.int32) for kind in kinds]
        self._to = tf.constant(np.concatenate([kind.columns.T.reshape(-1) for kind in kinds]))

    def __call__(self, array: tf.Tensor) -> tf.Tensor:
        """Returns the products with rows `(n, in)`, `(n, out)`."""
        flat = tf.transpose(tf.reshape(array, (-1, self._fan_in)))
        count, parts = tf.shape(flat)[1], []
        for values, places in zip(self._values, self._from, strict=True):
            (written, read), groups = values.shape, places.shape[1]
            seen = tf.reshape(tf.gather(flat, places), (read, groups * count))
            parts.append(tf.reshape(tf.matmul(values, seen), (written * groups, count)))
        total = tf.math.unsorted_segment_sum(tf.concat(parts, axis=0), self._to, self._fan_out)
        shape = tf.concat([tf.shape(array)[:-1], [self._fan_out]], axis=0)
        return tf.reshape(tf.transpose(total), shape)


def _unstructured(array: tf.Tensor, *, matrix: tf.SparseTensor, transposed: bool) -> tf.Tensor:
    """Returns `array @ matrix` on the last axis, or the product with the transposed matrix."""
    rows, columns = matrix.shape[::-1] if transposed else matrix.shape
    # Four times as fast as `tf.sparse.sparse_dense_matmul`, which has one thread.
    product = tf.raw_ops.SparseMatrixMatMul(
        a=tf.raw_ops.SparseTensorToCSRSparseMatrix(
            indices=matrix.indices, values=matrix.values, dense_shape=matrix.dense_shape
        ),
        b=tf.reshape(array, (-1, rows)),
        transpose_a=not transposed,
        transpose_b=True,
        transpose_output=True,
    )
    return tf.reshape(product, tf.concat([tf.shape(array)[:-1], [columns]], axis=0))
