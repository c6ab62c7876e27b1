"""Networks whose matrices stay sparse: what is read, bounded and certified, and what is refused."""

import resource

import keras
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import tensorflow as tf

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.lipschitz import margin_lipschitz_bounds
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.errors import InputError
from keras_curv.lowering import flow
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.rules import convolution
from keras_curv.lowering.sparse_error_ball import SparseBall
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model

L = keras.layers


def randomised(model, rng, gain=0.8):
    """Every weight its own; kernels of norm about one."""
    for weight in model.weights:
        value = 0.3 * rng.standard_normal(weight.shape)
        if weight.path.endswith(("variance", "gamma")):
            value = 1.0 + value**2
        elif weight.path.endswith("kernel"):
            value *= gain / 0.3 / np.sqrt(np.prod(weight.shape[:-1]))
        weight.assign(value)
    return model


def architecture(size):
    return keras.Sequential(
        [
            keras.Input((size, size, 2)),
            L.Rescaling(2.0, offset=-1.0),
            L.Conv2D(4, 3, padding="same"),
            L.BatchNormalization(),
            L.Activation("softplus"),
            L.AveragePooling2D(2, padding="same"),
            L.Conv2D(4, 3, padding="same", activation="tanh"),
            L.BatchNormalization(),
            L.DepthwiseConv2D(3, strides=2, padding="same", activation="softplus"),
            L.Flatten(),
            L.Dense(6, "tanh"),
            L.Dense(3),
        ]
    )


@pytest.fixture(scope="module")
def pair():
    """A model, examples, and the model read twice: as dense and as sparse matrices."""
    rng = np.random.default_rng(7)
    model = randomised(architecture(12), rng)
    x = rng.uniform(0.0, 1.0, (4, 12, 12, 2)).astype(np.float32)
    dense = served_model.read(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_affine, "DENSE_UP_TO", 1000)
        sparse = served_model.read(model)
    assert [affine.is_sparse for affine in sparse.network.affines][:2] == [True] * 2
    return model, x, dense, sparse


def rows(x):
    return x.reshape(len(x), -1).astype(np.float64)


@pytest.fixture(scope="module")
def crc(pair):
    """The certificates of CRC for the sparse network."""
    _, x, _, sparse = pair
    return choose_method("crc", sparse.network).certify(rows(x))


def test_a_sparse_map_is_the_dense_one_with_larger_norms(pair):
    _, _, dense, sparse = pair
    for ours, theirs in zip(sparse.network.affines, dense.network.affines, strict=True):
        kernel = ours.kernel.toarray() if ours.is_sparse else ours.kernel
        apart = np.linalg.norm(kernel - theirs.kernel)
        assert apart <= ours.kernel_error + theirs.kernel_error
        assert np.linalg.norm(ours.bias - theirs.bias) <= ours.bias_error + theirs.bias_error
        assert ours.kernel_error <= 2.0 * theirs.kernel_error
        exact = np.linalg.norm(kernel, 2)
        assert exact <= ours.norm <= 2.0 * exact
        exact = np.linalg.norm(np.abs(kernel), 2)
        assert exact <= ours.magnitude_norm <= 2.5 * exact
        np.testing.assert_allclose(ours.row_norms, np.linalg.norm(kernel, axis=1), 1e-9, 1e-99)
        assert np.all(np.linalg.norm(kernel, axis=1) <= ours.row_norms)
        assert ours.frobenius == pytest.approx(np.linalg.norm(kernel), rel=1e-9)


def test_margins_and_gradients_are_those_of_keras(pair):
    model, x, _, sparse = pair
    label, rivals = np.zeros(len(x), int), np.tile([1, 2], (len(x), 1))
    found = sparse.network.evaluate(tf.constant(rows(x)), label, rivals)
    with tf.GradientTape(persistent=True) as tape:
        pixels = tf.constant(x)
        tape.watch(pixels)
        logits = model(pixels, training=False)
        margins = [logits[:, 0] - logits[:, rival] for rival in (1, 2)]
    np.testing.assert_allclose(found.margin, tf.stack(margins, axis=1), atol=1e-5)
    for column, margin in enumerate(margins):
        gradient = tf.reshape(tape.gradient(margin, pixels), (len(x), -1))
        np.testing.assert_allclose(found.gradient[:, column], gradient, atol=1e-5)


def assert_not_broken(network, x, found, *, steps):
    """No attack succeeds just inside of what is certified."""
    margin, _ = pgd_attack(
        network,
        tf.constant(rows(x)),
        tf.constant(found.prediction),
        radius=tf.constant(found.radius * (1.0 - 1e-9)),
        steps=steps,
    )
    assert np.all(margin.numpy() > 0.0)


# crown: the dense map's bounds also ask the first layer's curvature
@pytest.mark.parametrize(
    ("method", "share"), [("lipschitz", 0.5), ("crc", 0.5), ("crown", 0.15), ("interval", 0.99)]
)
def test_radii_are_smaller_than_dense_ones_but_not_by_much(pair, crc, method, share):
    _, x, dense, sparse = pair
    larger = choose_method(method, dense.network).certify(rows(x)).radius
    found = crc if method == "crc" else choose_method(method, sparse.network).certify(rows(x))
    assert np.all(share * larger < found.radius)
    assert np.all(found.radius <= larger * (1.0 + 1e-4))  # CRC's search stops that close
    assert_not_broken(sparse.network, x, found, steps=30)


def test_bounds_hold_at_points_and_are_above_the_dense_ones(pair):
    _, x, dense, sparse = pair
    network, points = sparse.network, rows(x)
    bounds, tighter = curvature_bounds(network), curvature_bounds(dense.network)
    assert np.all(bounds.lower <= tighter.lower * (1.0 - 1e-9))
    lipschitz = margin_lipschitz_bounds(network)
    for y, t in [(0, 1), (1, 0), (2, 1)]:
        label, rival = np.full(2, y), np.full(2, t)
        values = np.linalg.eigvalsh(network.hessian(tf.constant(points[:2]), label, rival))
        assert bounds.lower[y, t] <= values.min()
        assert values.max() <= bounds.upper[y, t]
        label, rival = np.full(len(points), y), np.full(len(points), t)
        _, gradient = network.margin_and_gradient(tf.constant(points), label, rival)
        assert np.linalg.norm(gradient, axis=1).max() <= lipschitz[y, t]


def test_every_other_method_refuses_by_name(pair):
    _, x, _, sparse = pair
    known = {"lipschitz", "crc", "coupled", "crown", "interval", "auto"}
    for method in sorted(set(METHODS) - known - {"quadratic", "coap", "two_stage"}):
        with pytest.raises(
            InputError, match=f"too large for {method}: map 1, (242|288) × .*use lips"
        ):
            choose_method(method, sparse.network)


def test_the_guarantee_float32_is_that_of_the_dense_network(pair):
    _, x, dense, sparse = pair
    points = rows(x)
    label, rivals = np.zeros(len(x), int), np.tile([1, 2], (len(x), 1))
    for radius in (0.0, 0.1, 10.0):
        args = points, label, rivals, np.full(rivals.shape, radius)
        ours, theirs = (Float32Error(read.network)(*args) for read in (sparse, dense))
        # Sums of sparse maps have fewer terms; Lipschitz constants of their products are larger.
        assert np.all(0.2 * theirs <= ours) and np.all(ours <= 2.0 * theirs)


def test_what_keras_serves_in_float32_is_within_the_charge(pair, rng):
    model, x, _, sparse = pair
    error, radius = Float32Error(sparse.network), 0.5
    label, rivals = np.zeros(len(x), int), np.tile([1, 2], (len(x), 1))
    charge = error(rows(x), label, rivals, np.full(rivals.shape, radius))
    for _ in range(20):
        direction = rng.standard_normal(x.shape)
        length = np.linalg.norm(direction.reshape(len(x), -1), axis=1)[:, None, None, None]
        inside = np.float32(x + 0.99 * radius * direction / length)
        served = model(inside, training=False).numpy().astype(np.float64)
        real = sparse.network.logits(tf.constant(rows(inside))).numpy()
        off = [(z[:, :1] - z[:, 1:]) for z in (served, real)]
        assert np.all(np.abs(off[0] - off[1]) <= charge)


def test_radii_in_float32_are_close_to_the_real_ones_and_below(pair, crc, monkeypatch):
    model, x, *_ = pair
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 1000)
    found = Certifier(model, method="crc", guarantee="float32").certify(x).radius
    assert np.all(found <= crc.radius) and np.all(found >= 0.9 * crc.radius)


def test_smoothing_refuses(pair, monkeypatch):
    model, *_ = pair
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 1000)
    with pytest.raises(InputError, match="too large for smoothing"):
        SmoothedClassifier(model, 0.5)


def test_a_fingerprint_knows_every_weight(monkeypatch, rng):
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 1000)
    model = randomised(architecture(8), rng)
    before = served_model.read(model).fingerprint
    assert served_model.read(model).fingerprint == before
    value = model.layers[1].kernel.numpy()
    value[0, 0, 0, 0] += 1e-3
    model.layers[1].kernel.assign(value)
    assert served_model.read(model).fingerprint != before


# What is read sparse


def read_dense_and_sparse(monkeypatch, layers, shape, limit=50):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input(shape), *layers, L.Flatten(), L.Dense(3)])
    model = randomised(model, np.random.default_rng(3))
    dense = served_model.read(model).network
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", limit)
    return dense, served_model.read(model).network


STACKS = {
    "no activation between": lambda: [L.Conv2D(3, 2), L.Conv2D(4, 3, strides=2), L.ReLU()],
    "pooled in overlapping windows": lambda: [L.AveragePooling2D(3, 2, "same"), L.ReLU()],
    "a mean of each channel": lambda: [L.ReLU(), L.GlobalAveragePooling2D(keepdims=True), L.ReLU()],
    "channels moved": lambda: (
        [L.Conv2D(3, 2), L.Permute((3, 1, 2)), L.BatchNormalization(axis=1)] + [L.ReLU()]
    ),
    "pixels moved first": lambda: (
        [L.BatchNormalization(), L.Permute((2, 1, 3))] + [L.Conv2D(3, 2, strides=2), L.ReLU()]
    ),
    "only scaled": lambda: [L.ReLU(), L.BatchNormalization(), L.ReLU()],
    "dense behind": lambda: [L.Conv2D(3, 2), L.Flatten(), L.Dense(5), L.ReLU()],
}


@pytest.mark.parametrize("name", STACKS)
def test_sparse_readings_are_the_dense_ones(name, monkeypatch):
    dense, sparse = read_dense_and_sparse(monkeypatch, STACKS[name](), (7, 6, 2))
    assert any(affine.is_sparse for affine in sparse.affines) or name == "dense behind"
    for ours, theirs in zip(sparse.affines, dense.affines, strict=True):
        kernel = ours.kernel.toarray() if ours.is_sparse else ours.kernel
        allowed = ours.kernel_error + theirs.kernel_error
        assert np.linalg.norm(kernel - theirs.kernel) <= allowed
        assert np.linalg.norm(ours.bias - theirs.bias) <= ours.bias_error + theirs.bias_error
        exact = np.linalg.norm(theirs.kernel, 2)
        assert (1.0 - 1e-12) * exact <= ours.norm <= 2.5 * exact  # two on a small image
        exact = np.linalg.norm(np.abs(theirs.kernel), 2)
        assert (1.0 - 1e-12) * exact <= ours.magnitude_norm


def test_sparse_balls_hold_what_dense_ones_do(rng):
    def ball(shape):
        value = rng.standard_normal(shape) * (rng.random(shape) < 0.4)
        return Ball(value, *(np.abs(value) * rng.uniform(0.0, 1e-3, shape) for _ in range(2)))

    a, b, columns, scale = ball((6, 5)), ball((5, 7)), ball(7), ball(6)
    order = rng.permutation(7)
    sparse = (SparseBall.of(a).with_rows_scaled(scale) @ SparseBall.of(b)) * columns
    dense = (a * scale.reshape((-1, 1)) @ b) * columns
    sparse, dense = sparse.with_columns(order).rounded(3).dense(), dense[:, order].rounded(3)
    np.testing.assert_allclose(sparse.value, dense.value, rtol=1e-14, atol=1e-18)
    # A real number within its error, served off by as much as it may be.
    for _ in range(20):
        worst = [part.value + rng.choice([-1, 1], part.shape) * (part.error + part.served)
                 for part in (a, b, columns, scale)]  # fmt: skip
        product = ((worst[0] * worst[3][:, None]) @ worst[1] * worst[2])[:, order]
        assert np.all(np.abs(product - sparse.value) <= sparse.error + sparse.served + 1e-18)
    np.testing.assert_allclose(sparse.error, dense.error, rtol=1e-6, atol=1e-16)
    rows_moved = SparseBall.of(a).with_rows(np.array([2, 0, 1, 5, 3, 4]), 6).dense()
    np.testing.assert_array_equal(rows_moved.value[[2, 0, 1, 5, 3, 4]], a.value)
    zero = scipy.sparse.csr_array((np.zeros(1), ([1], [1])), shape=(3, 3))
    assert SparseBall.exact(zero).dense().equals(0.0) and SparseBall.exact(zero).places.nnz == 0


# An image of CIFAR's size


@pytest.fixture(scope="module")
def cifar_size(tmp_path_factory):
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            L.Rescaling(2.0, offset=-1.0),
            L.Conv2D(8, 3, padding="same"),
            L.BatchNormalization(),
            L.Activation("softplus"),
            L.AveragePooling2D(2),
            L.Conv2D(8, 3, padding="same", activation="softplus"),
            L.Conv2D(8, 3, strides=2, activation="tanh"),
            L.Flatten(),
            L.Dense(16, "softplus"),
            L.Dense(5),
        ]
    )
    directory = tmp_path_factory.mktemp("model") / "cifar"
    randomised(model, np.random.default_rng(0)).export(directory, verbose=False)
    return directory


def test_a_model_for_cifar_is_read_and_certified_in_bounded_memory(cifar_size, rng):
    x = rng.uniform(0.0, 1.0, (1, 32, 32, 3)).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    certifier = Certifier(cifar_size, method="auto")  # checked against its own signature
    found = certifier.certify_all(x)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 2**20  # KiB; one of its matrices alone would take 200 MiB if it were dense
    assert np.all(found.radius > 0.0)
    assert_not_broken(certifier.served.network, x, found, steps=5)


def test_many_convolutions_that_would_be_dense_one_by_one(tmp_path, rng):
    """Each matrix has 9 million entries, of which there is room for two."""
    layers = [
        L.Conv2D(12, 2, 2, activation=tf.abs),
        *(L.Conv2D(12, 3, padding="same", activation=tf.abs) for _ in range(4)),
        L.AveragePooling2D(4),
        L.Flatten(),
        L.Dense(3),
    ]
    model = randomised(keras.Sequential([keras.Input((32, 32, 3)), *layers]), rng)
    model.export(tmp_path / "model", verbose=False)
    network = served_model.read(tmp_path / "model").network
    assert [affine.is_sparse for affine in network.affines] == [False, *[True] * 4, False]
    x = rng.uniform(0.0, 1.0, (3, 32, 32, 3)).astype(np.float32)
    np.testing.assert_allclose(network.logits(rows(x)), model(x), rtol=1e-4, atol=1e-4)
    first = network.affines[1]
    exact = scipy.sparse.linalg.svds(first.kernel, k=1, return_singular_vectors=False)[0]
    assert exact <= first.norm <= 1.04 * exact


# What is refused


def test_too_many_products_are_refused_before_they_are_made(monkeypatch):
    # Of three taps along an axis of eight, the outer ones are outside once: 22 of 24 are inside.
    monkeypatch.setattr(convolution, "CONVOLUTION_ENTRIES", 22 * 22 * 2 * 4 - 1)
    with pytest.raises(InputError, match="op Conv2D .*72 weights at 64 positions .*smaller image"):
        served_model.read(architecture(8))


def test_too_large_a_product_of_dense_matrices_is_refused(monkeypatch):
    monkeypatch.setattr(flow, "TENSOR_ENTRIES", 100)
    model = keras.Sequential([keras.Input((20,)), L.Dense(2), L.Dense(6)])
    with pytest.raises(InputError, match="20 × 6 entries is too large .*activation between"):
        served_model.read(model)


def test_logits_without_a_dense_layer_are_refused(monkeypatch):
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 10)
    model = keras.Sequential([keras.Input((4, 4, 1)), L.Conv2D(2, 2), L.GlobalAveragePooling2D()])
    with pytest.raises(InputError, match="the last matrix, 16 × 2, is too large"):
        served_model.read(model)
    one = [keras.Input((4, 4, 1)), L.Conv2D(1, 4, activation="sigmoid"), L.Flatten()]
    with pytest.raises(InputError, match="16 entries is too large"):
        served_model.read(keras.Sequential(one))


def test_too_many_classes_for_curvature_are_refused(pair, monkeypatch):
    monkeypatch.setattr("keras_curv.curvature.bounds.ENTRIES", 100)
    _, _, dense, sparse = pair
    with pytest.raises(InputError, match="too large for curvature bounds: 3 classes .*lipschitz"):
        choose_method("crc", sparse.network)
    assert choose_method("auto", sparse.network).methods[0].name == "lipschitz"
    curvature_bounds(dense.network)


def test_a_norm_that_is_larger_than_was_proved_is_refused(rng):
    """Should a proof ever be wrong, as one was: with a reshape between two convolutions."""
    kernel = scipy.sparse.csr_array(rng.standard_normal((30, 40)) * (rng.random((30, 40)) < 0.3))
    norm, magnitude = (np.linalg.norm(m.toarray(), 2) * 1.001 for m in (kernel, abs(kernel)))
    known = {"proved_norm": norm, "proved_magnitude": magnitude}
    sparse_affine.SparseAffine(kernel, np.zeros(40), **known)
    for name in known:
        with pytest.raises(InputError, match="is less than what was met"):
            sparse_affine.SparseAffine(kernel, np.zeros(40), **known | {name: known[name] / 2.0})


def test_pooling_of_a_size_between_two_limits_is_read():
    """2²⁴ entries were too many for a dense matrix, and too few for a sparse one."""
    keras.utils.set_random_seed(0)
    convolution = L.Conv2D(128, 6, 2, "same", activation="sparse_plus")
    layers = [convolution, L.AveragePooling2D(8), L.Flatten()]
    model = keras.Sequential([keras.Input((32, 32, 3)), *layers, L.Dense(10)])
    served = served_model.read(model)
    assert [affine.kernel.shape for affine in served.network.affines] == [
        (3072, 32768),
        (32768, 10),
    ]
    served.check(np.zeros((1, 32, 32, 3), np.float32))
