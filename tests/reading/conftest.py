from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from convolutions import architecture
from hostile_models import models

from keras_curv.reading import served_model


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda *_, **__: pytest.fail("it was loaded"))


@pytest.fixture
def nothing_is_run(monkeypatch):
    monkeypatch.setattr(served_model, "calls_of", lambda *_: pytest.fail("it was run"))


@pytest.fixture(scope="session")
def plain_files(tmp_path_factory):
    """A good SavedModel as `{relative path: bytes}`, to be written out damaged."""
    files = models.plain_files()
    path = models.write(tmp_path_factory.mktemp("plain"), files)
    served_model.read(path).check(np.ones((2, 4), np.float32))
    return files


@pytest.fixture(params=["directory", "live"])
def read_keras(request, tmp_path):
    def read(model):
        if request.param == "live":
            return served_model.read(model)
        model.export(str(tmp_path / "model"), verbose=False)
        return served_model.read(tmp_path / "model")

    return read


@pytest.fixture(scope="session")
def read():
    """Model, inputs and what was read, of a seed; read once."""
    known = {}

    def of(seed):
        if seed not in known:
            model, x = architecture(seed)
            known[seed] = model, x, served_model.read(model)
        return known[seed]

    return of
