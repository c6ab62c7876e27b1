"""Models that Keras saved to one file are read as what `load_model(...).predict` computes."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_oracle import examples, randomize

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.keras_file.graph import Place
from keras_curv.reading import served_model
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.clip_input import ClipInput
from keras_curv.training.trainable.keras_functions import absolute, gelu_tanh, sin
from keras_curv.training.trainable.pooling import TrainedAveragePooling2D

ENDINGS = (".keras", ".h5")
# Of float32 execution by TensorFlow, against float64 of the network that was read.
TOLERANCE = 2e-5

pytestmark = pytest.mark.filterwarnings("ignore")


def given_weights(model, seed=3):
    rng = np.random.default_rng(seed)
    model.set_weights(
        [(0.1 + np.abs(0.4 * rng.normal(size=w.shape))).astype(w.dtype) * _signs(rng, w)
         for w in model.get_weights()]
    )  # fmt: skip
    return model


def _signs(rng, weight):
    """Of kernels; variances stay positive."""
    return rng.choice([-1, 1], weight.shape).astype(weight.dtype) if weight.ndim > 1 else 1


def chain(library, shape, *layers):
    model = library.Sequential([library.layers.InputLayer(shape), *layers])
    return given_weights(model)


def cnn(library):
    L = library.layers
    return chain(
        library, (8, 8, 1), L.Conv2D(4, 3, activation="relu"), L.BatchNormalization(),
        L.MaxPooling2D(2), L.Dropout(0.3), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3),
    )  # fmt: skip


def branches(library):
    """Two branches, a chain as a layer, a softmax at the end."""
    L = library.layers
    image = library.Input((6, 6, 2), name="image")
    x = L.BatchNormalization()(L.Conv2D(3, 3, padding="same", activation="softplus")(image))
    chained = library.Sequential([L.InputLayer((3,)), L.Dense(5, "tanh")], name="chained")
    both = [L.Flatten()(x), chained(L.GlobalAveragePooling2D()(x))]
    logits = L.Dense(3)(L.Concatenate()(both))
    return given_weights(library.Model(image, L.Softmax()(logits)))


def several_inputs(library):
    L = library.layers
    age, image = library.Input((3,), name="age"), library.Input((4,), name="image")
    x = L.Add()([L.Dense(4, "tanh")(age), L.Dense(4)(image)])
    return given_weights(library.Model([age, image], L.Dense(3)(L.Maximum()([x, image]))))


def nested(library):
    """A functional model within, of which each layer trains otherwise."""
    L = library.layers
    inside = library.Input((4,), name="inside")
    x = L.BatchNormalization(name="n")(L.Dense(4, "tanh", name="d")(inside))
    part = library.Model(inside, L.Dense(4, name="e")(x), name="part")
    part.layers[1].trainable = False
    x = library.Input((4,), name="x")
    return given_weights(library.Model(x, L.Dense(3)(part(L.Dense(4, "softplus")(x)))))


def shared(library):
    """Layers, and a chain of them, that are called twice."""
    L = library.layers
    x = library.Input((4,), name="x")
    dense = L.Dense(4, "tanh")
    return given_weights(library.Model(x, L.Dense(3)(dense(L.Activation("softplus")(dense(x))))))


def frozen(library):
    L = library.layers
    layers = [L.Dense(5), L.BatchNormalization(), L.Dense(4), L.BatchNormalization()]
    part = library.Sequential([L.InputLayer((4,)), *layers], name="part")
    part.trainable = False
    return chain(library, (4,), part, L.Dense(5, "tanh"), L.BatchNormalization(), L.Dense(3))


def images(library):
    L = library.layers
    return chain(
        library, (6, 6, 2), L.SeparableConv2D(3, 2, activation="relu"),
        L.DepthwiseConv2D(2, depth_multiplier=2), L.Conv2DTranspose(2, 2, strides=2),
        L.ZeroPadding2D(1), L.Cropping2D(((0, 1), (1, 0))), L.UpSampling2D(2),
        L.AveragePooling2D(2), L.GlobalAveragePooling2D(), L.Dense(3),
    )  # fmt: skip


def sequences(library):
    L = library.layers
    return chain(
        library, (8, 2), L.Conv1D(4, 3, padding="same", groups=2), L.PReLU(),
        L.AveragePooling1D(2), L.Conv1D(4, 2, padding="causal", dilation_rate=2), L.LeakyReLU(),
        L.ELU(), L.Permute((2, 1)), L.Reshape((-1,)), L.Dense(3),
    )  # fmt: skip


def normalized(library):
    L = library.layers
    return chain(
        library, (3, 4), L.Dense(4, "tanh"), L.LayerNormalization(), L.GroupNormalization(2),
        L.UnitNormalization(), L.Flatten(), L.Dense(3),
    )  # fmt: skip


def recurrent(library):
    L = library.layers
    return chain(
        library, (3, 2), L.LSTM(3, unroll=True, return_sequences=True),
        L.SimpleRNN(3, unroll=True, return_sequences=True), L.GRU(3, unroll=True), L.Dense(3),
    )  # fmt: skip


def both_ways(library):
    L = library.layers
    backward = L.GRU(2, unroll=True, go_backwards=True, return_sequences=True)
    forward = L.SimpleRNN(2, unroll=True, return_sequences=True)
    return chain(
        library, (2, 2), L.Bidirectional(L.LSTM(2, unroll=True, return_sequences=True)),
        L.Bidirectional(forward, merge_mode="mul", backward_layer=backward), L.Flatten(),
        L.Dense(3),
    )  # fmt: skip


def vectors(library):
    L = library.layers
    return chain(
        library, (2,), L.Rescaling(0.5, offset=[1.0, 2.0]), L.Dense(4), L.Activation("softplus"),
        L.GaussianNoise(0.1), L.ReLU(max_value=3.0), L.ActivityRegularization(0.1),
        L.Dense(4, use_bias=False), L.BatchNormalization(scale=False), L.RepeatVector(2),
        L.Flatten(), L.Dense(2, kernel_regularizer="l2", kernel_constraint="max_norm"),
    )  # fmt: skip


def adapted(library):
    layer = library.layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(1.0, 3.0, (20, 4)).astype(np.float32))
    dense = library.layers.Dense
    return library.Sequential([library.layers.InputLayer((4,)), layer, dense(5, "tanh"), dense(3)])


def trained(library):
    model = cnn(library)
    model.compile("adam", "mse", metrics=["accuracy"], run_eagerly=True)
    model.fit(np.zeros((4, 8, 8, 1)), np.zeros((4, 3)), verbose=0)
    return model


MODELS = (cnn, branches, several_inputs, nested, shared, frozen, images, sequences, vectors,
          adapted, trained, normalized, recurrent, both_ways)  # fmt: skip
LIBRARIES = {"keras": keras, "tf_keras": tf_keras}


def assert_agrees(path, loaded):
    """The network that is read has the logits, or probabilities, that the loaded model has."""
    served = served_model.read(path)
    given = {name: examples(shape, count=5) for name, shape in served.inputs.shapes.items()}
    (x,) = given.values() if len(given) == 1 else (served.inputs.joined(given),)
    answers = loaded.predict(x if len(given) == 1 else given, verbose=0)
    logits = served.network.logits(np.float64(x.reshape(len(x), -1)))
    ours = (tf.nn.softmax(logits) if served.head == "softmax" else logits).numpy()
    np.testing.assert_allclose(ours, answers, rtol=0, atol=TOLERANCE * (1 + np.abs(answers).max()))
    served.check(x)
    assert served.source == str(path) and len(served.fingerprint) == 64
    return served


def every_second(builds):
    """Each model by both libraries, with one ending by each; the next one the other way round."""
    for at, build in enumerate(builds):
        for library, ending in zip(LIBRARIES, ENDINGS[:: (-1) ** at], strict=True):
            yield library, build, ending


@pytest.mark.parametrize(("library", "build", "ending"), every_second(MODELS))
def test_files_are_read_as_what_they_predict(library, build, ending, tmp_path):
    path = tmp_path / f"model{ending}"
    build(LIBRARIES[library]).save(path)
    loaded = LIBRARIES[library].models.load_model(path, compile=False)
    assert_agrees(path, loaded)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_model_within_that_is_called_twice_is_read(ending, tmp_path):
    L = keras.layers
    s, x = keras.Input((4,), name="s"), keras.Input((4,), name="x")
    part = keras.Model(s, L.Dense(4, "tanh", name="d")(s), name="part")
    chained = keras.Sequential([keras.Input((4,)), L.Dense(4, "softplus")], name="chained")
    model = keras.Model(x, L.Dense(3)(part(chained(L.Dense(4)(chained(part(x)))))))
    given_weights(model).save(tmp_path / f"model{ending}")
    assert_agrees(tmp_path / f"model{ending}", model)


ONLY_KERAS_3 = {
    "einsum": lambda L: [L.EinsumDense("ab,bc->ac", 4, "tanh", bias_axes="c"), L.Dense(3)],
    "einsum of more": lambda L: [
        L.Reshape((2, 3)), L.EinsumDense("...x,xy->...y", 4, bias_axes="y"), L.Flatten(),
        L.Dense(3, "tanh"), L.Dense(3),
    ],
    "activations": lambda L: [L.Dense(4, "celu"), L.Dense(4, "gelu"), L.Dense(4, "hard_tanh")]
    + [L.Dense(4, "squareplus"), L.Dense(3)],
    "of this package": lambda L: [
        ClipInput(-1, 1, dead_zone=0.1), Carry(L.Dense(4, "tanh")), L.Dense(4, sin),
        L.Dense(4, gelu_tanh), L.Dense(4, absolute), L.Dense(3),
    ],
    "pooled": lambda L: [L.Reshape((2, 3, 1)), TrainedAveragePooling2D(2), L.Flatten(), L.Dense(3)],
}  # fmt: skip


def attending(L):
    """All kinds of attention, called in the ways that there are."""
    x = given = keras.Input((4, 6))
    x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 3, value_dim=2)(x, x)]))
    x = L.Add()([x, L.MultiHeadAttention(1, 2, output_shape=6)(x, key=given, value=x)])
    x = L.Add()([x, L.GroupQueryAttention(2, 4, 2, use_bias=False)(x, x)])
    x = L.Attention(use_scale=True)([x, given])
    x = L.AdditiveAttention()([x, x])
    return given_weights(keras.Model(given, L.Dense(3)(L.GlobalAveragePooling1D()(x))))


@pytest.mark.parametrize("ending", ENDINGS)
def test_attention_is_read(ending, tmp_path):
    model = attending(keras.layers)
    model.save(tmp_path / f"model{ending}")
    assert_agrees(tmp_path / f"model{ending}", model)


REFUSED_ATTENTION = {
    "a mask": (lambda L, x: L.MultiHeadAttention(1, 2)(x, x, use_causal_mask=True), "causal"),
    "other sizes": (
        lambda L, x: L.MultiHeadAttention(1, 2)(x, L.EinsumDense("abc,cd->abd", (4, 3))(x)),
        "attends to tensors of other sizes",
    ),
    "a concatenated score": (
        lambda L, x: L.Attention(score_mode="concat")([x, x]), "'score_mode' must be one of dot"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_ATTENTION)
def test_other_attention_is_refused(name, tmp_path):
    build, words = REFUSED_ATTENTION[name]
    x = keras.Input((4, 6))
    made = keras.layers.GlobalAveragePooling1D()(build(keras.layers, x))
    keras.Model(x, keras.layers.Dense(3)(made)).save(tmp_path / "model.keras")
    with pytest.raises(InputError, match=words):
        served_model.read(tmp_path / "model.keras")


@pytest.mark.parametrize(
    ("args", "names"),
    [(1, ["key"]), (2, ["value"]), (1, []), (0, ["query", "key"]), (3, ["key"]), (4, [])],
)
def test_attention_to_other_arguments_is_refused(args, names):
    """Keras could not call it so: a value is left out, or said twice."""
    history = {"keras_history": ["x", 0, 0]}
    x = {"class_name": "__keras_tensor__", "config": history}
    layer = SimpleNamespace(kind="MultiHeadAttention", layer=SimpleNamespace(name="att"))
    node = {"args": [x] * args, "kwargs": dict.fromkeys(names, x)}
    with pytest.raises(InputError, match="otherwise than on a query, a value and a key"):
        Place.of(layer, [node], "the model")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ONLY_KERAS_3)
def test_layers_of_keras_3_are_read(name, ending, tmp_path):
    model = chain(keras, (6,), *ONLY_KERAS_3[name](keras.layers))
    model.save(tmp_path / f"model{ending}")
    assert_agrees(tmp_path / f"model{ending}", model)


def test_a_model_that_was_built_by_a_call_is_read(tmp_path):
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])
    model(np.zeros((1, 4)))
    for ending in ENDINGS:
        model.save(tmp_path / f"model{ending}")
        assert_agrees(tmp_path / f"model{ending}", model)


def test_a_training_wrapper_is_read_as_its_base(tmp_path):
    L = keras.layers
    base = keras.Sequential([keras.Input((4,)), L.Dense(5, "softplus"), L.Dense(3)])
    model = CRTModel(base, radius=0.5)
    model.compile("adam", run_eagerly=True)
    model.fit(examples((4,), count=8), np.arange(8) % 3, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "model.h5")
    with pytest.raises(InputError, match="'crt_model.*save its base, or save it as .keras"):
        served_model.read(tmp_path / "model.h5")
    served = assert_agrees(tmp_path / "model.keras", base)
    live = served_model.read(base)
    for ours, theirs in zip(served.network.affines, live.network.affines, strict=True):
        np.testing.assert_array_equal(ours.kernel, theirs.kernel)


def random_model(seed):
    """A small model with layers, activations and sizes drawn by chance."""
    rng, L = np.random.default_rng(seed), keras.layers
    activation = lambda: str(rng.choice(["relu", "tanh", "softplus", "elu", "sigmoid", "gelu"]))  # noqa: E731
    x = given = keras.Input((6, 6, int(rng.integers(1, 3))), name="x")
    for _ in range(rng.integers(0, 3)):
        kind = rng.integers(5)
        if kind == 0:
            x = L.Conv2D(int(rng.integers(1, 4)), 3, padding="same", activation=activation())(x)
        elif kind == 1:
            x = L.DepthwiseConv2D(2, padding="same", use_bias=bool(rng.integers(2)))(x)
        elif kind == 2:
            x = L.BatchNormalization(center=bool(rng.integers(2)))(x)
        elif kind == 3:
            x = L.Add()([x, L.Conv2D(x.shape[-1], 1, activation=activation())(x)])
        else:
            x = L.Dropout(0.2)(L.ZeroPadding2D(1)(x))
    x = (L.Flatten() if rng.integers(2) else L.GlobalAveragePooling2D())(x)
    for _ in range(rng.integers(1, 3)):
        x = L.Dense(int(rng.integers(2, 6)), activation())(x)
        if rng.integers(2):
            x = L.Concatenate()([x, L.Dense(2, activation())(x)])
    x = L.Dense(3)(x)
    return randomize(keras.Model(given, L.Softmax()(x) if rng.integers(3) == 0 else x), seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_model_is_certified_the_same_however_it_is_saved(seed, tmp_path):
    model = random_model(seed)
    x = examples(tuple(model.input_shape[1:]), count=3, seed=seed)
    for ending in ENDINGS:
        model.save(tmp_path / f"model{ending}")
    model.export(tmp_path / "exported", verbose=False)
    results = [
        Certifier(str(tmp_path / name), method="lipschitz").certify(x)
        for name in ("model.keras", "model.h5", "exported")
    ]
    live = Certifier(model, method="lipschitz").certify(x)
    for result in results:
        np.testing.assert_array_equal(result.prediction, live.prediction)
        np.testing.assert_allclose(result.radius, live.radius, rtol=1e-9)
    assert (live.radius > 0).all()


@pytest.mark.parametrize("dtype", ["uint8", "float64", "float16"])
def test_the_type_of_the_input_is_read(dtype, tmp_path):
    inside = "float64" if dtype == "float64" else "float32"
    layers = [keras.layers.Dense(5, "tanh", dtype=inside), keras.layers.Dense(3, dtype=inside)]
    keras.Sequential([keras.Input((4,), dtype=dtype), *layers]).save(tmp_path / "model.keras")
    assert served_model.read(tmp_path / "model.keras").input_dtype.name == dtype


def test_the_fingerprint_is_of_the_file(tmp_path):
    model = chain(keras, (4,), keras.layers.Dense(3))
    prints = []
    for weight in (0.0, 0.0, 1.0):
        model.layers[0].bias.assign(np.full(3, weight, np.float32))
        model.save(tmp_path / "model.h5")
        (tmp_path / "other.h5").write_bytes((tmp_path / "model.h5").read_bytes())
        prints.append(served_model.read(tmp_path / "other.h5").fingerprint)
    assert len(set(prints[:2])) == 1 and prints[2] != prints[0]
