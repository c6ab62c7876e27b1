"""Each step from a minorant to a radius, alone: nothing of it can be left out.

`benchmarks/mutants.py` leaves one out after the other and sees that a test fails.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc import (
    ball_step,
    crc,
    crc_local,
    geometries,
    two_stage,
)
from keras_curv.certificates.crc.geometry import Place
from keras_curv.certificates.crc.proved_radius import Charged
from keras_curv.certificates.question import Question
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import Charge
from keras_curv.threats.confined import Reach

ROWS = 60
of = np.vectorize(lambda v: Fraction(float(v)), otypes=[object])


@pytest.fixture(autouse=True)
def _without_graphs():
    """Eagerly: to trace a search takes longer than all that is computed here."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def one_unit(bias=2.0, **errors):
    """`f = bias − softplus(x)`, whose boundary is at `log(expm1(bias))`."""
    last = Affine([[-1.0, 0.0]], [bias, 0.0], **errors)
    return Network([Affine([[1.0]], [0.0]), last], [activations.get("softplus")])


def boundary(margin):
    return math.log(math.expm1(margin))


def at_origin(count=1, rivals=1, **goal):
    label, others = np.zeros(count, int), np.tile(np.arange(1, rivals + 1), (count, 1))
    return Question.of(np.zeros((count, 1)), label, others, **goal)


def constant(error):
    return lambda x, label, rivals, radius: np.full(rivals.shape, error)


def rising(x, label, rivals, radius):
    """Served errors of a quarter of the radius, as one that is linear in it."""
    assert np.all(radius >= 0.0)
    return 0.25 * radius


# The curvature certificate.


def test_the_radius_of_one_unit_is_its_distance():
    found = crc.CurvatureCertificate(one_unit()).certify(np.zeros((1, 1)))
    exact = boundary(2.0)
    assert 0.999 * exact < found.radius[0] <= exact
    assert exact <= found.adversarial_distance[0] < 1.01 * exact


def test_what_serving_takes_off_is_taken_off():
    served = crc.CurvatureCertificate(one_unit(), constant(0.5)).prove(at_origin())
    assert 0.999 * boundary(1.5) < served.radius[0, 0] <= boundary(1.5)


def test_no_radius_is_beyond_what_was_asked_of_serving():
    """`f = 1 − x`, of which serving takes a hundred beyond the radius 0.1."""

    def late(x, label, rivals, radius):
        return np.where(radius > 0.1, 100.0, 0.0)

    network = Network.from_weights([[[-1.0, 0.0]]], [[1.0, 0.0]], ())
    certificate = crc.CurvatureCertificate(network, late, max_steps=0)
    certificate.first_radii = lambda question, first: (np.array([[0.05]]), np.array([[10.0]]))
    assert 0.0 < certificate.prove(at_origin()).radius[0, 0] <= 0.1


def test_a_slope_that_may_be_wrong_is_charged():
    """At 0 the kernel's error leaves the margin alone; without curvature, there is a floor."""
    network = Network([Affine([[1.0, 0.0]], [1.0, 0.0], kernel_error=1e-3)], [])
    found = crc.CurvatureCertificate(network, max_steps=0).prove(at_origin()).radius[0, 0]
    assert 0.99 < found <= 1.0 / (1.0 + math.sqrt(2.0) * 1e-3)


def test_margins_that_cannot_change():
    """The first two columns are the same, the third shares a weight with them."""
    columns = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]])
    bias = np.array([1.0, 0.0, 0.0])
    question = Question.of(np.zeros((1, 2)), [0], [[1, 2]])
    exact = crc.CurvatureCertificate(Network([Affine(columns, bias)], []), max_steps=0)
    found = exact.prove(question).radius
    assert found[0, 0] == np.inf and 0.49 < found[0, 1] <= 0.5
    vague = Network([Affine(columns, bias, kernel_error=1e-3)], [])
    found = crc.CurvatureCertificate(vague, max_steps=0).prove(question).radius
    assert found[0, 0] < 1e4 and 0.4 < found[0, 1] < 0.5
    still = Network.from_weights([np.zeros((1, 2)), np.eye(2)], [[1.0, 0.0]] * 2, "softplus")
    found = crc.CurvatureCertificate(still, max_steps=0).prove(at_origin()).radius
    assert found[0, 0] == np.inf


def test_columns_that_share_a_weight_are_not_the_same():
    """`f = 2 − softplus(x)` of the second unit alone."""
    maps = [Affine([[1.0, 1.0]], [0.0, 0.0]), Affine([[0.0, 0.0], [-1.0, 0.0]], [2.0, 0.0])]
    network = Network(maps, one_unit().activations)
    found = crc.CurvatureCertificate(network, max_steps=0).prove(at_origin()).radius[0, 0]
    assert 1.0 < found <= boundary(2.0)


def test_what_an_input_is_off_by_is_taken_off(rng):
    certificate = crc.CurvatureCertificate(one_unit(), max_steps=0)
    whole = certificate.prove(at_origin(ROWS)).radius[:, 0]
    start, displaced = certificate.geometry.start, rng.random(ROWS)
    displaced[0] = 5.0
    certificate.geometry.start = lambda x: start(x)._replace(displaced=displaced)
    found = certificate.prove(at_origin(ROWS)).radius[:, 0]
    assert found[0] == 0.0 and np.all(found[1:] > 0.0)
    assert np.all(of(found[1:]) <= of(whole[1:]) - of(displaced[1:]))


# Geometries turn a charged minorant into a radius.


def minorants(rng, curvature):
    parts = rng.uniform(1.0, 2.0, (2, ROWS))
    return dual.Minorant(*map(tf.constant, (*parts, np.full(ROWS, curvature))))


def assert_no_more_than_roots(radius, bound):
    """A − h r − κ r²/2 ≥ 0, exactly."""
    a, h, kappa = (of(part) for part in bound)
    r = of(radius)
    assert np.all(r > 0) and np.all(a - h * r - kappa * r * r / 2 >= 0)


@pytest.mark.parametrize("kind", [geometries.Box, geometries.Clip])
@pytest.mark.parametrize("curvature", [0.0, 1.5])
def test_a_radius_behind_limits_is_no_more_than_the_root(kind, curvature, rng, monkeypatch):
    """Of the minorants, whose own charges are `threats/confined.py`'s."""
    bound = minorants(rng, curvature)

    def plain(intercept, steepness, kappa, room, slope_error):
        assert np.all(slope_error > 0.0)
        return bound

    def confined(intercept, steepness, kappa, room, multiplier, slope_error):
        return plain(intercept, steepness, kappa, room, slope_error)

    monkeypatch.setattr(geometries, "plain_minorant", plain)
    monkeypatch.setattr(geometries, "confined_minorant", confined)
    ones = tf.ones((ROWS, 1), tf.float64)
    none = tf.zeros((ROWS, 1), tf.float64)
    room = Reach(ones, ones, none, none, tf.ones(1, tf.float64))
    found = Charged(-ones, ones[:, None], Charge(none, none))  # of which nothing else proves
    place = Place(-ones[:, 0], ones, ones / 2.0, ones[:, 0], room)
    arguments = found, place, none[:, 0]
    assert_no_more_than_roots(tf.reshape(kind.first(found, ones, none, room)[0], [-1]), bound)
    assert_no_more_than_roots(kind.step(*arguments)[0], bound)
    assert_no_more_than_roots(kind.in_ball(*arguments), bound)


@pytest.mark.parametrize("name", ["first", "step", "in_ball"])
def test_what_serving_takes_off_is_taken_off_behind_limits(name):
    """`f = 1 − x` in a box, less a half."""
    one, none = tf.ones((1, 1), tf.float64), tf.zeros((1, 1), tf.float64)
    room = Reach(9.0 * one, 9.0 * one, none, none, tf.ones(1, tf.float64))
    found = Charged(one, -one[:, None], Charge(none, none))
    kappa, half = 1e-9 * one, 0.5 * one
    place = Place(one[:, 0] - 0.5, -one, none, kappa[:, 0], room)
    if name == "first":
        radius = geometries.Box.first(found, kappa, half, room)[0]
    else:
        if name == "step":  # where the move is that of the best multiplier
            found = found._replace(margin=half)
            place = place._replace(displacement=0.5 * one, margin=none[:, 0])
        radius = getattr(geometries.Box, name)(found, place, half[:, 0])
        radius = radius[0] if name == "step" else radius
    assert 0.49 < np.ravel(radius)[0] <= 0.5


# Curvature on balls.


def stepped(network, point, radius, error=0.0, kappa=0.25):
    """Radii that one gradient at each point proves in a ball around 0."""
    point = np.asarray(point, np.float64)
    geometry = geometries.geometry_of(network)
    start = geometry.start(np.zeros_like(point))
    each = [np.broadcast_to(np.float64(v), len(point)) for v in (kappa, radius, error)]
    classes = np.zeros(len(point), np.int32), np.ones(len(point), np.int32)
    iterate = dual.start(tf.constant(point))
    step = ball_step.BallStep(network, type(geometry))
    found, following = step(
        start.value, *map(tf.constant, classes), *map(tf.constant, each), iterate, start.room
    )
    return found.numpy(), following.point.numpy()


def test_only_a_gradient_in_the_ball_proves():
    inside, outside = stepped(one_unit(), [[1.0], [1.5]], 1.2)[0]
    assert 1.0 < inside <= boundary(2.0) and outside == 0.0


def test_a_point_outside_by_less_than_rounding_proves_nothing(rng):
    """Its length is computed as the radius, and is more."""
    affine = Network.from_weights([np.eye(9)[:, :2]], [[1.0, 0.0]], ())
    point = rng.standard_normal((ROWS, 9))
    radius = dual.norm(tf.constant(point)).numpy()
    beyond = np.array([sum(v * v for v in row) for row in of(point)]) > of(radius) ** 2
    found, _ = stepped(affine, -np.abs(point), radius, kappa=1e-9)
    assert np.any(beyond) and not np.any(found[beyond])
    assert np.all(stepped(affine, -np.abs(point), radius * 1.001, kappa=1e-9)[0] > 0.0)


def test_iterates_stay_in_the_ball():
    _, following = stepped(one_unit(), [[0.0]], 0.5)
    assert 0.4 < abs(following[0, 0]) <= 0.5


def test_what_serving_takes_off_is_taken_off_in_a_ball():
    served = stepped(one_unit(), [[boundary(1.5)]], 2.0, error=0.5)[0][0]
    assert 0.9 * boundary(1.5) < served <= boundary(1.5)


def test_a_slope_is_charged_where_a_ball_has_no_curvature():
    network = Network([Affine([[1.0, 0.0]], [1.0, 0.0], kernel_error=1e-3)], [])
    found = stepped(network, [[0.0]], 5.0, kappa=0.0)[0][0]
    assert 0.99 < found <= 1.0 / (1.0 + math.sqrt(2.0) * 1e-3)


def local(served_error=crc_local.no_error, bias=2.0):
    return crc_local.LocalCurvatureCertificate(one_unit(bias), served_error)


def at_radius(certificate, radius, curvature=0.01, known=0.0):
    question = at_origin()
    anchor = certificate.local_curvature.anchor(question.x)
    args = anchor, *question[:3], np.full((1, 1), known), np.array([radius])
    found, _ = certificate.proved_at(*args, lambda *_: np.array([curvature]))
    return found[0, 0]


def test_a_ball_proves_no_more_than_its_radius():
    assert at_radius(local(), 0.5) == 0.5
    assert 0.5 < at_radius(local(), 9.0, curvature=0.25) <= boundary(2.0)
    assert at_radius(local(), 9.0, curvature=0.25, known=1.9) == 1.9


def test_what_serving_takes_off_on_a_ball_is_rounded_up(rng):
    certificate = local(rising)
    radius = rng.random(ROWS)
    error = certificate.served_error_at(*at_origin(ROWS)[:3], radius)[:, 0]
    assert np.all(of(error) > of(radius) / 4) and np.all(error < 0.2500001 * radius)
    assert at_radius(local(constant(1.9)), 5.0) <= boundary(0.1 + 1e-12) + 5.0
    assert at_radius(local(constant(1.0)), 5.0, curvature=0.25) <= boundary(1.0)


@pytest.mark.parametrize("rivals", [1, 5])
def test_an_estimate_proves_nothing(rivals, monkeypatch):
    """However low it is; with one rival in reach, and with many."""
    last = Affine([[-1.0, *[0.0] * rivals]], [2.0, *[0.0] * rivals])
    network = Network([one_unit().affines[0], last], one_unit().activations)
    certificate = crc_local.LocalCurvatureCertificate(network)
    for name, few in {"STEPS": 3, "MAX_PROBES": 3}.items():
        monkeypatch.setattr(crc_local, name, few)
    monkeypatch.setattr(
        certificate.local_curvature, "estimate", lambda anchor, radius, of, *_: np.zeros(len(of))
    )
    found = certificate.prove(at_origin(rivals=rivals)).radius
    assert found.min() > 0.1 and np.all(found <= boundary(2.0))


# Two stages.


@pytest.fixture
def staged():
    """`f = 2 − softplus(|3x|)` and so on: a trunk of slope 3 behind which are 60 inputs."""
    weights = [[[3.0]], [[1.0]], [[-1.0, 0.0]]]
    network = Network.from_weights(weights, [[0.0], [0.0], [2.0, 0.0]], ["abs", "softplus"])
    return two_stage.TwoStageCertificate(network)


def test_a_trunk_divides_by_its_slope_what_is_left(staged, rng):
    certificate = staged
    inside, error = rng.uniform(1.0, 2.0, ROWS), rng.uniform(0.0, 0.9, ROWS)
    error[0], inside[1:3] = 3.0, (np.inf, np.nan)
    certificate.features = lambda x: (x, tf.constant(error))
    question = at_origin(ROWS)
    head = certificate.curved.prove
    certificate.curved.prove = lambda asked: head(asked)._replace(radius=inside[:, None])
    found = certificate.prove(question).radius[:, 0]
    assert found[0] == 0.0 and found[1] == np.inf and found[2] == 0.0
    exact = (of(inside[3:]) - of(error[3:])) / Fraction(certificate.lipschitz)
    assert np.all(of(found[3:]) <= exact) and np.all(of(found[3:]) > exact * Fraction(1 - 1e-12))
    certificate.lipschitz, inside[:] = 1e-160, 1e300
    assert np.all(np.isfinite(certificate.prove(question).radius))


def test_features_are_charged(staged):
    """Of |3 · 1e10|, a few units in the last place."""
    value, error = staged.features(tf.constant([[1e10], [0.0]], tf.float64))
    np.testing.assert_array_equal(value, [[3e10], [0.0]])
    assert 1e-6 < float(error[0]) < 1e-2 and float(error[1]) < 1e-100
    found = staged.prove(at_origin()).radius[0, 0]
    assert 0.99 * boundary(2.0) / 3.0 < found <= boundary(2.0) / 3.0
