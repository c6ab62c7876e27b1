"""Refusals say the cause, in the words of whoever built the model."""

import keras
import numpy as np
import pytest

import keras_curv
from keras_curv.errors import InputError
from keras_curv.saved_model import limits

L = keras.layers
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def after(function):
    given = keras.Input((4,))
    return keras.Model(given, L.Dense(3)(function(L.Dense(5)(given))))


def quantised():
    model = after(keras.activations.relu)
    with pytest.warns(UserWarning):
        model.quantize("int8")
    return model


def of_variance(variance):
    layer = L.BatchNormalization()
    model = after(layer)
    layer.moving_variance.assign(np.full(5, variance))
    return model


CAUSES = {
    "log_softmax inside": (
        lambda: after(keras.activations.log_softmax),
        "log_softmax is read as",
    ),
    "celu(2)": (lambda: after(lambda x: keras.ops.celu(x, 2.0)), "celu is not read.* softplus"),
    "elu(2)": (lambda: after(lambda x: keras.ops.elu(x, 2.0)), r"ELU\(alpha=2\)"),
    "soft_shrink": (lambda: after(keras.activations.soft_shrink), "soft_shrink"),
    "int8": (quantised, "quantisation to int8.* from before"),
    "variance below 0": (lambda: of_variance(-1.0), r"BatchNormalization where a variance \+ eps"),
    "variance + epsilon = 0": (lambda: of_variance(-1e-3), "variance . epsilon is not positive"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_model_is_refused_by_the_cause(cause, tmp_path):
    build, message = CAUSES[cause]
    model = build()
    with pytest.raises(InputError, match=message):
        keras_curv.certify(model, X)
    model.export(str(tmp_path / "model"), verbose=False)
    with pytest.raises(InputError, match=message):
        keras_curv.certify(str(tmp_path / "model"), X)


def test_a_file_of_a_quantised_model_is_refused_by_the_cause(tmp_path):
    quantised().save(str(tmp_path / "model.keras"))
    with pytest.raises(InputError, match="quantised.*; save the model from before"):
        keras_curv.certify(str(tmp_path / "model.keras"), X)


def test_entries_are_taken_and_turned_by_constants():
    """As `take` and `roll` do, whose indices Keras compares with 0."""
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    for pick in (
        lambda z: keras.ops.take(z, [3, -5, 0], axis=1),
        lambda z: keras.ops.roll(z, 2, 1),
    ):
        model = after(pick)
        ours = keras_curv.read(model).network.logits(np.float64(x))
        np.testing.assert_allclose(ours, model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("saved", ["", "model"])
def test_what_has_too_many_weights_names_a_cut_that_works(saved, tmp_path, monkeypatch):
    given = keras.Input((8, 8, 1))
    seen = L.MaxPooling2D()(L.Conv2D(3, 3, activation="tanh")(L.Conv2D(8, 3)(given)))
    model = keras.Model(given, L.Dense(3)(L.Flatten(name="last")(seen)))
    x, source = np.ones((2, 8, 8, 1), np.float32), str(tmp_path / saved) if saved else model
    if saved:
        model.export(source, verbose=False)
        x = np.ones((2, 12), np.float32)
    monkeypatch.setattr(limits, "TOTAL_ENTRIES", 200)
    with pytest.raises(InputError, match="too large: .* cut at 'last' to certify the part behind"):
        keras_curv.read(source)
    assert len(keras_curv.certify(source, x, cut="last", method="lipschitz")) == 2


def test_an_unbounded_slope_names_the_guarantee_that_needs_no_bound():
    model = after(keras.activations.exponential)
    with pytest.raises(InputError, match="unbounded slope.* use the guarantee real"):
        keras_curv.certify(model, X, guarantee="float32")
    assert keras_curv.certify(model, X).radius.any()


def test_a_layer_is_no_output():
    given = keras.Input((4,))
    ends = {"a": L.Dense(3, name="first")(given), "b": L.Dense(2, name="second")(given)}
    model = keras.Model(given, ends)
    with pytest.raises(InputError, match=r"\(a .*, b .* output_name is one of these names"):
        keras_curv.certify(model, X, output_name="first")
    assert keras_curv.certify(model, X, output_name="a").radius.any()
