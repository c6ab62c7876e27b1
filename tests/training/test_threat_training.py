"""Training under a threat and for a property: what is trained is what is certified."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import Certifier, ClipInput, CRTModel, InputError, Network, Property, Threat
from keras_curv.reports.wording import percent
from keras_curv.training.models.threatened import Threatened
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.trainer import train

DIM, CLASSES = 6, 4
SCALE = np.array([0.25, 0.5, 1.0, 2.0, 1.0, 3.0], np.float32)
THREATS = {
    "scale": Threat(scale=SCALE),
    "frozen": Threat(scale=SCALE, frozen=[1, 4]),
    "box": Threat(scale=0.5, frozen=[2], low=-1.0, high=1.0),
}


def _base(seed=0, clip=False, first=1.0):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(9, "softplus"), keras.layers.Dense(CLASSES)]
    begin = [keras.Input((DIM,)), *([ClipInput()] if clip else [])]
    base = keras.Sequential([*begin, *layers])
    layers[0].kernel.assign(np.reshape(first, (-1, 1)) * layers[0].kernel)
    return base


def _data(count=96, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (count, DIM)).astype("float32")
    return x, np.argmax(x @ rng.standard_normal((DIM, CLASSES)), axis=1).astype("int32")


def _attacked(model, x, y):
    model.compile("sgd", run_eagerly=True)
    attacked = model.attack(tf.constant(x), tf.constant(y), training=True)
    return attacked.worst.point.numpy().reshape(len(x), -1, DIM), attacked


GROUPS = Threat(groups=[[0, 1, 2]], changes=1)


@pytest.mark.parametrize(("kind", "jit"), [("box", True), ("groups", False)])
def test_examples_outside_of_the_threat_are_no_training_data(kind, jit):
    """An error, or a loss of NaN where XLA has dropped it."""
    x, y = _data(8)
    if kind == "groups":
        x[:, :3] = np.eye(3)[y % 3]
    model = CRTModel(_base(), 0.5, threat=THREATS["box"] if kind == "box" else GROUPS)
    model.compile("sgd", jit_compile=jit)
    assert np.isfinite(model.train_on_batch(x, y)[0])
    x[3, 0] = 1.25
    if jit:
        assert np.isnan(model.train_on_batch(x, y)[0])
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="outside of the threat"):
            model.train_on_batch(x, y)


@pytest.mark.parametrize("kind", THREATS)
def test_the_network_is_the_one_that_is_certified(kind):
    """Margins, gradients, the first kernel and the limits, to float32."""
    threat, (x, y) = THREATS[kind], _data(20)
    model = CRTModel(_base(), 0.5, threat=threat)
    kernels, biases = model.live.now().weights(tf.float32)
    arrays = ([part.numpy() for part in parts] for parts in (kernels, biases))
    whole = Network.from_weights(*arrays, "softplus")
    theirs, ours = threat.network(whole, DIM), model.network()
    rivals = np.array([[c for c in range(CLASSES) if c != label] for label in y], np.int32)
    there = theirs.evaluate(tf.constant(threat.coordinates(x.astype(np.float64))), y, rivals)
    here = ours.evaluate(ours.coordinates(tf.constant(x)), y, rivals)
    np.testing.assert_allclose(here.margin, there.margin, atol=1e-5)
    np.testing.assert_allclose(here.gradient, there.gradient, atol=1e-5)
    np.testing.assert_allclose(
        ours.weights(tf.float32)[0][0], theirs.differentials[0].kernel, atol=1e-6
    )
    assert (ours.limits is None) == (theirs.limits is None)
    if ours.limits is not None:
        np.testing.assert_allclose(ours.limits, theirs.limits, rtol=1e-12)
    logits = model.base(x).numpy()
    np.testing.assert_allclose(ours.logits(ours.coordinates(tf.constant(x))), logits, atol=1e-5)


def test_weights_by_feature_are_those_of_a_scaled_kernel():
    """The same loss as of the net with kernel s ∘ W at x/s, and the same gradient but for s."""
    x, y = _data()
    found = []
    for base, threat, inputs in (
        (_base(), Threat(scale=SCALE), x),
        (_base(first=SCALE), Threat(), x / SCALE),
    ):
        model = CRTModel(base, 0.4, threat=threat)
        model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
        model.fit(inputs, y, batch_size=len(x), verbose=0)  # the estimate of κ begins
        with tf.GradientTape() as tape:
            loss, _ = model.step_loss(tf.constant(inputs), y, None, training=True)
        found.append((float(loss), tape.gradient(loss, base.layers[0].kernel.value).numpy()))
    (ours, gradient), (theirs, scaled) = found
    assert ours == pytest.approx(theirs, rel=1e-4)
    np.testing.assert_allclose(gradient, SCALE[:, None] * scaled, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("kind", THREATS)
def test_attacks_obey_the_threat(kind):
    threat, (x, y) = THREATS[kind], _data()
    radius = 0.7
    points, _ = _attacked(CRTModel(_base(), radius, threat=threat, attack_steps=4), x, y)
    factor, fixed = threat.factors(DIM)
    move = points - x[:, None]
    assert np.all(move[..., fixed] == 0.0) and np.any(move[..., ~fixed] != 0.0)
    if threat.confined:
        assert np.all(points >= -1.0 - 1e-6) and np.all(points <= 1.0 + 1e-6)
    length = np.linalg.norm(move / factor, axis=-1)
    assert np.median(length) > 0.5 * radius
    # A box's multiplier is known to a tenth or so.
    assert np.all(length <= radius * (1.1 if threat.confined else 1.0 + 1e-5))


@pytest.mark.parametrize(
    "options",
    [
        {"threat": THREATS["box"]},
        {"threat": THREATS["frozen"], "property": "harmful:0,3"},
        {"property": "top_2"},
    ],
    ids=["box", "harmful", "top_k"],
)
@pytest.mark.slow
def test_the_metric_foretells_the_certificates(options):
    """`certified` is what is certified at that radius, but for its estimate of κ; and it grows."""
    x, y = _data(240)
    model = CRTModel(_base(), 0.3, rivals=3, attack_steps=3, **options)
    model.compile(keras.optimizers.Adam(6e-2), run_eagerly=True)
    before = model.evaluate(x, y, batch_size=240, verbose=0, return_dict=True)["certified"]
    model.fit(x, y, batch_size=120, epochs=8, verbose=0)
    found = model.evaluate(x, y, batch_size=240, verbose=0, return_dict=True)["certified"]
    proved = Certifier(model.base, method="crc", **options).certify(x, y).radius >= 0.3
    assert found == pytest.approx(np.mean(proved), abs=0.03)
    assert before + 0.1 < found < 0.98


def test_what_does_no_harm_is_not_attacked():
    x, y = _data()
    model = CRTModel(_base(), 0.5, rivals=3, property="harmful:0>1,2;1>0")
    points, attacked = _attacked(model, x, y)
    logits = model.base(x).numpy()
    harmful = {0: {1, 2}, 1: {0}, 2: set(), 3: set()}
    for i, label in enumerate(y):
        rivals, harms = attacked.rival[i].numpy(), attacked.harms[i].numpy()
        assert {*rivals[harms]} == harmful[label]
        assert not harms[len(harmful[label]) :].any()  # they come first
        for some in (rivals[harms], rivals[~harms]):
            assert np.all(np.diff(logits[i, some]) <= 0.0)  # the likeliest before the others
        moved = np.any(points[i] != x[i], axis=-1)
        assert np.array_equal(moved, harms)
    still = ~attacked.harms.numpy()
    assert np.all(attacked.worst.shortfall.numpy()[still] == 0.0)
    assert np.all(attacked.worst.added.numpy()[still] == 0.0)


def test_as_many_may_pass_as_the_property_says():
    """The compiled loss is that of all rivals but the k − 1 with the smallest values."""
    x, y = _data()
    model = CRTModel(_base(), 0.5, rivals=3, property=Property.top_k(3))
    points, attacked = _attacked(model, x, y)
    table = model.minus_m(attacked).numpy()
    own = model(points.reshape(-1, DIM)).numpy().reshape(len(x), 3, CLASSES)
    margin = np.take_along_axis(own, y[:, None, None].repeat(3, 1), 2)[..., 0]
    margin = margin - np.take_along_axis(own, attacked.rival.numpy()[..., None], 2)[..., 0]
    largest = (margin + attacked.worst.added + table * attacked.worst.shortfall).numpy().max(axis=1)
    expected = np.mean(np.log1p(np.exp(-largest)))
    loss, _ = model.step_loss(tf.constant(x), tf.constant(y), None, training=False)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert model.get_config()["property"] == "top_3"


def test_a_saved_model_knows_its_threat(tmp_path):
    threat = Threat(scale=SCALE.tolist(), frozen=[1], low=-1.0, high=[1.0] * 5 + [np.inf])
    model = CRTModel(_base(), 0.3, threat=threat, property="harmful:2")
    x, y = _data(16)
    model.compile("sgd", run_eagerly=True)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.threat == threat and loaded.property == Property.harmful([2])
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0))
    assert json.dumps(threat.config())  # plain numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threat": Threat(basis=np.eye(DIM))}, "a basis, whose directions"),
        ({"threat": Threat(norm="l1")}, "l1 and linf are for"),
        ({"threat": Threat(groups=[[5, 6]])}, "groups name feature 6"),
        ({"threat": Threat(scale=[1.0, 2.0])}, "scale must have 6 entries"),
        ({"property": "interval:0.1"}, "training knows argmax, top_k and harmful"),
        ({"property": "harmful:4"}, "harmful names class 4"),
        ({"property": "top_4"}, "top_4 needs more than 4 classes"),
        ({"property": "top_3", "rivals": 2}, "lets 2 rivals pass"),
        ({"property": "top_2", "loss": "crt"}, "loss='crt' is for argmax"),
    ],
)
def test_what_cannot_be_trained_for_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        CRTModel(_base(), 0.5, **options)


def test_a_clip_takes_no_threat():
    with pytest.raises(InputError, match="without ClipInput"):
        CRTModel(_base(clip=True), 0.5, threat=Threat(low=0.0))
    with pytest.raises(InputError, match="not clipped"):
        Recipe(clip=True, box="0,1")


def test_an_affine_model_takes_no_threat():
    base = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(CLASSES)])
    with pytest.raises(InputError, match="needs a hidden layer"):
        Threatened(CRTModel(base, 0.5).live.now(), Threat(scale=2.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "pgd", "box": "0,1"}, "box is for the loss certified, crt"),
        ({"loss": "crt", "property": "top_2"}, "property is for the loss certified"),
        ({"box": "1,0"}, "low must not be above high"),
        ({"box": "nan,1"}, "--box must be numbers"),
        ({"threat": "nowhere.json"}, "does not exist; give"),
        ({"property": "best"}, "property"),
    ],
)
def test_a_recipe_refuses_what_has_no_effect(options, message):
    with pytest.raises(InputError, match=message):
        Recipe(**options)


def test_a_run_under_a_threat(tmp_path):
    """Trained and certified under the same; an attacker whom the data leave is refused first."""
    recipe = Recipe(width=8, epochs=1, jit=False, box="0,1", property="harmful:3,8")
    summary = train(recipe, str(tmp_path / "model"), limit=40, radii=[0.05])
    assert summary["threat"] == "low 0.0; high 1.0" and summary["property"] == "harmful:3,8"
    card = (tmp_path / "model" / "CARD.md").read_text(encoding="utf-8")
    assert "attacker confined to [0, 1]" in card and "no class of 3,8 gets above" in card
    assert percent(summary["certified_accuracy"]["0.05"]) in card
    with pytest.raises(InputError, match="it must be inside"):
        train(Recipe(box="0.1,1"), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
