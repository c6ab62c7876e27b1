"""Measures how tight each curvature bound is, by depth, width, activation and training.

    python benchmarks/curvature_depth.py
    python benchmarks/curvature_depth.py --widths 64,256,1024 --depths 4 --trained_width 0

Networks on scikit-learn's digits (64 inputs, 10 classes): random ones (Keras' Glorot weights), and
ones trained for a few seconds, plainly and with `CurvatureRegularizer`. Each bound of ‖∇²f‖ is held
against theorem 4 and against the largest one met, over examples and Gaussian inputs; both are
geometric means over class pairs. The largest one met is a lower bound: the truth lies between.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keras_curv import CurvatureRegularizer, data
from keras_curv.curvature.signed import signed_bound
from keras_curv.curvature.theorem_4 import theorem4
from keras_curv.network.network import Network

_DEPTHS = flags.DEFINE_list("depths", ["2", "3", "4", "5", "6"], "Affine maps.")
_WIDTHS = flags.DEFINE_list("widths", ["32", "128"], "Of random networks' hidden layers.")
_TRAINED_WIDTH = flags.DEFINE_integer("trained_width", 32, "Of trained networks; 0 for none.")
_ACTIVATIONS = flags.DEFINE_list("activations", ["softplus", "sigmoid", "tanh"], "Which.")
_EPOCHS = flags.DEFINE_integer("epochs", 20, "Of training.")
_GAMMA = flags.DEFINE_float("gamma", 0.01, "Of CurvatureRegularizer.")
_EXAMPLES = flags.DEFINE_integer("examples", 30, "Hessians for each pair, and as many at noise.")
_PAIRS = ((0, 1), (2, 3), (4, 5), (8, 9))


def _base(depth, width, activation):
    hidden = [keras.layers.Dense(width, activation) for _ in range(depth - 1)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def _network(base, activation):
    weights = [weight.astype(np.float64) for weight in base.get_weights()]
    return Network.from_weights(weights[0::2], weights[1::2], activation)


def _trained(base, gamma, x, y):
    model = CurvatureRegularizer(base, gamma=gamma) if gamma else base
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=_EPOCHS.value, verbose=0)
    return base


def _met(network, x):
    """Returns the largest ‖∇²f‖ at the inputs, for each pair."""
    found = []
    for y, t in _PAIRS:
        label, rival = np.full(len(x), y), np.full(len(x), t)
        hessians = network.hessian(tf.constant(x), label, rival).numpy()
        found.append(np.abs(np.linalg.eigvalsh(hessians)).max())
    return np.array(found)


def _bounds(network):
    """Returns each bound of ‖∇²f‖ for each pair: theorem 4, and the signed one."""
    pairs = tuple(np.transpose(_PAIRS))
    bounds = signed_bound(network)
    return [theorem4(network)[pairs], np.maximum(-bounds.lower, bounds.upper)[pairs]]


def _mean(ratio):
    return f"{np.exp(np.mean(np.log(ratio))):.3g}"


def main(argv):
    del argv
    keras.utils.set_random_seed(0)
    x, y = data.load("digits", "train").arrays()
    x = x.reshape(len(x), -1)
    held_out = data.load("digits", "test").arrays()
    examples = held_out[0].reshape(len(held_out[0]), -1)[: _EXAMPLES.value].astype(np.float64)
    noise = np.random.default_rng(0).standard_normal((_EXAMPLES.value, 64))
    inputs = np.concatenate([examples, noise])

    table = Table(title="bounds of ‖∇²f‖: over theorem 4, and over the largest met")
    for name in ("network", "σ", "width", "depth", "accuracy", "met"):
        table.add_column(name, justify="left" if name in ("network", "σ") else "right")
    names = ("theorem 4", "signed")
    for name in [f"{name} / th. 4" for name in names[1:]] + [f"{name} / met" for name in names]:
        table.add_column(name, justify="right")
    trained = [
        ("plain", 0.0, _TRAINED_WIDTH.value),
        (f"γ = {_GAMMA.value:g}", _GAMMA.value, _TRAINED_WIDTH.value),
    ]
    kinds = [("random", None, int(width)) for width in _WIDTHS.value if int(width)]
    for kind, gamma, width in kinds + (trained if _TRAINED_WIDTH.value else []):
        for activation in _ACTIVATIONS.value:
            for depth in map(int, _DEPTHS.value):
                base = _base(depth, width, activation)
                if gamma is not None:
                    _trained(base, gamma, x, y)
                network = _network(base, activation)
                logits = network.logits(held_out[0].reshape(-1, 64).astype(np.float64)).numpy()
                accuracy = np.mean(logits.argmax(axis=1) == held_out[1])
                met, bounds = _met(network, inputs), _bounds(network)
                table.add_row(
                    kind,
                    activation,
                    str(width),
                    str(depth),
                    f"{100 * accuracy:.1f} %" if gamma is not None else "",
                    _mean(met),
                    *(_mean(bound / bounds[0]) for bound in bounds[1:]),
                    *(_mean(bound / met) for bound in bounds),
                )
        table.add_section()
    Console(width=150).print(table)


if __name__ == "__main__":
    app.run(main)
