"""Folding: the weights in real arithmetic lie within the bound that comes with them."""

from __future__ import annotations

from fractions import Fraction

import keras
import mpmath
import numpy as np
import pytest
import tensorflow as tf
from keras_oracle import randomize

from keras_curv.network.affine import Affine
from keras_curv.reading import served_model

L = keras.layers


def _exact(array):
    return np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])(np.asarray(array))


def _norm(array):
    return mpmath.sqrt(mpmath.fsum(v**2 for v in np.ravel(array)))


def assert_covers(affine: Affine, kernel, bias, sharp=1e-13):
    """`kernel`, `bias`: numbers of 60 digits. The spectral norm is at most the Frobenius one."""
    kernel_off, bias_off = _norm(_exact(affine.kernel) - kernel), _norm(_exact(affine.bias) - bias)
    assert kernel_off <= affine.kernel_error
    assert bias_off <= affine.bias_error
    # No vacuous bounds: a few dozen roundings, not more.
    assert affine.kernel_error <= sharp * float(_norm(kernel))


def _normalization_in_60_digits(model):
    norm, first, batch, _, last = model.layers
    root = np.vectorize(mpmath.sqrt, otypes=[object])
    deviation = root(_exact(norm.variance)[0])
    kernel, bias = _exact(first.kernel), _exact(first.bias)
    bias = bias - (_exact(norm.mean)[0] / deviation) @ kernel
    kernel = kernel / deviation[:, None]
    scale = _exact(batch.gamma) / root(_exact(batch.moving_variance) + _exact(np.float32(0.001)))
    bias = (bias - _exact(batch.moving_mean)) * scale + _exact(batch.beta)
    return (kernel * scale, bias), (_exact(last.kernel), _exact(last.bias))


@pytest.mark.parametrize("seed", [0, 1])
def test_folded_normalisations_are_within_their_error(seed):
    norm = L.Normalization(mean=np.linspace(-1, 2, 6), variance=np.linspace(0.3, 7, 6))
    layers = [norm, L.Dense(5), L.BatchNormalization(), L.Activation("tanh"), L.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    for layer in (layers[1], layers[2], layers[4]):
        randomize(layer, seed)
    first, last = served_model.read(model).network.affines
    with mpmath.workdps(60):
        exact_first, exact_last = _normalization_in_60_digits(model)
        assert first.kernel_error > 0.0 < first.bias_error
        assert_covers(first, *exact_first)
        assert_covers(last, *exact_last)


def _fractions(array):
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(np.asarray(array))


def _rational_norm(array):
    """In mpmath: the exact rationals overflow no float."""
    return _norm(np.vectorize(lambda q: mpmath.mpf(q.numerator) / q.denominator)(array))


def _read_chain(tmp_path, body, dtype=tf.float64, features=4):
    module = tf.Module()
    spec = tf.TensorSpec((None, features), dtype)
    function = tf.function(body).get_concrete_function(spec)
    tf.saved_model.save(module, str(tmp_path / "chain"), signatures=function)
    return served_model.read(tmp_path / "chain").network.affines[0]


@pytest.mark.parametrize("seed", range(4))
def test_chains_of_affine_steps_are_within_their_error(seed, tmp_path):
    """x (4,) → scale, shift, product, scale, shift, product, all in float64 and in fractions."""
    rng = np.random.default_rng(seed)
    shapes = [(4,), (4,), (4, 5), (5,), (5,), (5, 3)]
    s, t, w, p, q, v = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4) for shape in shapes)
    affine = _read_chain(tmp_path, lambda x: (((x * s + t) @ w) * p - q) @ v)
    s, t, w, p, q, v = map(_fractions, (s, t, w, p, q, v))
    kernel = ((s[:, None] * w) * p) @ v
    bias = ((t @ w) * p - q) @ v
    with mpmath.workdps(60):
        kernel_off = _rational_norm(_fractions(affine.kernel) - kernel)
        bias_off = _rational_norm(_fractions(affine.bias) - bias)
        assert 0 < kernel_off <= affine.kernel_error <= 1e-10 * float(_rational_norm(kernel))
        assert 0 < bias_off <= affine.bias_error


def test_an_error_outlives_the_value_it_belongs_to(tmp_path):
    """`p q − fl(p q)` is 0 in float64 but not in real arithmetic, and 10¹² times it counts."""
    rng = np.random.default_rng(1)
    p, q, w = rng.normal(size=4), rng.normal(size=4), rng.normal(size=(4, 3))
    affine = _read_chain(tmp_path, lambda x: (((x + p) * q - p * q) * 1e12) @ w)
    lost = _fractions(p) * _fractions(q) - _fractions(p * q)
    bias = (lost * Fraction(10**12)) @ _fractions(w)
    with mpmath.workdps(60):
        assert _rational_norm(bias) > 1e-6
        assert _rational_norm(_fractions(affine.bias) - bias) <= affine.bias_error


def _read_variables(tmp_path, body, **arrays):
    """Like `_read_chain`, but the arrays are variables, so their arithmetic is in the graph."""
    module = tf.Module()
    for name, array in arrays.items():
        setattr(module, name, tf.Variable(array))
    spec = tf.TensorSpec((None, 4), tf.float64)
    function = tf.function(lambda x: body(x, module)).get_concrete_function(spec)
    tf.saved_model.save(module, str(tmp_path / "chain"), signatures=function)
    return served_model.read(tmp_path / "chain").network.affines[0]


def test_a_product_of_constants_is_within_its_error(tmp_path):
    p, q = np.random.default_rng(3).normal(size=(2, 4))
    affine = _read_variables(tmp_path, lambda x, m: x * (m.p * m.q), p=p, q=q)
    off = _fractions(affine.kernel) - np.diag(_fractions(p) * _fractions(q))
    with mpmath.workdps(60):
        assert 0 < _rational_norm(off) <= affine.kernel_error <= 1e-14


def test_a_root_of_a_cancelled_sum_is_within_its_error(tmp_path):
    """`p q − r` is small, so its relative error is large, and the root passes half of it on."""
    p, q = 1.0 + np.random.default_rng(3).random((2, 4))
    r = p * q - 2e-14
    affine = _read_variables(tmp_path, lambda x, m: x * tf.sqrt(m.p * m.q - m.r), p=p, q=q, r=r)
    with mpmath.workdps(60):
        exact = [mpmath.sqrt(a * b - c) for a, b, c in zip(*map(_exact, (p, q, r)), strict=True)]
        off = _norm(np.diag(_exact(affine.kernel)) - np.array(exact))
        assert 1e-12 < off <= affine.kernel_error <= 1e-7
