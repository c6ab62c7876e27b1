"""Training under categories that change: attacks begin where the worst ones are."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import Certifier, CRTModel, Threat

GROUPS, DIM, CLASSES = [[0, 1, 2], [5, 6]], 7, 3


def _base(seed=0):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(12, "softplus"), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((DIM,)), *layers])


def _data(count=120, seed=3):
    """Labels that two numbers decide, and categories that say the same of three in four."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (count, DIM)).astype("float32")
    y = np.digitize(x[:, 3] + 0.3 * x[:, 4], [-0.3, 0.3]).astype("int32")
    told = np.where(rng.random(count) < 0.75, y, rng.integers(0, 3, count))
    x[:, GROUPS[0]] = np.eye(3)[told]
    x[:, GROUPS[1]] = np.eye(2)[rng.integers(0, 2, count)]
    return x, y


def _all_changes(row, changes):
    for choice in itertools.product(range(3), range(2)):
        other = row.copy()
        for group, place in zip(GROUPS, choice, strict=True):
            other[group] = np.eye(len(group))[place]
        if sum(np.any(other[group] != row[group]) for group in GROUPS) <= changes:
            yield other


@pytest.mark.parametrize("property", ["argmax", "harmful:0"])
def test_attacks_begin_at_the_worst_categories(property):
    """One change is compared with brute force; two must do no worse than the best of one."""
    x, y = _data(40)
    base = _base()
    harmful = [c for c in range(CLASSES) if property == "argmax" or c == 0]
    least = {}
    for changes in (1, 2):
        threat = Threat(groups=GROUPS, changes=changes)
        model = CRTModel(base, 1e-4, rivals=2, threat=threat, property=property)
        model.compile("sgd", run_eagerly=True)
        attacked = model.attack(tf.constant(x), tf.constant(y), training=False)
        begin = np.round(attacked.worst.point.numpy().reshape(len(x), 2, DIM)[:, 0], 2)
        margins = []
        for row, label, found in zip(x, y, begin, strict=True):
            rivals = [c for c in harmful if c != label]
            ways = np.array([*_all_changes(row, changes)])
            if not rivals:
                continue
            assert np.any(np.all(np.abs(ways - found) < 0.01, axis=1))
            logits = base(np.concatenate([ways, found[None]])).numpy()
            margin = logits[:, label] - logits[:, rivals].max(axis=1)
            if changes == 1:
                assert margin[-1] == pytest.approx(margin[:-1].min(), abs=0.05)
            margins.append(margin[-1])
        least[changes] = np.array(margins)
        clean = base(x).numpy()
        np.testing.assert_allclose(attacked.output, clean, atol=1e-5)
    assert np.all(least[2] <= least[1] + 0.05) and np.mean(least[2]) < np.mean(least[1])


@pytest.mark.slow
def test_the_metric_foretells_the_certificates():
    """Training under the threat certifies more than plain training, which trusts categories."""
    x, y = _data(240)
    threat = Threat(groups=GROUPS, changes=1)
    model, plain = CRTModel(_base(), 0.05, threat=threat, attack_steps=3), _base()
    model.compile(keras.optimizers.Adam(3e-2), jit_compile=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(keras.optimizers.Adam(3e-2), loss)
    proved = []
    for trained, base in ((model, model.base), (plain, plain)):
        trained.fit(x, y, batch_size=60, epochs=25, verbose=0)
        radius = Certifier(base, method="crc", threat=threat).certify(x, y).radius
        proved.append(np.mean(radius >= 0.05))
    model.run_eagerly = True
    found = model.evaluate(x, y, batch_size=240, verbose=0, return_dict=True)
    assert found["certified"] == pytest.approx(proved[0], abs=0.04)
    assert proved[0] > proved[1] + 0.1 and proved[0] > 0.5


def test_a_saved_model_knows_its_categories(tmp_path):
    x, y = _data(32)
    model = CRTModel(_base(), 0.1, threat=Threat(groups=GROUPS, changes=2, scale=0.5))
    model.compile("sgd", run_eagerly=True)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.threat == model.threat
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0))
