"""Small Keras models whose graphs branch: residual, dense and mobile nets, maxima and joins."""

from __future__ import annotations

import keras
from keras_oracle import randomize

L = keras.layers
IMAGE, SEQUENCE, VECTOR = (6, 5, 2), (7, 2), (5,)


def _of(shape, body, classes=3):
    def build():
        given = keras.Input(shape)
        return randomize(keras.Model(given, L.Dense(classes)(body(given))))

    return build


def _residual(activation):
    def body(x):
        h = L.Dense(5, activation)(x)
        h = L.Add()([x, L.Dense(5, activation)(h)])
        return L.Subtract()([h, L.Dense(5, activation)(h)])

    return body


def _normalized(x, filters, size=3, strides=1):
    x = L.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return L.BatchNormalization()(x)


def _resnet(activation):
    def body(x):
        h = L.Activation(activation)(_normalized(x, 3))
        inner = L.Activation(activation)(_normalized(h, 3))
        h = L.Activation(activation)(L.Add()([h, _normalized(inner, 3)]))
        inner = L.Activation(activation)(_normalized(h, 4, strides=2))
        shortcut = _normalized(h, 4, 1, 2)
        h = L.Activation(activation)(L.Add()([shortcut, _normalized(inner, 4)]))
        return L.GlobalAveragePooling2D()(h)

    return body


def _densenet(x):
    h = L.Conv2D(2, 3, padding="same")(x)
    for _ in range(2):
        inner = L.ReLU()(L.BatchNormalization()(h))
        h = L.Concatenate()([h, L.Conv2D(2, 3, padding="same")(inner)])
    h = L.Conv2D(3, 1)(L.ReLU()(h))
    return L.Flatten()(L.AveragePooling2D(2)(h))


def _mobilenet(x):
    h = L.ReLU(max_value=6)(_normalized(x, 4, strides=2))
    inner = L.Conv2D(6, 1, use_bias=False)(h)
    inner = L.ReLU(max_value=6)(L.BatchNormalization()(inner))
    inner = L.DepthwiseConv2D(3, padding="same", use_bias=False)(inner)
    inner = L.ReLU(max_value=6)(L.BatchNormalization()(inner))
    inner = L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(inner))
    return L.GlobalAveragePooling2D()(L.Add()([h, inner]))


def _inception(x):
    narrow = L.Conv2D(2, 1, activation="relu")(x)
    wide = L.Conv2D(2, 3, padding="same", activation="relu")(narrow)
    pooled = L.MaxPooling2D(2, strides=1, padding="same")(x)
    return L.Flatten()(L.AveragePooling2D(2)(L.Concatenate()([narrow, wide, pooled])))


def _pooled(pool):
    return lambda x: L.Flatten()(pool(L.Conv2D(3, 3, activation="relu")(x)))


def _pooled_1d(pool):
    return lambda x: L.Flatten()(pool(L.Conv1D(3, 3, activation="tanh")(x)))


def _extreme(join):
    def body(x):
        return join([L.Dense(4)(x), L.Dense(4, "relu")(x), L.Dense(4, "tanh")(x)])

    return body


def _joined(x):
    h = L.Dense(4, "softplus")(x)
    return L.Dense(4, "tanh")(L.Concatenate()([x, h, L.Dense(3, "sigmoid")(h)]))


def _halves(x):
    return L.Concatenate()([L.Dense(3, "tanh")(x[:, :2]), x[:, 2:], L.Dense(2, "selu")(x[:, 1:4])])


def _split(x):
    narrow, wide = keras.ops.split(L.Dense(6, "tanh")(x), [2], axis=1)
    first, second = keras.ops.split(wide, 2, axis=1)
    return L.Concatenate()([narrow, first - second, L.Dense(2, "softplus")(second)])


def _maxout(x):
    h = L.Reshape((3, 4))(L.Dense(12)(x))
    return keras.ops.max(h, axis=1)


BRANCHING = {
    "residual, tanh": _of(VECTOR, _residual("tanh")),
    "residual, relu": _of(VECTOR, _residual("relu")),
    "resnet, relu": _of(IMAGE, _resnet("relu")),
    "resnet, softplus": _of(IMAGE, _resnet("softplus")),
    "densenet": _of((4, 4, 2), _densenet),
    "mobilenet": _of((6, 6, 2), _mobilenet),
    "inception": _of((4, 4, 2), _inception),
    "max pooling": _of(IMAGE, _pooled(L.MaxPooling2D(2))),
    "max pooling, same": _of(IMAGE, _pooled(L.MaxPooling2D(3, strides=2, padding="same"))),
    "max pooling 1d": _of(SEQUENCE, _pooled_1d(L.MaxPooling1D(2))),
    "global max pooling": _of(IMAGE, _pooled(L.GlobalMaxPooling2D())),
    "global max pooling 1d": _of(SEQUENCE, _pooled_1d(L.GlobalMaxPooling1D())),
    "maximum": _of(VECTOR, _extreme(L.Maximum())),
    "minimum": _of(VECTOR, _extreme(L.Minimum())),
    "average": _of(VECTOR, _extreme(L.Average())),
    "split": _of(VECTOR, _split),
    "maxout": _of(VECTOR, _maxout),
    "prelu": _of(VECTOR, lambda x: L.PReLU()(L.Dense(4)(x))),
    "prelu, shared": _of(
        IMAGE, lambda x: L.Flatten()(L.PReLU(shared_axes=[1, 2])(L.Conv2D(3, 3)(x)))
    ),
    "joined": _of(VECTOR, _joined),
    "halves": _of(VECTOR, _halves),
    "groups": _of(IMAGE, lambda x: L.Flatten()(L.Conv2D(4, 2, groups=2, activation="relu")(x))),
}
