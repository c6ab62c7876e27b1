"""What holds of every method of proof: under attack, scaled, turned, and with what may be off.

Each has a network of the kind that it has a theory for. What is true of one method alone stands in
its own file.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, labelled, lowest_margins

from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.certificates.question import Question, WeakestPoint
from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork

SMOOTH = (4, 8, 6, 3), ("tanh", "softplus")
# Sizes, no two alike, and activations. Methods that search share a network, which is traced once.
NETWORKS = {
    **dict.fromkeys(("auto", "crc", "crc_local", "crown"), SMOOTH),
    "lipschitz": ((4, 8, 6, 3), ("tanh", "relu")),
    "two_stage": ((4, 7, 6, 3), ("abs", "softplus")),
    "coupled": ((4, 8, 6, 3), ("relu", "relu")),
    "quadratic": ((3, 11, 4), ("relu",)),
    "interval": ((4, 9, 5, 3), ("silu", "relu")),
    "coap": ((5, 9, 7, 4), ("relu", "relu")),
}
# Of two searches for the same radius: where the problem is the same in other numbers, a search
# ends a little elsewhere.
CLOSE = 5e-3
every_method = pytest.mark.parametrize("name", METHODS)
# What holds of each holds of the largest radius of several.
each_alone = pytest.mark.parametrize("name", [name for name in METHODS if name != "auto"])


def test_every_method_is_here():
    assert set(NETWORKS) == set(METHODS)


@functools.cache
def drawn(name):
    """Kernels, biases and points of all classes, none close to a tie."""
    rng = np.random.default_rng(20)
    sizes, _ = NETWORKS[name]
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [1.5 * rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    biases = [0.7 * rng.standard_normal(shape[1]) for shape in shapes]
    x = rng.standard_normal((40, sizes[0]))
    logits = _network(name, kernels, biases).logits(x).numpy()
    middle = np.median(logits, axis=0)
    second, first = np.sort(logits - middle, axis=1)[:, -2:].T
    clear = first - second > np.quantile(first - second, 0.4)
    return kernels, [*biases[:-1], biases[-1] - middle], x[clear][:12]


def _network(name, kernels, biases):
    return Network.from_weights(kernels, biases, NETWORKS[name][1])


@functools.cache
def _case(name):
    kernels, biases, x = drawn(name)
    network = _network(name, kernels, biases)
    return network, x, *labelled(network, x)


def _proved(name, network, x, label, rivals, served=no_error):
    return choose_method(name, network, served).prove(Question.of(x, label, rivals)).radius


@functools.cache
def _radius(name):
    """What a method proves of its own network, `(n, k)`."""
    radius = _proved(name, *_case(name))
    radius.setflags(write=False)
    return radius


def _lowest(network, x, label, rivals, radius, count=60):
    """The smallest margin that descent and sampling find in the ball of each pair, `(n, k)`."""
    rng, found = np.random.default_rng(1), []
    for column, reach in zip(rivals.T, np.minimum(radius, 1e6).T, strict=True):
        rival = column[:, None]
        met = lowest_margins(network, x, label, rival, reach, rng, steps=12)[:, 0]
        points = ball_points(rng, x, reach, count).reshape(-1, x.shape[1])
        pairs = np.tile(label, count), np.tile(column, count)
        sampled = network.margin(tf.constant(points), *pairs).numpy().reshape(count, -1)
        found.append(np.minimum(met, sampled.min(axis=0)))
    return np.stack(found, axis=1)


@every_method
def test_no_attack_succeeds_within_a_radius(name):
    network, x, label, rivals = _case(name)
    radius = _radius(name)
    assert radius.shape == rivals.shape and np.all(radius > 0.0)
    assert np.all(_lowest(network, x, label, rivals, 0.9999 * radius) > 0.0)
    # Nor is the attack too weak to tell, or the method without any strength.
    weakest = np.repeat(radius.min(axis=1, keepdims=True), rivals.shape[1], axis=1)
    assert np.any(_lowest(network, x, label, rivals, 6.0 * weakest) < 0.0)


class _Served(ServedError):
    """Takes a little off, and more the farther out."""

    def __call__(self, x, label, rivals, radius):
        assert np.shape(radius) == np.shape(rivals)
        return 0.05 + 0.1 * np.asarray(radius)


@pytest.mark.parametrize("name", sorted({*METHODS} - {"two_stage", "auto"}))  # the first refuses
def test_what_serving_takes_off_is_charged(name):
    network, x, label, rivals = _case(name)
    radius = _proved(name, network, x, label, rivals, _Served())
    least, free = radius.min(axis=1), _radius(name).min(axis=1)
    assert np.all(least <= free * (1.0 + CLOSE)) and least.mean() < 0.99 * free.mean()
    lowest = _lowest(network, x, label, rivals, radius)
    assert np.all((lowest >= _Served()(x, label, rivals, radius) - 1e-9) | (radius == 0.0))
    assert np.any(radius > 0.0)


def _moved_at_random(network, size, rng):
    maps = []
    for affine in network.affines:
        turn, shift = (rng.standard_normal(part.shape) for part in (affine.kernel, affine.bias))
        kernel = affine.kernel + size * turn / np.linalg.norm(turn, 2)
        maps.append(Affine(kernel, affine.bias + size * shift / np.linalg.norm(shift)))
    return Network(maps, network.activations)


def _moved_against(network, size, x, label, rival):
    """The first map moved as far as it may be, straight against the margin at x."""
    first = network.affines[0]
    z = tf.constant(x @ first.kernel + first.bias)[None]
    with tf.GradientTape() as tape:
        tape.watch(z)
        a = z
        for sigma, affine in zip(network.activations, network.affines[1:], strict=True):
            a = sigma.value(a) @ tf.constant(affine.kernel) + affine.bias
        margin = a[0, label] - a[0, rival]
    slope = tape.gradient(margin, z).numpy()[0]
    turn = np.outer(x, slope)
    kernel = first.kernel - size * turn / np.linalg.norm(turn)
    bias = first.bias - size * slope / np.linalg.norm(slope)
    return Network([Affine(kernel, bias), *network.affines[1:]], network.activations)


@each_alone
def test_what_folding_may_be_off_by_is_charged(name):
    network, x, label, rivals = _case(name)
    size, rng = 0.01, np.random.default_rng(3)
    maps = [Affine(affine.kernel, affine.bias, size, size) for affine in network.affines]
    loose = Network(maps, network.activations)
    radius = _proved(name, loose, x, label, rivals)
    exact = _radius(name)
    assert np.all(radius.min(axis=1) <= exact.min(axis=1) * (1.0 + CLOSE)) and np.any(radius > 0.0)
    assert radius.min(axis=1).mean() < 0.99 * exact.min(axis=1).mean()
    other = _moved_at_random(network, size, rng)
    lowest = _lowest(other, x, label, rivals, radius, count=20)
    assert np.all((lowest >= -1e-9) | (radius == 0.0))
    for row in range(0, len(x), 3):
        rival, some = rivals[row, radius[row].argmin()], slice(row, row + 1)
        other = _moved_against(network, size, x[row], label[row], rival)
        pair = np.array([[rival]])
        least = radius[some].min(axis=1, keepdims=True)
        lowest = _lowest(other, x[some], label[some], pair, least, count=20)
        assert np.all((lowest >= -1e-9) | (least == 0.0))


@each_alone
@pytest.mark.parametrize(("first", "last"), [(2.0**40, 2.0**-30), (2.0**-40, 2.0**30)])
def test_radii_are_in_the_units_of_the_input(name, first, last):
    """A power of two rounds nothing: logits are the same numbers but for one."""
    kernels, biases, x = drawn(name)
    scaled = [first * kernels[0], *kernels[1:-1], last * kernels[-1]]
    other = _network(name, scaled, [*biases[:-1], last * biases[-1]])
    _, x, label, rivals = _case(name)
    radius = _radius(name).min(axis=1)
    found = _proved(name, other, x / first, label, rivals).min(axis=1)
    np.testing.assert_allclose(found * first, radius, rtol=CLOSE)


@each_alone
@pytest.mark.parametrize("scale", [1e-200, 1e8, 1e100, 1e200])
def test_extreme_weights_prove_nothing_wrong(name, scale):
    kernels, biases, x = drawn(name)
    network, x = _network(name, [scale * k for k in kernels], biases), x[:4]
    with np.errstate(all="ignore"):
        if name == "two_stage" and scale == 1e200:
            with pytest.raises(InputError, match="infinite, or overflows"):
                choose_method(name, network)
            return
        certificate = choose_method(name, network).certify(x)
        radius, label = certificate.radius, certificate.prediction
        assert not np.isnan(radius).any() and np.all(radius >= 0.0)
        for point in ball_points(np.random.default_rng(0), x, np.minimum(radius, 1e6), 60):
            logits = network.logits(point).numpy()
            assert np.all((logits.argmax(axis=1) == label) | (radius == 0.0))


@each_alone
def test_coordinates_and_the_order_of_units_and_classes_change_nothing(name):
    kernels, biases, x = drawn(name)
    _, _, label, rivals = _case(name)
    rng = np.random.default_rng(4)
    rotation, _ = np.linalg.qr(rng.normal(size=(x.shape[1],) * 2))
    orders = [rng.permutation(len(bias)) for bias in biases]
    kernels = [kernel[:, order] for kernel, order in zip(kernels, orders, strict=True)]
    kernels[1:] = [kernel[order] for kernel, order in zip(kernels[1:], orders, strict=False)]
    biases = [bias[order] for bias, order in zip(biases, orders, strict=True)]
    other = _network(name, [rotation.T @ kernels[0], *kernels[1:]], biases)
    place = np.argsort(orders[-1])
    radius = _radius(name)
    found = _proved(name, other, x @ rotation, place[label], place[rivals])
    np.testing.assert_allclose(found.min(axis=1), radius.min(axis=1), rtol=CLOSE)


@every_method
def test_examples_do_not_depend_on_their_company(name):
    network, x, label, rivals = _case(name)
    method = choose_method(name, network)
    together = _radius(name).min(axis=1)
    question = Question.of(x[::-1], label[::-1], rivals[::-1])
    for rows in (slice(0, 1), slice(1, 6), slice(6, None)):
        apart = method.prove(question.take(rows)).radius.min(axis=1)
        np.testing.assert_allclose(apart, together[::-1][rows], rtol=CLOSE)


@every_method
def test_where_nothing_is_proved_what_is_known_stays(name):
    """Margins below 0, NaN and overflow; the other rows do not suffer, and none are no trouble."""
    network, x, label, rivals = _case(name)
    method = choose_method(name, network)
    free = _radius(name).min(axis=1)
    x, label, rivals = x.copy(), label.copy(), rivals.copy()
    label[0], rivals[0, 0] = rivals[0, 0], label[0]  # misclassified, toward its first rival
    x[1, 0], x[2, 0], x[3] = np.nan, np.inf, 1e300
    known = np.zeros(rivals.shape)
    known[1] = 0.25
    with np.errstate(all="ignore"):
        radius = method.prove(Question.of(x, label, rivals, known)).radius
        assert radius[0, 0] == 0.0 and np.all(radius[1] == 0.25) and np.all(radius[2] == 0.0)
        assert np.all(radius[3] >= 0.0)
        np.testing.assert_allclose(radius[4:].min(axis=1), free[4:], rtol=CLOSE)
        enough = method.prove(Question.of(x, label, rivals, 1e30)).radius
    assert np.all(enough[:3] == 1e30) and np.all(enough >= 1e30)
    none = method.prove(Question.of(x[:0], label[:0], rivals[:0])).radius
    assert none.shape == (0, rivals.shape[1])


@every_method
def test_no_radius_exceeds_a_ceiling(name):
    """Nor what is aimed at; from whichever point the ceiling is taken."""
    network, x, label, rivals = _case(name)
    method, rng = choose_method(name, network), np.random.default_rng(5)
    radius = _radius(name)
    column, least = radius.argmin(axis=1), radius.min(axis=1)
    rival = rivals[np.arange(len(x)), column]
    alone = method.prove(Question.of(x, label, rival[:, None])).radius[:, 0]
    start = network.margin(tf.constant(x), label, rival).numpy()
    question = Question.of(x, label, rivals, tolerance=0.01)
    for point in (x, x + least[:, None] * rng.standard_normal(x.shape)):
        margin = network.margin(tf.constant(point), label, rival).numpy()
        sighting = WeakestPoint(column, point, margin, start)
        for factor in (0.3, 0.9, 1.01, 1.3):
            goal = question.goal._replace(aim=factor * least)
            ceiling = method.ceiling(question._replace(goal=goal), sighting)
            assert np.all(alone <= np.maximum(ceiling, factor * least) * (1.0 + 1e-9))


@every_method
def test_decisions_are_those_of_the_radii(name):
    network, x, label, rivals = _case(name)
    method, radius = choose_method(name, network), _radius(name).min(axis=1)
    asked = float(np.median(radius))
    decided = method.prove(Question.of(x, label, rivals, decide=[asked])).radius.min(axis=1)
    clear = np.abs(radius / asked - 1.0) > CLOSE
    np.testing.assert_array_equal((decided > asked)[clear], (radius > asked)[clear])


@each_alone
def test_inputs_that_nobody_moves_are_not_moved(name):
    """Radii are no smaller than those without pins, and hold where all others move."""
    network, x, label, rivals = _case(name)
    pinned = np.arange(network.dim) == 1
    held = PinnedNetwork(network.affines, network.activations, pinned)
    radius = _proved(name, held, x, label, rivals)
    free = _radius(name)
    assert np.all(radius.min(axis=1) >= free.min(axis=1) * (1.0 - CLOSE))
    assert radius.min(axis=1).mean() > 1.005 * free.min(axis=1).mean()
    rng, reach = np.random.default_rng(6), 0.9999 * radius
    for column, rival in enumerate(rivals.T):
        points = ball_points(rng, x, reach[:, column], 200)
        straight = held.margin_and_gradient(tf.constant(x), label, rival)[1].numpy()
        straight *= (reach[:, column] / np.linalg.norm(straight, axis=1))[:, None]
        points = np.concatenate([np.where(pinned, x, points), (x - straight)[None]])
        pairs = np.tile(label, len(points)), np.tile(rival, len(points))
        margins = held.margin(tf.constant(points.reshape(-1, held.dim)), *pairs).numpy()
        assert np.all(margins > 0.0)
