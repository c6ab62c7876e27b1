"""Coupled bounds of thin maps, of maps that folding has changed, and with pinned inputs."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, build, draw_network, lowest_margins

from keras_curv.certificates.linear.bounds.coupled_balls import CoupledBalls
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.coupled import CoupledCertificate
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork

RELU = ACTIVATIONS["relu"]


@pytest.fixture(autouse=True)
def _as_in_a_search():
    """Numbers that overflow prove nothing, and are no error."""
    with np.errstate(all="ignore"):
        yield


def bounded(network, x, radius, *, proved=True):
    centres = Centres(network, x, proved=proved)
    balls = CoupledBalls(network, Plan.together(network), centres, radius)
    balls.bound_layers()
    return balls


def test_units_with_a_single_weight_move_too():
    """`relu(1 − x) − …` behind diagonal maps: the boundary is at 1.5."""
    eye, last = np.eye(2), [[-1.0, 0.0], [-1.0, 0.0]]
    biases = [[1.0, 1.0], [-2.0, -2.0], [0.5, 0.0]]
    for second in (eye, eye + 1e-9 * (1.0 - eye)):
        network = Network.from_weights([eye, second, last], biases, "relu")
        certificate = CoupledCertificate(network)
        radius = certificate.certify(np.zeros((1, 2))).radius.item()
        assert 1.0 < radius <= 1.5 * (1.0 + 1e-6)


@pytest.mark.parametrize("diagonal", [True, False])
def test_no_layer_of_thin_maps_leaves_its_ball(diagonal, rng):
    for trial in range(4):
        mask = np.eye(6) if diagonal else rng.uniform(size=(6, 6)) < 0.35
        kernels = [
            1.5 * rng.standard_normal((3, 6)),
            2.0 * rng.standard_normal((6, 6)) * mask,
            2.0 * rng.standard_normal((6, 6)) * (rng.uniform(size=(6, 6)) < 0.5),
            rng.standard_normal((6, 3)),
        ]
        biases = [0.5 * rng.standard_normal(n) for n in (6, 6, 6, 3)]
        network = build(kernels, biases, "relu")
        x, radius = rng.standard_normal((4, 3)), rng.uniform(0.1, 1.5, 4)
        balls = bounded(network, x, radius)
        points = ball_points(rng, x, radius, 400)
        values = network.forward(tf.constant(points.reshape(-1, 3)))[0]
        centres = network.forward(tf.constant(x))[0]
        for layer, moves, centre, z in zip(balls.layers, balls.moves, centres, values, strict=True):
            z = z.numpy().reshape(400, *layer.low.shape)
            assert np.all(z >= layer.low - 1e-11) and np.all(z <= layer.high + 1e-11)
            root = np.linalg.norm(moves.root * (z - centre.numpy()), axis=-1)
            assert np.all(root <= moves.ball[:, 0] + 1e-11)
        if trial:  # one search for radii is enough
            continue
        result = CoupledCertificate(network).certify(x)
        inside = np.minimum(0.9999 * result.radius, 1e3)
        rivals = np.array([[k for k in range(3) if k != y] for y in result.prediction])
        lowest = lowest_margins(network, x, result.prediction, rivals, inside, rng, 30)
        assert np.all(lowest[result.radius > 0.0] > 0.0)


def test_folding_errors_move_layers(rng):
    """Weights anywhere within their error: no layer leaves its interval or its ball."""
    for _ in range(20):
        sizes, error = (3, 6, 5, 4, 3), 0.3
        kernels = [rng.standard_normal(shape) for shape in itertools.pairwise(sizes)]
        biases = [rng.standard_normal(n) for n in sizes[1:]]
        maps = [Affine(k, b, kernel_error=error) for k, b in zip(kernels, biases, strict=True)]
        network = Network(maps, [RELU] * 3)
        x, radius = rng.standard_normal((3, 3)), np.full(3, 0.4)
        balls = bounded(network, x, radius)
        for _ in range(10):
            off = []
            for kernel in kernels:
                change = rng.standard_normal(kernel.shape)
                if rng.uniform() < 0.5:  # all of it along one direction
                    change = np.outer(change[:, 0], change[0])
                off.append(kernel + error * change / np.linalg.norm(change, 2))
            real = build(off, biases, "relu")
            points = ball_points(rng, x, radius, 100)
            values = real.forward(tf.constant(points.reshape(-1, 3)))[0]
            centres = real.forward(tf.constant(x))[0]
            for layer, moves, centre, z in zip(
                balls.layers, balls.moves, centres, values, strict=True
            ):
                z = z.numpy().reshape(100, *layer.low.shape)
                assert np.all(z >= layer.low - 1e-12) and np.all(z <= layer.high + 1e-12)
                root = np.linalg.norm(moves.root * (z - centre.numpy()), axis=-1)
                assert np.all(root <= moves.ball[:, 0] + 1e-12)


def test_the_folding_of_a_layer_is_charged_to_its_own_movement():
    maps = [
        Affine([[1.0, -1.0]], [0.0, 0.0]),
        Affine(1e-6 * np.ones((2, 2)), [-1.0, -1.0], kernel_error=1.0),
        Affine([[-1.0, 0.0], [-1.0, 0.0]], [0.5, 0.0]),
    ]
    network = Network(maps, [RELU, RELU])
    # With [[1, 0], [0, 0]] added to the second map the boundary is at 1.5.
    assert CoupledCertificate(network).certify(np.zeros((1, 1))).radius.item() <= 1.5


@pytest.mark.parametrize("limited", [False, True])
def test_pinned_inputs_are_certified(limited, rng):
    inner = draw_network(rng, (5, 9, 7, 3), "relu")
    limits = (np.full(5, -2.0), np.full(5, 2.0)) if limited else None
    pinned = np.array([False, True, False, True, False])
    network = PinnedNetwork(inner.affines, inner.activations, pinned, None, limits)
    x = np.clip(rng.standard_normal((6, 5)), -2.0, 2.0)
    result = CoupledCertificate(network).certify(x)
    assert np.mean(result.radius > 0.0) > 0.8
    free = CoupledCertificate(inner).certify(x).radius
    assert np.all(result.radius >= 0.97 * free)
    step = np.where(pinned, 0.0, rng.standard_normal((500, 6, 5)))
    step *= 0.9999 * result.radius[:, None] / np.linalg.norm(step, axis=-1, keepdims=True)
    points = x + step
    if limited:
        points = np.clip(points, *limits)
    labels = inner.logits(points.reshape(-1, 5)).numpy().argmax(axis=1).reshape(500, 6)
    assert np.all((labels == result.prediction) | (result.radius <= 0.0))
