"""Attacks certificates in every norm, under every threat and for every property.

    python benchmarks/attacked_threats.py --method crc --seconds 3600

Nets of one hidden layer or two, softplus, tanh and ReLU, are trained on the digits (8 × 8 pixels in
[0, 1]) for a few epochs. For norms, threats and properties in a random order all 1,797 digits are
certified by `--method` at the level `real`, and `--adversarial` searches for the nearest input at
which the property fails. A certificate is broken if one is within 1 − 1e-6 of its radius; exit
status 1 if any is. Prints how many certificates were attacked, how many points were met, and the
least ratio of a distance to a radius, which shows how strong the attacks are.
"""

import argparse
import csv
import itertools
import pathlib
import random
import sys
import tempfile
import time

import keras
import numpy as np

from keras_curv import ExampleOptions, certify_examples
from keras_curv.data.digits import load_digits
from keras_curv.errors import InputError

MIDDLE = np.zeros((8, 8), bool)
MIDDLE[2:6, 2:6] = True
WAVES = np.cos(np.outer(np.arange(64), np.pi * np.arange(3) / 64.0))
NETS = {
    "softplus": ("softplus", 32),
    "tanh tanh": ("tanh", 24, 16),
    "relu relu": ("relu", 24, 16),
}
THREATS = {
    "any": {},
    "box": {"low": 0.0, "high": 1.0},
    "weights": {"scale": np.where(MIDDLE, 2.0, 0.5).ravel()},
    "frozen": {"frozen": ~MIDDLE.ravel()},
    "frozen in a box": {"frozen": MIDDLE.ravel(), "low": 0.0, "high": 1.0},
    "basis": {"basis": WAVES},
}
PROPERTIES = "argmax", "top_3", "harmful:3,5,8", "linear:y0+y1+y2<y3+y4+y5+20"
NORMS = "l2", "l1", "linf"


def trained(activation, *widths):
    """Returns a net and its digits, of both splits."""
    parts = [load_digits(split) for split in ("train", "test")]
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation) for width in widths]
    flat = keras.Input((8, 8, 1)), keras.layers.Flatten()
    model = keras.Sequential([*flat, *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(*parts[0], epochs=8, batch_size=64, verbose=0)
    return model, *(np.concatenate(both) for both in zip(*parts, strict=True))


def attacked(model, x, y, folder, **claim):
    """Returns radii that are positive, and the distances of the nearest points met."""
    files = {name: str(folder / name) for name in ("rows.csv", "points.npz")}
    options = ExampleOptions(output=files["rows.csv"], adversarial=files["points.npz"], **claim)
    labels = None if claim["property"].startswith("linear") else y
    certify_examples(model, (x, labels), options)
    with open(files["rows.csv"], newline="") as file:
        radius = np.array([float(row["radius"] or 0.0) for row in csv.DictReader(file)])
    with np.load(files["points.npz"]) as points:
        distance = points["distance"]
    return radius[radius > 0.0], distance[radius > 0.0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no claim begins later")
    parser.add_argument("--limit", type=int, default=1797, help="digits of each claim")
    parser.add_argument("--method", default="auto")
    options = parser.parse_args()
    begun, counts, least, broken = time.monotonic(), [0, 0, 0], np.inf, 0
    models = {name: trained(*net) for name, net in NETS.items()}
    claims = [*itertools.product(THREATS, NORMS, PROPERTIES, NETS)]
    random.Random(0).shuffle(claims)  # a run that ends early has met some of all
    for threat, norm, held, name in claims:
        if time.monotonic() - begun > options.seconds:
            break
        model, x, y = models[name]
        some = slice(options.limit)
        asked = {"method": options.method, "property": held}
        asked["threat"] = {**THREATS[threat], "norm": norm}
        with tempfile.TemporaryDirectory() as folder:
            try:
                args = model, x[some], y[some], pathlib.Path(folder)
                radius, distance = attacked(*args, **asked)
            except InputError as error:
                print(f"{threat}, {norm}, {held}, {name}: refused: {error}", flush=True)
                continue
        met_at = np.isfinite(distance)  # radii may be infinite in a box
        ratio = distance[met_at] / radius[met_at]
        fallen = int((ratio < 1.0 - 1e-6).sum())
        met = int(met_at.sum())
        counts = [a + b for a, b in zip(counts, (1, len(radius), met), strict=True)]
        least, broken = min(least, ratio.min(initial=np.inf)), broken + fallen
        print(
            f"{threat}, {norm}, {held}, {name}: {len(radius)} certificates, {met} points met, "
            f"{fallen} broken, least ratio {ratio.min(initial=np.inf):.4f}",
            flush=True,
        )
    done, certificates, met = counts
    print(
        f"{done} of {len(claims)} claims, {certificates:,} certificates attacked, {met:,} points "
        f"met, {broken} broken, least ratio {least:.6f}, {time.monotonic() - begun:.0f} s"
    )
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
