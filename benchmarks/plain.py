"""The model of a benchmark: a SavedModel, or a net that is trained plainly on the spot.

`--saved_model DIR`, or `--plain ACTIVATION` with `--layers`, `--width` and `--epochs`, or
`--residual FILTERS`, `--convnet` or `--strided`, with `--epochs`: Keras, Adam at 1e-3, batches of
64, seed 0, no defence.
"""

import pathlib

import keras
from absl import flags

from keras_curv import data

ROOT = pathlib.Path(__file__).resolve().parent.parent

_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models" / "digits"), "SavedModel.")
_DATASET = flags.DEFINE_string("dataset", "digits", "As for bin/certify.")
_SPLIT = flags.DEFINE_string("split", "test", "Of the data set.")
_LIMIT = flags.DEFINE_integer("limit", 1000, "Examples, the first of the split.")
_PLAIN = flags.DEFINE_string("plain", None, "Activation of a net to train plainly instead.")
_LAYERS = flags.DEFINE_integer("layers", 2, "Of the plain net.")
_WIDTH = flags.DEFINE_integer("width", 1024, "Of the plain net.")
_RESIDUAL = flags.DEFINE_integer(
    "residual", None, "Filters of a residual convolutional ReLU net to train plainly instead."
)
_CONVNET = flags.DEFINE_bool(
    "convnet",
    False,
    "The convolutional net of Keras's example for MNIST, to train plainly instead.",
)
_STRIDED = flags.DEFINE_bool(
    "strided", False, "A net of two strided convolutions and a dense layer, to train plainly."
)
_EPOCHS = flags.DEFINE_integer("epochs", 3, "Of the plain net.")


def model_and_examples():
    """Returns what to certify (a directory, or a Keras model), its name, and the examples."""
    examples = data.load(_DATASET.value, _SPLIT.value).limited(_LIMIT.value)
    convolutional = _RESIDUAL.value is not None or _CONVNET.value or _STRIDED.value
    if _PLAIN.value is None and not convolutional:
        return _MODEL.value, _MODEL.value, examples
    x, y = data.load(_DATASET.value, "train").arrays()
    keras.utils.set_random_seed(0)
    if _CONVNET.value:
        model, name = convnet(x.shape[1:]), "convolutional net of Keras's example"
    elif _STRIDED.value:
        model, name = strided(x.shape[1:]), "16 and 32 strided filters, 100 units, relu"
    elif _RESIDUAL.value:
        model, name = residual(x.shape[1:], _RESIDUAL.value), f"residual, {_RESIDUAL.value} filters"
    else:
        hidden = [keras.layers.Dense(_WIDTH.value, _PLAIN.value) for _ in range(_LAYERS.value - 1)]
        model = keras.Sequential(
            [keras.Input(x.shape[1:]), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)]
        )
        name = f"{_LAYERS.value} × {_WIDTH.value} {_PLAIN.value}"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(x, y, batch_size=64, epochs=_EPOCHS.value, verbose=0)
    return model, f"plain {name}, {_EPOCHS.value} epochs", examples


def convnet(shape):
    """Returns the net of `keras.io/examples/vision/mnist_convnet`, ending in logits."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def strided(shape):
    """Returns two convolutions of 4 × 4 with stride 2 and a dense layer, all with relu."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(16, 4, strides=2, activation="relu"),
            layers.Conv2D(32, 4, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(100, activation="relu"),
            layers.Dense(10),
        ]
    )


def residual(shape, filters):
    """Returns a convolution and three residual blocks with batch normalisation."""
    layers = keras.layers

    def convolved(x, filters, size, strides=1):
        x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input(shape)
    x = layers.ReLU()(convolved(inputs, filters, 3))
    for scale, strides in ((1, 1), (2, 2), (4, 2)):
        inner = layers.ReLU()(convolved(x, scale * filters, 3, strides))
        inner = convolved(inner, scale * filters, 3)
        x = x if strides == 1 else convolved(x, scale * filters, 1, strides)
        x = layers.ReLU()(layers.Add()([x, inner]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))
