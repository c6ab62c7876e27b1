"""Attacks of other libraries on shipped models, through their own classes, break no certificate."""

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv import data

COUNT = 40


class Certified(NamedTuple):
    """A model whose inputs are u · unit, u from 0 to `high`, and what is certified of examples."""

    served: Callable  # u → what the model receives
    call: Callable  # u → logits
    unit: np.ndarray
    high: float
    u: np.ndarray
    label: np.ndarray
    radii: dict[str, np.ndarray]  # by norm, in units


def certify(name, x, unit, high, threat):
    path = f"saved_models/{name}"
    model = tf.saved_model.load(path)  # which keeps its variables alive
    loaded = model.signatures["serving_default"]
    entry = next(iter(loaded.structured_input_signature[1]))
    output = next(iter(loaded.structured_outputs))

    def served(u):
        return tf.cast(u, tf.float32) * np.float32(unit)

    def call(u, training=False):
        assert model is not None
        return loaded(**{entry: served(u)})[output]

    u = np.float32(x / unit)
    x = served(u).numpy()
    # Of large entries sums in float32 may be in another order.
    np.testing.assert_allclose(call(u), keras_curv.read(path).call(x), rtol=1e-5)
    radii = {
        norm: keras_curv.certify(path, x, threat={"norm": norm, **threat}).radius
        for norm in ("l2", "linf")
    }
    assert all((radius > 0.0).mean() > 0.9 for radius in radii.values())
    return Certified(served, call, unit, high, u, np.argmax(call(u), axis=1), radii)


@pytest.fixture(scope="module")
def digits():
    x, _ = data.load_all("digits")
    return certify("digits", x[:COUNT], np.ones(1), 1.0, {"low": 0.0, "high": 1.0})


@pytest.fixture(scope="module")
def breast_cancer():
    """Of a table: units are the errors of its columns, which its threat file says."""
    with open("saved_models/breast_cancer_threat.json") as file:
        threat = json.load(file)
    with np.load("saved_models/breast_cancer.npz") as file:
        x = file["x"][:COUNT]
    return certify("breast_cancer", x, np.array(threat["scale"]), 1000.0, threat)


@pytest.fixture(params=["digits", "breast_cancer"])
def certified(request):
    return request.getfixturevalue(request.param)


def broken(certified, norm, points):
    """Counts points of another class: none within the radius, in exact differences of inputs."""
    here, there = (np.float64(certified.served(u).numpy()) for u in (certified.u, points))
    change = ((there - here) / certified.unit).reshape(COUNT, -1)
    length = np.linalg.norm(change, np.inf if norm == "linf" else 2, axis=1)
    changed = np.argmax(certified.call(points), axis=1) != certified.label
    assert not (changed & (length < certified.radii[norm])).any()
    return changed.sum()


def middle(certified, norm):
    radius = certified.radii[norm]
    return float(np.median(radius[radius > 0.0]))


def foolbox_points(certified, attack, epsilon):
    foolbox = pytest.importorskip("foolbox")
    model = foolbox.TensorFlowModel(certified.call, bounds=(0.0, certified.high))
    pair = tf.constant(certified.u), tf.constant(certified.label)
    return attack(model, *pair, epsilons=epsilon)[1].numpy()


@pytest.mark.parametrize(
    ("norm", "name"),
    [("linf", "LinfPGD"), ("linf", "LinfAdamBasicIterativeAttack"), ("l2", "L2PGD")],
)
def test_descents_of_foolbox_break_nothing(certified, norm, name):
    foolbox = pytest.importorskip("foolbox")
    attack, found = getattr(foolbox.attacks, name)(steps=60), 0
    for share in (0.98, 2.0):
        points = foolbox_points(certified, attack, share * middle(certified, norm))
        found += broken(certified, norm, points)
    assert found > COUNT // 3  # or the attacks would say nothing


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("L2DeepFoolAttack", {"steps": 60}),
        ("DDNAttack", {"steps": 60}),
        ("L2CarliniWagnerAttack", {"steps": 50, "binary_search_steps": 3}),
    ],
)
def test_attacks_of_foolbox_that_look_for_the_nearest_point(digits, name, options):
    foolbox = pytest.importorskip("foolbox")
    points = foolbox_points(digits, getattr(foolbox.attacks, name)(**options), None)
    assert broken(digits, "l2", points) > COUNT // 3


@pytest.mark.parametrize("name", ["ProjectedGradientDescent", "AutoProjectedGradientDescent"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacks_of_the_adversarial_robustness_toolbox_break_nothing(certified, norm, name):
    evasion = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import TensorFlowV2Classifier

    epsilon = 1.5 * middle(certified, norm)
    ball = {"norm": np.inf if norm == "linf" else 2, "eps": epsilon, "eps_step": epsilon / 8}
    options = {"max_iter": 20, "verbose": False, **ball}
    if name == "AutoProjectedGradientDescent":
        options |= {"nb_random_init": 1, "loss_type": "cross_entropy"}
    classifier = TensorFlowV2Classifier(
        certified.call,
        nb_classes=certified.call(certified.u[:1]).shape[1],
        input_shape=certified.u.shape[1:],
        loss_object=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        clip_values=(0.0, certified.high),
    )
    points = getattr(evasion, name)(classifier, **options).generate(certified.u, certified.label)
    assert broken(certified, norm, points.astype(np.float32)) > COUNT // 3
