"""Measures what a box or a clip of the input costs a curvature certificate.

    python benchmarks/threats.py [--examples 1024] [--rounds 5] [--unclipped DIR]

MNIST test images, all rivals, in turns; the least seconds of all rounds, and gradients an example.
The clip is measured beside an unclipped net of the same size, `mnist_2x2048`, which is not shipped.
"""

import time

import numpy as np
from absl import app, flags

from keras_curv import Certifier, Threat, data

FLAGS = flags.FLAGS
flags.DEFINE_integer("examples", 1024, "test images")
flags.DEFINE_integer("rounds", 5, "of which the fastest counts")
flags.DEFINE_string("unclipped", None, "saved model to measure mnist_clip beside")
BATCH = 512
BOX = Threat(low=0.0, high=1.0)
PLAIN, CLIPPING = "saved_models/mnist_2x1024", "saved_models/mnist_clip"


def main(_):
    x, y = data.load("mnist", "test").limited(FLAGS.examples).arrays()
    print("| | seconds | gradients | plain | gradients | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    pairs = {"a box": ((PLAIN, {"threat": BOX}), (PLAIN, {}))}
    if FLAGS.unclipped:
        pairs["a clip"] = ((CLIPPING, {}), (FLAGS.unclipped, {}))
    for name, pair in pairs.items():
        certifiers = [Certifier(model, method="crc", **options) for model, options in pair]
        for certifier in certifiers:
            certifier.certify(x[:BATCH], y[:BATCH])  # what is traced is traced
        found = [
            [certified(certifier, x, y) for certifier in certifiers] for _ in range(FLAGS.rounds)
        ]
        seconds, gradients = np.array(found).min(axis=0).T
        cells = f"{seconds[0]:.2f} | {gradients[0]:.1f} | {seconds[1]:.2f} | {gradients[1]:.1f}"
        print(f"| {name} | {cells} | {seconds[0] / seconds[1]:.2f} × |", flush=True)


def certified(certifier, x, y):
    """Returns seconds, and gradients an example."""
    start, gradients = time.perf_counter(), []
    for first in range(0, len(x), BATCH):
        batch = slice(first, first + BATCH)
        gradients.append(certifier.certify(x[batch], y[batch]).gradient_evaluations)
    return time.perf_counter() - start, np.concatenate(gradients).mean()


if __name__ == "__main__":
    app.run(main)
