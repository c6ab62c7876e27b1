"""Training through a clip: its values are those of the dual; what has no theory refuses it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import ClipInput, CRTModel, InputError, Network, curvature_bounds
from keras_curv.attacks.proximal import proximal_attack
from keras_curv.reading.served_model import read
from keras_curv.threats.clipped import clipped
from keras_curv.threats.confined import confined_minorant
from keras_curv.training.rivals.pgd import PGDModel
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.warm_start import start_from
from keras_curv.training.trainable.trainable_network import LiveNetwork

DIM = 6


def _network(seed=0):
    rng = np.random.default_rng(seed)
    kernels = [0.5 * rng.standard_normal((DIM, 9)), rng.standard_normal((9, 3))]
    return Network.from_weights(kernels, [np.zeros(9), np.zeros(3)], "softplus")


def _attacked(dead_zone, radius, steps):
    """Dual values of 200 inputs against both rivals, and what they were computed from."""
    rng = np.random.default_rng(1)
    network, clip = _network(), ClipInput(dead_zone=dead_zone).clip(DIM)
    x = tf.constant(rng.uniform(-0.2, 1.2, (200, DIM)))
    start, reach, _ = clipped(clip, x)
    label = tf.argmax(network.logits(start), axis=1, output_type=tf.int32)
    rival = tf.stack([(label + 1) % 3, (label + 2) % 3], axis=1)
    table = tf.constant(-curvature_bounds(network).lower)
    kappa = tf.gather(tf.gather(table, label), rival, batch_dims=1)
    attack = proximal_attack(
        network, start, reach, label, rival, radius=radius, curvature=kappa, steps=steps
    )
    margin = tf.stack([network.margin(attack.point[:, j], label, rival[:, j]) for j in (0, 1)], 1)
    value = margin + attack.added + kappa * attack.shortfall
    return network, clip, x, label, rival, kappa, attack, value.numpy()


@pytest.mark.parametrize("dead_zone", [0.0, 0.1])
def test_the_dual_value_is_what_a_certificate_proves(dead_zone):
    """D_λ over a fine grid of λ at the attack's point, which is below every margin in the ball."""
    radius = 0.5
    network, clip, x, label, rival, kappa, attack, value = _attacked(dead_zone, radius, steps=30)
    start, reach, _ = clipped(clip, x)
    assert np.all(attack.point >= 0.0) and np.all(attack.point <= 1.0)
    rng, count = np.random.default_rng(2), 300
    delta = rng.standard_normal((count, *x.shape)) * (rng.random((count, *x.shape)) < 0.5)
    delta *= radius / np.maximum(np.linalg.norm(delta, axis=-1, keepdims=True), 1e-9)
    u = clip.value(tf.reshape(x + delta, (-1, DIM)))
    minorant = tf.function(confined_minorant, autograph=False)
    for j in (0, 1):
        met = network.margin(u, tf.tile(label, [count]), tf.tile(rival[:, j], [count]))
        least = met.numpy().reshape(count, -1).min(axis=0)
        point, k = attack.point[:, j], kappa[:, j]
        margin, gradient = network.margin_and_gradient(point, label, rival[:, j])
        d = point - start
        intercept = margin - tf.reduce_sum(gradient * d, 1) - 0.5 * k * tf.reduce_sum(d * d, 1)
        floor = k / reach.least_cost**2
        proved = []
        for above in np.logspace(-4, 2, 100):
            lam = floor * (1.0 + above)
            bound = minorant(intercept, gradient + k[:, None] * d, k, reach, lam)
            proved.append(bound.intercept - 0.5 * lam * radius**2)
        proved = np.max(proved, axis=0)
        assert np.all(proved <= least)
        # A bound from the other side would not be so near.
        assert np.mean(least - proved) < 0.3 * np.mean(np.abs(margin))
        # What training takes for it: the same, but where 30 steps have not converged.
        gap = value[:, j] - proved
        assert np.min(gap) > -0.06  # its λ is known to a tenth or so
        assert np.median(gap) < 0.02
        assert np.mean(value[:, j] <= least + 1e-4) > 0.9


def test_its_slope_in_the_curvature():
    """`shortfall`, which is ∂V/∂κ at a fixed point, is never positive, and not 0 throughout."""
    *_, attack, _ = _attacked(0.1, 0.5, steps=5)
    assert np.all(attack.shortfall.numpy() <= 1e-12)
    assert np.any(attack.shortfall.numpy() < -1e-3)


def test_what_has_no_theory_for_a_clip_refuses_it():
    dense = keras.layers.Dense
    base = keras.Sequential(
        [keras.Input((4,)), ClipInput(name="cut"), dense(3, "softplus"), dense(2)]
    )
    with pytest.raises(InputError, match="PGDModel has no theory for 'cut'"):
        PGDModel(base, radius=0.5)
    middle = keras.Sequential([keras.Input((4,)), dense(3, "softplus"), ClipInput(), dense(2)])
    with pytest.raises(InputError, match="ClipInput"):
        CRTModel(middle, radius=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1.0, "high": 0.0}, "low must be below high"),
        ({"high": np.inf}, "both finite"),
        ({"dead_zone": 0.5}, "dead_zone must be"),
        ({"dead_zone": -0.1}, "dead_zone must be"),
        ({"dead_zone": np.nan}, "dead_zone must be"),
    ],
)
def test_a_clip_that_makes_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        ClipInput(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dead_zone": 0.1}, "give clip"),
        ({"clip": True, "loss": "pgd"}, "clip is for the loss"),
        ({"clip": True, "dead_zone": 0.6}, "dead_zone must be from 0 to 0.49"),
    ],
)
def test_a_recipe_that_makes_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        Recipe(**options)


def test_a_clip_without_a_dead_zone_is_a_clip():
    x = np.array([[-1.0, 0.2, 0.7, 3.0]], np.float32)
    np.testing.assert_array_equal(ClipInput()(x), np.clip(x, 0.0, 1.0))
    layer = ClipInput(-1.0, 1.0, dead_zone=0.1)
    np.testing.assert_allclose(layer(np.array([[-0.8, 0.0, 0.4, 0.8]])), [[-1.0, 0.0, 0.5, 1.0]])
    inside = np.array([[-1.0, -0.3, 1.0]], np.float32)
    np.testing.assert_allclose(layer(layer.inverse(inside)), inside, atol=1e-6)
    again = ClipInput.from_config(layer.get_config())
    np.testing.assert_array_equal(again(x), layer(x))


def test_a_run_starts_from_a_finished_model():
    finished = read("saved_models/digits").network
    recipe = Recipe(width=finished.sizes[1], clip=True, dead_zone=0.1)
    base = recipe.build((8, 8, 1), 10)
    start_from(base, "saved_models/digits")
    x = np.random.default_rng(0).uniform(0.0, 1.0, (5, 64)).astype(np.float32)
    behind = LiveNetwork(base).now()
    np.testing.assert_allclose(behind.logits(x), finished.logits(x), rtol=1e-4, atol=1e-5)
    for other in (
        Recipe(width=finished.sizes[1] - 1),
        Recipe(width=finished.sizes[1], activation="tanh"),
        Recipe(layers=1, filters=[4], pool=2, kernel_size=3, strides=1),
    ):
        with pytest.raises(InputError, match="saved_models/digits cannot be started from"):
            start_from(other.build((8, 8, 1), 10), "saved_models/digits")


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"layers": 1, "filters": [5], "kernel_size": 3, "strides": 1, "pool": 2}, 8),
        ({"layers": 1, "filters": [5], "kernel_size": 3, "strides": 1, "pool": 2}, 9),
        ({"layers": 2, "width": 7, "filters": [4, 3], "kernel_size": 4, "strides": 2}, 8),
    ],
)
@pytest.mark.parametrize("more", [0, 2])
def test_convolutions_start_from_a_finished_model(options, size, more, tmp_path):
    x = np.random.default_rng(0).uniform(size=(5, size, size, 2))
    wider = {**options, "filters": [filters + more for filters in options["filters"]]}
    finished, base = (Recipe(**these).build((size, size, 2), 3) for these in (options, wider))
    for variable in finished.weights:
        variable.assign(np.random.default_rng(1).standard_normal(variable.shape))
    finished.export(tmp_path, verbose=False)
    start_from(base, str(tmp_path))
    np.testing.assert_allclose(base(x), finished(x), rtol=1e-4, atol=1e-4)
    if options["layers"] > 1 and not more:  # each weight is the one that was trained
        for ours, theirs in zip(base.weights, finished.weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
