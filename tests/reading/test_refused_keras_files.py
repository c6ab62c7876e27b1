"""Files of Keras that hold code, lie or are broken are refused by name; nothing of them runs."""

from __future__ import annotations

import builtins
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tf_keras
from hostile_inputs import keras_files, keras_weights
from hostile_inputs.keras_files import ARCHIVE, CONFIG, LEGACY, archive, configured, given
from hostile_inputs.keras_weights import weighed
from refused import assert_refused

from keras_curv.keras_file import hdf5
from keras_curv.reading import served_model

pytestmark = pytest.mark.filterwarnings("ignore")

KERAS, WEIGHTS = "keras: ", "keras weights: "
REASONS = {
    "keras: a Lambda": ("'a' (Lambda)", "no layer that is read", "docs/methods.md"),
    "keras: a lambda as an activation": ("'a' (Dense)", "'activation'", "knows by name"),
    "keras: a layer of the user": ("'a' (mine>Dense)", "no layer that is read"),
    "keras: a layer of another module": ("'a' (os>system)", "no layer that is read"),
    "keras: a layer that is a function of keras": ("(deserialize)", "no layer that is read"),
    "keras: a StringLookup of a file": ("(StringLookup)", "no layer that is read"),
    "keras: a model of another class": ("(Functional>Mine)", "only Sequential and functional"),
    "keras: units 10": ("must be an integer from 1 to 65536",),
    "keras: 65536 units": ("'a' (Dense) needs more weights than the file has",),
    "keras: an input of 922337203": ("must be an integer from 1 to 524288",),
    "keras: half precision": ("must be float32 or float64",),
    "keras: LoRA": ("'lora_rank' is not supported unless it is null",),
    "keras: training at inference": ("called with training=True", "tensors alone"),
    "keras: a layer that is called on itself": ("gets what nothing computes",),
    "keras: a vector repeated 2^16 times": ("is too large", "524288"),
    "keras: built for another shape": ("was built for inputs of shape [None, 1, 5]",),
    "keras: a hundred models in models": ("models in models is too large",),
    "keras: a config of a number of 400 digits": ("no number that float64 holds",),
    "keras: a config of brackets of depth 10^5": ("nests too deeply",),
    "keras: a config of a name twice": ("'class_name' is named twice",),
    "keras: a config of 2^23 bytes": ("config.json, in bytes, is too large",),
    "keras: a member '../outside'": ("it has '../outside'", "are read"),
    "keras: a member twice": ("each of", "once"),
    "keras: no metadata": ("each of", "once"),
    "keras: a bomb, said to be of 9 bytes": ("Bad CRC-32", "model.save"),
    "keras: packed by method 12": ("not packed as Keras does",),
    "keras: a pipe, as model.keras": ("not a regular file",),
    "keras: a link to /dev/zero, as model.h5": ("not a regular file",),
    "keras weights: a link to another file": ("has links",),
    "keras weights: a soft link": ("soft link",),
    "keras weights: a group in itself": ("two names",),
    "keras weights: two weights that are one": ("two names",),
    "keras weights: a virtual weight": ("(virtual)",),
    "keras weights: weights in another file": ("in other files",),
    "keras weights: a weight missing": ("needs more weights than the file has",),
    "keras weights: a weight too many": ("dense/vars/2", "no layer has"),
    "keras weights: a layer too many": ("dense_9", "no layer has"),
    "keras weights: weights of another shape": ("shape (5, 4)", "'a/kernel'"),
    "keras weights: NaN": ("'a/kernel'", "NaN or infinite"),
    "keras weights: infinite weights": ("NaN or infinite",),
    "keras weights: NaN in an h5 file": ("NaN or infinite",),
    "keras weights: weights packed": ("packed",),
    "keras weights: 2^40 weights that are zero": ("not as many as its shape says",),
    "keras weights: a GiB of zeros, packed": ("packed",),
    "keras weights: weights of type i4": ("of type int32",),
    "keras weights: weights in another order": ("'a/bias' in the file is where 'a/kernel'",),
    "keras weights: an h5 file of weights alone": ("only weights at most", "model.save"),
}
CASES = keras_files.CASES | keras_weights.CASES


@pytest.mark.parametrize("name", REASONS)
def test_each_is_refused_for_its_reason(name, tmp_path, nothing_is_run):
    name = next(case for case in CASES if case.startswith(name))
    CASES[name](tmp_path)
    (path,) = tmp_path.iterdir()
    assert_refused(path, *REASONS.get(name, ()))


def test_what_says_nothing_at_inference_is_not_looked_at(tmp_path):
    for case in ("an initializer that is a lambda", "a regularizer of os.system"):
        CASES[KERAS + case](tmp_path)
        assert served_model.read(tmp_path / ARCHIVE).network.classes == 3


def test_no_file_of_a_model_names_what_keras_would_look_up(tmp_path, monkeypatch):
    """Neither Keras' loaders nor pickle, marshal or h5py have a part in it."""
    archive(tmp_path)

    def never(*_, **__):
        pytest.fail("something was loaded")

    for owner, name in (
        (keras.saving, "deserialize_keras_object"),
        (keras.saving, "get_registered_object"),
        (keras.saving, "load_model"),
        (keras.layers, "deserialize"),
        (keras.Sequential, "from_config"),
        (h5py, "File"),
        (builtins, "exec"),
    ):
        monkeypatch.setattr(owner, name, never)
    assert served_model.read(tmp_path / ARCHIVE).network.classes == 3


def test_a_signature_is_refused(tmp_path):
    archive(tmp_path)
    assert_refused(tmp_path / ARCHIVE, "has no signatures", signature="other")


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_what_keras_2_computes_differently_is_refused(ending, tmp_path):
    L = tf_keras.layers
    model = tf_keras.Sequential([L.InputLayer((4,)), L.Dense(3, "hard_sigmoid"), L.Dense(3)])
    model.save(tmp_path / f"model{ending}")
    assert_refused(tmp_path / f"model{ending}", "Keras 2 and Keras 3 compute differently")


def test_a_model_that_keras_2_calls_twice_is_refused(tmp_path):
    L = tf_keras.layers
    part = tf_keras.Sequential([L.InputLayer((4,)), L.Dense(4)], name="part")
    x = tf_keras.Input((4,))
    tf_keras.Model(x, L.Dense(3)(part(L.ReLU()(part(x))))).save(tmp_path / LEGACY)
    assert_refused(tmp_path / LEGACY, "'part'", "called several times")


def test_layers_without_a_rule_are_named(tmp_path):
    L = keras.layers
    for layer in (L.Discretization([0.0, 1.0]), L.Masking(), L.RandomRotation(0.1)):
        model = keras.Sequential([keras.Input((4,)), layer, L.Dense(3)])
        model.save(tmp_path / ARCHIVE)
        assert_refused(tmp_path / ARCHIVE, repr(layer.name), type(layer).__name__)


@pytest.mark.parametrize(
    ("unroll", "mode", "replaced", "words"),
    [
        (True, "sum", ('"class_name": "LSTM"', '"class_name": "Dense"'), "its layer must be one"),
        (True, "sum", ('"units": 2', '"units": 900'), "needs more weights than the file has"),
        (True, None, ("", ""), "'merge_mode' must be one of concat"),
        (False, "sum", ("", ""), "'unroll' is not supported unless it is true"),
    ],
)
def test_both_ways_are_of_layers_that_are_read(unroll, mode, replaced, words, tmp_path):
    L = keras.layers
    x = keras.Input((2, 2))
    both = L.Bidirectional(L.LSTM(2, unroll=unroll), merge_mode=mode)(x)
    keras.Model(x, L.Dense(3)(L.Concatenate()(both) if mode is None else both)).save(
        tmp_path / ARCHIVE
    )
    with zipfile.ZipFile(tmp_path / ARCHIVE) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members[CONFIG] = members[CONFIG].decode().replace(*replaced).encode()
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    assert_refused(tmp_path / ARCHIVE, words)


def test_ops_without_a_layer_are_named(tmp_path):
    x = keras.Input((4,))
    keras.Model(x, keras.layers.Dense(3)(x + 1.0)).save(tmp_path / ARCHIVE)
    assert_refused(tmp_path / ARCHIVE, "(keras.src.ops.numpy>Add)", "no layer that is read")


def test_a_model_that_was_never_built_is_refused(tmp_path):
    configured(
        tmp_path,
        lambda made, layers: (
            layers["chain"]["config"].update(
                layers=layers["chain"]["config"]["layers"][1:], build_input_shape=None
            )
            or layers["chain"].update(build_config=None)
        ),
    )
    assert_refused(tmp_path / ARCHIVE, "does not say the shape of its input")


def test_an_archive_is_an_archive(tmp_path):
    (tmp_path / "model.h5").write_bytes(b"PK" * 40)
    assert_refused(tmp_path / "model.h5", "it is no HDF5 file")
    (tmp_path / "other").write_bytes(b"")
    assert_refused(tmp_path / "other", "nor a .keras or .h5 file")


def test_a_file_is_opened_once(tmp_path, monkeypatch):
    """What takes its place in the meantime is not read."""
    archive(tmp_path)
    opened = []
    before = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *more: (opened.append(str(path)), before(path, *more))[1]
    )
    served_model.read(tmp_path / ARCHIVE)
    assert opened.count(str(tmp_path / ARCHIVE)) == 1


# The reader of HDF5, beside h5py.


def assert_same_arrays(content, file):
    arrays = hdf5.parse(content).arrays()
    seen = {}
    file.visititems(
        lambda name, item: seen.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
    )
    assert arrays.keys() == seen.keys()
    for name, values in seen.items():
        np.testing.assert_array_equal(arrays[name].values(), values)
        assert arrays[name].dtype == values.dtype


@pytest.mark.parametrize("groups", [1, 40, 700])
def test_hdf5_is_read_as_h5py_reads_it(groups, tmp_path):
    """Many groups make trees of several levels, and many attributes several blocks."""
    rng, path = np.random.default_rng(groups), tmp_path / "file"
    with h5py.File(path, "w") as file:
        for number in range(groups):
            for size in (3, 4):
                dtype = str(rng.choice(["f4", "f8", "i4", "i8", "u4"]))
                shape = tuple(rng.integers(1, 4, rng.integers(0, size)).tolist())
                file[f"layer{number}/vars/{size}"] = rng.integers(0, 99, shape).astype(dtype)
        file.attrs["text"] = "ä" * 9000
        file.attrs["number"] = 3.5
        file.attrs["none"] = np.zeros(0)
        for number in range(30):
            file.attrs[f"names{number}"] = [b"a" * 200, b"bc"] * 5
            file.attrs[f"texts{number}"] = ["x", "yz" * number]
    content = path.read_bytes()
    with h5py.File(path) as file:
        assert_same_arrays(content, file)
        said = hdf5.parse(content).attributes
        assert said.keys() == file.attrs.keys()
        assert said["text"] == file.attrs["text"] and said["number"] is None
        for number in range(30):
            assert said[f"names{number}"] == list(file.attrs[f"names{number}"])
            assert said[f"texts{number}"] == list(file.attrs[f"texts{number}"])


def test_newer_hdf5_is_refused(tmp_path):
    with h5py.File(tmp_path / "model.h5", "w", libver="latest") as file:
        file["a"] = np.zeros(3)
    assert_refused(tmp_path / "model.h5", "another version")


def test_the_fixtures_are_sound(tmp_path):
    """What the cases change is accepted as it is."""
    archive(tmp_path, packed=zipfile.ZIP_DEFLATED)
    assert served_model.read(tmp_path / ARCHIVE).network.classes == 3
    configured(tmp_path, given("a", activation="tanh"))
    assert served_model.read(tmp_path / ARCHIVE).network.classes == 3
    (tmp_path / ARCHIVE).unlink()
    for legacy in (False, True):
        weighed(tmp_path, lambda weights: None, legacy)
        assert served_model.read(tmp_path / (LEGACY if legacy else ARCHIVE)).network.classes == 3
    assert CONFIG in keras_files.saved()[0]
