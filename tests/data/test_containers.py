"""Examples in datasets, tables and odd dtypes are certified as the arrays that they are."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import keras_curv
from keras_curv import InputError

FROM = tf.data.Dataset.from_tensor_slices


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((3,)), dense(6, "softplus"), dense(2)])


@pytest.fixture(scope="module")
def two_inputs():
    keras.utils.set_random_seed(4)
    age, size = (keras.Input((1,), name=name) for name in ("age", "size"))
    both = keras.layers.Concatenate()([age, size])
    hidden = keras.layers.Dense(5, "softplus")(both)
    return keras.Model({"age": age, "size": size}, keras.layers.Dense(2)(hidden))


@pytest.fixture
def x(rng):
    return rng.standard_normal((7, 3)).astype(np.float32)


@pytest.fixture
def expected(model, x):
    return keras_curv.certify(model, x)


def assert_same(found, expected):
    for name, column in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), column)


@pytest.mark.parametrize("batch", [None, 3, 7])
def test_a_dataset(batch, model, x, expected):
    y = expected.prediction
    for parts in (x, (x,), (x, y), (x, y, np.ones(7))):
        dataset = FROM(parts) if batch is None else FROM(parts).batch(batch)
        assert_same(keras_curv.certify(model, dataset), expected)
    wrong = keras_curv.certify(model, FROM((x, 1 - y)).batch(2))
    assert np.all(wrong.status == keras_curv.Status.MISCLASSIFIED)


@pytest.mark.parametrize("batched", [True, False])
def test_a_dataset_of_arrays_by_name(batched, two_inputs, x):
    arrays = {"size": x[:, :1], "age": x[:, 1:2]}
    dataset = FROM((arrays, np.zeros(7, int)))
    found = keras_curv.certify(two_inputs, dataset.batch(4) if batched else dataset)
    assert_same(found, keras_curv.certify(two_inputs, arrays, np.zeros(7, int)))


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda x: FROM(x).repeat(), "has no end"),
        (lambda x: FROM(x).take(0), "has no examples"),
        (lambda x: FROM((x, x, x, x)), "Received: 4 parts"),
        (lambda x: FROM({"a": x}), "no array"),
        (lambda x: FROM(x[:, :2]).batch(2), "do not fit"),
        (lambda x: FROM(tf.ragged.constant([[1.0], [2.0, 3.0]])), "must have tensors"),
    ],
)
def test_datasets_that_are_none_of_examples(make, why, model, x):
    with pytest.raises(InputError, match=why):
        keras_curv.certify(model, make(x))


def test_labels_beside_a_dataset_are_refused(model, x):
    with pytest.raises(InputError, match="leave y out"):
        keras_curv.certify(model, FROM(x), np.zeros(7, int))


def test_a_table(model, x, expected):
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    assert_same(keras_curv.certify(model, table), expected)
    labels = pd.Series(expected.prediction, index=range(10, 17))
    assert_same(keras_curv.certify(model, table, labels), expected)


def test_columns_of_several_types(model):
    table = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 0.25]})
    plain = np.array([[1.0, 1.0, 0.5], [2.0, 0.0, 0.25]])
    assert_same(keras_curv.certify(model, table), keras_curv.certify(model, plain))


def test_columns_are_inputs_by_name(two_inputs, x):
    table = pd.DataFrame({"size": x[:, 0], "age": x[:, 1]})
    arrays = {"size": x[:, :1], "age": x[:, 1:2]}
    assert_same(keras_curv.certify(two_inputs, table), keras_curv.certify(two_inputs, arrays))


@pytest.mark.parametrize(
    "columns, why",
    [
        ({"a": [1.0], "b": ["x"], "c": [2.0]}, "the column 'b' is of the type"),
        ({"a": [1.0], "b": [2**60], "c": [2.0]}, "the column 'b' has integers beyond"),
        ({"a": [1.0], "b": [2.0]}, "do not fit"),
        ({}, "has no columns"),
    ],
)
def test_tables_that_are_refused(columns, why, model):
    with pytest.raises(InputError, match=why):
        keras_curv.certify(model, pd.DataFrame(columns))


def test_a_missing_column_is_named(two_inputs):
    with pytest.raises(InputError, match="no array 'size'"):
        keras_curv.certify(two_inputs, pd.DataFrame({"age": [1.0]}))


@pytest.mark.parametrize("kind", [tf.float16, tf.bfloat16])
def test_short_floats(kind, model, x):
    short = tf.cast(x, kind)
    expected = keras_curv.certify(model, tf.cast(short, tf.float32).numpy())
    assert_same(keras_curv.certify(model, short), expected)


def test_masked_arrays_are_refused(model, x):
    with pytest.raises(InputError, match="masked"):
        keras_curv.certify(model, np.ma.masked_less(x, 0.0))


def test_labels_may_be_objects(model, x, expected):
    labels = np.array([int(label) for label in expected.prediction], object)
    assert_same(keras_curv.certify(model, x, labels), expected)
    with pytest.raises(InputError, match="y must"):
        keras_curv.certify(model, x, np.array([10**30] * 7, object))
