"""Smoothing's radius against what is known: half spaces, binomial tails, larger samples."""

from fractions import Fraction

import keras
import mpmath
import numpy as np
import pytest
import scipy.stats

from keras_curv import InputError, Status
from keras_curv.certificates.smoothing import votes
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.certificates.smoothing.votes import NoiseVotes
from keras_curv.network.network import Network
from keras_curv.numerics.clopper_pearson import clopper_pearson, smoothed_radius

L = keras.layers
DEVIATION = 0.5
KERNEL = np.array([[1.0, -0.5, 0.2], [0.3, 0.8, -0.4], [0.0, 0.6, 0.5], [-0.7, 0.1, 0.9]])
NOISES = ("own", "shared")


def _linear(kernel=KERNEL, bias=None):
    """Logits x W + b, in Keras."""
    model = keras.Sequential([keras.Input((len(kernel),)), L.Dense(kernel.shape[1])])
    model.set_weights([kernel, np.zeros(kernel.shape[1]) if bias is None else bias])
    return model


@pytest.fixture(scope="module")
def half_space():
    """Of two classes, whose boundary is a plane."""
    return SmoothedClassifier(_linear(KERNEL[:, :2], np.array([0.1, -0.2])), DEVIATION)


@pytest.fixture(scope="module")
def cone():
    """Of three classes, each of them where it is before two others."""
    return SmoothedClassifier(_linear(), DEVIATION)


def _distance(x, label, rival, kernel=KERNEL, bias=(0.0, 0.0, 0.0)):
    """Of x from the half space where the rival wins."""
    normal = (kernel[:, label] - kernel[:, rival]).astype(np.float32).astype(float)
    return (x @ normal + bias[label] - bias[rival]) / np.linalg.norm(normal)


X = np.array([[0.5, -0.1, 0.1, -0.1]], np.float32)


@pytest.fixture(scope="module")
def smoothed():
    """Of a small network with curved boundaries."""
    keras.utils.set_random_seed(3)
    options = {"kernel_initializer": keras.initializers.RandomNormal(stddev=0.9)}
    layers = [L.Flatten(), L.Dense(9, "tanh", **options), L.Dense(7, "relu", **options)]
    model = keras.Sequential([keras.Input((2, 3)), *layers, L.Dense(4, **options)])
    return SmoothedClassifier(model, 0.3)


def _inputs(count=12):
    return np.random.default_rng(4).standard_normal((count, 2, 3)).astype(np.float32)


def test_the_radius_of_a_half_space_is_missed_no_more_often_than_promised(half_space):
    alpha, repetitions = 0.1, 400
    x = np.repeat(X, repetitions, axis=0)  # each has noise of its own
    result = half_space.certify(x, samples=150, failure_probability=alpha)
    exact = _distance(X[0], 0, 1, bias=(0.1, -0.2))
    assert 0.3 * DEVIATION < exact < 2.0 * DEVIATION  # neither hopeless nor always won
    assert np.all(result.prediction == 0)
    failures = np.sum(result.radius > exact)
    # Four standard deviations; and far fewer would mean a bound that is not Clopper–Pearson's.
    assert 10 <= failures <= alpha * repetitions + 4 * np.sqrt(repetitions * alpha * (1 - alpha))


@pytest.mark.parametrize("noise", NOISES)
def test_it_approaches_the_radius_of_a_half_space(half_space, noise):
    exact = _distance(X[0], 0, 1, bias=(0.1, -0.2))
    gaps = []
    for samples in (100, 10_000, 1_000_000):
        radius = half_space.certify(X, samples=samples, noise=noise).radius[0]
        gaps.append((exact - radius) / DEVIATION)
    assert gaps[0] > gaps[1] > gaps[2] > 0.0
    # A frequency's standard error in units of Φ⁻¹ is √(p(1 − p)/n)/φ(Φ⁻¹(p)), below 2/√n here; α
    # takes three of these, and chance less than three.
    assert gaps[2] < 6.0 * 2.0 / np.sqrt(1_000_000)


@pytest.mark.parametrize("noise", NOISES)
def test_against_one_rival_of_three(cone, noise):
    """Each pair of classes is a half space; all of them together a smaller cone."""
    options = {"samples": 40_000, "noise": noise}
    against_one = cone.certify(X, rivals="runner_up", **options)
    against_all = cone.certify(X, **options)
    exact = {rival: _distance(X[0], 0, rival) for rival in (1, 2)}
    rival = int(against_one.nearest_rival[0])
    assert rival == min(exact, key=exact.get)
    assert 0.9 * exact[rival] < against_one.radius[0] < exact[rival]
    assert against_all.radius[0] < against_one.radius[0]
    assert against_all.nearest_rival[0] == -1


@pytest.mark.parametrize("rivals", ["all", "runner_up"])
def test_the_smoothed_class_still_wins_inside_the_radius(smoothed, rivals):
    x = _inputs()
    result = smoothed.certify(x, rivals=rivals, samples=20_000)
    rows = np.flatnonzero(result.status == Status.CERTIFIED)
    assert len(rows) > 6
    network = smoothed.served.network
    flat = x.reshape(len(x), -1)[rows]
    label, radius = result.prediction[rows], result.radius[rows]
    classes = np.arange(network.classes)
    others = classes != label[:, None]
    if rivals == "runner_up":
        others = classes == result.nearest_rival[rows][:, None]
    rng = np.random.default_rng(1)
    samples = 4000
    lowest = np.ones(len(rows))
    for trial in range(8):
        # Downhill for a margin at a noisy point, or anywhere.
        rival = np.where(others, rng.random(others.shape), 0.0).argmax(axis=1)
        near = flat + 0.3 * rng.standard_normal(flat.shape)
        step = -network.margin_and_gradient(near, label, rival)[1].numpy()
        if trial % 2:
            step = rng.standard_normal(flat.shape)
        moved = flat + (0.999 * radius / np.linalg.norm(step, axis=1))[:, None] * step
        options = {"first_index": 99, "seed": trial, "samples": samples, "shared": False}
        wins = smoothed.votes.wins(moved, label, others, **options)
        lowest = np.minimum(lowest, wins / samples)
    assert np.all(lowest > 0.5 - 5.0 * 0.5 / np.sqrt(samples))  # five standard errors
    assert np.any(lowest < 0.75)  # the moves went where it matters


@pytest.mark.parametrize("samples", [1, 10, 1000, 50_000])
def test_clopper_pearson_is_the_binomial_tail(samples):
    wins = np.unique([1, samples // 2 + 1, int(0.9 * samples) + 1, samples - 1, samples])
    wins = wins[(wins > 0) & (wins <= samples)]
    for alpha in (1e-30, 1e-3, 0.05, 0.5):
        for k, bound in zip(wins, clopper_pearson(wins, samples, alpha), strict=True):
            with mpmath.workdps(30):
                p = mpmath.mpf(float(bound))
                tails = [_tail(samples, int(k), p), _tail(samples, int(k), p * (1 + 2e-9))]
            assert tails[0] <= alpha < tails[1]


def _tail(n, k, p):
    """P(Bin(n, p) ≥ k), term by term."""
    term = mpmath.binomial(n, k) * p**k * (1 - p) ** (n - k)
    total = mpmath.mpf(0)
    for j in range(k, n + 1):
        total += term
        term *= (n - j) / (j + mpmath.mpf(1)) * p / (1 - p)
        if term < total * mpmath.mpf(10) ** -25:
            break
    return total


def test_clopper_pearson_by_hand_and_by_table():
    assert clopper_pearson(np.array([0, 20]), 20, 0.05) == pytest.approx([0.0, 0.05 ** (1 / 20)])
    # One-sided 2.5 %, as in tables of 95 % intervals: 5 of 10, and 1 of 10.
    assert clopper_pearson(np.array([5, 1]), 10, 0.025).round(4).tolist() == [0.1871, 0.0025]


@pytest.mark.parametrize("samples", [1, 7, 40])
@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.3])
def test_clopper_pearson_covers_every_probability(samples, alpha):
    """The failure rate in closed form: the probability of all counts whose bound is too large."""
    wins = np.arange(samples + 1)
    bounds = clopper_pearson(wins, samples, alpha)
    for p in np.linspace(0.01, 0.99, 197):
        assert scipy.stats.binom.pmf(wins, samples, p)[bounds > p].sum() <= alpha * (1 + 1e-9)


def test_radius_is_rounded_down():
    wins = np.array([0, 500, 530, 560, 900, 1000])
    radius = smoothed_radius(wins, 1000, 1e-3, DEVIATION)
    with mpmath.workdps(30):
        for k, r in zip(wins, radius, strict=True):
            p = mpmath.mpf(float(clopper_pearson(k, 1000, 1e-3))) * (1 + mpmath.mpf("0.9e-9"))
            z = DEVIATION * mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)
            assert r == 0.0 if p <= 0.5 else z * (1 - mpmath.mpf(10) ** -7) <= r <= z
    assert radius.tolist()[:3] == [0.0, 0.0, 0.0] and np.all(radius[3:] > 0.0)


@pytest.mark.parametrize("noise", NOISES)
def test_how_examples_are_cut_has_no_effect(smoothed, noise):
    x = _inputs()
    options = {"samples": 5000, "noise": noise, "seed": 7}  # three blocks, the last cut off
    whole = smoothed.certify(x, **options)
    for size in (1, 5):
        for start in range(0, len(x), size):
            part = smoothed.certify(x[start : start + size], first_index=start, **options)
            for name, column in vars(whole).items():
                assert np.array_equal(getattr(part, name), column[start : start + size])
    again = smoothed.certify(x, **options)
    other = smoothed.certify(x, **{**options, "seed": 8})
    assert np.array_equal(whole.radius, again.radius)
    assert not np.array_equal(whole.radius, other.radius)


def test_noise_is_normal_and_of_its_own():
    """Wins at a linear network are binomial with a known probability, in each stream apart."""
    network = Network.from_weights([KERNEL[:, :2]], [np.zeros(2)], [])
    p = scipy.stats.norm.cdf(_distance(X[0], 0, 1) / DEVIATION)
    count, samples = 200, 4100
    x, label = np.repeat(X, count, axis=0).astype(float), np.zeros(count, int)
    others = np.array([[False, True]] * count)
    draws = NoiseVotes(network, DEVIATION)
    options = {"first_index": 0, "seed": 2, "samples": samples}
    wins = draws.wins(x, label, others, shared=False, **options)
    spread = np.sqrt(samples * p * (1 - p))
    assert abs(wins.mean() - samples * p) < 5 * spread / np.sqrt(count)
    # As independent counts spread; 200 of them know it to a twentieth.
    assert wins.std() == pytest.approx(spread, rel=0.25)
    chosen = draws.preferences(x, shared=False, **options)[:, 0]
    assert abs(np.corrcoef(wins, chosen)[0, 1]) < 5 / np.sqrt(count)
    shared = draws.wins(x, label, others, shared=True, **options)
    assert len(set(shared)) == 1 and abs(shared[0] - samples * p) < 5 * spread


def test_every_draw_is_counted_once(monkeypatch):
    network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
    x = np.array([[9e9, 0.0]])
    monkeypatch.setattr(votes, "BLOCK", 8)
    draws = NoiseVotes(network, 1.0)
    for samples in (1, 7, 8, 9, 24):
        options = {"first_index": 0, "seed": 0, "samples": samples, "shared": False}
        wins = draws.wins(x, np.array([0]), np.array([[False, True]]), **options)
        assert wins.tolist() == [samples]


def test_ties_are_abstained():
    kernel = np.stack([KERNEL[:, 0], KERNEL[:, 0], KERNEL[:, 1] - 9.0 * KERNEL[:, 0]], axis=1)
    smoothed = SmoothedClassifier(_linear(kernel), 0.01)
    for rivals in ("all", "runner_up"):
        result = smoothed.certify(X, np.array([0]), rivals=rivals, samples=100)
        assert result.status.tolist() == [Status.ABSTAINED]
        assert result.prediction.tolist() == [-1] and result.radius.tolist() == [0.0]
    # On the boundary of a half space, half of the draws win.
    smoothed = SmoothedClassifier(_linear(KERNEL[:, :2]), 0.3)
    assert smoothed.certify(0.0 * X, samples=1000).status[0] == Status.ABSTAINED


def test_draws_with_a_logit_that_is_not_finite_are_lost():
    """The third logit is 1e308 ξ: below the others at half of the draws, but −∞ at some of them."""
    kernel = np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 1e308]])
    network = Network.from_weights([kernel], [np.zeros(3)], [])
    options = {"first_index": 0, "seed": 0, "samples": 4000, "shared": False}
    chosen = NoiseVotes(network, 1.0).preferences(np.array([[9.0, 0.0]]), **options)[0]
    p = scipy.stats.norm.cdf(np.finfo(float).max / 1e308) - 0.5
    assert p < 0.47 and abs(chosen[0] / 4000 - p) < 5 * np.sqrt(p * (1 - p) / 4000)


# Weights and inputs beside which float32 sums are off by a good part of the noise, or by more.
COARSE = {
    "large inputs": (784, 1000.0, 0.0, 1000.0 * 2.0**-16),
    "more of them": (4096, 1000.0, 0.0, 1000.0 * 2.0**-16),
    "larger ones": (64, 1e9, 0.0, 1e-3),
    "large bias": (8, 1.0, 2.0**27, 0.25),
}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((name, 0.5) for name in COARSE if name != "more of them"),
        *((name, -0.3) for name in COARSE),
    ],
)
def test_rounding_is_no_vote(name, wanted, rng):
    """A half space at a known distance of the noise's size, for either class, in exact numbers."""
    dim, size, shift, deviation = COARSE[name]
    kernel = np.zeros((dim, 2), np.float32)
    kernel[:, 0] = rng.uniform(0.5, 1.5, dim)
    x = (size * rng.uniform(0.9, 1.0, dim)).astype(np.float32)
    norm = np.linalg.norm(kernel[:, 0].astype(float))
    at_x = sum(
        Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, kernel[:, 0], strict=True)
    )
    target = float(at_x) - wanted * deviation * norm
    bias = np.array([shift, shift + target], np.float32)
    exact = float(at_x + Fraction(float(bias[0])) - Fraction(float(bias[1]))) / norm
    smoothed = SmoothedClassifier(_linear(kernel, bias), deviation)
    for noise in NOISES:
        result = smoothed.certify(x[None], samples=4_000, failure_probability=1e-6, noise=noise)
        signed = exact if result.prediction[0] == 0 else -exact
        assert result.radius[0] <= max(signed, 0.0)


def test_ties_within_rounding_are_lost():
    """Logits apart by less than float64 can show are in no order, whichever looks larger."""
    kernel = np.array([[1.0, 1.0 + 2.0**-52]])
    network = Network.from_weights([kernel], [np.zeros(2)], [])
    options = {"first_index": 0, "seed": 0, "samples": 50, "shared": False}
    votes = NoiseVotes(network, 2.0**-40)
    wins = votes.wins(np.array([[1.0]]), np.array([1]), np.array([[True, False]]), **options)
    assert wins.tolist() == [0]
    apart = Network.from_weights([np.array([[1.0, 1.0 + 2.0**-40]])], [np.zeros(2)], [])
    votes = NoiseVotes(apart, 2.0**-40)
    wins = votes.wins(np.array([[1.0]]), np.array([1]), np.array([[True, False]]), **options)
    assert wins.tolist() == [50]


def test_labels_and_status(smoothed):
    x = _inputs()
    free = smoothed.certify(x, samples=2000)
    y = np.where(np.arange(len(x)) % 2 == 0, free.prediction, (free.prediction + 1) % 4)
    y = np.maximum(y, 0)
    given = smoothed.certify(x, y, samples=2000)
    assert np.array_equal(given.prediction, free.prediction)
    won = free.prediction >= 0
    assert np.array_equal(given.status == Status.CERTIFIED, won & (free.prediction == y))
    assert np.array_equal(given.status == Status.MISCLASSIFIED, won & (free.prediction != y))
    assert np.array_equal(given.status == Status.ABSTAINED, ~won)
    certified = given.status == Status.CERTIFIED
    assert np.array_equal(given.radius > 0.0, certified)
    assert np.array_equal(given.radius[certified], free.radius[certified])
    assert np.array_equal(given.method == "smoothing", certified)


def test_an_export_is_certified_as_the_live_model_is(smoothed, tmp_path):
    keras.utils.set_random_seed(3)
    layers = [L.Flatten(), L.Dense(9, "relu"), L.Dense(4)]
    model = keras.Sequential([keras.Input((2, 3)), *layers])
    model.export(tmp_path / "model", verbose=False)
    one, other = (
        SmoothedClassifier(source, 0.3).certify(_inputs(), samples=500)
        for source in (model, str(tmp_path / "model"))
    )
    assert np.array_equal(one.radius, other.radius) and np.any(one.radius > 0.0)


def test_moving_to_float32_is_charged(smoothed):
    x = _inputs().astype(np.float64)
    exact = smoothed.certify(x, samples=500).radius
    moved = smoothed.certify(x + 1e-9, samples=500).radius
    certified = exact > 0.0
    assert np.all(moved[certified] <= exact[certified] - 1e-9)
    assert np.all(moved[certified] >= exact[certified] - 1e-8)


def test_no_examples(smoothed):
    assert all(len(column) == 0 for column in smoothed.certify(_inputs()[:0], samples=10))


REFUSED = {
    "rivals": ({"rivals": "random"}, "rivals must be one of all, runner_up"),
    "noise": ({"noise": "none"}, "noise must be one of own, shared"),
    "samples": ({"samples": 0}, "samples must be an integer, at least 1"),
    "half a sample": ({"samples": 10.5}, "samples must be an integer"),
    "selection": ({"selection_samples": 0}, "selection_samples must be an integer, at least 1"),
    "alpha 0": ({"failure_probability": 0.0}, "failure_probability must be between 0 and 1"),
    "alpha 1": ({"failure_probability": 1.0}, "failure_probability must be between 0 and 1"),
    "alpha too small": ({"failure_probability": 1e-40}, "must be at least 1e-30. Received: 1e-40"),
    "alpha NaN": ({"failure_probability": np.nan}, "failure_probability must be between"),
    "seed": ({"seed": -1}, "seed must be an integer, at least 0"),
    "index": ({"first_index": -1}, "first_index must be an integer, at least 0"),
    "labels": ({"y": np.array([0, 4])}, "example 1 has label 4"),
    "label count": ({"y": np.array([0])}, r"y must be integers of shape \(2,\)"),
    "shape": ({"x": np.zeros((2, 6))}, r"examples of shape \(6,\) do not fit"),
    "NaN": ({"x": np.full((2, 2, 3), np.nan)}, "example 0 has NaN or infinite entries"),
    "overflow": ({"x": np.full((2, 2, 3), 1e39)}, "example 0 overflows float32"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_bad_input_is_refused(smoothed, name):
    options, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        smoothed.certify(**{"x": _inputs(2), "samples": 10, **options})


@pytest.mark.parametrize("deviation", [0.0, -1.0, np.inf, np.nan, 1e-50, 1e60])
def test_bad_deviations_are_refused(deviation):
    with pytest.raises(InputError, match="deviation must be"):
        SmoothedClassifier(_linear(), deviation)


def test_models_that_take_integers_are_refused():
    layers = [L.Rescaling(1 / 255, dtype="float32"), L.Dense(3)]
    model = keras.Sequential([keras.Input((4,), dtype="uint8"), *layers])
    with pytest.raises(InputError, match="takes uint8, to which noise cannot be added"):
        SmoothedClassifier(model, 0.1)


@pytest.mark.parametrize(("wins", "samples"), [([-1], 5), ([6], 5), ([2.5], 5), ([1], 0)])
def test_bad_counts_are_refused(wins, samples):
    with pytest.raises(InputError, match="must be"):
        clopper_pearson(np.array(wins), samples, 0.1)
