"""Times a training step of `CRTModel` on several logical devices, and without a strategy.

    python benchmarks/devices.py

2 × 1024 softplus on random images of MNIST's size, the same global batch; one `fit` under
`tf.distribute.MirroredStrategy` on one and on two logical CPU devices, and without a strategy. Each
has a process of its own (in one, TensorFlow 2.21 crashes at the second `fit` on two devices), in
turn, and a line's time is that of its fastest round. The logical devices share the cores of the
machine, so this shows what distributing costs, not what more machines would gain.
"""

import concurrent.futures
import contextlib
import multiprocessing
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
_STEPS = flags.DEFINE_integer("steps", 20, "In a round, timed.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Through all of them.")
_FIRST = 5  # steps


def step_seconds(devices, width, batch_size, steps):
    """Returns the mean of the steps after the first ones, which trace; 0 devices: no strategy."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * max(devices, 1)
    tf.config.set_logical_device_configuration(cpu, logical)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    scope = contextlib.nullcontext()
    if devices:
        scope = tf.distribute.MirroredStrategy(names).scope()
    keras.utils.set_random_seed(0)
    with scope:
        hidden = keras.layers.Dense(width, "softplus")
        base = [keras.Input((28, 28, 1)), keras.layers.Flatten(), hidden, keras.layers.Dense(10)]
        model = CRTModel(keras.Sequential(base), 1.58, 0.01)
        model.compile("adam")
    count = batch_size * (steps + _FIRST)
    rng = np.random.default_rng(0)
    x, y = rng.random((count, 28, 28, 1), np.float32), rng.integers(0, 10, count)
    ends = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    model.fit(x, y, batch_size=batch_size, verbose=0, callbacks=[clock])
    return (ends[-1] - ends[_FIRST - 1]) / steps


def main(argv):
    del argv
    names = {0: "no strategy", 1: "MirroredStrategy, 1", 2: "MirroredStrategy, 2"}
    fastest = dict.fromkeys(names, float("inf"))
    sizes = (_WIDTH.value, _BATCH.value, _STEPS.value)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
        for _ in range(_ROUNDS.value):
            for devices in names:
                seconds = pool.submit(step_seconds, devices, *sizes).result()
                fastest[devices] = min(fastest[devices], seconds)

    table = Table(title=f"CRTModel, batch {_BATCH.value}, {os.cpu_count()} cores")
    for column in ("devices", "ms a step", "examples/s", "ratio"):
        table.add_column(column, justify="left" if column == "devices" else "right")
    for devices, seconds in fastest.items():
        cells = (1e3 * seconds, _BATCH.value / seconds, fastest[0] / seconds)
        shown = [f"{cell:.{digits}f}" for cell, digits in zip(cells, (1, 0, 2), strict=True)]
        table.add_row(names[devices], *shown)
    Console(width=100).print(table)


if __name__ == "__main__":
    app.run(main)
