"""The models and examples of `freeze.py`: shipped models, and small ones made on the spot.

No data set is needed. Models of MNIST get scikit-learn's digits, enlarged to 28 × 28, models of
CIFAR-10 smooth random images, and small models normal random vectors. The weights of small models
are random numbers of NumPy, seeded by the name of the model; nothing is trained.
"""

import functools
import pathlib
import zlib

import keras
import numpy as np

from keras_curv import Carry, ClipInput, Recipe, data

ROOT = pathlib.Path(__file__).resolve().parent.parent
L = keras.layers
EXAMPLES = 64
examples_at_most = EXAMPLES  # of each model; `--quick` lowers it
SHIPPED = (
    *("digits", "mnist_2x1024", "mnist_clip", "mnist_3x2048", "mnist_conv"),
    *("mnist_sigmoid_2x1024", "cifar10_trunk_512", "diabetes", "breast_cancer"),
)


def chain(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


def residual(activation):
    """Returns a model with a skipped layer behind one that is not."""
    inputs = keras.Input((10,))
    first = L.Dense(12, activation)(inputs)
    both = L.Add()([first, L.Dense(12, activation)(first)])
    return keras.Model(inputs, L.Dense(4)(both))


def two_inputs():
    age, image = keras.Input((2,), name="age"), keras.Input((3, 3, 1), name="image")
    both = L.Concatenate()([L.Dense(4, "tanh")(age), L.Flatten()(image)])
    return keras.Model({"age": age, "image": image}, L.Dense(3)(L.Dense(8, "softplus")(both)))


def kinks():
    layers = L.Dense(12), L.LeakyReLU(negative_slope=0.2), L.Dense(10, "relu6")
    return chain((8,), *layers, L.Dense(8, "hard_sigmoid"), L.Dense(3))


def max_pooling():
    layers = L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(2), L.Flatten()
    return chain((6, 6, 1), *layers, L.Dense(4))


def smooth_convolutions():
    layers = L.Conv2D(4, 3, 2, "same"), L.BatchNormalization(), L.Activation("gelu")
    return chain((8, 8, 2), *layers, L.AveragePooling2D(2), L.Flatten(), L.Dense(4))


def sequence():
    layers = L.SeparableConv1D(5, 3, activation="silu"), L.GlobalAveragePooling1D()
    return chain((9, 3), *layers, L.Dense(3, "softmax"))


def carrying():
    layers = Carry(L.Dense(6, "softplus")), Carry(L.Dense(5, "softplus")), L.Dense(12, "softplus")
    return chain((8,), *layers, L.Dense(4))


def clipping():
    return chain((8,), ClipInput(-1.0, 1.0, 0.05), L.Dense(14, "softplus"), L.Dense(4))


def dense(dim, *layers):
    return chain((dim,), *(L.Dense(*layer) for layer in layers))


def recipe(**fields):
    return Recipe(activation="sparse_plus", **fields).build((8, 8, 1), 10)


SMALL = {
    "relu2": lambda: dense(12, (24, "relu"), (5,)),
    "relu3": lambda: dense(10, (16, "relu"), (12, "relu"), (4,)),
    "sigmoid3": lambda: dense(10, (16, "sigmoid"), (12, "sigmoid"), (4,)),
    "tanh4": lambda: dense(8, (10, "tanh"), (9, "tanh"), (8, "tanh"), (3,)),
    "mixed3": lambda: dense(8, (12, "relu"), (10, "softplus"), (4,)),
    "exponential": lambda: dense(6, (8, "exponential"), (3,)),
    "affine": lambda: dense(6, (4,)),
    "kinks": kinks,
    "max_pooling": max_pooling,
    "smooth_convolutions": smooth_convolutions,
    "sequence": sequence,
    "residual_relu": lambda: residual("relu"),
    "residual_tanh": lambda: residual("tanh"),
    "two_inputs": two_inputs,
    "carrying": carrying,
    "clipping": clipping,
    "sparse_plus3": lambda: recipe(layers=3, width=24),
    "trunk": lambda: recipe(trunk=1, filters=(4,), kernel_size=2, strides=1, pool=2, layers=1),
    "one_score": lambda: dense(7, (12, "softplus"), (1, "sigmoid")),
    "two_numbers": lambda: dense(7, (12, "tanh"), (2,)),
    "shop": lambda: dense(8, (16, "softplus"), (3,)),
    "shop_relu": lambda: dense(8, (16, "relu"), (3,)),
}


def generator(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


@functools.cache
def small(name):
    """Returns the model of that name, with weights of NumPy's numbers."""
    keras.utils.clear_session()  # names of layers are the same, whichever models were made before
    rng, model = generator(name), SMALL[name]()
    model.name = name
    model.set_weights([_numbers(rng, weight) for weight in model.weights])
    return model


def _numbers(rng, weight):
    shape = tuple(weight.shape)
    if weight.name == "moving_variance" or weight.name == "gamma":
        return rng.uniform(0.5, 1.5, shape)
    deviation = 1.5 / np.sqrt(np.prod(shape[:-1])) if len(shape) > 1 else 0.3
    return deviation * rng.standard_normal(shape)


def enlarged(images, side):
    """Enlarges images `(n, h, h, …)` to `(n, side, side, …)` by linear interpolation."""
    place = np.linspace(0.0, images.shape[1] - 1.0, side)
    weights = np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(images.shape[1])))
    return np.einsum("ih,jw,nhw...->nij...", weights, weights, images)


def examples(name):
    """Returns the examples of a model, x and labels; None where it has no labels."""
    x, y = _all_examples(name)
    return x[:examples_at_most], None if y is None else y[:examples_at_most]


@functools.cache
def _all_examples(name):
    if name in ("diabetes", "breast_cancer"):
        with np.load(ROOT / "saved_models" / f"{name}.npz") as arrays:
            return arrays["x"][:EXAMPLES], arrays["y"][:EXAMPLES] if "y" in arrays else None
    if name.startswith("cifar10"):
        coarse = generator("cifar10").standard_normal((EXAMPLES, 6, 6, 3))
        return np.clip(0.5 + 0.25 * enlarged(coarse, 32), 0.0, 1.0).astype(np.float32), None
    if name in SHIPPED:
        x, y = (part[:EXAMPLES] for part in data.load_all("digits"))
        x = x.reshape(-1, 8, 8, 1)
        if name == "digits":
            return x.reshape(-1, *_digits_shape()), y
        framed = np.pad(enlarged(x, 20), ((0, 0), (4, 4), (4, 4), (0, 0)))
        return framed.astype(np.float32), y
    return _random(name), None


def _digits_shape():
    return data.load("digits").shape


def _random(name):
    """Returns inputs of a small model: normal, with two one-hot groups behind those of a shop."""
    rng, model = generator(f"{name}, inputs"), small(name)
    if name == "two_inputs":
        return rng.standard_normal((EXAMPLES, 11)).astype(np.float32)
    x = rng.standard_normal((EXAMPLES, *model.input_shape[1:])).astype(np.float32)
    if name.startswith("shop"):
        x[:, 3:6], x[:, 6:8] = (
            np.eye(3)[rng.integers(0, 3, EXAMPLES)],
            np.eye(2)[rng.integers(0, 2, EXAMPLES)],
        )
    return x


def model_of(name):
    """Returns the argument of `certify`: a path from the root of the checkout, or a live model."""
    return small(name) if name in SMALL else f"saved_models/{name}"
