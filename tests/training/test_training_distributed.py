"""Two replicas train as one device does; in a process of its own, with two logical CPUs."""

import json
import math
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
_PROGRAM = """
import json
import os

import keras
import numpy as np
import tensorflow as tf

from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.rivals.pgd import PGDModel

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
L = keras.layers
rng = np.random.default_rng(0)
x, y = rng.standard_normal((16, 4)).astype("float32"), rng.integers(0, 3, 16)
weight = rng.uniform(0.5, 1.5, 16).astype("float32")


def train(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dense(3)])
        model = CRTModel(base, 0.3, 0.1, ramp_steps=3)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, metrics=["accuracy"], run_eagerly=strategy is one)
    history = model.fit(
        x, y[:, None], sample_weight=weight, batch_size=8, epochs=2, shuffle=False, verbose=0
    ).history
    return {
        "history": history,
        "weights": [value.tolist() for value in model.get_weights()],
        "replicas": strategy.num_replicas_in_sync,
        "test": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
        # One example for two replicas.
        "last": model.fit(x[:9], y[:9], batch_size=8, verbose=0).history["loss"],
        "steps": int(model.curvature.steps.numpy()),
    }


one = tf.distribute.OneDeviceStrategy("CPU:0")
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = [train(one), train(two)]
seeds = []
with two.scope():
    model = PGDModel(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), 0.5, seed=7)
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
    one, two = printed["trained"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert one["steps"] == two["steps"] == 6
    # float32, with the sum over a batch taken in two halves, through four steps.
    for part in ("history", "test"):
        assert one[part].keys() == two[part].keys()
        for name, values in one[part].items():
            assert two[part][name] == pytest.approx(values, rel=1e-4), name
    assert _flat(one["weights"]) == pytest.approx(_flat(two["weights"]), abs=1e-4)
    assert all(math.isfinite(each["last"][0]) for each in (one, two))


def _flat(values):
    return [part for v in values for part in _flat(v)] if isinstance(values, list) else [values]


def test_replicas_draw_random_numbers_of_their_own(printed):
    assert printed["seeds"] == [[[7, 0], [7, 1]], [[7, 2], [7, 3]]]
