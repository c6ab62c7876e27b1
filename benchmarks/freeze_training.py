"""Cases of `freeze.py` that are trainings: weights and history after three steps of each kind.

The input is fixed: digits in their order, weights and noise by seeds. The paper's rivals are
trained by their recipes, as the command does.
"""

import functools
import pathlib
import tempfile

import keras
import numpy as np

import keras_curv
from keras_curv import Carry, ClipInput, CRTModel, CRTRegressor, CurvatureRegularizer, Recipe, data

L = keras.layers
BATCH, STEPS = 32, 3
RECIPES = {
    "certified": {},
    "certified_jit": {"jit": True},
    "certified_centre": {"layers": 3, "width": 16, "centre": True},
    "certified_sparse_plus": {"activation": "sparse_plus", "gamma": 0.01, "rivals": 6},
    "certified_clip": {"clip": True, "dead_zone": 0.05},
    "certified_carry": {"layers": 3, "carry": 8, "width": 16},
    "certified_convolutions": {"filters": (4, 6), "kernel_size": 3, "pool": 2, "layers": 1},
    "certified_trunk": {"trunk": 2, "filters": (4,), "kernel_size": 2, "strides": 1, "layers": 1},
    "certified_box": {"box": "0,1"},
    "certified_weight": {"scale": "0.5"},
    "certified_top_2": {"property": "top_2"},
    "certified_harmful": {"property": "harmful:3,8"},
    "certified_small": {"initial_scale": 0.3, "optimizer": "adam", "radius": 1.0},
    "crt": {"loss": "crt", "gamma": 0.01},
    "crt_clip": {"loss": "crt", "clip": True},
    "penalty": {"loss": "penalty"},
    "penalty_sigmoid3": {"loss": "penalty", "layers": 3, "activation": "sigmoid", "width": 16},
    "plain": {"loss": "plain", "activation": "relu"},
    "pgd": {"loss": "pgd", "activation": "relu", "attack_steps": 3},
    "trades": {"loss": "trades", "activation": "relu", "attack_steps": 3},
    "crown_ibp": {"loss": "crown_ibp", "activation": "relu", "layers": 3, "width": 16},
    "coap": {"loss": "coap", "activation": "relu"},
    "coap_projections": {"loss": "coap", "activation": "relu", "layers": 3, "width": 16},
    "noise": {"loss": "noise", "activation": "relu"},
    "noise_attacked": {"loss": "noise", "activation": "relu", "radius": 0.5, "attack_steps": 2},
}


def frozen(model, base, x, y, **options):
    """Returns the weights of the base and the history, after an epoch of a few steps."""
    options = {"batch_size": BATCH, "epochs": 1, "shuffle": False, "verbose": 0} | options
    history = model.fit(x, y, **options).history
    arrays = {f"history/{name}": np.asarray(values) for name, values in history.items()}
    return arrays | {f"weights/{i}": array for i, array in enumerate(base.get_weights())}


def digits():
    x, y = data.load_all("digits", "train")
    return x[: BATCH * STEPS].reshape(-1, 8, 8, 1), y[: BATCH * STEPS]


def by_recipe(fields):
    """A model as the command trains it."""
    x, y = digits()
    recipe = Recipe(**{"width": None if fields.get("layers") == 1 else 24, "jit": False} | fields)
    keras.utils.set_random_seed(recipe.seed)
    base = recipe.build(x.shape[1:], 10)
    return frozen(recipe.model(base, STEPS), base, x, y)


def dense(dim, *layers):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((dim,)), *layers])


def wrapped(wrap, *layers, jit=False, **options):
    """Trains a model of flat digits, wrapped and compiled as a user would, with example weights."""
    x, y = digits()
    x, base = x.reshape(len(x), -1), dense(64, *layers, L.Dense(10))
    model = wrap(base)
    model.compile(keras.optimizers.Adam(0.01), metrics=["accuracy"], jit_compile=jit)
    weight = np.linspace(0.5, 1.5, len(x))
    return frozen(model, base, x, y, sample_weight=weight, **options)


def validated(wrap, *layers):
    """The same, compiled as Keras chooses, and evaluated after the epoch."""
    x, y = digits()
    return wrapped(wrap, *layers, jit="auto", validation_data=(x[:16].reshape(16, -1), y[:16]))


def softplus(units):
    return L.Dense(units, "softplus")


WRAPPED = {
    "certified": lambda: validated(lambda base: CRTModel(base, 0.5), softplus(20)),
    "certified_ramp": lambda: wrapped(
        lambda base: CRTModel(base, 0.5, 0.01, ramp_steps=5, rivals=9, attack_steps=4),
        *(L.Dense(12, "tanh"), L.Dense(10, "tanh")),
    ),
    "certified_carry": lambda: wrapped(
        lambda base: CRTModel(base, 0.3), Carry(softplus(8)), softplus(12)
    ),
    "certified_clip": lambda: wrapped(
        lambda base: CRTModel(base, 0.3), ClipInput(dead_zone=0.1), softplus(12)
    ),
    "certified_trunk": lambda: wrapped(
        lambda base: CRTModel(base, 0.3), L.Dense(24, "relu"), softplus(12)
    ),
    "certified_frozen_weights_box": lambda: wrapped(
        lambda base: CRTModel(base, 0.4, threat=some_threat()), softplus(12)
    ),
    "crt": lambda: wrapped(lambda base: CRTModel(base, 0.5, 0.01, loss="crt"), softplus(20)),
    "crt_box": lambda: wrapped(
        lambda base: CRTModel(base, 0.5, 0.01, loss="crt", threat={"low": 0.0, "high": 1.0}),
        softplus(20),
    ),
    "penalty": lambda: wrapped(lambda base: CurvatureRegularizer(base, 0.05), softplus(20)),
}


def some_threat():
    return {"scale": np.linspace(0.5, 1.5, 64), "frozen": [0, 7, 56], "low": 0.0, "high": 1.0}


def categories():
    """Trains a classifier of one-hot features, of which the attacker may change a group."""
    rng = np.random.default_rng(2)
    colour = np.eye(3)[rng.integers(0, 3, BATCH * STEPS)]
    x = np.concatenate([rng.standard_normal((len(colour), 2)), colour], axis=1).astype("float32")
    base = dense(5, softplus(16), L.Dense(3))
    model = CRTModel(base, 0.4, threat={"groups": [[2, 3, 4]]})
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    return frozen(model, base, x, np.arange(len(x)) % 3)


def regression(**options):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((BATCH * STEPS, 10)).astype("float32")
    base = dense(10, softplus(16), L.Dense(1))
    model = CRTRegressor(base, 0.2, 0.01, **options)
    model.compile(keras.optimizers.Adam(0.01), loss="mse", jit_compile=False)
    return frozen(model, base, x, x[:, 0] ** 2)


REGRESSIONS = {
    "regression": {},
    "regression_interval": {"property": "interval:0.5", "ramp_steps": 5},
    "regression_weights": {"threat": {"scale": np.linspace(0.5, 1.5, 10), "frozen": [1]}},
    "regression_box": {"threat": {"low": -5.0, "high": 5.0}},
}


def whole_run():
    """`train`: augmented images, a held-out part, checkpoints, export; the table of its epochs."""
    fields = {"width": 16, "epochs": 2, "batch_size": 512, "jit": False, "held_out": 0.1}
    augmented = {"shift": 0.5, "mirror": 0.2, "distortion": 0.3}
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "model"
        keras_curv.train(Recipe(**fields, **augmented), str(output), limit=16, certify_every=1)
        kernel = keras_curv.read(str(output)).network.affines[0].kernel
        lines = (output / "history.csv").read_text().splitlines()
        names, *epochs = [line.split(",") for line in lines]
        kept = [i for i, name in enumerate(names) if "second" not in name and "time" not in name]
        history = {names[i]: np.array([epoch[i] for epoch in epochs], float) for i in kept}
    return {"kernel": np.asarray(kernel)} | {f"history/{k}": v for k, v in history.items()}


def cases():
    """All cases of training."""
    for name, fields in RECIPES.items():
        yield f"training/recipe-{name}.npz", functools.partial(by_recipe, fields)
    for name, make in WRAPPED.items():
        yield f"training/model-{name}.npz", make
    yield "training/model-categories.npz", categories
    for name, options in REGRESSIONS.items():
        yield f"training/{name}.npz", functools.partial(regression, **options)
    yield "training/whole_run.npz", whole_run
