"""Smoothing of whatever can be called: against half spaces, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv.certificates.certificate import Status
from keras_curv.certificates.smoothing.black_box import certify_by_votes
from keras_curv.certificates.smoothing.options import Smoothing
from keras_curv.errors import InputError

L = keras.layers
S = 0.5
NORMAL = np.array([0.6, 0.8])
X = np.array([[0.5, 0.3], [0.2, 0.1], [-0.7, -0.2]])


def half_space(x):
    """Class 1 where x · NORMAL > 0, in float64."""
    inside = np.asarray(x, np.float64) @ NORMAL
    return np.stack([-inside, inside], axis=1)


def certify(model=half_space, x=X, y=None, **options):
    return keras_curv.certify(model, x, y, method="smoothing", **{"deviation": S} | options)


def test_the_radius_approaches_that_of_a_half_space_from_below():
    exact = np.abs(X @ NORMAL)
    gaps = []
    for samples in (500, 50_000):
        result = certify(samples=samples, batch_size=1000)
        assert result.prediction.tolist() == [1, 1, 0]
        gaps.append(exact - result.radius)
        assert (gaps[-1] > 0).all()
    # A frequency's standard error in units of Φ⁻¹ is below 2/√n here; α takes three, chance fewer.
    assert (gaps[1] < 6 * S * 2 / 50_000**0.5).all()


def test_it_is_missed_no_more_often_than_promised():
    alpha, count = 0.1, 150
    x = np.repeat(X[1:2], count, axis=0)
    result = certify(x=x, samples=150, failure_probability=alpha, batch_size=150)
    failures = (result.radius > X[1] @ NORMAL).sum()
    assert 3 <= failures <= alpha * count + 4 * np.sqrt(count * alpha * (1 - alpha))


def test_the_same_seed_gives_the_same_radii_and_another_others():
    found = [certify(samples=300, seed=seed).radius for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


def test_any_architecture_is_certified_and_its_refusal_says_how():
    keras.utils.set_random_seed(0)
    layers = L.LSTM(6), L.Dense(3)
    model = keras.Sequential([keras.Input((4, 2)), *layers])
    x = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    model.layers[1].bias.assign([3.0, 0.0, 0.0])
    result = certify(model, x, samples=300, deviation=0.1)
    assert (result.status == Status.CERTIFIED).all() and (result.prediction == 0).all()
    assert "of the classifier smoothed by noise" in str(result)
    probabilities = certify(lambda x: tf.nn.softmax(model(x)), x, samples=300, deviation=0.1)
    np.testing.assert_array_equal(probabilities.radius, result.radius)

    class Odd(L.Layer):
        def call(self, x):
            return tf.math.bessel_i0(x)

    odd = keras.Sequential([keras.Input((4,)), Odd(), L.Dense(3)])
    with pytest.raises(InputError, match="BesselI0.*method=.smoothing., deviation=s"):
        keras_curv.certify(odd, np.zeros((1, 4)))
    assert len(certify(odd, np.zeros((1, 4)), samples=10)) == 1


@pytest.mark.parametrize("saved", ["", ".keras"])
def test_what_the_refusal_of_a_path_says_works(saved, tmp_path):
    x = keras.Input((4,))
    model = keras.Model(
        x, L.Dense(3)(L.ReLU(threshold=1.0)(x) if saved else keras.ops.log1p(x * x))
    )
    path = str(tmp_path / f"model{saved}")
    model.save(path) if saved else model.export(path, verbose=False)
    with pytest.raises(InputError, match="method='smoothing', deviation=s") as caught:
        keras_curv.certify(path, np.zeros((1, 4)), method="smoothing", deviation=S)
    loads = str(caught.value).partition("model = ")[2].partition(", if you")[0]
    loaded = eval(loads, {"keras": keras})
    assert len(certify(loaded, np.zeros((1, 4)), samples=10)) == 1


def test_a_path_is_certified_as_the_model_that_was_read():
    x, y = keras_curv.data.load_all("digits")
    options = {"samples": 1000, "deviation": 0.1}
    found = certify("saved_models/digits", x[2:4], y[2:4], **options)
    read = keras_curv.certificates.smoothing.smoothing.SmoothedClassifier
    expected = read("saved_models/digits", 0.1).certify(x[2:4], y[2:4], samples=1000)
    np.testing.assert_array_equal(found.radius, expected.radius)


def test_a_vote_counts_only_where_the_function_was_asked_at_the_right_place():
    """Near 1e15 the rounding of a sum is above the lattice; nobody knows what was asked."""
    seen = []

    def first(x):
        seen.append(np.asarray(x, np.float64))
        return np.eye(2)[np.zeros(len(x), int)]

    near = certify(first, np.zeros((1, 2)), samples=400)
    assert near.prediction == 0 and near.radius > 1.0
    step = 2.0**-21  # for s = 1/2
    points = np.concatenate(seen)
    assert np.ptp(points) > 2.0 and (points / step == np.rint(points / step)).all()
    assert certify(first, np.full((1, 2), 1e15), samples=400).status == Status.ABSTAINED


@pytest.mark.parametrize("answer", [0.0, np.nan, np.inf])
def test_what_is_no_strict_winner_wins_nothing(answer):
    result = certify(lambda x: np.full((len(x), 3), answer), samples=50)
    assert (result.status == Status.ABSTAINED).all() and not result.radius.any()


def test_labels_that_are_not_voted_for_are_misclassified():
    result = certify(y=np.array([1, 0, 0]), samples=2000)
    assert [Status(each).name for each in result.status][1] != "CERTIFIED"
    assert result.radius[1] == 0 < result.radius[0]


BAD = {
    "no deviation": ({"deviation": None}, "needs a deviation"),
    "threat": ({"threat": {"norm": "l1"}}, "smoothing takes no 'threat', only deviation"),
    "rivals": ({"rivals": "runner_up"}, "takes all rivals"),
    "decide": ({"decide": [0.5]}, "no radii to decide"),
    "noise": ({"noise": "shared"}, "noise 'shared' is for models that are read"),
    "signature": ({"signature": "a"}, "takes no 'signature'"),
    "NaN": ({"x": X * np.nan}, "NaN, infinite"),
    "text": ({"x": np.array([["a"]])}, "x must be numbers"),
    "a vector": (
        {"model": lambda x: x[:, 0]},
        r"must return logits .* \(256,\)",
    ),
    "one class": ({"model": lambda x: x[:, :1]}, "of two classes or more"),
    "a fault": ({"model": lambda x: x @ 3}, "the model cannot be called on"),
    "a number": ({"model": 3}, "cannot be called"),
    "labels": ({"y": np.array([0, 1, 2])}, "y must be of the 2 classes"),
    "few labels": ({"y": np.array([0, 1])}, "y must be integers of shape"),
    "zero": ({"deviation": 0.0}, "deviation must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case):
    changes, message = BAD[case]
    with pytest.raises(InputError, match=message):
        certify(**{"samples": 20} | changes)


def test_the_lattice_is_for_any_deviation_of_float32():
    with pytest.raises(InputError, match="out of range"):
        certify_by_votes(half_space, X, smoothing=Smoothing(1e-38))
