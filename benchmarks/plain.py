"""The model of a benchmark: a SavedModel, or a net that is trained plainly on the spot.

`--saved_model DIR`, or `--plain ACTIVATION` with `--layers`, `--width` and `--epochs`, or
`--residual FILTERS`, `--convnet`, `--strided`, `--skip` or `--isometric`, with `--epochs`: Keras,
Adam at 1e-3, batches of 64, seed 0, no defence but of the last, whose layers keep lengths.
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
_SKIP = flags.DEFINE_bool(
    "skip", False, "A small convolutional net with one residual block and max pooling, likewise."
)
_ISOMETRIC = flags.DEFINE_bool(
    "isometric", False, "256-256 relu with orthogonal kernels, likewise; softmax of 16 × logits."
)
_TRAINED_ON = flags.DEFINE_integer("trained_on", None, "Images, the first ones; default: all.")
_EPOCHS = flags.DEFINE_integer("epochs", 3, "Of the plain net.")


def model_and_examples():
    """Returns what to certify (a directory, or a Keras model), its name, and the examples."""
    examples = data.load(_DATASET.value, _SPLIT.value).limited(_LIMIT.value)
    others = (_CONVNET, _STRIDED, _SKIP, _ISOMETRIC)
    if _PLAIN.value is None and _RESIDUAL.value is None and not any(o.value for o in others):
        return _MODEL.value, _MODEL.value, examples
    x, y = training_set()
    keras.utils.set_random_seed(0)
    if _CONVNET.value:
        model, name = convnet(x.shape[1:]), "convolutional net of Keras's example"
    elif _STRIDED.value:
        model, name = strided(x.shape[1:]), "16 and 32 strided filters, 100 units, relu"
    elif _SKIP.value:
        model, name = skip(x.shape[1:]), "8 filters, one residual block, relu"
    elif _ISOMETRIC.value:
        model, name = isometric(x.shape[1:]), "256-256 relu, orthogonal kernels"
    elif _RESIDUAL.value:
        model, name = residual(x.shape[1:], _RESIDUAL.value), f"residual, {_RESIDUAL.value} filters"
    else:
        hidden = [keras.layers.Dense(_WIDTH.value, _PLAIN.value) for _ in range(_LAYERS.value - 1)]
        model = keras.Sequential(
            [keras.Input(x.shape[1:]), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)]
        )
        name = f"{_LAYERS.value} × {_WIDTH.value} {_PLAIN.value}"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if _ISOMETRIC.value:  # margins are small, and their gradients would be
        model.compile(keras.optimizers.Adam(1e-3), lambda y, logits: loss(y, 16.0 * logits))
    else:
        model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(x, y, batch_size=64, epochs=_EPOCHS.value, verbose=0)
    return model, f"plain {name}, {_EPOCHS.value} epochs", examples


def training_set():
    """Returns the images and labels that nets are trained on."""
    found = data.load(_DATASET.value, "train")
    return (found if _TRAINED_ON.value is None else found.limited(_TRAINED_ON.value)).arrays()


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


class Orthogonal(keras.constraints.Constraint):
    """Keeps the columns of a kernel orthonormal, by two steps of Newton–Schulz."""

    def __call__(self, kernel):
        for _ in range(2):
            gram = keras.ops.transpose(kernel) @ kernel
            kernel = 1.5 * kernel - 0.5 * kernel @ gram
        return kernel


def isometric(shape):
    """Returns 256-256 with orthonormal columns in all kernels: no layer lengthens anything."""
    layers = keras.layers
    kept = {"kernel_initializer": "orthogonal", "kernel_constraint": Orthogonal()}
    hidden = [layers.Dense(256, "relu", **kept) for _ in range(2)]
    return keras.Sequential(
        [keras.Input(shape), layers.Flatten(), *hidden, layers.Dense(10, **kept)]
    )


def skip(shape):
    """Returns a strided convolution, a residual block, max pooling and a dense layer."""
    layers = keras.layers
    inputs = keras.Input(shape)
    x = layers.Conv2D(8, 4, strides=2, padding="same", activation="relu")(inputs)
    inner = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    inner = layers.Conv2D(8, 3, padding="same")(inner)
    x = layers.MaxPooling2D(2)(layers.ReLU()(layers.Add()([x, inner])))
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


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
