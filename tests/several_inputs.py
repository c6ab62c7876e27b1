"""Keras models of several inputs, the order of whose names is not that in which they are given."""

from __future__ import annotations

import keras
import numpy as np

L = keras.layers


def _of(build, **shapes):
    def made():
        given = [keras.Input(shape, name=name) for name, shape in shapes.items()]
        model = build(*given)
        rng = np.random.default_rng(11)
        model.set_weights([0.7 * rng.standard_normal(w.shape) for w in model.get_weights()])
        return model

    return made


def _joined(a, b):
    hidden = L.Dense(6, "tanh")(L.Concatenate()([b, a]))
    return keras.Model([a, b], L.Dense(3)(hidden))


def _branches(a, b):
    hidden = L.Add()([L.Dense(5, "softplus")(a), L.Dense(5, "tanh")(b)])
    return keras.Model([a, b], L.Dense(4)(hidden))


def _image(image, vector):
    seen = L.Flatten()(L.Conv2D(2, 3, activation="softplus")(image))
    hidden = L.Dense(5, "sigmoid")(L.Concatenate()([seen, vector]))
    return keras.Model([image, vector], L.Softmax()(L.Dense(3)(hidden)))


def _three(c, a, b):
    hidden = L.Add()([L.Dense(4, "tanh")(c), L.Subtract()([a, L.Dense(4)(b)])])
    return keras.Model([c, a, b], L.Dense(3)(L.Activation("softplus")(hidden)))


def _by_name(left, right):
    """Keras takes them as a mapping, in which the one that is named last comes first."""
    hidden = L.Dense(5, "tanh")(L.Concatenate()([right, L.Flatten()(left)]))
    return keras.Model({"right": right, "left": left}, L.Dense(3)(hidden))


def _nested(i10, i9, last):
    """As Python sorts names, "i10" is before "i9"."""
    hidden = L.Dense(5, "tanh")(L.Concatenate()([i9, last, i10]))
    return keras.Model([i10, [i9, last]], L.Dense(3)(hidden))


def _same_shape(z, a):
    """Nothing but their names tells them apart."""
    return keras.Model([z, a], L.Dense(3)(L.Activation("tanh")(L.Subtract()([z, a]))))


def _unread(used, unused):
    hidden = L.Add()([L.Dense(5, "tanh")(used), L.Lambda(lambda v: v[:, :1] * 0.0)(unused)])
    return keras.Model([used, unused], L.Dense(3)(hidden))


MODELS = {
    "joined": _of(_joined, zeta=(2,), alpha=(3,)),
    "branches": _of(_branches, b=(4,), a=(2,)),
    "an image and a vector": _of(_image, pixels=(5, 4, 2), age=(3,)),
    "three": _of(_three, c=(3,), a=(4,), b=(2,)),
    "by name": _of(_by_name, left=(2, 2), right=(3,)),
    "nested": _of(_nested, i10=(2,), i9=(3,), Last=(1,)),
    "of one shape": _of(_same_shape, z=(4,), a=(4,)),
    "one without effect": _of(_unread, used=(3,), unused=(2,)),
}


def examples_of(model, count=4, seed=3):
    """Random examples, name → array."""
    rng = np.random.default_rng(seed)
    return {
        each.name: rng.normal(size=(count, *each.shape[1:])).astype(np.float32)
        for each in model.inputs
    }


def by_hand(x):
    """One vector an example, in the order of names."""
    return np.concatenate([x[name].reshape(len(x[name]), -1) for name in sorted(x)], axis=1)
