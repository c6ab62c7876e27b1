"""The curvature in training: what the proved bound says, from below, and its gradient."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from estimate_oracle import by_eigenvalues

from keras_curv.curvature.signed import signed_bound
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.training.trainable.curvature_estimate import CurvatureEstimate

SIZES = {2: (4, 9, 3), 3: (4, 9, 5, 3), 4: (3, 4, 8, 5, 3), 5: (3, 6, 4, 7, 5, 4)}
CARRYING = "carrying"  # half of the units of a layer
MIXED = ("tanh", "softplus", "sigmoid", "softplus")
CASES = [
    pytest.param(SIZES[2], ("tanh",), id="tanh2"),
    pytest.param(SIZES[3], ("softplus",) * 2, id="softplus3"),
    pytest.param(SIZES[4], MIXED[:3], id="mixed4"),
    pytest.param(SIZES[5], MIXED, id="mixed5"),
    pytest.param(SIZES[3], (CARRYING, "softplus"), id="carry3"),
]
CONVERGED = 1000  # steps of power iteration: random kernels leave gaps of a few per cent


def _activations(sizes, names):
    """The first half of the units carry in layers that are called so."""
    return tuple(
        unit_wise([(IDENTITY, size // 2), (ACTIVATIONS["tanh"], size - size // 2)])
        if name == CARRYING
        else ACTIVATIONS[name]
        for name, size in zip(names, sizes[1:-1], strict=True)
    )


@pytest.fixture
def network_of(random_network):
    def build(rng, sizes, names, scale=1.5):
        affines = random_network(rng, sizes, "tanh", scale).affines
        return Network(affines, _activations(sizes, names))

    return build


class _Kernels(FeedForward):
    """A network of which only the kernels, and these as tensors, are of interest."""

    def __init__(self, kernels, activations):
        self.sizes = (*(kernel.shape[0] for kernel in kernels), kernels[-1].shape[1])
        self.activations = activations
        self.kernels = kernels

    def weights(self, dtype):
        assert dtype == tf.float32
        return self.kernels, [tf.zeros(size) for size in self.sizes[1:]]


class _Traced:
    """An estimate before its first step, and its functions: traced once, of whatever kernels."""

    def __init__(self, sizes, names):
        self.state = CurvatureEstimate(sizes, _activations(sizes, names))
        self.first = _state(self.state)
        self.state.start_iterations = self.iterations = tf.Variable(0)
        self._advance = tf.function(lambda k: self.state.advance(self._of(k)), autograph=False)
        self._estimate = tf.function(lambda k: self.state.estimate(self._of(k)), autograph=False)
        self._compiled = tf.function(self._evaluate, jit_compile=True, autograph=False)

    def restart(self, iterations):
        self.iterations.assign(iterations)
        for variable, value in zip(self.state.variables, self.first, strict=True):
            variable.assign(value)

    def advance(self, kernels):
        return self._advance(_tensors(kernels)).numpy()

    def estimate(self, kernels):
        return self._estimate(_tensors(kernels)).numpy()

    def value_and_gradients(self, kernels, weights=1.0, compiled=False):
        """`Σ weights ∘ κ` and its gradient in the kernels."""
        evaluate = self._compiled if compiled else self._evaluate
        value, gradients = evaluate(_tensors(kernels), tf.constant(weights, tf.float32))
        return value.numpy(), [gradient.numpy() for gradient in gradients]

    def _of(self, kernels):
        return _Kernels(kernels, self.state.activations)

    def _evaluate(self, kernels, weights):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            value = tf.reduce_sum(weights * self.state.estimate(self._of(kernels)))
        return value, [tf.convert_to_tensor(g) for g in tape.gradient(value, kernels)]


_traced = functools.cache(_Traced)


def _restarted(sizes, names, iterations):
    traced = _traced(sizes, names)
    traced.restart(iterations)
    return traced


def _tensors(kernels):
    return [tf.constant(kernel, tf.float32) for kernel in kernels]


def _kernels(network):
    return [affine.kernel for affine in network.affines]


def _state(estimate):
    return [variable.numpy() for variable in estimate.variables]


every_case = pytest.mark.parametrize(("sizes", "names"), CASES)


@every_case
def test_converged_it_is_the_bound(sizes, names, rng, network_of):
    for scale in (0.3, 4.0):
        network = network_of(rng, sizes, names, scale)
        kernels = _kernels(network)
        traced = _restarted(sizes, names, CONVERGED)
        traced.advance(kernels)
        expected = by_eigenvalues(kernels, network.activations)
        # float32 sums of up to nine terms, squared and multiplied over up to five layers.
        np.testing.assert_allclose(traced.estimate(kernels), expected, rtol=2e-5, atol=1e-6)
        bound = -signed_bound(network).lower
        # 1e-8: what a proved bound costs at most.
        if CARRYING not in names:
            np.testing.assert_allclose(expected, bound, rtol=1e-8, atol=1e-12)
        assert np.all(bound <= expected * (1.0 + 1e-8) + 1e-12)


@every_case
def test_it_is_never_above_the_bound(sizes, names, rng, network_of):
    for iterations, scale in itertools.product((1, 3, 25), (0.3, 1.5, 4.0)):
        network = network_of(rng, sizes, names, scale)
        kernels = _kernels(network)
        bound = by_eigenvalues(kernels, network.activations)
        value = _restarted(sizes, names, iterations).estimate(kernels)
        assert np.all(value <= bound * (1.0 + 2e-5)), (iterations, scale)  # float32, as above
        assert np.all(value >= 0.0) and not np.any(np.diag(value)), (iterations, scale)
        if iterations > 1:  # nor far below it
            assert np.mean(value[bound > 0.0] / bound[bound > 0.0]) > 0.5, (iterations, scale)


def _estimate_and_step(network, iterations=25):
    """An estimate, and its `advance` with this network."""
    estimate = CurvatureEstimate(network.sizes, network.activations)
    estimate.start_iterations = iterations
    advance = tf.function(estimate.advance, autograph=False)
    return estimate, lambda: advance(network)


def test_single_steps_converge_too(rng, random_network):
    network = random_network(rng, SIZES[4], MIXED[:3])
    estimate, advance = _estimate_and_step(network, 1)
    for _ in range(400):
        advance()
    bound = -signed_bound(network).lower
    np.testing.assert_allclose(estimate.estimate(network), bound, rtol=1e-4)  # 400 steps


def test_an_affine_network_has_no_curvature(rng, random_network):
    network = random_network(rng, (4, 3), ())
    estimate, advance = _estimate_and_step(network)
    advance()
    np.testing.assert_array_equal(estimate.estimate(network), np.zeros((3, 3)))


def _powered(vectors, matrix, times):
    """Power iteration in float64, row by row."""
    result = []
    for vector in np.asarray(vectors, np.float64):
        vector = vector / np.linalg.norm(vector)
        for _ in range(times):
            vector = matrix @ vector
            vector /= np.linalg.norm(vector)
        result.append(vector)
    return np.array(result)


def test_25_iterations_at_first_and_then_one(rng, random_network):
    network = random_network(rng, (5, 12, 3), "tanh")
    first, last = _kernels(network)
    estimate, advance = _estimate_and_step(network)
    pairs = [(y, t) for y in range(3) for t in range(3) if y != t]
    matrices = [
        first @ np.diag(4 / (3 * np.sqrt(3)) * np.abs(last[:, y] - last[:, t])) @ first.T
        for y, t in pairs
    ]
    rows = [3 * y + t for y, t in pairs]
    start = estimate.pair_vectors[0].numpy()[rows]
    for step, iterations in enumerate((25, 26, 27)):
        advance()
        assert estimate.steps.numpy() == step + 1
        now = estimate.pair_vectors[0].numpy()[rows]
        for vector, begin, matrix in zip(now, start, matrices, strict=True):
            expected = _powered([begin], matrix, iterations)[0]
            np.testing.assert_allclose(vector, expected, atol=1e-5)  # float32


def test_products_of_kernels_move_as_far(rng, random_network):
    network = random_network(rng, (5, 12, 6, 7, 3), "sigmoid", 0.7)
    kernels = _kernels(network)
    estimate, advance = _estimate_and_step(network)
    assert estimate.spans == [(0, 0), (0, 1), (1, 1)] and estimate.kernels == [2]
    spans = [*estimate.spans, (2, 2)]
    variables = [*estimate.product_vectors, *estimate.kernel_vectors]
    start = [variable.numpy() for variable in variables]
    for iterations in (25, 26):
        advance()
        for (i, j), begin, now in zip(spans, start, variables, strict=True):
            product = np.eye(len(kernels[i]))
            for kernel in kernels[i : j + 1]:
                product = product @ kernel
            expected = _powered(begin, product @ product.T, iterations)
            np.testing.assert_allclose(now, expected, atol=1e-5)  # float32


@every_case
def test_jacobians_kept_inside_only_gain(sizes, names, rng, network_of):
    network = network_of(rng, sizes, names, 2.0)
    kernels = _kernels(network)
    inside, outside = (by_eigenvalues(kernels, network.activations, i) for i in (True, False))
    if CARRYING not in names:
        assert np.all(inside <= outside * (1.0 + 1e-12))
    if len(sizes) > 3:
        assert np.mean(inside) < 0.99 * np.mean(outside)


def test_only_advance_moves(rng, random_network):
    kernels = _kernels(random_network(rng, SIZES[4], MIXED[:3]))
    traced = _restarted(SIZES[4], MIXED[:3], 3)
    for step in range(2):
        before = _state(traced.state)
        value = traced.estimate(kernels)
        np.testing.assert_array_equal(traced.estimate(kernels), value)
        for now, then in zip(_state(traced.state), before, strict=True):
            np.testing.assert_array_equal(now, then)
        kappa = traced.advance(kernels)
        if step:  # the first step's is that of one iteration less
            np.testing.assert_allclose(kappa, value, rtol=1e-6)  # float32, in another graph
        moved = [np.any(n != t) for n, t in zip(_state(traced.state), before, strict=True)]
        assert moved[:6] == [True] * 6 and moved[-1]  # a product's vector may have converged


def test_before_the_first_step_it_answers_as_after_it(rng, random_network):
    kernels = _kernels(random_network(rng, SIZES[4], MIXED[:3]))
    traced = _restarted(SIZES[4], MIXED[:3], 25)
    before = traced.estimate(kernels)
    traced.advance(kernels)
    np.testing.assert_allclose(traced.estimate(kernels), before, rtol=1e-5)  # float32


def test_two_models_start_alike(rng, random_network):
    network = random_network(rng, SIZES[3], MIXED[:2])
    one, other = (CurvatureEstimate(network.sizes, network.activations) for _ in range(2))
    for a, b in zip(_state(one), _state(other), strict=True):
        np.testing.assert_array_equal(a, b)


@every_case
def test_the_gradient_is_that_of_the_bound(sizes, names, rng, network_of):
    network = network_of(rng, sizes, names, 1.2)
    kernels = [np.asarray(kernel, np.float32) for kernel in _kernels(network)]
    weights = rng.uniform(0.5, 1.5, (network.classes, network.classes)).astype(np.float32)
    traced = _restarted(sizes, names, 3 * CONVERGED)
    traced.advance(kernels)
    _, gradients = traced.value_and_gradients(kernels, weights)
    step = 1e-6  # of float64 differences: truncation 1e-12, rounding 1e-10
    for index, gradient in enumerate(gradients):
        expected = np.zeros_like(gradient, np.float64)
        for entry in np.ndindex(gradient.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [kernel.astype(np.float64) for kernel in kernels]
                moved[index][entry] += sign * step
                ends.append(np.sum(weights * by_eigenvalues(moved, network.activations)))
            expected[entry] = (ends[0] - ends[1]) / (2.0 * step)
        # float32, and eigenvectors that converge half as fast as eigenvalues.
        np.testing.assert_allclose(gradient, expected, atol=1e-3 * np.abs(expected).max())


def test_the_gradient_holds_the_vectors_fixed(rng, random_network):
    """The same whether they are state, or iterated for this one answer; here far from converged."""
    kernels = _kernels(random_network(rng, SIZES[4], MIXED[:3]))
    traced = _restarted(SIZES[4], MIXED[:3], 2)
    _, before = traced.value_and_gradients(kernels)
    traced.advance(kernels)
    _, after = traced.value_and_gradients(kernels)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())  # float32


def _degenerate(kernels):
    """These kernels spoiled, by what is the trouble with them."""
    twice = np.column_stack([kernels[-1][:, :1], kernels[-1][:, :1], kernels[-1][:, 2:]])
    return {
        "zero": [np.zeros_like(kernel) for kernel in kernels],
        "first zero": [np.zeros_like(kernels[0]), *kernels[1:]],
        "last zero": [*kernels[:-1], np.zeros_like(kernels[-1])],
        "equal columns": [*kernels[:-1], twice],
        "equal": [np.ones_like(kernel) for kernel in kernels],
    }


@pytest.mark.parametrize("depth", [3, 5])
def test_degenerate_kernels_give_numbers(depth, rng, random_network):
    network = random_network(rng, SIZES[depth], MIXED[: depth - 1])
    for trouble, kernels in _degenerate(_kernels(network)).items():
        traced = _restarted(SIZES[depth], MIXED[: depth - 1], 25)
        for compiled in (False, depth == 3):  # XLA has gradients of its own, and compiles for long
            traced.advance(kernels)
            value, gradients = traced.value_and_gradients(kernels, compiled=compiled)
            assert np.isfinite(value), trouble
            assert all(np.isfinite(gradient).all() for gradient in gradients), trouble
        biases = [affine.bias for affine in network.affines]
        bound = -signed_bound(Network.from_weights(kernels, biases, MIXED[: depth - 1])).lower
        # 1e-20: norms are √(‖·‖² + 1e-30).
        assert np.all(np.abs(traced.estimate(kernels)[bound == 0.0]) < 1e-20), trouble
        # The vectors have stayed unit vectors, from which training can go on.
        state = traced.state
        rows = state.pairs[0] * network.classes + state.pairs[1]
        pairs = [each.numpy()[rows] for each in state.pair_vectors]
        for each in (*pairs, *state.product_vectors, *state.kernel_vectors):
            np.testing.assert_allclose(
                np.linalg.norm(each, axis=1), 1.0, rtol=1e-5, err_msg=trouble
            )


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e3])
def test_small_and_large_kernels_give_numbers(size, rng, random_network):
    kernels = _kernels(random_network(rng, SIZES[4], MIXED[:3], size))
    traced = _restarted(SIZES[4], MIXED[:3], 25)
    traced.advance(kernels)
    value, gradients = traced.value_and_gradients(kernels)
    assert np.isfinite(value) and value >= 0.0
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_two_classes(rng, random_network):
    network = random_network(rng, (4, 9, 2), "tanh")
    estimate, advance = _estimate_and_step(network, CONVERGED)
    advance()
    value = estimate.estimate(network).numpy()
    assert value.shape == (2, 2) and not np.any(np.diag(value))
    first, last = _kernels(network)
    w = 4 / (3 * np.sqrt(3)) * np.abs(last[:, 0] - last[:, 1])
    expected = np.linalg.eigvalsh(first @ np.diag(w) @ first.T)[-1]
    np.testing.assert_allclose([value[0, 1], value[1, 0]], expected, rtol=1e-5)  # float32


def test_state_is_float32_and_not_trained():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        estimate = CurvatureEstimate(
            (4, 9, 5, 3),
            Network.from_weights(
                [np.zeros((4, 9)), np.zeros((9, 5)), np.zeros((5, 3))],
                [np.zeros(9), np.zeros(5), np.zeros(3)],
                "tanh",
            ).activations,
        )
    finally:
        keras.config.set_dtype_policy("float32")
    assert not estimate.trainable_variables
    assert {variable.dtype for variable in estimate.variables} == {"float32", "int32"}
