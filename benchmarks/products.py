"""Certifies small trained nets with products of tensors: gates, normalisations, attention, cells.

    python benchmarks/products.py --limit 20

Each net is trained on the digits (8 × 8 pixels in [0, 1]) by a few lines of Keras. For each: its
accuracy on the test set; and for the first test images that it classifies correctly the mean
radius of `auto` at the level `real`, the mean distance of the nearest adversarial point that was
met, the median of their ratio, and seconds an image.
"""

import argparse
import time

import keras
import numpy as np

from keras_curv import certify
from keras_curv.data.digits import load_digits

L = keras.layers
IMAGE, PATCHES = (8, 8, 1), 16


def squeezed(x, gate, activation):
    """Multiplies each channel by a gate that has seen the whole image."""
    channels = x.shape[-1]
    scale = L.GlobalAveragePooling2D(keepdims=True)(x)
    scale = L.Conv2D(channels // 4, 1, activation=activation)(scale)
    return L.Multiply()([x, L.Conv2D(channels, 1, activation=gate)(scale)])


def inverted(x, activation, gate):
    """A block of MobileNetV3 or EfficientNet: wider, by channel, gated, narrow, added."""
    wide = L.Conv2D(16, 1, activation=activation)(x)
    wide = L.DepthwiseConv2D(3, padding="same", activation=activation)(wide)
    return L.Add()([x, L.Conv2D(x.shape[-1], 1)(squeezed(wide, gate, "relu"))])


def of_blocks(activation, gate):
    x = given = keras.Input(IMAGE)
    x = L.BatchNormalization()(L.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x))
    x = inverted(L.Activation(activation)(x), activation, gate)
    return keras.Model(given, L.Dense(10)(L.Flatten()(x)))


def convnext():
    x = given = keras.Input(IMAGE)
    x = L.LayerNormalization()(L.Conv2D(8, 2, strides=2)(x))
    y = L.LayerNormalization()(L.DepthwiseConv2D(3, padding="same")(x))
    x = L.Add()([x, L.Dense(8)(L.Dense(16, "gelu")(y))])
    return keras.Model(given, L.Dense(10)(L.Flatten()(x)))


def transformer():
    """One block on the 16 patches of 2 × 2 pixels."""
    given = keras.Input(IMAGE)
    x = L.Reshape((PATCHES, 8))(L.Conv2D(8, 2, strides=2)(given))
    places = keras.ops.reshape(keras.ops.arange(PATCHES * 8, dtype="float32"), (1, PATCHES, 8))
    x = x + 0.1 * keras.ops.sin(places)
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.MultiHeadAttention(2, 4)(y, y)])
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.Dense(8)(L.Dense(16, "gelu")(y))])
    return keras.Model(given, L.Dense(10)(L.GlobalAveragePooling1D()(x)))


def cells(layer):
    """One recurrent layer that reads the image row by row."""
    layers = [L.Reshape((8, 8)), layer(16, unroll=True), L.Dense(10)]
    return keras.Sequential([keras.Input(IMAGE), *layers])


def normalized():
    layers = [L.Flatten(), L.Dense(64), L.LayerNormalization(), L.Activation("gelu")]
    return keras.Sequential([keras.Input(IMAGE), *layers, L.Dense(10)])


NETS = {
    "dense, layer normalisation": normalized,
    "like MobileNetV3": lambda: of_blocks("hard_silu", "hard_sigmoid"),
    "like EfficientNet": lambda: of_blocks("silu", "sigmoid"),
    "like ConvNeXt": convnext,
    "LSTM, 8 steps": lambda: cells(L.LSTM),
    "GRU, 8 steps": lambda: cells(L.GRU),
    "transformer, 16 tokens": transformer,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=20, help="images of each net")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--only", default="", help="nets with this in their names")
    args = parser.parse_args()
    (x, y), (x_test, y_test) = load_digits("train"), load_digits("test")
    print("| net | clean | radius | met | ratio | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, build in NETS.items():
        if args.only not in name:
            continue
        keras.utils.set_random_seed(0)
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
        model.fit(x, y, epochs=args.epochs, batch_size=64, verbose=0)
        correct = model.predict(x_test, verbose=0).argmax(axis=1) == y_test
        some = x_test[correct][: args.limit]
        start = time.perf_counter()
        found = certify(model, some, guarantee="real")
        seconds = (time.perf_counter() - start) / len(some)
        met = found.adversarial_distance
        print(
            f"| {name} | {100.0 * correct.mean():.1f} % | {found.radius.mean():.4f} "
            f"| {met[np.isfinite(met)].mean():.4f} | {np.median(found.radius / met):.2f} "
            f"| {seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
