"""Archives of several arrays, one for each input of a model."""

from __future__ import annotations

import numpy as np
import pytest

from keras_curv import data
from keras_curv.data import npz
from keras_curv.data.examples import Examples
from keras_curv.data.joined import joined
from keras_curv.errors import InputError

RNG = np.random.default_rng(0)
Z, A = RNG.normal(size=(10, 2)), RNG.normal(size=(10, 3, 2))
Y = np.arange(10) % 3
WHOLE = np.concatenate([A.reshape(10, 6), Z], axis=1)


@pytest.mark.parametrize("how", ["whole", "a batch at a time"])
@pytest.mark.parametrize("labels", [{}, {"y": Y}])
def test_arrays_are_joined_in_the_order_of_their_names(tmp_path, monkeypatch, how, labels):
    if how != "whole":
        monkeypatch.setattr(npz, "IN_MEMORY", 0)
    path = str(tmp_path / "a.npz")
    np.savez(path, z=Z, a=A, **labels)
    read = data.load_npz(path)
    assert read.inputs == {"a": (3, 2), "z": (2,)}
    assert read.count == 10 and read.shape == (8,)
    parts = [*read.batches(4, 3)]
    assert [len(x) for x, _ in parts] == [4, 3]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), WHOLE[3:])
    if labels:
        np.testing.assert_array_equal(np.concatenate([y for _, y in parts]), Y[3:])
    np.testing.assert_array_equal(read.at([8, 2]), WHOLE[[8, 2]])
    assert read.limited(2).inputs == read.origin().inputs == read.inputs
    assert read.origin().fingerprint == read.fingerprint
    np.savez(path, z=A, a=Z, **labels)
    assert data.load_npz(path).fingerprint != read.fingerprint


def test_an_array_x_is_taken_alone(tmp_path):
    path = str(tmp_path / "a.npz")
    np.savez(path, x=Z, a=A, y=Y)
    read = data.load_npz(path)
    assert read.inputs is None and read.shape == (2,)


BAD = {
    "one of another length": ({"a": A, "z": Z[:9]}, "'a' has 10 examples, but 'z' has 9"),
    "text": ({"a": A, "z": np.full((10, 2), "a")}, "must hold numbers"),
    "nothing": ({"a": A, "z": np.zeros((10, 0))}, "not empty"),
    "labels of others": ({"a": A, "z": Z, "y": Y[:9]}, "y must be integers of shape"),
    "x, and labels by another name": (
        {"x": Z, "labels": Y},
        "has x and labels, but no 'y'",
    ),
    "one alone": ({"a": A, "y": Y}, "no array 'x', as inputs are called; it has: a, y"),
    "too many": ({f"a{place}": Z for place in range(257)}, "no array 'x'"),
}


@pytest.mark.parametrize("how", ["whole", "a batch at a time"])
@pytest.mark.parametrize("case", BAD)
def test_arrays_that_do_not_fit_are_refused(case, how, tmp_path, monkeypatch):
    if how != "whole":
        monkeypatch.setattr(npz, "IN_MEMORY", 0)
    arrays, message = BAD[case]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        data.load_npz(str(tmp_path / "a.npz"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["whole", "a batch at a time"])
def test_x_may_be_one_of_several_inputs_of_other_dtypes(how, tmp_path, monkeypatch):
    if how != "whole":
        monkeypatch.setattr(npz, "IN_MEMORY", 0)
    path, kind = str(tmp_path / "a.npz"), np.arange(10)[:, None]
    np.savez(path, x=np.float32(Z), kind=kind, y=Y, more=A)
    assert data.beside_x(path) == ["kind", "more"]
    read = data.load_npz(path, inputs=["x", "kind"])
    assert read.inputs == read.origin().inputs == {"kind": (1,), "x": (2,)}
    np.testing.assert_array_equal(read.arrays()[0], np.concatenate([kind, np.float32(Z)], axis=1))
    with pytest.raises(InputError, match="no array 'size'; it has: x, kind, y, more"):
        data.load_npz(path, inputs=["x", "size"])


def test_arrays_in_memory_are_joined_too():
    held = Examples.from_arrays("mine", {"z": Z, "a": A}, Y)
    assert held.inputs == {"z": (2,), "a": (3, 2)} and held.shape == (8,)
    np.testing.assert_array_equal(held.arrays()[0], WHOLE)
    np.testing.assert_array_equal(joined({"z": Z[:, 0], "a": A})[:, 6], Z[:, 0])
    with pytest.raises(InputError, match="'z' has integers beyond 2⁵³"):
        joined({"a": A, "z": np.full((10, 2), 2**53 + 1)})
    with pytest.raises(InputError, match="no array"):
        Examples.from_arrays("mine", {})
