"""Trains the two tabular examples: a regression and a classifier, on raw units of their features.

    python benchmarks/tabular.py

Writes `saved_models/diabetes`, `saved_models/breast_cancer`, and beside each an .npz file of its
test examples and a .json file of its threat. The data are scikit-learn's own copies: Efron, Hastie,
Johnstone & Tibshirani (2004), "Least angle regression"; Wolberg, Mangasarian, Street & Street
(1993), "Breast cancer Wisconsin (diagnostic)".
"""

import json
import pathlib

import keras
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes

from keras_curv import CRTRegressor, Property, Threat, certify

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "saved_models"
WIDTH = 16
DECAY = 3e-3
SEEDS = (0, 1, 2)


def split(x, y):
    """Puts every fifth example aside for testing."""
    test = np.arange(len(x)) % 5 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def trained(x, y, outputs, loss, epochs, seed=0, threat=None, radius=None):
    """Trains two layers on standardised features, in a model that takes raw ones.

    With a radius, for a threat to raw features, the loss is that of the ends of proved intervals.
    """
    keras.utils.set_random_seed(seed)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    offset, unit = (y.mean(), y.std()) if outputs == 1 else (0.0, 1.0)
    decay = keras.regularizers.L2(DECAY)
    layers = [
        keras.layers.Dense(WIDTH, "softplus", kernel_regularizer=decay),
        keras.layers.Dense(outputs, kernel_regularizer=decay),
    ]
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    learner = model
    if radius is not None:
        standardised = Threat(scale=np.array(threat["scale"]) / deviation, frozen=threat["frozen"])
        learner = CRTRegressor(model, radius, threat=standardised, ramp_steps=500)
    learner.compile(keras.optimizers.Adam(1e-2), loss)
    learner.fit(
        (x - mean) / deviation, (y - offset) / unit, epochs=epochs, batch_size=32, verbose=0
    )
    kernel, bias = layers[0].get_weights()
    layers[0].set_weights([kernel / deviation[:, None], bias - (mean / deviation) @ kernel])
    kernel, bias = layers[1].get_weights()
    layers[1].set_weights([kernel * unit, bias * unit + offset])
    return model


def write(name, model, arrays, threat):
    model.export(FOLDER / name, verbose=False)
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    (FOLDER / f"{name}_threat.json").write_text(json.dumps(threat) + "\n")


def diabetes():
    """Trains on the progression of diabetes; exact features are frozen, others have a tolerance."""
    bunch = load_diabetes(scaled=False)
    (x, y), (x_test, y_test) = split(bunch.data.astype(np.float32), bunch.target.astype(np.float32))
    # bmi by 0.1 kg/m², pressure by 3 mmHg, serum values by 3 % of their mean.
    scale = [1.0, 1.0, 0.1, 3.0, *np.round(0.03 * x[:, 4:].mean(axis=0), 3).tolist()]
    threat = {"scale": [round(s, 3) for s in scale], "frozen": [0, 1]}
    print(f"diabetes: standard deviation {y.std():.1f}")
    for seed in SEEDS:
        for radius in (None, 1.0):
            model = trained(x, y, 1, "mse", 150, seed, threat, radius)
            error = np.abs(model.predict(x_test, verbose=0)[:, 0] - y_test).mean()
            print(f"seed {seed}, radius {radius}: mean absolute error {error:.1f}", end="")
            for tau in (5.0, 10.0, 20.0):
                held = certify(model, x_test, threat=threat, property=Property.interval(tau))
                print(f", within {tau:g}: {np.mean(held.radius > 1.0):.1%}", end="")
            print()
            if seed == 0 and radius is not None:
                write("diabetes", model, {"x": x_test}, threat)


def breast_cancer():
    """Trains malignant (0) or benign (1), from measures of cells, none of which is negative."""
    bunch = load_breast_cancer()
    (x, y), (x_test, y_test) = split(bunch.data.astype(np.float32), bunch.target)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = trained(x, y, 2, loss, 60)
    right = model.predict(x_test, verbose=0).argmax(axis=1) == y_test
    print(f"breast cancer: {right.mean():.1%} right")
    scale = [float(f"{s:.3g}") for s in 0.1 * x.std(axis=0)]
    arrays = {"x": x_test, "y": y_test.astype(np.int64)}
    write("breast_cancer", model, arrays, {"scale": scale, "low": 0.0})


if __name__ == "__main__":
    diabetes()
    breast_cancer()
