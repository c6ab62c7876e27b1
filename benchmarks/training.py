"""Times a training step beside plain Keras: the same net, batch, optimizer and process.

    python benchmarks/training.py
    python benchmarks/training.py --strided --batch_size 64 --steps 20
    python benchmarks/training.py --pooled --batch_size 64 --steps 5

2 × 1024 softplus, two strided convolutions and a dense layer, or two convolutions of 8 and 16
filters with stride 1 and average pooling, on random images of MNIST's size; `fit`, Adam. Rounds
go through all methods in turn, and a method's time is that of its fastest round. Prints
milliseconds a step, the ratio to plain Keras, and gradients of the attack for each example; also
in processor time of both cores, which other work on the machine distorts less.
"""

import pathlib
import sys
import time
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from algorithms_1_and_2 import algorithm2

from keras_curv import CRTModel, CurvatureRegularizer
from keras_curv.attacks.ball import project
from keras_curv.attacks.crt import AttackResult, Hidden
from keras_curv.training.models import worst_case

_BATCH = flags.DEFINE_integer("batch_size", 256, "Examples in a step.")
_WIDTH = flags.DEFINE_integer("width", 1024, "Of the hidden layers.")
_LAYERS = flags.DEFINE_integer("layers", 2, "Hidden ones and the last.")
_STRIDED = flags.DEFINE_bool("strided", False, "Whether the net is convolutional.")
_POOLED = flags.DEFINE_bool("pooled", False, "Whether it is, with stride 1 and pooling.")
_STEPS = flags.DEFINE_integer(
    "steps", 100, "In a round, so that the start of `fit` does not count."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Through all methods.")


def base():
    keras.utils.set_random_seed(0)
    if _STRIDED.value:
        return strided()
    if _POOLED.value:
        return pooled()
    hidden = [keras.layers.Dense(_WIDTH.value, "softplus") for _ in range(_LAYERS.value - 1)]
    return keras.Sequential(
        [keras.Input((28, 28, 1)), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)]
    )


def strided():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 4, strides=2, activation="softplus"),
            layers.Conv2D(32, 4, strides=2, activation="softplus"),
            layers.Flatten(),
            layers.Dense(100, activation="softplus"),
            layers.Dense(10),
        ]
    )


def pooled():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, activation="softplus"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 3, padding="same", activation="softplus"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def algorithm2_attack(network, x, label, rival, *, radius, curvature, steps, tolerance):
    """Attacks by the paper's solver: 30 bisections around 20 steps each."""
    kappa = curvature[:, 0]
    solution = algorithm2(network, x, label, rival[:, 0], radius=radius, lower=-kappa, upper=kappa)
    point = project(solution.point, x, radius)
    pre, (_, *post) = network.forward(point)
    value = solution.dual_value[:, None]
    hidden = Hidden(pre, post, tf.norm(point - x, axis=1))
    return AttackResult(point[:, None], value, value, value > 0.0, hidden)


METHODS = {
    "plain Keras": (lambda: base(), 0),
    "CurvatureRegularizer": (lambda: CurvatureRegularizer(base(), 0.01), 0),
    "CRTModel, crt": (lambda: CRTModel(base(), 1.58, 0.01, loss="crt"), 2),
    "CRTModel, crt, attack_steps=3": (
        lambda: CRTModel(base(), 1.58, 0.01, loss="crt", attack_steps=3),
        3,
    ),
    "CRTModel, certified, 3 rivals": (lambda: CRTModel(base(), 1.58, rivals=3), 6),
    "CRTModel, certified, 4 rivals": (lambda: CRTModel(base(), 1.58, rivals=4), 8),
    "crt by Algorithm 2": (lambda: CRTModel(base(), 1.58, 0.01, loss="crt"), 600),
}


def main(argv):
    del argv
    rng = np.random.default_rng(0)
    x = rng.random((_STEPS.value * _BATCH.value, 28, 28, 1), np.float32)
    y = rng.integers(10, size=len(x))
    models, seconds, processor = {}, {}, {}
    images = _STRIDED.value or _POOLED.value
    modes = (False,) if images else (False, True)  # XLA's transposed convolutions are slow
    methods = dict(list(METHODS.items())[:-1]) if images else METHODS
    for name, (build, _) in methods.items():
        for jit in modes:
            if name.endswith("Algorithm 2") and jit:
                continue  # minutes to compile, and no faster
            model = build()
            model.compile(
                keras.optimizers.Adam(1e-3),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                jit_compile=jit,
            )
            models[name, jit] = model
            seconds[name, jit] = processor[name, jit] = np.inf
    for _ in range(1 + _ROUNDS.value):  # the first traces
        for (name, jit), model in models.items():
            attack = worst_case.curvature_attack
            slow = name.endswith("Algorithm 2")
            count = min(2, _STEPS.value) if slow else _STEPS.value
            rows = count * _BATCH.value
            with mock.patch.object(
                worst_case, "curvature_attack", algorithm2_attack if slow else attack
            ):
                start, busy = time.perf_counter(), time.process_time()
                model.fit(x[:rows], y[:rows], batch_size=_BATCH.value, verbose=0)
                took, busy = time.perf_counter() - start, time.process_time() - busy
            seconds[name, jit] = min(seconds[name, jit], took / count)
            processor[name, jit] = min(processor[name, jit], busy / count)
    for jit in modes:
        net = f"{_LAYERS.value} × {_WIDTH.value}"
        net = "strided" if _STRIDED.value else "pooled" if _POOLED.value else net
        title = f"{net} softplus, batch {_BATCH.value}"
        table = Table(title=title + (", XLA" if jit else ""))
        for column in ("step", "gradients", "ms", "ratio", "processor ms", "ratio of these"):
            table.add_column(column, justify="left" if column == "step" else "right")
        for name, (_, gradients) in methods.items():
            cells = []
            for found in (seconds, processor):
                if (name, jit) in found:
                    took, plain = found[name, jit], found["plain Keras", jit]
                    cells += [f"{1e3 * took:.1f}", f"{took / plain:.1f} ×"]
            most = "≤ " if gradients == 600 else ""
            if cells:
                table.add_row(name, f"{most}{gradients}", *cells)
        Console(width=100).print(table)


if __name__ == "__main__":
    app.run(main)
