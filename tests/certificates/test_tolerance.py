"""With a tolerance `auto` asks less: each shortcut excludes only what could not be won."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.auto import BestOf, choose_method
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL, choose_rivals
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import Method
from keras_curv.certificates.question import Question, WeakestPoint
from keras_curv.curvature.ball_floor import CurvatureFloor
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.local import LocalCurvature
from keras_curv.errors import InputError
from keras_curv.network.network import Network

DEAR = [LipschitzCertificate, LinearBoundCertificate, LocalCurvatureCertificate]
_COARSE_GAP = 0.004  # relative: 0.3 % of the grid that a search below a ceiling leaves, rounded up


def _searched(network, x):
    """Classes, rivals and what crc found, with the weakest points."""
    crc = CurvatureCertificate(network)
    logits = crc.logits(x)
    label = logits.argmax(axis=1)
    rivals = choose_rivals(logits, label, "all", np.arange(len(x)))
    return label, rivals, crc.prove(Question.of(x, label, rivals))


def _aiming(x, label, rivals, aim, known=0.0):
    """The question of a radius above these."""
    question = Question.of(x, label, rivals, known, tolerance=0.01)
    return question._replace(goal=question.goal._replace(aim=aim))


def _alone(method, x, label, rivals, found):
    """What a method proves itself: little is known, so that it need not ask another."""
    known = np.full(rivals.shape, 1e-2 * found.radius.min())
    return method.prove(Question.of(x, label, rivals, known)).radius.min(axis=1)


@pytest.mark.parametrize("kind", DEAR)
def test_no_radius_exceeds_the_ceiling(kind, rng, random_network):
    network = random_network(rng, (4, 7, 6, 3), ("sigmoid",) * 2, 2.0)
    x = rng.standard_normal((30, 4))
    label, rivals, found = _searched(network, x)
    method, rows, searched = kind(network), np.arange(len(x)), found.weakest
    scale = found.radius.min(axis=1)
    anywhere = x + scale[:, None] * rng.standard_normal(x.shape)
    for point in (searched.point, x, anywhere):
        column = searched.column
        rival = rivals[rows, column]
        margin = network.margin(tf.constant(point), label, tf.constant(rival)).numpy()
        sighting = WeakestPoint(column, point, margin, searched.start)
        alone = method.prove(Question.of(x, label, rival[:, None])).radius[:, 0]
        for factor in (0.3, 0.9, 1.0, 1.01, 1.3):
            ceiling = method.ceiling(_aiming(x, label, rivals, factor * scale), sighting)
            assert np.all(alone <= np.maximum(ceiling, factor * scale) * (1.0 + 1e-9))


@pytest.mark.parametrize("kind", DEAR)
def test_ceilings_exclude_most_that_gains_nothing(kind, rng, random_network):
    network = random_network(rng, (6, 15, 3), ("sigmoid",), 2.0)
    x = rng.standard_normal((60, 6))
    label, rivals, found = _searched(network, x)
    radius = 1.5 * found.radius.min(axis=1)
    ceiling = kind(network).ceiling(_aiming(x, label, rivals, radius), found.weakest)
    assert np.mean(ceiling <= radius) > 0.5


@pytest.mark.parametrize("shift", [0.0, 1e6, 1e7])
def test_large_inputs_that_cancel_exclude_nothing(shift):
    """As of features that are not normalised: float32 has no digits left for what counts."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        kernels = [rng.standard_normal((3, 8)) * 4.6, rng.standard_normal((8, 2))]
        biases = [-shift * kernels[0].sum(axis=0), np.zeros(2)]
        network = Network.from_weights(kernels, biases, "sigmoid")
        x = rng.standard_normal((30, 3)) + shift
        every, some = (
            choose_method("auto", network).certify(x, tolerance=tolerance).radius
            for tolerance in (0.0, 0.01)
        )
        assert np.all(some * (1.01 + _COARSE_GAP) >= every)


@pytest.mark.parametrize("kind", DEAR)
@pytest.mark.parametrize("exponents", [(-150, 150), (-150, 120), (-135, 122), (120, -150)])
def test_what_float32_cannot_hold_excludes_nothing(kind, exponents, rng, random_network):
    """Terms that count, of factors that it flushes to 0, or has no number for."""
    plain = random_network(rng, (6, 15, 3), ("tanh",), 2.0)
    first, last = (affine.kernel for affine in plain.affines)
    kernels = [np.ldexp(first, exponents[0]), np.ldexp(last, exponents[1])]
    network = Network.from_weights(kernels, [np.zeros(15), np.zeros(3)], "tanh")
    x = rng.standard_normal((20, 6))
    label, rivals, found = _searched(network, x)
    radius = 1e-6 * found.radius.min(axis=1)
    ceiling = kind(network).ceiling(_aiming(x, label, rivals, radius), found.weakest)
    assert np.all(ceiling > radius)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "silu"])
def test_the_floor_is_below_what_is_proved_and_close(name, rng, random_network):
    network = random_network(rng, (8, 11, 4), (name,))
    x, label, rival = rng.standard_normal((20, 8)), np.zeros(20, int), rng.integers(1, 4, 20)
    local, floor = LocalCurvature(network), CurvatureFloor(network)
    whole = -curvature_bounds(network).lower[label, rival]
    for radius in (0.01, 0.3, 1.0, 30.0):
        radii = np.full(20, radius)
        proved = local.bound(local.anchor(x), radii, np.arange(20), label, rival)
        for lower in (floor(x, label, rival, radii), floor.sharper(x, label, rival, radii)):
            assert np.all(lower <= proved)
            assert np.all(lower <= whole)
        assert np.all(floor.sharper(x, label, rival, radii) >= 0.9 * proved - 1e-12)
    # Where every unit reaches its bend, the global direction is the best there is.
    assert np.all(floor(x, label, rival, radii) >= 0.95 * whole)


@pytest.mark.parametrize("kind", [LinearBoundCertificate, LocalCurvatureCertificate])
@pytest.mark.parametrize("sizes", [(6, 15, 4), (6, 9, 15, 4)])
def test_what_is_aimed_at_is_found_and_what_is_out_of_reach_not_searched(
    kind, sizes, rng, random_network
):
    network = random_network(rng, sizes, ("sigmoid",) * (len(sizes) - 2), 2.0)
    method, x = kind(network), rng.standard_normal((20, sizes[0]))
    label, rivals, found = _searched(network, x)
    most = _alone(method, x, label, rivals, found)
    known = np.repeat(0.5 * most[:, None], rivals.shape[1], axis=1)
    reached = method.prove(_aiming(x, label, rivals, 0.9 * most, known))
    assert np.all(reached.radius.min(axis=1) >= most * (1.0 - _COARSE_GAP))
    missed = method.prove(_aiming(x, label, rivals, 1.1 * most, known))
    assert np.array_equal(missed.radius, known)
    if kind is LinearBoundCertificate and len(sizes) == 3:  # gradients at x0, and one bound
        assert np.all(missed.gradients == 2 * rivals.shape[1])
    else:
        assert missed.gradients.sum() <= 0.5 * reached.gradients.sum()


@pytest.mark.parametrize("kind", [LinearBoundCertificate, LocalCurvatureCertificate])
def test_deeper_ceilings_exclude_most_that_gains_nothing(kind, rng, random_network):
    network = random_network(rng, (6, 25, 25, 3), ("sigmoid",) * 2, 2.0)
    x = rng.standard_normal((40, 6))
    label, rivals, found = _searched(network, x)
    most = _alone(kind(network), x, label, rivals, found)
    far = 3.0 * most
    assert (
        np.mean(kind(network).ceiling(_aiming(x, label, rivals, far), found.weakest) <= far) > 0.5
    )
    near = 0.9 * most
    assert np.all(kind(network).ceiling(_aiming(x, label, rivals, near), found.weakest) > near)


def test_what_auto_proves_of_an_example_does_not_depend_on_the_others(rng, random_network):
    network = random_network(rng, (6, 15, 4), ("sigmoid",), 2.0)
    x = rng.standard_normal((30, 6))
    together = choose_method("auto", network).certify(x)
    method = choose_method("auto", network)
    for start in (20, 0):
        rows = slice(start, start + 10)
        np.testing.assert_allclose(method.certify(x[rows]).radius, together.radius[rows], 1e-6)


class Written(Method):
    """Proves radii that were written down, and says where it looked."""

    def __init__(self, name, network, radius, weakest=None, highest=np.inf, distance=np.inf):
        self.name, self.network, self._radius, self._distance = name, network, radius, distance
        self._weakest, self._highest, self.asked = weakest, highest, 0
        self.goal = None

    def prove(self, question):
        count, shape = len(question.x), question.rivals.shape
        self.asked, self.goal = self.asked + count, question.goal
        return question.answer(
            self.name,
            np.full(shape, self._radius),
            np.ones(count, np.int64),
            distance=np.full(shape, self._distance),
            weakest=self._weakest,
        )

    def ceiling(self, question, weakest):
        return np.full(len(question.x), self._highest)


@pytest.fixture
def line():
    """`f(x) = 2x`, whose boundary is at 0."""
    return Network.from_weights([np.array([[1.0, -1.0]])], [np.zeros(2)], ())


def _looking(x, point):
    margin = 2.0 * np.array([x, point])
    return WeakestPoint(np.zeros(1, int), np.array([[point]]), margin[1:], margin[:1])


@pytest.mark.parametrize(
    ("radius", "point", "tolerance", "asked"),
    [
        (0.995, 0.1, 0.01, 0),  # the boundary is 0.5 % beyond the radius
        (0.985, 0.1, 0.01, 1),  # 1.5 %
        (0.985, 0.1, 0.02, 0),
        (0.995, 0.1, 0.0, 1),
        (0.995, 1.9, 0.01, 1),  # it looked the other way
        (0.995, 1.0, 0.01, 1),  # it never left
    ],
)
def test_an_adversarial_point_just_beyond_is_the_end(line, radius, point, tolerance, asked):
    first = Written("first", line, radius, _looking(1.0, point))
    second = Written("second", line, 0.999)
    result = BestOf([first, second]).certify(np.ones((1, 1)), tolerance=tolerance)
    assert second.asked == asked
    assert result.radius[0] == (0.999 if asked else radius)
    if not asked:
        assert radius < result.adversarial_distance[0] <= 1.0 + tolerance
        assert result.primal_equals_dual[0] == (
            result.adversarial_distance[0] <= radius * (1.0 + PRIMAL_EQUALS_DUAL)
        )


@pytest.mark.parametrize(("distance", "looked"), [(1.0, 0), (1.004, 0), (1.006, 1), (np.inf, 1)])
def test_where_an_adversarial_point_is_known_none_is_looked_for(
    line, distance, looked, monkeypatch
):
    """None so near that it is the end: 1 % beyond the radius."""
    rows, note = [], BestOf.note
    monkeypatch.setattr(
        BestOf,
        "note",
        lambda self, so_far, some, *args: rows.extend(some) or note(self, so_far, some, *args),
    )
    first = Written("first", line, 0.995, _looking(1.0, 0.1), distance=distance)
    second = Written("second", line, 0.999)
    BestOf([first, second]).certify(np.ones((1, 1)))
    assert len(rows) == looked and not second.asked


@pytest.mark.parametrize(
    ("highest", "tolerance", "asked"),
    [(0.504, 0.01, 0), (0.51, 0.01, 1), (0.51, 0.03, 0), (0.5, 0.0, 1), (0.1, 0.01, 0)],
)
def test_a_method_is_asked_where_its_ceiling_is_worth_it(line, highest, tolerance, asked):
    first = Written("first", line, 0.5, _looking(1.0, 0.9))
    second = Written("second", line, 0.51, highest=highest)
    BestOf([first, second]).certify(np.ones((1, 1)), tolerance=tolerance)
    assert second.asked == asked


def test_without_a_radius_every_method_is_asked(line):
    first = Written("first", line, 0.0, _looking(1.0, 0.9))
    second = Written("second", line, 0.5, highest=0.0)
    assert BestOf([first, second]).certify(np.ones((1, 1))).radius[0] == 0.5


@pytest.mark.parametrize(
    ("sizes", "name"),
    [((5, 12, 4), "softplus"), ((5, 12, 4), "sigmoid"), ((5, 8, 9, 3), "sigmoid")],
)
def test_no_more_is_lost_than_the_tolerance(sizes, name, rng, random_network):
    network = random_network(rng, sizes, (name,) * (len(sizes) - 2), 2.0)
    x = rng.standard_normal((40, sizes[0]))
    every = choose_method("auto", network, tolerance=0.0).certify(x, tolerance=0.0)
    default = choose_method("auto", network).certify(x)
    assert np.all(default.radius >= every.radius * (1.0 - 0.01 - _COARSE_GAP))
    assert default.radius.sum() >= 0.997 * every.radius.sum()
    # Of more layers only points across the boundary exclude a method, and finding one may cost.
    # Curvature alone settles two layers of softplus, which leaves nothing to save.
    most = 1.1 if len(sizes) > 3 else 1.0 + 1e-9 if name == "softplus" else 0.9
    assert default.gradient_evaluations.sum() < most * every.gradient_evaluations.sum()


@pytest.mark.parametrize("tolerance", [-0.01, 1.5])
def test_tolerance_is_checked(line, tolerance):
    with pytest.raises(InputError, match="tolerance must be from 0 to 1"):
        choose_method("auto", line, tolerance=tolerance)


def test_rivals_are_searched_as_far_as_asked(rng, random_network):
    network = random_network(rng, (6, 14, 5), ("sigmoid",))
    x = rng.standard_normal((20, 6))
    label, rivals, found = _searched(network, x)
    crc = CurvatureCertificate(network)
    each = np.concatenate(
        [crc.prove(Question.of(x, label, t[:, None])).radius for t in rivals.T], 1
    )
    up_to = 1.2 * found.radius.min(axis=1)
    question = Question.of(x, label, rivals)
    goal = question.goal.up_to(up_to)._replace(every_rival=True)
    farther = crc.prove(question._replace(goal=goal)).radius
    wanted = np.minimum(each, up_to[:, None])
    assert np.all(farther >= wanted * (1.0 - 2e-4))
    assert np.any(found.radius < wanted * (1.0 - 1e-2))


@pytest.mark.parametrize(
    ("method", "tolerance", "sizes"),
    [
        ("auto", 0.0, (6, 14, 4)),
        ("auto", 0.01, (5, 8, 9, 3)),
        ("crc", 0.01, (6, 14, 4)),
        ("crc", 0.0, (5, 8, 9, 3)),
    ],
)
def test_decisions_are_those_of_the_radii(method, tolerance, sizes, rng, random_network):
    network = random_network(rng, sizes, ("sigmoid",) * (len(sizes) - 2), 2.0)
    x = rng.standard_normal((60, sizes[0]))
    every = choose_method(method, network, tolerance=0.0).certify(x, tolerance=0.0)
    asked = np.quantile(every.radius, [0.2, 0.5, 0.8])
    chosen = choose_method(method, network, tolerance=tolerance)
    decided = chosen.certify(x, tolerance=tolerance, decide=asked)
    assert np.all(decided.radius <= every.radius * (1.0 + 3e-3))
    for radius in asked:
        clear = np.abs(every.radius / radius - 1.0) > _COARSE_GAP
        assert np.array_equal(decided.radius[clear] > radius, every.radius[clear] > radius)
    most = 0.8 if len(sizes) == 3 or method == "crc" else 1.0
    assert decided.gradient_evaluations.sum() < most * every.gradient_evaluations.sum()


@pytest.mark.parametrize("decide", [(0.5,), (0.5, 0.9)])
def test_for_a_decision_no_more_is_asked_for(line, decide):
    """But for each radius: a method is asked once, whichever the next one is."""
    first = Written("first", line, 0.4, _looking(1.0, 0.9))
    second = Written("second", line, 0.95)
    BestOf([first, second]).certify(np.ones((1, 1)), decide=decide)
    assert max(decide) < second.goal.ceiling[0] < 1.01 * max(decide)
    assert second.goal.aim[0] == 0.5
    BestOf([first, second]).certify(np.ones((1, 1)))
    assert second.goal.ceiling[0] == np.inf


def test_a_reach_decides_every_rival(rng, random_network):
    network = random_network(rng, (6, 14, 5), ("sigmoid",), 2.0)
    x = rng.standard_normal((40, 6))
    label, rivals, found = _searched(network, x)
    radius = float(np.median(found.radius.min(axis=1)))
    crc = CurvatureCertificate(network)
    pairs = [Question.of(x, label, t[:, None], decide=[radius]) for t in rivals.T]
    each = np.concatenate([crc.prove(question).radius for question in pairs], 1)
    question = Question.of(x, label, rivals, decide=[radius])
    everyone = crc.prove(question._replace(goal=question.goal.of_each_rival()))
    assert np.array_equal(everyone.radius > radius, each > radius)
    weakest = everyone.weakest.column
    assert np.all((each > radius).all(axis=1) | (each[np.arange(len(x)), weakest] <= radius))
    anyone = crc.prove(question)
    assert np.array_equal((anyone.radius > radius).all(axis=1), (each > radius).all(axis=1))
    assert anyone.gradients.sum() < everyone.gradients.sum()


def test_an_adversarial_point_decides(rng, random_network, monkeypatch):
    network = random_network(rng, (6, 14, 5), ("sigmoid",), 2.0)
    x = rng.standard_normal((200, 6))
    label, rivals, found = _searched(network, x)
    radius = 3.0 * float(np.median(found.radius.min(axis=1)))
    auto = choose_method("auto", network)
    asked = []
    for method in auto.methods:
        if method.name in ("crown", "crc_local"):

            def prove(question, search=method.prove):
                asked.append(question.x)
                return search(question)

            monkeypatch.setattr(method, "prove", prove)
    question = Question.of(x, label, rivals, tolerance=0.01, decide=[radius])
    distance = auto.prove(question).distance
    reached = distance.min(axis=1) <= radius
    assert np.mean(reached) > 0.3
    for rows in asked:
        assert not (rows[:, None] == x[reached]).all(axis=2).any()
    # A few steps of an attack reach more than one.
    monkeypatch.setattr("keras_curv.certificates.auto.ATTACK_STEPS", (1,))
    nearer = choose_method("auto", network).prove(question).distance
    assert np.count_nonzero(nearer.min(axis=1) <= radius) < np.count_nonzero(reached)


def test_what_a_lipschitz_bound_decides_needs_no_gradient(rng, random_network):
    network = random_network(rng, (6, 14, 4), ("sigmoid",), 2.0)
    x = rng.standard_normal((60, 6))
    clean = choose_method("lipschitz", network).certify(x).radius
    radius = float(np.median(clean))
    decided = choose_method("auto", network).certify(x, decide=[radius])
    assert np.array_equal(decided.gradient_evaluations == 0, clean > radius)
    assert np.all(decided.radius[clean > radius] > radius)


@pytest.mark.parametrize("method", ["crown", "crc_local", "interval"])
def test_a_ball_that_is_searched_alone_is_closed_with_a_tolerance_of_0(method, rng, random_network):
    """And with another one not far from there, for fewer bounds."""
    network = random_network(rng, (5, 8, 9, 3), ("tanh", "tanh"), 2.0)
    x = rng.standard_normal((40, 5))
    exact = choose_method(method, network, tolerance=0.0).certify(x, tolerance=0.0)
    default = choose_method(method, network).certify(x)
    assert np.all(default.radius >= exact.radius * (1.0 - _COARSE_GAP))
    assert default.gradient_evaluations.sum() < exact.gradient_evaluations.sum()
    assert exact.radius.sum() > default.radius.sum()
