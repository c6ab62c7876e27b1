"""Trains the models of this folder: two layers, softplus, with a curvature penalty.

    python saved_models/train.py --dataset mnist --output saved_models/mnist_2x1024

The command for each model is on its card, which this script writes beside the model.

Curvature-based robust training, after Singla & Feizi (2020), section 5: cross-entropy at the
curvature attack toward the runner-up, plus `gamma` times the mean curvature `−m` of theorem 3,
by power iteration with one persistent vector for each class pair.
"""

import pathlib
import shlex
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from keras_curv import certify_examples, data, report
from keras_curv.activations import ACTIVATIONS
from keras_curv.attacks import curvature_attack
from keras_curv.network import Network

_DATASET = flags.DEFINE_enum("dataset", "digits", ["digits", "mnist"], "What to train on.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds the data set.")
_WIDTH = flags.DEFINE_integer("width", 1024, "Units of the hidden layer.", lower_bound=1)
_RADIUS = flags.DEFINE_float("radius", 1.58, "Of the attack, l2, on pixels in [0, 1].")
_GAMMA = flags.DEFINE_float("gamma", 0.01, "Weight of the curvature penalty.")
_STEPS = flags.DEFINE_integer("attack_steps", 3, "Gradients for each attack.")
_EPOCHS = flags.DEFINE_integer("epochs", 30, "Passes over the training set.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Examples in a step.")
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Adam's; halved five times in the second half.")
_SEED = flags.DEFINE_integer("seed", 0, "Of weights and order.")
_REPORTED = flags.DEFINE_multi_float("reported", [0.1, 0.25, 0.5, 1.0, 1.58], "Radii on the card.")
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the SavedModel.", required=True)


class _LiveNetwork(Network):
    """A network whose weights still move, to attack in training; never to certify."""

    def __init__(self, first, last):
        self._first, self._last = first, last
        shapes = [(d.kernel.numpy(), d.bias.numpy()) for d in (first, last)]
        live = Network.from_weights(*zip(*shapes, strict=True), "softplus")
        super().__init__(live.affines, live.activations)

    def _weights(self, dtype):
        layers = (self._first, self._last)
        return [d.kernel.value for d in layers], [d.bias.value for d in layers]


class _RobustModel(keras.Model):
    def __init__(self, base, first, last, radius, gamma, ramp_steps):
        super().__init__()
        self.base, self.first, self.last = base, first, last
        self.network = _LiveNetwork(first, last)
        self.radius, self.gamma, self.ramp_steps = radius, gamma, ramp_steps
        classes = self.network.classes
        pairs = [(y, t) for y in range(classes) for t in range(classes)]
        start = np.random.default_rng(0).standard_normal((len(pairs), self.network.dim))
        self.vectors = tf.Variable(start.astype(np.float32), trainable=False)
        self.pairs = tf.constant(pairs)
        self.bend = ACTIVATIONS["softplus"].second_range[1]

    def call(self, x):
        return self.base(x)

    def curvature(self):
        """−m for all pairs, `(classes²,)`: Rayleigh quotients, and their vectors moved on."""
        rows = tf.transpose(self.last.kernel.value)
        w = tf.gather(rows, self.pairs[:, 0]) - tf.gather(rows, self.pairs[:, 1])
        diagonal = self.bend * tf.nn.relu(-w)

        def apply(v):
            return tf.matmul(diagonal * tf.matmul(v, kernel), kernel, transpose_b=True)

        kernel = tf.stop_gradient(self.first.kernel.value)
        moved = tf.math.l2_normalize(apply(self.vectors), axis=1)
        self.vectors.assign(tf.stop_gradient(moved))
        reach = tf.matmul(tf.stop_gradient(moved), self.first.kernel.value)
        return tf.reduce_sum(diagonal * reach * reach, axis=1)

    def train_step(self, data):
        x, y = data
        flat = tf.reshape(x, (-1, self.network.dim))
        ramp = tf.cast(self.optimizer.iterations, tf.float32) / self.ramp_steps
        radius = self.radius * tf.minimum(1.0, 0.05 + ramp)
        rival = self.network.runner_up(self.network.logits(flat), y)
        with tf.GradientTape() as tape:
            minus_m = tf.gather(self.curvature(), y * self.network.classes + rival)
            point = curvature_attack(
                self.network,
                flat,
                y,
                rival,
                radius=radius,
                curvature=tf.stop_gradient(minus_m),
                steps=_STEPS.value,
            ).point
            attacked = self.base(tf.reshape(tf.stop_gradient(point), tf.shape(x)))
            loss = tf.reduce_mean(self.compute_loss(x, y, attacked))
            loss += self.gamma * tf.reduce_mean(minus_m)
        variables = self.base.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.compute_metrics(x, y, self.base(x))
        return {**self.get_metrics_result(), "loss": loss, "curvature": tf.reduce_mean(minus_m)}


def main(argv):
    del argv
    keras.utils.set_random_seed(_SEED.value)
    x, y = data.load_all(_DATASET.value, "train", data_dir=_DATA_DIR.value)
    first = keras.layers.Dense(_WIDTH.value, activation="softplus", name="hidden")
    last = keras.layers.Dense(int(y.max()) + 1, name="logits")
    flatten = keras.layers.Flatten()
    base = keras.Sequential([keras.Input(x.shape[1:]), flatten, first, last], name=_DATASET.value)
    steps = -(-len(x) // _BATCH.value)
    model = _RobustModel(
        base, first, last, _RADIUS.value, _GAMMA.value, 0.3 * _EPOCHS.value * steps
    )
    schedule = keras.callbacks.LearningRateScheduler(
        lambda epoch: _RATE.value * 2.0 ** -(5 * max(0.0, 2 * epoch / _EPOCHS.value - 1))
    )
    model.compile(
        keras.optimizers.Adam(_RATE.value),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x,
        y.astype(np.int32),
        epochs=_EPOCHS.value,
        batch_size=_BATCH.value,
        callbacks=[schedule],
        verbose=2,
    )
    base.export(_OUTPUT.value, verbose=False)
    write_card()


def write_card():
    """What a reader must know of the model: how it was made, and what it is worth."""
    examples = data.load(_DATASET.value, "test", data_dir=_DATA_DIR.value)
    summary = certify_examples(_OUTPUT.value, examples, radii=_REPORTED.value)
    certified = "\n".join(
        f"| {radius} | {report.percent(fraction)} |"
        for radius, fraction in summary["certified_accuracy"].items()
    )
    card = f"""# {pathlib.Path(_OUTPUT.value).name}

{_DATASET.value}, 2 × {_WIDTH.value} softplus, curvature-based robust training: attack radius
{_RADIUS.value:g}, penalty γ = {_GAMMA.value:g}, {_EPOCHS.value} epochs, seed {_SEED.value}.

Whole test set ({summary["examples"]:,} examples), guarantee level `{summary["guarantee"]}`, all
rivals, l2 on pixels in [0, 1]:

| radius | certified accuracy |
| ---: | ---: |
| 0 (clean) | {report.percent(summary["clean_accuracy"])} |
{certified}

Mean radius over the correct ones {report.number(summary["mean_radius"])}; largest curvature bound
{summary["largest_curvature"]:.4f}. Trained by

    {shlex.join(["python", *sys.argv])}
"""
    (pathlib.Path(_OUTPUT.value) / "CARD.md").write_text(card)


if __name__ == "__main__":
    app.run(main)
