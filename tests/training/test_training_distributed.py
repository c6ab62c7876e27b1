"""Two replicas train as one device does; in a process of its own, with two logical CPUs."""

import json
import math
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import json
import os

import keras
import numpy as np
import tensorflow as tf

from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer
from keras_curv.training.rivals.noise import NoiseModel
from keras_curv.training.rivals.pgd import PGDModel

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
L = keras.layers
BUILD = {
    "penalty": lambda base: CurvatureRegularizer(base, 0.1),
    "certified": lambda base: CRTModel(base, 0.3, 0.1, ramp_steps=3),
}
DEEP = "certified"  # the kind that has what is in the others
rng = np.random.default_rng(0)
x, y = rng.standard_normal((16, 4)).astype("float32"), rng.integers(0, 3, 16)
weight = rng.uniform(0.5, 1.5, 16).astype("float32")


def train(kind, strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        more = [L.Dense(5, "softplus")] if kind == DEEP else []
        base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), *more, L.Dense(3)])
        model = BUILD[kind](base)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, metrics=["accuracy"], run_eagerly=strategy is one)
    history = model.fit(
        x, y[:, None], sample_weight=weight, batch_size=8, epochs=2, shuffle=False, verbose=0
    ).history
    replicas = strategy.num_replicas_in_sync
    weights = [value.tolist() for value in model.get_weights()]
    found = {"history": history, "test": {}, "weights": weights, "replicas": replicas}
    if kind == DEEP:
        found["test"] = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
        # One example for two replicas.
        found["last"] = model.fit(x[:9], y[:9], batch_size=8, verbose=0).history["loss"]
    return {**found, "steps": int(model.curvature.steps.numpy())}


one = tf.distribute.OneDeviceStrategy("CPU:0")
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = {kind: [train(kind, one), train(kind, two)] for kind in BUILD}
seeds = []
for kind in (PGDModel, NoiseModel):
    with two.scope():
        model = kind(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), 0.5, seed=7)
        model.compile("sgd", run_eagerly=True)
    for _ in range(2):
        drawn = two.run(tf.function(model.seed_of_step), args=(True,))
        seeds.append([one.numpy().tolist() for one in two.experimental_local_results(drawn)])
        model.fit(np.ones((8, 4)), np.arange(8) % 3, batch_size=8, verbose=0)
print(json.dumps({"trained": found, "seeds": seeds}), flush=True)
os._exit(0)  # without the end of TensorFlow's threads
"""


@pytest.fixture(scope="module")
def printed():
    """The program's output, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_replicas_are_one_device(printed):
    found = printed["trained"]
    assert list(found) == ["penalty", "certified"]
    for kind, (one, two) in found.items():
        assert (one["replicas"], two["replicas"]) == (1, 2)
        assert one["steps"] == two["steps"] == (6 if "last" in two else 4)
        assert one["history"].keys() == two["history"].keys()
        # float32, with the sum over a batch taken in two halves, through four steps.
        for name, values in one["history"].items():
            assert two["history"][name] == pytest.approx(values, rel=1e-4), (kind, name)
        for name, value in one["test"].items():
            assert two["test"][name] == pytest.approx(value, rel=1e-4), (kind, name)
        assert len(one["weights"]) == len(two["weights"])
        for ours, theirs in zip(_flat(one["weights"]), _flat(two["weights"]), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4), kind
    assert all(math.isfinite(each["last"][0]) for each in found["certified"])


def _flat(values):
    return [part for v in values for part in _flat(v)] if isinstance(values, list) else [values]


def test_replicas_draw_random_numbers_of_their_own(printed):
    assert printed["seeds"] == [[[7, 0], [7, 1]], [[7, 2], [7, 3]]] * 2
