"""Reads a net of keras.applications, which names a cut, and certifies behind that.

    nice python benchmarks/applications.py --model ResNet50 --size 32

Weights are random, so the radii say nothing of trained nets. What is measured is what a user meets:
how long it takes until the whole net is read or refused, and whether the cut that the refusal names
works.
"""

import argparse
import re
import resource
import time

import keras
import numpy as np

import keras_curv
from keras_curv.errors import InputError


def certified(model, x, **how):
    """What came of it, and seconds of computing."""
    began = time.process_time()
    try:
        said = str(keras_curv.certify(model, x, **how))
    except InputError as error:
        said = f"refused: {error}"
    return said, time.process_time() - began


def main():
    """Prints what came of the whole net, and of the part behind the cut."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="MobileNet", help="of keras.applications")
    parser.add_argument("--size", type=int, default=32, help="of images, in pixels")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    shape = (options.size, options.size, 3)
    make = getattr(keras.applications, options.model)
    model = make(weights=None, input_shape=shape, classes=10)
    x = np.random.default_rng(0).random((2, *shape), np.float32)
    said, seconds = certified(model, x, method="lipschitz")
    print(f"{seconds:.0f} s: {said}")
    for cut in re.findall("cut at '([^']+)'", said)[-1:]:
        said, seconds = certified(model, x, cut=cut)
        print(f"behind {cut}, {seconds:.0f} s: {said}")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB with the net itself")


if __name__ == "__main__":
    main()
