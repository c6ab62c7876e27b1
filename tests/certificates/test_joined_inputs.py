"""Radii of models of several inputs are of the joined vector, and hold when all of it moves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import several_inputs
import tensorflow as tf

import keras_curv
from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.runs.certify_examples import certify_examples

L = keras.layers


@pytest.mark.parametrize("case", ["joined", "branches", "an image and a vector", "three"])
def test_no_attack_on_all_inputs_together_reaches_inside(case):
    """Of either guarantee, by one attack on both."""
    model = several_inputs.MODELS[case]()
    x = several_inputs.examples_of(model, count=12)
    method = "auto" if case == "joined" else "crown"  # branches are searched in graphs of their own
    found = [
        keras_curv.certify(model, x, guarantee=each, method=method) for each in ("real", "float32")
    ]
    radius, prediction = (
        np.concatenate([getattr(result, name) for result in found])
        for name in ("radius", "prediction")
    )
    assert np.all(radius > 0.0)
    flat = np.tile(several_inputs.by_hand(x).astype(np.float64), (2, 1))
    given = tf.constant(flat), tf.constant(prediction)
    network = keras_curv.read(model).network

    def attacked(factor, **options):
        return keras_curv.pgd_attack(
            network, *given, radius=tf.constant(factor * radius), **options
        )

    margin, point = attacked(0.9999, steps=40, restarts=4)
    assert np.all(margin.numpy() > 0.0)
    ends, shapes = 0, {each.name: each.shape[1:] for each in model.inputs}
    sent = {}
    for name in sorted(shapes):
        size = int(np.prod(shapes[name]))
        sent[name] = np.float32(point[:, ends : ends + size]).reshape(-1, *shapes[name])
        ends += size
    outputs = model([sent[each.name] for each in model.inputs], training=False).numpy()
    np.testing.assert_array_equal(outputs.argmax(axis=1), prediction)
    broken = attacked(8.0, steps=10, restarts=1)[0].numpy() < 0.0
    assert np.any(broken[: len(broken) // 2]) and np.any(broken[len(broken) // 2 :])


def test_the_radius_is_exact_where_the_model_is_linear():
    """f(x) = (3, 0, 4) · x + 1 is 1 / 5 from its boundary at 0, over both inputs together."""
    given = [keras.Input((1,), name="z"), keras.Input((2,), name="a")]
    dense = L.Dense(2)
    model = keras.Model(given, dense(L.Concatenate()(given)))
    dense.set_weights([np.float32([[0, 4], [0, 3], [0, 0]]), np.float32([0, 1])])
    x = {"z": np.zeros((1, 1), np.float32), "a": np.zeros((1, 2), np.float32)}
    assert keras_curv.certify(model, x).radius[0] == pytest.approx(0.2, rel=1e-6)


def test_arrays_by_name_are_the_joined_ones(tmp_path):
    model = several_inputs.MODELS["an image and a vector"]()
    x = several_inputs.examples_of(model, count=5)
    flat, y = several_inputs.by_hand(x), np.arange(5) % 3
    certifier = Certifier(model, method="crown")
    expected = certifier.certify_all(flat, y, batch_size=2)
    for other in (certifier.certify_all(x, y, batch_size=2), certifier.certify(x, y)):
        np.testing.assert_array_equal(other.radius, expected.radius)
        np.testing.assert_array_equal(other.prediction, expected.prediction)
    rows = [tmp_path / name for name in ("named.csv", "joined.csv")]
    for path, given in zip(rows, (x, flat), strict=True):
        certify_examples(model, (given, y), method="crown", radii=[0.1], output=str(path))
    assert rows[0].read_bytes() == rows[1].read_bytes()


def test_a_model_of_one_input_takes_it_by_name_too():
    model = keras.Sequential([keras.Input((2, 2), name="image"), L.Flatten(), L.Dense(2)])
    x = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    by_name = keras_curv.certify(model, {"image": x})
    np.testing.assert_array_equal(by_name.radius, keras_curv.certify(model, x).radius)


def changed(**arrays):
    """Arrays for the inputs alpha (3,) and zeta (2,) but for these; None: it is missing."""
    good = {"alpha": np.zeros((4, 3), np.float32), "zeta": np.zeros((4, 2), np.float32)}
    return {name: array for name, array in (good | arrays).items() if array is not None}


TAKES = r"takes inputs 'alpha' \(3,\), 'zeta' \(2,\), flattened and joined in this order"
BAD = {
    "missing": (changed(zeta=None), f"x has no array 'zeta' for functional.*{TAKES}"),
    "none": ({}, "x has no array 'alpha'"),
    "too many": (changed(beta=np.zeros((4, 1))), f"x has an array 'beta', .* no input .*{TAKES}"),
    "shape": (changed(zeta=np.zeros((4, 3))), rf"'zeta' of shape \(3,\) do not fit .*{TAKES}"),
    "a number": (changed(zeta=np.float32(1.0)), r"'zeta' of shape \(\) do not fit"),
    "counts": (
        changed(zeta=np.zeros((5, 2), np.float32)),
        "x: 'alpha' has 4 examples, but 'zeta' has 5",
    ),
    "no numbers": (
        changed(zeta=np.full((4, 2), "a")),
        "x: 'zeta' must hold numbers",
    ),
    "joined to another size": (np.zeros((4, 6)), rf"shape \(6,\) do not fit .*{TAKES}; it needs 5"),
    "not joined": (np.zeros((4, 3, 2)), rf"shape \(3, 2\) do not fit .*{TAKES}; it needs 5"),
    "not a number": (changed(zeta=np.full((4, 2), np.nan, np.float32)), "example 0 has NaN"),
}


@pytest.fixture(scope="module")
def certifier():
    return Certifier(several_inputs.MODELS["joined"](), method="crown")


@pytest.mark.parametrize("case", BAD)
def test_bad_examples_are_refused_in_a_line(case, certifier):
    x, message = BAD[case]
    for certify in (certifier.certify, certifier.certify_all):
        with pytest.raises(InputError, match=message) as caught:
            certify(x)
        assert "\n" not in str(caught.value)


def test_weights_by_feature_are_of_the_joined_vector():
    model = several_inputs.MODELS["joined"]()
    x = several_inputs.examples_of(model)
    frozen = np.array([True] * 3 + [False] * 2)  # alpha; zeta moves
    only = keras_curv.certify(model, x, threat=keras_curv.Threat(frozen=frozen)).radius
    assert np.all(only > keras_curv.certify(model, x).radius)
    with pytest.raises(InputError):
        keras_curv.certify(model, x, threat=keras_curv.Threat(frozen=frozen[:4]))
