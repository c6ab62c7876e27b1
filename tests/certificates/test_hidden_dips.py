"""Networks with a dip that descents do not see: no method proves beyond it.

A pocket: margin = 1 − 3 relu(1 − 20 Σ S(x_i − c_i)) is 1 almost everywhere, and negative where
Σ S < 1/30. S is |·|, as two ReLUs, or a smooth function that is about that; the outer ReLU is one,
or about that. A ridge: margin = 1 − h(q·(x − c)), h a narrow bump.

Pockets keep their shape if entries of x − c change their signs or places, and they are convex. So
if x − c is a at m entries and 0 elsewhere, the nearest point of the pocket is t at these entries, t
the largest number with which it is in the pocket. It is a − t away in l∞, √m (a − t) in l2 and
m (a − t) in l1. A ridge is where |q·(x − c)| ≤ t, so the l_p distance is (q·(x − c) − t) / ‖q‖_*.
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.linear.branched import BranchedCertificate
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.network import Network
from keras_curv.threats.norms import NORMS

FAR = 0.5  # l2 distance of x from c
SHARP = 300.0  # of the smooth pocket, beside what it is about


class Dip(NamedTuple):
    """A network, two points, and the nearest points of its dip."""

    network: Network
    x: np.ndarray
    exact: dict[str, float]  # norm → distance of the dip
    nearest: dict[str, np.ndarray]  # norm → a point at that distance


def largest(inside, low=0.0, high=FAR):
    """The largest number for which a falling condition holds, to the last digits."""
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if inside(middle) else (low, middle)
    return low


def softplus(z, sharp):
    return np.logaddexp(0.0, sharp * z) / sharp


def pocket(names, dim, entries):
    """The pocket, seen from two points that differ from c at so many entries, by signs."""
    centre = np.random.default_rng(dim).uniform(-1.0, 1.0, dim)
    inner, outer = (1.0 if name == "relu" else SHARP for name in names)
    eye = inner * np.eye(dim)
    kernels = [
        np.hstack([eye, -eye]),
        np.full((2 * dim, 1), -20.0 * outer / inner),
        np.array([[0.0, 3.0 / outer]]),
    ]
    biases = [np.concatenate([-centre, centre]) * inner, np.full(1, outer), np.array([1.0, 0.0])]
    network = Network.from_weights(kernels, biases, names)

    def size(u):
        return abs(u) if names[0] == "relu" else softplus(u, SHARP) + softplus(-u, SHARP)

    def inside(t):
        z = 1.0 - 20.0 * (entries * size(t) + (dim - entries) * size(0.0))
        return 3.0 * (max(z, 0.0) if names[1] == "relu" else softplus(z, SHARP)) >= 1.0

    way = np.zeros(dim)
    way[:entries] = (-1.0) ** np.arange(entries)
    a, t = FAR / np.sqrt(entries), largest(inside)
    assert inside(0.0)
    away = {"linf": a - t, "l2": np.sqrt(entries) * (a - t), "l1": entries * (a - t)}
    points = np.stack([way, -way])
    return Dip(network, centre + a * points, away, dict.fromkeys(away, centre + t * points))


def ridge(name, dim):
    """The ridge, h a triangle of height 3 or about that, seen from both sides."""
    rng = np.random.default_rng(dim)
    centre, q = rng.uniform(-1.0, 1.0, dim), rng.standard_normal(dim)
    q, wide = q / np.linalg.norm(q), 0.05
    sharp = 1.0 if name == "relu" else 1e4  # of which the slope is 0 in float64 but for the ridge
    shifts, weights = wide * np.array([1.0, 0.0, -1.0]), np.array([1.0, -2.0, 1.0]) * 3.0 / wide

    def inside(t):
        z = t + shifts
        return weights @ (np.maximum(z, 0.0) if name == "relu" else softplus(z, sharp)) >= 1.0

    last = np.stack([np.zeros(3), weights / sharp], axis=1)
    first = np.repeat(sharp * q[:, None], 3, axis=1), sharp * (shifts - q @ centre)
    network = Network.from_weights([first[0], last], [first[1], np.array([1.0, 0.0])], name)
    t, x = largest(inside), centre + FAR * np.stack([q, -q])
    steepest = {"l2": q, "linf": np.sign(q), "l1": np.sign(q) * (np.abs(q) == np.abs(q).max())}
    away = {norm: (FAR - t) / (q @ one) for norm, one in steepest.items()}
    points = {n: x - away[n] * np.stack([one, -one]) for n, one in steepest.items()}
    return Dip(network, x, away, points)


DIPS = {
    "pocket, 2": lambda: pocket(("relu", "relu"), 2, 1),
    "pocket, 10": lambda: pocket(("relu", "relu"), 10, 10),
    "pocket, 100": lambda: pocket(("relu", "relu"), 100, 1),
    "smooth pocket, 2": lambda: pocket(("softplus", "softplus"), 2, 2),
    "half smooth pocket, 10": lambda: pocket(("relu", "softplus"), 10, 1),
    "ridge, 100": lambda: ridge("relu", 100),
    "smooth ridge, 10": lambda: ridge("softplus", 10),
}
METHODS = {  # with a star: in all norms
    "pocket, 2": "auto* lipschitz* coupled crown* interval* coap branched",
    "pocket, 10": "lipschitz* coupled crown interval coap branched",
    "pocket, 100": "lipschitz* crown interval* coap",
    "smooth pocket, 2": "auto lipschitz* interval*",
    "half smooth pocket, 10": "two_stage coupled crown",
    "ridge, 100": "quadratic coupled crown* coap",
    "smooth ridge, 10": "crc* crc_local crown",
}
CASES = [
    (dip, method.rstrip("*"), norm)
    for dip, methods in METHODS.items()
    for method in methods.split()
    for norm in ("l2", "l1", "linf")
    if method.endswith("*") or norm == ("linf" if method == "branched" else "l2")
]
dip_of = functools.cache(lambda name: DIPS[name]())


def method_of(name, network, norm):
    if name == "branched":
        return BranchedCertificate(network, norm=NORMS[norm])
    one = choose_method(name, network)
    return one if norm == "l2" else NormCertificate(one, NORMS[norm])


@pytest.mark.parametrize(("dip", "method", "norm"), CASES)
def test_no_method_proves_more_than_there_is(dip, method, norm):
    network, x, exact, _ = dip_of(dip)
    one, pairs = method_of(method, network, norm), ([0, 0], [[1], [1]])
    radius = one.prove(Question.of(x, *pairs)).radius
    assert (radius <= exact[norm] * (1.0 + 1e-12)).all() and (radius > 0.0).all()
    if "smooth" not in dip:  # whose graph to decide is another one
        just_beyond = exact[norm] * (1.0 + 1e-6)
        decided = one.prove(Question.of(x, *pairs, decide=[just_beyond])).radius
        assert (decided < just_beyond).all()
    if (dip, method, norm) == ("pocket, 2", "branched", "linf"):
        assert (radius > 0.99 * exact[norm]).all()


@pytest.mark.parametrize("dip", DIPS)
def test_the_dip_is_where_it_is_said_to_be(dip):
    """Just inside the nearest point the class is the other one, and just before it is not; descents
    in the ball around it do not find it."""
    network, x, exact, nearest = dip_of(dip)
    for norm, point in nearest.items():
        length = NORMS[norm].of(point - x)
        np.testing.assert_allclose(length, exact[norm], rtol=1e-9)
        for share, label in ((1.0 + 1e-6, 1), (1.0 - 1e-6, 0)):
            moved = x + share * (point - x)
            assert (network.logits(tf.constant(moved)).numpy().argmax(axis=1) == label).all()
    label = tf.constant([0, 0])
    lowest, _ = pgd_attack(network, tf.constant(x), label, radius=1.05 * exact["l2"], restarts=2)
    assert (lowest.numpy() > 0.99).all()  # it is flat: nothing pulls toward the dip


def test_a_served_model_with_a_pocket():
    """From the Keras model to radii: all its numbers are of float32."""
    network = dip_of("pocket, 10").network
    centre = np.arange(10.0) / 8.0
    x = (centre + (np.arange(10) == 3) * FAR)[None].astype(np.float32)
    layers = [keras.layers.Dense(n, activation="relu") for n in (20, 1)]
    model = keras.Sequential([keras.Input((10,)), *layers, keras.layers.Dense(2)])
    first, *others = network.affines
    biases = [np.concatenate([-centre, centre]), *(one.bias for one in others)]
    kernels = [one.kernel for one in (first, *others)]
    model.set_weights([part for pair in zip(kernels, biases, strict=True) for part in pair])
    exact = FAR - 1.0 / 30.0
    inside = x - (np.arange(10) == 3) * np.float32(exact + 1e-3)
    assert np.argmax(keras_curv.read(model).call(inside)) == 1
    for decide in (None, [exact]):
        found = keras_curv.certify(model, x, decide=decide, guarantee="float32")
        assert 0.0 < found.radius.item() < exact and found.prediction.item() == 0
        assert np.isinf(found.adversarial_distance).all()  # no search has met one
