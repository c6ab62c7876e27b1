"""Clips by numbers so large that a shift there and back would lose all digits."""

import dataclasses
import fractions

import numpy as np
import pytest
import tensorflow as tf

from keras_curv import certify
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.reading.served_model import read

LIMITS = [
    *((-(10.0**power), 10.0**power) for power in (4, 8, 16, 30, 38)),
    *((0.0, 1e16), (-1e16, 0.5), (-1.0, 1e30), (-3.4e38, 3.4e38)),
]
WHERE = {
    "input": lambda clip, x, w, b: tf.tanh(clip(x) @ w + b),
    "hidden": lambda clip, x, w, b: clip(x @ w + b),
    "behind": lambda clip, x, w, b: clip(tf.tanh(x @ w + b)),
}
SPELLED = {
    "both": lambda low, high: lambda z: tf.clip_by_value(z, low, high),
    "maximum": lambda low, high: lambda z: tf.maximum(z, low),
    "minimum": lambda low, high: lambda z: tf.minimum(high, z),
    "by unit": lambda low, high: lambda z: tf.maximum(z, low * (np.arange(z.shape[1]) % 3 + 1.0)),
}


def export(folder, function):
    module = tf.Module()
    spec = tf.TensorSpec((None, 5), tf.float32)
    module.serve = tf.function(function, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return str(folder), module.serve


def weights(rng):
    arrays = rng.normal(size=(5, 5)), rng.normal(size=5), rng.normal(size=(5, 3))
    return [tf.constant(array, tf.float32) for array in arrays]


def classifier(where, clip, w, b, v):
    return lambda x: WHERE[where](clip, x, w, b) @ v


def close(folder, call, x, limits):
    """Holds what is read against what is served, on inputs of all sizes."""
    network = read(folder).network
    ours = network.logits(tf.constant(x, tf.float64)).numpy()
    served = call(tf.constant(x)).numpy()
    size = np.abs(ours).max(axis=1, keepdims=True) + np.abs(x).max(axis=1, keepdims=True)
    assert np.all(np.abs(served - ours) <= 1e-5 * size), limits


@pytest.mark.parametrize("third", range(3))  # each limit with each place and each spelling
@pytest.mark.parametrize("spelled", SPELLED)
def test_what_is_read_is_what_is_served(third, spelled, rng, tmp_path):
    x = rng.normal(size=(40, 5)).astype(np.float32)
    x[10:] *= (10.0 ** rng.uniform(-6.0, 36.0, (30, 1))).astype(np.float32)
    for place, (low, high) in enumerate(LIMITS[third::3]):
        where = [*WHERE][(place + third) % 3]
        clip = SPELLED[spelled](low if abs(low) < 1e38 else -1e38, high)
        folder, call = export(tmp_path / str(place), classifier(where, clip, *weights(rng)))
        close(folder, call, x, (low, high))


@pytest.mark.parametrize("where", WHERE)
def test_a_clip_out_of_reach_takes_nothing_off_a_radius(where, rng, tmp_path):
    """And the prediction is the one that is served."""
    w, b, v = weights(rng)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    radii = {"real": [], "float32": []}
    for power in (3, 38):
        clip = SPELLED["both"](-(10.0**power), 10.0**power)
        folder, call = export(tmp_path / str(power), classifier(where, clip, w, b, v))
        for guarantee, found in radii.items():
            result = certify(folder, x, guarantee=guarantee, method="crown")
            assert np.all(result.prediction == call(tf.constant(x)).numpy().argmax(axis=1))
            assert np.all(result.radius > 0.0)
            found.append(result.radius)
    # The tolerance of a search for a ball is 1 %.
    for found in radii.values():
        np.testing.assert_allclose(found, np.broadcast_to(found[0], (2, 6)), rtol=0.02)


def test_what_is_misread_near_a_far_clip_is_noticed(rng, tmp_path):
    """No noise of a shift hides it from the check against the signature."""
    clip, (w, b, v) = SPELLED["both"](-1e16, 1e16), weights(rng)
    served, other = (
        read(export(tmp_path / name, classifier("hidden", clip, w, b, last))[0])
        for name, last in (("one", v), ("other", 1.001 * v))
    )
    served.check(rng.normal(size=(5, 5)))
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served, network=other.network).check(rng.normal(size=(5, 5)))


def test_many_different_edges_far_away_are_refused(rng, tmp_path):
    edges = tf.constant(np.linspace(1e8, 2e8, 80), tf.float32)
    w = tf.constant(rng.normal(size=(5, 80)), tf.float32)
    folder, _ = export(tmp_path / "model", lambda x: tf.minimum(x @ w, edges) @ tf.transpose(w))
    with pytest.raises(InputError, match="more than 64 different edges"):
        read(folder)


@pytest.mark.parametrize("name", ["clip(-1e+16,0.5)", "clip(3e+38,inf)", "clip(-1e+300,1e+300)"])
def test_a_clip_rounds_nothing(name, rng):
    low, high = (float(part) for part in name[5:-1].split(","))
    z = rng.normal(size=200) * 10.0 ** rng.uniform(-300.0, 300.0, 200)
    sigma = activations.get(name)
    for at, value in zip(z, sigma.value(tf.constant(z)).numpy(), strict=True):
        assert fractions.Fraction(value) == min(max(fractions.Fraction(at), low), high)
    assert float(sigma.first(tf.constant(sigma.first_extrema[0], tf.float64))) == 1.0
