"""Compares the certified signature with the plain one and with the full certificate.

    python benchmarks/serving.py --data_dir DIR

Rebuilds each model in Keras, exports it by `certified_serving`, and calls both signatures in turn,
in one process. Prints milliseconds a batch, medians, and their ratio; and the mean radius over that
of CRC's search, in real arithmetic, on the same examples.
"""

import pathlib
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keras_curv import Certifier, certified_serving, data, read

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds MNIST.")
_MODELS = flags.DEFINE_multi_string("model", ["digits", "mnist_2x1024"], "In saved_models.")
_BATCHES = flags.DEFINE_multi_integer("batch", [1, 32, 256], "Repeatable.")
_CALLS = flags.DEFINE_integer("calls", 100, "Of each signature, for each batch.")


def rebuilt(served):
    """Returns a Keras model with the weights that were read; dense layers only."""
    network = served.network
    names = [*(activation.name for activation in network.activations), None]
    dense = [
        keras.layers.Dense(affine.fan_out, name)
        for affine, name in zip(network.affines, names, strict=True)
    ]
    model = keras.Sequential([keras.Input(served.input_shape), keras.layers.Flatten(), *dense])
    model.set_weights([w for affine in network.affines for w in (affine.kernel, affine.bias)])
    return model


def milliseconds(signatures, x):
    """Returns the median of each signature; they take turns, so that a busy machine slows both."""
    spent = [[] for _ in signatures]
    for _ in range(_CALLS.value + 3):
        for signature, times in zip(signatures, spent, strict=True):
            started = time.perf_counter()
            signature(x)
            times.append(1e3 * (time.perf_counter() - started))
    return [np.median(times[3:]) for times in spent]


def main(argv):
    del argv
    table = Table(title="the certified signature beside the plain one")
    for column in ("model", "batch", "plain, ms", "certified, ms", "ratio", "radius / full"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in _MODELS.value:
        model = rebuilt(read(ROOT / "saved_models" / name))
        dataset = name.split("_")[0]
        examples = data.load(dataset, "test", data_dir=_DATA_DIR.value).limited(512)
        x = np.concatenate([batch for batch, _ in examples.batches(256, 0)]).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            certified_serving(model, pathlib.Path(folder) / "model")
            loaded = tf.saved_model.load(str(pathlib.Path(folder) / "model"))
        both = [loaded.signatures[key] for key in ("serving_default", "certified")]
        proved = both[1](tf.constant(x))["radius"].numpy()
        full = Certifier(model, method="crc").certify_all(x).radius
        assert np.all(proved <= full)
        for batch in _BATCHES.value:
            plain, certified = milliseconds(both, tf.constant(x[:batch]))
            table.add_row(
                f"{name}, {len(x)} examples",
                str(batch),
                f"{plain:.2f}",
                f"{certified:.2f}",
                f"{certified / plain:.2f}",
                f"{proved.mean() / full.mean():.3f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
