"""Models that a live network cannot follow are refused by name."""

import keras
import pytest

from keras_curv.errors import InputError
from keras_curv.network.activations import SMOOTH
from keras_curv.training.trainable.graph.calls import Call
from keras_curv.training.trainable.graph.reading import output_of
from keras_curv.training.trainable.trainable_network import LiveNetwork

L = keras.layers


def _sequential(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


class OwnDense(L.Dense):
    def call(self, inputs):
        return keras.ops.relu(super().call(inputs))


class OwnModel(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return keras.ops.relu(super().call(inputs) + 1e3) - 1e3


def _branched(join):
    inputs = keras.Input((4,))
    hidden = L.Dense(4, "tanh")(inputs)
    return keras.Model(inputs, L.Dense(3)(join(inputs, hidden)))


def _with(function):
    """A bare operation between layers."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(3)(function(L.Dense(5, "tanh")(inputs))))


def _two_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, L.Dense(3)(L.Add()(inputs)))


def _two_outputs():
    inputs = keras.Input((4,))
    return keras.Model(inputs, [L.Dense(3)(inputs), L.Dense(3)(inputs)])


REFUSED = {
    "max pooling": (
        lambda: _sequential((4, 4, 1), L.MaxPooling2D(2, name="third"), L.Flatten(), L.Dense(3)),
        r"layer 'third' \(MaxPooling2D\).*; MaxPooling2D → AveragePooling2D, .*smoothed",
    ),
    # As exported by Keras they stay random: no server gives such a model's answer twice.
    "augmentation": (
        lambda: _sequential((4, 4, 1), L.RandomFlip(name="third"), L.Flatten(), L.Dense(3)),
        r"layer 'third' \(RandomFlip\).*; augment the data before the model; .*smoothed",
    ),
    "upsampling by an interpolation": (
        lambda: _sequential(
            (4, 4, 1),
            L.UpSampling2D(2, interpolation="bilinear", name="third"),
            L.Flatten(),
            L.Dense(3),
        ),
        r"layer 'third' \(UpSampling2D\) with interpolation='bilinear'.* it reads .*nearest",
    ),
    "subclass of Dense": (
        lambda: _sequential((4,), OwnDense(5, name="mine"), L.Dense(3)),
        r"layer 'mine' \(OwnDense\).*docs/methods.md#training$",
    ),
    "subclass of Sequential": (
        lambda: OwnModel([keras.Input((4,)), L.Dense(5, "tanh"), L.Dense(3)], name="mine"),
        r"`call` of its own in 'mine' \(OwnModel\)",
    ),
    "subclass inside": (
        lambda: _sequential((4,), OwnModel([L.Dense(5)], name="mine"), L.Dense(3)),
        r"`call` of its own in 'mine' \(OwnModel\)",
    ),
    "relu": (
        lambda: _sequential((4,), L.Dense(5, "relu", name="third"), L.Dense(3)),
        r"activation 'relu' in layer 'third'.*; relu → gelu, .*smoothed\(model\) puts there$",
    ),
    "relu layer": (
        lambda: _sequential((4,), L.Dense(5), L.ReLU(name="third"), L.Dense(3)),
        r"layer 'third' \(ReLU\).*; ReLU → Activation\('gelu'\), .*smoothed\(model\)",
    ),
    "function of one's own": (
        lambda: _sequential((4,), L.Dense(5, lambda z: z), L.Dense(3)),
        "activation '<lambda>'.*supported: softplus, sigmoid, tanh",
    ),
    "softmax": (
        lambda: _sequential((4,), L.Dense(5, "tanh"), L.Dense(3, "softmax", name="third")),
        "activation 'softmax' in layer 'third'.*leave the softmax out",
    ),
    "softmax layer": (
        lambda: _sequential((4,), L.Dense(3), L.Softmax(name="third")),
        r"layer 'third' \(Softmax\).*must return logits: leave it out",
    ),
    "activation at the end": (
        lambda: _sequential((4,), L.Dense(5, "tanh"), L.Dense(3, "sigmoid")),
        "ends with the activation 'sigmoid'",
    ),
    "one logit": (
        lambda: _sequential((4,), L.Dense(5, "tanh"), L.Dense(1)),
        r"at least two classes; CRTRegressor .* Received: \(None, 1\)",
    ),
    "logits of rank three": (
        lambda: _sequential((2, 4), L.Dense(5, "tanh"), L.Dense(3)),
        r"Received: \(None, 2, 3\)",
    ),
    "two inputs": (_two_inputs, "one input and one output. Received: 2 inputs, 1 outputs"),
    "two outputs": (_two_outputs, "one input and one output. Received: 1 inputs, 2 outputs"),
    "unknown shape": (
        lambda: _sequential((None, 4), L.Dense(5, "tanh"), L.Dense(3)),
        r"must know its input shape.*\(None, None, 4\)",
    ),
    "integer input": (
        lambda: keras.Sequential(
            [keras.Input((4,), dtype="uint8"), L.Rescaling(1 / 255), L.Dense(5, "tanh"), L.Dense(3)]
        ),
        "must take floats. Received: uint8",
    ),
    "not built": (lambda: keras.Sequential([L.Dense(3)]), "built Keras model.*give it an Input"),
    "a layer": (lambda: L.Dense(3), "built Keras model.*Dense"),
    "not from Keras": (lambda: "digits.keras", "built Keras model.*digits.keras"),
    "nothing": (lambda: None, "built Keras model.*None"),
    "channels first": (
        lambda: _sequential(
            (4, 4, 2), L.Flatten(data_format="channels_first", name="third"), L.Dense(3)
        ),
        r"layer 'third' \(Flatten\) with data_format='channels_first'.* it reads .*last",
    ),
    "maximum": (
        lambda: _branched(lambda a, b: L.Maximum(name="third")([a, b])),
        r"layer 'third' \(Maximum\).*; Maximum → Average$",
    ),
    "product": (
        lambda: _branched(lambda a, b: L.Multiply(name="third")([a, b])),
        r"layer 'third' \(Multiply\).*certified, but not trained: Add, ",
    ),
    "sum with a constant": (lambda: _branched(lambda a, b: b + 1.0), r"\(Add\) of a constant"),
    "batches put together": (
        lambda: _branched(lambda a, b: L.Concatenate(axis=0, name="third")([a, b])),
        r"layer 'third' \(Concatenate\) of batches",
    ),
    "sum that is broadcast": (
        lambda: _branched(lambda a, b: L.Add(name="third")([L.Dense(1)(a), b])),
        r"layer 'third' \(Add\) of examples of shapes \[\(1,\), \(4,\)\]",
    ),
    "operation that data seldom meet": (
        lambda: _with(lambda z: keras.ops.clip(z, -1e6, 1e6)),
        "'clip' .Clip.",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_by_name(name):
    build, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        LiveNetwork(build())
    assert "\n" not in str(caught.value)


def test_a_layer_takes_one_value():
    """The second one may be a mask."""
    with pytest.raises(InputError, match=r"'third' \(BatchNormalization\) 2 outputs of layers"):
        output_of([Call(L.BatchNormalization(name="third"), (0, 0))], (4,), SMOOTH)
