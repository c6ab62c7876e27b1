"""A training step of `CRTModel` on several logical devices, beside no strategy at all.

    python benchmarks/devices.py

2 × 1024 softplus on random images of MNIST's size, the same global batch; `fit` under
`tf.distribute.MirroredStrategy` on one and on two logical CPU devices, and without a strategy, in
turn, in one process. A line's time is that of its fastest round. The logical devices share the
cores of the machine, so this shows what distributing costs, not what more machines would gain.
"""

import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keras_curv import CRTModel

_BATCH = flags.DEFINE_integer("batch_size", 256, "Examples in a step, on all devices together.")
_WIDTH = flags.DEFINE_integer("width", 1024, "Of the hidden layers.")
_STEPS = flags.DEFINE_integer("steps", 20, "In a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Through all lines.")
_DEVICES = flags.DEFINE_integer("devices", 2, "Logical ones, at most.")


def compiled():
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    base = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            dense(_WIDTH.value, "softplus"),
            dense(10),
        ]
    )
    model = CRTModel(base, 1.58, 0.01)
    model.compile("adam")
    return model


def main(argv):
    del argv
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * _DEVICES.value
    tf.config.set_logical_device_configuration(cpu, logical)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    models = {"no strategy": compiled()}
    for count in range(1, _DEVICES.value + 1):
        with tf.distribute.MirroredStrategy(names[:count]).scope():
            models[f"MirroredStrategy, {count}"] = compiled()

    count = _BATCH.value * _STEPS.value
    rng = np.random.default_rng(0)
    x = rng.random((count, 28, 28, 1), np.float32)
    y = rng.integers(0, 10, count)
    fastest = dict.fromkeys(models, float("inf"))
    for round_ in range(_ROUNDS.value + 1):  # the first traces the graphs
        for name, model in models.items():
            started = time.perf_counter()
            model.fit(x, y, batch_size=_BATCH.value, verbose=0)
            if round_:
                fastest[name] = min(fastest[name], time.perf_counter() - started)

    table = Table(title=f"CRTModel, batch {_BATCH.value}, {os.cpu_count()} cores")
    for column in ("devices", "ms a step", "examples/s", "ratio"):
        table.add_column(column, justify="left" if column == "devices" else "right")
    for name, seconds in fastest.items():
        table.add_row(
            name,
            f"{1e3 * seconds / _STEPS.value:.1f}",
            f"{count / seconds:.0f}",
            f"{fastest['no strategy'] / seconds:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    app.run(main)
