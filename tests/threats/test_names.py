"""Features that are frozen by name: of inputs, and of columns of a DataFrame."""

import json
import types

import keras
import numpy as np
import pytest
import several_inputs
from scripts import call

import keras_curv
from keras_curv import Threat
from keras_curv.errors import InputError

L = keras.layers


class Table:
    """What a DataFrame is to the library: columns of arrays by name."""

    def __init__(self, arrays):
        self.columns, self._arrays = list(arrays), arrays

    def __len__(self):
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, name):
        array = self._arrays[name]
        return types.SimpleNamespace(to_numpy=lambda: array, dtype=array.dtype)

    def to_numpy(self):
        return np.stack(list(self._arrays.values()), axis=1)


@pytest.fixture(scope="module")
def tabular():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((3,)), L.Dense(5, "tanh"), L.Dense(3)])


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    names = "income", "age", "size"  # not sorted: columns are entries in their order
    return Table({name: rng.standard_normal(6).astype(np.float32) for name in names})


def test_columns_are_frozen_by_name_as_by_index(tabular, table):
    free, named, indexed = (
        keras_curv.certify(tabular, table, threat=threat).radius
        for threat in (None, {"frozen": ["age", "size"]}, {"frozen": [1, 2]})
    )
    np.testing.assert_array_equal(named, indexed)
    assert (named > free).any()


def test_inputs_are_frozen_by_name_wherever_they_are_joined():
    model = several_inputs.MODELS["joined"]()
    x = several_inputs.examples_of(model)
    free = keras_curv.certify(model, x).radius
    for name, places in (("alpha", [0, 1, 2]), ("zeta", [3, 4])):
        named, indexed = (
            keras_curv.certify(model, x, threat={"frozen": frozen}).radius
            for frozen in ([name], places)
        )
        np.testing.assert_array_equal(named, indexed)
        assert (named != free).any()


def test_a_report_shows_the_names(tmp_path, script, capfd):
    model = several_inputs.MODELS["joined"]()
    x = several_inputs.examples_of(model)
    model.export(str(tmp_path / "model"), verbose=False)
    np.savez(tmp_path / "x.npz", **x)
    (tmp_path / "threat.json").write_text(json.dumps({"frozen": ["alpha"]}))
    flags = "--saved_model", tmp_path / "model", "--inputs", tmp_path / "x.npz"
    code, out, err = call(script, capfd, *flags, "--threat", tmp_path / "threat.json")
    assert (code, err) == (0, "") and "'alpha' frozen" in out


def test_names_that_are_not_there_are_refused(tabular, table):
    for x, known in ((table, "'income', 'age', 'size'"), (table.to_numpy(), "none")):
        with pytest.raises(InputError, match=f"frozen names 'sex', but .* are {known}: those of"):
            keras_curv.certify(tabular, x, threat={"frozen": ["sex", "age"][:1]})
    with pytest.raises(InputError, match="frozen must be bools, or indices or names"):
        Threat(frozen=["age", 1])
    with pytest.raises(InputError, match="frozen names 'age'"):
        keras_curv.CRTModel(tabular, radius=0.1, threat={"frozen": ["age"]})
    with pytest.raises(InputError, match="all features are frozen"):
        keras_curv.certify(tabular, table, threat={"frozen": table.columns})


def test_names_are_part_of_what_a_threat_is():
    threat = Threat(frozen=["b", "a"])
    assert threat == Threat(**threat.config()) != Threat(frozen=["a"])
    assert str(threat) == "frozen 'a','b'"
    many = Threat(frozen=[f"f{i}" for i in range(20)])
    assert "20 features frozen" in many.text
