"""Proofs of the model of digits, made once; python-flint is an extra."""

import numpy as np
import pytest

pytest.importorskip("flint")

from keras_curv import ExampleOptions, certify_examples, data, read, save_network
from keras_curv_check.files import ProofFolder, read_network

COUNT = 40


@pytest.fixture(scope="session")
def run_of_digits(tmp_path_factory):
    """A folder with network.npz, proofs, rows.csv and inputs.npz, of the first digits."""
    folder = tmp_path_factory.mktemp("digits")
    x, y = data.load_all("digits")
    x, y = x[:COUNT].astype(np.float64), y[:COUNT]
    np.savez(folder / "inputs.npz", x=x, y=y)
    save_network(read("saved_models/digits").network, folder / "network.npz")
    options = ExampleOptions(
        method="crc",
        batch_size=16,
        output=str(folder / "rows.csv"),
        proofs=str(folder / "proofs"),
    )
    certify_examples("saved_models/digits", (x, y), options)
    return folder


@pytest.fixture(scope="session")
def checked_network(run_of_digits):
    return read_network(run_of_digits / "network.npz")


@pytest.fixture(scope="session")
def claims(run_of_digits, checked_network):
    folder = ProofFolder.open(run_of_digits / "proofs")
    return [claim for batch in folder.claims(checked_network) for claim in batch]
