"""What fine-tuning a smoothed clone of a plainly trained net gains.

    python benchmarks/smoothed.py --dataset mnist --strided --epochs 2 --limit 50

Trains a net plainly, as `benchmarks/plain.py` does, makes it smooth by `keras_curv.smoothed` and
trains the clone with `CRTModel`: clean accuracy and mean proved radius of each on the same test
images, 0 where the prediction is wrong.
"""

import pathlib
import sys
import time

import keras
import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from plain import model_and_examples, training_set

import keras_curv

_ACTIVATION = flags.DEFINE_string("activation", "gelu", "In the place of relu.")
_RADIUS = flags.DEFINE_float("radius", 0.5, "To train for.")
_RATE = flags.DEFINE_float("learning_rate", 3e-3, "Of Adam, at the start; it falls to 0.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Examples in a step.")
_TUNED = flags.DEFINE_integer("tuned_epochs", 2, "Of training with CRTModel.")
_METHOD = flags.DEFINE_string("method", "crc", "Of proof for what is smooth; other nets: auto.")


def fine_tune(base, x, y):
    """Trains it for the radius."""
    steps = _TUNED.value * -(-len(x) // _BATCH.value)
    model = keras_curv.CRTModel(base, radius=_RADIUS.value, ramp_steps=steps // 3)
    rate = keras.optimizers.schedules.CosineDecay(_RATE.value, steps)
    model.compile(keras.optimizers.Adam(rate))
    keras.utils.set_random_seed(0)
    model.fit(x, y, batch_size=_BATCH.value, epochs=_TUNED.value, verbose=0)


def main(argv):
    del argv
    net, name, examples = model_and_examples()
    x, y = examples.arrays()
    print(f"{name}, seed 0, the first {len(x)} examples")

    def add(title, model, method):
        start = time.perf_counter()
        found = keras_curv.certify(model, x, y, method=method)
        seconds = (time.perf_counter() - start) / len(x)
        clean = np.mean(found.prediction == y)
        print(
            f"{title}: clean {clean:.4f}, mean radius {found.radius.mean():.4f}, "
            f"{seconds:.2f} s an image",
            flush=True,
        )

    add("as trained", net, "auto")
    print(keras_curv.smoothed_changes(net, _ACTIVATION.value))
    smooth = keras_curv.smoothed(net, _ACTIVATION.value)
    add("smoothed", smooth, _METHOD.value)
    start = time.perf_counter()
    fine_tune(smooth, *training_set())
    add(f"fine-tuned in {time.perf_counter() - start:.0f} s", smooth, _METHOD.value)


if __name__ == "__main__":
    app.run(main)
