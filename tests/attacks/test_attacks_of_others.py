"""Attacks of other libraries on shipped models, through their own classes, break no certificate."""

import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv import data

MODEL = "saved_models/digits"
COUNT = 40


@pytest.fixture(scope="module")
def certified():
    """The served function, examples, their served classes, and radii in l2 and l∞."""
    x, _ = data.load_all("digits")
    x = x[:COUNT].astype(np.float32)
    served = keras_curv.read(MODEL)
    radii = {
        norm: keras_curv.certify(MODEL, x, threat={"norm": norm, "low": 0.0, "high": 1.0}).radius
        for norm in ("l2", "linf")
    }
    model = tf.saved_model.load(MODEL)  # which keeps its variables alive
    loaded = model.signatures["serving_default"]
    name = next(iter(loaded.structured_input_signature[1]))
    output = next(iter(loaded.structured_outputs))

    def call(batch, training=False):
        assert model is not None
        return loaded(**{name: tf.cast(batch, tf.float32)})[output]

    np.testing.assert_array_equal(call(x), served.call(x))
    assert all((radius > 0.0).mean() > 0.9 for radius in radii.values())
    return call, x, np.argmax(call(x), axis=1), radii


def assert_unbroken(certified, norm, points, radius):
    """No point within the radius, in exact differences of float32 inputs, has another class."""
    call, x, label, _ = certified
    change = (np.asarray(points, np.float64) - x).reshape(len(x), -1)
    length = np.linalg.norm(change, np.inf if norm == "linf" else 2, axis=1)
    changed = np.argmax(call(points), axis=1) != label
    assert not (changed & (length < radius)).any()
    return changed, length


ATTACKS = {
    "linf": ["LinfPGD", "LinfAdamBasicIterativeAttack"],
    "l2": ["L2PGD", "L2DeepFoolAttack", "DDNAttack", "L2CarliniWagnerAttack"],
}
PAIRS = [(norm, name) for norm, names in ATTACKS.items() for name in names]


@pytest.mark.parametrize(("norm", "name"), PAIRS)
def test_attacks_of_foolbox_break_nothing(certified, norm, name):
    foolbox = pytest.importorskip("foolbox")
    call, x, label, radii = certified
    model = foolbox.TensorFlowModel(call, bounds=(0.0, 1.0))
    options = (
        {"steps": 60}
        if name != "L2CarliniWagnerAttack"
        else {"steps": 50, "binary_search_steps": 3}
    )
    attack = getattr(foolbox.attacks, name)(**options)
    radius, broken = radii[norm], 0
    minimal = name in ("L2DeepFoolAttack", "DDNAttack", "L2CarliniWagnerAttack")
    middle = float(np.median(radius[radius > 0.0]))
    for epsilon in [None] if minimal else [0.98 * middle, 2.0 * middle]:
        _, points, _ = attack(model, tf.constant(x), tf.constant(label), epsilons=epsilon)
        changed, _ = assert_unbroken(certified, norm, points.numpy(), radius)
        broken += changed.sum()
    assert broken > COUNT // 3  # or the attacks would say nothing


@pytest.mark.parametrize("name", ["ProjectedGradientDescent", "AutoProjectedGradientDescent"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacks_of_the_adversarial_robustness_toolbox_break_nothing(certified, norm, name):
    evasion = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import TensorFlowV2Classifier

    call, x, label, radii = certified
    classifier = TensorFlowV2Classifier(
        call,
        nb_classes=10,
        input_shape=x.shape[1:],
        loss_object=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        clip_values=(0.0, 1.0),
    )
    epsilon = 1.5 * float(np.median(radii[norm][radii[norm] > 0.0]))
    ball = {"norm": np.inf if norm == "linf" else 2, "eps": epsilon, "eps_step": epsilon / 8}
    options = {"max_iter": 20, "verbose": False, **ball}
    if name == "AutoProjectedGradientDescent":
        options |= {"nb_random_init": 1, "loss_type": "cross_entropy"}
    points = getattr(evasion, name)(classifier, **options).generate(x, label)
    changed, _ = assert_unbroken(certified, norm, points.astype(np.float32), radii[norm])
    assert changed.sum() > COUNT // 3
