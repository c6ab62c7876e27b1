"""`bin/certify` of a model with several inputs, whose arrays are in one file."""

from __future__ import annotations

import numpy as np
import pytest
import several_inputs
from scripts import call

from keras_curv.data import load_npz
from keras_curv.errors import InputError
from keras_curv.runs.certify_examples import certify_examples

Y = np.arange(4) % 3


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A directory, and examples by name."""
    folder = tmp_path_factory.mktemp("models")
    model = several_inputs.MODELS["joined"]()
    model.export(str(folder / "model"), verbose=False)
    return folder / "model", several_inputs.examples_of(model)


def test_arrays_by_name_and_the_joined_one_give_the_same_rows(exported, script, capfd, tmp_path):
    path, x = exported

    def arguments(name, arrays):
        np.savez(tmp_path / f"{name}.npz", y=Y, **arrays)
        return (
            "--saved_model", path, "--inputs", tmp_path / f"{name}.npz", "--radius", "0.05",
            "--method", "crc", "--output", tmp_path / f"{name}.csv",
        )  # fmt: skip

    for name, arrays in (("named", x), ("joined", {"x": several_inputs.by_hand(x)})):
        code, _, err = call(script, capfd, *arguments(name, arrays))
        assert (code, err) == (0, "")
    rows = [(tmp_path / f"{name}.csv").read_bytes() for name in ("named", "joined")]
    assert rows[0] == rows[1] and rows[0].count(b"\n") == 5


TAKES = r"takes inputs 'alpha' \(3,\), 'zeta' \(2,\), flattened and joined in this order"
BAD = {
    "missing": (dict(zeta=None, beta=np.zeros((4, 2), "f")), f"no array 'zeta' .*{TAKES}"),
    "too many": (dict(beta=np.zeros((4, 2), "f")), f"an array 'beta', which is no .*{TAKES}"),
    "shape": (dict(zeta=np.zeros((4, 3), "f")), rf"'zeta' of shape \(3,\) do not fit .*{TAKES}"),
    "x of another size": (
        dict(x=np.zeros((4, 3), "f"), alpha=None, zeta=None),
        rf"have shape \(3,\), but .*{TAKES}",
    ),
    "x besides": (dict(x=np.zeros((4, 5), "f")), "has x and alpha, zeta, but no .y."),
}


@pytest.mark.parametrize("case", BAD)
def test_arrays_of_another_model_are_refused(case, exported, tmp_path):
    path, x = exported
    changes, message = BAD[case]
    arrays = {name: array for name, array in (x | changes).items() if array is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        certify_examples(str(path), load_npz(str(tmp_path / "a.npz")), method="crc", radii=[0.1])
    assert "\n" not in str(caught.value) and "a.npz" in str(caught.value)


def test_arrays_by_name_are_not_for_a_model_of_one_input(exported, tmp_path):
    np.savez(tmp_path / "a.npz", **exported[1])
    with pytest.raises(InputError, match="a.npz has no array 'x'; it has: alpha, zeta"):
        certify_examples("saved_models/digits", load_npz(str(tmp_path / "a.npz")), radii=[0.1])
