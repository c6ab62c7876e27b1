"""The curvature in training: what the proved bound says, from below, and its gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.curvature.estimate import CurvatureEstimate
from keras_curv.curvature.signed import signed_bound
from keras_curv.network.network import FeedForward, Network

SIZES = {2: (4, 9, 3), 3: (4, 9, 5, 3), 4: (3, 4, 8, 5, 3), 5: (3, 6, 4, 7, 5, 4)}
MIXED = ("tanh", "softplus", "sigmoid", "softplus")
CASES = [
    pytest.param(sizes, names, id=f"{label}{depth}")
    for depth, sizes in SIZES.items()
    for label, names in {
        "softplus": ("softplus",) * (depth - 1),
        "sigmoid": ("sigmoid",) * (depth - 1),
        "tanh": ("tanh",) * (depth - 1),
        "mixed": MIXED[: depth - 1],
    }.items()
    if depth > 2 or label != "mixed"
]
CONVERGED = 1000  # steps of power iteration: random kernels leave gaps of a few per cent


def _estimate_of(network, iterations):
    return CurvatureEstimate(network.sizes, network.activations, start_iterations=iterations)


def _advance(estimate, network):
    tf.function(estimate.advance, autograph=False)(network)


def _state(estimate):
    return [variable.numpy() for variable in estimate.variables]


def _by_eigenvalues(kernels, activations):
    """The signed bound in float64, by dense eigenvalues and singular values."""
    kernels = [np.asarray(kernel, np.float64) for kernel in kernels]
    g = [a.slope for a in activations]
    c = [sum(a.first_range) / 2 for a in activations]
    s = [(a.first_range[1] - a.first_range[0]) / 2 for a in activations]
    hidden = len(activations)

    def norm(first, last):
        return np.linalg.norm(
            np.linalg.multi_dot([*kernels[first : last + 1], np.eye(kernels[last].shape[1])]), 2
        )

    ell = []
    for last in range(hidden):
        total = np.prod(np.abs(c[:last])) * norm(0, last)
        for j in range(last):
            total += s[j] * np.prod(np.abs(c[j + 1 : last])) * norm(j + 1, last) * ell[j]
        ell.append(min(total, norm(last, last) * g[last - 1] * ell[-1]) if last else total)
    outer = [1.0, *(slope * bound for slope, bound in zip(g, ell, strict=True))]

    classes = kernels[-1].shape[1]
    kappa = np.zeros((classes, classes))
    for y in range(classes):
        for t in range(classes):
            low = high = kernels[-1][:, y] - kernels[-1][:, t]
            reach = np.linalg.norm(low)
            for i in reversed(range(hidden)):
                d = np.min(
                    [h * e for h in activations[i].second_range for e in (low, high)], axis=0
                )
                matrix = kernels[i] @ np.diag(np.maximum(-d, 0.0)) @ kernels[i].T
                kappa[y, t] += np.linalg.eigvalsh(matrix)[-1] * outer[i] ** 2
                ends = [slope * e for slope in activations[i].first_range for e in (low, high)]
                p, q = np.min(ends, axis=0), np.max(ends, axis=0)
                plus, minus = np.maximum(kernels[i], 0.0), np.minimum(kernels[i], 0.0)
                entries = np.linalg.norm(kernels[i], axis=1) * g[i] * reach
                low, high = (
                    np.maximum(plus @ p + minus @ q, -entries),
                    np.minimum(plus @ q + minus @ p, entries),
                )
                reach *= g[i] * np.linalg.norm(kernels[i], 2)
    return kappa


@pytest.mark.parametrize(("sizes", "names"), CASES)
def test_converged_it_is_the_bound(sizes, names, rng, random_network):
    for scale in (0.3, 4.0):
        network = random_network(rng, sizes, names, scale)
        estimate = _estimate_of(network, CONVERGED)
        _advance(estimate, network)
        bound = -signed_bound(network).lower
        # float32 sums of up to nine terms, squared and multiplied over up to five layers.
        np.testing.assert_allclose(estimate.estimate(network), bound, rtol=2e-5, atol=1e-6)
        kernels = [affine.kernel for affine in network.affines]
        # 1e-8: what a proved bound costs at most.
        expected = _by_eigenvalues(kernels, network.activations)
        np.testing.assert_allclose(expected, bound, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("sizes", "names"), CASES)
@pytest.mark.parametrize("iterations", [1, 3, 25])
def test_it_is_never_above_the_bound(sizes, names, iterations, rng, random_network):
    for scale in (0.3, 1.5, 4.0):
        network = random_network(rng, sizes, names, scale)
        bound = -signed_bound(network).lower
        value = _estimate_of(network, iterations).estimate(network).numpy()
        assert np.all(value <= bound * (1.0 + 2e-5))  # float32, as above
        assert np.all(value >= 0.0) and not np.any(np.diag(value))
        if iterations > 1:  # nor far below it
            assert np.mean(value[bound > 0.0] / bound[bound > 0.0]) > 0.5


def test_single_steps_converge_too(rng, random_network):
    network = random_network(rng, SIZES[4], MIXED[:3])
    estimate = _estimate_of(network, 1)
    advance = tf.function(estimate.advance, autograph=False)
    for _ in range(400):
        advance(network)
    bound = -signed_bound(network).lower
    np.testing.assert_allclose(estimate.estimate(network), bound, rtol=1e-4)  # 400 steps


def test_an_affine_network_has_no_curvature(rng, random_network):
    network = random_network(rng, (4, 3), ())
    estimate = _estimate_of(network, 25)
    _advance(estimate, network)
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
    first, last = (affine.kernel for affine in network.affines)
    estimate = CurvatureEstimate(network.sizes, network.activations)
    pairs = [(y, t) for y in range(3) for t in range(3) if y != t]
    matrices = [
        first @ np.diag(4 / (3 * np.sqrt(3)) * np.abs(last[:, y] - last[:, t])) @ first.T
        for y, t in pairs
    ]
    rows = [3 * y + t for y, t in pairs]
    start = estimate.pair_vectors[0].numpy()[rows]
    for step, iterations in enumerate((25, 26, 27)):
        _advance(estimate, network)
        assert estimate.steps.numpy() == step + 1
        now = estimate.pair_vectors[0].numpy()[rows]
        for vector, begin, matrix in zip(now, start, matrices, strict=True):
            expected = _powered([begin], matrix, iterations)[0]
            np.testing.assert_allclose(vector, expected, atol=1e-5)  # float32


def test_products_of_kernels_move_as_far(rng, random_network):
    network = random_network(rng, (5, 12, 6, 7, 3), "tanh", 0.7)
    kernels = [affine.kernel for affine in network.affines]
    estimate = CurvatureEstimate(network.sizes, network.activations)
    assert set(estimate.spans) == {(0, 1), (0, 2), (1, 2), (2, 3)}
    start = [variable.numpy() for variable in estimate.product_vectors]
    for iterations in (25, 26):
        _advance(estimate, network)
        for (i, j), begin, now in zip(estimate.spans, start, estimate.product_vectors, strict=True):
            product = np.eye(len(kernels[i]))
            for kernel in kernels[i:j]:
                product = product @ kernel
            expected = _powered(begin, product @ product.T, iterations)
            np.testing.assert_allclose(now, expected, atol=1e-5)  # float32


def test_only_advance_moves(rng, random_network):
    network = random_network(rng, SIZES[4], MIXED[:3])
    estimate = CurvatureEstimate(network.sizes, network.activations)
    for _ in range(2):
        before = _state(estimate)
        value = estimate.estimate(network)
        np.testing.assert_array_equal(estimate.estimate(network), value)
        for now, then in zip(_state(estimate), before, strict=True):
            np.testing.assert_array_equal(now, then)
        _advance(estimate, network)
        moved = [np.any(n != t) for n, t in zip(_state(estimate), before, strict=True)]
        assert moved[:3] == [True] * 3 and moved[-1]  # a product's vector may have converged


def test_before_the_first_step_it_answers_as_after_it(rng, random_network):
    network = random_network(rng, SIZES[4], MIXED[:3])
    estimate = CurvatureEstimate(network.sizes, network.activations)
    before = estimate.estimate(network)
    _advance(estimate, network)
    np.testing.assert_allclose(estimate.estimate(network), before, rtol=1e-5)  # float32


def test_two_models_start_alike(rng, random_network):
    network = random_network(rng, SIZES[3], MIXED[:2])
    one, other = (CurvatureEstimate(network.sizes, network.activations) for _ in range(2))
    for a, b in zip(_state(one), _state(other), strict=True):
        np.testing.assert_array_equal(a, b)


class _Kernels(FeedForward):
    """A network of which only the kernels, and these as tensors, are of interest."""

    def __init__(self, kernels, activations):
        self.sizes = (*(kernel.shape[0] for kernel in kernels), kernels[-1].shape[1])
        self.activations = activations
        self.kernels = kernels

    def weights(self, dtype):
        assert dtype == tf.float32
        return self.kernels, [tf.zeros(size) for size in self.sizes[1:]]


def _value_and_gradients(estimate, kernels, activations, weights, compiled=False):
    """`Σ weights ∘ κ` and its gradient in the kernels."""

    def evaluate(kernels):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            value = tf.reduce_sum(weights * estimate.estimate(_Kernels(kernels, activations)))
        return value, tape.gradient(value, kernels)

    if compiled:
        evaluate = tf.function(evaluate, jit_compile=True, autograph=False)
    value, gradients = evaluate([tf.constant(kernel, tf.float32) for kernel in kernels])
    return value.numpy(), [np.asarray(g) for g in gradients]


@pytest.mark.parametrize(("sizes", "names"), CASES)
def test_the_gradient_is_that_of_the_bound(sizes, names, rng, random_network):
    network = random_network(rng, sizes, names, 1.2)
    kernels = [np.asarray(affine.kernel, np.float32) for affine in network.affines]
    weights = rng.uniform(0.5, 1.5, (network.classes, network.classes)).astype(np.float32)
    estimate = _estimate_of(network, 3 * CONVERGED)
    _advance(estimate, network)
    _, gradients = _value_and_gradients(estimate, kernels, network.activations, weights)
    step = 1e-6  # of float64 differences: truncation 1e-12, rounding 1e-10
    for index, gradient in enumerate(gradients):
        expected = np.zeros_like(gradient, np.float64)
        for entry in np.ndindex(gradient.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [kernel.astype(np.float64) for kernel in kernels]
                moved[index][entry] += sign * step
                ends.append(np.sum(weights * _by_eigenvalues(moved, network.activations)))
            expected[entry] = (ends[0] - ends[1]) / (2.0 * step)
        # float32, and eigenvectors that converge half as fast as eigenvalues.
        np.testing.assert_allclose(gradient, expected, atol=1e-3 * np.abs(expected).max())


def test_the_gradient_holds_the_vectors_fixed(rng, random_network):
    """The same whether they are state, or iterated for this one answer; here far from converged."""
    network = random_network(rng, SIZES[4], MIXED[:3])
    kernels = [affine.kernel for affine in network.affines]
    estimate = _estimate_of(network, 2)
    _, before = _value_and_gradients(estimate, kernels, network.activations, 1.0)
    _advance(estimate, network)
    _, after = _value_and_gradients(estimate, kernels, network.activations, 1.0)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())  # float32


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
@pytest.mark.parametrize("trouble", ["zero", "first zero", "last zero", "equal columns", "equal"])
def test_degenerate_kernels_give_numbers(depth, trouble, rng, random_network):
    network = random_network(rng, SIZES[depth], MIXED[: depth - 1])
    kernels = [affine.kernel.copy() for affine in network.affines]
    if trouble == "zero":
        kernels = [np.zeros_like(kernel) for kernel in kernels]
    elif trouble == "first zero":
        kernels[0][:] = 0.0
    elif trouble == "last zero":
        kernels[-1][:] = 0.0
    elif trouble == "equal columns":
        kernels[-1][:, 1] = kernels[-1][:, 0]
    else:
        kernels = [np.ones_like(kernel) for kernel in kernels]
    degenerate = Network.from_weights(
        kernels, [affine.bias for affine in network.affines], MIXED[: depth - 1]
    )
    estimate = _estimate_of(network, 25)
    for compiled in (False, depth == 3):  # XLA has gradients of its own, and compiles for long
        _advance(estimate, degenerate)
        value, gradients = _value_and_gradients(
            estimate, kernels, network.activations, 1.0, compiled
        )
        assert np.isfinite(value)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
    bound = -signed_bound(degenerate).lower
    # 1e-20: norms are √(‖·‖² + 1e-30).
    assert np.all(np.abs(estimate.estimate(degenerate).numpy()[bound == 0.0]) < 1e-20)
    # The vectors have stayed unit vectors, from which training can go on.
    for vectors in (*estimate.pair_vectors, *estimate.product_vectors):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e3])
def test_small_and_large_kernels_give_numbers(size, rng, random_network):
    network = random_network(rng, SIZES[4], MIXED[:3], size)
    kernels = [affine.kernel for affine in network.affines]
    estimate = _estimate_of(network, 25)
    _advance(estimate, network)
    value, gradients = _value_and_gradients(estimate, kernels, network.activations, 1.0)
    assert np.isfinite(value) and value >= 0.0
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_two_classes(rng, random_network):
    network = random_network(rng, (4, 9, 2), "tanh")
    estimate = _estimate_of(network, CONVERGED)
    _advance(estimate, network)
    value = estimate.estimate(network).numpy()
    assert value.shape == (2, 2) and not np.any(np.diag(value))
    first, last = (affine.kernel for affine in network.affines)
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
