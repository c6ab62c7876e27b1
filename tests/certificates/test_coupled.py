"""Units that are bounded together: the balls of layers, and the radii they prove."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, build, draw_network, labelled, lowest_margins

from keras_curv.certificates.linear.bounds.ascent import Ascent, Witness, ascend
from keras_curv.certificates.linear.bounds.coupled_balls import CoupledBalls
from keras_curv.certificates.linear.bounds.coupling import Choice
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.coupled import CoupledCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, get
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.network.unitwise import IDENTITY, unit_wise

SIZES = {2: (4, 9, 3), 3: (4, 9, 7, 3), 5: (3, 8, 6, 7, 5, 4)}
RELU = ACTIVATIONS["relu"]


@pytest.fixture(autouse=True)
def _as_in_a_search():
    """Numbers that overflow prove nothing, and are no error."""
    with np.errstate(all="ignore"):
        yield


def mixed(rng, sizes):
    """A network whose hidden layers hold relu, sigmoid and identity units."""
    network = draw_network(rng, sizes, "relu")
    kinds = []
    for width in sizes[1:-1]:
        third = max(1, width // 3)
        kinds.append(
            unit_wise(
                [(RELU, width - 2 * third), (ACTIVATIONS["sigmoid"], third), (IDENTITY, third)]
            )
        )
    return Network(network.affines, kinds)


def bent(rng, sizes):
    """A network of leaky relu, abs, capped relu and relu units."""
    network, kinds = draw_network(rng, sizes, "relu"), []
    names = "leaky_relu(0.3)", "abs", "capped_relu(0.5)", "leaky_relu(-2.0)", "leaky_relu(3.0)"
    for width in sizes[1:-1]:
        counts = np.bincount(rng.integers(0, 6, width), minlength=6).tolist()
        parts = [*map(get, names), RELU]
        kinds.append(unit_wise([(s, c) for s, c in zip(parts, counts, strict=True) if c]))
    return Network(network.affines, kinds)


MAKE = {"relu": lambda rng, sizes: draw_network(rng, sizes, "relu"), "mixed": mixed, "bent": bent}


def bounded(network, x, radius, *, proved=True):
    centres = Centres(network, x, proved=proved)
    balls = CoupledBalls(network, Plan.together(network), centres, radius)
    balls.bound_layers()
    return balls


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("depth", SIZES)
def test_no_layer_leaves_its_intervals_or_its_ball(kind, depth, rng):
    for size in (0.03, 0.3, 2.0):
        network = MAKE[kind](rng, SIZES[depth])
        x = 0.7 * rng.standard_normal((5, network.dim))
        radius = size * rng.uniform(0.3, 1.0, len(x))
        balls = bounded(network, x, radius)
        points = tf.constant(ball_points(rng, x, radius, 600).reshape(-1, network.dim))
        centres, values = network.forward(tf.constant(x))[0], network.forward(points)[0]
        for layer, moves, centre, z in zip(balls.layers, balls.moves, centres, values, strict=True):
            z = z.numpy().reshape(600, *layer.low.shape)
            slack = 1e-12 * (1.0 + np.abs(z).max())
            assert np.all(z >= layer.low - slack) and np.all(z <= layer.high + slack)
            moved = z - centre.numpy()
            root = np.linalg.norm(moves.root * moved, axis=-1)
            assert np.all(root <= moves.ball[:, 0] + slack)
            together = np.linalg.norm(np.where(layer.coupling.units, moved, 0.0), axis=-1)
            assert np.all(together <= layer.coupling.ball[:, 0] + slack)
            assert np.all(np.linalg.norm(moved, axis=-1) <= moves.whole[:, 0] + slack)


def test_balls_of_layers_are_no_larger_than_their_boxes_and_often_smaller(rng):
    network = draw_network(rng, (20, 40, 40, 3), "relu")
    x = rng.standard_normal((6, 20))
    balls = bounded(network, x, np.full(6, 0.3))
    for layer, moves, centre in zip(balls.layers, balls.moves, balls.centres.z, strict=True):
        far = np.maximum(layer.high - centre, centre - layer.low)
        box = np.linalg.norm(moves.root * far, axis=1)
        assert np.all(moves.ball[:, 0] <= box * (1.0 + 1e-9))
        assert np.mean(moves.ball[:, 0] / box) < 0.8


def test_estimates_of_a_search_are_close_to_what_is_proved(rng):
    network = draw_network(rng, (20, 40, 40, 3), "relu")
    x = rng.standard_normal((6, 20))
    proved, guessed = (bounded(network, x, np.full(6, 0.3), proved=p) for p in (True, False))
    for one, other in zip(proved.moves, guessed.moves, strict=True):
        np.testing.assert_allclose(one.ball, other.ball, rtol=0.03)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("depth", SIZES)
def test_no_margin_falls_below_its_bound(kind, depth, rng):
    network = MAKE[kind](rng, SIZES[depth])
    x = 0.7 * rng.standard_normal((6, network.dim))
    label, rivals = labelled(network, x)
    certificate = CoupledCertificate(network)
    for size in (0.05, 0.5, 4.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        bound = certificate.margin_bounds(x, label, rivals, radius)
        got = lowest_margins(network, x, label, rivals, radius, rng)
        assert np.all(got >= bound - 1e-12 * (1.0 + np.abs(bound)))


def test_any_witness_is_sound(rng):
    """Slopes and multipliers are estimates: whatever they are, no margin falls below the bound."""
    network = draw_network(rng, SIZES[3], "relu")
    x = 0.7 * rng.standard_normal((8, 4))
    label, rivals = labelled(network, x)
    radius = rng.uniform(0.05, 0.6, 8)
    balls, lowest = (
        bounded(network, x, radius),
        lowest_margins(network, x, label, rivals, radius, rng),
    )
    rows, constants = (
        part.numpy()[:, :1] for part in network.margin_map(tf.constant(x), label, rivals)
    )
    for spread in (0.1, 1.0, 10.0):
        layers = []
        for layer in balls.layers:
            slopes, turns = spread * rng.standard_normal((2, 8, 1, layer.low.shape[1]))
            inside = layer.coupling.units[:, None]
            parts = np.where(inside, slopes, 0.0), np.where(inside, 0.0, turns)
            layers.append(Choice(*parts, *10.0 ** rng.uniform(-3, 3, (2, 8, 1, 1))))
        bound = Ascent(balls, rows, constants, np.zeros((8, 1)), Witness(layers)).bound()
        assert np.all(bound <= lowest[:, 0] + 1e-12)


def test_ascent_raises_bounds(rng):
    network = draw_network(rng, (20, 40, 40, 3), "relu")
    x = rng.standard_normal((20, 20))
    label, rivals = labelled(network, x)
    balls = bounded(network, x, np.full(20, 0.4))
    rows, constants = (
        part.numpy()[:, :1] for part in network.margin_map(tf.constant(x), label, rivals)
    )
    args = balls, rows, constants, np.zeros((20, 1))
    start = Witness.nothing(20, network.sizes[1:-1])
    first = Ascent(*args, Witness.nothing(20, network.sizes[1:-1])).bound()
    found, best = ascend(*args, start)
    assert np.all(found >= first) and np.mean(found > first + 1e-3) > 0.3
    np.testing.assert_allclose(Ascent(*args, best).bound(), found, rtol=1e-12)  # it is kept


def exact_distance(network, x):
    """The distance to the boundary of a network of one relu layer, by all its linear regions."""
    from scipy.optimize import minimize

    first, last = network.affines
    label = int(network.logits(x[None]).numpy().argmax())
    nearest = np.inf
    for pattern in itertools.product((0.0, 1.0), repeat=first.fan_out):
        on = np.array(pattern)
        signs = 2.0 * on - 1.0
        for rival in set(range(network.classes)) - {label}:
            w = last.kernel[:, label] - last.kernel[:, rival]
            g = first.kernel @ (on * w)
            c = (on * first.bias) @ w + last.bias[label] - last.bias[rival]
            limits = [
                {
                    "type": "ineq",
                    "fun": lambda d, s=signs: s * ((x + d) @ first.kernel + first.bias),
                },
                {"type": "ineq", "fun": lambda d, g=g, c=c: -(g @ (x + d) + c)},
            ]
            found = minimize(lambda d: d @ d, np.zeros_like(x), constraints=limits, method="SLSQP")
            if found.success and all(np.min(limit["fun"](found.x)) > -1e-9 for limit in limits):
                nearest = min(nearest, np.sqrt(found.fun))
    return nearest


def test_radii_are_below_the_exact_distance_of_all_activation_patterns(rng):
    ratios = []
    for _ in range(6):
        network = draw_network(rng, (2, 4, 3), "relu")
        x = rng.standard_normal(2)
        radius = CoupledCertificate(network).certify(x[None]).radius.item()
        exact = exact_distance(network, x)
        assert radius <= exact * (1.0 + 1e-6)
        ratios.append(min(radius, 1e9) / min(exact, 1e9))
    assert np.median(ratios) > 0.8


@pytest.mark.parametrize(("kind", "depth"), [*zip(MAKE, SIZES, strict=False)])
def test_radii_survive_attack(kind, depth, rng):
    network = MAKE[kind](rng, SIZES[depth])
    x = 0.7 * rng.standard_normal((10, network.dim))
    label, rivals = labelled(network, x)
    radius = CoupledCertificate(network).prove(Question.of(x, label, rivals)).radius
    assert np.all(radius > 0.0) and np.all(radius == radius[:, :1])
    inside = np.minimum(radius[:, 0] * 0.9999, 1e6)
    assert np.all(lowest_margins(network, x, label, rivals, inside, rng, 30) > 0.0)


@pytest.mark.parametrize("name, gain", [("relu", 1.07), ("leaky_relu", 1.03), ("relu6", 1.07)])
def test_more_is_proved_than_by_lines_alone(name, gain, rng):
    network = draw_network(rng, (30, 60, 60, 4), name)
    x = rng.standard_normal((12, 30))
    question = Question.of(x, *labelled(network, x))
    together, alone = (
        kind(network).prove(question).radius[:, 0]
        for kind in (CoupledCertificate, LinearBoundCertificate)
    )
    assert np.all(together >= 0.93 * alone) and together.mean() > gain * alone.mean()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_radii_scale_with_the_input(scale, rng):
    network = draw_network(rng, SIZES[3], "relu")
    first, *others = network.affines
    scaled = Network([Affine(first.kernel / scale, first.bias), *others], network.activations)
    x = rng.standard_normal((6, 4))
    one, other = (
        CoupledCertificate(net).certify(at).radius
        for net, at in ((network, x), (scaled, scale * x))
    )
    np.testing.assert_allclose(other, scale * one, rtol=2e-2)  # ascent magnifies rounding


def test_a_radius_hardly_depends_on_the_batch(rng):
    """Products round otherwise in another batch, and ascent magnifies that by a point or two of
    the grid that the search goes by."""
    network = draw_network(rng, SIZES[3], "relu")
    x = rng.standard_normal((4, 4))
    certificate = CoupledCertificate(network)
    together = certificate.certify(x).radius
    alone = [certificate.certify(x[i : i + 1]).radius.item() for i in range(4)]
    np.testing.assert_allclose(together, alone, rtol=1e-2)


def test_sparse_maps_prove_what_dense_ones_prove(rng):
    """A convolution along one axis, as a dense and as a sparse matrix."""
    kernel = np.zeros((12, 20))
    taps = rng.standard_normal((3, 2))
    for place in range(10):
        kernel[place : place + 3, 2 * place : 2 * place + 2] = taps
    second = np.zeros((20, 9))
    taps = rng.standard_normal((4, 1))
    for place in range(9):
        second[2 * place : 2 * place + 4, place : place + 1] = taps
    last, biases = rng.standard_normal((9, 3)), [rng.standard_normal(n) for n in (20, 9, 3)]
    dense = build([kernel, second, last], biases, "relu")
    maps = [SparseAffine(kernel, biases[0]), SparseAffine(second, biases[1]), dense.affines[2]]
    sparse = Network(maps, dense.activations)
    x = rng.standard_normal((5, 12))
    one, other = (CoupledCertificate(net).certify(x).radius for net in (dense, sparse))
    assert np.all(other <= 1.05 * one) and np.all(other >= 0.6 * one)
    label, rivals = labelled(sparse, x)
    assert np.all(lowest_margins(sparse, x, label, rivals, 0.9999 * other, rng, 30) > 0.0)


def test_networks_without_relu_are_refused():
    network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "tanh")
    with pytest.raises(InputError, match="coupled bounds are for networks with relu"):
        CoupledCertificate(network)


def test_a_radius_whose_first_proofs_fail_is_made_smaller_until_one_holds():
    """By estimates this one is larger: five proofs, each of a thousandth less, would all fail."""
    rng = np.random.default_rng(23)
    sizes = (20, 64, 64, 5)
    kernels = [
        (rng.normal(size=(a, b)) * np.sqrt(2 / a), 0.1 * rng.normal(size=b))
        for a, b in itertools.pairwise(sizes)
    ]
    network = Network.from_weights(*zip(*kernels, strict=True), "relu")
    x = rng.normal(size=(10, 20))[8:9]
    label, rivals = labelled(network, x)
    radius = CoupledCertificate(network).prove(Question.of(x, label, rivals)).radius
    assert np.all(radius > 0.16)
