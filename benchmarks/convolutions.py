"""Measures convolutions of larger images, as dense matrices and as sparse ones.

    python benchmarks/convolutions.py --sizes 16,28,32,64

A random network of three convolutions, batch normalisation and pooling, for each size of its
images: seconds of one processor to read and bound it and to certify 8 images by `lipschitz`, peak
memory beyond TensorFlow's own, the mean radius, and for each sparse map the norm from its kernel
over that of the dense matrix. Each case has a process of its own.
"""

import concurrent.futures
import multiprocessing
import pathlib
import resource
import sys
import time

from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

_SIZES = flags.DEFINE_list("sizes", ["16", "28", "32", "64"], "Sides of the images.")
_DENSE_TO = flags.DEFINE_integer("dense_to", 32, "The largest of them to read as dense, too.")
_METHOD = flags.DEFINE_string("method", "lipschitz", "Of certification.")


def random_model(size):
    """Returns a network with kernels of norm about one, the same for the same size."""
    import keras
    import numpy as np

    layers, rng = keras.layers, np.random.default_rng(size)
    model = keras.Sequential(
        [
            keras.Input((size, size, 3)),
            layers.Rescaling(2.0, offset=-1.0),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("softplus"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 3, padding="same", activation="softplus"),
            layers.Conv2D(16, 3, strides=2, activation="tanh"),
            layers.Flatten(),
            layers.Dense(32, "softplus"),
            layers.Dense(10),
        ]
    )
    for weight in model.weights:
        if weight.path.endswith("kernel"):
            scale = 0.8 / np.sqrt(np.prod(weight.shape[:-1]))
            weight.assign(scale * rng.standard_normal(weight.shape))
    return model


def measure(size, dense_up_to, method):
    """Returns seconds to read and to certify, MiB, radius and norms; or why the case is refused."""
    import numpy as np

    from keras_curv.certificates.certifier import Certifier
    from keras_curv.errors import InputError
    from keras_curv.network import sparse_affine

    model = random_model(size)
    x = np.random.default_rng(1).uniform(0.0, 1.0, (8, size, size, 3)).astype(np.float32)
    model(x)
    sparse_affine.DENSE_UP_TO = dense_up_to
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        certifier = Certifier(model, method=method)
    except InputError as error:
        return {"refused": str(error)}
    read = time.process_time() - start
    radius = float(certifier.certify_all(x).radius.mean())
    return {
        "read": read,
        "certify": time.process_time() - start - read,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "radius": radius,
        "norms": [affine.norm for affine in certifier.served.network.affines],
        "sparse": [affine.is_sparse for affine in certifier.served.network.affines],
    }


def main(argv):
    """Prints the table."""
    del argv
    from keras_curv.network import sparse_affine
    from keras_curv.saved_model import limits

    table = Table("image", "matrices", "read, s", "certify, s", "MiB", "radius", "norms / dense")
    for size in map(int, _SIZES.value):
        found = {}
        for name, limit in (
            ("dense", limits.TENSOR_ENTRIES),
            ("sparse", sparse_affine.DENSE_UP_TO),
        ):
            if name == "dense" and size > _DENSE_TO.value:
                continue
            found[name] = one = alone(measure, size, limit, _METHOD.value)
            print(size, name, one, file=sys.stderr, flush=True)
            if "refused" in one:
                table.add_row(str(size), name, *["refused"] + [""] * 4)
                continue
            ratios = ""
            if "norms" in found.get("dense", {}):
                pairs = zip(one["norms"], found["dense"]["norms"], one["sparse"], strict=True)
                ratios = " ".join(f"{a / b:.3f}" for a, b, sparse in pairs if sparse)
            numbers = [f"{one['read']:.1f}", f"{one['certify']:.1f}", f"{one['memory']:.0f}"]
            table.add_row(str(size), name, *numbers, f"{one['radius']:.4f}", ratios)
    Console(width=100).print(table)


def alone(function, *arguments):
    """Returns the result of a call in a new process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    app.run(main)
