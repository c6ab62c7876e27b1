"""With processors to spare two batches are at work at a time: rows are those of one by one."""

import threading

import keras
import numpy as np
import pytest

from keras_curv import certify_examples
from keras_curv.errors import InputError
from keras_curv.numerics import batches
from keras_curv.rows.row import Row

BATCH, COUNT = 8, 60


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((5,)), dense(9, "softplus"), dense(4)])


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    return rng.normal(size=(COUNT, 5)).astype(np.float32), rng.integers(0, 4, COUNT)


def rows_of(model, examples, output, **options):
    certify_examples(model, examples, output=str(output), batch_size=BATCH, seed=3, **options)
    return output.read_bytes()


@pytest.mark.parametrize("method", ["auto", "crc", "lipschitz"])
def test_rows_are_the_same_and_in_order(model, examples, method, tmp_path, monkeypatch):
    threads, made = set(), Row.from_certificates

    def noting(*args):
        threads.add(threading.get_ident())
        return made(*args)

    monkeypatch.setattr(Row, "from_certificates", noting)
    found = []
    for processors in (1, 2):
        monkeypatch.setattr(batches, "processors", lambda processors=processors: processors)
        options = {"method": method, "rivals": "random"}
        found.append(rows_of(model, examples, tmp_path / f"{processors}.csv", **options))
    assert found[0] == found[1] and len(threads) == 3  # this one, and two


def test_what_is_before_a_bad_example_is_written(model, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "processors", lambda: 2)
    output = tmp_path / "rows.csv"
    whole = rows_of(model, examples, tmp_path / "whole.csv", method="lipschitz")
    x, y = examples[0].copy(), examples[1]
    x[3 * BATCH + 1] = np.nan
    with pytest.raises(InputError, match="NaN|finite"):
        rows_of(model, (x, y), output, method="lipschitz")
    written = output.read_bytes()
    assert whole.startswith(written) and written.count(b"\n") == 1 + 3 * BATCH
