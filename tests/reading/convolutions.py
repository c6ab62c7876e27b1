"""Convolutions and pooling by their definition, and random models that have them.

The oracle computes one output entry at a time: the weights under the window times the pixels under
it, whatever lies outside of the image being zero (and, for an average, absent).
"""

from __future__ import annotations

import itertools

import keras
import numpy as np

L = keras.layers
SIGMA = {
    "softplus": lambda z: np.logaddexp(0.0, z),
    "sigmoid": lambda z: 0.5 + 0.5 * np.tanh(z / 2.0),
    "tanh": np.tanh,
    "linear": lambda z: z,
}


def windows(shape, window, strides, padding, dilations=(1, 1)):
    """For each output position, the pairs (place in the window, place in the image)."""
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    if padding == "same":
        outputs = [-(-n // s) for n, s in zip(shape, strides, strict=True)]
        totals = [
            max((o - 1) * s + k - n, 0)
            for o, s, k, n in zip(outputs, strides, spans, shape, strict=True)
        ]
        before = [total // 2 for total in totals]
    else:
        outputs = [-(-(n - k + 1) // s) for n, s, k in zip(shape, strides, spans, strict=True)]
        before = [0, 0]
    for place in itertools.product(*map(range, outputs)):
        pairs = []
        for tap in itertools.product(*map(range, window)):
            source = tuple(
                o * s + t * d - b
                for o, s, t, d, b in zip(place, strides, tap, dilations, before, strict=True)
            )
            if all(0 <= i < n for i, n in zip(source, shape, strict=True)):
                pairs.append((tap, source))
        yield place, pairs


def convolve(image, kernel, strides=(1, 1), padding="valid", dilations=(1, 1)):
    """`(h, w, channels)` with `(kh, kw, channels, filters)`, in the dtype of the image."""
    found = list(windows(image.shape[:2], kernel.shape[:2], strides, padding, dilations))
    height, width = (1 + max(place[axis] for place, _ in found) for axis in (0, 1))
    output = np.zeros((height, width, kernel.shape[3]), image.dtype)
    for place, pairs in found:
        for tap, source in pairs:
            output[place] = output[place] + image[source] @ kernel[tap]
    return output


def average(image, window, strides, padding):
    found = list(windows(image.shape[:2], window, strides, padding))
    height, width = (1 + max(place[axis] for place, _ in found) for axis in (0, 1))
    output = np.zeros((height, width, image.shape[2]), image.dtype)
    for place, pairs in found:
        output[place] = sum(image[source] for _, source in pairs) / len(pairs)
    return output


def apply(layer, image):
    """One Keras layer on one image, in float64."""
    if isinstance(layer, (L.Conv2D, L.DepthwiseConv2D)):
        kernel = np.float64(layer.kernel)
        if isinstance(layer, L.DepthwiseConv2D):
            spread = np.zeros((*kernel.shape[:3], kernel.shape[2] * kernel.shape[3]))
            for channel, multiple in np.ndindex(*kernel.shape[2:]):
                target = channel * kernel.shape[3] + multiple
                spread[:, :, channel, target] = kernel[:, :, channel, multiple]
            kernel = spread
        image = convolve(image, kernel, layer.strides, layer.padding) + np.float64(layer.bias)
    elif isinstance(layer, L.AveragePooling2D):
        image = average(image, layer.pool_size, layer.strides, layer.padding)
    elif isinstance(layer, L.GlobalAveragePooling2D):
        image = image.mean(axis=(0, 1), keepdims=layer.keepdims)
    elif isinstance(layer, L.BatchNormalization):
        spread = np.sqrt(np.float64(layer.moving_variance) + np.float64(np.float32(layer.epsilon)))
        image = (image - np.float64(layer.moving_mean)) / spread
        image = image * np.float64(layer.gamma) + np.float64(layer.beta)
    elif isinstance(layer, L.Rescaling):
        image = image * np.float64(np.float32(layer.scale)) + np.float64(np.float32(layer.offset))
    elif isinstance(layer, L.Flatten):
        image = image.reshape(-1)
    elif isinstance(layer, L.Dense):
        image = image @ np.float64(layer.kernel) + np.float64(layer.bias)
    name = layer.activation.__name__ if hasattr(layer, "activation") else "linear"
    return SIGMA[name](image)


def oracle(model, x):
    outputs = []
    for image in np.float64(x):
        for layer in model.layers:
            image = apply(layer, image)
        outputs.append(image)
    return np.array(outputs)


def randomise(model, rng):
    """Every weight its own; kernels of norm about one, so that activations bend."""
    for weight in model.weights:
        value = rng.standard_normal(weight.shape)
        if weight.path.endswith(("variance", "gamma")):
            value = 0.5 + value**2
        elif weight.path.endswith("kernel"):
            value *= 1.5 / np.sqrt(np.prod(weight.shape[:-1]))
        weight.assign(value)
    return model


def architecture(seed):
    """Strides 1–3, windows 1–5, odd sizes, both paddings, unequal channels, norms anywhere."""
    rng = np.random.default_rng(seed)

    def pick(*options):
        return options[rng.integers(len(options))]

    shape = (pick(7, 8, 9), pick(6, 9, 10), pick(1, 2, 3))
    layers = [L.Rescaling(0.8, offset=0.3)] if pick(0, 1) else []
    for filters in (pick(2, 3), pick(4, 5))[: pick(1, 2)]:
        options = {"strides": pick(1, 2, 3), "padding": pick("same", "valid")}
        window = (pick(1, 2, 3, 4, 5), pick(1, 2, 3, 4, 5))
        if len(layers) > 1:
            options["padding"] = "same"  # a valid window may not fit any more
        norm = pick("none", "before", "between", "after")
        layers += [L.BatchNormalization()] if norm == "before" else []
        layers += [L.Conv2D(filters, window, **options)]
        layers += [L.BatchNormalization()] if norm == "between" else []
        layers += [L.Activation(pick("softplus", "sigmoid", "tanh"))]
        layers += [L.BatchNormalization()] if norm == "after" else []
        if pick(0, 1):
            layers += [L.AveragePooling2D(pick(2, 3), strides=pick(1, 2), padding="same")]
    layers += [pick(L.Flatten(), L.GlobalAveragePooling2D())]
    layers += [L.Dense(6, activation="tanh")] if pick(0, 1) else []
    model = keras.Sequential([keras.Input(shape), *layers, L.Dense(3)])
    return randomise(model, rng), rng.standard_normal((4, *shape)).astype(np.float32)


SEEDS = range(12)


def flat(x):
    return np.float64(x.reshape(len(x), -1))


def stack(shape, *layers):
    return lambda: keras.Sequential(
        [keras.Input(shape), *(layer() for layer in layers), L.Dense(3)]
    )
