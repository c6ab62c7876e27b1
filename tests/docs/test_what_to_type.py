"""Each row of the tutorial's table of models is run, as it is typed there."""

import json
import pathlib
import re
import shlex

import keras
import numpy as np
import pandas as pd
import pytest
import scripts
import tensorflow as tf
import tf_keras

import keras_curv

TUTORIAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
ROW = re.compile(r"^\| [^|]+ \| `(keras_curv[^`]+)` \|$", re.MULTILINE)
TYPED = ROW.findall(TUTORIAL.read_text(encoding="utf-8").partition("what to type\n")[2])
L = keras.layers


def _parsing(net):
    def serve(examples):
        keys = {"age": tf.io.FixedLenFeature([2], tf.float32)}
        return {"logits": net(tf.io.parse_example(examples, keys)["age"])}

    return serve


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the rows name: files in a folder, and objects."""
    folder, rng = tmp_path_factory.mktemp("typed"), np.random.default_rng(0)
    image = keras.Input((6, 6, 1))
    middle = L.GlobalAveragePooling2D(name="avg_pool")(L.Conv2D(3, 3, activation="softplus")(image))
    chain = [image, *keras.Model(image, middle).layers[1:], L.Dense(4, "tanh"), L.Dense(2)]
    cnn = keras.Sequential(chain)
    cnn.save(folder / "cnn.keras")
    cnn.save(folder / "cnn.h5")
    cnn.export(str(folder / "cnn"), verbose=False)
    x = rng.normal(size=(3, 6, 6, 1)).astype(np.float32)
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "features.npz", x=keras.Model(image, middle)(x).numpy())
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    hidden = L.Dense(4, "tanh")(L.Concatenate()([a, b]))
    keras.Model([a, b], L.Dense(2)(hidden)).export(str(folder / "two"), verbose=False)
    np.savez(folder / "two.npz", a=np.ones((3, 2), "f"), b=np.ones((3, 3), "f"), y=[0, 1, 0])
    rows = keras.Sequential([keras.Input((2,)), L.Dense(4, "tanh"), L.Dense(2)])
    archive = keras.export.ExportArchive()
    archive.track(rows)
    strings = [tf.TensorSpec([None], tf.string, name="examples")]
    archive.add_endpoint("serving_default", _parsing(rows), strings)
    archive.write_out(str(folder / "parsing"), verbose=False)
    for number in range(2):
        floats = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, number]))
        example = tf.train.Example(features=tf.train.Features(feature={"age": floats}))
        with tf.io.TFRecordWriter(str(folder / f"x-{number}.tfrecord")) as file:
            file.write(example.SerializeToString())
    old = _of_keras_2(folder)
    _with_integers().export(str(folder / "shop"), verbose=False)
    np.savez(folder / "shop.npz", age=np.ones((3, 1), "f"), kind=[[0], [2], [1]], y=[0, 1, 0])
    (folder / "requests.jsonl").write_text(json.dumps({"instances": x.tolist()}) + "\n")
    people, persons = _feature_space()
    anything = lambda x: tf.reduce_sum(tf.math.floor(x), (1, 2)) * [1.0, -1.0]  # noqa: E731
    frame = pd.DataFrame({"age": [1.0, 2.0], "height": [0.5, 1.5]})
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(2)
    known = dict(cnn=cnn, x=x, rows=rows, frame=frame, dataset=dataset, old=old)
    return folder, known | dict(people=people, persons=persons, anything=anything)


def _of_keras_2(folder):
    layers = tf_keras.layers
    net = [layers.InputLayer((6, 6, 1)), layers.Flatten(), layers.Dense(4, "tanh"), layers.Dense(2)]
    model = tf_keras.Sequential(net)
    model.save(folder / "old.keras")
    return model


def _with_integers():
    age, kind = keras.Input((1,), name="age"), keras.Input((1,), dtype="int32", name="kind")
    known = L.Concatenate()([age, L.Flatten()(L.Embedding(3, 2)(kind))])
    return keras.Model([age, kind], L.Dense(2)(L.Dense(4, "tanh")(known)))


def _feature_space():
    kinds = {"age": "float", "kind": "string_categorical"}
    space = keras.utils.FeatureSpace(kinds, output_mode="dict")
    persons = {"age": np.array([[1.0], [2.0]]), "kind": np.array([["a"], ["b"]])}
    space.adapt(tf.data.Dataset.from_tensor_slices(persons).batch(2))
    joined = L.Concatenate(name="joined")([*space.get_encoded_features().values()])
    model = keras.Model(space.get_inputs(), L.Dense(2)(L.Dense(4, "tanh")(joined)))
    model.layers[-1].bias.assign([9.0, 0.0])  # which no word outweighs
    return model, persons


def test_the_table_has_its_rows():
    assert len(TYPED) == 15


@pytest.mark.parametrize("typed", TYPED)
def test_what_is_typed_gives_radii(typed, names, monkeypatch, capfd):
    folder, objects = names
    monkeypatch.chdir(folder)
    if typed.startswith("keras_curv."):
        result = eval(typed, {"keras_curv": keras_curv, **objects})
        assert (result.radius > 0.0).any()
        return
    _, _, *arguments = shlex.split(typed)
    code, out, err = scripts.call(scripts.load("certify"), capfd, *arguments)
    assert (code, err) == (0, "") and "certified at some radius" in out
    assert ("behind avg_pool" in out) == ("--cut" in typed)
